//! The text of the pipeline file.

use std::path::Path;

use super::recognize::Content;
use super::roles::LabelKind;
use super::task::Task;
use crate::format::counted;
use crate::pipeline_file::{Key, PipelineFile, model_kind, num_bases, quoted};
use crate::source::GraphSource;

/// What the pipeline file says.
pub(super) struct Pipeline<'a> {
    /// The file, as the user wrote it.
    pub(super) out: &'a Path,
    /// Name of the run, if it is not that of the file.
    pub(super) name: Option<String>,
    /// The graph, with paths relative to the file.
    pub(super) source: GraphSource,
    pub(super) content: Content,
    pub(super) task: Task,
    /// Number of nodes, and of rows of edges.
    pub(super) sizes: [u64; 2],
    /// Columns that would be read by default, but must not be.
    pub(super) left_out: Vec<&'static str>,
    pub(super) notes: &'a [String],
}

impl Pipeline<'_> {
    /// The kind of the model.
    pub(super) fn model(&self) -> &'static str {
        model_kind(&self.source)
    }

    /// Whether the model learns a row for each node, because nodes have no features.
    pub(super) fn learns_rows(&self) -> bool {
        self.content.features == 0
    }

    pub(super) fn text(&self) -> String {
        let mut file = PipelineFile::default();
        self.head(&mut file);
        file.graph(&self.source, |key| self.comment(key));
        for key in &self.left_out {
            file.key(Key::new(key, quoted(""), "the column of this name is not used"));
        }
        file.section("partition");
        file.key(Key::new("method", quoted("multilevel"), "how to cut the graph"));
        file.key(Key::new("parts", 1, "partitions; a run has at most one process for each"));
        self.model_section(&mut file);
        self.train_section(&mut file);
        file.section("infer");
        let what = if self.task.is_of_edges() { "edges" } else { "nodes" };
        file.key(Key::new("predictions", true, format!("predictions.parquet: a result for {what}")));
        file.key(Key::new("embeddings", true, "embeddings.parquet: a row for each node"));
        file.finish()
    }

    fn head(&self, file: &mut PipelineFile) {
        let out = self.out.display();
        file.comment("Written by `gnnflow init`. Correct what it guessed, look at the plan, and run it:");
        file.comment("");
        file.comment(&format!("    gnnflow run {out} --dry-run"));
        file.comment(&format!("    gnnflow run {out}"));
        file.comment("");
        file.comment("`gnnflow reference` explains all keys.");
        if !self.notes.is_empty() {
            file.comment("");
            file.comment("Guesses:");
            self.notes.iter().for_each(|note| file.comment(&format!("- {note}")));
        }
        file.blank();
        if let Some(name) = &self.name {
            file.key(Key::new("name", quoted(name), format!("results are in runs/{name}")));
        }
    }

    /// Returns the comment of a key of the graph.
    fn comment(&self, key: &str) -> String {
        let splits = "train, val, test";
        match (key, self.content.label) {
            ("reverse_edges", _) if self.content.edge_types == 0 => {
                "edges have a direction; reverse edges of their own type only pass messages".into()
            }
            ("duplicates", _) => "edges have times, so rows with equal ends are separate edges".into(),
            ("features", _) => format!("{} per node", counted(self.content.features as u64, "value")),
            ("label", Some(LabelKind::Class)) => "one class per node".into(),
            ("label", Some(LabelKind::Classes)) => "several labels per node".into(),
            ("label", _) => "a number to predict".into(),
            ("split" | "edge_split", _) => splits.into(),
            ("weight", _) => "for train.sampler = \"weighted\"".into(),
            ("time", _) if self.task.is_of_edges() => {
                "to split edges by time: see \"Links by time\" in the book".into()
            }
            ("node_time", _) if self.task.is_of_edges() => "only tasks on nodes use it".into(),
            ("time" | "node_time", _) => "for train.sampler = \"temporal\"".into(),
            ("edge_features", _) => "for gatv2 with model.edge_features = true, and gine".into(),
            ("edge_label", _) => "one class per edge".into(),
            _ => String::new(),
        }
    }

    fn model_section(&self, file: &mut PipelineFile) {
        let kind = match self.model() {
            "rgcn" => "R-GCN, which has weights for each edge type",
            _ => "GraphSAGE; gcn, gat, gatv2, gin, … are others",
        };
        let dropout = if self.task == Task::NodeClassification { 0.3 } else { 0.1 };
        file.section("model");
        file.key(Key::new("kind", quoted(self.model()), kind));
        num_bases(self.content.edge_types).into_iter().for_each(|key| file.key(key));
        file.key(Key::new("layers", 2, "also the number of hops"));
        file.key(Key::new("hidden", 64, "width of the layers"));
        file.key(Key::new("dropout", dropout, "between layers"));
        if self.learns_rows() {
            file.key(Key::new("embedding", "{ dim = 64 }", "a learned row per node, because nodes have no features"));
        }
    }

    fn train_section(&self, file: &mut PipelineFile) {
        let [nodes, edges] = self.sizes;
        let of_edges = self.task.is_of_edges();
        let (epochs, batch, seeds) = match of_edges {
            true => (10, if edges < 1_000_000 { 1000 } else { 8192 }, "edges"),
            false => (20, if nodes < 50_000 { 100 } else { 1000 }, "training nodes"),
        };
        file.section("train");
        file.key(Key::new("task", quoted(self.task.word()), ""));
        file.key(Key::new("epochs", epochs, format!("passes over the {seeds}")));
        file.key(Key::new("batch", batch, format!("{seeds} per partition and step")));
        file.key(Key::new("fanouts", "[15, 10]", "sampled neighbors per node and hop; -1 takes all"));
        file.key(Key::new("optimizer", "{ kind = \"adam\", lr = 0.005 }", "lr is the learning rate"));
        if self.task == Task::LinkPrediction {
            file.key(Key::new("evaluate_every", 2, "epochs between evaluations"));
            file.section("train.link");
        } else if of_edges {
            file.section("train.edge");
            file.key(Key::new("num_decoder_layers", 2, "linear maps from the rows of both ends to the classes"));
        }
        if of_edges && self.source.columns.edge_split.is_none() {
            file.key(Key::new("split_fractions", "[0.8, 0.1, 0.1]", "train, validation, test: edges have no split"));
        }
        if self.task == Task::LinkPrediction {
            self.link_keys(file);
        }
    }

    fn link_keys(&self, file: &mut PipelineFile) {
        let (decoder, score) = match self.content.edge_types {
            0 => ("dot", "score of an edge: the product of the rows of its ends"),
            _ => ("distmult", "score of an edge: the product of the rows of its ends, weighted by type"),
        };
        file.key(Key::new("decoder", quoted(decoder), score));
        file.key(Key::new("loss", quoted("softmax-cross-entropy"), "an edge among its negatives"));
        file.key(Key::new("negative_sampler", quoted("joint"), "one list of nodes for a batch"));
        file.key(Key::new("num_negative_edges", 64, "negatives per edge in training"));
        file.key(Key::new("num_negative_edges_eval", 1000, "nodes that an end is ranked among; \"all\" as in papers"));
    }
}
