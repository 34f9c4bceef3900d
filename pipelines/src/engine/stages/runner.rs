//! Runs the stages of tokens. The compute thread gathers the rows of an interval, and stores and sends the result of its node task. With several
//! compute threads, the node tasks of several intervals run at the same time ([`ComputeState::run_job`]); or they run at tensor workers, and
//! at the compute thread when it is idle.
//!
//! An interval is at one stage at a time: a token that arrives early waits for the one before it. The gate of the dataflow decides the order of
//! intervals, and [`super::gradient_sums`] the order of sums. In lockstep, where own rows must be of one epoch
//! ([`crate::engine::full_graph::mirrors`]), intervals wait here until all have finished a stage.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::flow::map_async::Completer;
use gnnflow_dataflow::storage::RowStore;

use super::begin::Begun;
use super::program::StageNames;
use super::state::EpochState;
use super::token::{Ended, Finished, Token};
use crate::compute::{ComputeState, JobThread, Passes};
use crate::error::Error;
use crate::runtime::executor::{Completion, SubmittedTask, TaskExecutor};
use crate::runtime::records::TensorUse;
use gnnflow_nn::parameter_versions::ParameterVersion;

/// Completes a token with its result.
type TokenCompleter = Completer<Result<Finished, Error>>;

/// The state of full-graph training, and the tokens in flight.
pub(crate) struct StageRunner {
    state: Mutex<EpochState>,
    compute_thread: ComputeThread<ComputeState>,
    /// The names of the jobs of each stage, for traces.
    names: Vec<StageNames>,
    /// Maximum number of node tasks that run at the same time in this process.
    jobs: usize,
    tokens: Mutex<Tokens>,
    /// Computes node tasks, with tensor workers.
    executor: Option<Box<dyn TaskExecutor>>,
    /// Number of jobs that wait for the compute thread.
    queued: Arc<AtomicUsize>,
    /// Whether the compute thread has taken a task back from the executor.
    helps: AtomicBool,
    /// Whether all intervals finish a stage before any begins the next.
    lockstep: bool,
}

#[derive(Default)]
struct Tokens {
    /// Intervals with a task in flight.
    busy: HashSet<u32>,
    /// By interval, later tokens.
    waiting: HashMap<u32, VecDeque<(Token, TokenCompleter)>>,
    /// In lockstep, tokens of stages after that of the busy intervals, by time.
    ahead: VecDeque<(Token, TokenCompleter)>,
    /// The time of the last token that began.
    at: u64,
    /// By time and item, the completers of tokens that have begun.
    completers: HashMap<(u64, u32), TokenCompleter>,
}

impl Tokens {
    /// Tells whether no task of another stage is in flight.
    fn may_begin(&self, token: Token) -> bool {
        self.busy.is_empty() || token.time == self.at
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StageRunner {
    pub(crate) fn new(
        state: EpochState,
        compute_thread: ComputeThread<ComputeState>,
        executor: Option<Box<dyn TaskExecutor>>,
        jobs: usize,
    ) -> Arc<Self> {
        let queued = executor.as_ref().map(|executor| executor.backlog()).unwrap_or_default();
        let (lockstep, names) = (state.is_lockstep(), state.program.stage_names());
        Arc::new(Self {
            state: Mutex::new(state),
            compute_thread,
            names,
            jobs,
            tokens: Mutex::default(),
            executor,
            queued,
            helps: AtomicBool::new(false),
            lockstep,
        })
    }

    /// Returns the tables. Only the compute thread locks them while tokens are in flight.
    pub(crate) fn state(&self) -> MutexGuard<'_, EpochState> {
        lock(&self.state)
    }

    /// Sets the store of the results of the next evaluation.
    pub(crate) fn set_results(&self, results: Arc<RowStore>) {
        self.state().set_results(results);
    }

    /// Tells the executor that an epoch has ended, which took `seconds`.
    pub(crate) fn epoch_ended(&self, seconds: f64) {
        if let Some(executor) = &self.executor {
            executor.epoch_ended(seconds);
        }
    }

    /// Returns the counters of tensor workers; `None` without tensor workers.
    pub(crate) fn executor_stats(&self) -> Option<TensorUse> {
        self.executor.as_ref().map(|executor| executor.stats())
    }

    /// Returns the maximum number of intervals in flight: `local`, plus the tasks that run beside the compute thread.
    pub(crate) fn permits(&self, local: usize) -> usize {
        match &self.executor {
            Some(executor) => local + executor.capacity(),
            None if self.jobs > 1 => local + self.jobs,
            None => local,
        }
    }

    /// Runs the stage of a token and completes it.
    pub(crate) fn run(self: &Arc<Self>, token: Token, completer: TokenCompleter) {
        let thread = self.compute_thread.with_name(Arc::clone(&self.names[token.stage() as usize].begin));
        self.on_compute_thread(&thread, token, move |stages, compute| {
            if stages.lockstep {
                let mut tokens = lock(&stages.tokens);
                if !tokens.ahead.is_empty() || !tokens.may_begin(token) {
                    return tokens.ahead.push_back((token, completer));
                }
            }
            stages.begin(compute, token, completer);
        });
    }

    /// Queues a job for the stage of a token.
    fn on_compute_thread(
        self: &Arc<Self>,
        compute_thread: &ComputeThread<ComputeState>,
        token: Token,
        job: impl FnOnce(&Arc<Self>, &mut ComputeState) + Send + 'static,
    ) {
        let stages = Arc::clone(self);
        self.queued.fetch_add(1, Ordering::Relaxed);
        compute_thread.at(token.time).post(move |compute| {
            stages.queued.fetch_sub(1, Ordering::Relaxed);
            job(&stages, compute);
            stages.help();
        });
    }

    /// Lets the compute thread compute a task that no tensor worker has yet, if it has no other job.
    fn help(self: &Arc<Self>) {
        let Some(executor) = &self.executor else { return };
        if self.queued.load(Ordering::Relaxed) > 0 || self.helps.load(Ordering::Relaxed) {
            return;
        }
        let Some(SubmittedTask { task, version, name, time, done }) = executor.take() else { return };
        self.helps.store(true, Ordering::Relaxed);
        let stages = Arc::clone(self);
        self.compute_thread.with_name(name).at(time).post(move |compute| {
            stages.helps.store(false, Ordering::Relaxed);
            done(compute.node_task(task, version.version).map(Completion::Done));
        });
    }

    fn begin(self: &Arc<Self>, compute: &mut ComputeState, token: Token, completer: TokenCompleter) {
        let mut state = self.state();
        {
            let mut tokens = lock(&self.tokens);
            if state.is_interval(token) && tokens.busy.contains(&token.item) {
                return tokens.waiting.entry(token.item).or_default().push_back((token, completer));
            }
            tokens.completers.insert((token.time, token.item), completer);
            tokens.at = token.time;
        }
        match state.begin(compute, token) {
            Ok(Begun::Ended(ended)) => self.complete_all(ended),
            Ok(Begun::Task(task, version)) => {
                lock(&self.tokens).busy.insert(token.item);
                let stages = Arc::clone(self);
                let done = move |completion| {
                    let name = Arc::clone(&stages.names[token.stage() as usize].end);
                    // Its rows leave as early as possible.
                    let thread = stages.compute_thread.with_priority().with_name(name);
                    stages.on_compute_thread(&thread, token, move |stages, compute| {
                        stages.end(compute, token, completion, version)
                    });
                };
                match &self.executor {
                    Some(executor) => {
                        let name = Arc::clone(&self.names[token.stage() as usize].task);
                        executor.submit(SubmittedTask {
                            task: *task,
                            version,
                            name,
                            time: token.time,
                            done: Box::new(done),
                        });
                    }
                    None => self.run_task(compute, token, move |passes, on| {
                        done(passes.node_task(on, *task, version.version).map(Completion::Done));
                    }),
                }
            }
            Err(error) => self.complete(token, Err(error)),
        }
    }

    /// Runs a node task beside the compute thread, or as its next job.
    fn run_task(
        &self,
        compute: &mut ComputeState,
        token: Token,
        task: impl FnOnce(&Passes, &JobThread) + Send + 'static,
    ) {
        let name = Arc::clone(&self.names[token.stage() as usize].task);
        if compute.runs_several_jobs() {
            compute.run_job(&name, token.time, task);
        } else {
            let thread = self.compute_thread.with_priority().with_name(Arc::clone(&name)).at(token.time);
            thread.post_or_pass_on(move |compute| compute.run_job(&name, token.time, task));
        }
    }

    /// Writes the result of a task, or computes a task here that a tensor worker has returned. Then begins the tokens that waited for it.
    fn end(
        self: &Arc<Self>,
        compute: &mut ComputeState,
        token: Token,
        completion: Result<Completion, Error>,
        version: ParameterVersion,
    ) {
        let result = completion.and_then(|completion| match completion {
            Completion::Done(result) => Ok(result),
            Completion::Returned(task) => compute.node_task(*task, version.version),
        });
        let ended = result.and_then(|result| self.state().end(compute, token, Some(result)));
        self.complete(token, ended);
        let next = {
            let mut tokens = lock(&self.tokens);
            tokens.busy.remove(&token.item);
            tokens.waiting.get_mut(&token.item).and_then(VecDeque::pop_front)
        };
        if let Some((token, completer)) = next {
            self.begin(compute, token, completer);
        }
        while let Some((token, completer)) = self.next_ahead() {
            self.begin(compute, token, completer);
        }
    }

    /// Takes a token of a later stage that may begin now.
    fn next_ahead(&self) -> Option<(Token, TokenCompleter)> {
        let mut tokens = lock(&self.tokens);
        let (token, _) = tokens.ahead.front()?;
        if tokens.may_begin(*token) { tokens.ahead.pop_front() } else { None }
    }

    fn complete(&self, token: Token, ended: Result<Ended, Error>) {
        match ended {
            Ok(ended) => self.complete_all(ended),
            Err(error) => {
                if let Some(completer) = lock(&self.tokens).completers.remove(&(token.time, token.item)) {
                    completer.give(Err(error));
                }
            }
        }
    }

    fn complete_all(&self, ended: Ended) {
        let mut tokens = lock(&self.tokens);
        for (token, done) in ended {
            if let Some(completer) = tokens.completers.remove(&(token.time, token.item)) {
                completer.give(Ok(done));
            }
        }
    }
}
