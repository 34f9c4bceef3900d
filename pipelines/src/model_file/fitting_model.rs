//! A trained model that computes the results of a dataset.

use std::path::{Path, PathBuf};

use gnnflow_data::dataset::{LabelEncoding, LabelInfo, Manifest};
use gnnflow_data::format::hex;
use gnnflow_nn::params::Param;
use safetensors::tensor::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use super::trained_on::TrainingData;
use super::{check_rows, numbers, open, parse, refused};
use crate::config::{Infer, Task};
use crate::error::Error;

/// What happens to nodes that a model with learned rows has not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unseen {
    /// The dataset is refused.
    #[default]
    Refuse,
    /// Their rows are 0.
    Zero,
    /// Their rows are the means of those of their in-neighbors that the model has seen; 0 without such neighbors.
    Mean,
}

/// A model that fits a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittingModel {
    /// The run folder that has the model.
    pub run: PathBuf,
    /// The SHA-256 of its file.
    pub sha256: String,
    /// The labels of nodes or, for tasks on edges, of edges that it has learned, without counts.
    pub labels: Option<LabelInfo>,
    /// Whether it was trained on the dataset.
    pub trained_on_dataset: bool,
    /// What happens to nodes without a learned row.
    pub unseen: Unseen,
}

impl FittingModel {
    /// Opens the model of the run folder `run` for a pipeline with this task and dataset. The dataset may have no labels. Nodes without a learned row are
    /// refused.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no model, it is damaged, or it was trained on other columns or classes.
    pub fn open(run: &Path, task: Task, dataset: &Manifest) -> Result<Self, Error> {
        let (path, bytes) = open(run)?;
        let (_, model) = parse(&path, &bytes)?;
        let data = TrainingData::of(dataset);
        data.fits(&model.data, task).map_err(|message| refused(&path, &message))?;
        check_rows(run, &model)?;
        Ok(Self {
            run: run.to_owned(),
            sha256: hex(&Sha256::digest(&bytes)),
            labels: model.data.labels(task).map(LabelEncoding::info),
            trained_on_dataset: data.is_same_dataset(&model.data),
            unseen: Unseen::Refuse,
        })
    }

    /// Checks that the dataset has results for `infer`.
    ///
    /// # Errors
    /// [`Error::Usage`] if predictions of links are wanted, and no edge is held out.
    pub fn check_results(&self, task: Task, infer: &Infer, dataset: &Manifest) -> Result<(), Error> {
        let nothing = !infer.embeddings && infer.recommendations.is_none();
        if task == Task::LinkPrediction && nothing && self.has_no_splits(dataset) {
            let message = format!(
                "{}: the model predicts held-out edges, and no edge is held out: the dataset is not that of the run, or has changed since, and has no split column \
                 (graph.columns.edge_split); compute embeddings or recommendations, as in --set infer.embeddings=true",
                self.run.display()
            );
            return Err(Error::Usage(message));
        }
        Ok(())
    }

    /// Returns whether no edge of the dataset is in a split: splits that were drawn for training are of the edges of that dataset only.
    pub(crate) fn has_no_splits(&self, dataset: &Manifest) -> bool {
        !self.trained_on_dataset && dataset.edge_columns.split.is_none()
    }

    /// Sets the values of `params`, which have the names and shapes of the model in the pipeline.
    ///
    /// # Errors
    /// [`Error::Input`] if the model is damaged or of another pipeline.
    pub(crate) fn read(&self, params: &mut [Param]) -> Result<(), Error> {
        let (path, bytes) = open(&self.run)?;
        let (tensors, _) = parse(&path, &bytes)?;
        fill(&tensors, params).map_err(|message| refused(&path, &message))
    }
}

/// Sets the values of all parameters.
fn fill(tensors: &SafeTensors<'_>, params: &mut [Param]) -> Result<(), String> {
    for Param { name, shape, values } in &mut *params {
        let tensor = tensors.tensor(name).map_err(|_| {
            format!("the model of pipeline.toml has the parameter {name:?}, which this file has not; they are of different runs; restore both from a copy of one run folder")
        })?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != &shape[..] {
            return Err(format!(
                "{name:?} has the shape {:?}, and the model of pipeline.toml has {shape:?}; they are of different runs; restore both from a copy of one run folder",
                tensor.shape()
            ));
        }
        *values = numbers(tensor.data());
    }
    match tensors.len() == params.len() {
        true => Ok(()),
        false => Err(format!(
            "the file has {} parameters, and the model of pipeline.toml has {}; they are of different runs; restore both from a copy of one run folder",
            tensors.len(),
            params.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest;
    use super::super::tests::{file, param};
    use super::*;

    #[test]
    fn parameters_of_another_model_are_refused() {
        let written = [param("a", &[2, 3], 1.5), param("b", &[3], -0.0)];
        let bytes = file(&written);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut params = [param("a", &[2, 3], 0.0), param("b", &[3], 0.0)];
        fill(&tensors, &mut params).unwrap();
        assert_eq!(digest(&params), digest(&written));
        for (mut params, words) in [
            (vec![param("a", &[2, 3], 0.0), param("c", &[3], 0.0)], "\"c\""),
            (vec![param("a", &[3, 2], 0.0), param("b", &[3], 0.0)], "has the shape [2, 3]"),
            (vec![param("a", &[2, 3], 0.0)], "the file has 2 parameters"),
        ] {
            let why = fill(&tensors, &mut params).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
