//! Two connected processes on this machine, as of `gnnflow run --processes 2`, with one worker each.

use std::time::Duration;

use gnnflow::cluster::{Failure, Launcher, Membership, config_from_launcher, execute};
use timely::worker::Worker;

/// Longest time that a worker parks.
pub(crate) const PARK: Option<Duration> = Some(Duration::from_millis(10));

/// Runs `work` in two processes and returns the result of rank 0. The parent and rank 1 exit here. With the argument `--encrypt`, their
/// connections are encrypted.
pub(crate) fn in_two_processes<T: Send + 'static>(work: impl Fn(&mut Worker) -> T + Send + Sync + 'static) -> T {
    let Some(mut config) = config_from_launcher().unwrap_or_else(|error| panic!("{error}")) else {
        let code = Launcher::new(2).run().unwrap_or_else(|error| panic!("{error}"));
        std::process::exit(code.into());
    };
    let rank = config.rank;
    config.encrypt = Some(std::env::args().any(|argument| argument == "--encrypt"));
    let result = Membership::join(config)
        .and_then(|members| execute(members, move |worker| Ok::<_, Failure>(work(worker))))
        .unwrap_or_else(|error| {
            eprintln!("error: {error}");
            std::process::exit(error.exit_code().into());
        });
    if rank > 0 {
        std::process::exit(0);
    }
    result
}
