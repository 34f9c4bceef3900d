//! A lock that one process holds while others wait.
//!
//! The system releases the lock of a process that dies. A process that is alive rewrites the file every second, so that the others notice if it
//! is stopped.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::heartbeat::{beat, patience};
use crate::lock_file::LockFile;
use crate::progress::Progress;

/// The longest interval at which a waiting process tries to get the lock.
const POLL: Duration = Duration::from_millis(100);
/// How often the owner rewrites the file.
const REWRITE: Duration = Duration::from_secs(1);

/// After a longer time between two looks, this process was stopped meanwhile.
const WAS_STOPPED: Duration = Duration::from_secs(5);

/// Holds a lock file until it is dropped.
pub(crate) struct Lock {
    /// Its drop ends the thread.
    end: Option<Sender<()>>,
    /// It has the file.
    thread: Option<JoinHandle<()>>,
}

impl Lock {
    /// Waits until no other process holds the lock file `path`, then locks it. Shows `stage` while it waits.
    ///
    /// # Errors
    /// When the file cannot be created, or its owner gives no sign of life.
    pub(crate) fn take(path: &Path, stage: &str, progress: &dyn Progress) -> Result<Self> {
        let (mut shown, mut pause) = (false, Duration::from_millis(1));
        let (mut seen, mut since, mut looked) = (String::new(), Instant::now(), Instant::now());
        let file = loop {
            if let Some(file) = LockFile::try_take(path).map_err(Error::io(path, "lock"))? {
                break file;
            }
            if !shown {
                progress.stage(stage, None, "");
                shown = true;
            }
            // It is empty for a moment while it is rewritten.
            let written = std::fs::read_to_string(path).unwrap_or_default();
            if !written.is_empty() && written != seen {
                (seen, since) = (written, Instant::now());
                beat();
            }
            // This process was stopped itself, maybe together with the other one.
            if looked.elapsed() > WAS_STOPPED {
                since = Instant::now();
            }
            looked = Instant::now();
            if since.elapsed() > patience() {
                let owner = seen.split(',').next().filter(|owner| !owner.is_empty());
                let owner = owner.unwrap_or("another process").to_owned();
                return Err(Error::Silent { path: path.to_owned(), owner, seconds: patience().as_secs() });
            }
            sleep(pause);
            pause = (2 * pause).min(POLL);
        };
        if shown {
            progress.done();
        }
        Self::held(file)
    }

    /// Starts the thread that rewrites the file.
    fn held(mut file: LockFile) -> Result<Self> {
        let (end, ended) = channel();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let rewrite = move || {
            let mut times = 0u64;
            loop {
                // A failure is ignored: a full disk ends this process elsewhere, and not every file system can sync.
                let _ = file.write(&format!("process {} on {host}, {times}\n", std::process::id()));
                let _ = file.sync();
                times += 1;
                if ended.recv_timeout(REWRITE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        let thread = Builder::new().name("lock".into()).spawn(rewrite);
        let thread = thread.map_err(|source| Error::Threads { what: "the thread of a lock", source })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.end.take());
        // The thread removes the file. It has not panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
