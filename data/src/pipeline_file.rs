//! Pipeline files as text.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::source::{Columns, Duplicates, FeatureDtype, GraphSource, Normalize};

/// Longest key with value that comments of the other keys are aligned with.
const ALIGNED: usize = 44;

/// Number of edge types above which they share matrices.
pub(crate) const MANY_EDGE_TYPES: usize = 16;

/// The text of a pipeline file, written from the top.
#[derive(Debug, Default)]
pub(crate) struct PipelineFile {
    text: String,
    /// The keys since the last section.
    keys: Vec<Key>,
}

/// A key with its value and a comment, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    line: String,
    comment: String,
}

impl Key {
    /// `value` is TOML.
    pub(crate) fn new(key: &str, value: impl std::fmt::Display, comment: impl Into<String>) -> Self {
        Self { line: format!("{key} = {value}"), comment: comment.into() }
    }
}

/// Returns a TOML string.
pub(crate) fn quoted(text: &str) -> String {
    // TOML's basic strings have the escapes of JSON.
    Value::from(text).to_string()
}

/// Returns the kind of the model for a graph.
pub(crate) fn model_kind(source: &GraphSource) -> &'static str {
    if source.typed_edges() { "rgcn" } else { "sage" }
}

/// Returns the key `num_bases` of an R-GCN; `None` for few edge types, where each has its own matrix.
pub(crate) fn num_bases(edge_types: usize) -> Option<Key> {
    (edge_types > MANY_EDGE_TYPES).then(|| Key::new("num_bases", 8, "edge types share matrices"))
}

/// Returns the name of a folder, if it can be the name of a run.
pub(crate) fn folder_name(folder: &Path) -> Option<String> {
    run_name(folder.canonicalize().ok()?.file_name()?)
}

/// Returns a name if it can be the name of a run.
pub(crate) fn run_name(name: &OsStr) -> Option<String> {
    let name = name.to_str()?.to_owned();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    (!name.starts_with('.') && name.chars().all(plain)).then_some(name)
}

/// Returns a TOML string, or a list of strings if there are several.
fn one_or_many(items: &[String]) -> String {
    match items {
        [one] => quoted(one),
        items => format!("[{}]", items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", ")),
    }
}

fn paths(paths: &[PathBuf]) -> String {
    one_or_many(&paths.iter().map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>())
}

impl PipelineFile {
    /// Adds a line of comment.
    pub(crate) fn comment(&mut self, text: &str) {
        self.end_keys();
        self.text.push_str(format!("# {text}").trim_end());
        self.text.push('\n');
    }

    /// Adds an empty line.
    pub(crate) fn blank(&mut self) {
        self.end_keys();
        self.text.push('\n');
    }

    /// Begins a section.
    pub(crate) fn section(&mut self, name: &str) {
        self.end_keys();
        let _ = writeln!(self.text, "\n[{name}]");
    }

    /// Adds a key to the current section.
    pub(crate) fn key(&mut self, key: Key) {
        self.keys.push(key);
    }

    /// Adds the sections `[graph]` and `[graph.columns]`. `comment` returns the comment of a key, or an empty one for the default.
    pub(crate) fn graph(&mut self, source: &GraphSource, comment: impl Fn(&str) -> String) {
        self.section("graph");
        self.keys.push(Key::new("nodes", paths(&source.nodes), ""));
        self.keys.push(Key::new("edges", paths(&source.edges), ""));
        self.keys.extend(settings(source, &comment));
        self.section("graph.columns");
        let columns = columns(&source.columns);
        self.keys.extend(columns.into_iter().map(|(key, names)| Key::new(key, one_or_many(&names), comment(key))));
    }

    /// Returns the text.
    pub(crate) fn finish(mut self) -> String {
        self.end_keys();
        self.text
    }

    /// Writes the keys since the last section. Their comments begin in one column.
    fn end_keys(&mut self) {
        let length = |key: &Key| key.line.chars().count();
        let aligned = self.keys.iter().filter(|key| !key.comment.is_empty()).map(length);
        let width = aligned.filter(|&length| length <= ALIGNED).max().unwrap_or(0);
        for Key { line, comment } in self.keys.drain(..) {
            let _ = match comment.as_str() {
                "" => writeln!(self.text, "{line}"),
                comment => writeln!(self.text, "{line:width$}   # {comment}"),
            };
        }
    }
}

/// Returns the keys of `[graph]` that differ from the defaults, and the direction of edges.
fn settings(source: &GraphSource, comment: impl Fn(&str) -> String) -> Vec<Key> {
    let commented = |key: &str, value: &str, default: &str| {
        let own = comment(key);
        Key::new(key, value, if own.is_empty() { default.into() } else { own })
    };
    let mut keys = vec![match (source.reverse_edges, source.undirected) {
        (true, _) => commented("reverse_edges", "true", "add the reverse of every edge, with a type of its own"),
        (false, true) => commented("undirected", "true", "every row is an edge in both directions"),
        (false, false) => Key::new("undirected", false, ""),
    }];
    if source.duplicates == Duplicates::Keep {
        keys.push(commented("duplicates", "\"keep\"", "equal rows are separate edges"));
    }
    if source.normalize_features == Normalize::Standard {
        keys.push(Key::new("normalize_features", quoted("standard"), "every column has mean 0 and variance 1"));
    }
    if let [dtype] = source.feature_dtype[..]
        && dtype != FeatureDtype::F32
    {
        keys.push(Key::new("feature_dtype", quoted(dtype.word()), ""));
    }
    if let Some(classes) = source.num_classes {
        keys.push(Key::new("num_classes", classes, ""));
    }
    if let Some(fractions) = source.split_fractions {
        keys.push(Key::new(
            "split_fractions",
            format!("{fractions:?}"),
            "train, validation, test: the data has no split",
        ));
    }
    keys
}

/// Returns the keys of `[graph.columns]` with the names of their columns.
fn columns(columns: &Columns) -> Vec<(&'static str, Vec<String>)> {
    let one = |name: &String| vec![name.clone()];
    let optional = |name: &Option<String>| name.iter().cloned().collect::<Vec<_>>();
    let all = vec![
        ("id", one(&columns.id)),
        ("features", columns.features.clone()),
        ("label", optional(&columns.label)),
        ("split", optional(&columns.split)),
        ("node_type", optional(&columns.node_type)),
        ("node_time", optional(&columns.node_time)),
        ("src", one(&columns.src)),
        ("dst", one(&columns.dst)),
        ("weight", optional(&columns.weight)),
        ("edge_type", optional(&columns.edge_type)),
        ("time", optional(&columns.time)),
        ("edge_features", columns.edge_features.clone()),
        ("edge_split", optional(&columns.edge_split)),
        ("edge_label", optional(&columns.edge_label)),
    ];
    all.into_iter().filter(|(_, names)| !names.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_aligned_comments_and_escaped_strings() {
        let source = GraphSource {
            columns: Columns { features: vec!["a".into(), "b \"c\"".into()], ..Columns::default() },
            undirected: true,
            split_fractions: Some([0.6, 0.2, 0.2]),
            ..GraphSource::new("n.parquet", "dumps\\e.parquet")
        };
        let mut file = PipelineFile::default();
        file.comment("A graph.");
        file.comment("");
        file.graph(&source, |key| if key == "src" { "from".into() } else { String::new() });
        file.section("partition");
        file.key(Key::new("parts", 1, ""));
        assert_eq!(
            file.finish(),
            r#"# A graph.
#

[graph]
nodes = "n.parquet"
edges = "dumps\\e.parquet"
undirected = true                   # every row is an edge in both directions
split_fractions = [0.6, 0.2, 0.2]   # train, validation, test: the data has no split

[graph.columns]
id = "node_id"
features = ["a", "b \"c\""]
src = "src"   # from
dst = "dst"

[partition]
parts = 1
"#
        );
    }
}
