//! `model.safetensors`: the parameters of a trained model by name, and what it learned from which data.
//!
//! [`FittingModel`] is a model that computes the results of a dataset as it is; [`WarmStart`] one from which training on a dataset starts.

mod description;
pub(crate) mod encode_like;
mod fitting_model;
pub(crate) mod optimizer_file;
mod trained_on;
mod warm_start;

use std::path::{Path, PathBuf};

use gnnflow_data::dataset::Manifest;
use gnnflow_data::format::hex;
use gnnflow_nn::ModelSpec;
use gnnflow_nn::params::Param;
use safetensors::tensor::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use self::trained_on::{RowsFile, SCHEMA, TrainedOn, TrainingData};
use crate::checkpoint::tensor_file::{self, Tensor};
use crate::config::Task;
use crate::error::Error;
use crate::outputs::run_folder::{MODEL, NODE_EMBEDDINGS};

pub use self::description::ModelDescription;
pub use self::fitting_model::{FittingModel, Unseen};
pub(crate) use self::trained_on::{Provenance, ValidationMetric};
pub use self::warm_start::WarmStart;

/// Returns the SHA-256 of names, shapes and values.
pub(crate) fn digest(params: &[Param]) -> String {
    let mut hash = Sha256::new();
    for Param { name, shape, values } in params {
        hash.update(format!("{name} {shape:?}\n"));
        hash.update(bytemuck::cast_slice::<f32, u8>(values));
    }
    hex(&hash.finalize())
}

/// What a model file says about its parameters.
pub(crate) struct Description<'a> {
    pub(crate) task: Task,
    /// The layers.
    pub(crate) model: ModelSpec,
    pub(crate) dataset: &'a Manifest,
    pub(crate) provenance: Provenance,
    /// Whether the model has a learned row for each node. Their file is in the folder already.
    pub(crate) learned_rows: bool,
}

/// Writes all parameters by name, and their description.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(params: &[Param], description: Description<'_>, folder: &Path) -> Result<(), Error> {
    let Description { task, model, dataset, provenance, learned_rows } = description;
    let rows = learned_rows.then(|| RowsFile::of(&folder.join(NODE_EMBEDDINGS))).transpose()?;
    let trained_on = TrainedOn { schema: SCHEMA, task, model, data: TrainingData::of(dataset), rows, provenance };
    let content = serde_json::to_string(&trained_on).map_err(|error| Error::Bug(error.to_string()))?;
    tensor_file::write(&folder.join(MODEL), Some(&content), params.iter().map(tensor).collect())
}

fn tensor(param: &Param) -> Tensor<'_> {
    let Param { name, shape, values } = param;
    Tensor { name: name.clone(), dtype: Dtype::F32, shape: shape.clone(), bytes: bytemuck::cast_slice(values) }
}

fn refused(path: &Path, message: &str) -> Error {
    Error::Input(format!("{}: {message}", path.display()))
}

/// Returns the file in the run folder `run`, and its bytes.
fn open(run: &Path) -> Result<(PathBuf, Vec<u8>), Error> {
    let path = run.join(MODEL);
    if !path.exists() {
        let message = format!(
            "{} has no {MODEL}; name the folder of a finished run, or let the run finish, with --resume",
            run.display()
        );
        return Err(Error::Input(message));
    }
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    Ok((path, bytes))
}

/// Returns the parameters of a file, and the description of the model.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(SafeTensors<'a>, TrainedOn), Error> {
    let (tensors, content) = tensor_file::parse(bytes).map_err(|reason| {
        refused(
            path,
            &format!(
                "the model {reason}; restore it from a copy, or run the pipeline again with --resume, or train it again"
            ),
        )
    })?;
    let other_version = |what: String| refused(path, &format!("{what}; train it again, or use that version"));
    let value: serde_json::Value = serde_json::from_str(&content)
        .map_err(|error| other_version(format!("the model is of another version of gnnflow: {error}")))?;
    let schema = value["schema"].as_u64();
    if schema != Some(SCHEMA.into()) {
        let schema = schema.map_or("no schema".to_owned(), |schema| format!("schema {schema}"));
        return Err(other_version(format!("the model has {schema}, and this version of gnnflow reads {SCHEMA}")));
    }
    let model = serde_json::from_value(value)
        .map_err(|error| other_version(format!("the model is of another version of gnnflow: {error}")))?;
    Ok((tensors, model))
}

/// Checks that the learned rows in the run folder `run` belong to the model.
fn check_rows(run: &Path, model: &TrainedOn) -> Result<(), Error> {
    let Some(rows) = &model.rows else { return Ok(()) };
    let path = run.join(NODE_EMBEDDINGS);
    if RowsFile::of(&path)? != *rows {
        let message =
            format!("these are not the learned rows of {MODEL} beside it; restore them from a copy of the run folder");
        return Err(refused(&path, &message));
    }
    Ok(())
}

/// Returns the numbers of a file's tensor. They may not be aligned.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn param(name: &str, shape: &[usize], value: f32) -> Param {
        Param { name: name.into(), shape: shape.to_vec(), values: vec![value; shape.iter().product()] }
    }

    /// Returns the bytes of a file with these parameters.
    pub(super) fn file(params: &[Param]) -> Vec<u8> {
        let tensors = params.iter().map(|Param { name, shape, values }| {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            (name.clone(), safetensors::tensor::TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(tensors, None).unwrap()
    }
}
