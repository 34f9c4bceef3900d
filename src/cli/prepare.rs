//! `gnnflow prepare`: runs only the sections `[graph]` and `[partition]`.

use super::context::{Context, Pipeline};
use super::output::{print, print_json};
use crate::error::Error;
use crate::prepare::prepare;
use crate::prepare::{PrepareOptions, Prepared};
use crate::report;
use crate::upload::upload_dataset;
use gnnflow_data::format::plural;
use gnnflow_data::prepare::Quality;
use gnnflow_data::upload::check_target;
use gnnflow_pipelines::Error as PipelineError;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow prepare pipeline.toml
  gnnflow prepare pipeline.toml --set partition.parts=8 --out prepared/eight
  gnnflow prepare pipeline.toml --upload s3://lake/prepared/eight";

/// Prepare the dataset of a pipeline: read, partition and write the graph, and report the quality of the partition.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Prepare {
    #[command(flatten)]
    pipeline: Pipeline,
    /// Output folder [default: from the pipeline file, or .gnnflow/ beside it].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Number of processes on this machine; it does not change the dataset.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    processes: u16,
    /// File with one line `host:port` per process, for machines that share their files; start this command once per line.
    #[arg(long, value_name = "FILE", conflicts_with = "processes")]
    hosts: Option<PathBuf>,
    /// This process's line in the hosts file, from 0 [default: from the variables of Slurm, MPI, torchrun or Kubernetes].
    #[arg(long, value_name = "K", requires = "hosts")]
    rank: Option<usize>,
    /// Upload the dataset below this URL (s3://, gs:// or az://), for runs with `graph.dataset = "URL"`: each process then copies the partitions that it
    /// needs. The manifest is uploaded last.
    #[arg(long, value_name = "URL")]
    upload: Option<PathBuf>,
}

impl Prepare {
    /// Returns the path of the pipeline file.
    pub(super) fn pipeline_file(&self) -> &Path {
        self.pipeline.file()
    }

    pub(super) fn execute(self, context: &Context) -> Result<u8, Error> {
        let config = self.pipeline.load(&context.registry)?;
        if config.graph.dataset.is_some() {
            return Err(config.problem("graph.dataset", "the dataset is already prepared; use `gnnflow run`").into());
        }
        if let Some(url) = &self.upload {
            check_target(url)
                .map_err(|reason| PipelineError::Usage(format!("--upload {}: {reason}", url.display())))?;
        }
        let options = PrepareOptions {
            processes: usize::from(self.processes),
            hosts: self.hosts,
            rank: self.rank,
            out: self.out,
            console: context.console.clone(),
            registry: context.registry.clone(),
        };
        let dataset = match prepare(&config, &options)? {
            Prepared::Done(dataset) => dataset,
            Prepared::Elsewhere(code) => return Ok(code),
        };
        let manifest = dataset.manifest();
        let quality = Quality::read(dataset.dir())?;
        report::write_partition(dataset.dir(), &quality)?;
        if let Some(url) = &self.upload {
            upload_dataset(&dataset, url, config.graph.retry.0, &context.console)?;
        }
        if context.json {
            return print_json(&quality).map(|()| 0);
        }
        if context.console.is_silent() {
            return Ok(0);
        }
        print(&format!(
            "{}: {}, {} in {} by \"{}\"\n{}",
            dataset.dir().display(),
            plural(manifest.nodes as usize, "node"),
            plural(manifest.edges as usize, "edge"),
            plural(manifest.parts(), "partition"),
            manifest.method,
            report::partition_table(&quality),
        ))
        .map(|()| 0)
    }
}
