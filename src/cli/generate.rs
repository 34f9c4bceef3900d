//! `gnnflow generate`: writes synthetic graphs as Parquet.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_data::format::plural;
use gnnflow_pipelines::config;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow generate planted --nodes 4000 --edges 40000 --features 16 --classes 4 --out dump
  gnnflow generate rmat --scale 20 --out rmat";

/// Generate a synthetic graph: `nodes.parquet` and `edges.parquet`, to be read with `undirected = true`.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Generate {
    /// planted: edges and features depend on classes, so that a GNN beats an MLP. rmat: power-law degrees, any size.
    kind: Kind,
    /// Output folder.
    #[arg(long)]
    out: PathBuf,
    /// Number of nodes as a power of two: 10 is 1024 nodes.
    #[arg(long, conflicts_with = "nodes", value_parser = clap::value_parser!(u32).range(1..=31))]
    scale: Option<u32>,
    /// Number of nodes; rmat rounds it up to a power of two.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4294967294))]
    nodes: Option<u64>,
    /// Number of edges.
    #[arg(long, conflicts_with = "edge_factor", value_parser = clap::value_parser!(u64).range(1..))]
    edges: Option<u64>,
    /// Edges per node [default: 10 for planted, 16 for rmat].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1000000))]
    edge_factor: Option<u64>,
    /// Number of features per node; 0 for none [default: 64 for planted, none for rmat].
    #[arg(long)]
    features: Option<usize>,
    /// Number of classes [default: 10 for planted, none for rmat].
    #[arg(long)]
    classes: Option<u64>,
    /// Probability that an edge stays within its class (planted) [default: 0.5].
    #[arg(long)]
    homophily: Option<f64>,
    /// Distance of a class's mean feature from the origin, in standard deviations of the noise (planted) [default: 1.8].
    #[arg(long)]
    signal: Option<f64>,
    /// Exponent of the power law of the degrees (planted) [default: 2.5].
    #[arg(long)]
    degree_exponent: Option<f64>,
    /// Random seed; equal options and seeds give equal files.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Files per table; with more than one, each table is a folder.
    #[arg(long, default_value_t = 1)]
    files: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Planted,
    Rmat,
}

impl Generate {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let settings = config::Generate {
            kind: match self.kind {
                Kind::Planted => config::GenerateKind::Planted,
                Kind::Rmat => config::GenerateKind::Rmat,
            },
            nodes: self.nodes,
            scale: self.scale,
            edges: self.edges,
            edge_factor: self.edge_factor,
            features: self.features,
            classes: self.classes,
            homophily: self.homophily,
            signal: self.signal,
            degree_exponent: self.degree_exponent,
            seed: self.seed,
            files: self.files,
            ..config::Generate::default()
        };
        let generator = settings.generator();
        generator.check()?;
        let written = generator.write(&self.out, &context.console)?;
        if context.json {
            return print_json(&written);
        }
        let (nodes, edges) = (written.nodes_path.display(), written.edges_path.display());
        print(&format!(
            "{nodes}: {}\n{edges}: {}\n",
            plural(written.nodes as usize, "node"),
            plural(written.edges as usize, "edge")
        ))
    }
}
