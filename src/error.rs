//! The error of a command.

use crate::cluster::{ClusterError, Failure};
use gnnflow_pipelines::REJOIN;

/// The error of a command. Its text has one line per problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in the pipeline file, the data or the computation.
    #[error(transparent)]
    Pipeline(#[from] gnnflow_pipelines::Error),
    /// An error between processes.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Error {
    /// Returns the exit code: 2 usage, 3 input, 4 machine, 5 cluster, 70 bug in gnnflow, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Pipeline(error) => error.exit_code(),
            Self::Cluster(error) => error.exit_code(),
        }
    }

    /// Whether the run pauses to take back a lost process. The supervisor prints the message.
    pub(crate) fn is_rejoin(&self) -> bool {
        match self {
            Self::Pipeline(error) => error.exit_code() == REJOIN,
            Self::Cluster(error) => error.is_rejoin(),
        }
    }
}

impl From<gnnflow_data::Error> for Error {
    fn from(error: gnnflow_data::Error) -> Self {
        Self::Pipeline(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.exit_code(), error.to_string())
    }
}
