//! The input of commands: options that all share, and pipeline files.

use crate::console::Console;
use gnnflow_pipelines::config::Config;
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
}

impl Pipeline {
    pub(super) fn load(&self, registry: &Registry) -> Result<Config, Error> {
        let mut config = Config::load(&self.file, &self.sets, &registry.names())?;
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
