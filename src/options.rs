//! Options and outcome of a run.

use crate::console::Console;
use crate::upload::Upload;
use gnnflow_pipelines::{Feed, InNeighbors, Registry, Scope, Summary, Unseen};
use std::path::PathBuf;

/// Options of a run that are not in the pipeline file.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Number of processes on this machine, from 1. Not with `hosts`.
    pub processes: usize,
    /// Hosts file of a run across machines.
    pub hosts: Option<PathBuf>,
    /// This process's line in `hosts`; `None` takes it from the environment.
    pub rank: Option<usize>,
    /// The run folder.
    pub run_dir: PathBuf,
    /// The upload of the results by all processes together, at the end. `None` for no upload, or for one by the caller.
    pub upload: Option<Upload>,
    /// Whether to train, or to compute results with the model of an earlier run.
    pub action: Action,
    /// Seconds that the preparation took, if the parent process has done it.
    pub prepare_seconds: Option<f64>,
    /// Shows progress.
    pub console: Console,
    /// The parts that the pipeline may name.
    pub registry: Registry,
}

impl RunOptions {
    /// Options of one silent process with the built-in parts.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self {
            processes: 1,
            hosts: None,
            rank: None,
            run_dir: run_dir.into(),
            upload: None,
            action: Action::Train { resume: false },
            prepare_seconds: None,
            console: Console::silent(),
            registry: Registry::default(),
        }
    }
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Prepares the dataset, trains and infers.
    Train {
        /// Whether to continue after the last complete checkpoint in the run folder.
        resume: bool,
    },
    /// Computes results with the model of an earlier run.
    Infer {
        /// The folder of that run.
        run: PathBuf,
        /// Which results are computed.
        scope: Scope,
        /// What happens to nodes without a learned row.
        unseen: Unseen,
        /// Which in-neighbors are read.
        neighbors: InNeighbors,
    },
    /// Computes what batches of changes change in the results of an earlier run.
    Follow {
        /// The folder of that run.
        run: PathBuf,
        /// The changes.
        feed: Feed,
    },
}

/// The result of a successful run.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The results, in a single process or rank 0.
    Done(Box<Summary>),
    /// Another process has the results. This one ends with this exit code: 0, unless a child process failed and printed its error.
    Elsewhere(u8),
}
