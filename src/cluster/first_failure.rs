//! The first cause of a run's failure. It is set once and never changes. All waits for peers end when it is set.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ClusterError;
use super::child::notify_supervisor;

/// Holds the first cause of failure, once there is one.
#[derive(Debug, Default)]
pub(super) struct FirstFailure {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cause: Option<ClusterError>,
    /// Whether the cause has been returned to the caller, which prints it and ends the process.
    reported: bool,
    /// A data connection of timely that failed, with its rank if known. This is a consequence; the heartbeats find the cause.
    suspect: Option<(Option<usize>, String, Instant)>,
}

impl FirstFailure {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the state is one assignment, so the state is valid after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a cause. Returns false if there is an earlier one.
    pub(super) fn post(&self, cause: ClusterError) -> bool {
        let mut state = self.lock();
        let first = state.cause.is_none();
        if first {
            notify_supervisor(&cause);
            state.cause = Some(cause);
            self.changed.notify_all();
        }
        first
    }

    pub(super) fn cause(&self) -> Option<ClusterError> {
        self.lock().cause.clone()
    }

    /// Returns the cause, and records that the caller reports it.
    pub(super) fn report(&self) -> Option<ClusterError> {
        let mut state = self.lock();
        state.reported |= state.cause.is_some();
        state.cause.clone()
    }

    /// Returns whether the caller reports the cause.
    pub(super) fn is_reported(&self) -> bool {
        self.lock().reported
    }

    /// Records that timely has lost a connection, to `rank` if that is known.
    pub(super) fn suspect(&self, rank: Option<usize>, message: String) {
        let mut state = self.lock();
        match &mut state.suspect {
            Some((known, ..)) => *known = known.or(rank),
            none => *none = Some((rank, message, Instant::now())),
        }
        self.changed.notify_all();
    }

    /// Returns a suspicion that is older than `patience`.
    pub(super) fn stale_suspicion(&self, patience: Duration) -> Option<(Option<usize>, String)> {
        let state = self.lock();
        match &state.suspect {
            Some((rank, message, since)) if since.elapsed() > patience => Some((*rank, message.clone())),
            _ => None,
        }
    }

    /// Returns whether there is a cause or a suspicion.
    pub(super) fn is_failing(&self) -> bool {
        let state = self.lock();
        state.cause.is_some() || state.suspect.is_some()
    }

    /// Waits for a cause, at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Option<ClusterError> {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, limit, |state| state.cause.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.cause.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_cause_is_not_replaced() {
        let first_failure = FirstFailure::default();
        assert_eq!(first_failure.wait(Duration::from_millis(1)), None);
        assert!(first_failure.post(ClusterError::Interrupted("SIGINT")));
        assert!(!first_failure.post(ClusterError::Usage("later".into())));
        assert!(!first_failure.is_reported());
        assert_eq!(first_failure.report(), Some(ClusterError::Interrupted("SIGINT")));
        assert!(first_failure.is_reported());
    }

    #[test]
    fn second_suspicion_adds_only_the_rank() {
        let first_failure = FirstFailure::default();
        first_failure.suspect(None, "poisoned".into());
        first_failure.suspect(Some(2), "socket closed".into());
        assert!(first_failure.is_failing() && first_failure.cause().is_none());
        assert_eq!(first_failure.stale_suspicion(Duration::from_secs(60)), None);
        assert_eq!(first_failure.stale_suspicion(Duration::ZERO), Some((Some(2), "poisoned".into())));
    }
}
