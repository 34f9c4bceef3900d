//! `[cluster]`: several processes, and how long they wait for each other.

use super::section::section;
use super::values::Span;
use std::path::PathBuf;

section! {
    /// Several processes: who may join, and how long anybody waits.
    pub struct Cluster {
        /// File with the secret that processes prove to each other. Unset: the environment variable `GNNFLOW_SECRET`; processes that `--processes` starts share a fresh one.
        #[schemars(extend("x-results" = false), extend("examples" = ["secret.txt"]))]
        pub secret_file: Option<PathBuf> = None,
        /// Address on which this process listens for its peers. Unset: the loopback device with `--processes`, all devices with `--hosts`.
        #[schemars(extend("x-results" = false), extend("examples" = ["127.0.0.1"]))]
        pub bind: Option<String> = None,
        /// How long to wait until all processes have joined.
        #[schemars(extend("x-results" = false))]
        pub start_timeout: Span = Span::seconds(60),
        /// How long a peer may be silent before it counts as lost.
        #[schemars(extend("x-results" = false))]
        pub heartbeat_timeout: Span = Span::seconds(10),
        /// How long the run may go without progress anywhere before it counts as stalled.
        #[schemars(extend("x-results" = false))]
        pub stall_timeout: Span = Span::seconds(600),
        /// How often `gnnflow run` starts over from the last whole checkpoint after a peer was lost.
        #[schemars(range(max = 1000), extend("x-results" = false))]
        pub restarts: u32 = 0,
    }
}
