//! The progress that a worker reports: turns of its loop, completed work, and long local work.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::is_launched;
use super::waits::Waits;

/// Maximum characters of a label.
const MAX_LABEL: usize = 200;

/// The state of one worker, read by the heartbeats. Clones report for the same worker.
///
/// Call [`turned`](Liveness::turned) at every turn of the worker's loop, also while it waits for other workers. A worker whose loop
/// does not turn for the stall timeout is lost.
///
/// Call [`progressed`](Liveness::progressed) for each completed timestamp, message, or job of the compute thread. If
/// no worker of the run progresses for the stall timeout, the run is stalled and ends.
///
/// Hold a [`busy`](Liveness::busy) guard during long local work on the worker's thread. Both timeouts pause meanwhile; the run ends if the process
/// reads, writes and computes nothing for ten stall timeouts.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    turns: AtomicU64,
    completed: AtomicU64,
    phase: AtomicU8,
    busy: AtomicUsize,
    label: Mutex<String>,
    /// Whether a signal waits until the worker has ended its work.
    defers_signals: AtomicBool,
    stop_requested: AtomicBool,
    waits: Waits,
}

/// The worker's phase in a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// The worker has not begun.
    Idle,
    /// The worker turns its loop.
    Running,
    /// The worker does long local work.
    Busy,
    /// The worker has returned.
    Done,
}

impl Liveness {
    /// Records a turn of the worker's loop. One relaxed addition.
    pub fn turned(&self) {
        self.0.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Records completed work. May be called from any thread. One relaxed addition.
    pub fn progressed(&self) {
        self.0.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Pauses the stall timeout until the guard is dropped. `label` names the work in messages.
    #[must_use = "the worker counts as busy only as long as the guard lives"]
    pub fn busy(&self, label: &str) -> Busy {
        *self.0.label.lock().unwrap_or_else(PoisonError::into_inner) = label.chars().take(MAX_LABEL).collect();
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Until the guard is dropped, SIGINT and SIGTERM do not end the run, but make [`stop_requested`](Liveness::stop_requested) true. Then
    /// they end it.
    #[must_use = "signals are deferred only as long as the guard lives"]
    pub fn defer_signals(&self) -> Deferred {
        self.0.defers_signals.store(true, Ordering::Relaxed);
        Deferred(self.clone())
    }

    /// Returns whether this process has received a signal that is deferred.
    pub fn stop_requested(&self) -> bool {
        self.0.stop_requested.load(Ordering::Relaxed)
    }

    /// Returns whether a signal waits for the worker.
    pub(super) fn is_deferring(&self) -> bool {
        self.0.defers_signals.load(Ordering::Relaxed)
    }

    /// Returns whether the signal that this process of rank `rank` has received waits for the worker. The first time, says so to the user.
    pub(super) fn defers(&self, signal: &str, rank: usize) -> bool {
        if !self.is_deferring() {
            return false;
        }
        let first = !self.0.stop_requested.swap(true, Ordering::Relaxed);
        // All processes of a launcher receive the signal.
        if first && (rank == 0 || !is_launched()) {
            tracing::warn!(
                "{signal}: training will end with a checkpoint, as soon as the schedule allows; another {signal} ends it at once"
            );
        }
        true
    }

    /// Returns whether the run is stalled, so that the worker's thread has to call [`set_waits`](Liveness::set_waits). One relaxed load.
    pub fn waits_wanted(&self) -> bool {
        self.0.waits.wanted()
    }

    /// Sets what the worker's operators wait for, one line for each operator and time.
    pub fn set_waits(&self, lines: Vec<String>) {
        self.0.waits.set(lines);
    }

    /// Records that a thread begins a job for the items of `time`. Thread 0 is the compute thread.
    pub fn begin_job(&self, thread: usize, name: &Arc<str>, time: Option<u64>) {
        self.0.waits.begin_job(thread, name, time);
    }

    /// Records that the job of a thread ends.
    pub fn end_job(&self, thread: usize) {
        self.0.waits.end_job(thread);
    }

    /// Prints what the worker of rank `rank` waits for.
    pub(super) fn print_waits(&self, rank: usize) {
        self.0.waits.print_once(rank, &self.label());
    }

    pub(super) fn begin(&self) {
        self.0.phase.store(1, Ordering::Relaxed);
        self.turned();
    }

    pub(super) fn finish(&self) {
        self.0.phase.store(2, Ordering::Relaxed);
    }

    pub(super) fn turns(&self) -> u64 {
        self.0.turns.load(Ordering::Relaxed)
    }

    /// Returns the completed work, with the [signs of life](gnnflow_data::heartbeat) of the process.
    pub(crate) fn completed(&self) -> u64 {
        self.0.completed.load(Ordering::Relaxed) + gnnflow_data::heartbeat::beats()
    }

    pub(super) fn phase(&self) -> Phase {
        match (self.0.phase.load(Ordering::Relaxed), self.0.busy.load(Ordering::Relaxed)) {
            (2, _) => Phase::Done,
            (_, 1..) => Phase::Busy,
            (1, 0) => Phase::Running,
            _ => Phase::Idle,
        }
    }

    /// Returns the label of the worker's last long work, or an empty string.
    pub(crate) fn label(&self) -> String {
        self.0.label.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Marks the worker as busy until it is dropped; see [`Liveness::busy`].
#[derive(Debug)]
pub struct Busy(Liveness);

impl Drop for Busy {
    fn drop(&mut self) {
        // The stall timeout starts again from here.
        self.0.turned();
        self.0.progressed();
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Defers signals until it is dropped; see [`Liveness::defer_signals`].
#[derive(Debug)]
pub struct Deferred(Liveness);

impl Drop for Deferred {
    fn drop(&mut self) {
        self.0.0.defers_signals.store(false, Ordering::Relaxed);
    }
}

/// Measures for how long a worker has completed nothing. Updated by every heartbeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgressClock {
    completed: u64,
    since: Instant,
}

impl ProgressClock {
    pub(super) fn start() -> Self {
        Self { completed: 0, since: Instant::now() }
    }

    /// Sets the time without progress to 0.
    pub(super) fn restart(&mut self) {
        self.since = Instant::now();
    }

    /// Updates the worker's count of completed work. A worker that has not begun or is busy need not complete any.
    pub(super) fn update(&mut self, completed: u64, phase: Phase) {
        if completed != self.completed || matches!(phase, Phase::Idle | Phase::Busy) {
            self.restart();
        }
        self.completed = completed;
    }

    /// Returns the time since the last restart.
    pub(super) fn idle(&self) -> Duration {
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_clock_restarts_on_progress_and_while_busy() {
        let mut clock = ProgressClock::start();
        let pause = Duration::from_millis(5);
        std::thread::sleep(pause);
        clock.update(0, Phase::Running);
        assert!(clock.idle() >= pause);
        clock.update(1, Phase::Running);
        std::thread::sleep(pause);
        clock.update(1, Phase::Running);
        assert!(clock.idle() >= pause);
        let before = clock.since;
        clock.update(1, Phase::Busy);
        assert!(clock.since > before);
    }

    #[test]
    fn deferred_signals_request_a_stop() {
        let liveness = Liveness::default();
        assert!(!liveness.defers("SIGTERM", 0) && !liveness.stop_requested());
        let deferred = liveness.defer_signals();
        assert!(!liveness.stop_requested());
        assert!(liveness.defers("SIGTERM", 0) && liveness.stop_requested());
        drop(deferred);
        assert!(!liveness.defers("SIGTERM", 0));
    }

    #[test]
    fn phase_follows_the_worker() {
        let liveness = Liveness::default();
        assert_eq!(liveness.phase(), Phase::Idle);
        liveness.begin();
        assert_eq!(liveness.phase(), Phase::Running);
        let outer = liveness.busy("inference");
        let inner = liveness.busy("inference");
        drop(inner);
        assert_eq!((liveness.phase(), liveness.label().as_str()), (Phase::Busy, "inference"));
        let before = (liveness.turns(), liveness.completed());
        drop(outer);
        assert_eq!(liveness.phase(), Phase::Running);
        assert!(liveness.turns() > before.0 && liveness.completed() > before.1);
        liveness.finish();
        assert_eq!(liveness.phase(), Phase::Done);
    }
}
