//! The pipeline file of a dump.

use std::path::{Path, PathBuf};

use super::PIPELINE;
use crate::error::{Error, Result};
use crate::generate::table::{EDGES, NODES, Output};
use crate::pipeline_file::{Key, PipelineFile, folder_name, model_kind, num_bases, quoted};
use crate::source::{Columns, Duplicates, FeatureDtype, GraphSource};

/// Content of the pipeline file of a dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recipe {
    /// First line, a comment.
    pub(crate) title: String,
    pub(crate) undirected: bool,
    pub(crate) reverse_edges: bool,
    /// Whether duplicate edges are separate edges.
    pub(crate) keep_duplicates: bool,
    /// Values per node.
    pub(crate) features: usize,
    pub(crate) feature_dtype: FeatureDtype,
    /// Whether there are labels, and if so, whether they are classes.
    pub(crate) label: Option<bool>,
    pub(crate) num_classes: Option<u32>,
    pub(crate) split: bool,
    pub(crate) node_type: bool,
    pub(crate) node_time: bool,
    pub(crate) weight: bool,
    pub(crate) edge_type: bool,
    /// Number of edge types.
    pub(crate) edge_types: usize,
    pub(crate) time: bool,
    pub(crate) edge_features: bool,
    pub(crate) edge_split: bool,
    pub(crate) edge_label: bool,
    /// Keys of the table `[partition]`.
    pub(crate) partition: Vec<Key>,
}

impl Recipe {
    /// Returns the graph in the dump. Columns are named by their roles.
    pub(crate) fn source(&self) -> GraphSource {
        let name = |there: bool, name: &str| there.then(|| name.to_string());
        let columns = Columns {
            features: name(self.features > 0, "features").into_iter().collect(),
            label: name(self.label.is_some(), "label"),
            split: name(self.split, "split"),
            node_type: name(self.node_type, "node_type"),
            node_time: name(self.node_time, "node_time"),
            weight: name(self.weight, "weight"),
            edge_type: name(self.edge_type, "edge_type"),
            time: name(self.time, "time"),
            edge_features: name(self.edge_features, "edge_features").into_iter().collect(),
            edge_split: name(self.edge_split, "edge_split"),
            edge_label: name(self.edge_label, "edge_label"),
            ..Columns::default()
        };
        GraphSource {
            columns,
            undirected: self.undirected,
            reverse_edges: self.reverse_edges,
            duplicates: if self.keep_duplicates { Duplicates::Keep } else { Duplicates::Drop },
            feature_dtype: vec![self.feature_dtype],
            num_classes: self.num_classes,
            split_fractions: (self.label.is_some() && !self.split).then_some([0.6, 0.2, 0.2]),
            ..GraphSource::new(NODES, EDGES)
        }
    }

    /// Returns the kind of the model, if the pipeline trains one.
    pub(crate) fn model(&self) -> Option<&'static str> {
        (self.label == Some(true) && self.features > 0).then(|| model_kind(&self.source()))
    }

    /// Returns the pipeline file for a run of this name.
    fn text(&self, name: Option<&str>) -> String {
        let mut file = PipelineFile::default();
        let command = if self.model().is_some() { "run" } else { "prepare" };
        for line in [&self.title, "", &format!("    gnnflow {command} {PIPELINE}")] {
            file.comment(line);
        }
        if let Some(name) = name {
            file.blank();
            file.key(Key::new("name", quoted(name), ""));
        }
        file.graph(&self.source(), |_| String::new());
        file.section("partition");
        match &self.partition[..] {
            [] => file.key(Key::new("parts", 1, "")),
            keys => keys.iter().cloned().for_each(|key| file.key(key)),
        }
        if let Some(kind) = self.model() {
            file.section("model");
            file.key(Key::new("kind", quoted(kind), ""));
            num_bases(self.edge_types).into_iter().for_each(|key| file.key(key));
            file.key(Key::new("layers", 2, ""));
            file.key(Key::new("hidden", 128, ""));
            file.section("train");
        }
        file.finish()
    }

    /// Writes the pipeline file. Copies a different one to `pipeline.toml.old` first, and returns a note about the copy.
    pub(crate) fn write(&self, output: &mut Output) -> Result<Option<String>> {
        let (text, place) = (self.text(folder_name(output.folder()).as_deref()), output.place(PIPELINE));
        output.text(PIPELINE, &text)?;
        if !std::fs::read(&place).is_ok_and(|before| before != text.as_bytes()) {
            return Ok(None);
        }
        let old = unused(&place);
        std::fs::copy(&place, &old).map_err(Error::io(&old, "write"))?;
        Ok(Some(format!("{}: the previous pipeline file", old.display())))
    }
}

/// Returns the first of `pipeline.toml.old`, `pipeline.toml.old2`, … that does not exist.
fn unused(place: &Path) -> PathBuf {
    let mut old = place.with_extension("toml.old");
    let mut number = 2;
    while old.exists() {
        old = place.with_extension(format!("toml.old{number}"));
        number += 1;
    }
    old
}
