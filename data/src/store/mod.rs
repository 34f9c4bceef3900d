//! Reads Parquet files from object stores and web servers, `s3://`, `gs://`, `az://` and `http(s)://`. Of object stores, also lists folders,
//! copies their files, and uploads files.
//!
//! The clients are those of the asynchronous `object_store` crate. One small runtime, started for the first URL, runs the
//! requests. All other modules call functions that block, from any thread.
//!
//! ```text
//! address   parses URLs                           connect   creates the client of a bucket or server
//! failure   converts failed requests to errors    retry     limits retries of failed requests
//! find      finds the objects of a URL            object    reads an object, and checks that it does not change
//! whole     reads whole objects, piece by piece
//! ahead     reads the columns of a row group ahead
//! prefix    sends requests about the objects below a prefix
//! upload    writes files                          folders   lists folders, and copies their objects
//! ```
//!
//! **Time limits.** A connection attempt ends after 10 s, a read without data after 30 s, and any request after 5 min. A part of an
//! upload ends after half of `graph.retry`, from 1 to 5 min.
//! Temporary failures (connections refused or lost, timeouts, 408, 429, 5xx) are retried with growing pauses, until no
//! data has arrived for `graph.retry`. A retry requests only the missing bytes.
//!
//! **Consistency.** Every read requests the version that was opened (`If-Match`) and compares it with the version in the
//! response.

mod address;
mod ahead;
mod connect;
mod failure;
mod file;
mod find;
pub mod folders;
mod object;
mod prefix;
mod retry;
#[cfg(test)]
mod tests;
pub mod upload;
mod whole;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) use ahead::{READ_AHEAD, RowGroup, SHARE};
pub use file::DumpFile;
pub(crate) use file::on_one_line;
pub(crate) use find::{find, find_one};
pub(crate) use object::{Object, Tail, tails};

use crate::error::{Error, FEWER_THREADS, Fault, Result};
use crate::heartbeat::beat;
use futures_util::future::{Either, select};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// Time between two signs of life of a request.
const BEAT: Duration = Duration::from_millis(100);

/// Number of concurrent requests when many objects are opened.
const MAX_CONCURRENT: usize = 32;

/// Returns whether a path is a URL.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(|text| address::scheme(text).is_some())
}

/// The result of a running task. The task is canceled when this is dropped.
pub(crate) struct Pending<T> {
    result: Receiver<T>,
    task: AbortHandle,
}

impl<T: Send + 'static> Pending<T> {
    /// Starts the task. Everything that it waits for must have a time limit: while it runs, this process does not count as stalled.
    fn start(work: impl Future<Output = T> + Send + 'static) -> Result<Self> {
        let (send, result) = channel();
        let task = runtime()?.spawn(async move {
            // An error means that the receiver was dropped.
            let _ = send.send(with_beats(work).await);
        });
        Ok(Self { result, task: task.abort_handle() })
    }

    /// Blocks until the result is available. Must not be called on the runtime.
    fn wait(self) -> Result<T> {
        self.result.recv().map_err(|_| Error::Bug("a request ended without a result".into()))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Gives signs of life until `work` is done.
async fn with_beats<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        match select(work, pin!(tokio::time::sleep(BEAT))).await {
            Either::Left((result, _)) => return result,
            Either::Right(((), pending)) => work = pending,
        }
        beat();
    }
}

/// Runs a task on the runtime and waits for its result.
fn wait<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    Pending::start(work)?.wait()?
}

/// Returns the runtime. Its threads transfer and decrypt bytes; they decode nothing.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let start = || {
        // An error means that the program has installed a provider before.
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
