//! Tokens on their way through a stage: read, computed, written; where tasks are computed elsewhere, several at once.
//!
//! All of it is done on the compute thread, but for what a tensor worker does. An interval is at one stage at a time: a token
//! that comes early waits for the one before it. Between intervals nothing here decides who comes first; the dataflow's gate does,
//! and sums of gradients are put in order ([`super::gradient_sums`]). Only where own rows must all be of one epoch ([`crate::engine::full_graph::mirrors`]), intervals
//! wait here until all are done with a stage.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::flow::map_async::Completer;

use super::begin::Begun;
use super::finish::{Ended, Finished};
use super::state::{EpochState, ResultSink};
use super::token::Token;
use crate::compute::ComputeState;
use crate::error::Error;
use crate::runtime::executor::{Completion, TaskExecutor};
use crate::runtime::records::TensorUse;
use gnnflow_nn::parameter_versions::ParameterVersion;

/// The place for what a token comes to.
type Place = Completer<Result<Finished, Error>>;

/// The state of training over the whole graph, and the tokens that are at it.
pub(crate) struct StageRunner {
    state: Mutex<EpochState>,
    compute_thread: ComputeThread<ComputeState>,
    tokens: Mutex<Tokens>,
    /// Where tasks are computed elsewhere.
    executor: Option<Box<dyn TaskExecutor>>,
    /// Jobs that wait for the compute thread.
    queued: Arc<AtomicUsize>,
    /// Whether no interval begins a stage before all are done with the one before.
    lockstep: bool,
}

#[derive(Default)]
struct Tokens {
    /// Intervals with a task under way.
    busy: HashSet<u32>,
    waiting: HashMap<u32, VecDeque<(Token, Place)>>,
    /// Tokens of later stages than that of the intervals under way, where these go in step; by time.
    ahead: VecDeque<(Token, Place)>,
    /// The stage of what is under way.
    at: u64,
    places: HashMap<(u64, u32), Place>,
}

impl Tokens {
    /// Whether nothing is under way at another stage.
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
    ) -> Arc<Self> {
        let queued = executor.as_ref().map(|executor| executor.backlog()).unwrap_or_default();
        let lockstep = state.is_lockstep();
        Arc::new(Self {
            state: Mutex::new(state),
            compute_thread,
            tokens: Mutex::default(),
            executor,
            queued,
            lockstep,
        })
    }

    /// The tables. Only the compute thread ever locks them while anything is under way.
    pub(crate) fn state(&self) -> MutexGuard<'_, EpochState> {
        lock(&self.state)
    }

    /// Says where evaluation writes.
    pub(crate) fn set_sink(&self, sink: ResultSink) {
        self.state().set_sink(sink);
    }

    /// Returns what tensor workers have done so far; `None` without tensor workers.
    pub(crate) fn executor_stats(&self) -> Option<TensorUse> {
        self.executor.as_ref().map(|executor| executor.stats())
    }

    /// Intervals that may be under way at once, where `alone` are when nothing is computed elsewhere.
    pub(crate) fn permits(&self, alone: usize) -> usize {
        self.executor.as_ref().map_or(alone, |executor| alone + executor.capacity())
    }

    /// Does what a token asks for; what it comes to is put into `place`.
    pub(crate) fn take(self: &Arc<Self>, token: Token, place: Place) {
        self.on_compute_thread(move |stages, compute| {
            if stages.lockstep {
                let mut tokens = lock(&stages.tokens);
                if !tokens.ahead.is_empty() || !tokens.may_begin(token) {
                    return tokens.ahead.push_back((token, place));
                }
            }
            stages.begin(compute, token, place);
        });
    }

    fn on_compute_thread(self: &Arc<Self>, job: impl FnOnce(&Arc<Self>, &mut ComputeState) + Send + 'static) {
        let stages = Arc::clone(self);
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.compute_thread.post(move |compute| {
            stages.queued.fetch_sub(1, Ordering::Relaxed);
            job(&stages, compute);
        });
    }

    fn begin(self: &Arc<Self>, compute: &mut ComputeState, token: Token, place: Place) {
        let mut state = self.state();
        {
            let mut tokens = lock(&self.tokens);
            if state.is_interval(token) && tokens.busy.contains(&token.item) {
                return tokens.waiting.entry(token.item).or_default().push_back((token, place));
            }
            tokens.places.insert((token.time, token.item), place);
            tokens.at = token.time;
        }
        match state.begin(compute, token) {
            Ok(Begun::Ended(ended)) => self.give(ended),
            Ok(Begun::Task(task, choice)) => match &self.executor {
                None => {
                    let result = compute.tensor_task(*task, choice.version);
                    let ended = result.and_then(|result| state.end(compute, token, Some(result)));
                    self.answer(token, ended);
                }
                Some(executor) => {
                    lock(&self.tokens).busy.insert(token.item);
                    let stages = Arc::clone(self);
                    let done = move |completion| {
                        stages.on_compute_thread(move |stages, compute| stages.end(compute, token, completion, choice));
                    };
                    executor.submit(*task, choice, Box::new(done));
                }
            },
            Err(error) => self.answer(token, Err(error)),
        }
    }

    /// What a task came to elsewhere is written, or the task is done here; then whatever else the interval is waited for.
    fn end(
        self: &Arc<Self>,
        compute: &mut ComputeState,
        token: Token,
        completion: Result<Completion, Error>,
        choice: ParameterVersion,
    ) {
        let result = completion.and_then(|completion| match completion {
            Completion::Done(result) => Ok(result),
            Completion::Returned(task) => compute.tensor_task(*task, choice.version),
        });
        let ended = result.and_then(|result| self.state().end(compute, token, Some(result)));
        self.answer(token, ended);
        let next = {
            let mut tokens = lock(&self.tokens);
            tokens.busy.remove(&token.item);
            tokens.waiting.get_mut(&token.item).and_then(VecDeque::pop_front)
        };
        if let Some((token, place)) = next {
            self.begin(compute, token, place);
        }
        while let Some((token, place)) = self.next_ahead() {
            self.begin(compute, token, place);
        }
    }

    /// A token that has waited for its stage, which has come.
    fn next_ahead(&self) -> Option<(Token, Place)> {
        let mut tokens = lock(&self.tokens);
        let (token, _) = tokens.ahead.front()?;
        if tokens.may_begin(*token) { tokens.ahead.pop_front() } else { None }
    }

    fn answer(&self, token: Token, ended: Result<Ended, Error>) {
        match ended {
            Ok(ended) => self.give(ended),
            Err(error) => {
                if let Some(place) = lock(&self.tokens).places.remove(&(token.time, token.item)) {
                    place.give(Err(error));
                }
            }
        }
    }

    fn give(&self, ended: Ended) {
        let mut tokens = lock(&self.tokens);
        for (token, done) in ended {
            if let Some(place) = tokens.places.remove(&(token.time, token.item)) {
                place.give(Ok(done));
            }
        }
    }
}
