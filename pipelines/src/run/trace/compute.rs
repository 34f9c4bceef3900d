//! The jobs of the compute thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_dataflow::flow::compute_thread::{Observer, Ran};
use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::spans::{Span, Spans};
use gnnflow_dataflow::trace::thread_group::ThreadGroup;

/// Records the jobs of the compute thread. Clones share the record.
#[derive(Clone)]
pub(crate) struct ComputeTrace {
    zero: Instant,
    jobs: Arc<Mutex<Jobs>>,
    /// The compute thread and the threads on which its jobs run.
    group: ThreadGroup,
    /// The CPU time of the group when the job began.
    cpu_before: Duration,
}

#[derive(Default)]
pub(super) struct Jobs {
    pub(super) spans: Spans,
    /// The number of jobs that waited when a job began.
    pub(super) waiting: Counter,
}

impl ComputeTrace {
    /// Creates a record whose times count from `zero`.
    pub(super) fn new(zero: Instant) -> Self {
        Self { zero, jobs: Arc::default(), group: ThreadGroup::default(), cpu_before: Duration::ZERO }
    }

    pub(crate) fn group(&self) -> &ThreadGroup {
        &self.group
    }

    pub(super) fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for ComputeTrace {
    fn begin(&mut self) {
        self.cpu_before = self.group.cpu();
    }

    fn end(&mut self, ran: &Ran<'_>) {
        let cpu = self.group.cpu().saturating_sub(self.cpu_before);
        let [start, end] = [ran.start, ran.end].map(|time| time.saturating_duration_since(self.zero));
        let mut jobs = self.jobs();
        jobs.waiting.add(start, ran.waiting as u64);
        jobs.spans.add(Span { name: ran.name, start, end, cpu: Some(cpu) }, end.saturating_sub(start));
    }
}
