//! Threads that run several jobs at the same time.
//!
//! The loops of one job use several threads badly if the job is small, or if parts of it run on one thread. Jobs that need no result of each other
//! (the batches of several partitions, the node tasks of several intervals) use all threads. PyTorch and TensorFlow call this inter-op parallelism.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_dataflow::flow::compute_thread::{Observer, Ran};

use super::threads::Threads;
use crate::error::Error;

/// Observes the jobs of a thread, for watchdogs and traces.
pub(crate) trait JobObserver: Observer + Sync {
    /// Returns an observer of another thread; `number` counts from 1. The compute thread is number 0.
    fn of_thread(&self, number: usize) -> Box<dyn JobObserver>;

    /// Counts the CPU time of the calling thread, which takes part in the observed jobs.
    fn count_this_thread(&self);
}

/// Observes nothing.
impl JobObserver for () {
    fn of_thread(&self, _: usize) -> Box<dyn JobObserver> {
        Box::new(())
    }

    fn count_this_thread(&self) {}
}

/// The threads on which one job runs.
pub(crate) struct JobThread {
    pub(super) threads: Threads,
    /// One divided by the number of jobs that may run at the same time.
    share: f64,
}

impl JobThread {
    /// Runs one job at a time on `threads` threads.
    pub(super) fn alone(threads: usize) -> Result<Self, Error> {
        Ok(Self { threads: Threads::start(threads)?, share: 1.0 })
    }

    /// Returns the time since `start`, as a share of the time of all compute threads.
    pub(super) fn spent_since(&self, start: Instant) -> Duration {
        start.elapsed().mul_f64(self.share)
    }
}

type Job = Box<dyn FnOnce(&JobThread) + Send>;

struct Queued {
    name: Arc<str>,
    time: u64,
    job: Job,
}

/// Threads that take jobs from one queue. Dropping it ends them, after the queued jobs.
pub(super) struct JobThreads {
    queue: mpsc::Sender<Queued>,
}

impl JobThreads {
    /// Starts threads for `jobs` jobs at a time, which share `threads` threads.
    ///
    /// # Errors
    /// [`Error::Machine`] if the system cannot start a thread.
    pub(super) fn start(jobs: usize, threads: usize, observer: &dyn JobObserver) -> Result<Self, Error> {
        let (queue, waits) = mpsc::channel();
        let waits = Arc::new(Mutex::new(waits));
        for number in 0..jobs {
            let own = threads / jobs + usize::from(number < threads % jobs);
            let on = JobThread { threads: Threads::start(own)?, share: 1.0 / jobs as f64 };
            let (waits, observer) = (Arc::clone(&waits), observer.of_thread(number + 1));
            let run = move || run(&on, &waits, observer);
            let started = std::thread::Builder::new().name(format!("job-{number}")).spawn(run);
            started.map_err(|error| {
                Error::Machine(format!("cannot start {jobs} threads for jobs: {error}; {FEWER_THREADS}"))
            })?;
        }
        Ok(Self { queue })
    }

    /// Queues a job.
    ///
    /// # Panics
    /// When all threads have panicked. The first panic has already been reported.
    pub(super) fn queue(&self, name: Arc<str>, time: u64, job: impl FnOnce(&JobThread) + Send + 'static) {
        let queued = Queued { name, time, job: Box::new(job) };
        assert!(self.queue.send(queued).is_ok(), "all threads for jobs have panicked");
    }
}

/// Runs the jobs of one thread, until the queue ends.
fn run(on: &JobThread, waits: &Mutex<mpsc::Receiver<Queued>>, mut observer: Box<dyn JobObserver>) {
    observer.count_this_thread();
    on.threads.for_each_started(|| observer.count_this_thread());
    loop {
        let next = waits.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Queued { name, time, job }) = next else { return };
        observer.begin(&name, Some(time));
        let start = Instant::now();
        job(on);
        observer.end(&Ran { name: &name, time: Some(time), start, end: Instant::now(), waiting: None });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn jobs_run_at_the_same_time_and_share_all_threads() {
        let threads = JobThreads::start(3, 8, &()).unwrap();
        let (together, (sender, results)) = (Arc::new(Barrier::new(3)), mpsc::channel());
        for number in 0..6 {
            let (together, sender) = (Arc::clone(&together), sender.clone());
            threads.queue("job".into(), number, move |on| {
                // No job passes it before three run.
                together.wait();
                let count = on.threads.install(rayon::current_num_threads);
                sender.send((number, count, on.spent_since(Instant::now() - Duration::from_secs(3)))).unwrap();
            });
        }
        drop((threads, sender));
        let results: Vec<_> = results.iter().collect();
        assert_eq!(results.iter().map(|(number, ..)| number).collect::<HashSet<_>>().len(), 6);
        assert!(results.iter().all(|(_, threads, _)| [2, 3].contains(threads)));
        assert!(results.iter().all(|(.., spent)| (1.0..1.5).contains(&spent.as_secs_f64())), "a third of 3 s");
    }
}
