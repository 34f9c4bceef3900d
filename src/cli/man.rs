//! `gnnflow man`: writes manual pages.

use std::path::PathBuf;

use crate::error::Error;
use gnnflow_pipelines::Error as PipelineError;

const EXAMPLES: &str = "\
Examples:
  gnnflow man --out ~/.local/share/man/man1               then: man gnnflow-run";

/// Write manual pages: one of the program and one of each command.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Man {
    /// The folder of the pages. It is created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Man {
    /// Writes the pages of `program`.
    pub(super) fn execute(&self, program: clap::Command) -> Result<(), Error> {
        std::fs::create_dir_all(&self.out).map_err(PipelineError::io("create", &self.out))?;
        clap_mangen::generate_to(program, &self.out).map_err(PipelineError::io("write manual pages in", &self.out))?;
        Ok(())
    }
}
