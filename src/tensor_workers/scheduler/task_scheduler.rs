//! The scheduler: the states of all workers, and the events that change them.
//!
//! Two threads serve each worker, so that one call is in transit while another is computed ([`super::calls`]). The first result
//! of a task counts: all results have the same bits. Every wait has a deadline.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_nn::node_task::NodeTask;
use gnnflow_pipelines::Error;
use gnnflow_pipelines::config::{Tensor, WhenGone};
use gnnflow_pipelines::executor::{Completion, ExecutorSetup, SubmittedTask, TaskExecutor};
use gnnflow_pipelines::summary::{TensorUse, Value};

use super::autotune::Autotuner;
use super::queue::Queue;
use super::result_shapes::ResultShapes;
use super::workers::{RegistryEvent, Retry, WorkerPool};
use crate::console::Console;

/// Gives node tasks to tensor workers. Dropping it ends its threads.
pub(crate) struct TaskScheduler {
    shared: Arc<Shared>,
    /// Tasks that may be in flight.
    capacity: usize,
}

/// The state that the scheduler and its threads share.
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) settings: Tensor,
    pub(super) workers: Arc<dyn WorkerPool>,
    pub(super) setup: ExecutorSetup,
    pub(super) shapes: ResultShapes,
    console: Console,
    /// Jobs that wait for the compute thread.
    pub(super) backlog: Arc<AtomicUsize>,
}

pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) workers: Vec<Worker>,
    /// With `autotune`.
    tuner: Option<Autotuner>,
    /// The counts at the end of the last epoch.
    before: TensorUse,
    pub(super) stats: TensorUse,
    pub(super) closed: bool,
    /// Whether the loss of all workers has been reported.
    reported_gone: bool,
}

/// The scheduler's view of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) state: WorkerState,
    /// Number of times that it was lost or could not be connected.
    pub(super) losses: u32,
    /// The retry after the last loss.
    pub(super) retry: Option<Retry>,
    /// Whether a thread serves it.
    pub(super) has_thread: bool,
    /// Calls in flight.
    pub(super) calls: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Not needed yet, or being connected or launched.
    #[default]
    Pending,
    Connected,
    Gone,
}

/// How a worker is lost.
pub(super) enum Loss {
    /// It could not be connected, for this reason.
    Unreachable(String),
    /// It was connected, and failed for this reason.
    Failed(String),
    /// It has left.
    Left,
}

impl TaskScheduler {
    /// Starts the threads. Workers are connected when there are tasks for them.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(crate) fn start(
        workers: Arc<dyn WorkerPool>,
        settings: Tensor,
        console: Console,
        setup: ExecutorSetup,
    ) -> Result<Self, Error> {
        let count = workers.count();
        let least = usize::from(!settings.local_tasks);
        let state = State {
            queue: Queue::default(),
            workers: Vec::new(),
            tuner: settings.autotune.then(|| Autotuner::new(setup.intervals, least)),
            before: TensorUse::default(),
            stats: TensorUse::default(),
            closed: false,
            reported_gone: false,
        };
        let columns = setup.model.out_dim;
        let shapes = ResultShapes::new(&setup.hops, setup.splittable.clone(), columns, setup.flat_len);
        let capacity = setup.capacity;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            settings,
            workers,
            setup,
            shapes,
            console,
            backlog: Arc::default(),
        });
        // From here on, dropping the scheduler ends the threads that have been started.
        let scheduler = Self { shared, capacity };
        let shared = &scheduler.shared;
        for worker in 0..count {
            shared.add(worker).map_err(Error::Machine)?;
        }
        let watching = Arc::downgrade(shared);
        let on_event = move |event| {
            if let Some(shared) = watching.upgrade() {
                shared.on_registry_event(event);
            }
        };
        shared.workers.watch(&shared.setup.servers, Box::new(on_event));
        Ok(scheduler)
    }
}

impl TaskExecutor for TaskScheduler {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn backlog(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.shared.backlog)
    }

    fn submit(&self, submitted: SubmittedTask) {
        let mut state = self.shared.state();
        if state.all_gone() {
            let first = !std::mem::replace(&mut state.reported_gone, true);
            drop(state);
            if first {
                let line = "no tensor worker has registered yet; this process computes the tasks until one does (train.tensor_workers.accept)";
                self.shared.console.say(line);
            }
            let SubmittedTask { task, done, .. } = submitted;
            return done(self.shared.return_task(task));
        }
        if state.number() == 0 {
            state.stats.local += 1;
            drop(state);
            return (submitted.done)(Ok(Completion::Returned(Box::new(submitted.task))));
        }
        state.queue.push(submitted);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn take(&self) -> Option<SubmittedTask> {
        if !self.shared.settings.local_tasks {
            return None;
        }
        let mut state = self.shared.state();
        let taken = state.queue.take();
        state.stats.local += u64::from(taken.is_some());
        taken
    }

    fn epoch_ended(&self, seconds: f64) {
        let mut state = self.shared.state();
        let (now, before) = (state.stats, state.before);
        state.before = now;
        let used = TensorUse {
            calls: now.calls - before.calls,
            seconds: now.seconds - before.seconds,
            ..TensorUse::default()
        };
        let price = self.shared.setup.price.as_ref();
        let cost = price.map(|price| Value::new(price, seconds, 1, Some(&used)).cost).filter(|&cost| cost > 0.0);
        if let Some(tuner) = &mut state.tuner {
            tuner.epoch_ended(seconds * cost.unwrap_or(1.0));
        }
        // In asynchronous training, tasks of the next epoch may wait already.
        let returned = state.take_if_unused();
        drop(state);
        self.shared.changed.notify_all();
        return_all(returned);
    }

    fn stats(&self) -> TensorUse {
        let state = self.shared.state();
        let workers = state.tuner.as_ref().map_or(state.workers.len(), Autotuner::best) as u64;
        TensorUse { workers, row_bytes_max: state.queue.peak_bytes(), ..state.stats }
    }
}

impl Drop for TaskScheduler {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
        self.shared.workers.end();
    }
}

/// Returns tasks to the process, which computes them.
fn return_all(tasks: Vec<SubmittedTask>) {
    for SubmittedTask { task, done, .. } in tasks {
        done(Ok(Completion::Returned(Box::new(task))));
    }
}

impl State {
    /// Returns whether all workers are gone and none is pending.
    fn all_gone(&self) -> bool {
        self.workers.iter().all(|worker| worker.state == WorkerState::Gone)
    }

    /// Removes and returns the unassigned tasks if the autotuner has chosen no worker, because then none would take them.
    fn take_if_unused(&mut self) -> Vec<SubmittedTask> {
        if self.number() > 0 {
            return Vec::new();
        }
        let taken: Vec<_> = std::iter::from_fn(|| self.queue.take()).collect();
        self.stats.local += taken.len() as u64;
        taken
    }

    /// Returns the number of workers that get tasks.
    fn number(&self) -> usize {
        self.tuner.as_ref().map_or(usize::MAX, Autotuner::number)
    }

    /// Returns whether a worker gets tasks: whether it is among the first [`Autotuner::number`] workers that are not gone.
    pub(super) fn in_use(&self, worker: usize) -> bool {
        let before = self.workers[..worker].iter().filter(|before| before.state != WorkerState::Gone).count();
        before < self.number()
    }

    /// Returns the number of workers other than this one that have no call in flight.
    pub(super) fn idle_others(&self, worker: usize) -> usize {
        let is_idle = |&(number, other): &(usize, &Worker)| {
            number != worker && other.state == WorkerState::Connected && other.calls == 0 && self.in_use(number)
        };
        self.workers.iter().enumerate().filter(is_idle).count()
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warn(&self, line: &str) {
        self.console.warn(line);
    }

    /// Returns the completion of a task if no worker is left.
    fn return_task(&self, task: NodeTask) -> Result<Completion, Error> {
        match self.settings.when_gone {
            WhenGone::Local => Ok(Completion::Returned(Box::new(task))),
            WhenGone::Fail if self.setup.may_compute => Err(Error::Machine(
                "all tensor workers are gone; set train.tensor_workers.when_gone = \"local\" to go on without them"
                    .into(),
            )),
            WhenGone::Fail => {
                Err(Error::Machine("all tensor workers are gone; start others, or start the run again".into()))
            }
        }
    }

    /// Starts a thread that serves a worker, unless one does already.
    ///
    /// # Errors
    /// If the system has no threads left.
    fn add(self: &Arc<Self>, worker: usize) -> Result<(), String> {
        {
            let mut state = self.state();
            if state.workers.len() <= worker {
                state.workers.resize(worker + 1, Worker { state: WorkerState::Gone, ..Worker::default() });
                if let Some(tuner) = &mut state.tuner {
                    tuner.raise_limit(worker + 1);
                }
            }
            if std::mem::replace(&mut state.workers[worker].has_thread, true) {
                return Ok(());
            }
            state.workers[worker].state = WorkerState::Pending;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("tensor-{worker}"));
        let started = thread.spawn(move || shared.serve_worker(worker));
        started.map(drop).map_err(|error| {
            let mut state = self.state();
            let worker = &mut state.workers[worker];
            (worker.state, worker.has_thread) = (WorkerState::Gone, false);
            format!("cannot start a thread for a tensor worker: {error}; {FEWER_THREADS}")
        })
    }

    /// A worker has registered or left.
    fn on_registry_event(self: &Arc<Self>, event: RegistryEvent) {
        match event {
            RegistryEvent::Registered(worker) => {
                self.console.say(&format!("tensor worker {} has registered", self.workers.name(worker)));
                if let Err(error) = self.add(worker) {
                    self.warn(&format!("tensor worker {}: {error}", self.workers.name(worker)));
                }
            }
            RegistryEvent::Left(worker) => self.lose(worker, &Loss::Left),
        }
        self.changed.notify_all();
    }

    /// Marks a worker as lost. Its tasks go to other workers, or back to the caller if none is left.
    pub(super) fn lose(&self, worker: usize, loss: &Loss) {
        let mut state = self.state();
        let Worker { state: worker_state, retry: last_retry, .. } = state.workers[worker];
        let losses = state.workers[worker].losses + 1;
        let retry = self.workers.retry(worker, losses);
        // Another call of the worker may have reported the loss.
        let known = worker_state == WorkerState::Gone
            || matches!(loss, Loss::Failed(_)) && worker_state != WorkerState::Connected;
        let refused =
            matches!((loss, retry, last_retry), (Loss::Unreachable(_), Retry::Never, None | Some(Retry::Reconnect(_))));
        if state.closed || known && !refused {
            return;
        }
        let relaunched = matches!(retry, Retry::Relaunch(_));
        let worker_state = if relaunched { WorkerState::Pending } else { WorkerState::Gone };
        state.workers[worker] = Worker { state: worker_state, losses, retry: Some(retry), ..state.workers[worker] };
        let requeued = state.queue.lose(worker) as u64;
        let quiet = matches!(loss, Loss::Left) && requeued == 0;
        state.stats.lost += u64::from(!quiet);
        state.stats.relaunched += u64::from(relaunched);
        state.stats.again += requeued;
        let all_gone = state.all_gone();
        let returned = if all_gone { state.queue.take_all() } else { Vec::new() };
        let unused = state.take_if_unused();
        let first = all_gone && !std::mem::replace(&mut state.reported_gone, all_gone);
        drop(state);
        self.changed.notify_all();
        return_all(unused);
        let next = match (retry, last_retry) {
            (Retry::Relaunch(after), _) => format!("; it is started again in {} s", after.as_secs_f64()),
            (Retry::Never, Some(Retry::Relaunch(_))) => {
                "; it is not started again (train.tensor_workers.relaunch)".to_owned()
            }
            _ if refused => "; this run does not connect to it again".to_owned(),
            _ => String::new(),
        };
        let name = self.workers.name(worker);
        match loss {
            Loss::Left if quiet => self.console.say(&format!("tensor worker {name} has left")),
            Loss::Left => self.warn(&format!("tensor worker {name} has left; its tasks go to other workers")),
            Loss::Unreachable(error) | Loss::Failed(error) => {
                self.warn(&format!("tensor worker {name}: {error}; its tasks go to other workers{next}"));
            }
        }
        if first && self.settings.when_gone == WhenGone::Local {
            self.warn(
                "all tensor workers are gone; this process computes their tasks (train.tensor_workers.when_gone)",
            );
        }
        for SubmittedTask { task, done, .. } in returned {
            done(self.return_task(task));
        }
    }

    /// Marks a worker as connected.
    pub(super) fn mark_connected(&self, worker: usize) {
        let mut state = self.state();
        state.workers[worker].state = WorkerState::Connected;
        state.reported_gone = false;
    }
}
