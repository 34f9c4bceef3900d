//! Replaces tensor workers in a build without the cargo feature `tensor-workers`. All uses are errors that name the feature.

use std::sync::Arc;

use gnnflow_pipelines::executor::ExecutorFactory;
use gnnflow_pipelines::{Config, Error as PipelineError};

use crate::cluster::Secret;
use crate::console::Console;
use crate::error::Error;

/// The error of everything that needs the feature.
pub(crate) const ABSENT: &str =
    "this build of gnnflow has no tensor workers; build it with the cargo feature `tensor-workers`";

/// Checks that a pipeline has no tensor workers.
///
/// # Errors
/// If the pipeline has tensor workers.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    match config.train.as_ref().and_then(|train| train.tensor_workers.as_ref()) {
        Some(_) => Err(config.problem("train.tensor_workers", ABSENT).into()),
        None => Ok(()),
    }
}

/// Tensor workers of a pipeline: none, since [`check`] has refused them.
pub(crate) enum TensorWorkers {}

impl TensorWorkers {
    /// Returns `None`.
    ///
    /// # Errors
    /// As [`check`].
    pub(crate) fn new(
        config: &Config,
        _: Option<Secret>,
        _: Option<String>,
        _: bool,
        _: usize,
    ) -> Result<Option<Self>, Error> {
        check(config).map(|()| None)
    }

    /// Is never called.
    pub(crate) fn factory(&self, _: Console) -> Result<Arc<dyn ExecutorFactory>, PipelineError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_of_a_pipeline_with_tensor_workers_names_the_feature() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.toml");
        let text = "[graph]\ngenerate = { kind = 'planted', nodes = 10, classes = 2 }\n[partition]\nparts = 1\n\
                    [model]\nkind = 'gcn'\n[train]\nschedule = 'full-graph'\n";
        let load = |more: &str| {
            std::fs::write(&file, format!("{text}{more}")).unwrap();
            Config::load(&file, &[], &gnnflow_pipelines::Registry::default().names()).unwrap()
        };
        check(&load("")).unwrap();
        let error = check(&load("[train.tensor_workers]\nworkers = 1\n")).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("`tensor-workers`"), "{error}");
    }
}
