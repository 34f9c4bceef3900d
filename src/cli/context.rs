//! The input of commands: options that all share, and pipeline files.

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

/// The input that all commands share.
pub(super) struct Context {
    pub(super) json: bool,
    pub(super) console: Console,
    pub(super) registry: Registry,
}
