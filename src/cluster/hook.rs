//! The panic hook of a run. It separates bugs from panics that follow from a lost peer.
//!
//! If a connection is lost, timely panics in its network threads, then in its workers, and joining them can hang forever. The hook
//! records the first such panic as a suspicion and prints nothing; the heartbeats find the lost peer.

use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use gnnflow_data::decoding::{NO_MEMORY, is_of_a_file};
use gnnflow_kernels::sample::SamplerFault;

use super::first_failure::FirstFailure;
use super::{ClusterError, Failure};
use crate::encryption::CHANGED;
use crate::stderr::{Level, print};

/// The run of this process.
static CURRENT: Mutex<Weak<FirstFailure>> = Mutex::new(Weak::new());

/// Posts panics of this process to `first_failure` until it is dropped.
pub(super) fn post_panics_to(first_failure: &Arc<FirstFailure>) {
    static INSTALL: Once = Once::new();
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(first_failure);
    INSTALL.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let first_failure = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
            exit_if_not_unwinding(info);
            if is_of_a_file(info) {
                return;
            }
            match first_failure {
                Some(first_failure) => {
                    if post(&first_failure, info)
                        && std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0")
                    {
                        before(info);
                    }
                }
                // The run is over and has reported its cause, but the process has not ended yet.
                None if is_run_thread(std::thread::current().name().unwrap_or_default()) => {}
                None => before(info),
            }
        }));
    });
}

/// Panic messages of the standard library, rayon and tokio if the system has no threads left.
const NO_THREAD: [&str; 5] = [
    "failed to spawn thread",
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page",
    "The global thread pool has not been initialized",
    "OS can't spawn worker thread",
];

/// Returns the cause of a panic: a faulty registered sampler, no threads left, no memory left, or a bug.
pub(crate) fn cause_of(info: &PanicHookInfo<'_>) -> ClusterError {
    if let Some(fault) = info.payload().downcast_ref::<SamplerFault>() {
        return ClusterError::Own(Failure::new(2, fault.to_string()));
    }
    let message = info.payload_as_str().unwrap_or("panic without a message").replace('\n', " ");
    if NO_THREAD.iter().any(|start| message.starts_with(start)) {
        return ClusterError::no_thread(message);
    }
    if message.starts_with(NO_MEMORY) {
        let problem = format!("{message}; raise the limit on memory (ulimit -v, cgroup)");
        return ClusterError::System { what: "allocate memory".into(), problem };
    }
    let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
    let location = info.location().map_or_else(|| "unknown location".to_string(), ToString::to_string);
    ClusterError::Bug { message, thread, location }
}

/// Prints the cause and ends the process after a panic in a starting thread. Such a panic would abort the process without a cause.
pub(crate) fn exit_if_not_unwinding(info: &PanicHookInfo<'_>) {
    if info.payload_as_str().is_some_and(|message| message.contains("alternative stack")) {
        let cause = cause_of(info);
        print(Level::Error, &cause.to_string());
        // SAFETY: a system call on an integer. No destructors may run on a thread that has not started.
        unsafe { libc::_exit(cause.exit_code().into()) };
    }
}

/// Posts a panic. Returns true if it is the first cause.
fn post(first_failure: &FirstFailure, info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or("panic without a message");
    let thread = std::thread::current().name().unwrap_or("unnamed").to_string();
    if is_consequence(message, &thread) {
        match rank_of_network_thread(&thread).filter(|_| message.contains(CHANGED)) {
            // This is a cause of its own: the other process may be well.
            Some(rank) => {
                let message = format!("the data connection with rank {rank} {CHANGED}");
                first_failure.post(ClusterError::Own(Failure::new(5, message)));
            }
            None => first_failure.suspect(rank_of_network_thread(&thread), message.to_string()),
        }
        return false;
    }
    if first_failure.is_failing() && is_run_thread(&thread) {
        // After a failure, timely's threads and those that join them panic in turn.
        return false;
    }
    first_failure.post(cause_of(info))
}

/// Returns whether a panic follows from a lost connection: by timely's message, or because it is in a network thread or in the guard
/// that joins those.
fn is_consequence(message: &str, thread: &str) -> bool {
    message.starts_with("timely communication error:")
        || message.contains("MergeQueue")
        || message.starts_with("Send thread panic")
        || message.starts_with("Recv thread panic")
        || rank_of_network_thread(thread).is_some()
}

/// Returns whether a thread belongs to timely or to this module.
fn is_run_thread(thread: &str) -> bool {
    thread.starts_with("timely:") || thread.starts_with("cluster:")
}

/// Returns the rank at the other end of a network thread of timely, from its name.
fn rank_of_network_thread(name: &str) -> Option<usize> {
    name.strip_prefix("timely:recv-").or_else(|| name.strip_prefix("timely:send-"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs this test again in a child process, so that there is no other hook.
    #[test]
    fn panic_after_a_run_is_not_printed_on_run_threads() {
        let panic_in = |name: &str| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(|| panic!("panic after the run"));
            assert!(thread.unwrap().join().is_err());
        };
        if std::env::var_os("GNNFLOW_TEST_HOOK").is_some() {
            post_panics_to(&Arc::default());
            panic_in("cluster:join");
            panic_in("timely:work-0");
            return panic_in("unrelated");
        }
        let this = std::env::current_exe().unwrap();
        let name = "cluster::hook::tests::panic_after_a_run_is_not_printed_on_run_threads";
        let mut command = std::process::Command::new(this);
        let done = command.args([name, "--exact", "--nocapture"]).env("GNNFLOW_TEST_HOOK", "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{stderr}");
        assert_eq!(stderr.matches("panic after the run").count(), 1, "{stderr}");
        assert!(stderr.contains("unrelated"), "{stderr}");
    }

    #[test]
    fn network_thread_names_contain_the_rank() {
        assert_eq!(rank_of_network_thread("timely:recv-12"), Some(12));
        assert_eq!(rank_of_network_thread("timely:send-0"), Some(0));
        assert_eq!(rank_of_network_thread("timely:work-0"), None);
        assert!(is_consequence("timely communication error: reading data: socket closed", "timely:work-0"));
        assert!(is_consequence("Send thread panic: Any { .. }", "cluster:join"));
        assert!(is_consequence("Clean shutdown followed by data.", "timely:recv-1"));
        assert!(!is_consequence("index out of bounds", "timely:work-0"));
    }
}
