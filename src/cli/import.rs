//! `gnnflow import`: converts graphs of other formats to Parquet.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_data::dataset::IdKind;
use gnnflow_data::format::plural;
use gnnflow_data::import::{Delimiter, EmptyIds, Kind, NodeArrays, OgbPart, TextOptions};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow import friends.txt --undirected --out friends
  gnnflow import payments.csv --nodes people.csv --features age,height --label city --out payments
  gnnflow import payments.csv --dry-run
  gnnflow import ogb dataset/ogbn_arxiv --out arxiv";

/// Convert a graph to Parquet, and write a pipeline file that reads it.
///
/// Formats: OGB downloads, text edge lists (SNAP, CSV, TSV), SciPy matrices (.npz) and METIS graphs, also compressed (.gz, .zst).
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Import {
    /// Kind (ogb, text, snap, csv, tsv, npz, metis) [default: from the path's name], and a folder (ogb) or files.
    #[arg(required = true, value_name = "[KIND] PATH")]
    what: Vec<PathBuf>,
    /// Output folder for nodes.parquet, edges.parquet and pipeline.toml.
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// Text: print how the first rows are understood, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Each edge is listed once and counts in both directions [default: from the format or its header, else directed].
    #[arg(long, conflicts_with = "directed")]
    undirected: bool,
    /// Each edge counts in one direction.
    #[arg(long)]
    directed: bool,
    /// Maximum number of rows per Parquet file.
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
#[command(next_help_heading = "Text (COLUMN is a name in the header or a number from 1)")]
struct Text {
    /// Delimiter: blanks, tab, comma, semicolon, pipe, or a character [default: guessed].
    #[arg(long, value_name = "CHAR")]
    delimiter: Option<Delimiter>,
    /// Whether the first line has column names [default: guessed, or yes if an option gives a name in it].
    #[arg(long)]
    header: Option<YesNo>,
    /// Whether ids are integers or strings [default: guessed].
    #[arg(long)]
    ids: Option<Ids>,
    /// What to do with a line whose id is empty.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t)]
    empty_ids: EmptyPolicy,
    /// Edges: source [default: a column with a usual name, or the first].
    #[arg(long, value_name = "COLUMN")]
    src: Option<String>,
    /// Edges: destination [default: a column with a usual name, or the second].
    #[arg(long, value_name = "COLUMN")]
    dst: Option<String>,
    /// Edges: weight [default: "weight", if there is one].
    #[arg(long, value_name = "COLUMN")]
    weight: Option<String>,
    /// Edges: time [default: "time" or "timestamp", if there is one].
    #[arg(long, value_name = "COLUMN")]
    time: Option<String>,
    /// Edges: type.
    #[arg(long, value_name = "COLUMN")]
    edge_type: Option<String>,
    /// Edges: features, as in `a,b` or `3..8`.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    edge_features: Vec<String>,
    /// File of nodes; may be repeated [default: the nodes are the ids that occur in edges].
    #[arg(long, value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// Nodes: id [default: a column with a usual name, or the first].
    #[arg(long, value_name = "COLUMN")]
    id: Option<String>,
    /// Nodes: label [default: "label", if there is one].
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// Nodes: split [default: "split", if there is one].
    #[arg(long, value_name = "COLUMN")]
    split: Option<String>,
    /// Nodes: type.
    #[arg(long, value_name = "COLUMN")]
    node_type: Option<String>,
    /// Nodes: features, as in `a,b` or `3..`.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    features: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "npz and metis (ARRAY is FILE.npy or FILE.npz:NAME, with one row per node)")]
struct Arrays {
    /// Features: a matrix, dense or sparse (CSR).
    #[arg(long, value_name = "ARRAY")]
    features_from: Option<String>,
    /// Labels: integers are classes, several columns of 0 and 1 are multiple labels, floats are values.
    #[arg(long, value_name = "ARRAY")]
    labels_from: Option<String>,
    /// Split: 0 none, 1 train, 2 validation, 3 test.
    #[arg(long, value_name = "ARRAY")]
    split_from: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "OGB")]
struct Ogb {
    /// Name of the split, if there are several.
    #[arg(long, value_name = "NAME")]
    ogb_split: Option<String>,
    /// Parts of the download to ignore.
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

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum EmptyPolicy {
    /// End with an error.
    #[default]
    Refuse,
    /// Leave the line out.
    Skip,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    Split,
    Mapping,
}

impl Import {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let (dry_run, import) = (self.dry_run, self.import()?);
        let say = |note: &String| context.console.say(&format!("note: {note}"));
        if dry_run {
            let preview = import.preview()?;
            preview.notes.iter().for_each(say);
            return if context.json { print_json(&preview) } else { print(&preview.to_string()) };
        }
        let imported = import.run(&context.console)?;
        let skipped = imported.skipped.as_ref().and_then(|skipped| skipped.note(""));
        imported.notes.iter().chain(&skipped).for_each(say);
        if context.json {
            return print_json(&imported);
        }
        let (nodes, edges) = (imported.nodes_path.display(), imported.edges_path.display());
        let ways = if imported.undirected { "undirected" } else { "directed" };
        let features = match imported.features {
            0 => String::new(),
            width => format!(" with {}", plural(width, "feature")),
        };
        let pipeline = imported.pipeline_path.display();
        let next = match imported.model {
            Some(model) => format!("trains {model}; look at the plan with `gnnflow run {pipeline} --dry-run`"),
            None => {
                format!("prepares the graph, with `gnnflow prepare {pipeline}`; `gnnflow init` writes one that trains")
            }
        };
        print(&format!(
            "{nodes}: {}{features}\n{edges}: {}\n{pipeline}: {next}\n",
            plural(imported.nodes as usize, "node"),
            plural(imported.edges as usize, &format!("{ways} edge"))
        ))
    }

    fn import(self) -> Result<gnnflow_data::import::Import, Error> {
        let Self { mut what, out, dry_run: _, undirected, directed, file_rows, text, arrays, ogb } = self;
        // The first word is a kind if it names one and a path follows it.
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
            ..gnnflow_data::import::Import::new(what, out.unwrap_or_default())
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
            empty_ids: match self.empty_ids {
                EmptyPolicy::Refuse => EmptyIds::Refuse,
                EmptyPolicy::Skip => EmptyIds::Skip,
            },
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
