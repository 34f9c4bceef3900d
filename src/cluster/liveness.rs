//! What a worker tells about itself: that its loop turns, or that it is busy with something long.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Longest label, in characters.
const LABEL: usize = 200;

/// The worker's sign of life, read by the heartbeats. Clones speak for the same worker.
///
/// Call [`tick`](Liveness::tick) at every turn of the worker's loop (also while it waits for others: who waits is alive),
/// and hold a [`busy`](Liveness::busy) guard around work on the worker's thread that may take longer than the stall
/// time-out: a worker that does neither is taken for lost.
///
/// Call [`advance`](Liveness::advance) when a step or epoch is complete. Once all ranks have called it, a run in which every
/// worker turns and none advances for the stall time-out is ended as stalled; while the worker waits for long computation
/// elsewhere, such as its compute thread, it must hold a `busy` guard.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ticks: AtomicU64,
    steps: AtomicU64,
    phase: AtomicU8,
    busy: AtomicUsize,
    label: Mutex<String>,
}

/// What a heartbeat says about the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Has not begun.
    Idle,
    /// Must tick.
    Running,
    /// Computes for long.
    Busy,
    /// Has returned.
    Done,
}

impl Liveness {
    /// The worker's loop has turned. One relaxed addition.
    pub fn tick(&self) {
        self.0.ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// The run has got ahead: a step, an epoch, an interval is complete. One relaxed addition.
    pub fn advance(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Until the guard is dropped, standing still is no stall. `label` names the work in messages.
    #[must_use = "the worker counts as busy only as long as the guard lives"]
    pub fn busy(&self, label: &str) -> Busy {
        *self.0.label.lock().unwrap_or_else(PoisonError::into_inner) = label.chars().take(LABEL).collect();
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    pub(super) fn begin(&self) {
        self.0.phase.store(1, Ordering::Relaxed);
        self.tick();
    }

    pub(super) fn finish(&self) {
        self.0.phase.store(2, Ordering::Relaxed);
    }

    pub(super) fn ticks(&self) -> u64 {
        self.0.ticks.load(Ordering::Relaxed)
    }

    pub(super) fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    pub(super) fn phase(&self) -> Phase {
        match (self.0.phase.load(Ordering::Relaxed), self.0.busy.load(Ordering::Relaxed)) {
            (2, _) => Phase::Done,
            (_, 1..) => Phase::Busy,
            (1, 0) => Phase::Running,
            _ => Phase::Idle,
        }
    }

    /// What the worker was last busy with; empty if never.
    pub(super) fn label(&self) -> String {
        self.0.label.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Marks the worker as busy while it lives; see [`Liveness::busy`].
#[derive(Debug)]
pub struct Busy(Liveness);

impl Drop for Busy {
    fn drop(&mut self) {
        // The clock of the stall time-out starts anew.
        self.0.tick();
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_the_worker() {
        let liveness = Liveness::default();
        assert_eq!(liveness.phase(), Phase::Idle);
        liveness.begin();
        assert_eq!(liveness.phase(), Phase::Running);
        let outer = liveness.busy("inference");
        let inner = liveness.busy("inference");
        drop(inner);
        assert_eq!((liveness.phase(), liveness.label().as_str()), (Phase::Busy, "inference"));
        let before = liveness.ticks();
        drop(outer);
        assert_eq!(liveness.phase(), Phase::Running);
        assert!(liveness.ticks() > before);
        liveness.finish();
        assert_eq!(liveness.phase(), Phase::Done);
    }
}
