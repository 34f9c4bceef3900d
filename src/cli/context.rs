//! The input of commands: options that all share, and pipeline files.

use crate::cluster::{ClusterError, read_hosts};
use crate::console::Console;
use crate::options::RunOptions;
use crate::run::has_results;
use crate::run_lock::RunLock;
use crate::upload::Upload;
use gnnflow_data::upload::check_target;
use gnnflow_pipelines::config::{Config, Override};
use gnnflow_pipelines::{Error, Registry};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

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
        self.load_with(registry, &[])
    }

    /// Loads the pipeline with one value `KEY=VALUE` of each `varied` key, after the overrides of the command line.
    pub(super) fn load_with(&self, registry: &Registry, varied: &[String]) -> Result<Config, Error> {
        let mut config = self.read(registry, varied)?;
        registry.check(&config)?;
        config.resolve_parts()?;
        Ok(config)
    }

    /// Reads and checks the pipeline file, without what depends on the data and on this machine.
    pub(super) fn read(&self, registry: &Registry, varied: &[String]) -> Result<Config, Error> {
        let unsets = self.unsets.iter().cloned().map(Override::Unset);
        let sets = self.sets.iter().cloned().map(Override::Set);
        let overrides: Vec<_> = unsets.chain(sets).chain(varied.iter().cloned().map(Override::Vary)).collect();
        Config::load(&self.file, &overrides, &registry.names())
    }

    /// Returns the path of the file.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the overrides of the command line, as `KEY=VALUE`.
    pub(super) fn sets(&self) -> &[String] {
        &self.sets
    }

    /// Returns the arguments by which another process loads the pipeline in the same way.
    pub(super) fn arguments(&self, more: &[String]) -> Vec<OsString> {
        let unsets = self.unsets.iter().flat_map(|key| ["--unset", key]);
        let sets = self.sets.iter().chain(more).flat_map(|setting| ["--set", setting]);
        std::iter::once(self.file.clone().into()).chain(unsets.chain(sets).map(OsString::from)).collect()
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
    /// This process's line in the hosts file, from 0 [default: from the variables of Slurm, MPI, torchrun or Kubernetes].
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

/// Where results are uploaded.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// Upload the results below this URL (s3://, gs:// or az://) at the end, with `_SUCCESS` as the last object. Readers see the former
    /// objects until all files have been transferred.
    #[arg(long, value_name = "URL")]
    upload: Option<PathBuf>,
}

impl Target {
    /// Checks the form of the URL, before a run begins.
    ///
    /// # Errors
    /// A usage error if files cannot be uploaded there.
    pub(super) fn check(&self) -> Result<(), Error> {
        let Some(url) = &self.upload else { return Ok(()) };
        check_target(url).map_err(|reason| Error::Usage(format!("--upload {}: {reason}", url.display())))
    }

    /// Returns the upload that is a part of the run: each host has the files of its partitions.
    pub(super) fn within(&self, config: &Config, at: &Processes, folder: &Path) -> Option<Upload> {
        let apart = at.hosts.is_some() && config.infer.as_ref().is_some_and(|infer| infer.parts);
        self.of(config, folder).filter(|_| apart)
    }

    /// Uploads the results of a run that has ended, unless that was a part of it, if a URL was given and this process is the one that the user has
    /// started. A process that a launcher has started would be started again after a failure.
    ///
    /// # Errors
    /// If the store refuses them or cannot be reached for `graph.retry`.
    pub(super) fn upload(&self, config: &Config, options: &RunOptions) -> Result<(), crate::error::Error> {
        let Some(upload) = self.of(config, &options.run_dir).filter(|_| options.upload.is_none()) else {
            return Ok(());
        };
        if !has_results(config, options)? {
            return Ok(());
        }
        // Another run in the folder would replace some of the files.
        let _lock = RunLock::take(&options.run_dir)?;
        Ok(upload.alone(&options.console)?)
    }

    /// Whether results are uploaded.
    pub(super) fn is_given(&self) -> bool {
        self.upload.is_some()
    }

    fn of(&self, config: &Config, folder: &Path) -> Option<Upload> {
        let url = self.upload.clone()?;
        Some(Upload { folder: folder.to_owned(), url, retry: config.graph.retry.0 })
    }
}

/// The input that all commands share.
pub(super) struct Context {
    pub(super) json: bool,
    pub(super) console: Console,
    pub(super) registry: Registry,
}
