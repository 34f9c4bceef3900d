//! The times of a traced worker, by operator and by task of the compute thread.

use std::path::{Path, PathBuf};

use gnnflow_data::fs::write_atomic;
use serde::{Deserialize, Serialize};

use super::run_folder::TRACE;
use crate::error::Error;

/// The times of one worker: `trace/worker-N-times.json` in the run folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceTable {
    /// Operators of the dataflow, on the worker thread, and its waiting; the longest first.
    pub dataflow: Vec<ThreadTime>,
    /// Tasks of the compute thread, the longest first.
    pub compute: Vec<ThreadTime>,
    /// Seconds in which the worker thread waits and the compute thread works. In the rest of its waiting, it waits for
    /// sampling threads or messages.
    pub waiting_for_compute: f64,
    /// Events that the trace lacks because there were too many. The times include them.
    pub dropped: u64,
}

/// The time of an operator or a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// Seconds in all runs.
    pub seconds: f64,
}

impl TraceTable {
    /// Returns the folder of traces in a run folder.
    pub fn folder(run_dir: &Path) -> PathBuf {
        run_dir.join(TRACE)
    }

    fn path(run_dir: &Path, rank: usize) -> PathBuf {
        Self::folder(run_dir).join(format!("worker-{rank}-times.json"))
    }

    pub(crate) fn write(&self, run_dir: &Path, rank: usize) -> Result<(), Error> {
        let path = Self::path(run_dir, rank);
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::Bug(error.to_string()))?;
        write_atomic(&path, text.as_bytes()).map_err(Error::io("write", &path))
    }

    /// Reads the times of all workers that are in the run folder, in order of their ranks.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read_all(run_dir: &Path) -> Result<Vec<Self>, Error> {
        let paths = (0..).map(|rank| Self::path(run_dir, rank)).take_while(|path| path.exists());
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
            serde_json::from_str(&text).map_err(|error| Error::Input(format!("{}: {error}", path.display())))
        };
        paths.map(read).collect()
    }
}
