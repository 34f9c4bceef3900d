//! Graphs as others keep them, made into Parquet dumps.
//!
//! | kind | what | read by |
//! |---|---|---|
//! | [`Kind::Ogb`] | an OGB node-property download: homogeneous (`csv.gz`), binary (`npz`), heterogeneous | `ogb.rs`, `ogb_types.rs` |
//! | [`Kind::Text`] | SNAP, KONECT and MatrixMarket edge lists, CSV and TSV | `text.rs`, `text_nodes.rs` |
//! | [`Kind::Npz`] | `scipy.sparse.save_npz`, with features and labels beside or inside | `npz.rs` |
//! | [`Kind::Metis`] | METIS' `.graph` | `metis.rs` |
//!
//! Everything is read as a stream, in one pass (two over the weights of a sparse matrix), and unpacked on the way (gzip,
//! Zstandard, deflated arrays). **Memory**: row groups under way (about 0.4 GiB at most), one byte a node for splits, and for
//! edge lists without a node file what `distinct.rs` says. Files are written beside their place and renamed when all are
//! whole; a dump of the same names is replaced. The same input gives the same bytes.

mod archive;
mod columns;
mod distinct;
mod input;
mod labels;
mod matrix;
mod metis;
mod npy;
mod npz;
mod ogb;
mod ogb_split;
mod ogb_types;
mod pipeline;
mod records;
mod rows;
#[cfg(test)]
mod tests;
mod text;
mod text_nodes;
mod text_sample;

pub(crate) use columns::split_name;
pub(crate) use labels::flag_lists;
pub use records::Delimiter;
pub(crate) use rows::{element, matrix};

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dataset::IdKind;
use crate::error::{Error, Result, closest};
use crate::generate::table::{Note, Output};
use crate::progress::Progress;
pub(crate) use pipeline::Recipe;

/// Names of what an import writes.
pub(crate) const NODES: &str = "nodes.parquet";
pub(crate) const EDGES: &str = "edges.parquet";
pub(crate) const PIPELINE: &str = "pipeline.toml";

/// Key in the Parquet footer under which a file says what it was imported from.
pub(crate) const NOTE_KEY: &str = "gnnflow.import";

/// What a graph is kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder that the Open Graph Benchmark's loader has fetched and unpacked: `raw/`, `split/`, `mapping/`.
    Ogb,
    /// An edge list as text.
    Text,
    /// A sparse matrix as SciPy saves it.
    Npz,
    /// METIS' format for graphs.
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
                Err(format!("{word} is no kind of graph: ogb, text (or snap, csv, tsv), npz, metis{near}"))
            }
        }
    }
}

impl Kind {
    /// The kind that a path looks like: by what is in a folder, or by the name of a file.
    pub fn guess(path: &Path) -> Option<Self> {
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

/// Parts of an OGB download that can be gone without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OgbPart {
    /// `split/`: which nodes are for training, validation and test.
    Split,
    /// `mapping/`: what nodes were called before they were numbered.
    Mapping,
}

/// How to read text. A column is named by its header, or by its number, from 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextOptions {
    /// What stands between two fields; `None`: guessed from name and first lines.
    pub delimiter: Option<Delimiter>,
    /// Whether the first line names the columns; `None`: guessed.
    pub header: Option<bool>,
    /// Whether ids are integers or strings; `None`: integers if the first lines' are.
    pub ids: Option<IdKind>,
    /// The edges' sources; `None`: a column with a usual name, or else the first.
    pub src: Option<String>,
    /// The edges' destinations; `None`: a column with a usual name, or else the second.
    pub dst: Option<String>,
    /// The edges' weights.
    pub weight: Option<String>,
    /// The edges' times: integers, or numbers that are rounded down.
    pub time: Option<String>,
    /// The edges' types.
    pub edge_type: Option<String>,
    /// The edges' features: columns, or ranges of them (`3..8`, `7..`).
    pub edge_features: Vec<String>,
    /// Files of nodes; none: the nodes are the ids that occur in edges, in ascending order.
    pub nodes: Vec<PathBuf>,
    /// The nodes' ids; `None`: a column with a usual name, or else the first.
    pub id: Option<String>,
    /// The nodes' labels; `None`: the column "label", if there is one.
    pub label: Option<String>,
    /// The nodes' splits; `None`: the column "split", if there is one.
    pub split: Option<String>,
    /// The nodes' types.
    pub node_type: Option<String>,
    /// The nodes' features: columns, or ranges of them.
    pub features: Vec<String>,
}

/// Arrays with one row for each node, as `FILE.npy` or `FILE.npz:NAME`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeArrays {
    /// Features: a matrix, dense or sparse by rows.
    pub features: Option<String>,
    /// Labels: integers are classes, a matrix of 0 and 1 is several labels, floats are values.
    pub labels: Option<String>,
    /// Splits: 0 none, 1 train, 2 validation, 3 test.
    pub split: Option<String>,
}

/// A graph to be imported.
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
    /// What it is kept as; `None`: what the paths look like.
    pub kind: Option<Kind>,
    /// One folder (OGB), one file, or several files of edges (text).
    pub paths: Vec<PathBuf>,
    /// The folder for the dump.
    pub out: PathBuf,
    /// Whether each edge stands for both directions; `None`: what the format or its header says.
    pub undirected: Option<bool>,
    /// Rows after which a new Parquet file is begun; `None`: one file for each table.
    pub file_rows: Option<u64>,
    /// OGB: which of several splits.
    pub ogb_split: Option<String>,
    /// OGB: what may be missing, and is not looked for.
    pub without: Vec<OgbPart>,
    /// Text: how to read it.
    pub text: TextOptions,
    /// `npz` and METIS: what nodes have.
    pub arrays: NodeArrays,
}

/// What an import has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// What it was read as.
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
    /// Whether each row stands for both directions.
    pub undirected: bool,
    /// Size of the Parquet files together.
    pub bytes: u64,
    /// What the user may want to know: guesses, and columns that were left out.
    pub notes: Vec<String>,
}

/// What a format's reader has written.
pub(crate) struct Found {
    nodes: u64,
    edges: u64,
    recipe: Recipe,
    notes: Vec<String>,
}

impl Import {
    /// An import with every setting at its default.
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
    /// What is wrong with the input, with file and line; a setting that the kind does not have; a full disk.
    pub fn run(&self, progress: &dyn Progress) -> Result<Imported> {
        let kind = self.check()?;
        let existed = self.out.exists();
        self.write(kind, progress).inspect_err(|_| {
            if !existed {
                // Only if it is empty.
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
        found.notes.extend(pipeline::write(&mut output, &found.recipe)?);
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
            bytes: output.publish()?,
            notes: found.notes,
        })
    }

    /// The kind, if all settings go with it.
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
                let reason = match first.is_dir() {
                    true => "is a folder without raw/ in it, so no OGB download; of other kinds, name the files",
                    false => "its name does not tell what it is; say so, as in `gnnflow import text PATH --out DIR`",
                };
                return Err(Error::File { path: first.clone(), reason: reason.into() });
            }
        };
        let only = |key: &'static str, given: bool, kinds: &[Kind], which: &str| match given && !kinds.contains(&kind) {
            true => Err(setting(key, format!("is for {which} only"))),
            false => Ok(()),
        };
        if kind != Kind::Text && self.paths.len() > 1 {
            return Err(setting("PATH", "only text may come in several files".into()));
        }
        let arrays = [Kind::Npz, Kind::Metis];
        let features = self.arrays.features.is_some();
        only("--features-from", features, &arrays, "npz and metis (text has --features)")?;
        only("--labels-from", self.arrays.labels.is_some(), &arrays, "npz and metis (text has --label)")?;
        only("--split-from", self.arrays.split.is_some(), &arrays, "npz and metis (text has --split)")?;
        only("--without", !self.without.is_empty(), &[Kind::Ogb], "ogb")?;
        only("--ogb-split", self.ogb_split.is_some(), &[Kind::Ogb], "ogb")?;
        let plain = self.text == TextOptions::default();
        only("--delimiter, --header, --ids and columns", !plain, &[Kind::Text], "text")?;
        if self.file_rows == Some(0) {
            return Err(setting("--file-rows", "must be at least 1".into()));
        }
        Ok(kind)
    }
}
