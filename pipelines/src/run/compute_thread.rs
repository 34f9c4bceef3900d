//! Starts the compute thread, whose progress counts as progress of the run.

use std::sync::Arc;

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::flow::compute_thread::{ComputeThread, Observer, Ran};

use super::trace::ComputeTrace;
use crate::compute::ComputeState;
use crate::error::Error;
use crate::runtime::job::Runtime;

/// Starts the compute thread.
///
/// # Errors
/// [`Error::Machine`] if the system cannot start a thread.
pub(super) fn start(
    runtime: &Arc<dyn Runtime>,
    mut compute: ComputeState,
    trace: Option<ComputeTrace>,
) -> Result<ComputeThread<ComputeState>, Error> {
    let group = trace.as_ref().map(|trace| trace.group().clone());
    let watch = Watch { runtime: Arc::clone(runtime), trace };
    let make = move || {
        if let Some(group) = group {
            group.enter();
            compute.count_threads_in(group);
        }
        compute
    };
    ComputeThread::start_observed("compute_thread", make, watch)
        .map_err(|error| Error::Machine(format!("cannot start the compute thread: {error}; {FEWER_THREADS}")))
}

/// Observes the jobs of the compute thread.
struct Watch {
    runtime: Arc<dyn Runtime>,
    trace: Option<ComputeTrace>,
}

impl Observer for Watch {
    fn begin(&mut self) {
        self.trace.iter_mut().for_each(Observer::begin);
    }

    fn end(&mut self, ran: &Ran<'_>) {
        self.runtime.progressed();
        self.trace.iter_mut().for_each(|trace| trace.end(ran));
    }
}
