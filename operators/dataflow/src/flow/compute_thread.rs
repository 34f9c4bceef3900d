//! Runs work on a separate thread, while the worker samples, fetches and serves its peers.
//!
//! *In*: items. *Out*: one result per item, in order of arrival. *Kept per time*: one capability per outstanding item.
//! *Capabilities*: held from an item's arrival until its result is sent. A result activates the operator.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::operator::Operator;
use timely::scheduling::SyncActivator;

use super::waits::{Cause, Reported};
use crate::time::MessageTime;

/// A job in the queue.
struct Job<S> {
    name: Arc<str>,
    time: Option<u64>,
    priority: bool,
    run: Box<dyn FnOnce(&mut S) -> Done + Send>,
}

/// Where a job does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It has done its work on the compute thread.
    Here,
    /// Another thread does the work. Then [`Observer::passed_on`] is called, and [`Observer::end`] is not.
    Elsewhere,
}

/// A job that has run.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// The name of the handle that queued it.
    pub name: &'a str,
    /// The time of the item that it works for, if it is known.
    pub time: Option<u64>,
    /// Its start.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
    /// Number of jobs that waited for the compute thread when it began; `None` for a job of another thread.
    pub waiting: Option<usize>,
}

/// Observes the jobs of a [`ComputeThread`], on the thread, for watchdogs and traces.
pub trait Observer: Send + 'static {
    /// Called before each job, with its name and the time of the item that it works for.
    fn begin(&mut self, name: &Arc<str>, time: Option<u64>);

    /// Called after each job that has passed its work on to another thread.
    fn passed_on(&mut self) {}

    /// Called after each job that has done its work on the thread.
    fn end(&mut self, ran: &Ran<'_>);
}

/// Observes nothing.
impl Observer for () {
    fn begin(&mut self, _: &Arc<str>, _: Option<u64>) {}

    fn end(&mut self, _: &Ran<'_>) {}
}

/// The name of jobs of handles without a name.
const UNNAMED: &str = "task";

/// A thread that owns a state `S` (a model, a device, a thread pool) and runs jobs on it, one after the other.
///
/// When the last handle is dropped, the thread runs the queued jobs and ends.
pub struct ComputeThread<S> {
    jobs: mpsc::Sender<Job<S>>,
    name: Arc<str>,
    time: Option<u64>,
    priority: bool,
}

impl<S> Clone for ComputeThread<S> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone(), name: Arc::clone(&self.name), time: self.time, priority: self.priority }
    }
}

/// Queued jobs: those with priority, then the others.
struct Waiting<S> {
    jobs: [VecDeque<Job<S>>; 2],
}

impl<S> Waiting<S> {
    fn push(&mut self, job: Job<S>) {
        self.jobs[usize::from(!job.priority)].push_back(job);
    }

    fn pop(&mut self) -> Option<Job<S>> {
        self.jobs.iter_mut().find_map(VecDeque::pop_front)
    }

    fn len(&self) -> usize {
        self.jobs.iter().map(VecDeque::len).sum()
    }
}

impl<S: 'static> ComputeThread<S> {
    /// Starts the thread. `make` runs on it and builds the state.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start(name: &str, make: impl FnOnce() -> S + Send + 'static) -> std::io::Result<Self> {
        Self::start_observed(name, make, ())
    }

    /// Like [`start`](Self::start), with an observer of the jobs.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start_observed(
        name: &str,
        make: impl FnOnce() -> S + Send + 'static,
        mut observer: impl Observer,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let (mut state, mut waiting) = (make(), Waiting { jobs: Default::default() });
            while let Ok(job) = queue.recv() {
                waiting.push(job);
                queue.try_iter().for_each(|job| waiting.push(job));
                while let Some(job) = waiting.pop() {
                    let waiting_now = waiting.len();
                    let Job { name, time, run, .. } = job;
                    observer.begin(&name, time);
                    let start = Instant::now();
                    match run(&mut state) {
                        Done::Here => {
                            let (end, waiting) = (Instant::now(), Some(waiting_now));
                            observer.end(&Ran { name: &name, time, start, end, waiting });
                        }
                        Done::Elsewhere => observer.passed_on(),
                    }
                    queue.try_iter().for_each(|job| waiting.push(job));
                }
            }
        })?;
        Ok(Self { jobs, name: UNNAMED.into(), time: None, priority: false })
    }

    /// Returns a handle whose jobs run before all queued jobs of handles without priority. For short jobs that others wait for.
    ///
    /// ```
    /// use gnnflow_dataflow::flow::compute_thread::ComputeThread;
    ///
    /// let numbers = ComputeThread::start("numbers", Vec::new)?;
    /// numbers.post(|numbers: &mut Vec<u32>| numbers.push(1));
    /// assert!(numbers.with_priority().call(|numbers| numbers.len()) <= 1, "it may have come first");
    /// assert_eq!(numbers.call(|numbers| numbers.len()), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn with_priority(&self) -> Self {
        Self { priority: true, ..self.clone() }
    }

    /// Returns a handle whose jobs have this name, for traces.
    #[must_use]
    pub fn with_name(&self, name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), ..self.clone() }
    }

    /// Returns a handle whose jobs belong to `time`, for traces.
    #[must_use]
    pub fn at(&self, time: u64) -> Self {
        Self { time: Some(time), ..self.clone() }
    }

    /// Queues `job`.
    ///
    /// # Panics
    /// When the thread has panicked. Its panic has already been reported.
    pub fn post(&self, job: impl FnOnce(&mut S) + Send + 'static) {
        self.post_or_pass_on(|state| {
            job(state);
            Done::Here
        });
    }

    /// Queues `job`, which may pass its work on to another thread.
    ///
    /// # Panics
    /// When the thread has panicked. Its panic has already been reported.
    pub fn post_or_pass_on(&self, job: impl FnOnce(&mut S) -> Done + Send + 'static) {
        let (name, run) = (Arc::clone(&self.name), Box::new(job));
        let job = Job { name, time: self.time, priority: self.priority, run };
        assert!(self.jobs.send(job).is_ok(), "the compute thread has panicked");
    }

    /// Queues `job` and waits for its result.
    ///
    /// # Panics
    /// When the job panics.
    pub fn call<R: Send + 'static>(&self, job: impl FnOnce(&mut S) -> R + Send + 'static) -> R {
        let (sender, result) = mpsc::channel();
        self.post(move |state| drop(sender.send(job(state))));
        result.recv().expect("the compute thread returns a result unless it panicked")
    }
}

/// Runs work on a [`ComputeThread`].
pub trait OnThread<'scope, D> {
    /// Applies `work` to each item on `compute_thread`, in order of arrival.
    ///
    /// # Panics
    /// When the thread has panicked.
    ///
    /// # Example
    /// ```
    /// use gnnflow_dataflow::flow::compute_thread::{OnThread, ComputeThread};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// timely::example(|scope| {
    ///     let counter = ComputeThread::start("counter", || 0u64).unwrap();
    ///     (0..8u64).to_stream(scope).container::<Vec<u64>>()
    ///         .on_thread("count", counter, |sum, n| { *sum += n; *sum })
    ///         .inspect(|sum| println!("so far {sum}"));
    /// });
    /// ```
    fn on_thread<S, R, F>(self, name: &str, compute_thread: ComputeThread<S>, work: F) -> StreamVec<'scope, u64, R>
    where
        S: 'static,
        R: Send + 'static,
        F: FnMut(&mut S, D) -> R + Send + Clone + 'static;
}

impl<'scope, D: Send + 'static> OnThread<'scope, D> for StreamVec<'scope, u64, D> {
    fn on_thread<S, R, F>(self, name: &str, compute_thread: ComputeThread<S>, work: F) -> StreamVec<'scope, u64, R>
    where
        S: 'static,
        R: Send + 'static,
        F: FnMut(&mut S, D) -> R + Send + Clone + 'static,
    {
        let (scope, compute_thread, operator) = (self.scope(), compute_thread.with_name(name), name.to_owned());
        self.unary_frontier::<CapacityContainerBuilder<Vec<R>>, _, _, _>(Pipeline, name, move |initial, info| {
            drop(initial);
            // Made on the worker's own thread, which it wakes.
            let wake = scope.worker().sync_activator_for(info.address.to_vec());
            let (sender, results) = mpsc::channel::<R>();
            let held = Reported::new(operator, VecDeque::<Capability<u64>>::new(), |held, wait| {
                held.iter().for_each(|held| wait(*held.time(), Cause::Thread));
            });
            move |(input, _frontier), output| {
                let mut held = held.borrow_mut();
                input.for_each(|time, items| {
                    let compute_thread = compute_thread.at(*time.time());
                    for item in items.drain(..) {
                        held.push_back(time.retain(output.output_index()));
                        let (mut work, sender) = (work.clone(), sender.clone());
                        let wake: SyncActivator = wake.clone();
                        compute_thread.post(move |state| {
                            // The receiver or the worker is dropped when the dataflow ends.
                            if sender.send(work(state, item)).is_ok() {
                                let _ = wake.activate();
                            }
                        });
                    }
                });
                while let Ok(result) = results.try_recv() {
                    let time = held.pop_front().expect("one capability per job, in order");
                    output.session(&time).give(result);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use timely::dataflow::operators::vec::ToStream;
    use timely::dataflow::operators::{Capture, capture::Extract};

    use super::*;

    #[test]
    fn jobs_with_priority_run_before_queued_jobs() {
        let compute_thread = ComputeThread::start("lanes", Vec::new).unwrap();
        let (begun, wait) = (mpsc::channel(), mpsc::channel::<()>());
        compute_thread.post(move |_: &mut Vec<u32>| {
            begun.0.send(()).unwrap();
            _ = wait.1.recv();
        });
        begun.1.recv().unwrap();
        for n in 0..3 {
            compute_thread.post(move |done| done.push(n));
            compute_thread.with_priority().post(move |done| done.push(10 + n));
        }
        drop(wait.0);
        assert_eq!(compute_thread.call(|done| done.clone()), [10, 11, 12, 0, 1, 2]);
    }

    /// Sends the number of jobs that waited when a job began.
    struct Waited(mpsc::Sender<usize>);

    impl Observer for Waited {
        fn begin(&mut self, _: &Arc<str>, _: Option<u64>) {}

        fn end(&mut self, ran: &Ran<'_>) {
            _ = self.0.send(ran.waiting.unwrap());
        }
    }

    #[test]
    fn observer_sees_the_length_of_the_queue() {
        let (waited, wait) = (mpsc::channel(), mpsc::channel::<()>());
        let compute_thread = ComputeThread::start_observed("queue", || (), Waited(waited.0)).unwrap();
        compute_thread.post(move |()| _ = wait.1.recv());
        (0..3).for_each(|_| compute_thread.post(|()| ()));
        compute_thread.post_or_pass_on(|()| Done::Elsewhere);
        drop((wait.0, compute_thread));
        assert_eq!(waited.1.iter().skip(1).collect::<Vec<_>>(), [3, 2, 1], "the last one is not observed");
    }

    #[test]
    fn every_item_gets_its_result_in_order_at_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            let outputs = timely::execute(timely::Config::process(workers), move |worker| {
                worker.dataflow::<u64, _, _>(|scope| {
                    let compute_thread = ComputeThread::start("squares", || 0u64).unwrap();
                    (0..100u64)
                        .to_stream(scope)
                        .on_thread("square", compute_thread, |calls, n| {
                            *calls += 1;
                            (*calls, n * n)
                        })
                        .capture()
                })
            })
            .unwrap();
            for captured in outputs.join() {
                let all: Vec<_> = captured.unwrap().extract().into_iter().flat_map(|(_, items)| items).collect();
                let expected: Vec<_> = (0..100u64).map(|n| (n + 1, n * n)).collect();
                assert_eq!(all, expected);
            }
        }
    }
}
