//! `gnnflow completions`: prints completions for a shell.

use clap_complete::Shell;

use super::output::print;
use crate::error::Error;
use gnnflow_pipelines::Error as PipelineError;

const EXAMPLES: &str = "\
Examples:
  gnnflow completions bash   > ~/.local/share/bash-completion/completions/gnnflow
  gnnflow completions zsh    > ~/.zfunc/_gnnflow
  gnnflow completions fish   > ~/.config/fish/completions/gnnflow.fish";

/// Print completions of commands and options for a shell.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Completions {
    shell: Shell,
}

impl Completions {
    /// Prints completions of the commands of `program`.
    pub(super) fn execute(&self, mut program: clap::Command) -> Result<(), Error> {
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut program, name, &mut text);
        print(&String::from_utf8(text).map_err(|error| PipelineError::Bug(error.to_string()))?)
    }
}
