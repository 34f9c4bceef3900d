//! The jobs of the compute thread, and of the threads for several jobs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_dataflow::flow::compute_thread::{Observer, Ran};
use gnnflow_dataflow::time;
use gnnflow_dataflow::trace::counter::Counter;
use gnnflow_dataflow::trace::spans::{Span, Spans};
use gnnflow_dataflow::trace::thread_group::ThreadGroup;

use crate::outputs::work_log::JobWork;

/// Records the jobs of a thread. Clones share the record.
#[derive(Clone)]
pub(crate) struct ComputeTrace {
    zero: Instant,
    jobs: Arc<Mutex<Jobs>>,
    /// The number of the thread that runs the jobs; 0 is the compute thread.
    number: usize,
    /// The thread that runs the jobs, and those of their loops.
    own: ThreadGroup,
    /// The threads of all clones.
    all: ThreadGroup,
    /// The CPU time of the own threads when the job began.
    cpu_before: Duration,
}

#[derive(Default)]
pub(super) struct Jobs {
    /// By thread.
    pub(super) spans: Vec<Spans>,
    /// The number of jobs that waited for the compute thread when one of its jobs began.
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
        let (own, all) = <(ThreadGroup, ThreadGroup)>::default();
        Self { zero, jobs: Arc::default(), number: 0, own, all, cpu_before: Duration::ZERO }
    }

    /// Returns the part of the record for another thread.
    pub(crate) fn of_thread(&self, number: usize) -> Self {
        Self { number, own: ThreadGroup::default(), ..self.clone() }
    }

    /// Counts the CPU time of the calling thread.
    pub(crate) fn count_this_thread(&self) {
        self.own.enter();
        self.all.enter();
    }

    /// Returns the threads of all jobs.
    pub(super) fn group(&self) -> &ThreadGroup {
        &self.all
    }

    pub(super) fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for ComputeTrace {
    fn begin(&mut self, _: &Arc<str>, _: Option<u64>) {
        self.cpu_before = self.own.cpu();
    }

    fn end(&mut self, ran: &Ran<'_>) {
        let cpu = self.own.cpu().saturating_sub(self.cpu_before);
        let [start, end] = [ran.start, ran.end].map(|time| time.saturating_duration_since(self.zero));
        let mut jobs = self.jobs();
        if let Some(waiting) = ran.waiting {
            jobs.waiting.add(start, waiting as u64);
        }
        let wall = end.saturating_sub(start);
        if jobs.spans.len() <= self.number {
            jobs.spans.resize_with(self.number + 1, Spans::default);
        }
        jobs.spans[self.number].add(Span { name: ran.name, start, end, cpu: Some(cpu) }, wall);
        if let Some(time) = ran.time {
            jobs.add(time, ran.name, wall, cpu);
        }
    }
}
