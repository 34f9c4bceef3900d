//! Prepares the dataset of a pipeline, in one process or in several.

use std::path::PathBuf;
use std::sync::Arc;

use gnnflow_data::Dataset;
use gnnflow_data::heartbeat::set_patience;
use gnnflow_pipelines::{Config, Registry};

use crate::cluster::{Fingerprints, Launcher, Liveness, Membership, STALLS, execute};
use crate::console::Console;
use crate::error::Error;
use crate::loop_state::report_to;
use crate::options::RunOptions;
use crate::prepare_alone::{PREPARING, prepare_alone};
use crate::run::cluster_config;
use crate::stderr;

/// Options of a preparation that are not in the pipeline file.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    /// Number of processes on this machine, from 1. Not with `hosts`.
    pub processes: usize,
    /// Hosts file of a preparation across machines, which share input files and output folder.
    pub hosts: Option<PathBuf>,
    /// This process's line in `hosts`; `None` takes it from the environment.
    pub rank: Option<usize>,
    /// Output folder; `None` takes it from the pipeline file or the default.
    pub out: Option<PathBuf>,
    /// Shows progress.
    pub console: Console,
    /// The parts that the pipeline may name.
    pub registry: Registry,
}

/// The result of a successful preparation.
pub enum Prepared {
    /// The dataset, in a single process or rank 0.
    Done(Dataset),
    /// Another process reports the result. This one ends with this exit code.
    Elsewhere(u8),
}

/// Prepares the dataset of `config`.
///
/// # Errors
/// The error that ended the preparation; with several processes, the first one of all.
pub fn prepare(config: &Config, options: &PrepareOptions) -> Result<Prepared, Error> {
    let cluster = cluster_config(
        config,
        &RunOptions {
            processes: options.processes,
            hosts: options.hosts.clone(),
            rank: options.rank,
            ..RunOptions::new("")
        },
    )?;
    let Some(mut cluster) = cluster else {
        if options.processes > 1 {
            return Ok(Prepared::Elsewhere(Launcher::new(options.processes).run()?));
        }
        let (registry, out) = (&options.registry, options.out.as_deref());
        return prepare_alone(config, registry, out, &options.console, Liveness::default()).map(Prepared::Done);
    };
    let rank = cluster.rank;
    stderr::set_rank(rank);
    cluster.fingerprints =
        Fingerprints { build: Fingerprints::of_build()?, pipeline: config.fingerprint(), dataset: String::new() };
    cluster.start_timeout = config.cluster.start_timeout.0;
    cluster.heartbeat_timeout = config.cluster.heartbeat_timeout.0;
    cluster.stall_timeout = config.cluster.stall_timeout.0;
    set_patience(STALLS * cluster.stall_timeout);
    // Processes of one machine share its cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.hosts.is_some() { cores } else { cores.div_ceil(cluster.size()) };
    let membership = Membership::join(cluster)?;
    let liveness = membership.liveness();
    let (config, options) = (config.clone(), Arc::new(options.clone()));
    let dataset = execute(membership, move |worker| {
        let console = if rank == 0 { options.console.clone() } else { Console::silent() };
        let (out, registry) = (options.out.as_deref(), &options.registry);
        // Between passes a partitioner may compute for long.
        let on_state = report_to(&liveness, PREPARING);
        gnnflow_pipelines::prepare_on(worker, threads, &on_state, &config, registry, out, &console).map_err(Error::from)
    })?;
    Ok(if rank == 0 { Prepared::Done(dataset) } else { Prepared::Elsewhere(0) })
}
