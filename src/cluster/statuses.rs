//! The statuses of processes: each makes its own, and rank 0 has the last ones of the others.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter, Result};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::status::ProcessStatus;

/// Makes the status of this process.
type Source = Box<dyn Fn() -> ProcessStatus + Send + Sync>;

/// The statuses that a process knows.
#[derive(Default)]
pub(crate) struct Statuses {
    own: OnceLock<Source>,
    /// By rank, with the times at which they arrived.
    others: Mutex<BTreeMap<usize, (Instant, ProcessStatus)>>,
}

impl Statuses {
    /// Sets the function that makes the status of this process. Processes other than rank 0 send one every second. It must return quickly, because the thread
    /// that sends heartbeats calls it.
    pub(crate) fn set_own(&self, source: impl Fn() -> ProcessStatus + Send + Sync + 'static) {
        // A process has one run, and sets it once.
        let _ = self.own.set(Box::new(source));
    }

    /// Makes the status of this process. `None` before the function is set.
    pub(super) fn own(&self) -> Option<ProcessStatus> {
        self.own.get().map(|make| make())
    }

    /// Records a status that has arrived.
    pub(super) fn record(&self, status: ProcessStatus) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.insert(status.rank, (Instant::now(), status));
    }

    /// Returns the last status of each other process that has sent one, by rank, and its age.
    pub(crate) fn others(&self) -> Vec<(Duration, ProcessStatus)> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.values().map(|(at, status)| (at.elapsed(), status.clone())).collect()
    }
}

impl Debug for Statuses {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Statuses").field("others", &self.others).finish_non_exhaustive()
    }
}
