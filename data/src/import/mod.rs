//! Converts graphs in other formats to Parquet dumps.
//!
//! | kind | what | read by |
//! |---|---|---|
//! | [`Kind::Ogb`] | an OGB node-property download: homogeneous (`csv.gz`), binary (`npz`), heterogeneous | `ogb.rs`, `ogb_types.rs` |
//! | [`Kind::Text`] | SNAP, KONECT and MatrixMarket edge lists, CSV and TSV | `text.rs`, `text_nodes.rs` |
//! | [`Kind::Npz`] | `scipy.sparse.save_npz`, with features and labels beside or inside | `npz.rs` |
//! | [`Kind::Metis`] | METIS' `.graph` | `metis.rs` |
//!
//! The input is read as a stream, in one pass (two over the weights of a sparse matrix). It is decompressed on the fly
//! (gzip, Zstandard, deflated arrays).
//!
//! **Memory**: row groups in flight (about 0.4 GiB at most) and one byte per node for splits. Edge lists without a node
//! file also need the memory that `distinct.rs` states.
//!
//! Files are written to a temporary folder and renamed when all are complete. A dump of the same names is replaced if gnnflow
//! wrote it, and refused otherwise.
//! Equal inputs give equal bytes.

mod archive;
mod columns;
mod distinct;
mod header;
mod input;
mod labels;
mod matrix;
mod metis;
mod npy;
mod npz;
mod ogb;
mod ogb_edges;
mod ogb_files;
mod ogb_split;
mod ogb_types;
mod pipeline;
mod preview;
mod records;
mod rows;
mod skipped;
#[cfg(test)]
mod tests;
mod text;
mod text_nodes;
mod text_rows;
mod text_sample;

pub(crate) use columns::split_name;
pub(crate) use labels::flag_lists;
pub use preview::{Preview, PreviewColumn, PreviewTable};
pub use records::Delimiter;
pub(crate) use rows::{element, matrix};
pub use skipped::Skipped;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dataset::IdKind;
use crate::error::{Error, Result, closest};
use crate::generate::row_groups::Note;
use crate::generate::table::{EDGES, NODES, Output};
use crate::progress::Progress;
pub(crate) use pipeline::Recipe;

/// The pipeline file of a dump.
pub(crate) const PIPELINE: &str = "pipeline.toml";

/// Key in the Parquet footer for the origin of an imported file.
pub(crate) const NOTE_KEY: &str = "gnnflow.import";

/// The format of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder of the Open Graph Benchmark as its loader unpacks it: `raw/`, `split/`, `mapping/`.
    Ogb,
    /// An edge list in a text file.
    Text,
    /// A sparse matrix, saved with SciPy.
    Npz,
    /// METIS `.graph`.
    Metis,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        match word {
            "ogb" => Ok(Self::Ogb),
            "text" | "snap" | "csv" | "tsv" => Ok(Self::Text),
            "npz" | "scipy" => Ok(Self::Npz),
            "metis" => Ok(Self::Metis),
            _ => {
                let near = closest(word, ["ogb", "text", "snap", "csv", "tsv", "npz", "metis"]);
                let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                Err(format!("{word} is not a graph format; use ogb, text (or snap, csv, tsv), npz or metis{near}"))
            }
        }
    }
}

impl Kind {
    /// Guesses the format: from the content of a folder or from the name of a file.
    pub(crate) fn guess(path: &Path) -> Option<Self> {
        if path.is_dir() {
            return path.join("raw").is_dir().then_some(Self::Ogb);
        }
        let name = path.file_name()?.to_str()?.to_lowercase();
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "npz" => Some(Self::Npz),
            "graph" | "metis" => Some(Self::Metis),
            "csv" | "tsv" | "txt" | "tab" | "edges" | "edgelist" | "el" | "wel" | "mtx" => Some(Self::Text),
            _ if name.starts_with("out.") => Some(Self::Text),
            _ => None,
        }
    }
}

/// Optional parts of an OGB download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OgbPart {
    /// `split/`: training, validation and test nodes.
    Split,
    /// `mapping/`: original names of the nodes.
    Mapping,
}

/// What to do with a line of a text file whose id is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmptyIds {
    /// Refuse the file.
    #[default]
    Refuse,
    /// Skip the line, and count it.
    Skip,
}

/// Options for text files. A column is named by its header, or by its number from 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextOptions {
    /// Delimiter of fields; `None`: guessed from the file name and the first lines.
    pub delimiter: Option<Delimiter>,
    /// Whether the first line has column names; `None`: guessed.
    pub header: Option<bool>,
    /// Whether ids are integers or strings; `None`: integers if those in the first lines are.
    pub ids: Option<IdKind>,
    /// What to do with a line whose id is empty.
    pub empty_ids: EmptyIds,
    /// Sources of the edges; `None`: a column with a usual name, or else the first column.
    pub src: Option<String>,
    /// Destinations of the edges; `None`: a column with a usual name, or else the second column.
    pub dst: Option<String>,
    /// Weights of the edges.
    pub weight: Option<String>,
    /// Times of the edges: integers, or numbers that are rounded down.
    pub time: Option<String>,
    /// Types of the edges.
    pub edge_type: Option<String>,
    /// Features of the edges: columns, or ranges of them (`3..8`, `7..`).
    pub edge_features: Vec<String>,
    /// Node files. If empty, the nodes are the ids that occur in edges, in ascending order.
    pub nodes: Vec<PathBuf>,
    /// Ids of the nodes; `None`: a column with a usual name, or else the first column.
    pub id: Option<String>,
    /// Labels of the nodes; `None`: the column "label", if it exists.
    pub label: Option<String>,
    /// Splits of the nodes; `None`: the column "split", if it exists.
    pub split: Option<String>,
    /// Types of the nodes.
    pub node_type: Option<String>,
    /// Features of the nodes: columns, or ranges of them.
    pub features: Vec<String>,
}

/// Arrays with one row per node, as `FILE.npy` or `FILE.npz:NAME`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeArrays {
    /// Features: a matrix, dense or CSR.
    pub features: Option<String>,
    /// Labels: integers are classes, a matrix of 0 and 1 is multi-label, floats are values.
    pub labels: Option<String>,
    /// Splits: 0 none, 1 train, 2 validation, 3 test.
    pub split: Option<String>,
}

/// Settings of an import.
///
/// ```
/// use gnnflow_data::import::Import;
/// use gnnflow_data::progress::Silent;
///
/// let folder = tempfile::tempdir().unwrap();
/// let edges = folder.path().join("edges.txt");
/// std::fs::write(&edges, "# Undirected graph: three friends\n7 9\n9 11\n11 7\n").unwrap();
/// let imported = Import::new([edges], folder.path().join("dump")).run(&Silent).unwrap();
/// assert_eq!((imported.nodes, imported.edges, imported.undirected), (3, 3, true));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// The format; `None`: guessed from the paths.
    pub kind: Option<Kind>,
    /// One folder (OGB), one file, or several edge files (text).
    pub paths: Vec<PathBuf>,
    /// The output folder.
    pub out: PathBuf,
    /// Whether each edge counts in both directions; `None`: as the format or its header says.
    pub undirected: Option<bool>,
    /// Rows after which a new Parquet file starts; `None`: one file per table.
    pub file_rows: Option<u64>,
    /// OGB: name of the split, for downloads with several.
    pub ogb_split: Option<String>,
    /// OGB: optional parts to ignore.
    pub without: Vec<OgbPart>,
    /// Text: options.
    pub text: TextOptions,
    /// `npz` and METIS: arrays with data of the nodes.
    pub arrays: NodeArrays,
}

/// Result of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The format.
    pub kind: Kind,
    /// `nodes.parquet`: a file, or a folder of files.
    pub nodes_path: PathBuf,
    /// `edges.parquet`: a file, or a folder of files.
    pub edges_path: PathBuf,
    /// A pipeline file that reads the two.
    pub pipeline_path: PathBuf,
    /// Rows of the node table.
    pub nodes: u64,
    /// Rows of the edge table.
    pub edges: u64,
    /// Values per node.
    pub features: usize,
    /// Whether each row is an edge in both directions.
    pub undirected: bool,
    /// The kind of the model in the pipeline file; `None` if it has no training.
    pub model: Option<&'static str>,
    /// Size of all Parquet files, in bytes.
    pub bytes: u64,
    /// Notes for the user: guesses, and ignored columns.
    pub notes: Vec<String>,
    /// What was left out of text files; `None` for other formats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
}

/// Result of the reader of one format.
pub(crate) struct Found {
    nodes: u64,
    edges: u64,
    recipe: Recipe,
    notes: Vec<String>,
    skipped: Option<Skipped>,
}

/// Returns what to do with a file or folder of an unknown format.
fn unknown_format(path: &Path) -> &'static str {
    if path.extension().is_some_and(|extension| extension == "parquet") {
        input::PARQUET
    } else if path.join(NODES).exists() || path.join(EDGES).exists() {
        "has Parquet tables, which need no import; write a pipeline file for them with `gnnflow init DIR`"
    } else if path.is_dir() {
        "is a folder without raw/, so it is not an OGB download; for other formats, name the files"
    } else {
        "its name does not show its format; state the format, as in `gnnflow import text PATH --out DIR`"
    }
}

impl Import {
    /// Creates an import with all other settings at their defaults.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>, out: impl Into<PathBuf>) -> Self {
        Self {
            kind: None,
            paths: paths.into_iter().collect(),
            out: out.into(),
            undirected: None,
            file_rows: None,
            ogb_split: None,
            without: Vec::new(),
            text: TextOptions::default(),
            arrays: NodeArrays::default(),
        }
    }

    /// Reads the graph and writes the dump and its pipeline file.
    ///
    /// # Errors
    /// An error in the input, with file and line; a setting that does not apply to the format; tables in the output folder that
    /// gnnflow did not write; a full disk.
    pub fn run(&self, progress: &dyn Progress) -> Result<Imported> {
        let kind = self.check()?;
        let existed = self.out.exists();
        self.write(kind, progress).inspect_err(|_| {
            if !existed {
                // This removes only an empty folder.
                let _ = std::fs::remove_dir(&self.out);
            }
        })
    }

    fn write(&self, kind: Kind, progress: &dyn Progress) -> Result<Imported> {
        let names: Vec<_> =
            self.paths.iter().filter_map(|path| path.file_name()).map(|n| n.to_string_lossy()).collect();
        let text = serde_json::json!({ "version": 1, "kind": kind, "from": names }).to_string();
        let mut output = Output::new(&self.out, Note { key: NOTE_KEY, text })?;
        let mut found = match kind {
            Kind::Ogb => ogb::import(self, &mut output, progress)?,
            Kind::Text => text::import(self, &mut output, progress)?,
            Kind::Npz => npz::import(self, &mut output, progress)?,
            Kind::Metis => metis::import(self, &mut output, progress)?,
        };
        found.notes.extend(found.recipe.write(&mut output)?);
        let place = |name: &str| output.place(name);
        let (nodes_path, edges_path, pipeline_path) = (place(NODES), place(EDGES), place(PIPELINE));
        Ok(Imported {
            kind,
            nodes_path,
            edges_path,
            pipeline_path,
            nodes: found.nodes,
            edges: found.edges,
            features: found.recipe.features,
            undirected: found.recipe.undirected,
            model: found.recipe.model(),
            bytes: output.publish()?,
            notes: found.notes,
            skipped: found.skipped,
        })
    }

    /// Returns the format, after a check that all settings apply to it.
    fn check(&self) -> Result<Kind> {
        let setting = |key: &'static str, reason: String| Error::Setting { key, reason };
        let Some(first) = self.paths.first() else {
            return Err(setting("PATH", "nothing to import".into()));
        };
        if let Some(missing) = self.paths.iter().chain(&self.text.nodes).find(|path| !path.exists()) {
            return Err(Error::Missing { path: missing.clone(), role: "import" });
        }
        let kind = match self.kind.or_else(|| Kind::guess(first)) {
            Some(kind) => kind,
            None => {
                return Err(Error::File { path: first.clone(), reason: unknown_format(first).into() });
            }
        };
        let only = |key: &'static str, given: bool, kinds: &[Kind], which: &str| match given && !kinds.contains(&kind) {
            true => Err(setting(key, format!("is for {which} only"))),
            false => Ok(()),
        };
        if kind != Kind::Text && self.paths.len() > 1 {
            return Err(setting("PATH", "only the format text can have several files".into()));
        }
        let arrays = [Kind::Npz, Kind::Metis];
        let features = self.arrays.features.is_some();
        only("--features-from", features, &arrays, "npz and metis (text has --features)")?;
        only("--labels-from", self.arrays.labels.is_some(), &arrays, "npz and metis (text has --label)")?;
        only("--split-from", self.arrays.split.is_some(), &arrays, "npz and metis (text has --split)")?;
        only("--without", !self.without.is_empty(), &[Kind::Ogb], "ogb")?;
        only("--ogb-split", self.ogb_split.is_some(), &[Kind::Ogb], "ogb")?;
        let plain = self.text == TextOptions::default();
        only("--delimiter, --header, --ids, --empty-ids and columns", !plain, &[Kind::Text], "text")?;
        if self.file_rows == Some(0) {
            return Err(setting("--file-rows", "must be at least 1".into()));
        }
        Ok(kind)
    }
}
