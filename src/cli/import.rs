//! `gnnflow import`: graphs as others keep them, made into Parquet.

use super::{Context, print, print_json};
use crate::Error;
use gnnflow_data::dataset::IdKind;
use gnnflow_data::import::{Delimiter, Kind, NodeArrays, OgbPart, TextOptions};
use std::path::PathBuf;

/// Make a Parquet dump, and a pipeline file that reads it, from another format: an OGB download, an edge list as text
/// (SNAP, CSV, TSV), a SciPy matrix (.npz), a METIS graph. Packed files (.gz, .zst) are unpacked on the way.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// What it is (ogb, text or snap, csv, tsv; npz; metis), unless the path's name tells; and a folder (ogb) or files.
    #[arg(required = true, value_name = "[KIND] PATH")]
    what: Vec<PathBuf>,
    /// The folder for nodes.parquet, edges.parquet and pipeline.toml.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Each edge stands once and counts both ways [default: what the format or its header says, or else not].
    #[arg(long, conflicts_with = "directed")]
    undirected: bool,
    /// Edges count one way, as they stand.
    #[arg(long)]
    directed: bool,
    /// Begin a new Parquet file after so many rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    file_rows: Option<u64>,
    #[command(flatten)]
    text: Text,
    #[command(flatten)]
    arrays: Arrays,
    #[command(flatten)]
    ogb: Ogb,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Text (a column is named by the header, or by its number, from 1)")]
struct Text {
    /// blanks, tab, comma, semicolon, pipe, or a character [default: guessed].
    #[arg(long, value_name = "CHAR")]
    delimiter: Option<Delimiter>,
    /// Whether the first line names the columns [default: guessed].
    #[arg(long)]
    header: Option<YesNo>,
    /// Whether ids are integers or strings [default: guessed].
    #[arg(long)]
    ids: Option<Ids>,
    /// Edges: the source [default: a column with a usual name, or the first].
    #[arg(long, value_name = "COLUMN")]
    src: Option<String>,
    /// Edges: the destination [default: a column with a usual name, or the second].
    #[arg(long, value_name = "COLUMN")]
    dst: Option<String>,
    /// Edges: the weight [default: "weight", if there is one].
    #[arg(long, value_name = "COLUMN")]
    weight: Option<String>,
    /// Edges: the time [default: "time" or "timestamp", if there is one].
    #[arg(long, value_name = "COLUMN")]
    time: Option<String>,
    /// Edges: the type.
    #[arg(long, value_name = "COLUMN")]
    edge_type: Option<String>,
    /// Edges: the features, as in `a,b` or `3..8`.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    edge_features: Vec<String>,
    /// A file of nodes; may be given several times [default: the nodes are the ids that occur in edges].
    #[arg(long, value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// Nodes: the id [default: a column with a usual name, or the first].
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    /// Nodes: the label [default: "label", if there is one].
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// Nodes: the split [default: "split", if there is one].
    #[arg(long, value_name = "COLUMN")]
    split: Option<String>,
    /// Nodes: the type.
    #[arg(long, value_name = "COLUMN")]
    node_type: Option<String>,
    /// Nodes: the features, as in `a,b` or `3..`.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    features: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "npz and metis (an array is FILE.npy or FILE.npz:NAME, a row for each node)")]
struct Arrays {
    /// The features: a matrix, dense or sparse by rows.
    #[arg(long, value_name = "ARRAY")]
    features_from: Option<String>,
    /// The labels: integers are classes, several columns of 0 and 1 are labels each, floats are values.
    #[arg(long, value_name = "ARRAY")]
    labels_from: Option<String>,
    /// The split: 0 none, 1 train, 2 validation, 3 test.
    #[arg(long, value_name = "ARRAY")]
    split_from: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "OGB")]
struct Ogb {
    /// Which split, where there are several.
    #[arg(long, value_name = "NAME")]
    ogb_split: Option<String>,
    /// Parts of the download to go without.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Part>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ids {
    Int,
    Text,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    Split,
    Mapping,
}

impl Import {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let imported = self.import()?.run(&context.console)?;
        imported.notes.iter().for_each(|note| context.console.say(&format!("note: {note}")));
        if context.json {
            return print_json(&imported);
        }
        let (nodes, edges) = (imported.nodes_path.display(), imported.edges_path.display());
        let ways = if imported.undirected { "undirected" } else { "directed" };
        let features = match imported.features {
            0 => String::new(),
            width => format!(" with {width} features"),
        };
        print(&format!(
            "{nodes}: {} nodes{features}\n{edges}: {} {ways} edges\n{}: for `gnnflow prepare`\n",
            imported.nodes,
            imported.edges,
            imported.pipeline_path.display()
        ))
    }

    fn import(self) -> Result<gnnflow_data::import::Import, Error> {
        let Self { mut what, out, undirected, directed, file_rows, text, arrays, ogb } = self;
        // The first word is a kind if it is one's name, and a path comes after it.
        let mut kind = None;
        if what.len() > 1
            && let Some(word) = what[0].to_str()
        {
            match word.parse::<Kind>() {
                Ok(found) => kind = Some(found),
                Err(reason) if !what[0].exists() && !word.contains(['.', '/']) => {
                    return Err(gnnflow_data::Error::Setting { key: "KIND", reason }.into());
                }
                Err(_) => {}
            }
        }
        if kind.is_some() {
            what.remove(0);
        }
        let part = |part: Part| match part {
            Part::Split => OgbPart::Split,
            Part::Mapping => OgbPart::Mapping,
        };
        Ok(gnnflow_data::import::Import {
            kind,
            undirected: if undirected { Some(true) } else { directed.then_some(false) },
            file_rows,
            ogb_split: ogb.ogb_split,
            without: ogb.without.into_iter().map(part).collect(),
            text: text.options(),
            arrays: NodeArrays { features: arrays.features_from, labels: arrays.labels_from, split: arrays.split_from },
            ..gnnflow_data::import::Import::new(what, out)
        })
    }
}

impl Text {
    fn options(self) -> TextOptions {
        TextOptions {
            delimiter: self.delimiter,
            header: self.header.map(|header| matches!(header, YesNo::Yes)),
            ids: self.ids.map(|ids| match ids {
                Ids::Int => IdKind::Int,
                Ids::Text => IdKind::Text,
            }),
            src: self.src,
            dst: self.dst,
            weight: self.weight,
            time: self.time,
            edge_type: self.edge_type,
            edge_features: self.edge_features,
            nodes: self.nodes,
            id: self.id,
            label: self.label,
            split: self.split,
            node_type: self.node_type,
            features: self.features,
        }
    }
}
