//! The panic hook: tells our bugs from the echoes of a lost peer.
//!
//! Timely answers a lost connection with panics in its network threads, then in its workers; joining them can hang for
//! ever. The hook sees the first one, notes it, and keeps quiet; the heartbeats name the culprit.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::ClusterError;
use super::first_failure::FirstFailure;

/// The board of the run in this process.
static WATCHED: Mutex<Weak<FirstFailure>> = Mutex::new(Weak::new());

/// From now until the board is dropped, panics in this process are posted on it.
pub(super) fn watch(board: &Arc<FirstFailure>) {
    static INSTALL: Once = Once::new();
    *WATCHED.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(board);
    INSTALL.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let board = WATCHED.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            end_unless_it_unwinds(info);
            match board {
                Some(board) => {
                    if post(&board, info) && std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                        before(info);
                    }
                }
                // The run is over, and who prints why has yet to end the process: what falls now has been told.
                None if is_of_a_run(std::thread::current().name().unwrap_or_default()) => {}
                None => before(info),
            }
        }));
    });
}

/// Standard library, rayon and tokio panic where the system refuses a thread.
const NO_THREAD: [&str; 5] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page",
    "The global thread pool has not been initialized",
    "OS can't spawn worker thread",
];

/// What zstd's bindings panic with where the system refuses memory.
const NO_MEMORY: &str = "zstd returned null pointer";

/// What a panic says of the program: that the machine has no threads or no memory left, or that there is a bug.
pub(crate) fn cause_of(info: &PanicHookInfo<'_>) -> ClusterError {
    let message = info.payload_as_str().unwrap_or("panic without a message").replace('\n', " ");
    if NO_THREAD.iter().any(|start| message.starts_with(start)) {
        return ClusterError::no_thread(message);
    }
    if message.starts_with(NO_MEMORY) {
        let problem = format!("{message}; raise the limit on memory (ulimit -v, cgroup)");
        return ClusterError::System { what: "allocate memory".into(), problem };
    }
    let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
    let location = info.location().map_or_else(|| "unknown place".to_string(), ToString::to_string);
    ClusterError::Bug { message, thread, location }
}

/// Ends the process after a panic of a thread that is being started: it would abort, and a cause be lost.
pub(crate) fn end_unless_it_unwinds(info: &PanicHookInfo<'_>) {
    if info.payload_as_str().is_some_and(|message| message.contains("alternative stack")) {
        let cause = cause_of(info);
        let _ = writeln!(std::io::stderr(), "error: {cause}");
        // SAFETY: a system call on an integer. The thread is not whole: no destructors may run on it.
        unsafe { libc::_exit(cause.exit_code().into()) };
    }
}

/// Posts the panic; true when it is a new bug.
fn post(board: &FirstFailure, info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or("panic without a message");
    let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
    if is_consequence(message, &thread) {
        board.suspect(rank_of_network_thread(&thread), message.to_string());
        return false;
    }
    if board.is_troubled() && is_of_a_run(&thread) {
        // Timely's threads, and who joins them, stumble over each other once one of them is gone.
        return false;
    }
    board.post(cause_of(info))
}

/// Whether a panic comes of a lost connection: timely's words for it, any panic of its network threads, and the panic of
/// the guard that joins them.
fn is_consequence(message: &str, thread: &str) -> bool {
    message.starts_with("timely communication error:")
        || message.contains("MergeQueue")
        || message.starts_with("Send thread panic")
        || message.starts_with("Recv thread panic")
        || rank_of_network_thread(thread).is_some()
}

/// Whether a thread is timely's, or joins those.
fn is_of_a_run(thread: &str) -> bool {
    thread.starts_with("timely:") || thread.starts_with("cluster:")
}

/// Timely names its network threads after the process at the other end.
fn rank_of_network_thread(name: &str) -> Option<usize> {
    name.strip_prefix("timely:recv-").or_else(|| name.strip_prefix("timely:send-"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs itself again, as a process whose hook is the only one.
    #[test]
    fn what_falls_behind_a_run_keeps_quiet() {
        let falls = |name: &str| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(|| panic!("fell behind the run"));
            assert!(thread.unwrap().join().is_err());
        };
        if std::env::var_os("GNNFLOW_TEST_HOOK").is_some() {
            watch(&Arc::default());
            falls("cluster:join");
            falls("timely:work-0");
            return falls("somebody else");
        }
        let this = std::env::current_exe().unwrap();
        let name = "cluster::hook::tests::what_falls_behind_a_run_keeps_quiet";
        let mut command = std::process::Command::new(this);
        let done = command.args([name, "--exact", "--nocapture"]).env("GNNFLOW_TEST_HOOK", "1").output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{told}");
        assert_eq!(told.matches("fell behind the run").count(), 1, "{told}");
        assert!(told.contains("somebody else"), "{told}");
    }

    #[test]
    fn network_threads_name_the_peer() {
        assert_eq!(rank_of_network_thread("timely:recv-12"), Some(12));
        assert_eq!(rank_of_network_thread("timely:send-0"), Some(0));
        assert_eq!(rank_of_network_thread("timely:work-0"), None);
        assert!(is_consequence("timely communication error: reading data: socket closed", "timely:work-0"));
        assert!(is_consequence("Send thread panic: Any { .. }", "cluster:join"));
        assert!(is_consequence("Clean shutdown followed by data.", "timely:recv-1"));
        assert!(!is_consequence("index out of bounds", "timely:work-0"));
    }
}
