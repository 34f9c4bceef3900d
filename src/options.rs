//! What a run is told on the command line, and what it leaves.

use crate::console::Console;
use gnnflow_pipelines::{Registry, Summary};
use std::path::PathBuf;

/// How and where to run a pipeline: everything that is not in its file.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Processes on this machine; 1 unless asked for more. Not with `hosts`.
    pub processes: usize,
    /// The file that lists every process of a run across machines.
    pub hosts: Option<PathBuf>,
    /// This process's line in `hosts`; otherwise the environment says it.
    pub rank: Option<usize>,
    /// The run folder.
    pub run_dir: PathBuf,
    /// Go on after the last whole checkpoint in the run folder.
    pub resume: bool,
    /// Seconds that preparing took, where a parent process has done it.
    pub prepare_seconds: Option<f64>,
    /// Where progress is shown.
    pub console: Console,
    /// What the pipeline may call by name.
    pub registry: Registry,
}

impl RunOptions {
    /// One process, quiet, with what is built in.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self {
            processes: 1,
            hosts: None,
            rank: None,
            run_dir: run_dir.into(),
            resume: false,
            prepare_seconds: None,
            console: Console::silent(),
            registry: Registry::default(),
        }
    }
}

/// How a run ended well.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// This process has the results: the only one, or rank 0.
    Done(Box<Summary>),
    /// Another process has them; this one ends with this exit code (0, unless a process that it started failed and said why).
    Elsewhere(u8),
}
