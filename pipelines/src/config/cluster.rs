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
        /// How long a run may complete no work before it ends: no step, interval or message in any process. A process whose worker stands still for this long counts as lost. Raise it if one task takes longer.
        #[schemars(extend("x-results" = false))]
        pub stall_timeout: Span = Span::seconds(120),
        /// How often `gnnflow run` starts lost processes again, from the last whole checkpoint: with `--processes` all of them, with `--hosts` each host its own. `gnnflow prepare` does not.
        #[schemars(range(max = 1000), extend("x-results" = false))]
        pub restarts: u32 = 0,
    }
}
