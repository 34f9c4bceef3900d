//! The first cause of a run's end. It is set once and never changes; whoever waits for anything waits for it too.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ClusterError;
use super::child::tell_supervisor;

/// Where the first cause is posted.
#[derive(Debug, Default)]
pub(super) struct FirstFailure {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cause: Option<ClusterError>,
    /// Somebody returns the cause to the caller, who prints it and ends the process.
    taken: bool,
    /// Timely complained about this rank's connection: a consequence, whose cause the heartbeats will name.
    suspect: Option<(Option<usize>, String, Instant)>,
}

impl FirstFailure {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere must not hide the cause: every change of the state is a single assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a cause; false when there is an earlier one.
    pub(super) fn post(&self, cause: ClusterError) -> bool {
        let mut state = self.lock();
        let first = state.cause.is_none();
        if first {
            tell_supervisor(&cause);
            state.cause = Some(cause);
            self.changed.notify_all();
        }
        first
    }

    /// The cause, when there is one.
    pub(super) fn cause(&self) -> Option<ClusterError> {
        self.lock().cause.clone()
    }

    /// The cause, for returning it to the caller.
    pub(super) fn take(&self) -> Option<ClusterError> {
        let mut state = self.lock();
        state.taken |= state.cause.is_some();
        state.cause.clone()
    }

    /// Whether the caller knows the cause.
    pub(super) fn is_taken(&self) -> bool {
        self.lock().taken
    }

    /// Notes that timely lost a connection, to `rank` if that is known.
    pub(super) fn suspect(&self, rank: Option<usize>, message: String) {
        let mut state = self.lock();
        match &mut state.suspect {
            Some((known, ..)) => *known = known.or(rank),
            none => *none = Some((rank, message, Instant::now())),
        }
        self.changed.notify_all();
    }

    /// A suspicion that nobody has turned into a cause for `patience`.
    pub(super) fn stale_suspicion(&self, patience: Duration) -> Option<(Option<usize>, String)> {
        let state = self.lock();
        match &state.suspect {
            Some((rank, message, since)) if since.elapsed() > patience => Some((*rank, message.clone())),
            _ => None,
        }
    }

    /// Whether anything went wrong, cause known or not.
    pub(super) fn is_troubled(&self) -> bool {
        let state = self.lock();
        state.cause.is_some() || state.suspect.is_some()
    }

    /// Waits for a cause, at most for `limit`.
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
    fn the_first_cause_stays() {
        let board = FirstFailure::default();
        assert_eq!(board.wait(Duration::from_millis(1)), None);
        assert!(board.post(ClusterError::Interrupted("SIGINT")));
        assert!(!board.post(ClusterError::Usage("later".into())));
        assert!(!board.is_taken());
        assert_eq!(board.take(), Some(ClusterError::Interrupted("SIGINT")));
        assert!(board.is_taken());
    }

    #[test]
    fn a_suspicion_keeps_its_time_and_gains_its_rank() {
        let board = FirstFailure::default();
        board.suspect(None, "poisoned".into());
        board.suspect(Some(2), "socket closed".into());
        assert!(board.is_troubled() && board.cause().is_none());
        assert_eq!(board.stale_suspicion(Duration::from_secs(60)), None);
        assert_eq!(board.stale_suspicion(Duration::ZERO), Some((Some(2), "poisoned".into())));
    }
}
