//! `gnnflow infer`: computes results with the model of a finished run.

use super::context::{Context, Processes, Target};
use super::output::print;
use crate::error::Error;
use crate::options::{Action, Outcome, RunOptions};
use crate::report;
use crate::run::is_same_folder;
use gnnflow_data::source::is_url;
use gnnflow_pipelines::config::{self, Config, Override};
use gnnflow_pipelines::{Error as PipelineError, InNeighbors, NodeSplit, Scope, Unseen};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow infer runs/p --out results                       the dataset of the run
  gnnflow infer runs/p --dataset prepared/tuesday --out tuesday --processes 4
  gnnflow infer runs/p --pipeline tuesday.toml --out tuesday   prepare tables like those of the run, and score them
  gnnflow infer runs/p --out results --set infer.embeddings=true
  gnnflow infer runs/p --nodes new.parquet --out new       only the nodes of a list";

/// Compute predictions and embeddings of all nodes, or of some, with the model of a finished run.
///
/// The dataset is that of the run, or another one with the same columns and classes, as after `gnnflow update` or from the tables of `--pipeline`. Results are those of the end of a run: they are computed
/// from all neighbors, unless `--fanouts` asks for samples, and do not depend on the number of processes. Metrics of labeled nodes are printed for each split.
/// If a model predicts edges, only a split column (`graph.columns.edge_split`) holds out edges of another dataset.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Infer {
    #[command(flatten)]
    scoring: Scoring,
    /// Pipeline file of the graph; of it, only [graph] and [partition] are used. The dataset is prepared if it is missing or stale, and encoded like that
    /// of the run.
    #[arg(long, value_name = "FILE", conflicts_with = "dataset")]
    pipeline: Option<PathBuf>,
    /// Only nodes of this list: a Parquet file, a folder of them or a URL, with the column `node_id`. Of a model that predicts links, the nodes that get
    /// recommendations.
    #[arg(long, value_name = "FILE", conflicts_with = "split")]
    nodes: Option<PathBuf>,
    /// Only nodes of this split.
    #[arg(long)]
    split: Option<Split>,
    /// What to do with nodes of which the model has no learned row: refuse the dataset, or use a row of zeros or the mean of their in-neighbors' rows.
    #[arg(long, value_name = "POLICY")]
    unseen: Option<Policy>,
    /// Maximum number of in-neighbors that each layer reads of a node, from the output layer on; -1 reads all. Larger neighborhoods are sampled, so results are
    /// not exact.
    #[arg(long, value_name = "N,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = fanout)]
    fanouts: Vec<i64>,
}

/// Parses a number of in-neighbors.
fn fanout(text: &str) -> Result<i64, String> {
    match text.trim().parse() {
        Ok(fanout) if fanout == -1 || fanout > 0 => Ok(fanout),
        _ => Err("expected a number from 1, or -1 for all in-neighbors".into()),
    }
}

/// What happens to nodes of which the model has no learned row.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Policy {
    Refuse,
    Zero,
    Mean,
}

impl From<Policy> for Unseen {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Refuse => Self::Refuse,
            Policy::Zero => Self::Zero,
            Policy::Mean => Self::Mean,
        }
    }
}

/// A split of the nodes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Split {
    Train,
    Val,
    Test,
}

impl From<Split> for NodeSplit {
    fn from(split: Split) -> Self {
        match split {
            Split::Train => Self::Train,
            Split::Val => Self::Val,
            Split::Test => Self::Test,
        }
    }
}

impl Infer {
    pub(super) fn execute(self, context: Context) -> Result<u8, Error> {
        let wanted = match (self.nodes, self.split) {
            (Some(file), _) => Wanted::Listed(file),
            (None, Some(split)) => Wanted::Split(split.into()),
            (None, None) => Wanted::All,
        };
        let neighbors = match self.fanouts {
            fanouts if fanouts.is_empty() => InNeighbors::All,
            fanouts => InNeighbors::Sampled(fanouts),
        };
        let options = ScoringOptions { pipeline: self.pipeline, unseen: self.unseen.map(Unseen::from), neighbors };
        self.scoring.execute(context, wanted, options)
    }
}

/// The nodes whose results are computed.
pub(super) enum Wanted {
    All,
    Listed(PathBuf),
    Split(NodeSplit),
    /// Those that have changed since rows of layers were stored.
    Changed(Layers),
}

/// Options of inference that refresh does not have.
#[derive(Debug, Default)]
pub(super) struct ScoringOptions {
    /// The pipeline file of the graph, if it is not a prepared dataset.
    pipeline: Option<PathBuf>,
    /// What happens to nodes without a learned row.
    unseen: Option<Unseen>,
    neighbors: InNeighbors,
}

/// What is computed, with which model, and where.
#[derive(Debug, clap::Args)]
pub(super) struct Scoring {
    /// Folder of the run that trained the model.
    run: PathBuf,
    /// Folder or URL of a prepared dataset [default: that of the run].
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// Folder for predictions.parquet, embeddings.parquet and summary.json; earlier results there are replaced.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Override a key of [infer] or [cluster], or `train.threads`, `train.device`, `train.read_ahead`, `partition.topology`, `partition.features`; with --upload
    /// or a URL also `graph.retry`. `graph.dataset_cache` is a folder for copies of the dataset; without it, those of a URL in --dataset are in .gnnflow/ here.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    at: Processes,
    /// Duration of opening the dataset; set for the processes that `--processes` starts.
    #[arg(long, hide = true, value_name = "SECONDS")]
    prepare_seconds: Option<f64>,
}

/// Where rows of layers are stored for a refresh.
pub(super) enum Layers {
    /// In this folder.
    Folder(PathBuf),
    /// Beside the dataset.
    BesideDataset,
}

impl Layers {
    pub(super) fn folder(self, dataset: &Path) -> Result<PathBuf, Error> {
        match self {
            Self::Folder(folder) if folder.join("manifest.json").exists() => {
                let message =
                    format!("--layers {}: the folder is a prepared dataset; choose another folder", folder.display());
                Err(PipelineError::Usage(message).into())
            }
            Self::Folder(folder) if folder.is_file() => {
                let message = format!("--layers {}: this is a file; choose a folder", folder.display());
                Err(PipelineError::Usage(message).into())
            }
            Self::Folder(folder) if !has_only_layers(&folder) => {
                let message = format!("--layers {}: the folder has other files; choose a new folder", folder.display());
                Err(PipelineError::Usage(message).into())
            }
            Self::Folder(folder) => Ok(folder),
            Self::BesideDataset => {
                // The name of `.` is that of the current folder.
                let dataset = dataset.canonicalize().unwrap_or_else(|_| dataset.to_owned());
                let mut name = dataset.file_name().unwrap_or_default().to_owned();
                name.push(".layers");
                Ok(dataset.with_file_name(name))
            }
        }
    }
}

/// Whether a folder is missing or empty, or has folders of models only, which are named by 16 digits.
fn has_only_layers(folder: &Path) -> bool {
    let of_model = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).unwrap_or_default();
        name.len() == 16 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    std::fs::read_dir(folder).map_or(true, |mut entries| entries.all(of_model))
}

/// Keys of pipeline files that do not change the model; a name with a dot at its end is a section.
const KEYS: [&str; 9] = [
    "infer.",
    "cluster.",
    "train.threads",
    "train.device",
    "train.read_ahead",
    "partition.topology",
    "partition.features",
    "graph.retry",
    CACHE,
];

/// The key of the folder for copies of the dataset.
const CACHE: &str = "graph.dataset_cache";

impl Scoring {
    /// Computes the results of the `wanted` nodes.
    pub(super) fn execute(self, context: Context, wanted: Wanted, options: ScoringOptions) -> Result<u8, Error> {
        let ScoringOptions { pipeline, unseen, neighbors } = options;
        let config = self.config(&context, &wanted, pipeline.as_deref())?;
        let has_retry = pipeline.is_some() || self.target.is_given() || is_url(config.dataset_name());
        if !has_retry && self.sets.iter().any(|set| key(set) == "graph.retry") {
            let message = "--set graph.retry: the key has no effect without --upload or a URL; leave it out";
            return Err(PipelineError::Usage(message.into()).into());
        }
        if unseen.is_some() {
            self.check_unseen(&config)?;
        }
        check_out(&self.run, &self.out)?;
        check_outside(&config, "--out", &self.out)?;
        self.target.check()?;
        let quiet = context.console.is_silent();
        let scope = match wanted {
            Wanted::All => Scope::All,
            Wanted::Listed(file) => Scope::Listed(file),
            Wanted::Split(split) => Scope::Split(split),
            Wanted::Changed(layers) => {
                let folder = layers.folder(config.dataset_folder())?;
                check_outside(&config, "--layers", &folder)?;
                Scope::Changed(folder)
            }
        };
        let upload = self.target.within(&config, &self.at, &self.out);
        let options = RunOptions {
            upload,
            processes: usize::from(self.at.processes),
            hosts: self.at.hosts,
            rank: self.at.rank,
            run_dir: self.out.clone(),
            action: Action::Infer { run: self.run, scope, unseen: unseen.unwrap_or_default(), neighbors },
            prepare_seconds: self.prepare_seconds,
            console: context.console,
            registry: context.registry,
        };
        let code = match crate::run::run(&config, &options)? {
            Outcome::Elsewhere(code) => code,
            Outcome::Done(summary) => {
                if context.json {
                    print(&summary.to_json())?;
                } else if !quiet {
                    print(&format!("{}results in {}\n", report::table(&summary), self.out.display()))?;
                }
                0
            }
        };
        if code == 0 {
            self.target.upload(&config, &options)?;
        }
        Ok(code)
    }

    /// Checks that the dataset may have nodes of which the model has no learned row.
    fn check_unseen(&self, config: &Config) -> Result<(), Error> {
        if config.model.as_ref().is_none_or(|model| model.embedding.is_some()) {
            return Ok(());
        }
        let message =
            format!("--unseen: the model of {} has no learned rows; leave the option out", self.run.display());
        Err(PipelineError::Usage(message).into())
    }

    /// Returns the pipeline of the run, with the dataset.
    fn config(&self, context: &Context, wanted: &Wanted, pipeline: Option<&Path>) -> Result<Config, Error> {
        let graph = match (pipeline, &self.dataset) {
            (Some(file), _) => GraphOf::Pipeline(file),
            (None, Some(dataset)) => GraphOf::Dataset(dataset),
            (None, None) => GraphOf::Run,
        };
        let config = model_config(&self.run, graph, &self.sets, context)?;
        let predicts_edges = config.train.as_ref().is_some_and(|train| train.task.learns_edges());
        let refreshes = matches!(wanted, Wanted::Changed(_));
        let why = match wanted {
            Wanted::All => None,
            Wanted::Changed(_) => Some("results of edges cannot be refreshed; compute them anew with `gnnflow infer`"),
            Wanted::Listed(_) if config.infer.as_ref().is_some_and(|infer| infer.recommendations.is_some()) => None,
            Wanted::Listed(_) => Some(
                "--nodes chooses nodes; leave it out, or give the length of lists of recommendations for these nodes, as in --set infer.recommendations=10",
            ),
            Wanted::Split(_) => Some("--split chooses nodes; leave it out"),
        };
        if let Some(why) = why.filter(|_| predicts_edges) {
            let message = format!("{}: the model predicts edges, and {why}", self.run.display());
            return Err(PipelineError::Usage(message).into());
        }
        let nothing =
            |infer: &config::Infer| !infer.predictions && !infer.embeddings && infer.recommendations.is_none();
        if !refreshes && config.infer.as_ref().is_some_and(nothing) {
            let message = "infer.predictions and infer.embeddings are false, and infer.recommendations is not set, so there is nothing to \
                           compute; set one of them, as in --set infer.embeddings=true";
            return Err(PipelineError::Usage(message.into()).into());
        }
        Ok(config)
    }
}

/// The graph that a model is used on.
#[derive(Clone, Copy, Debug)]
pub(super) enum GraphOf<'a> {
    /// The prepared dataset of the model's run.
    Run,
    /// This prepared dataset.
    Dataset(&'a Path),
    /// The one of this pipeline file.
    Pipeline(&'a Path),
}

impl GraphOf<'_> {
    /// Whether the key of a `--set` belongs to the pipeline file of the graph.
    fn has(self, set: &str) -> bool {
        matches!(self, Self::Pipeline(_))
            && ["graph.", "partition."].iter().any(|section| key(set).starts_with(section))
    }
}

/// Returns the key of a `--set`.
fn key(set: &str) -> &str {
    set.split('=').next().unwrap_or_default().trim()
}

/// Returns the pipeline of the finished run in folder `run`, for inference on a graph.
pub(super) fn model_config(
    run: &Path,
    graph: GraphOf<'_>,
    sets: &[String],
    context: &Context,
) -> Result<Config, Error> {
    let (mut of_graph, of_model): (Vec<String>, Vec<String>) = sets.iter().cloned().partition(|set| graph.has(set));
    for key in of_model.iter().map(|set| key(set)) {
        if !KEYS.iter().any(|allowed| key == *allowed || allowed.ends_with('.') && key.starts_with(allowed)) {
            let message = format!(
                "--set {key}: the model is trained, so only keys of [infer] and [cluster], train.threads, train.device, train.read_ahead, \
                 partition.topology, partition.features, graph.dataset_cache and graph.retry can be set, and with --pipeline those of [graph] and [partition]"
            );
            return Err(PipelineError::Usage(message).into());
        }
    }
    // It is that of the dataset which is used, not of the run's.
    let (caches, of_model): (Vec<_>, Vec<_>) = of_model.into_iter().partition(|set| key(set) == CACHE);
    let file = run.join("pipeline.toml");
    if !file.is_file() {
        let message =
            format!("{}: no run folder: it has no pipeline.toml; name the folder of a finished run", run.display());
        return Err(PipelineError::Usage(message).into());
    }
    let load = |file: &Path, sets: &[String]| -> Result<Config, Error> {
        let overrides: Vec<_> = sets.iter().cloned().map(Override::Set).collect();
        let config = Config::load(file, &overrides, &context.registry.names())?;
        context.registry.check(&config)?;
        Ok(config)
    };
    let config = load(&file, &of_model)?;
    if config.train.is_none() {
        let message = format!(
            "{}: the run has prepared a dataset and trained no model: pipeline.toml has no [train]; name the folder of a run that has trained",
            run.display()
        );
        return Err(PipelineError::Usage(message).into());
    }
    let mut config = match graph {
        GraphOf::Run => {
            let dataset = config.dataset_name().to_owned();
            config.for_inference(&dataset)
        }
        GraphOf::Dataset(dataset) => config.for_inference(dataset),
        GraphOf::Pipeline(file) => {
            let mut graph = load(file, &of_graph)?;
            if graph.graph.dataset.is_none() && graph.graph.encode_like.is_none() {
                // The default folder of the dataset depends on it, so that a dataset of the file alone remains.
                let run = std::path::absolute(run).unwrap_or_else(|_| run.to_owned());
                of_graph.push(format!("graph.encode_like={}", serde_json::json!(run.to_string_lossy())));
                graph = load(file, &of_graph)?;
            }
            let own = resolved(graph.dataset_folder());
            if graph.graph.dataset.is_none() && folders_of_dataset(&config).any(|folder| resolved(folder) == own) {
                let message = format!(
                    "--pipeline {}: its dataset would replace {}, that of the run; name another folder, as in --set partition.out=prepared/other",
                    file.display(),
                    graph.dataset_folder().display()
                );
                return Err(PipelineError::Usage(message).into());
            }
            graph.resolve_parts()?;
            config.for_inference_on(graph)
        }
    };
    if let Some((_, folder)) = caches.last().and_then(|set| set.split_once('=')) {
        let folder = folder.trim().trim_matches(['"', '\'']);
        config.graph.dataset_cache = Some(std::path::absolute(folder).unwrap_or_else(|_| folder.into()));
    }
    Ok(config)
}

/// Refuses to write results among the files of a run that has trained, or of a dataset.
pub(super) fn check_out(run: &Path, out: &Path) -> Result<(), Error> {
    let is = match (out.join("pipeline.toml").exists() || is_same_folder(run, out), out.join("manifest.json").exists())
    {
        (true, _) => "has a run with its own results",
        (_, true) => "is a prepared dataset",
        _ => return Ok(()),
    };
    let message = format!("--out {}: the folder {is}; choose another folder", out.display());
    Err(PipelineError::Usage(message).into())
}

/// Refuses a folder in that of the dataset, or of its copies, which are replaced as a whole.
pub(super) fn check_outside(config: &Config, option: &str, folder: &Path) -> Result<(), Error> {
    let Some(dataset) = folders_of_dataset(config).find(|dataset| resolved(folder).starts_with(resolved(dataset)))
    else {
        return Ok(());
    };
    let (folder, dataset) = (folder.display(), dataset.display());
    let message = format!(
        "{option} {folder}: the folder is in that of the dataset, {dataset}, which is replaced as a whole; choose another one"
    );
    Err(PipelineError::Usage(message).into())
}

/// Returns the folders of the dataset on this machine: its own, and that of its copies.
fn folders_of_dataset(config: &Config) -> impl Iterator<Item = &Path> {
    [config.dataset_folder(), config.dataset_name()].into_iter().filter(|folder| !is_url(folder))
}

/// Returns an absolute path without symbolic links in its existing part.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().find_map(|folder| Some((folder, folder.canonicalize().ok()?)));
    let rest = |(folder, real): (&Path, PathBuf)| Some(real.join(absolute.strip_prefix(folder).ok()?));
    existing.and_then(rest).unwrap_or_else(|| absolute.clone())
}
