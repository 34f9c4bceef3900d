//! The error type of this crate, and the classification of errors.

mod did_you_mean;
mod problem;

pub(crate) use did_you_mean::{did_you_mean, own_word};
pub use gnnflow_data::Fault;
use gnnflow_data::error::remedy;
use gnnflow_dataflow::storage::Busy;
pub(crate) use problem::Location;
pub use problem::{Problem, Problems};
use std::fmt;
use std::path::{Path, PathBuf};

/// What makes a run take less memory of a GPU.
pub(crate) const LESS_GPU_MEMORY: &str = "use a smaller model.hidden, smaller batches (train.batch and train.fanouts, or infer.batch in inference), \
    a smaller train.window or train.schedule.device_cache, no train.schedule.device_sampling, more train.schedule.intervals, train.schedule = \"mini-batch\" instead of all rows of all layers, or train.device = \"cpu\"";

/// Any error of this crate. Each prints as one line, [`Error::Config`] as one line per problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pipeline file, or a `--set`, is wrong.
    #[error("{0}")]
    Config(#[from] Problems),
    /// The dump or the prepared dataset is wrong.
    #[error(transparent)]
    Data(#[from] gnnflow_data::Error),
    /// A layer, a model or a device fails.
    #[error(transparent)]
    Compute(gnnflow_nn::Error),
    /// The command line is wrong, or the settings are not possible.
    #[error("{0}")]
    Usage(String),
    /// The user's data does not fit the pipeline.
    #[error("{0}")]
    Input(String),
    /// The content of a checkpoint is not what was written.
    #[error("checkpoint {}: {reason}; restore the checkpoints folder from an older copy, or leave --resume out to start anew", path.display())]
    DamagedCheckpoint {
        /// Its file.
        path: PathBuf,
        /// How this was found.
        reason: String,
    },
    /// A checkpoint belongs to another model or version.
    #[error("checkpoint {}: {message}", path.display())]
    Checkpoint {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A call of the operating system fails.
    #[error("cannot {action} {}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The failed action, as in "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// This machine lacks something: a device, memory, a port.
    #[error("{0}")]
    Machine(String),
    /// Another process is lost, or refuses this one.
    #[error("{0}")]
    Cluster(String),
    /// The process received SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// A process of the run has received SIGINT or SIGTERM. The checkpoint has the state after these epochs and steps.
    #[error("stopped by a signal after {0}; the checkpoint has this state: continue with --resume")]
    Stopped(String),
    /// A lost process of the run has returned. The checkpoint has the state after these epochs and steps, and all processes start again.
    #[error("a lost process has returned; the run starts again after {0}, from the checkpoint")]
    Rejoin(String),
    /// A bug in gnnflow.
    #[error("bug in gnnflow: {0}; please report it")]
    Bug(String),
}

impl From<gnnflow_nn::Error> for Error {
    fn from(error: gnnflow_nn::Error) -> Self {
        match error {
            gnnflow_nn::Error::OutOfMemory => Self::Machine(format!("the GPU has no memory left; {LESS_GPU_MEMORY}")),
            other => Self::Compute(other),
        }
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Self::Bug(busy.to_string())
    }
}

impl Error {
    /// Returns a function for `map_err` on results of the operating system.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.as_ref().to_owned(), source }
    }

    /// Adds where training found a number that is not finite, and what to do. Other errors stay as they are.
    pub(crate) fn at(self, place: fmt::Arguments<'_>) -> Self {
        match self {
            Self::Compute(error @ gnnflow_nn::Error::NotFinite(_)) => Self::Input(format!(
                "{place}: {error}; lower train.optimizer.lr, set train.clip_norm, or scale the features (graph.normalize_features)"
            )),
            other => other,
        }
    }

    /// Returns the class of the error; `None` if the run was interrupted or pauses.
    pub fn fault(&self) -> Option<Fault> {
        Some(match self {
            Self::Data(error) => error.fault(),
            Self::Compute(error) => compute_fault(error),
            Self::Config(_) | Self::Usage(_) => Fault::Usage,
            Self::Input(_) | Self::Checkpoint { .. } | Self::DamagedCheckpoint { .. } => Fault::Input,
            // The system has read the file; its content is wrong.
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::InvalidData => Fault::Input,
            Self::Io { .. } | Self::Machine(_) => Fault::Machine,
            Self::Cluster(_) => Fault::Cluster,
            Self::Bug(_) => Fault::Bug,
            Self::Interrupted | Self::Stopped(_) | Self::Rejoin(_) => return None,
        })
    }

    /// Returns the program's exit code: 2 usage, 3 input, 4 machine, 5 cluster, 70 bug, [`REJOIN`], 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rejoin(_) => REJOIN,
            _ => self.fault().map_or(130, Fault::exit_code),
        }
    }
}

/// Exit code of a process whose run starts again with a lost process that has returned. Only its supervisor sees it.
pub const REJOIN: u8 = 75;

fn compute_fault(error: &gnnflow_nn::Error) -> Fault {
    use gnnflow_nn::Error as Compute;
    match error {
        Compute::UnknownLayer { .. } | Compute::Spec { .. } => Fault::Usage,
        Compute::Input(_) | Compute::State { .. } | Compute::NotFinite(_) => Fault::Input,
        Compute::Device { .. } => Fault::Machine,
        _ => Fault::Bug,
    }
}
