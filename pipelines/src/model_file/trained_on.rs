//! The description of a trained model: its task, its layers, and the data that its parameters fit.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use gnnflow_data::dataset::{Encoding, LabelEncoding, Manifest, TypeInfo};
use gnnflow_data::format::{hex, plural};
use gnnflow_nn::ModelSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::Task;
use crate::error::Error;

/// Version of [`TrainedOn`]. It increases when a field is added without a default, changes its meaning or is removed.
pub(super) const SCHEMA: u32 = 4;

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
    pub(super) provenance: Provenance,
}

/// Where a model comes from, for people. Nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Provenance {
    /// Version and build of the program.
    pub(crate) build: String,
    /// The name of the pipeline.
    pub(crate) pipeline: String,
    /// The SHA-256 of the keys of the pipeline that can change results.
    pub(crate) pipeline_sha256: String,
    /// `train.seed`.
    pub(crate) seed: u64,
    /// The epoch, from 1, whose parameters these are.
    pub(crate) epoch: u32,
    /// The metric by which this epoch was the best, on the validation nodes or edges. `None` without them.
    pub(crate) metric: Option<ValidationMetric>,
}

/// A metric on the validation nodes or edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ValidationMetric {
    pub(crate) name: String,
    pub(crate) value: f64,
}

/// The data of a dataset that parameters depend on. A model fits other datasets with the same columns and classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TrainingData {
    /// The fingerprint of the dataset.
    dataset: String,
    pub(super) encoding: Encoding,
}

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

impl TrainingData {
    /// Describes a dataset.
    pub(super) fn of(manifest: &Manifest) -> Self {
        Self { dataset: manifest.fingerprint.clone(), encoding: Encoding::of(manifest) }
    }

    /// Returns the labels that `task` learns.
    pub(super) fn labels(&self, task: Task) -> Option<&LabelEncoding> {
        match task {
            Task::NodeClassification | Task::NodeRegression => self.encoding.labels.as_ref(),
            Task::EdgeClassification => self.encoding.edge_labels.as_ref(),
            Task::LinkPrediction => None,
        }
    }

    /// Returns whether both describe one dataset.
    pub(super) fn is_same_dataset(&self, other: &Self) -> bool {
        self.dataset == other.dataset
    }

    /// Checks that a model, trained on `of_model` for `task`, fits the dataset that `self` describes.
    ///
    /// # Errors
    /// The first difference, as "the model …, and the dataset …".
    pub(super) fn fits(&self, of_model: &Self, task: Task) -> Result<(), String> {
        let with_remedy = |difference: String| {
            format!("{difference}; prepare it with the columns and settings of the run, or train a model on it")
        };
        self.has_columns_of(of_model).map_err(with_remedy)?;
        if !self.is_scaled_as(of_model) {
            return Err("features are scaled by other means and deviations than those that the model was trained with; prepare the dataset with \
                        graph.encode_like = the folder of the run, or change the model's dataset with `gnnflow update`, which keeps them"
                .into());
        }
        match (self.labels(task), of_model.labels(task)) {
            (Some(own), Some(of_model)) if !own.are_of(of_model) => {
                let what = if task.learns_edges() { "edges with " } else { "nodes with " };
                let [own, of_model] = [own, of_model].map(|classes| LabelEncoding::describe(Some(classes)));
                Err(format!(
                    "{}; prepare it with graph.encode_like = the folder of the run, as `gnnflow infer --pipeline` does, or train a model on it",
                    difference(what, &of_model, &own)
                ))
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
        let (own, of_model) = (&self.encoding, &of_model.encoding);
        if let Some([of_model, own]) = of_model.features.difference(&own.features, "feature") {
            return differ("nodes with ", of_model, own);
        }
        if own.normalize != of_model.normalize {
            let [own, of_model] = [own, of_model]
                .map(|encoding| format!("normalize_features = \"{:?}\"", encoding.normalize).to_lowercase());
            return differ("features with ", of_model, own);
        }
        let edge_types = |types: &Option<TypeInfo>| match types {
            None => "no edge types".to_owned(),
            Some(types) if types.names.is_empty() => plural(types.count as usize, "edge type"),
            Some(types) => format!("the edge types {}", types.names.join(", ")),
        };
        if own.edge_types != of_model.edge_types {
            return differ("", edge_types(&of_model.edge_types), edge_types(&own.edge_types));
        }
        if let Some([of_model, own]) = of_model.edge_features.difference(&own.edge_features, "edge feature") {
            return differ("", of_model, own);
        }
        let settings = |encoding: &Encoding| {
            let Encoding { undirected, reverse_edges, self_loops, .. } = encoding;
            [
                format!("graph.undirected = {undirected}"),
                format!("graph.reverse_edges = {reverse_edges}"),
                format!("graph.self_loops = \"{self_loops:?}\"").to_lowercase(),
            ]
        };
        let differing = settings(of_model).into_iter().zip(settings(own)).find(|(of_model, own)| of_model != own);
        differing.map_or(Ok(()), |(of_model, own)| differ("a graph with ", of_model, own))
    }

    /// Returns whether the features are scaled like those of `of_model`. If a dataset of an older version does not have the means, only an equal
    /// dataset is.
    pub(super) fn is_scaled_as(&self, of_model: &Self) -> bool {
        let (own, scales) = (&self.encoding, &of_model.encoding.scales);
        if own.lacks_scales() { self.dataset == of_model.dataset } else { own.scales == *scales }
    }
}

/// Returns the text for data of a model and of a dataset that differ.
pub(super) fn difference(what: &str, of_model: &str, of_dataset: &str) -> String {
    format!("the model was trained on {what}{of_model}, and the dataset has {of_dataset}")
}

#[cfg(test)]
pub(super) fn classes(count: u32, names: &[&str]) -> LabelEncoding {
    LabelEncoding {
        kind: gnnflow_data::dataset::LabelKind::Class,
        count,
        names: names.iter().map(ToString::to_string).collect(),
    }
}

#[cfg(test)]
impl TrainingData {
    pub(super) fn example() -> Self {
        use gnnflow_data::dataset::{ColumnScale, FeatureColumns};
        use gnnflow_data::source::Normalize;

        let encoding = Encoding {
            features: FeatureColumns { values: 3, columns: Vec::new() },
            normalize: Normalize::Standard,
            scales: vec![ColumnScale::new(0.0, 1.0); 3],
            labels: Some(classes(2, &["cat", "dog"])),
            undirected: true,
            ..Encoding::default()
        };
        Self { dataset: "d".into(), encoding }
    }

    /// Returns this data with other labels.
    pub(super) fn with_labels(mut self, labels: Option<LabelEncoding>) -> Self {
        self.encoding.labels = labels;
        self
    }

    /// Returns this data with labels of edges.
    pub(super) fn with_edge_labels(mut self, labels: Option<LabelEncoding>) -> Self {
        self.encoding.edge_labels = labels;
        self
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::dataset::{ColumnScale, FeatureColumn};
    use gnnflow_data::source::Normalize;

    use super::*;

    #[test]
    fn first_difference_is_named() {
        let (model, nodes) = (TrainingData::example(), Task::NodeClassification);
        let with = |change: &dyn Fn(&mut TrainingData)| {
            let mut data = TrainingData::example();
            change(&mut data);
            data
        };
        let other = with(&|data| data.dataset = "other".into());
        assert_eq!(other.clone().with_labels(None).fits(&model, nodes), Ok(()));
        // Labels of nodes do not matter for tasks on edges.
        let labeled = other.with_labels(Some(classes(9, &[])));
        assert_eq!(labeled.fits(&model, Task::LinkPrediction), Ok(()));
        let good = |names: &[&str]| TrainingData::example().with_edge_labels(Some(classes(names.len() as u32, names)));
        let edges = Task::EdgeClassification;
        assert_eq!(good(&["good"]).fits(&good(&["good"]), edges), Ok(()));
        assert_eq!(TrainingData::example().fits(&good(&["good"]), edges), Ok(()));
        assert_eq!(good(&[]).fits(&good(&["good"]), edges), Ok(()), "a column without labels");
        let why = good(&["bad", "good"]).fits(&good(&["good"]), edges).unwrap_err();
        assert!(
            why.contains("trained on edges with the classes good, and the dataset has the classes bad, good"),
            "{why}"
        );
        let types = Some(TypeInfo { count: 2, names: Vec::new() });
        let column = |name: &str| FeatureColumn { name: name.into(), row_type: None, values: 1 };
        for (dataset, words) in [
            (with(&|data| data.encoding.features.values = 4), "nodes with 3 features, and the dataset has 4 features"),
            (
                with(&|data| data.encoding.normalize = Normalize::None),
                "features = \"standard\", and the dataset has normalize_features = \"none\"",
            ),
            (with(&|data| data.encoding.scales[1] = ColumnScale::new(1.0, 1.0)), "graph.encode_like"),
            (with(&|data| data.encoding.edge_types = types.clone()), "no edge types, and the dataset has 2 edge types"),
            (
                with(&|data| data.encoding.edge_features.values = 1),
                "0 edge features, and the dataset has 1 edge feature",
            ),
            (
                with(&|data| data.encoding.undirected = false),
                "graph.undirected = true, and the dataset has graph.undirected = false",
            ),
            (
                TrainingData::example().with_labels(Some(classes(2, &["dog", "cat"]))),
                "the dataset has the classes dog, cat",
            ),
            (
                TrainingData::example().with_labels(Some(classes(2, &[]))),
                "the classes cat, dog, and the dataset has 2 classes",
            ),
        ] {
            let why = dataset.fits(&model, nodes).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        // Names and order of columns.
        let columns = |names: [&str; 3]| with(&|data| data.encoding.features.columns = names.map(column).into());
        assert_eq!(columns(["a", "b", "c"]).fits(&columns(["a", "b", "c"]), nodes), Ok(()));
        assert_eq!(columns(["a", "b", "c"]).fits(&model, nodes), Ok(()));
        let why = columns(["b", "a", "c"]).fits(&columns(["a", "b", "c"]), nodes).unwrap_err();
        assert!(why.contains("3 features: a, b, c, and the dataset has 3 features: b, a, c"), "{why}");
        // A dataset without means.
        let unscaled = |name: &str| {
            with(&|data| {
                data.dataset = name.into();
                data.encoding.scales.clear();
            })
        };
        assert!(unscaled("d").is_scaled_as(&unscaled("d")) && !unscaled("d").is_scaled_as(&unscaled("e")));
        // Numbers as classes.
        let model = TrainingData::example().with_labels(Some(classes(3, &[])));
        let with = |count| TrainingData::example().with_labels(Some(classes(count, &[]))).fits(&model, nodes);
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
