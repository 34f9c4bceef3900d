//! SIGINT and SIGTERM as causes of failure, which the other processes receive.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The first signal caught, 0 for none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
/// Time of the first signal, in milliseconds of the monotonic clock.
static CAUGHT_AT: AtomicU64 = AtomicU64::new(0);
/// Signals within this time, in milliseconds, count as one: batch systems signal a process and its parent, which forwards the
/// signal.
const SAME_REQUEST_MS: u64 = 1000;

extern "C" fn handle(signal: libc::c_int) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid, `clock_gettime` is async-signal-safe, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
    if CAUGHT.load(Ordering::Relaxed) == 0 {
        CAUGHT_AT.store(now, Ordering::Relaxed);
        CAUGHT.store(signal, Ordering::Relaxed);
    } else if now.saturating_sub(CAUGHT_AT.load(Ordering::Relaxed)) >= SAME_REQUEST_MS {
        // SAFETY: both are async-signal-safe. The signal is blocked here and ends the process when this function returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Returns the first signal that this process has caught.
pub(super) fn caught() -> Option<libc::c_int> {
    Some(CAUGHT.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// While this guard exists, the first SIGINT or SIGTERM is recorded and does not end the process. Another one, a second later or more,
/// ends it.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(libc::c_int, libc::sighandler_t)>);

impl Signals {
    /// Installs handlers for the signals that are not ignored.
    pub(crate) fn catch() -> Self {
        let mut previous = Vec::new();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: `action` is a valid sigaction with an empty mask. The handler is async-signal-safe. `old` is valid for the
            // previous action.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut old);
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                libc::sigemptyset(&mut action.sa_mask);
                if libc::sigaction(signal, &action, std::ptr::null_mut()) == 0 {
                    previous.push((signal, old.sa_sigaction));
                }
            }
        }
        Signals(previous)
    }

    pub(crate) fn caught(&self) -> Option<libc::c_int> {
        caught()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &(signal, previous) in &self.0 {
            // SAFETY: `previous` is the disposition that the system reported for this signal.
            unsafe {
                libc::signal(signal, previous);
            }
        }
    }
}

pub(super) fn name(signal: libc::c_int) -> &'static str {
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGHUP => "SIGHUP",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => "a signal",
    }
}
