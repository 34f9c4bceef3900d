//! `gnnflow follow`: applies batches of changes as they appear, and writes what each changes.

use super::context::{Context, Processes};
use super::infer::{GraphOf, Layers, check_out, check_outside, model_config, resolved};
use super::output::print;
use super::update::Policy;
use crate::error::Error;
use crate::options::{Action, Outcome, RunOptions};
use crate::report;
use gnnflow_data::folders::check_place;
use gnnflow_data::source::is_url;
use gnnflow_data::upload::check_target;
use gnnflow_pipelines::{Error as PipelineError, Feed};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow follow runs/p --changes incoming --out followed          wait for batches; end with Ctrl-C, continue with the same command
  gnnflow follow runs/p --changes incoming --out followed --once   apply the batches that are there, and end";

/// Apply batches of changes to a graph as they appear, and write the results that each batch changes.
///
/// A batch is a folder in the folder of changes, with nodes.parquet, values.parquet, remove.parquet, remove_nodes.parquet or edges.parquet, as for `gnnflow update`, and `_SUCCESS` when it is complete.
/// Batches are applied in the order of their names. Results of batch NAME are in batches/NAME/changes.parquet, exactly once, also after the process was killed.
/// With `--hosts`, all hosts share the folders of the dataset, of its layers, and of the results.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Follow {
    /// Folder of the run that trained the model.
    run: PathBuf,
    /// Folder of a prepared dataset, which is updated [default: that of the run].
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// Folder in which batches appear, or the URL of one in an object store (s3://, gs://, az://).
    #[arg(long, value_name = "DIR|URL")]
    changes: PathBuf,
    /// Folder for the results of all nodes and of each batch, and for the state.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Upload the results of each batch below this URL (s3://, gs:// or az://), each with `_SUCCESS` as its last object.
    #[arg(long, value_name = "URL")]
    upload: Option<PathBuf>,
    /// Folder of the stored rows of layers [default: the dataset's folder, with `.layers` at its end].
    #[arg(long, value_name = "DIR")]
    layers: Option<PathBuf>,
    /// Apply the batches that are there, and end.
    #[arg(long)]
    once: bool,
    /// The dataset contains the batches up to this one already. Give it at the first start with this --out.
    #[arg(long, value_name = "NAME")]
    after: Option<String>,
    /// What to do if an edge or node to remove does not exist.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t)]
    missing: Policy,
    /// Number of batches after which the changes are stored in the dataset, and tables of all nodes are written.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    store_every: u32,
    /// Override a key of [infer] or [cluster], or `train.threads`, `train.device`, `train.read_ahead`; with a URL also `graph.retry`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    #[command(flatten)]
    at: Processes,
    /// Duration of opening the dataset; set for the processes that `--processes` starts.
    #[arg(long, hide = true, value_name = "SECONDS")]
    prepare_seconds: Option<f64>,
}

impl Follow {
    pub(super) fn execute(self, context: Context) -> Result<u8, Error> {
        if let Some(key) = self.sets.iter().find_map(|set| self.without_effect(set)) {
            let message = format!("--set {key}: the key has no effect on `gnnflow follow`; leave it out");
            return Err(PipelineError::Usage(message).into());
        }
        let config = model_config(
            &self.run,
            self.dataset.as_deref().map_or(GraphOf::Run, GraphOf::Dataset),
            &self.sets,
            &context,
        )?;
        let refuse = |why: &str| Err(PipelineError::Usage(format!("{}: {why}", self.run.display())).into());
        let (model, train) = (config.model.as_ref(), config.train.as_ref());
        if train.is_some_and(|train| train.task.learns_edges()) {
            return refuse("the model predicts edges, whose results are not followed; use `gnnflow infer`");
        }
        if model.is_some_and(|model| model.embedding.is_some()) {
            return refuse("the model has learned rows of nodes, and new nodes have none; use `gnnflow infer`");
        }
        if model.is_some_and(|model| model.reads_edge_features()) {
            return refuse(
                "the model reads features of edges, which are not followed; use `gnnflow update` and `gnnflow refresh`",
            );
        }
        if config.graph.dataset_cache.is_some() {
            let dataset = config.dataset_name().display();
            let message = format!(
                "{dataset}: batches of changes are stored in the dataset, so it must be a folder without graph.dataset_cache; name one with --dataset"
            );
            return Err(PipelineError::Usage(message).into());
        }
        let is_remote = is_url(&self.changes);
        if is_remote {
            let refused = |reason| PipelineError::Usage(format!("--changes {}: {reason}", self.changes.display()));
            check_place(&self.changes).map_err(refused)?;
        } else if !self.changes.is_dir() {
            let message = format!("--changes {}: there is no such folder; create it", self.changes.display());
            return Err(PipelineError::Usage(message).into());
        }
        if let Some(url) = &self.upload {
            check_target(url)
                .map_err(|reason| PipelineError::Usage(format!("--upload {}: {reason}", url.display())))?;
        }
        check_out(&self.run, &self.out)?;
        let layers = self.layers.map_or(Layers::BesideDataset, Layers::Folder).folder(config.dataset_folder())?;
        for (option, folder) in [("--out", &*self.out), ("--layers", &layers), ("--dataset", config.dataset_folder())] {
            if !is_remote {
                check_apart(&self.changes, option, folder)?;
            }
        }
        for (option, folder) in [("--out", &self.out), ("--layers", &layers)] {
            check_outside(&config, option, folder)?;
        }
        let feed = Feed {
            changes: self.changes,
            layers,
            upload: self.upload,
            after: self.after,
            missing: self.missing.into(),
            store_every: self.store_every as usize,
            once: self.once,
        };
        let options = RunOptions {
            upload: None,
            processes: usize::from(self.at.processes),
            hosts: self.at.hosts,
            rank: self.at.rank,
            run_dir: self.out.clone(),
            action: Action::Follow { run: self.run, feed },
            prepare_seconds: self.prepare_seconds,
            console: context.console.clone(),
            registry: context.registry,
        };
        match crate::run::run(&config, &options)? {
            Outcome::Elsewhere(code) => Ok(code),
            Outcome::Done(summary) => {
                if context.json {
                    print(&summary.to_json())?;
                } else if !context.console.is_silent() {
                    print(&format!("{}results in {}\n", report::table(&summary), self.out.display()))?;
                }
                Ok(0)
            }
        }
    }

    /// Returns the key of a setting that `infer` and `refresh` allow, and that has no effect here: each process reads the edges and features of its own
    /// partitions, and all files but those of changes and uploads are local.
    fn without_effect<'a>(&self, set: &'a str) -> Option<&'a str> {
        let key = set.split('=').next().unwrap_or_default().trim();
        let has_none = match key {
            "partition.topology" | "partition.features" | "graph.dataset_cache" => true,
            "graph.retry" => !is_url(&self.changes) && self.upload.is_none(),
            _ => false,
        };
        has_none.then_some(key)
    }
}

/// Refuses folders of which one has the other, because files of one would be taken for files of the other.
fn check_apart(changes: &Path, option: &str, folder: &Path) -> Result<(), Error> {
    let (a, b) = (resolved(changes), resolved(folder));
    if !a.starts_with(&b) && !b.starts_with(&a) {
        return Ok(());
    }
    let [changes, folder] = [changes, folder].map(Path::display);
    let message =
        format!("--changes {changes} and {option} {folder}: one of the folders is in the other; choose other ones");
    Err(PipelineError::Usage(message).into())
}
