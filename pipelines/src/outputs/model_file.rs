//! `model.safetensors`: the parameters of a trained model by name, and the description of the data that they fit.

use std::path::{Path, PathBuf};

use gnnflow_data::dataset::{InputFile, LabelInfo, LabelKind, Manifest, TypeInfo};
use gnnflow_data::format::{hex, plural};
use gnnflow_data::source::Normalize;
use gnnflow_nn::params::Param;
use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checkpoint::tensor_file::{self, Tensor};
use crate::error::Error;

/// Name of the file in a run folder.
pub(crate) const FILE: &str = "model.safetensors";
/// Version of [`TrainedOn`]. It increases when a field changes its meaning or is removed.
const SCHEMA: u32 = 1;

/// The data that a model was trained on. A model fits other datasets with the same columns and classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainedOn {
    /// [`SCHEMA`].
    schema: u32,
    /// The fingerprint of the dataset.
    dataset: String,
    /// Values per node.
    features: usize,
    /// The scaling of features.
    normalize: Normalize,
    /// The node files whose means and deviations scaled the features; empty if features are not scaled by column.
    scaled_by: Vec<InputFile>,
    /// Classes of nodes.
    labels: Option<Classes>,
    /// Types of edges.
    edge_types: Option<TypeInfo>,
    /// Values per edge.
    edge_features: usize,
    /// Classes of edges.
    edge_labels: Option<Classes>,
}

/// The classes of labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Classes {
    kind: LabelKind,
    count: u32,
    /// Names of the classes; empty if they are numbers.
    names: Vec<String>,
}

impl Classes {
    fn of(labels: &LabelInfo) -> Self {
        Self { kind: labels.kind, count: labels.classes, names: labels.names.clone() }
    }

    fn info(&self) -> LabelInfo {
        let Self { kind, count, names } = self.clone();
        let counts = if kind == LabelKind::Value { Vec::new() } else { vec![0; count as usize] };
        LabelInfo { kind, classes: count, names, labeled: 0, counts }
    }

    fn describe(classes: Option<&Self>) -> String {
        match classes {
            None => "no labels".into(),
            Some(Self { kind: LabelKind::Value, .. }) => "numbers as labels".into(),
            Some(Self { count, names, .. }) if names.is_empty() => plural(*count as usize, "class"),
            Some(Self { names, .. }) => format!("the classes {}", names.join(", ")),
        }
    }
}

impl TrainedOn {
    /// Describes a dataset.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let normalize = manifest.features.normalize;
        let nodes = manifest.inputs.iter().filter(|file| file.role == "nodes");
        Self {
            schema: SCHEMA,
            dataset: manifest.fingerprint.clone(),
            features: manifest.features.dim,
            normalize,
            scaled_by: if normalize == Normalize::Standard { nodes.cloned().collect() } else { Vec::new() },
            labels: manifest.labels.as_ref().map(Classes::of),
            edge_types: manifest.edge_columns.edge_type.clone(),
            edge_features: manifest.edge_columns.features,
            edge_labels: manifest.edge_columns.label.as_ref().map(Classes::of),
        }
    }

    /// Checks that a model fits a dataset, which `self` describes.
    ///
    /// # Errors
    /// The first difference, as "the model …, and the dataset …".
    fn fits(&self, model: &Self) -> Result<(), String> {
        let differ = |what: &str, model: String, dataset: String| {
            Err(format!("the model was trained on {what}{model}, and the dataset has {dataset}"))
        };
        if self.features != model.features {
            let features = |count: usize| plural(count, "feature");
            return differ("nodes with ", features(model.features), features(self.features));
        }
        if self.normalize != model.normalize {
            let scaling = |normalize: Normalize| format!("normalize = \"{normalize:?}\"").to_lowercase();
            return differ("features with ", scaling(model.normalize), scaling(self.normalize));
        }
        if self.scaled_by != model.scaled_by {
            return Err("features are scaled by the means and deviations of the dataset's own nodes, and the model was trained with those of \
                        other files; apply `gnnflow update` to the dataset of the model instead of preparing another one"
                .into());
        }
        let edge_types = |types: &Option<TypeInfo>| match types {
            None => "no edge types".to_owned(),
            Some(types) if types.names.is_empty() => plural(types.count as usize, "edge type"),
            Some(types) => format!("the edge types {}", types.names.join(", ")),
        };
        if self.edge_types != model.edge_types {
            return differ("", edge_types(&model.edge_types), edge_types(&self.edge_types));
        }
        if self.edge_features != model.edge_features {
            let features = |count: usize| plural(count, "edge feature");
            return differ("", features(model.edge_features), features(self.edge_features));
        }
        for (what, own, of_model) in
            [("nodes with ", &self.labels, &model.labels), ("edges with ", &self.edge_labels, &model.edge_labels)]
        {
            // Results need no labels.
            if own.is_some() && own != of_model {
                return differ(what, Classes::describe(of_model.as_ref()), Classes::describe(own.as_ref()));
            }
        }
        Ok(())
    }
}

/// Returns the SHA-256 of names, shapes and values.
pub(crate) fn digest(params: &[Param]) -> String {
    let mut hash = Sha256::new();
    for Param { name, shape, values } in params {
        hash.update(format!("{name} {shape:?}\n"));
        hash.update(bytemuck::cast_slice::<f32, u8>(values));
    }
    hex(&hash.finalize())
}

/// Writes all parameters by name.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(params: &[Param], manifest: &Manifest, folder: &Path) -> Result<(), Error> {
    let content = serde_json::to_string(&TrainedOn::of(manifest)).map_err(|error| Error::Bug(error.to_string()))?;
    tensor_file::write(&folder.join(FILE), Some(&content), params.iter().map(tensor).collect())
}

fn tensor(param: &Param) -> Tensor<'_> {
    let Param { name, shape, values } = param;
    Tensor { name: name.clone(), dtype: Dtype::F32, shape: shape.clone(), bytes: bytemuck::cast_slice(values) }
}

/// Checks that the model of the run folder `run` fits a dataset, which may have no labels. Returns the labels of nodes that the model has learned, without counts.
///
/// # Errors
/// [`Error::Input`] if there is no model, it is damaged, or it was trained on other columns or classes.
pub fn labels_of_model(run: &Path, dataset: &Manifest) -> Result<Option<LabelInfo>, Error> {
    let (path, bytes) = open(run)?;
    let (_, model) = parse(&path, &bytes)?;
    TrainedOn::of(dataset).fits(&model).map_err(|message| refused(&path, &message))?;
    Ok(model.labels.as_ref().map(Classes::info))
}

/// Reads the model in the run folder `run`. Sets the values of `params`, which have the names and shapes of the model in the pipeline.
///
/// # Errors
/// [`Error::Input`] if there is no model, or it is damaged or of another pipeline.
pub(crate) fn read(run: &Path, params: &mut [Param]) -> Result<(), Error> {
    let (path, bytes) = open(run)?;
    let (tensors, _) = parse(&path, &bytes)?;
    fill(&tensors, params).map_err(|message| refused(&path, &message))
}

fn refused(path: &Path, message: &str) -> Error {
    Error::Input(format!("{}: {message}", path.display()))
}

/// Returns the file in the run folder `run`, and its bytes.
fn open(run: &Path) -> Result<(PathBuf, Vec<u8>), Error> {
    let path = run.join(FILE);
    if !path.exists() {
        let message =
            format!("{} has no {FILE}: its run has not finished; let it finish, with --resume", run.display());
        return Err(Error::Input(message));
    }
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    Ok((path, bytes))
}

/// Returns the parameters of a file, and the data that they fit.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(SafeTensors<'a>, TrainedOn), Error> {
    let (tensors, content) = tensor_file::parse(bytes)
        .map_err(|reason| refused(path, &format!("the model {reason}; restore it from a copy, or train it again")))?;
    let model: TrainedOn = serde_json::from_str(&content).map_err(|error| {
        refused(path, &format!("the model is of another version of gnnflow: {error}; train it again"))
    })?;
    if model.schema != SCHEMA {
        let message = format!(
            "the model has schema {}, and this version of gnnflow reads {SCHEMA}; train it again",
            model.schema
        );
        return Err(refused(path, &message));
    }
    Ok((tensors, model))
}

/// Sets the values of all parameters.
fn fill(tensors: &SafeTensors<'_>, params: &mut [Param]) -> Result<(), String> {
    for Param { name, shape, values } in &mut *params {
        let tensor = tensors.tensor(name).map_err(|_| {
            format!("the model of pipeline.toml has the parameter {name:?}, which this file has not; they are of different runs")
        })?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != &shape[..] {
            return Err(format!(
                "{name:?} has the shape {:?}, and the model of pipeline.toml has {shape:?}; they are of different runs",
                tensor.shape()
            ));
        }
        *values = tensor.data().chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    }
    match tensors.len() == params.len() {
        true => Ok(()),
        false => Err(format!(
            "the file has {} parameters, and the model of pipeline.toml has {}; they are of different runs",
            tensors.len(),
            params.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> TrainedOn {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        TrainedOn {
            schema: SCHEMA,
            dataset: "d".into(),
            features: 3,
            normalize: Normalize::Standard,
            scaled_by: Vec::new(),
            labels: Some(Classes { kind: LabelKind::Class, count: 2, names: names(&["cat", "dog"]) }),
            edge_types: None,
            edge_features: 0,
            edge_labels: None,
        }
    }

    #[test]
    fn first_difference_is_named() {
        let model = described();
        assert_eq!(TrainedOn { dataset: "other".into(), labels: None, ..described() }.fits(&model), Ok(()));
        let file = InputFile {
            role: "nodes".into(),
            name: "nodes.parquet".into(),
            row_type: None,
            bytes: 1,
            digest: "1".into(),
        };
        let classes = |count, names: &[&str]| {
            let names = names.iter().map(ToString::to_string).collect();
            Some(Classes { kind: LabelKind::Class, count, names })
        };
        let types = Some(TypeInfo { count: 2, names: Vec::new() });
        for (dataset, words) in [
            (TrainedOn { features: 4, ..described() }, "nodes with 3 features, and the dataset has 4 features"),
            (
                TrainedOn { normalize: Normalize::None, ..described() },
                "normalize = \"standard\", and the dataset has normalize = \"none\"",
            ),
            (TrainedOn { scaled_by: vec![file], ..described() }, "gnnflow update"),
            (TrainedOn { edge_types: types, ..described() }, "no edge types, and the dataset has 2 edge types"),
            (TrainedOn { edge_features: 1, ..described() }, "0 edge features, and the dataset has 1 edge feature"),
            (TrainedOn { labels: classes(2, &["dog", "cat"]), ..described() }, "the dataset has the classes dog, cat"),
            (
                TrainedOn { edge_labels: classes(3, &[]), ..described() },
                "edges with no labels, and the dataset has 3 classes",
            ),
        ] {
            let why = dataset.fits(&model).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn parameters_of_another_model_are_refused() {
        let param = |name: &str, shape: &[usize], value: f32| Param {
            name: name.into(),
            shape: shape.to_vec(),
            values: vec![value; shape.iter().product()],
        };
        let written = [param("a", &[2, 3], 1.5), param("b", &[3], -0.0)];
        let tensors = written.iter().map(|Param { name, shape, values }| {
            let bytes: &[u8] = bytemuck::cast_slice(values);
            (name.clone(), safetensors::tensor::TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(tensors, None).unwrap();
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
