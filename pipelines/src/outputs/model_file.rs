//! `model.safetensors`: the parameters of a trained model by name, and the description of the data that they fit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gnnflow_data::dataset::{Cleaning, FeatureInfo, InputFile, LabelInfo, LabelKind, Manifest, TypeInfo};
use gnnflow_data::format::{hex, plural};
use gnnflow_data::source::Normalize;
use gnnflow_nn::params::Param;
use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::checkpoint::tensor_file::{self, Tensor};
use crate::config::Task;
use crate::error::Error;
use crate::outputs::run_folder::{MODEL, NODE_EMBEDDINGS};

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
    /// The files whose means and deviations scaled the features; empty if features are not scaled by column.
    scaled_by: Vec<InputFile>,
    /// Classes of nodes.
    labels: Option<Classes>,
    /// Types of edges.
    edge_types: Option<TypeInfo>,
    /// Values per edge.
    edge_features: usize,
    /// The settings of `[graph]` that decide which edges a node has, by key.
    edges: BTreeMap<String, Value>,
    /// The file of learned rows, if the model has them.
    rows: Option<RowsFile>,
}

/// Settings of `[graph]` that decide which edges a node has.
const EDGE_SETTINGS: [&str; 3] = ["undirected", "reverse_edges", "self_loops"];

/// Identifies the file of learned rows that belongs to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RowsFile {
    bytes: u64,
    /// SHA-256 of its last bytes, which have the offsets and the bounds of all columns.
    end_sha256: String,
}

/// The number of bytes that [`RowsFile`] hashes.
const END: u64 = 64 << 10;

impl RowsFile {
    fn of(path: &Path) -> Result<Self, Error> {
        let read = || {
            let mut file = File::open(path)?;
            let bytes = file.metadata()?.len();
            file.seek(SeekFrom::Start(bytes.saturating_sub(END)))?;
            let mut end = Vec::new();
            file.read_to_end(&mut end)?;
            Ok(Self { bytes, end_sha256: hex(&Sha256::digest(&end)) })
        };
        read().map_err(Error::io("read", path))
    }
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

    /// Returns whether labels of a dataset, `self`, are classes of a model. Of classes that are numbers, the dataset may lack the largest ones.
    fn are_of(&self, model: &Self) -> bool {
        let numbers = self.kind == LabelKind::Class && self.names.is_empty() && model.names.is_empty();
        self == model || self.kind == model.kind && numbers && self.count <= model.count
    }

    fn describe(classes: Option<&Self>) -> String {
        match classes {
            None => "no labels".into(),
            Some(Self { kind: LabelKind::Value, .. }) => "numbers as labels".into(),
            Some(Self { kind, count, names }) => {
                let lists = if *kind == LabelKind::Multi { "lists of " } else { "" };
                match names.is_empty() {
                    true => format!("{lists}{}", plural(*count as usize, "class")),
                    false => format!("{lists}the classes {}", names.join(", ")),
                }
            }
        }
    }
}

impl TrainedOn {
    /// Describes a dataset.
    fn of(manifest: &Manifest) -> Self {
        let FeatureInfo { dim, normalize, .. } = manifest.features;
        // Which nodes remain after cleaning depends on the edges.
        let cleaned = manifest.cleaning != Cleaning::default();
        let scaling =
            |file: &&InputFile| dim > 0 && normalize == Normalize::Standard && (cleaned || file.role == "nodes");
        let setting = |key: &str| Some((key.to_owned(), manifest.settings.get("graph")?.get(key)?.clone()));
        Self {
            schema: SCHEMA,
            dataset: manifest.fingerprint.clone(),
            features: dim,
            normalize,
            scaled_by: manifest.inputs.iter().filter(scaling).cloned().collect(),
            labels: manifest.labels.as_ref().map(Classes::of),
            edge_types: manifest.edge_columns.edge_type.clone(),
            edge_features: manifest.edge_columns.features,
            edges: EDGE_SETTINGS.into_iter().filter_map(setting).collect(),
            rows: None,
        }
    }

    /// Checks that a model for `task` fits a dataset, which `self` describes.
    ///
    /// # Errors
    /// The first difference, as "the model …, and the dataset …".
    fn fits(&self, model: &Self, task: Task) -> Result<(), String> {
        let differ = |what: &str, model: String, dataset: String| {
            Err(format!(
                "the model was trained on {what}{model}, and the dataset has {dataset}; prepare it with the columns and settings of the run's, or \
                 train a model on it"
            ))
        };
        let predicts_edges = task.learns_edges();
        if predicts_edges && self.dataset != model.dataset {
            return Err("the model predicts edges, so it can be evaluated only on the dataset of its run: another dataset has other held-out edges; \
                        to predict its edges, train a model on it"
                .into());
        }
        if self.features != model.features {
            let features = |count: usize| plural(count, "feature");
            return differ("nodes with ", features(model.features), features(self.features));
        }
        if self.normalize != model.normalize {
            let scaling = |normalize: Normalize| format!("normalize_features = \"{normalize:?}\"").to_lowercase();
            return differ("features with ", scaling(model.normalize), scaling(self.normalize));
        }
        if self.scaled_by != model.scaled_by {
            return Err("features are scaled by the means and deviations of the dataset's own nodes, and the model was trained with those of \
                        other files; change edges with `gnnflow update` of the model's dataset; with new nodes, train a model on this dataset"
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
        for key in EDGE_SETTINGS {
            let [own, of_model] = [&self.edges, &model.edges].map(|edges| edges.get(key));
            if own != of_model {
                let show = |value: Option<&Value>| format!("graph.{key} = {}", value.unwrap_or(&Value::Bool(false)));
                return differ("a graph with ", show(of_model), show(own));
            }
        }
        match (&self.labels, &model.labels) {
            (Some(own), Some(of_model)) if !predicts_edges && !own.are_of(of_model) => {
                differ("nodes with ", Classes::describe(Some(of_model)), Classes::describe(Some(own)))
            }
            _ => Ok(()),
        }
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

/// Writes all parameters by name. With `learned_rows`, their file is already in `folder`.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write(params: &[Param], manifest: &Manifest, folder: &Path, learned_rows: bool) -> Result<(), Error> {
    let rows = learned_rows.then(|| RowsFile::of(&folder.join(NODE_EMBEDDINGS))).transpose()?;
    let trained_on = TrainedOn { rows, ..TrainedOn::of(manifest) };
    let content = serde_json::to_string(&trained_on).map_err(|error| Error::Bug(error.to_string()))?;
    tensor_file::write(&folder.join(MODEL), Some(&content), params.iter().map(tensor).collect())
}

fn tensor(param: &Param) -> Tensor<'_> {
    let Param { name, shape, values } = param;
    Tensor { name: name.clone(), dtype: Dtype::F32, shape: shape.clone(), bytes: bytemuck::cast_slice(values) }
}

/// A model that fits a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittingModel {
    /// The run folder that has the model.
    pub run: PathBuf,
    /// The SHA-256 of its file.
    pub sha256: String,
    /// The labels of nodes that it has learned, without counts.
    pub labels: Option<LabelInfo>,
}

impl FittingModel {
    /// Opens the model of the run folder `run` for a pipeline with this task and dataset. The dataset may have no labels.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no model, it is damaged, or it was trained on other columns or classes.
    pub fn open(run: &Path, task: Task, dataset: &Manifest) -> Result<Self, Error> {
        let (path, bytes) = open(run)?;
        let (_, model) = parse(&path, &bytes)?;
        TrainedOn::of(dataset).fits(&model, task).map_err(|message| refused(&path, &message))?;
        if let Some(rows) = &model.rows {
            let of_rows = run.join(NODE_EMBEDDINGS);
            if RowsFile::of(&of_rows)? != *rows {
                let message = format!(
                    "these are not the learned rows of {MODEL} beside it; restore them from a copy of the run folder"
                );
                return Err(refused(&of_rows, &message));
            }
        }
        let labels = model.labels.as_ref().map(Classes::info);
        Ok(Self { run: run.to_owned(), sha256: hex(&Sha256::digest(&bytes)), labels })
    }
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
    let path = run.join(MODEL);
    if !path.exists() {
        let message =
            format!("{} has no {MODEL}: its run has not finished; let it finish, with --resume", run.display());
        return Err(Error::Input(message));
    }
    let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
    Ok((path, bytes))
}

/// Returns the parameters of a file, and the data that they fit.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(SafeTensors<'a>, TrainedOn), Error> {
    let (tensors, content) = tensor_file::parse(bytes).map_err(|reason| {
        refused(
            path,
            &format!(
                "the model {reason}; restore it from a copy, or run the pipeline again with --resume, or train it again"
            ),
        )
    })?;
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
            format!("the model of pipeline.toml has the parameter {name:?}, which this file has not; they are of different runs; restore both from a copy of one run folder")
        })?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != &shape[..] {
            return Err(format!(
                "{name:?} has the shape {:?}, and the model of pipeline.toml has {shape:?}; they are of different runs; restore both from a copy of one run folder",
                tensor.shape()
            ));
        }
        *values = tensor.data().chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
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
    use super::*;

    fn classes(count: u32, names: &[&str]) -> Option<Classes> {
        let names = names.iter().map(ToString::to_string).collect();
        Some(Classes { kind: LabelKind::Class, count, names })
    }

    fn described() -> TrainedOn {
        TrainedOn {
            schema: SCHEMA,
            dataset: "d".into(),
            features: 3,
            normalize: Normalize::Standard,
            scaled_by: Vec::new(),
            labels: classes(2, &["cat", "dog"]),
            edge_types: None,
            edge_features: 0,
            edges: [("undirected".to_owned(), true.into())].into(),
            rows: None,
        }
    }

    #[test]
    fn first_difference_is_named() {
        let (model, nodes) = (described(), Task::NodeClassification);
        let other = TrainedOn { dataset: "other".into(), ..described() };
        assert_eq!(TrainedOn { labels: None, ..other.clone() }.fits(&model, nodes), Ok(()));
        assert_eq!(described().fits(&model, Task::LinkPrediction), Ok(()));
        assert!(other.fits(&model, Task::LinkPrediction).unwrap_err().contains("only on the dataset of its run"));
        let file = InputFile {
            role: "nodes".into(),
            name: "nodes.parquet".into(),
            row_type: None,
            bytes: 1,
            digest: "1".into(),
        };
        let types = Some(TypeInfo { count: 2, names: Vec::new() });
        for (dataset, words) in [
            (TrainedOn { features: 4, ..described() }, "nodes with 3 features, and the dataset has 4 features"),
            (
                TrainedOn { normalize: Normalize::None, ..described() },
                "features = \"standard\", and the dataset has normalize_features = \"none\"",
            ),
            (TrainedOn { scaled_by: vec![file], ..described() }, "gnnflow update"),
            (TrainedOn { edge_types: types, ..described() }, "no edge types, and the dataset has 2 edge types"),
            (TrainedOn { edge_features: 1, ..described() }, "0 edge features, and the dataset has 1 edge feature"),
            (
                TrainedOn { edges: BTreeMap::new(), ..described() },
                "graph.undirected = true, and the dataset has graph.undirected = false",
            ),
            (TrainedOn { labels: classes(2, &["dog", "cat"]), ..described() }, "the dataset has the classes dog, cat"),
            (
                TrainedOn { labels: classes(2, &[]), ..described() },
                "the classes cat, dog, and the dataset has 2 classes",
            ),
        ] {
            let why = dataset.fits(&model, nodes).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        // Numbers as classes.
        let model = TrainedOn { labels: classes(3, &[]), ..described() };
        let with = |count| TrainedOn { labels: classes(count, &[]), ..described() }.fits(&model, nodes);
        assert_eq!((with(0), with(3)), (Ok(()), Ok(())));
        assert!(with(4).unwrap_err().contains("3 classes, and the dataset has 4 classes"));
    }

    #[test]
    fn rows_of_another_run_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NODE_EMBEDDINGS);
        let of = |bytes: Vec<u8>| {
            std::fs::write(&path, bytes).unwrap();
            RowsFile::of(&path).unwrap()
        };
        let (len, mut other) = (END as usize + 5, vec![0; END as usize + 5]);
        other[len - 1] = 1;
        let first = of(vec![0; len]);
        assert_eq!(first.bytes, END + 5);
        assert!(first != of(other) && first != of(vec![0; len - 1]) && first == of(vec![0; len]));
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
