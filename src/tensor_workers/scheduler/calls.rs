//! The threads that serve one tensor worker: they connect it, make its calls, and connect it again after a loss.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use gnnflow_nn::node_task::NodeResult;
use gnnflow_pipelines::executor::{CALLS_PER_WORKER, Completion};

use super::queue::Assignment;
use super::task_scheduler::{Loss, Shared, State, WorkerState};
use super::workers::{Retry, TaskRequest, TensorWorker};

/// Maximum sleep of a thread before it looks for late tasks.
const POLL: Duration = Duration::from_millis(20);
/// Maximum sleep while tasks wait for others to share a call with.
const POLL_WAITING: Duration = Duration::from_millis(1);

impl Shared {
    /// Serves one worker from its first task to its end, and again after each loss that allows a retry.
    pub(super) fn serve_worker(self: &Arc<Self>, worker: usize) {
        while self.wait_until_needed(worker) {
            match self.workers.connect(worker, &self.setup.model, &self.setup.servers, self.settings.timeout.0) {
                Ok(connection) => {
                    self.mark_connected(worker);
                    let others = (1..CALLS_PER_WORKER).map(|other| {
                        let (shared, connection) = (Arc::clone(self), Arc::clone(&connection));
                        let thread = std::thread::Builder::new().name(format!("tensor-{worker}.{other}"));
                        thread.spawn(move || shared.make_calls(worker, &*connection))
                    });
                    let others: Vec<_> = others.collect();
                    self.make_calls(worker, &*connection);
                    // If the system had no thread left, the worker has fewer calls at a time.
                    others.into_iter().flatten().for_each(|thread| drop(thread.join()));
                }
                Err(error) => self.lose(worker, &Loss::Unreachable(error)),
            }
            if !self.wait_for_retry(worker) {
                return;
            }
        }
    }

    /// Waits until there are tasks for a worker. Returns false if the scheduler ends.
    fn wait_until_needed(&self, worker: usize) -> bool {
        let mut state = self.state();
        while !state.closed {
            let gone = state.workers[worker].state == WorkerState::Gone;
            if gone || state.in_use(worker) && state.queue.has_waiting() {
                return true;
            }
            state = self.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Waits for the time of a lost worker's retry. Returns false if there is none.
    fn wait_for_retry(&self, worker: usize) -> bool {
        let begin = Instant::now();
        let mut state = self.state();
        while !state.closed {
            let after = match state.workers[worker].retry {
                Some(Retry::Reconnect(after) | Retry::Relaunch(after)) => after,
                Some(Retry::Never) | None => break,
            };
            let Some(left) = after.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                // A registered worker may have left in the meantime.
                let losses = state.workers[worker].losses;
                if self.workers.retry(worker, losses) == Retry::Never {
                    break;
                }
                return true;
            };
            state = self.changed.wait_timeout(state, left.min(POLL * 5)).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.workers[worker].has_thread = false;
        false
    }

    /// Makes one call after another to a worker.
    fn make_calls(&self, worker: usize, connection: &dyn TensorWorker) {
        loop {
            let assignments = self.next_call(worker);
            let Some(first) = assignments.first() else { return };
            let (version, begin) = (first.version, Instant::now());
            let request = |assignment: &Assignment| TaskRequest {
                task: Arc::clone(&assignment.task),
                split: self.shapes.split(&assignment.task),
            };
            let tasks: Vec<TaskRequest> = assignments.iter().map(request).collect();
            let mut on_result = |position: usize, result: NodeResult| -> Result<(), String> {
                let Some(assignment) = assignments.get(position) else {
                    return Err("sent more results than the call has tasks".into());
                };
                self.shapes.check(&assignment.task, &result)?;
                self.complete(worker, assignment.number, result);
                Ok(())
            };
            self.setup.parameters.call_begins(version.server);
            let called = connection.call(&tasks, version, self.settings.timeout.0, &mut on_result);
            self.setup.parameters.call_ends(version.server);
            let mut state = self.state();
            state.workers[worker].calls -= 1;
            state.stats.calls += 1;
            state.stats.seconds += begin.elapsed().as_secs_f64();
            // If other workers have completed all tasks, the parameters may have been removed, and the error is not this worker's. A timeout is.
            let open = assignments.iter().any(|assignment| state.queue.is_open(assignment.number));
            drop(state);
            self.changed.notify_all();
            match called {
                Err(error) if open || begin.elapsed() >= self.settings.timeout.0 => {
                    return self.lose(worker, &Loss::Failed(error));
                }
                _ => {}
            }
        }
    }

    /// Completes a task with a checked result.
    fn complete(&self, worker: usize, number: u64, result: NodeResult) {
        let mut state = self.state();
        state.stats.tasks += 1;
        // Another worker may have been faster.
        let done = state.queue.complete(worker, number);
        drop(state);
        if let Some(done) = done {
            done(Ok(Completion::Done(result)));
        }
    }

    /// Returns the tasks of a worker's next call: unassigned tasks, or one that is late at another worker. Empty if the worker ends.
    fn next_call(&self, worker: usize) -> Vec<Assignment> {
        let mut state = self.state();
        while !state.closed && state.workers[worker].state == WorkerState::Connected {
            if state.in_use(worker) {
                let mut assignments = Vec::new();
                if self.may_call(&state, worker) {
                    let idle = state.idle_others(worker);
                    assignments = state.queue.assign(worker, idle);
                }
                if assignments.is_empty() {
                    assignments = state.queue.assign_late(worker, self.settings.late);
                    state.stats.again += assignments.len() as u64;
                }
                if !assignments.is_empty() {
                    state.workers[worker].calls += 1;
                    return assignments;
                }
            }
            let sleep = if state.queue.has_waiting() { POLL_WAITING } else { POLL };
            state = self.changed.wait_timeout(state, sleep).unwrap_or_else(PoisonError::into_inner).0;
        }
        Vec::new()
    }

    /// Returns whether to make a call now: if the waiting tasks fill a call, or the worker is idle and no more tasks are expected.
    /// While the compute thread has jobs, more tasks are expected.
    fn may_call(&self, state: &State, worker: usize) -> bool {
        let no_more_soon = || self.backlog.load(Ordering::Relaxed) == 0 || state.queue.has_waited(Instant::now());
        state.queue.has_full_call() || state.workers[worker].calls == 0 && no_more_soon()
    }
}
