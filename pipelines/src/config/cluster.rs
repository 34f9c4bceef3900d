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
        /// How long to wait until all processes have joined, at the start and after each restart.
        #[schemars(extend("x-results" = false))]
        pub start_timeout: Span = Span::seconds(120),
        /// How long a peer may be silent before it counts as lost.
        #[schemars(extend("x-results" = false))]
        pub heartbeat_timeout: Span = Span::seconds(10),
        /// How long a run may complete no step, interval or message before it ends; a process that stands still this long is lost.
        /// Raise it if one task takes longer.
        #[schemars(extend("x-results" = false))]
        pub stall_timeout: Span = Span::seconds(120),
        /// How often `gnnflow run` restarts lost processes from the last checkpoint. With `--hosts`, each host restarts its own.
        #[schemars(range(max = 1000), extend("x-results" = false))]
        pub restarts: u32 = 0,
    }
}
