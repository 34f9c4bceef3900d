//! The work of a traced process by epoch and step, which `gnnflow simulate` replays.

use std::path::Path;

use gnnflow_dataflow::wire::meter::Stage;
use serde::{Deserialize, Serialize};

use super::trace_file;
use super::trace_table::SentTo;
use crate::error::Error;

/// The work of one process in training: `trace/worker-N-work.json` in the run folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkLog {
    /// Cores of the machine.
    pub(crate) cores: usize,
    /// Maximum number of steps in flight, in training with batches.
    pub(crate) window: usize,
    /// Number of jobs that may run at the same time on the compute threads; 0 or 1 for one after another.
    #[serde(default)]
    pub(crate) at_once: usize,
    /// Whether the process read features of other processes from their files, without messages.
    #[serde(default)]
    pub(crate) shares_features: bool,
    /// Training without evaluations. Of a long run, the last rounds are missing, because the number of jobs and messages is limited.
    pub(crate) rounds: Vec<Round>,
    /// Jobs of the compute thread, by time and name.
    pub(crate) jobs: Vec<JobWork>,
    /// Messages by time, stage and destination.
    pub(crate) sent: Vec<SentWork>,
}

/// One epoch, or the epochs up to the next evaluation where epochs overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Its first epoch, from 0.
    pub(crate) first_epoch: u32,
    /// Wall-clock seconds of each epoch.
    pub(crate) seconds: Vec<f64>,
    /// Number of steps of each epoch: the maximum over partitions.
    pub(crate) steps: Vec<u64>,
    /// CPU seconds of the worker thread.
    pub(crate) worker_cpu: f64,
    /// CPU seconds of the sampling threads.
    pub(crate) sampling_cpu: f64,
    /// Seconds of the worker thread in sums over partitions.
    pub(crate) reducing: f64,
}

/// The jobs of one name at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobWork {
    /// The epoch, from 0.
    pub(crate) epoch: u32,
    /// The step or stage in its epoch, from 0.
    pub(crate) step: u32,
    /// The name of the jobs.
    pub(crate) name: String,
    /// Number of jobs.
    pub(crate) count: u64,
    /// Wall-clock seconds.
    pub(crate) seconds: f64,
    /// CPU seconds of all threads that took part.
    pub(crate) cpu_seconds: f64,
}

/// Messages of one stage to one process at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentWork {
    /// The epoch, from 0.
    pub(crate) epoch: u32,
    /// The step or stage in its epoch, from 0.
    pub(crate) step: u32,
    /// What the messages are for.
    pub(crate) purpose: SentFor,
    /// The rank of the receiver.
    pub(crate) to: usize,
    /// Their number and bytes.
    #[serde(flatten)]
    pub(crate) sent: SentTo,
}

/// What messages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SentFor {
    /// Sampled edges.
    Sampling,
    /// Rows of nodes.
    Rows,
    /// Gradients, or parameters for an average.
    Sums,
}

impl From<Stage> for SentFor {
    fn from(stage: Stage) -> Self {
        match stage {
            Stage::Sample => Self::Sampling,
            Stage::Fetch => Self::Rows,
            Stage::Reduce => Self::Sums,
        }
    }
}

/// The content of the files.
const WORK: &str = "work";

impl WorkLog {
    pub(crate) fn write(&self, run_dir: &Path, rank: usize) -> Result<(), Error> {
        trace_file::write(&trace_file::path(run_dir, rank, WORK), self)
    }

    /// Reads the work of all `processes` processes of a run.
    ///
    /// # Errors
    /// [`Error::Input`] if the run was not traced, or a file is damaged.
    pub(crate) fn read_all(run_dir: &Path, processes: usize) -> Result<Vec<Self>, Error> {
        let read = |rank| {
            let path = trace_file::path(run_dir, rank, WORK);
            if !path.exists() {
                let message = format!("{}: not found; run the pipeline with `--set train.trace=true`", path.display());
                return Err(Error::Input(message));
            }
            trace_file::read(&path)
        };
        (0..processes).map(read).collect()
    }
}
