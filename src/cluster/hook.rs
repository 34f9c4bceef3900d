//! The panic hook: tells our bugs from the echoes of a lost peer.
//!
//! Timely answers a lost connection with panics in its network threads, then in its workers; joining them can hang for
//! ever. The hook sees the first one, notes it, and keeps quiet; the heartbeats name the culprit.

use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::ClusterError;
use super::board::Board;

/// The board of the run in this process.
static WATCHED: Mutex<Weak<Board>> = Mutex::new(Weak::new());

/// From now until the board is dropped, panics in this process are posted on it.
pub(super) fn watch(board: &Arc<Board>) {
    static INSTALL: Once = Once::new();
    *WATCHED.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(board);
    INSTALL.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let board = WATCHED.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            match board {
                Some(board) => {
                    if post(&board, info) && std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                        before(info);
                    }
                }
                None => before(info),
            }
        }));
    });
}

/// Posts the panic; true when it is a new bug.
fn post(board: &Board, info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or("panic without a message");
    let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
    if is_consequence(message, &thread) {
        board.suspect(rank_of_network_thread(&thread), message.to_string());
        return false;
    }
    if board.is_troubled() && (thread.starts_with("timely:") || thread.starts_with("cluster:")) {
        // Timely's threads, and who joins them, stumble over each other once one of them is gone.
        return false;
    }
    let location = info.location().map_or_else(|| "unknown place".to_string(), ToString::to_string);
    board.post(ClusterError::Bug { message: message.replace('\n', " "), thread, location })
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

/// Timely names its network threads after the process at the other end.
fn rank_of_network_thread(name: &str) -> Option<usize> {
    name.strip_prefix("timely:recv-").or_else(|| name.strip_prefix("timely:send-"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
