//! Objects in stores: Parquet behind `s3://`, `gs://`, `az://` and `http(s)://`.
//!
//! The clients are those of the `object_store` crate, whose world is asynchronous. It ends here: one small runtime, started
//! when the first URL is met, runs the requests; everybody else calls plain functions that wait, from any thread.
//!
//! ```text
//! address   a URL taken apart                     connect   the client of a bucket or server, from the environment
//! answer    what servers say, made errors         patience  what is tried again, how long, and what is not
//! find      the objects that a URL stands for     object    one object that must not change
//! ahead     a row group's columns, fetched before they are needed
//! ```
//!
//! **No wait without an end.** A connection is made within 10 s; a server that sends nothing for 30 s is given up; a
//! request takes 5 min at most. What fails in passing (connections refused or lost, timeouts, 408, 429, 5xx) is tried again with
//! growing pauses until nothing has come for `graph.retry`. What has come is kept: a read goes on where it was cut off.
//!
//! **One object, one content.** Every read asks for the version that was opened (`If-Match`) and compares what the answer
//! says it is.

mod address;
mod ahead;
mod answer;
mod connect;
mod find;
mod object;
mod patience;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};

pub(crate) use ahead::{READ_AHEAD, RowGroup, SHARE};
pub(crate) use find::find;
pub(crate) use object::{Object, Tail, tails};

use crate::error::{Error, FEWER_THREADS, Fault, Result};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// Requests that opening many objects has under way.
const AT_ONCE: usize = 32;

/// Whether the user means a URL, not a path.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| address::scheme(text).is_some())
}

/// A result that is on its way. It is given up when this is dropped.
pub(crate) struct Pending<T> {
    result: Receiver<T>,
    task: AbortHandle,
}

impl<T: Send + 'static> Pending<T> {
    /// Starts the work. What it waits for must have a deadline of its own.
    fn start(work: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let (send, result) = channel();
        let task = runtime()?.spawn(async move {
            // Nobody listens when it was dropped meanwhile.
            let _ = send.send(work.await);
        });
        Ok(Self { result, task: task.abort_handle() })
    }

    /// Waits for the result: not on the runtime, so that this may be called from anywhere.
    fn wait(self) -> Result<T> {
        self.result.recv().map_err(|_| Error::Bug("a request ended without a result".into()))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Does the work on the runtime and waits for it.
fn wait<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    Pending::start(work)?.wait()?
}

/// The one runtime. Its threads move bytes and undo TLS; nothing is decoded there.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let start = || {
        // An error means that the program has chosen one already, which will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let threads = std::thread::available_parallelism().map_or(2, usize::from).min(4);
        let mut runtime = Builder::new_multi_thread();
        runtime.worker_threads(threads).thread_name("gnnflow-store").enable_all().build().map_err(|e| e.to_string())
    };
    RUNTIME.get_or_init(start).as_ref().map_err(|reason| Error::Remote {
        url: PathBuf::from("object stores"),
        problem: format!("cannot start the threads that read objects: {reason}; {FEWER_THREADS}"),
        fault: Fault::Machine,
    })
}
