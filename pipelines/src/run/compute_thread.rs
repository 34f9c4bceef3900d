//! Starts the compute thread, whose progress counts as progress of the run.

use std::sync::Arc;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, Observer, Ran};

use super::trace::ComputeTrace;
use crate::compute::{ComputeState, JobObserver};
use crate::error::Error;
use crate::runtime::job::Runtime;

/// Starts the compute thread.
///
/// # Errors
/// [`Error::Machine`] if the system cannot start a thread.
pub(super) fn start(compute: ComputeState, watch: Watch) -> Result<ComputeThread<ComputeState>, Error> {
    let make = move || {
        compute.observe();
        compute
    };
    ComputeThread::start_observed("compute_thread", make, watch)
        .map_err(|error| Error::Machine(format!("cannot start the compute thread: {error}; {FEWER_THREADS}")))
}

/// Observes the jobs of the compute thread, and of threads for several jobs.
#[derive(Clone)]
pub(super) struct Watch {
    runtime: Arc<dyn Runtime>,
    /// The number of the observed thread. The compute thread is number 0.
    thread: usize,
    trace: Option<ComputeTrace>,
}

impl Watch {
    pub(super) fn new(runtime: &Arc<dyn Runtime>, trace: Option<ComputeTrace>) -> Self {
        Self { runtime: Arc::clone(runtime), thread: 0, trace }
    }
}

impl Observer for Watch {
    fn begin(&mut self, name: &Arc<str>, time: Option<u64>) {
        self.runtime.begin_job(self.thread, name, time);
        self.trace.iter_mut().for_each(|trace| trace.begin(name, time));
    }

    fn passed_on(&mut self) {
        self.runtime.end_job(self.thread);
    }

    fn end(&mut self, ran: &Ran<'_>) {
        self.runtime.end_job(self.thread);
        self.runtime.progressed();
        self.trace.iter_mut().for_each(|trace| trace.end(ran));
    }
}

impl JobObserver for Watch {
    fn of_thread(&self, number: usize) -> Box<dyn JobObserver> {
        let trace = self.trace.as_ref().map(|trace| trace.of_thread(number));
        Box::new(Self { runtime: Arc::clone(&self.runtime), thread: number, trace })
    }

    fn count_this_thread(&self) {
        self.trace.iter().for_each(ComputeTrace::count_this_thread);
    }
}
