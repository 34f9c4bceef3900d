//! Runs a pipeline, in one process or in several.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use gnnflow_data::Dataset;
use gnnflow_data::progress::Progress;
use gnnflow_pipelines::executor::ExecutorFactory;
use gnnflow_pipelines::summary::{EpochRecord, SCHEMA, Seconds};
use gnnflow_pipelines::{
    Config, Error as PipelineError, FittingModel, Job, Runtime, Stage, Summary, WarmStart, Work, keep_earlier_run,
    last_checkpoint, run_worker,
};

use crate::cluster::{
    Absent, ClusterConfig, Elastic, Fingerprints, Launcher, Liveness, Membership, Restarted, config_from_launcher,
    execute, host_numbers, is_launched, is_supervised, restarted,
};
use crate::console::Console;
use crate::error::Error;
use crate::metrics::MetricsServer;
use crate::options::{Action, Outcome, RunOptions};
use crate::prepare_alone::prepare_alone;
use crate::run_lock::RunLock;
use crate::status::{Activity, Cache, End, RecordedProgress, Reporter, StatusWriter};
use crate::stderr;
use crate::tensor_workers::{self, TensorWorkers};
use crate::threads::start_reading_threads;

/// Runs the stages of `config`: prepares the dataset, trains, infers; or infers with the model of an earlier run.
///
/// With `options.processes` above 1, this process prepares the dataset, starts child processes and waits for them. Rank 0 of them has
/// the results.
///
/// # Errors
/// The error that ended the run; with several processes, the first one of all.
pub fn run(config: &Config, options: &RunOptions) -> Result<Outcome, Error> {
    tensor_workers::check(config)?;
    let cluster = cluster_config(config, options)?;
    if let Some(launcher) = supervisor(config, options, cluster.as_ref()) {
        return Ok(Outcome::Elsewhere(launcher.run()?));
    }
    cluster.iter().for_each(|cluster| stderr::set_rank(cluster.rank));
    start_reading_threads()?;
    let first = cluster.as_ref().is_none_or(|cluster| cluster.rank == 0);
    let console = if first { options.console.clone() } else { Console::silent() };
    // Child processes write under the lock of their parent.
    let _lock = (first && !is_launched()).then(|| RunLock::take(&options.run_dir)).transpose()?;
    let progress = RecordedProgress { console, activity: Activity::begin() };
    let preparing = Liveness::default();
    let start = || {
        let own = Reporter::new(0, progress.activity.clone(), preparing.clone(), Arc::default());
        StatusWriter::start(&options.run_dir, &config.name, &progress.activity, own)
    };
    let status = first.then(start).transpose()?;
    let result = run_here(config, options, cluster, &progress, (preparing, status.as_ref()));
    if let Some(status) = status {
        status.end(match &result {
            Ok(Outcome::Done(_)) => End::Finished,
            Ok(Outcome::Elsewhere(code)) => End::Children(*code),
            Err(error) => End::Failed(error),
        });
    }
    result
}

/// Runs the stages in this process, or in child processes. The preparation reports to `preparing`. `status` shows the run to others, if this
/// process has the run folder.
fn run_here(
    config: &Config,
    options: &RunOptions,
    cluster: Option<ClusterConfig>,
    progress: &RecordedProgress,
    (preparing, status): (Liveness, Option<&StatusWriter>),
) -> Result<Outcome, Error> {
    let RecordedProgress { console, activity } = progress;
    let begin = Instant::now();
    let dataset = prepare_alone(config, &options.registry, None, progress, preparing)?;
    let prepared = options.prepare_seconds.unwrap_or_else(|| begin.elapsed().as_secs_f64());
    let size = cluster.as_ref().map_or(options.processes, ClusterConfig::size);
    config.check_processes(size, dataset.manifest().parts())?;
    // All processes choose the same schedule and number of epochs, because these depend on the dataset only.
    let mut resolved = config.clone();
    resolved.resolve_schedule()?;
    resolved.resolve_epochs()?;
    let config = &resolved;
    let Some(train) = &config.train else {
        return prepared_only(config, options, dataset.manifest().parts(), prepared);
    };
    let mut work = match &options.action {
        Action::Train { resume } => Work::Train { resume: *resume, from: warm_start(config, options, &dataset)? },
        Action::Infer { run, scope, unseen, neighbors } => {
            let model = FittingModel::open(run, train.task, dataset.manifest())?;
            model.check_results(train.task, &config.infer.clone().unwrap_or_default(), dataset.manifest())?;
            let model = FittingModel { unseen: *unseen, ..model };
            Work::Infer { model, scope: scope.clone(), neighbors: neighbors.clone() }
        }
        Action::Follow { run, feed } => Work::Follow {
            model: FittingModel::open(run, train.task, dataset.manifest())?,
            feed: feed.clone(),
            room: 0,
        },
    };

    if cluster.is_none() && options.processes > 1 {
        if config.cluster.elastic {
            console.warn(
                "cluster.elastic has no effect without --hosts: if a process is lost, all of --processes start again",
            );
        }
        let mut launcher = Launcher::new(options.processes);
        launcher.restarts = config.cluster.restarts as usize;
        launcher.waits_after_signal = writes_checkpoint_on_signal(config, options);
        launcher.checkpoint = Some(last_checkpoint(&options.run_dir));
        // The children find a prepared dataset; this is the time for their summary.
        launcher.arguments.push(format!("--prepare-seconds={prepared}").into());
        status.iter().for_each(|status| status.leave_to_children());
        return Ok(Outcome::Elsewhere(launcher.run()?));
    }

    if let Some(auto) = config.auto_schedule() {
        console.say(&format!("train.schedule = \"auto\" chooses \"{}\": {}", auto.chosen, auto.because));
    }

    // It ends with the run.
    let _metrics = match (&config.cluster.metrics, status) {
        (Some(address), Some(status)) => Some(MetricsServer::start(address, status.last(), console)?),
        _ => None,
    };
    let (mut secret, mut remote) = (None, None);
    let mut membership = match cluster {
        None => Membership::single(config.cluster.stall_timeout.0),
        Some(mut cluster) => {
            // With a hosts file, other processes may be on other machines.
            let others = cluster.addresses.iter().enumerate().filter(|&(rank, _)| rank != cluster.rank);
            remote = others.map(|(_, address)| address.clone()).find(|_| options.hosts.is_some());
            secret = cluster.secret.clone();
            cluster.fingerprints = Fingerprints {
                build: Fingerprints::of_build()?,
                pipeline: match &work {
                    Work::Train { from, .. } => {
                        let model = from.as_ref().map(|model| format!(" from model {}", model.sha256));
                        // Processes write checkpoints together.
                        let (every, on_signal) = (train.checkpoint_every, train.checkpoint_on_signal);
                        let checkpoints = format!(
                            "checkpoint_every {every}, checkpoint_on_signal {on_signal}, keep_best {}",
                            train.keep_best
                        );
                        format!("{checkpoints}, {}{}", config.fingerprint(), model.unwrap_or_default())
                    }
                    Work::Infer { model, scope, neighbors } => {
                        let FittingModel { sha256, unseen, .. } = model;
                        let options = format!("unseen nodes: {unseen:?}, neighbors: {neighbors:?}");
                        format!("{scope} of {} with model {sha256}, {options}", config.fingerprint())
                    }
                    Work::Follow { model, .. } => {
                        format!("changes of {} with model {}", config.fingerprint(), model.sha256)
                    }
                },
                dataset: dataset.manifest().fingerprint.clone(),
            };
            cluster.start_timeout = config.cluster.start_timeout.0;
            cluster.heartbeat_timeout = config.cluster.heartbeat_timeout.0;
            cluster.stall_timeout = config.cluster.stall_timeout.0;
            // Rank 0, which has the run folder, decides whether to resume.
            let resumes = matches!(work, Work::Train { resume: true, .. });
            cluster.announced = if resumes { RESUMES.into() } else { String::new() };
            activity.stage(Stage::Connecting);
            let trains = matches!(work, Work::Train { .. });
            let elastic = config.cluster.elastic && options.hosts.is_some() && trains;
            cluster.elastic = elastic.then(|| Elastic {
                wait: restarted().map(|why| match why {
                    Restarted::Lost => config.cluster.elastic_wait.0,
                    // All were there a moment ago.
                    Restarted::Returned => config.cluster.start_timeout.0,
                }),
            });
            let membership = Membership::join(cluster)?;
            if let Work::Train { resume, .. } = &mut work {
                *resume = membership.announced() == RESUMES;
            }
            membership
        }
    };
    let (reduced, absent) = (membership.is_reduced(), Arc::new(membership.take_absent()));
    let (rank, traffic) = (membership.rank(), Arc::clone(membership.traffic()));
    let own = Arc::new(Reporter::new(rank, activity.clone(), membership.liveness(), traffic));
    if let Some(status) = status {
        status.connected(Arc::clone(&own), Arc::clone(membership.statuses()), membership.size());
    }
    membership.statuses().set_own(move || own.status());
    let (hosts, numbers_on_host) = (host_numbers(membership.addresses()), membership.numbers_on_host());
    let local = hosts.iter().filter(|&&host| host == hosts[membership.rank()]).count();
    let liveness = membership.liveness();
    let tensor_workers = TensorWorkers::new(config, secret, remote, rank == 0, numbers_on_host[rank])?;
    let epochs = train.epochs();
    if matches!(work, Work::Train { .. }) {
        activity.set_epochs(epochs);
    }
    let (progress, uploading) = (progress.clone(), activity.clone());
    let warnings = options.console.clone();
    let missing = Arc::clone(&absent);
    let runtime = RunRuntime { progress, warnings, liveness, epochs, tensor_workers, reduced, missing };
    let job = Job {
        config: config.clone(),
        dataset,
        registry: options.registry.clone(),
        run_dir: options.run_dir.clone(),
        work,
        hosts,
        numbers_on_host,
        threads: train.threads(local),
        prepare_seconds: prepared,
        build: Fingerprints::of_build()?,
        runtime: Arc::new(runtime),
    };
    let (upload, partitions, liveness) =
        (options.upload.clone(), job.dataset.manifest().parts(), membership.liveness());
    let results = options.console.clone();
    let summary = execute(membership, move |worker| {
        let summary = run_worker(worker, &job).map_err(Error::from)?;
        if let Some(upload) = &upload {
            uploading.stage(Stage::Uploading);
            // The console of the others shows neither progress nor results.
            let console = if summary.is_some() { results.clone() } else { Console::silent() };
            upload.together(worker, partitions, &liveness, &console)?;
        }
        Ok::<_, Error>(summary)
    })?;
    absent.iter().for_each(Absent::finished);
    Ok(summary.map_or(Outcome::Elsewhere(0), |summary| Outcome::Done(Box::new(summary))))
}

/// Opens the model from which training starts, if there is one.
fn warm_start(config: &Config, options: &RunOptions, dataset: &Dataset) -> Result<Option<WarmStart>, Error> {
    let (Some(model), Some(train)) = (&config.model, &config.train) else { return Ok(None) };
    let Some(run) = &train.from else { return Ok(None) };
    if is_same_folder(run, &options.run_dir) {
        let message = format!(
            "train.from: {} is also the run folder, whose files are moved when training begins; choose another folder with --run-dir",
            run.display()
        );
        return Err(PipelineError::Usage(message).into());
    }
    Ok(Some(WarmStart::open(run, (model, train), dataset.manifest())?))
}

/// Returns whether two paths lead to one folder.
pub(crate) fn is_same_folder(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The announcement of rank 0 in a run that continues from a checkpoint.
const RESUMES: &str = "resume";

/// Returns whether this process uses the results of the run when it has ended: the one of rank 0, or the process that has started it.
pub(crate) fn has_results(config: &Config, options: &RunOptions) -> Result<bool, Error> {
    Ok(!is_launched() && !is_supervised() && cluster_config(config, options)?.is_none_or(|cluster| cluster.rank == 0))
}

/// Returns whether the processes write a checkpoint before they end after a signal.
fn writes_checkpoint_on_signal(config: &Config, options: &RunOptions) -> bool {
    let trains = matches!(options.action, Action::Train { .. });
    trains && config.train.as_ref().is_some_and(|train| train.checkpoint_on_signal)
}

/// Returns the launcher that restarts this rank of a hosts file, if the pipeline has restarts and this process is not yet the launcher's
/// child. The children of `--processes` have a common parent, which restarts them.
fn supervisor(config: &Config, options: &RunOptions, cluster: Option<&ClusterConfig>) -> Option<Launcher> {
    let rank = cluster.filter(|_| !is_launched() && !is_supervised() && config.cluster.restarts > 0)?.rank;
    let mut launcher = Launcher::this_rank();
    launcher.restarts = config.cluster.restarts as usize;
    launcher.waits_after_signal = writes_checkpoint_on_signal(config, options);
    // Inference has no checkpoint and begins anew: there is no such file.
    let infers = matches!(options.action, Action::Infer { .. } | Action::Follow { .. });
    launcher.checkpoint = (rank == 0 || infers).then(|| last_checkpoint(&options.run_dir));
    Some(launcher)
}

/// Returns the cluster configuration of this process: from its parent, or from the hosts file. `None` for a single process.
pub(crate) fn cluster_config(config: &Config, options: &RunOptions) -> Result<Option<ClusterConfig>, Error> {
    if let Some(child) = config_from_launcher()? {
        return Ok(Some(ClusterConfig { encrypt: config.cluster.encrypt, ..child }));
    }
    let Some(file) = &options.hosts else { return Ok(None) };
    let secret_file = config.cluster.secret_file.as_deref();
    Ok(ClusterConfig::from_hosts(file, options.rank, secret_file, config.cluster.encrypt)?)
}

/// Writes and returns the summary of a pipeline without training.
fn prepared_only(config: &Config, options: &RunOptions, partitions: usize, prepared: f64) -> Result<Outcome, Error> {
    let summary = Summary {
        schema: SCHEMA,
        name: config.name.clone(),
        partitions,
        processes: 1,
        seconds: Seconds { prepare: prepared, ..Seconds::default() },
        versions: [("gnnflow".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into(),
        ..Summary::default()
    };
    let (dir, path) = (&options.run_dir, options.run_dir.join("pipeline.toml"));
    std::fs::create_dir_all(dir).map_err(gnnflow_pipelines::Error::io("create", dir))?;
    keep_earlier_run(dir, |line| options.console.say(line))?;
    std::fs::write(&path, config.resolved_toml()).map_err(gnnflow_pipelines::Error::io("write", &path))?;
    summary.write(dir)?;
    Ok(Outcome::Done(Box::new(summary)))
}

/// Reports the worker's progress to the other processes and to the user.
struct RunRuntime {
    progress: RecordedProgress,
    /// Prints warnings, also where progress is not shown.
    warnings: Console,
    liveness: Liveness,
    epochs: usize,
    tensor_workers: Option<TensorWorkers>,
    /// Whether processes are missing, and at rank 0 which ones.
    reduced: bool,
    missing: Arc<Option<Absent>>,
}

impl Runtime for RunRuntime {
    fn turned(&self) {
        self.liveness.turned();
    }

    fn progressed(&self) {
        self.liveness.progressed();
    }

    fn waits_wanted(&self) -> bool {
        self.liveness.waits_wanted()
    }

    fn set_waits(&self, lines: Vec<String>) {
        self.liveness.set_waits(lines);
    }

    fn begin_job(&self, thread: usize, name: &Arc<str>, time: Option<u64>) {
        self.liveness.begin_job(thread, name, time);
    }

    fn end_job(&self, thread: usize) {
        self.liveness.end_job(thread);
    }

    fn busy(&self, label: &str) -> Box<dyn Any> {
        Box::new(self.liveness.busy(label))
    }

    fn defer_signals(&self) -> Box<dyn Any> {
        Box::new(self.liveness.defer_signals())
    }

    fn stop_requested(&self) -> bool {
        self.liveness.stop_requested()
    }

    fn is_reduced(&self) -> bool {
        self.reduced
    }

    fn has_returned(&self) -> bool {
        self.missing.as_ref().as_ref().is_some_and(Absent::has_returned)
    }

    fn stage(&self, stage: Stage) {
        self.progress.activity.stage(stage);
    }

    fn cached(&self, hits: u64, misses: u64) {
        self.progress.activity.cached(Cache { hits, misses });
    }

    fn messages(&self) -> Arc<AtomicU64> {
        self.progress.activity.messages()
    }

    fn epoch(&self, record: &EpochRecord) {
        self.progress.activity.epoch(record);
        self.progress.console.epoch(record, self.epochs);
    }

    fn warn(&self, line: &str) {
        self.warnings.warn(line);
    }

    fn say(&self, line: &str) {
        self.warnings.say(line);
    }

    fn tensor_workers(&self) -> Result<Option<Arc<dyn ExecutorFactory>>, PipelineError> {
        self.tensor_workers.as_ref().map(|workers| workers.factory(self.warnings.clone())).transpose()
    }

    fn progress(&self) -> &dyn Progress {
        &self.progress
    }
}
