//! The controller of a graph worker's tensor workers (Dorylus, section 6): gives tasks out, times every call, gives late ones to
//! another as well, drops who is gone or answers nonsense, and tunes how many there are.
//!
//! Threads wait on tensor workers, two for each, so that one task is on its way while another is computed; whoever answers
//! first counts, for all answers have the same bits. No wait is without a deadline.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_operators::compute::model::ModelSpec;

use super::autotune::Autotuner;
use super::{ResultShapes, TensorResult, TensorTask, TensorWorker, TensorWorkers};
use crate::Error;
use crate::job::Host;
use crate::parameters::{Choice, ParameterService};
use crate::spec::{Tensor, WhenGone};
use crate::summary::TensorUse;

/// Calls that a worker has at once.
const AT_ONCE: usize = 2;
/// How long a thread sleeps at most before it looks whether a call is late.
const LOOK: Duration = Duration::from_millis(20);
/// Calls that are timed before any is called late, and how many are remembered.
const TIMED: usize = 8;
const REMEMBERED: usize = 64;
/// No call is late earlier.
const EARLIEST: Duration = Duration::from_millis(50);
/// How often a task is given out at most.
const COPIES: usize = 3;
/// How long a worker that is gone is left alone before it is called up again.
const AGAIN: Duration = Duration::from_secs(3);

/// What became of a task.
pub(crate) enum Answer<T> {
    Result(TensorResult),
    /// Nobody is left to do it; the task is given back.
    Nobody(T),
}

type Then = Box<dyn FnOnce(Result<Answer<TensorTask>, Error>) + Send>;

/// Gives tasks to tensor workers. Dropping it ends its threads.
pub(crate) struct Controller {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    settings: Tensor,
    workers: Arc<dyn TensorWorkers>,
    parameters: Arc<ParameterService>,
    host: Arc<dyn Host>,
    model: ModelSpec,
    shapes: ResultShapes,
    servers: Vec<String>,
    queued: Arc<AtomicUsize>,
}

struct State {
    /// Tasks that nobody has been given, and those that somebody has.
    waiting: VecDeque<u64>,
    calls: BTreeMap<u64, Call>,
    next: u64,
    standing: Vec<Standing>,
    tuner: Autotuner,
    times: VecDeque<Duration>,
    done: TensorUse,
    closed: bool,
    /// Whether it has been said that nobody is left.
    said: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not asked for yet, or being met.
    Coming,
    Here,
    Gone,
}

struct Call {
    task: Arc<TensorTask>,
    choice: Choice,
    then: Then,
    /// Who has it, and since when.
    with: Vec<(usize, Instant)>,
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
}

impl Controller {
    /// Starts the threads; workers are met when there is something for them to do.
    ///
    /// # Errors
    /// When the system has no threads to give.
    pub(crate) fn start(workers: Arc<dyn TensorWorkers>, host: Arc<dyn Host>, setting: Setting) -> Result<Self, Error> {
        let count = workers.count();
        let tuner = match setting.settings.autotune {
            true => Autotuner::new(setting.intervals, count),
            false => Autotuner::new(usize::MAX, count.min(100)),
        };
        let state = State {
            waiting: VecDeque::new(),
            calls: BTreeMap::new(),
            next: 0,
            standing: vec![Standing::Coming; count],
            tuner,
            times: VecDeque::new(),
            done: TensorUse::default(),
            closed: false,
            said: false,
        };
        let Setting { settings, parameters, model, shapes, servers, .. } = setting;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            settings,
            workers,
            parameters,
            host,
            model,
            shapes,
            servers,
            queued: Arc::default(),
        });
        // From here on, dropping it ends those that have been started.
        let controller = Self { shared };
        for worker in 0..count {
            let shared = Arc::clone(&controller.shared);
            std::thread::Builder::new()
                .name(format!("tensor-{worker}"))
                .spawn(move || shared.attend(worker))
                .map_err(|error| Error::Machine(format!("cannot start a thread for a tensor worker: {error}")))?;
        }
        Ok(controller)
    }

    /// The counter of jobs that wait for the companion thread, which the autotuner looks at.
    pub(crate) fn queued(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.shared.queued)
    }

    /// Calls that may be under way at once, two for each worker, and as many tasks that wait for them.
    pub(crate) fn calls_at_once(&self) -> usize {
        2 * AT_ONCE * self.shared.workers.count()
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
            drop(state);
            return then(self.shared.nobody(task));
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        let call = Call { task: Arc::new(task), choice, then: Box::new(then), with: Vec::new() };
        state.calls.insert(number, call);
        self.shared.changed.notify_all();
    }

    /// What has been done so far.
    pub(crate) fn done(&self) -> TensorUse {
        let state = self.shared.state();
        TensorUse { workers: state.tuner.number() as u64, ..state.done }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }
}

impl State {
    /// Whether there is nobody, and nobody to come.
    fn nobody(&self) -> bool {
        self.standing.iter().all(|&standing| standing == Standing::Gone)
    }

    /// Whether a worker is among those that are given tasks: the first so many that are not gone.
    fn in_use(&self, worker: usize) -> bool {
        let before = self.standing[..worker].iter().filter(|&&standing| standing != Standing::Gone).count();
        before < self.tuner.number()
    }

    /// A call that takes so long that somebody else shall try too.
    fn late(&self, worker: usize, factor: f64) -> Option<u64> {
        if self.times.len() < TIMED {
            return None;
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        let bound = times[times.len() / 2].mul_f64(factor).max(EARLIEST);
        let late = |call: &Call| {
            let others = call.with.iter().all(|&(with, _)| with != worker);
            !call.with.is_empty()
                && others
                && call.with.len() < COPIES
                && call.with.iter().all(|(_, since)| since.elapsed() > bound)
        };
        self.calls.iter().find(|(_, call)| late(call)).map(|(&number, _)| number)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a task that nobody is left for comes to.
    fn nobody(&self, task: TensorTask) -> Result<Answer<TensorTask>, Error> {
        match self.settings.when_gone {
            WhenGone::Local => Ok(Answer::Nobody(task)),
            WhenGone::Fail => Err(Error::Machine(
                "all tensor workers are gone, and train.tensor.when_gone = \"fail\"; \"local\" would go on without them".into(),
            )),
        }
    }

    /// One worker, from its first task to its end, and again if it may come back.
    fn attend(self: &Arc<Self>, worker: usize) {
        loop {
            if !self.wanted(worker) {
                return;
            }
            let limit = self.settings.timeout.0;
            match self.workers.meet(worker, &self.model, &self.servers, limit) {
                Ok(met) => {
                    {
                        let mut state = self.state();
                        state.standing[worker] = Standing::Here;
                        state.said = false;
                    }
                    let second = (Arc::clone(self), Arc::clone(&met));
                    let second = std::thread::Builder::new()
                        .name(format!("tensor-{worker}b"))
                        .spawn(move || second.0.serve(worker, &*second.1));
                    self.serve(worker, &*met);
                    // Without the second thread the worker has one call at a time.
                    second.into_iter().for_each(|thread| drop(thread.join()));
                }
                Err(why) => self.lose(worker, &why),
            }
            let begin = Instant::now();
            let mut state = self.state();
            while !state.closed && begin.elapsed() < AGAIN {
                state = self.changed.wait_timeout(state, LOOK * 5).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.closed || !self.workers.may_come_back() {
                return;
            }
        }
    }

    /// Waits until there is something to do for a worker; false when there never will be.
    fn wanted(&self, worker: usize) -> bool {
        let mut state = self.state();
        while !state.closed {
            if state.standing[worker] == Standing::Gone || state.in_use(worker) && !state.waiting.is_empty() {
                return true;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Gives a worker one task after another.
    fn serve(&self, worker: usize, met: &dyn TensorWorker) {
        while let Some((number, task, choice)) = self.next(worker) {
            let begin = Instant::now();
            self.parameters.call_begins(choice.server);
            let answer = met.call(&task, choice, self.settings.timeout.0);
            self.parameters.call_ends(choice.server);
            let answer = answer.and_then(|result| self.shapes.check(&task, &result).map(|()| result));
            drop(task);
            let mut state = self.state();
            state.done.calls += 1;
            state.done.seconds += begin.elapsed().as_secs_f64();
            match answer {
                Ok(result) => {
                    if state.times.len() == REMEMBERED {
                        state.times.pop_front();
                    }
                    state.times.push_back(begin.elapsed());
                    if self.settings.autotune {
                        state.tuner.see(self.queued.load(Ordering::Relaxed));
                    }
                    // Somebody else may have been faster.
                    if let Some(call) = state.calls.remove(&number) {
                        drop(state);
                        (call.then)(Ok(Answer::Result(result)));
                    }
                }
                Err(why) => {
                    drop(state);
                    return self.lose(worker, &why);
                }
            }
        }
    }

    /// The next task for a worker: one that nobody has, or one that is late elsewhere. Nothing when the worker is to end.
    fn next(&self, worker: usize) -> Option<(u64, Arc<TensorTask>, Choice)> {
        let mut state = self.state();
        while !state.closed && state.standing[worker] == Standing::Here {
            let number = match state.in_use(worker) {
                true => state.waiting.pop_front().or_else(|| {
                    let late = state.late(worker, self.settings.late)?;
                    state.done.again += 1;
                    Some(late)
                }),
                false => None,
            };
            if let Some(call) = number.and_then(|number| state.calls.get_mut(&number)) {
                call.with.push((worker, Instant::now()));
                return Some((number?, Arc::clone(&call.task), call.choice));
            }
            if number.is_none() {
                state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        None
    }

    /// A worker is gone: its tasks are given out again, or back.
    fn lose(&self, worker: usize, why: &str) {
        let mut state = self.state();
        if state.closed || state.standing[worker] == Standing::Gone {
            return;
        }
        state.standing[worker] = Standing::Gone;
        state.done.lost += 1;
        let mut again = Vec::new();
        for (&number, call) in &mut state.calls {
            let had = call.with.len();
            call.with.retain(|&(with, _)| with != worker);
            if had > 0 && call.with.is_empty() {
                again.push(number);
            }
        }
        state.done.again += again.len() as u64;
        again.into_iter().rev().for_each(|number| state.waiting.push_front(number));
        let nobody = state.nobody();
        let mut given_back = Vec::new();
        if nobody {
            state.waiting.clear();
            given_back.extend(std::mem::take(&mut state.calls).into_values());
        }
        let first = nobody && !std::mem::replace(&mut state.said, nobody);
        drop(state);
        self.changed.notify_all();
        self.host.warn(&format!("tensor worker {}: {why}; its tasks are given to others", self.workers.name(worker)));
        if first && self.settings.when_gone == WhenGone::Local {
            self.host.warn("all tensor workers are gone: their tasks are computed here (train.tensor.when_gone)");
        }
        for call in given_back {
            let task = Arc::try_unwrap(call.task).unwrap_or_else(|shared| (*shared).clone());
            (call.then)(self.nobody(task));
        }
    }
}
