//! `gnnflow prepare`: the stages `[graph]` and `[partition]` only.

use super::{Context, Pipeline, print, print_json};
use crate::Error;
use gnnflow_data::prepare::Quality;
use gnnflow_pipelines::prepare;
use std::path::PathBuf;

/// Prepare the dataset of a pipeline and stop: read, cut, and write partitions, with a report of the cut's quality.
#[derive(Debug, clap::Args)]
pub(super) struct Prepare {
    #[command(flatten)]
    pipeline: Pipeline,
    /// The folder for the dataset [default: what the file says, or .gnnflow/ beside it].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Prepare {
    pub(super) fn execute(self, context: &Context) -> Result<(), Error> {
        let spec = self.pipeline.load(&context.registry)?;
        if spec.graph.dataset.is_some() {
            return Err(spec.problem("graph.dataset", "is prepared already; there is nothing to do").into());
        }
        let dataset = prepare(&spec, &context.registry, self.out.as_deref(), &context.talk)?;
        let manifest = dataset.manifest();
        let quality = Quality::read(dataset.dir())?;
        if context.json {
            return print_json(&quality);
        }
        if context.talk.is_silent() {
            return Ok(());
        }
        print(&format!(
            "{}: {} nodes, {} edges in {} partitions by \"{}\"; edge cut {:.3}, replication factor {:.3}\n",
            dataset.dir().display(),
            manifest.nodes,
            manifest.edges,
            manifest.parts(),
            manifest.method,
            quality.edge_cut,
            quality.replication_factor,
        ))
    }
}
