//! What a traced worker did: times by operator and by job, CPU time, messages, and queues.

use std::path::{Path, PathBuf};

use gnnflow_dataflow::trace::spans::WAITING;
use serde::{Deserialize, Serialize};

use super::run_folder::TRACE;
use super::trace_file;
use crate::error::Error;

/// The times and counts of one worker: `trace/worker-N-times.json` in the run folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceTable {
    /// Seconds from the start of the record to its end.
    pub seconds: f64,
    /// Operators of the dataflow, on the worker thread, and its waiting; the longest first.
    pub dataflow: Vec<ThreadTime>,
    /// Jobs of the compute thread, the longest first.
    pub compute: Vec<ThreadTime>,
    /// Jobs of the sampling threads, the longest first.
    pub sampling: Vec<ThreadTime>,
    /// Seconds in which the worker thread waits and the compute thread works.
    pub waiting_for_compute: f64,
    /// Seconds in which the worker thread waits, a sampling thread works, and the compute thread does not.
    pub waiting_for_sampling: f64,
    /// The rest of the waiting of the worker thread, by what the items of the earliest time wait for; the longest first. Waiting of less than
    /// 20 µs is missing, and waiting after more than a quarter of a million changes.
    pub waiting_for: Vec<WaitTime>,
    /// The thread of the dataflow.
    pub worker_thread: ThreadUse,
    /// The compute thread, and the threads on which its jobs run.
    pub compute_threads: ThreadUse,
    /// The sampling threads.
    pub sampling_threads: ThreadUse,
    /// Jobs that wait for the compute thread when a job begins.
    pub jobs_waiting: InUse,
    /// Permits of batches or node tasks in flight. The mean is over time.
    pub permits_in_use: InUse,
    /// What the process sent to each process, by rank.
    pub sent: Vec<SentTo>,
    /// Events that the trace lacks because there were too many. The times include them.
    pub dropped: u64,
}

/// The time of an operator or a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadTime {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// Seconds in all runs.
    pub seconds: f64,
    /// CPU seconds in all runs, of all threads that take part. Operators have none: they do not block, except for pages from disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// What the worker thread waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitTime {
    /// The cause: `process 1`, `permits`, `earlier times`, `a thread`, `registered operators` or `no item`.
    pub cause: String,
    /// Seconds.
    pub seconds: f64,
}

/// The use of some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// Number of threads at the end.
    pub threads: usize,
    /// CPU seconds of all threads.
    pub cpu_seconds: f64,
    /// How often a thread waited for a page of a mapped file ("major faults").
    pub page_faults_from_disk: u64,
    /// Seconds in which a thread waited for a disk; missing where the system does not measure it (`sysctl kernel.task_delayacct`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_seconds: Option<f64>,
}

/// A number that changes over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InUse {
    /// The mean.
    pub mean: f64,
    /// The largest value.
    pub max: u64,
}

/// What a process sent to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTo {
    /// Number of messages.
    pub messages: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// The content of the files.
const TIMES: &str = "times";

impl TraceTable {
    /// Returns the folder of traces in a run folder.
    pub fn folder(run_dir: &Path) -> PathBuf {
        run_dir.join(TRACE)
    }

    /// Returns the seconds in which the worker thread waits and no other thread of the process works: the sum of [`TraceTable::waiting_for`], and
    /// short waiting.
    pub fn waiting_for_messages(&self) -> f64 {
        let waiting = self.dataflow.iter().find(|time| time.name == WAITING).map_or(0.0, |time| time.seconds);
        waiting - self.waiting_for_compute - self.waiting_for_sampling
    }

    pub(crate) fn write(&self, run_dir: &Path, rank: usize) -> Result<(), Error> {
        trace_file::write(&trace_file::path(run_dir, rank, TIMES), self)
    }

    /// Reads the times of all workers that are in the run folder, in order of their ranks.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read_all(run_dir: &Path) -> Result<Vec<Self>, Error> {
        let paths = (0..).map(|rank| trace_file::path(run_dir, rank, TIMES)).take_while(|path| path.exists());
        paths.map(|path| trace_file::read(&path)).collect()
    }
}
