//! Notices that this process is stuck in long local work, in which its worker's loop does not turn.
//!
//! Such work may take hours. So only a process that reads, writes and computes nothing for several times the stall timeout counts as stuck. An
//! endless computation is not noticed.

use std::time::{Duration, Instant};

use super::ClusterError;
use super::duration::seconds;
use super::liveness::{Liveness, Phase};

/// For how many stall timeouts a process may do nothing in long local work: a disk may take minutes to store what was written, without any sign.
pub(crate) const STALLS: u32 = 10;
/// Time between two looks at the process.
const INTERVAL: Duration = Duration::from_millis(500);
/// After a longer time between two looks, this process was stopped meanwhile.
const WAS_STOPPED: Duration = Duration::from_secs(10);

/// What this process has done, when it last did something.
#[derive(Debug)]
pub(super) struct BusyWatch {
    done: Done,
    since: Instant,
    looked: Instant,
}

/// What this process has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    completed: u64,
    /// Of all threads.
    cpu: Duration,
    /// Bytes from disks.
    read: u64,
    /// Bytes of all calls that read, also from servers.
    read_by_calls: u64,
    written: u64,
}

impl BusyWatch {
    pub(super) fn start() -> Self {
        let now = Instant::now();
        Self { done: Done::default(), since: now, looked: now }
    }

    /// Returns an error if the worker is busy, and the process has done nothing for too long.
    pub(super) fn check(&mut self, liveness: &Liveness, stall_timeout: Duration) -> Option<ClusterError> {
        if self.looked.elapsed() < INTERVAL {
            return None;
        }
        let limit = STALLS * stall_timeout;
        (self.idle(liveness.phase(), Done::now(liveness)) > limit).then(|| ClusterError::Stuck {
            work: liveness.label(),
            after: seconds(limit),
            factor: STALLS,
        })
    }

    /// Returns for how long a worker in this phase, of a process that has done this, has done nothing.
    fn idle(&mut self, phase: Phase, done: Done) -> Duration {
        let was_stopped = self.looked.elapsed() > WAS_STOPPED;
        self.looked = Instant::now();
        if phase != Phase::Busy || was_stopped || done.is_more_than(&self.done, self.since.elapsed()) {
            (self.done, self.since) = (done, self.looked);
        }
        self.since.elapsed()
    }
}

impl Done {
    fn now(liveness: &Liveness) -> Self {
        let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
        let field = |name: &str| {
            let value = io.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            completed: liveness.completed(),
            cpu: cpu_of_process(),
            read: field("read_bytes:"),
            read_by_calls: field("rchar:"),
            written: field("write_bytes:"),
        }
    }

    /// Whether the process has worked since it had done `before`, `time` ago. Threads that only watch and report do less.
    fn is_more_than(&self, before: &Self, time: Duration) -> bool {
        let watching = Duration::from_millis(50) + time / 50;
        let reports = (1 << 20) + (64 << 10) * time.as_secs();
        self.completed != before.completed
            || self.read > before.read
            || self.cpu.saturating_sub(before.cpu) > watching
            || self.read_by_calls.saturating_sub(before.read_by_calls) > reports
            || self.written.saturating_sub(before.written) > reports
    }
}

fn cpu_of_process() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_idle_from_its_last_work_on() {
        let (mut watch, pause) = (BusyWatch::start(), Duration::from_millis(20));
        let mut after_pause = |phase, done| {
            std::thread::sleep(pause);
            watch.idle(phase, done)
        };
        let nothing = Done::default();
        assert!(after_pause(Phase::Busy, nothing) >= pause);
        assert!(after_pause(Phase::Busy, nothing) >= 2 * pause);
        let progress = Done { completed: 1, ..nothing };
        let before = 3 * pause;
        assert!(after_pause(Phase::Busy, progress) < before);
        assert!(after_pause(Phase::Busy, progress) >= pause);
        assert!(after_pause(Phase::Busy, progress) >= 2 * pause);
        assert!(after_pause(Phase::Running, progress) < before, "others watch a worker that is not busy");
    }

    #[test]
    fn work_is_more_than_watching() {
        let (before, minute) = (Done::default(), Duration::from_secs(60));
        let is_work = |done: Done| done.is_more_than(&before, minute);
        let cpu = |ms| Done { cpu: Duration::from_millis(ms), ..before };
        assert!(!is_work(cpu(1200)) && is_work(cpu(1300)));
        assert!(is_work(Done { read: 1, ..before }) && is_work(Done { completed: 1, ..before }));
        assert!(!is_work(Done { written: 4 << 20, read_by_calls: 4 << 20, ..before }));
        assert!(is_work(Done { written: 5 << 20, ..before }) && is_work(Done { read_by_calls: 5 << 20, ..before }));
    }
}
