//! The threads that wait on one tensor worker, from its first task to its end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::controller::{Answer, Loss, Shared, Standing, State};
use super::queue::Order;
use super::size::AT_ONCE;
use crate::runtime::executor::TensorWorker;
use crate::runtime::executor::{Again, Asked};
use crate::runtime::tensor_task::TensorResult;

/// How long a thread sleeps at most before it looks whether a task is late; and whether tasks have waited for others long enough.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_HELD: Duration = Duration::from_millis(1);

impl Shared {
    /// One worker, from its first task to its end, and again as often as it may come back.
    pub(super) fn attend(self: &Arc<Self>, worker: usize) {
        while self.wanted(worker) {
            match self.workers.meet(worker, &self.model, &self.servers, self.settings.timeout.0) {
                Ok(met) => {
                    self.met(worker);
                    let others = (1..AT_ONCE).map(|other| {
                        let (shared, met) = (Arc::clone(self), Arc::clone(&met));
                        let thread = std::thread::Builder::new().name(format!("tensor-{worker}.{other}"));
                        thread.spawn(move || shared.serve(worker, &*met))
                    });
                    let others: Vec<_> = others.collect();
                    self.serve(worker, &*met);
                    // Where there was no thread to be had, the worker has fewer calls at a time.
                    others.into_iter().flatten().for_each(|thread| drop(thread.join()));
                }
                Err(why) => self.lose(worker, &Loss::Unmet(why)),
            }
            if !self.waits_for(worker) {
                return;
            }
        }
    }

    /// Waits until there is something to do for a worker; false when there never will be.
    fn wanted(&self, worker: usize) -> bool {
        let mut state = self.state();
        while !state.closed {
            let gone = state.workers[worker].standing == Standing::Gone;
            if gone || state.in_use(worker) && state.queue.has_waiting() {
                return true;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits as long as a lost worker is left alone; false when it is not met again.
    fn waits_for(&self, worker: usize) -> bool {
        let begin = Instant::now();
        let mut state = self.state();
        while !state.closed {
            let after = match state.workers[worker].again {
                Some(Again::CalledUp(after) | Again::Started(after)) => after,
                Some(Again::Never) | None => break,
            };
            let Some(left) = after.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                // Who has enlisted may have left meanwhile.
                let lost = state.workers[worker].lost;
                if self.workers.again(worker, lost) == Again::Never {
                    break;
                }
                return true;
            };
            state = self.changed.wait_timeout(state, left.min(LOOK * 5)).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.workers[worker].attended = false;
        false
    }

    /// Gives a worker one call after another.
    fn serve(&self, worker: usize, met: &dyn TensorWorker) {
        loop {
            let orders = self.next(worker);
            let Some(first) = orders.first() else { return };
            let (choice, begin) = (first.choice, Instant::now());
            let half = |order: &Order| self.shapes.half(&order.task);
            let tasks: Vec<Asked> =
                orders.iter().map(|order| Asked { task: Arc::clone(&order.task), half: half(order) }).collect();
            let mut answered = |place: usize, result: TensorResult| -> Result<(), String> {
                let (order, asked) = (orders.get(place), tasks.get(place));
                let (Some(order), Some(asked)) = (order, asked) else {
                    return Err("answered more than was asked".into());
                };
                self.shapes.check(&asked.task, &result)?;
                self.answered(worker, order.number, result);
                Ok(())
            };
            self.parameters.call_begins(choice.server);
            let called = met.call(&tasks, choice, self.settings.timeout.0, &mut answered);
            self.parameters.call_ends(choice.server);
            let mut state = self.state();
            state.workers[worker].calls -= 1;
            state.done.calls += 1;
            state.done.seconds += begin.elapsed().as_secs_f64();
            // Where others have answered everything meanwhile, the weights may be gone, which is no fault of this worker's; silence is.
            let open = orders.iter().any(|order| state.queue.is_open(order.number));
            drop(state);
            self.changed.notify_all();
            match called {
                Err(why) if open || begin.elapsed() >= self.settings.timeout.0 => {
                    return self.lose(worker, &Loss::Broken(why));
                }
                _ => {}
            }
        }
    }

    /// A right answer has come.
    fn answered(&self, worker: usize, number: u64, result: TensorResult) {
        let mut state = self.state();
        state.done.tasks += 1;
        if self.settings.autotune {
            state.tuner.see(self.queued.load(Ordering::Relaxed));
        }
        // Somebody else may have been faster.
        let then = state.queue.answered(worker, number);
        drop(state);
        if let Some(then) = then {
            then(Ok(Answer::Result(result)));
        }
    }

    /// The next call of a worker: tasks that nobody has, or one that is late elsewhere. Nothing when the worker is to end.
    fn next(&self, worker: usize) -> Vec<Order> {
        let mut state = self.state();
        while !state.closed && state.workers[worker].standing == Standing::Here {
            if state.in_use(worker) {
                let mut orders = Vec::new();
                if self.is_time(&state, worker) {
                    let free = state.free(worker);
                    orders = state.queue.take(worker, free);
                }
                if orders.is_empty() {
                    orders = state.queue.take_late(worker, self.settings.late);
                    state.done.again += orders.len() as u64;
                }
                if !orders.is_empty() {
                    state.workers[worker].calls += 1;
                    return orders;
                }
            }
            let look = if state.queue.has_waiting() { LOOK_AT_HELD } else { LOOK };
            state = self.changed.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
        Vec::new()
    }

    /// Whether it is time for a call of what waits: there is enough for one, or the worker has nothing to do and there is nothing to wait
    /// for. While the compute thread has jobs, more tasks are about to come.
    fn is_time(&self, state: &State, worker: usize) -> bool {
        let nothing_comes = || self.queued.load(Ordering::Relaxed) == 0 || state.queue.has_held(Instant::now());
        state.queue.has_full_call() || state.workers[worker].calls == 0 && nothing_comes()
    }
}
