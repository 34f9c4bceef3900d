//! The pipeline file of a dump.

use std::fmt::Write;

use super::PIPELINE;
use crate::error::{Error, Result};
use crate::generate::table::Output;

/// Content of the pipeline file of a dump.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recipe {
    /// First line, a comment.
    pub(crate) title: String,
    pub(crate) undirected: bool,
    /// Whether duplicate edges are separate edges.
    pub(crate) keep_duplicates: bool,
    /// Values per node.
    pub(crate) features: usize,
    pub(crate) feature_dtype: &'static str,
    /// Whether there are labels, and if so, whether they are classes.
    pub(crate) label: Option<bool>,
    pub(crate) num_classes: Option<u32>,
    pub(crate) split: bool,
    pub(crate) node_type: bool,
    pub(crate) node_time: bool,
    pub(crate) weight: bool,
    pub(crate) edge_type: bool,
    pub(crate) time: bool,
    pub(crate) edge_features: bool,
    pub(crate) edge_split: bool,
    pub(crate) edge_label: bool,
    /// Lines of the table `[partition]`.
    pub(crate) partition: Vec<String>,
}

impl Recipe {
    pub(crate) fn text(&self) -> String {
        let mut text = format!("# {}\n#\n#     gnnflow prepare {PIPELINE}\n\n[graph]\n", self.title);
        let mut line = |line: &str| {
            text.push_str(line);
            text.push('\n');
        };
        line("nodes = \"nodes.parquet\"");
        line("edges = \"edges.parquet\"");
        line(match self.undirected {
            true => "undirected = true                   # every row is an edge in both directions",
            false => "undirected = false",
        });
        if self.keep_duplicates {
            line("duplicates = \"keep\"");
        }
        if !matches!(self.feature_dtype, "" | "f32") {
            line(&format!("feature_dtype = \"{}\"", self.feature_dtype));
        }
        if let Some(classes) = self.num_classes {
            line(&format!("num_classes = {classes}"));
        }
        if self.label.is_some() && !self.split {
            line("split_fractions = [0.6, 0.2, 0.2]   # the data has no split");
        }
        line("\n[graph.columns]\nid = \"node_id\"");
        let columns = [
            (self.features > 0, "features"),
            (self.label.is_some(), "label"),
            (self.split, "split"),
            (self.node_type, "node_type"),
            (self.node_time, "node_time"),
            (true, "src"),
            (true, "dst"),
            (self.weight, "weight"),
            (self.edge_type, "edge_type"),
            (self.time, "time"),
            (self.edge_features, "edge_features"),
            (self.edge_split, "edge_split"),
            (self.edge_label, "edge_label"),
        ];
        columns.iter().filter(|(there, _)| *there).for_each(|(_, name)| line(&format!("{name} = \"{name}\"")));
        line("\n[partition]");
        match &self.partition[..] {
            [] => line("parts = 1"),
            lines => lines.iter().for_each(|other| line(other)),
        }
        if self.label == Some(true) && self.features > 0 {
            line("\n[model]\nkind = \"sage\"\nlayers = 2\nhidden = 128\n\n[train]\nepochs = 10");
        }
        text
    }
}

/// Writes the pipeline file. Copies a different one to `pipeline.toml.old` first, and returns a note about the copy.
pub(super) fn write(output: &mut Output, recipe: &Recipe) -> Result<Option<String>> {
    let text = recipe.text();
    let place = output.place(PIPELINE);
    let before = std::fs::read_to_string(&place).ok().filter(|before| *before != text);
    let mut note = None;
    if before.is_some() {
        let old = place.with_extension("toml.old");
        std::fs::copy(&place, &old).map_err(Error::io(&old, "write"))?;
        let mut said = String::new();
        let _ = write!(said, "{}: the previous pipeline file", old.display());
        note = Some(said);
    }
    output.text(PIPELINE, &text)?;
    Ok(note)
}
