//! The jobs of the compute thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_dataflow::flow::compute_thread::{Observer, Ran};
use gnnflow_dataflow::time;
use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::spans::{Span, Spans};
use gnnflow_dataflow::trace::thread_group::ThreadGroup;

use crate::outputs::work_log::JobWork;

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
    /// Jobs of items, by time.
    by_time: BTreeMap<u64, Vec<JobWork>>,
    /// Whether jobs are missing there because there were too many.
    pub(super) is_full: bool,
}

/// Maximum number of times whose jobs are recorded.
const MOST: usize = 1 << 17;

impl Jobs {
    fn add(&mut self, at: u64, name: &str, wall: Duration, cpu: Duration) {
        if self.by_time.len() == MOST && !self.by_time.contains_key(&at) {
            self.is_full = true;
            return;
        }
        let jobs = self.by_time.entry(at).or_default();
        let same = match jobs.iter().position(|job| job.name == name) {
            Some(same) => same,
            None => {
                let (epoch, step) = (time::epoch(at), time::step(at));
                jobs.push(JobWork { epoch, step, name: name.to_owned(), ..JobWork::default() });
                jobs.len() - 1
            }
        };
        let job = &mut jobs[same];
        job.count += 1;
        job.seconds += wall.as_secs_f64();
        job.cpu_seconds += cpu.as_secs_f64();
    }

    /// Returns the jobs of items, by time and name.
    pub(super) fn by_time(&self) -> Vec<JobWork> {
        self.by_time.values().flatten().cloned().collect()
    }
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
        let wall = end.saturating_sub(start);
        jobs.spans.add(Span { name: ran.name, start, end, cpu: Some(cpu) }, wall);
        if let Some(time) = ran.time {
            jobs.add(time, ran.name, wall, cpu);
        }
    }
}
