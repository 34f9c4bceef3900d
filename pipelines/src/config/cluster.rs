//! `[cluster]`: secret, encryption, timeouts, restarts and lost processes.

use super::section::section;
use super::values::Span;
use std::path::PathBuf;

section! {
    /// Several processes: their secret, encryption, timeouts and restarts.
    pub struct Cluster {
        /// File with the secret by which processes authenticate. Unset: the environment variable `GNNFLOW_SECRET`; with `--processes`, a random secret.
        #[schemars(extend("x-results" = false), extend("examples" = ["secret.txt"]))]
        pub secret_file: Option<PathBuf> = None,
        /// Whether connections between processes are encrypted. Unset: if one of the addresses is not a loopback address. With `true`, also those of
        /// `--processes`. The value must be equal in all processes. Connections with tensor workers follow it, too.
        #[schemars(extend("x-results" = false), extend("examples" = [true]))]
        pub encrypt: Option<bool> = None,
        /// How long to wait until all processes have joined, at the start and after each restart.
        #[schemars(extend("x-results" = false))]
        pub start_timeout: Span = Span::seconds(120),
        /// How long a process may be silent before it counts as lost.
        #[schemars(extend("x-results" = false))]
        pub heartbeat_timeout: Span = Span::seconds(10),
        /// How long a run may complete no step, interval or message before it ends. A process without progress for this long is lost.
        /// Raise this value if one task takes longer. Work outside of the schedule, such as preparing and checkpoints, may read, write and compute nothing for ten times as long.
        #[schemars(extend("x-results" = false))]
        pub stall_timeout: Span = Span::seconds(120),
        /// How often `gnnflow run` restarts lost processes from the last checkpoint. With `--hosts`, each host restarts its own.
        #[schemars(range(max = 1000), extend("x-results" = false))]
        pub restarts: u32 = 0,
        /// Whether training with `--hosts` goes on with the processes that are left, if lost ones do not come back. It takes them back at the next checkpoint.
        /// Rank 0, which has the run folder, must be among them. Needs `restarts`. Equal in all processes ([details](several-hosts.md#lost-hosts)).
        #[schemars(extend("x-results" = false))]
        pub elastic: bool = false,
        /// With `elastic`: how long a restart waits for lost processes, before the run goes on without them.
        #[schemars(extend("x-results" = false))]
        pub elastic_wait: Span = Span::seconds(30),
        /// Address at which rank 0 serves the status of all processes to Prometheus, at `/metrics`, without authentication. Unset: nowhere.
        #[schemars(extend("x-results" = false), extend("examples" = ["127.0.0.1:9464"]))]
        pub metrics: Option<String> = None,
    }
}
