//! `gnnflow refresh`: computes the results of the nodes that a change of the dataset reaches.

use super::context::Context;
use super::infer::{Layers, Scoring, ScoringOptions, Wanted};
use crate::error::Error;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  gnnflow refresh runs/p --out results                     the first time: all nodes
  gnnflow update prepared/p --edges new.parquet
  gnnflow refresh runs/p --out results                     what has changed
  gnnflow refresh runs/p --dataset prepared/tuesday --layers prepared/monday.layers --out tuesday";

/// Compute again what a change of the dataset has changed in the results of a model.
///
/// The files are those of `gnnflow infer` on the changed dataset, with the same bytes. Rows of layers are stored beside the dataset; the next refresh computes only those that
/// new or removed edges, new nodes and other features can change. changes.parquet lists these nodes, with the predictions before and now.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Refresh {
    #[command(flatten)]
    scoring: Scoring,
    /// Folder of the stored rows of layers [default: the dataset's folder, with `.layers` at its end].
    #[arg(long, value_name = "DIR")]
    layers: Option<PathBuf>,
}

impl Refresh {
    pub(super) fn execute(self, context: Context) -> Result<u8, Error> {
        let layers = self.layers.map_or(Layers::BesideDataset, Layers::Folder);
        self.scoring.execute(context, Wanted::Changed(layers), ScoringOptions::default())
    }
}
