//! The description of a trained model: its task, its layers, and the data that its parameters fit.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use gnnflow_data::dataset::{Cleaning, FeatureInfo, InputFile, LabelInfo, LabelKind, Manifest, TypeInfo};
use gnnflow_data::format::{hex, plural};
use gnnflow_data::source::Normalize;
use gnnflow_nn::ModelSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::Task;
use crate::error::Error;

/// Version of [`TrainedOn`]. It increases when a field is added without a default, changes its meaning or is removed.
pub(super) const SCHEMA: u32 = 2;

/// What a model learned, and from which data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainedOn {
    /// [`SCHEMA`].
    pub(super) schema: u32,
    pub(super) task: Task,
    /// The layers.
    pub(super) model: ModelSpec,
    pub(super) data: TrainingData,
    /// The file of learned rows, if the model has them.
    pub(super) rows: Option<RowsFile>,
}

impl TrainedOn {
    pub(crate) fn new(task: Task, model: ModelSpec, dataset: &Manifest, rows: Option<RowsFile>) -> Self {
        Self { schema: SCHEMA, task, model, data: TrainingData::of(dataset), rows }
    }
}

/// The data of a dataset that parameters depend on. A model fits other datasets with the same columns and classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TrainingData {
    /// The fingerprint of the dataset.
    dataset: String,
    /// Values per node.
    features: usize,
    /// The scaling of features.
    normalize: Normalize,
    /// The files whose means and deviations scaled the features; empty if features are not scaled by column.
    scaled_by: Vec<InputFile>,
    /// Classes of nodes.
    pub(super) labels: Option<Classes>,
    /// Types of edges.
    edge_types: Option<TypeInfo>,
    /// Values per edge.
    edge_features: usize,
    /// Classes of edges.
    pub(super) edge_labels: Option<Classes>,
    /// The settings of `[graph]` that decide which edges a node has, by key.
    edges: BTreeMap<String, Value>,
}

/// Settings of `[graph]` that decide which edges a node has.
const EDGE_SETTINGS: [&str; 3] = ["undirected", "reverse_edges", "self_loops"];

/// Identifies the file of learned rows that belongs to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowsFile {
    bytes: u64,
    /// SHA-256 of its last bytes, which have the offsets and the bounds of all columns.
    end_sha256: String,
}

/// The number of bytes that [`RowsFile`] hashes.
const END: u64 = 64 << 10;

impl RowsFile {
    pub(super) fn of(path: &Path) -> Result<Self, Error> {
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
pub(super) struct Classes {
    pub(super) kind: LabelKind,
    pub(super) count: u32,
    /// Names of the classes; empty if they are numbers.
    pub(super) names: Vec<String>,
}

impl Classes {
    fn of(labels: &LabelInfo) -> Self {
        Self { kind: labels.kind, count: labels.classes, names: labels.names.clone() }
    }

    pub(super) fn info(&self) -> LabelInfo {
        let Self { kind, count, names } = self.clone();
        let counts = if kind == LabelKind::Value { Vec::new() } else { vec![0; count as usize] };
        LabelInfo { kind, classes: count, names, labeled: 0, counts, lists: None }
    }

    /// Returns whether labels of a dataset, `self`, are classes of a model. Of classes that are numbers, the dataset may lack the largest ones.
    fn are_of(&self, model: &Self) -> bool {
        let numbers = self.kind == LabelKind::Class && self.names.is_empty() && model.names.is_empty();
        self == model || self.kind == model.kind && numbers && self.count <= model.count
    }

    pub(super) fn describe(classes: Option<&Self>) -> String {
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

impl TrainingData {
    /// Describes a dataset.
    pub(super) fn of(manifest: &Manifest) -> Self {
        let FeatureInfo { dim, normalize, .. } = manifest.features;
        // Which nodes remain after cleaning depends on the edges.
        let cleaned = manifest.cleaning != Cleaning::default();
        let scaling =
            |file: &&InputFile| dim > 0 && normalize == Normalize::Standard && (cleaned || file.role == "nodes");
        let setting = |key: &str| Some((key.to_owned(), manifest.settings.get("graph")?.get(key)?.clone()));
        Self {
            dataset: manifest.fingerprint.clone(),
            features: dim,
            normalize,
            scaled_by: manifest.inputs.iter().filter(scaling).cloned().collect(),
            labels: manifest.labels.as_ref().map(Classes::of),
            edge_types: manifest.edge_columns.edge_type.clone(),
            edge_features: manifest.edge_columns.features,
            edge_labels: manifest.edge_columns.label.as_ref().map(Classes::of),
            edges: EDGE_SETTINGS.into_iter().filter_map(setting).collect(),
        }
    }

    /// Checks that a model, trained on `of_model` for `task`, fits the dataset that `self` describes.
    ///
    /// # Errors
    /// The first difference, as "the model …, and the dataset …".
    pub(super) fn fits(&self, of_model: &Self, task: Task) -> Result<(), String> {
        let predicts_edges = task.learns_edges();
        if predicts_edges && self.dataset != of_model.dataset {
            return Err("the model predicts edges, so it can be evaluated only on the dataset of its run: another dataset has other held-out edges; \
                        to predict its edges, train a model on it"
                .into());
        }
        let with_remedy = |difference: String| {
            format!("{difference}; prepare it with the columns and settings of the run, or train a model on it")
        };
        self.has_columns_of(of_model).map_err(with_remedy)?;
        if !self.is_scaled_as(of_model) {
            return Err("features are scaled by the means and deviations of the dataset's own nodes, and the model was trained with those of \
                        other files; change the model's dataset with `gnnflow update`, which keeps them, or train a model on this dataset"
                .into());
        }
        match (&self.labels, &of_model.labels) {
            (Some(own), Some(of_model)) if !predicts_edges && !own.are_of(of_model) => {
                let [own, of_model] = [own, of_model].map(|classes| Classes::describe(Some(classes)));
                Err(with_remedy(difference("nodes with ", &of_model, &own)))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the dataset has the columns and the kind of edges of `of_model`. Classes and scaling are not compared.
    ///
    /// # Errors
    /// The first difference, as "the model …, and the dataset …".
    pub(super) fn has_columns_of(&self, of_model: &Self) -> Result<(), String> {
        let differ = |what: &str, of_model: String, own: String| Err(difference(what, &of_model, &own));
        if self.features != of_model.features {
            let features = |count: usize| plural(count, "feature");
            return differ("nodes with ", features(of_model.features), features(self.features));
        }
        if self.normalize != of_model.normalize {
            let scaling = |normalize: Normalize| format!("normalize_features = \"{normalize:?}\"").to_lowercase();
            return differ("features with ", scaling(of_model.normalize), scaling(self.normalize));
        }
        let edge_types = |types: &Option<TypeInfo>| match types {
            None => "no edge types".to_owned(),
            Some(types) if types.names.is_empty() => plural(types.count as usize, "edge type"),
            Some(types) => format!("the edge types {}", types.names.join(", ")),
        };
        if self.edge_types != of_model.edge_types {
            return differ("", edge_types(&of_model.edge_types), edge_types(&self.edge_types));
        }
        if self.edge_features != of_model.edge_features {
            let features = |count: usize| plural(count, "edge feature");
            return differ("", features(of_model.edge_features), features(self.edge_features));
        }
        for key in EDGE_SETTINGS {
            let [own, of_model] = [&self.edges, &of_model.edges].map(|edges| edges.get(key));
            if own != of_model {
                let show = |value: Option<&Value>| format!("graph.{key} = {}", value.unwrap_or(&Value::Bool(false)));
                return differ("a graph with ", show(of_model), show(own));
            }
        }
        Ok(())
    }

    /// Returns whether the files that scaled the features are those of `of_model`.
    pub(super) fn is_scaled_as(&self, of_model: &Self) -> bool {
        self.scaled_by == of_model.scaled_by
    }
}

/// Returns the text for data of a model and of a dataset that differ.
pub(super) fn difference(what: &str, of_model: &str, of_dataset: &str) -> String {
    format!("the model was trained on {what}{of_model}, and the dataset has {of_dataset}")
}

#[cfg(test)]
impl Classes {
    pub(super) fn example(count: u32, names: &[&str]) -> Self {
        Self { kind: LabelKind::Class, count, names: names.iter().map(ToString::to_string).collect() }
    }
}

#[cfg(test)]
impl TrainingData {
    pub(super) fn example() -> Self {
        Self {
            dataset: "d".into(),
            features: 3,
            normalize: Normalize::Standard,
            scaled_by: Vec::new(),
            labels: Some(Classes::example(2, &["cat", "dog"])),
            edge_types: None,
            edge_features: 0,
            edge_labels: None,
            edges: [("undirected".to_owned(), true.into())].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> TrainingData {
        TrainingData::example()
    }

    fn classes(count: u32, names: &[&str]) -> Option<Classes> {
        Some(Classes::example(count, names))
    }

    #[test]
    fn first_difference_is_named() {
        let (model, nodes) = (described(), Task::NodeClassification);
        let other = TrainingData { dataset: "other".into(), ..described() };
        assert_eq!(TrainingData { labels: None, ..other.clone() }.fits(&model, nodes), Ok(()));
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
            (TrainingData { features: 4, ..described() }, "nodes with 3 features, and the dataset has 4 features"),
            (
                TrainingData { normalize: Normalize::None, ..described() },
                "features = \"standard\", and the dataset has normalize_features = \"none\"",
            ),
            (TrainingData { scaled_by: vec![file], ..described() }, "gnnflow update"),
            (TrainingData { edge_types: types, ..described() }, "no edge types, and the dataset has 2 edge types"),
            (TrainingData { edge_features: 1, ..described() }, "0 edge features, and the dataset has 1 edge feature"),
            (
                TrainingData { edges: BTreeMap::new(), ..described() },
                "graph.undirected = true, and the dataset has graph.undirected = false",
            ),
            (
                TrainingData { labels: classes(2, &["dog", "cat"]), ..described() },
                "the dataset has the classes dog, cat",
            ),
            (
                TrainingData { labels: classes(2, &[]), ..described() },
                "the classes cat, dog, and the dataset has 2 classes",
            ),
        ] {
            let why = dataset.fits(&model, nodes).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        // Numbers as classes.
        let model = TrainingData { labels: classes(3, &[]), ..described() };
        let with = |count| TrainingData { labels: classes(count, &[]), ..described() }.fits(&model, nodes);
        assert_eq!((with(0), with(3)), (Ok(()), Ok(())));
        assert!(with(4).unwrap_err().contains("3 classes, and the dataset has 4 classes"));
    }

    #[test]
    fn rows_of_another_run_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
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
}
