//! Panics outside a run's dataflow. They are bugs: the program prints one line and exits with code 70.
//!
//! `cluster::hook` handles the panics of a run and passes all others on to the hook of this module.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use gnnflow_data::decoding::is_of_a_file;

use crate::cluster::{ClusterError, cause_of, exit_if_not_unwinding};
use crate::error::Error;
use crate::stderr::{Level, print};

/// Number of commands that run now. Only tests run more than one.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// The first panic of a running command.
static FIRST: Mutex<Option<ClusterError>> = Mutex::new(None);

/// Whether a panic is printed when it happens, not at the end of the command.
static PRINT_IMMEDIATELY: AtomicBool = AtomicBool::new(false);

/// Makes the hook print panics when they happen. For servers, which run until a signal ends them.
#[cfg(feature = "tensor-workers")]
pub(crate) fn print_immediately() {
    PRINT_IMMEDIATELY.store(true, Ordering::Relaxed);
}

/// Runs a command. A panic that ends the command becomes its error, on whichever thread it happened. Any other panic becomes a
/// warning after the command.
pub(crate) fn run_guarded(command: impl FnOnce() -> Result<u8, Error>) -> Result<u8, Error> {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            exit_if_not_unwinding(info);
            if is_of_a_file(info) {
                return;
            }
            if RUNNING.load(Ordering::Relaxed) == 0 {
                return before(info);
            }
            record(info);
            if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
                before(info);
            }
        }));
    });
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let done = catch_unwind(AssertUnwindSafe(command));
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    let first = FIRST.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (done, first) {
        (Err(_), Some(first)) => Err(first.into()),
        (Err(payload), None) => {
            // The hook of a run has recorded this panic.
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("panic without a message");
            let (thread, location) = ("main".into(), "unknown location".into());
            Err(ClusterError::Bug { message: text.replace('\n', " "), thread, location }.into())
        }
        // The panic is the cause of an internal error that follows from it.
        (Ok(Err(error)), Some(first)) if error.exit_code() == 70 => Err(first.into()),
        (Ok(Ok(code)), Some(first)) => {
            print(Level::Warning, &first.to_string());
            Ok(code)
        }
        (Ok(result), _) => result,
    }
}

fn record(info: &PanicHookInfo<'_>) {
    if PRINT_IMMEDIATELY.load(Ordering::Relaxed) {
        print(Level::Warning, &cause_of(info).to_string());
        return;
    }
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if first.is_none() {
        *first = Some(cause_of(info));
    }
}
