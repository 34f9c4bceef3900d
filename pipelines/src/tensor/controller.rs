//! The controller of a graph worker's tensor workers (Dorylus, section 6): gives tasks out in batches, times every call, gives late tasks
//! to another as well, drops who is gone or answers nonsense, has those started again that were launched, takes in who enlists, and tunes
//! how many are in use.
//!
//! Threads wait on tensor workers, two for each, so that one call is on its way while another is computed ([`super::hand`]); whoever answers
//! first counts, for all answers have the same bits. No wait is without a deadline.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use gnnflow_data::error::FEWER_THREADS;
use gnnflow_nn::model::ModelSpec;

use super::ResultShapes;
use super::autotune::Autotuner;
use super::queue::Queue;
use crate::config::{Tensor, WhenGone};
use crate::error::Error;
use crate::runtime::executor::TensorWorkers;
use crate::runtime::executor::{Again, Enlisted};
use crate::runtime::job::Runtime;
use crate::runtime::records::TensorUse;
use crate::runtime::tensor_task::{TensorResult, TensorTask};
use gnnflow_nn::parameter_versions::{Choice, ParameterService};

/// What became of a task.
pub(crate) enum Answer<T> {
    Result(TensorResult),
    /// Nobody is left to do it; the task is given back.
    Nobody(T),
}

/// Gives tasks to tensor workers. Dropping it ends its threads.
pub(crate) struct Controller {
    shared: Arc<Shared>,
    /// Tasks that may be under way at once.
    permits: usize,
}

/// What the controller and its threads know together.
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) settings: Tensor,
    pub(super) workers: Arc<dyn TensorWorkers>,
    pub(super) parameters: Arc<ParameterService>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) model: ModelSpec,
    pub(super) shapes: ResultShapes,
    pub(super) servers: Vec<String>,
    /// Jobs that wait for the compute thread.
    pub(super) queued: Arc<AtomicUsize>,
}

pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) workers: Vec<Worker>,
    pub(super) tuner: Autotuner,
    pub(super) done: TensorUse,
    pub(super) closed: bool,
    /// Whether it has been said that nobody is left.
    said: bool,
}

/// What is known of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) standing: Standing,
    /// How often it was lost, or could not be met.
    pub(super) lost: u32,
    /// What is done about that.
    pub(super) again: Option<Again>,
    /// Whether a thread attends to it.
    pub(super) attended: bool,
    /// Calls that are with it.
    pub(super) calls: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not asked for yet, or being met, or started again.
    #[default]
    Coming,
    Here,
    Gone,
}

/// How a worker is lost.
pub(super) enum Loss {
    /// It could not be met, in words why.
    Unmet(String),
    /// It was there; what is wrong with it.
    Broken(String),
    /// It has left by itself.
    Left,
}

/// What a controller is told of a run.
pub(crate) struct Setting {
    pub(crate) settings: Tensor,
    pub(crate) parameters: Arc<ParameterService>,
    pub(crate) model: ModelSpec,
    pub(crate) shapes: ResultShapes,
    /// Where each process of the run serves parameters.
    pub(crate) servers: Vec<String>,
    pub(crate) intervals: usize,
    /// Tasks that may be under way at once, beside those that the worker computes itself.
    pub(crate) permits: usize,
}

impl Controller {
    /// Starts the threads; workers are met when there is something for them to do.
    ///
    /// # Errors
    /// When the system has no threads to give.
    pub(crate) fn start(
        workers: Arc<dyn TensorWorkers>,
        runtime: Arc<dyn Runtime>,
        setting: Setting,
    ) -> Result<Self, Error> {
        let count = workers.count();
        let begin = if setting.settings.autotune { setting.intervals } else { usize::MAX };
        let state = State {
            queue: Queue::default(),
            workers: Vec::new(),
            tuner: Autotuner::new(begin, 0),
            done: TensorUse::default(),
            closed: false,
            said: false,
        };
        let Setting { settings, parameters, model, shapes, servers, permits, .. } = setting;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            settings,
            workers,
            parameters,
            runtime,
            model,
            shapes,
            servers,
            queued: Arc::default(),
        });
        // From here on, dropping it ends those that have been started.
        let controller = Self { shared, permits };
        let shared = &controller.shared;
        for worker in 0..count {
            shared.take_in(worker).map_err(Error::Machine)?;
        }
        let watching = Arc::downgrade(shared);
        let told = move |enlisted| {
            if let Some(shared) = watching.upgrade() {
                shared.enlisted(enlisted);
            }
        };
        shared.workers.watch(&shared.servers, Box::new(told));
        Ok(controller)
    }

    /// The counter of jobs that wait for the compute thread, which the autotuner looks at.
    pub(crate) fn queued(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.shared.queued)
    }

    /// Tasks that may be under way at once, beside those that the worker computes itself.
    pub(crate) fn permits(&self) -> usize {
        self.permits
    }

    /// Gives a task out; `then` is told what becomes of it, on whatever thread.
    pub(crate) fn submit(
        &self,
        task: TensorTask,
        choice: Choice,
        then: impl FnOnce(Result<Answer<TensorTask>, Error>) + Send + 'static,
    ) {
        let mut state = self.shared.state();
        if state.nobody() {
            let first = !std::mem::replace(&mut state.said, true);
            drop(state);
            if first {
                let line = "no tensor worker has enlisted yet: tasks are computed here until one does (train.tensor_workers.accept)";
                self.shared.runtime.say(line);
            }
            return then(self.shared.nobody(task));
        }
        state.queue.push(task, choice, Box::new(then));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// What has been done so far.
    pub(crate) fn done(&self) -> TensorUse {
        let state = self.shared.state();
        TensorUse { workers: state.tuner.number() as u64, row_bytes_max: state.queue.most_bytes(), ..state.done }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
        self.shared.workers.end();
    }
}

impl State {
    /// Whether there is nobody, and nobody to come.
    fn nobody(&self) -> bool {
        self.workers.iter().all(|worker| worker.standing == Standing::Gone)
    }

    /// Whether a worker is among those that are given tasks: the first so many that are not gone.
    pub(super) fn in_use(&self, worker: usize) -> bool {
        let before = self.workers[..worker].iter().filter(|before| before.standing != Standing::Gone).count();
        before < self.tuner.number()
    }

    /// How many workers but this one could take a call at once.
    pub(super) fn free(&self, but: usize) -> usize {
        let is_free = |&(number, worker): &(usize, &Worker)| {
            number != but && worker.standing == Standing::Here && worker.calls == 0 && self.in_use(number)
        };
        self.workers.iter().enumerate().filter(is_free).count()
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a task that nobody is left for comes to.
    fn nobody(&self, task: TensorTask) -> Result<Answer<TensorTask>, Error> {
        match self.settings.when_gone {
            WhenGone::Local => Ok(Answer::Nobody(task)),
            WhenGone::Fail => Err(Error::Machine(
                "all tensor workers are gone, and train.tensor_workers.when_gone = \"fail\"; \"local\" would go on without them".into(),
            )),
        }
    }

    /// Has a thread attend to a worker, unless one does.
    ///
    /// # Errors
    /// When the system has none to give.
    fn take_in(self: &Arc<Self>, worker: usize) -> Result<(), String> {
        {
            let mut state = self.state();
            if state.workers.len() <= worker {
                state.workers.resize(worker + 1, Worker { standing: Standing::Gone, ..Worker::default() });
                state.tuner.widen(worker + 1);
            }
            if std::mem::replace(&mut state.workers[worker].attended, true) {
                return Ok(());
            }
            state.workers[worker].standing = Standing::Coming;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("tensor-{worker}"));
        let started = thread.spawn(move || shared.attend(worker));
        started.map(drop).map_err(|error| {
            let mut state = self.state();
            let worker = &mut state.workers[worker];
            (worker.standing, worker.attended) = (Standing::Gone, false);
            format!("cannot start a thread for a tensor worker: {error}; {FEWER_THREADS}")
        })
    }

    /// Somebody has come or gone by himself.
    fn enlisted(self: &Arc<Self>, enlisted: Enlisted) {
        match enlisted {
            Enlisted::Came(worker) => {
                self.runtime.say(&format!("tensor worker {} has enlisted", self.workers.name(worker)));
                if let Err(why) = self.take_in(worker) {
                    self.runtime.warn(&format!("tensor worker {}: {why}", self.workers.name(worker)));
                }
            }
            Enlisted::Left(worker) => self.lose(worker, &Loss::Left),
        }
        self.changed.notify_all();
    }

    /// A worker is gone: its tasks are given out again, or back.
    pub(super) fn lose(&self, worker: usize, loss: &Loss) {
        let mut state = self.state();
        let Worker { standing, again: before, .. } = state.workers[worker];
        // Another of its calls may have said so.
        let known = standing == Standing::Gone || matches!(loss, Loss::Broken(_)) && standing != Standing::Here;
        if state.closed || known {
            return;
        }
        let times = state.workers[worker].lost + 1;
        let again = self.workers.again(worker, times);
        let standing = if matches!(again, Again::Started(_)) { Standing::Coming } else { Standing::Gone };
        state.workers[worker] = Worker { standing, lost: times, again: Some(again), ..state.workers[worker] };
        let had = state.queue.lose(worker) as u64;
        let quiet = matches!(loss, Loss::Left) && had == 0;
        state.done.lost += u64::from(!quiet);
        state.done.relaunched += u64::from(standing == Standing::Coming);
        state.done.again += had;
        let nobody = state.nobody();
        let given_back = if nobody { state.queue.give_back() } else { Vec::new() };
        let first = nobody && !std::mem::replace(&mut state.said, nobody);
        drop(state);
        self.changed.notify_all();
        let then = match (again, before) {
            (Again::Started(after), _) => format!("; it is started again in {} s", after.as_secs_f64()),
            (Again::Never, Some(Again::Started(_))) => "; it has been started again often enough".to_owned(),
            _ => String::new(),
        };
        let name = self.workers.name(worker);
        match loss {
            Loss::Left if quiet => self.runtime.say(&format!("tensor worker {name} has left")),
            Loss::Left => self.runtime.warn(&format!("tensor worker {name} has left; its tasks are given to others")),
            Loss::Unmet(why) | Loss::Broken(why) => {
                self.runtime.warn(&format!("tensor worker {name}: {why}; its tasks are given to others{then}"));
            }
        }
        if first && self.settings.when_gone == WhenGone::Local {
            self.runtime
                .warn("all tensor workers are gone: their tasks are computed here (train.tensor_workers.when_gone)");
        }
        for (task, then) in given_back {
            then(self.nobody(task));
        }
    }

    /// A worker is there.
    pub(super) fn met(&self, worker: usize) {
        let mut state = self.state();
        state.workers[worker].standing = Standing::Here;
        state.said = false;
    }
}
