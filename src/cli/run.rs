//! `gnnflow run`: runs a pipeline.

use super::context::{Context, Pipeline, Processes, Target};
use super::output::{print, print_json};
use crate::error::Error;
use crate::options::{Action, Outcome, RunOptions};
use crate::report;
use gnnflow_data::prepare::Quality;
use gnnflow_pipelines::{Plan, Registry};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow run pipeline.toml
  gnnflow run pipeline.toml --dry-run
  gnnflow run pipeline.toml --set train.epochs=5 --unset train.early_stop
  gnnflow run pipeline.toml --processes 4 --resume";

/// Run a pipeline: prepare the dataset if it is missing or stale, then train and infer.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Run {
    #[command(flatten)]
    pipeline: Pipeline,
    #[command(flatten)]
    at: Processes,
    /// Run folder [default: runs/NAME].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Continue after the last checkpoint in the run folder.
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    target: Target,
    /// Duration of the preparation; set for the processes that `--processes` starts.
    #[arg(long, hide = true, value_name = "SECONDS")]
    prepare_seconds: Option<f64>,
    /// Print the plan (stages, sizes, memory, messages) and exit.
    #[arg(long)]
    dry_run: bool,
}

impl Run {
    /// Returns the path of the pipeline file.
    pub(super) fn pipeline_file(&self) -> &Path {
        self.pipeline.file()
    }

    /// Returns whether the run goes on without lost processes. Reads the pipeline file only.
    ///
    /// # Errors
    /// If the pipeline is invalid.
    pub(super) fn is_elastic(&self, registry: &Registry) -> Result<bool, Error> {
        let config = self.pipeline.read(registry, &[])?;
        Ok(config.cluster.elastic && config.train.is_some() && !self.dry_run)
    }

    pub(super) fn execute(self, context: Context) -> Result<u8, Error> {
        let config = self.pipeline.load(&context.registry)?;
        let (local, processes) = (usize::from(self.at.processes), self.at.count()?);
        if config.graph.dataset.is_none() {
            config.check_processes(processes, config.parts())?;
        }
        crate::tensor_workers::check(&config)?;
        self.target.check()?;
        if self.dry_run {
            let mut config = config;
            config.resolve_schedule()?;
            config.resolve_epochs()?;
            let plan = Plan::new(&config, processes, local)?;
            let shown = if context.json { print_json(&plan) } else { print(&plan.to_string()) };
            return shown.map(|()| 0);
        }
        let run_dir = self.run_dir.unwrap_or_else(|| PathBuf::from("runs").join(&config.name));
        let quiet = context.console.is_silent();
        let upload = self.target.within(&config, &self.at, &run_dir);
        let options = RunOptions {
            upload,
            processes: local,
            hosts: self.at.hosts,
            rank: self.at.rank,
            run_dir: run_dir.clone(),
            action: Action::Train { resume: self.resume },
            prepare_seconds: self.prepare_seconds,
            console: context.console,
            registry: context.registry,
        };
        let code = match crate::run::run(&config, &options)? {
            Outcome::Elsewhere(code) => code,
            Outcome::Done(summary) => {
                // A dataset of an older version may have no quality report.
                let quality = Quality::read(config.dataset_folder()).ok();
                report::write(&run_dir, &summary, quality.as_ref())?;
                if context.json {
                    print(&summary.to_json())?;
                } else if !quiet {
                    print(&format!("{}run folder {}\n", report::table(&summary), run_dir.display()))?;
                }
                0
            }
        };
        if code == 0 {
            self.target.upload(&config, &options)?;
        }
        Ok(code)
    }
}
