//! What the system says about this process.

use std::sync::LazyLock;

use rustix::param::clock_ticks_per_second;

/// Memory, CPU time and threads of this process; 0 where the system does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Resident memory, in bytes.
    pub(super) memory: u64,
    /// Its largest value so far.
    pub(super) memory_peak: u64,
    /// CPU seconds of all threads.
    pub(super) cpu_seconds: f64,
    pub(super) threads: u64,
}

impl Usage {
    /// Reads the usage. It takes a fraction of a millisecond.
    pub(super) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
        };
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self {
            memory: field("VmRSS:") * 1024,
            memory_peak: field("VmHWM:") * 1024,
            cpu_seconds: cpu_ticks(&stat) as f64 / clock_ticks_per_second() as f64,
            threads: field("Threads:"),
        }
    }
}

/// Returns the ticks of user and system time in `/proc/self/stat`.
fn cpu_ticks(stat: &str) -> u64 {
    // The second field, the name, is in parentheses and may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the name of this host.
pub(super) fn host() -> &'static str {
    static HOST: LazyLock<String> =
        LazyLock::new(|| rustix::system::uname().nodename().to_string_lossy().chars().take(64).collect());
    &HOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_after_a_name_with_spaces() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 100 1 1";
        assert_eq!(cpu_ticks(stat), 300);
        assert_eq!(cpu_ticks(""), 0);
    }

    #[test]
    fn usage_is_plausible() {
        let usage = Usage::now();
        assert!(usage.memory > 1 << 20 && usage.memory_peak >= usage.memory / 2 && usage.threads >= 1, "{usage:?}");
    }
}
