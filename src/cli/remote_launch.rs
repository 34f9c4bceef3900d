//! `gnnflow remote-launch`: the other side of `gnnflow launch`.

use crate::error::Error;
use crate::launch::remote_launch;

/// Run a command that `gnnflow launch` sends on standard input, and end it when standard input ends.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(super) struct RemoteLaunch {}

impl RemoteLaunch {
    pub(super) fn execute(&self) -> Result<u8, Error> {
        remote_launch()
    }
}
