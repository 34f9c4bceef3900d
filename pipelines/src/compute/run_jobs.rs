//! Runs work on batches, which may run at the same time.
//!
//! *In*: batches. *Out*: one result per batch, in order of completion. *Kept*: one capability per outstanding batch. *Capabilities*: held from
//! a batch's arrival until its result is sent. A result activates the operator.

use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::flow::map_async::MapAsync;
use gnnflow_dataflow::time;
use timely::dataflow::StreamVec;

use super::ready_batch::Keyed;
use super::{ComputeState, JobThread, Passes};

/// Runs work on batches.
pub(crate) trait RunJobs<'scope, B> {
    /// Applies `work` to each batch, after the earlier jobs of the compute thread. Several batches may be computed at the same time
    /// ([`ComputeState::run_job`]).
    ///
    /// # Panics
    /// When the compute thread has panicked.
    fn run_jobs<R, F>(
        self,
        name: &str,
        compute_thread: &ComputeThread<ComputeState>,
        work: F,
    ) -> StreamVec<'scope, u64, R>
    where
        R: Send + 'static,
        F: Fn(&Passes, &JobThread, B) -> R + Send + Sync + 'static;
}

impl<'scope, B: Keyed + Send + 'static> RunJobs<'scope, B> for StreamVec<'scope, u64, B> {
    fn run_jobs<R, F>(
        self,
        name: &str,
        compute_thread: &ComputeThread<ComputeState>,
        work: F,
    ) -> StreamVec<'scope, u64, R>
    where
        R: Send + 'static,
        F: Fn(&Passes, &JobThread, B) -> R + Send + Sync + 'static,
    {
        let (job_name, work): (Arc<str>, _) = (name.into(), Arc::new(work));
        let compute_thread = compute_thread.with_name(Arc::clone(&job_name));
        self.map_async(name, move |batch: B, completer| {
            let (name, work) = (Arc::clone(&job_name), Arc::clone(&work));
            let at = time::at(batch.key().epoch, batch.key().step);
            compute_thread.at(at).post_or_pass_on(move |compute| {
                compute.run_job(&name, at, move |passes, on| completer.give(work(passes, on, batch)))
            });
        })
    }
}
