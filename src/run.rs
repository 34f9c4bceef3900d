//! A pipeline from its checked file to its results, in one process or in several.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use gnnflow_data::progress::Progress;
use gnnflow_pipelines::config::Tensor;
use gnnflow_pipelines::summary::{EpochRecord, SCHEMA, Seconds};
use gnnflow_pipelines::tensor::TensorWorkers;
use gnnflow_pipelines::{Config, Error as PipelineError, Job, Runtime, Summary, last_checkpoint, prepare, work};

use crate::cluster::{
    ClusterConfig, Fingerprints, Launcher, Liveness, Membership, OWN_SECRET, Secret, execute, is_launched,
    is_supervised, read_hosts, seat, seat_from_launcher,
};
use crate::console::Console;
use crate::run_lock::RunLock;
use crate::tensor::FlightWorkers;
use crate::threads::start_reading_threads;
use crate::{Error, Outcome, RunOptions};

/// Runs the stages that `config` has.
///
/// With `options.processes` above 1 this process prepares the dataset, starts the others and waits for them; the results
/// are the first one's.
///
/// # Errors
/// Whatever ends the run; in a run of several processes, its first cause.
pub fn run(config: &Config, options: &RunOptions) -> Result<Outcome, Error> {
    let seat = find_seat(config, options)?;
    if let Some(launch) = supervisor(config, options, seat.as_ref()) {
        return Ok(Outcome::Elsewhere(launch.run()?));
    }
    start_reading_threads()?;
    let first = seat.as_ref().is_none_or(|seat| seat.rank == 0);
    let console = if first { options.console.clone() } else { Console::silent() };
    // Processes that this run launches write under the lock of their parent.
    let _lock = (first && !is_launched()).then(|| RunLock::take(&options.run_dir)).transpose()?;
    let begin = Instant::now();
    let dataset = prepare(config, &options.registry, None, &console)?;
    let prepared = options.prepare_seconds.unwrap_or_else(|| begin.elapsed().as_secs_f64());
    let size = seat.as_ref().map_or(options.processes, ClusterConfig::size);
    config.check_processes(size, dataset.manifest().parts())?;
    // Every process comes to the same schedule by itself: the dataset decides.
    let mut resolved = config.clone();
    resolved.resolve_schedule()?;
    let config = &resolved;
    let Some(train) = &config.train else {
        return prepared_only(config, options, dataset.manifest().parts(), prepared);
    };

    if seat.is_none() && options.processes > 1 {
        let mut launch = Launcher::new(options.processes);
        launch.restarts = config.cluster.restarts as usize;
        launch.checkpoint = Some(last_checkpoint(&options.run_dir));
        // Children find the dataset prepared; the summary shall say how long it took.
        launch.arguments.push(format!("--prepare-seconds={prepared}").into());
        return Ok(Outcome::Elsewhere(launch.run()?));
    }

    if let Some(auto) = config.auto_schedule() {
        console.say(&format!("train.schedule = \"auto\" is \"{}\": {}", auto.chosen, auto.because));
    }

    let (mut shared, mut across, mut resume) = (None, None, options.resume);
    let membership = match seat {
        None => Membership::single(config.cluster.stall_timeout.0),
        Some(mut membership_config) => {
            // Processes of one machine reach each other there.
            let others =
                membership_config.addresses.iter().enumerate().filter(|&(rank, _)| rank != membership_config.rank);
            across = others.map(|(_, address)| address.clone()).find(|_| options.hosts.is_some());
            shared = membership_config.secret.clone();
            membership_config.fingerprints = Fingerprints {
                build: Fingerprints::of_build()?,
                pipeline: config.fingerprint(),
                dataset: dataset.manifest().fingerprint.clone(),
            };
            membership_config.start_timeout = config.cluster.start_timeout.0;
            membership_config.heartbeat_timeout = config.cluster.heartbeat_timeout.0;
            membership_config.stall_timeout = config.cluster.stall_timeout.0;
            // Going on or not is decided where the run folder is.
            membership_config.announced = if options.resume { RESUMES.into() } else { String::new() };
            let membership = Membership::join(membership_config)?;
            resume = membership.announced() == RESUMES;
            membership
        }
    };
    let local = if options.hosts.is_some() { 1 } else { size };
    let liveness = membership.liveness();
    let tensor = match train.tensor_workers.clone() {
        Some(settings) => {
            // Those that are launched have the secret of the run; those that listen elsewhere, or come from there, have the user's.
            let elsewhere = settings.hosts.is_some() || settings.accept.is_some();
            let secret = if elsewhere { own_secret(config)? } else { shared };
            Some(Tensors { settings, secret, across, first })
        }
        None => None,
    };
    let watch = Watch { console, warnings: options.console.clone(), liveness, epochs: train.epochs, tensor };
    let job = Job {
        config: config.clone(),
        dataset,
        registry: options.registry.clone(),
        run_dir: options.run_dir.clone(),
        resume,
        threads: train.threads(local),
        prepare_seconds: prepared,
        runtime: Arc::new(watch),
    };
    let summary = execute(membership, move |worker| work(worker, &job).map_err(Error::from))?;
    Ok(summary.map_or(Outcome::Elsewhere(0), |summary| Outcome::Done(Box::new(summary))))
}

/// What rank 0 announces of a run that goes on after a checkpoint.
const RESUMES: &str = "resume";

/// The supervisor that this process is of its own rank of a hosts file, if the pipeline asks for restarts: another process
/// then does the work. The children of `--processes` have a common parent, which starts them again.
fn supervisor(config: &Config, options: &RunOptions, seat: Option<&ClusterConfig>) -> Option<Launcher> {
    let rank = seat.filter(|_| !is_launched() && !is_supervised() && config.cluster.restarts > 0)?.rank;
    let mut launch = Launcher::this_rank();
    launch.restarts = config.cluster.restarts as usize;
    launch.checkpoint = (rank == 0).then(|| last_checkpoint(&options.run_dir));
    Some(launch)
}

/// The user's own secret; a child of a family has another one under its name.
fn own_secret(config: &Config) -> Result<Option<Secret>, Error> {
    let child = is_launched();
    let environment = |name: &str| std::env::var(if child { OWN_SECRET } else { name }).ok();
    Ok(Secret::find(environment, config.cluster.secret_file.as_deref())?)
}

/// This process's place among several, if it has one: a child's, or a line of the hosts file.
pub(crate) fn find_seat(config: &Config, options: &RunOptions) -> Result<Option<ClusterConfig>, Error> {
    if let Some(child) = seat_from_launcher()? {
        return Ok(Some(child));
    }
    let Some(file) = &options.hosts else { return Ok(None) };
    let addresses = read_hosts(file)?;
    let environment = |name: &str| std::env::var(name).ok();
    let Some(seat) = seat(options.rank, Some(addresses.len()), environment)? else { return Ok(None) };
    let mut membership_config = ClusterConfig::new(seat.rank, addresses);
    membership_config.secret = Secret::find(environment, config.cluster.secret_file.as_deref())?;
    Ok(Some(membership_config))
}

/// The summary of a pipeline that ends with the prepared dataset.
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
    std::fs::write(&path, config.resolved_toml()).map_err(gnnflow_pipelines::Error::io("write", &path))?;
    summary.write(dir)?;
    Ok(Outcome::Done(Box::new(summary)))
}

/// Watches over the worker: tells the other processes that it lives, and the user how it goes.
struct Watch {
    console: Console,
    /// Also of a process that has nothing else to say.
    warnings: Console,
    liveness: Liveness,
    epochs: usize,
    tensor: Option<Tensors>,
}

/// What there is to know of tensor workers.
struct Tensors {
    settings: Tensor,
    secret: Option<Secret>,
    /// Another process of the run, on another machine.
    across: Option<String>,
    /// Whether this is the first process.
    first: bool,
}

impl Runtime for Watch {
    fn turned(&self) {
        self.liveness.turned();
    }

    fn progressed(&self) {
        self.liveness.progressed();
    }

    fn busy(&self, label: &str) -> Box<dyn Any> {
        Box::new(self.liveness.busy(label))
    }

    fn epoch(&self, record: &EpochRecord) {
        self.console.epoch(record, self.epochs);
    }

    fn warn(&self, line: &str) {
        self.warnings.say(&format!("warning: {line}"));
    }

    fn say(&self, line: &str) {
        self.warnings.say(line);
    }

    fn tensor_workers(&self) -> Result<Option<Arc<dyn TensorWorkers>>, PipelineError> {
        let Some(Tensors { settings, secret, across, first }) = &self.tensor else { return Ok(None) };
        let workers = FlightWorkers::new(settings, secret.clone(), across.clone(), *first);
        let workers = workers.map_err(|error| match error {
            Error::Pipeline(error) => error,
            Error::Cluster(error) if error.exit_code() == 2 => PipelineError::Usage(error.to_string()),
            Error::Cluster(error) => PipelineError::Machine(error.to_string()),
        })?;
        Ok(Some(Arc::new(workers)))
    }

    fn progress(&self) -> &dyn Progress {
        &self.console
    }
}
