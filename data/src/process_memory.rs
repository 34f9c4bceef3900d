//! Memory use of this process, as the system reports it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The largest high-water mark that was read before a reset by [`PeakWatch::start`].
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Returns the system's high-water mark of resident memory, in bytes; 0 where the system does not report it.
pub fn high_water_mark() -> u64 {
    status("VmHWM:")
}

/// Returns the largest resident memory of this process since it started, in bytes, resets by [`PeakWatch`] included.
pub(crate) fn peak() -> u64 {
    high_water_mark().max(PEAK.load(Ordering::Relaxed))
}

/// Measures by how much the memory of this process grows.
pub(crate) struct PeakWatch {
    before: Option<u64>,
}

impl PeakWatch {
    /// Starts a measurement. Resets the system's high-water mark where the system permits it.
    pub(crate) fn start() -> Self {
        PEAK.fetch_max(high_water_mark(), Ordering::Relaxed);
        let reset = std::fs::write("/proc/self/clear_refs", "5").is_ok();
        Self { before: reset.then(|| status("VmRSS:")) }
    }

    /// Returns the largest growth so far, in bytes; 0 where the system does not report it.
    pub(crate) fn grown(&self) -> u64 {
        self.before.map_or(0, |before| high_water_mark().saturating_sub(before))
    }
}

/// Returns a field of the process's status, in bytes; 0 where the system does not report it.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_plausible() {
        assert!(peak() > 1 << 20);
        // Other tests share the process, so an exact bound is not possible.
        assert!(PeakWatch::start().grown() < 1 << 40);
    }
}
