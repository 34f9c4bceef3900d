//! The signal handlers of commands that do not run a cluster.

/// Makes SIGINT and SIGTERM end the process with exit code 130 and one line on stderr. Files are renamed to their final names only
/// when they are complete, so an interruption leaves no partial ones. A run replaces these handlers while it executes.
pub(super) fn end_with_130() {
    extern "C" fn end(_: libc::c_int) {
        const LINE: &[u8] = b"error: interrupted\n";
        // SAFETY: `write` and `_exit` are async-signal-safe, and `LINE` is valid for its length.
        unsafe {
            libc::write(libc::STDERR_FILENO, LINE.as_ptr().cast(), LINE.len());
            libc::_exit(130);
        }
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: `old` and `action` are valid; `end` calls async-signal-safe functions only.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut old);
            if old.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = end as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}
