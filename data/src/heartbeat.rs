//! Signs of life of this process, for stall detection: it does something that takes long, or waits for something that has a time limit of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Signs of life so far.
static BEATS: AtomicU64 = AtomicU64::new(0);
/// In milliseconds.
static PATIENCE: AtomicU64 = AtomicU64::new(120_000);

/// Gives a sign of life. One relaxed addition.
pub fn beat() {
    BEATS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of signs of life so far.
pub fn beats() -> u64 {
    BEATS.load(Ordering::Relaxed)
}

/// Sets for how long this process waits for another one that gives no sign of life. Two minutes, unless it is set.
pub fn set_patience(time: Duration) {
    PATIENCE.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Returns for how long this process waits for another one that gives no sign of life.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE.load(Ordering::Relaxed))
}
