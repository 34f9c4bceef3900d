//! SIGINT and SIGTERM as a cause like any other, so that the other processes are told.

use std::sync::atomic::{AtomicI32, Ordering};

/// The last signal caught, 0 for none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    CAUGHT.store(signal, Ordering::Relaxed);
}

/// While it lives, the first SIGINT or SIGTERM is noted instead of ending the process; the second one ends it.
#[derive(Debug)]
pub(super) struct Signals(Vec<(libc::c_int, libc::sighandler_t)>);

impl Signals {
    /// Takes over the signals that are not ignored.
    pub(super) fn catch() -> Self {
        let mut before = Vec::new();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: `action` is a valid sigaction with an empty mask; the handler only stores into an atomic, which is
            // async-signal-safe; `old` is a valid place for the previous action.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut old);
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
                libc::sigemptyset(&mut action.sa_mask);
                if libc::sigaction(signal, &action, std::ptr::null_mut()) == 0 {
                    before.push((signal, old.sa_sigaction));
                }
            }
        }
        Signals(before)
    }

    /// The signal that was caught.
    pub(super) fn caught(&self) -> Option<libc::c_int> {
        Some(CAUGHT.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &(signal, before) in &self.0 {
            // SAFETY: `before` is the disposition that the system reported for this signal.
            unsafe {
                libc::signal(signal, before);
            }
        }
    }
}

/// The signal's name.
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
