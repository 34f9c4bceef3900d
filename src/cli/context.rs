//! The input of commands: options that all share, and pipeline files.

use crate::cluster::{ClusterError, read_hosts};
use crate::console::Console;
use gnnflow_pipelines::config::{Config, Override};
use gnnflow_pipelines::{Error, Registry};
use std::path::PathBuf;

/// A pipeline file, and keys that the command line overrides.
#[derive(Debug, clap::Args)]
pub(super) struct Pipeline {
    /// The pipeline file.
    file: PathBuf,
    /// Override a key, as in `--set train.epochs=5`. The value is TOML; a word that is not TOML is a string.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Remove a key of the file, so that it has its default. Applied before `--set`.
    #[arg(long = "unset", value_name = "KEY")]
    unsets: Vec<String>,
}

impl Pipeline {
    pub(super) fn load(&self, registry: &Registry) -> Result<Config, Error> {
        let unsets = self.unsets.iter().cloned().map(Override::Unset);
        let overrides: Vec<_> = unsets.chain(self.sets.iter().cloned().map(Override::Set)).collect();
        let mut config = Config::load(&self.file, &overrides, &registry.names())?;
        registry.check(&config)?;
        config.resolve_parts()?;
        Ok(config)
    }
}

/// The processes of a run or of an inference.
#[derive(Debug, clap::Args)]
pub(super) struct Processes {
    /// Number of processes on this machine, at most one per partition; it does not change results.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) processes: u16,
    /// File with one line `host:port` per process, for a run across machines; start this command once per line.
    #[arg(long, value_name = "FILE", conflicts_with = "processes")]
    pub(super) hosts: Option<PathBuf>,
    /// This process's line in the hosts file, from 0 [default: from the variables of Slurm, MPI or torchrun].
    #[arg(long, value_name = "K", requires = "hosts")]
    pub(super) rank: Option<usize>,
}

impl Processes {
    /// Returns the number of processes on all machines.
    ///
    /// # Errors
    /// If the hosts file cannot be read.
    pub(super) fn count(&self) -> Result<usize, ClusterError> {
        match &self.hosts {
            Some(hosts) => Ok(read_hosts(hosts)?.len()),
            None => Ok(usize::from(self.processes)),
        }
    }
}

/// The input that all commands share.
pub(super) struct Context {
    pub(super) json: bool,
    pub(super) console: Console,
    pub(super) registry: Registry,
}
