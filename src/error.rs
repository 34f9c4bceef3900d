//! What ends the program other than success.

use crate::cluster::{ClusterError, Failure};

/// What can end a command. Its text is one line for each thing that is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the pipeline file to the trained model.
    #[error(transparent)]
    Pipeline(#[from] gnnflow_pipelines::Error),
    /// Between processes.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl Error {
    /// The program's exit code: 2 usage, 3 input, 4 machine, 5 cluster, 70 our bug, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Pipeline(error) => error.exit_code(),
            Self::Cluster(error) => error.exit_code(),
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
