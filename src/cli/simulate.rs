//! `gnnflow simulate`: predicts the time of an epoch on another cluster.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_pipelines::Error as PipelineError;
use gnnflow_pipelines::config::Bytes;
use gnnflow_pipelines::simulate::cluster::{Cluster, Host};
use gnnflow_pipelines::simulate::{Prediction, Recording, simulate};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  gnnflow simulate runs/p                                     the machine of the run
  gnnflow simulate runs/p --hosts 1,2,4,8 --cores 16 --bandwidth 125MB --latency 1
  gnnflow simulate runs/p --hosts 4 --slow 3=0.5              host 3 has half the speed
  gnnflow run p.toml --processes 8 --set train.trace=true     record a run before; a few epochs are enough";

/// Predict the time of an epoch on another cluster, from a run with `train.trace = true`.
///
/// The recorded tasks and messages are run in simulated time on the described hosts. The run needs as many processes as the simulated one, or more: its machine
/// may have fewer cores. Evaluation is not simulated.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Simulate {
    /// Folder of a finished run.
    run: PathBuf,
    /// Folder of a run of the same pipeline that tells how well jobs use several threads: one process of at least 2 threads.
    #[arg(long, value_name = "RUN")]
    scaling: Option<PathBuf>,
    /// Numbers of hosts, each simulated.
    #[arg(long, default_value = "1", value_name = "N,…", value_delimiter = ',')]
    hosts: Vec<NonZeroUsize>,
    /// Number of processes of all hosts [default: one per host, or on one host as in the run].
    #[arg(long, value_name = "N")]
    processes: Option<NonZeroUsize>,
    /// Cores of each host [default: as the machine of the run].
    #[arg(long, value_name = "N")]
    cores: Option<NonZeroUsize>,
    /// Compute threads of each process [default: as in the run].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Bytes per second that each host sends and receives [default: 1250MB].
    #[arg(long, value_name = "BYTES")]
    bandwidth: Option<Bytes>,
    /// Milliseconds until a small message reaches another host [default: 0.1].
    #[arg(long, value_name = "MS")]
    latency: Option<f64>,
    /// Speed of a host, counted from 0, over that of the machine of the run.
    #[arg(long, value_name = "HOST=SPEED")]
    slow: Vec<Slow>,
}

/// The speed of a host.
#[derive(Clone, Copy, Debug)]
struct Slow {
    host: usize,
    speed: f64,
}

impl FromStr for Slow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (host, speed) = text.split_once('=')?;
            Some(Self { host: host.parse().ok()?, speed: speed.parse().ok()? })
        };
        parse()
            .filter(|slow| slow.speed.is_finite() && slow.speed > 0.0)
            .ok_or_else(|| "expected the number of a host and a speed above 0, as in 3=0.5".into())
    }
}

/// A simulated cluster, and its prediction.
#[derive(serde::Serialize)]
struct Row {
    hosts: usize,
    processes: usize,
    threads: usize,
    #[serde(flatten)]
    prediction: Prediction,
}

impl Simulate {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        self.check_network()?;
        let registered = context.registry.names();
        let mut recording = Recording::open(&self.run, &registered)?;
        let threads = self.threads.map_or(recording.threads, NonZeroUsize::get);
        if let Some(run) = &self.scaling {
            if threads == 1 {
                return usage("--scaling: has no effect on one thread; add `--threads N`");
            }
            recording.scale_as(Recording::open(run, &registered)?)?;
        }
        let unknown = if threads > 1 { recording.unknown_scaling() } else { Vec::new() };
        if !unknown.is_empty() {
            context.console.say(&format!(
                "note: the run does not tell how well these jobs use several threads: {}. Seven tenths of their time are assumed to \
                 be parallel. To measure it, add `--scaling RUN` with a run of the same pipeline in which each of these jobs has at \
                 least 2 threads",
                unknown.join(", ")
            ));
        }
        let rows = self.hosts.iter().map(|hosts| self.simulate(&recording, hosts.get()));
        let rows = rows.collect::<Result<Vec<Row>, Error>>()?;
        let measured = recording.seconds().iter().sum::<f64>() / recording.seconds().len() as f64;
        if context.json {
            return print_json(&serde_json::json!({ "measured_epoch_seconds": measured, "predictions": rows }));
        }
        print(&text(&recording, measured, &rows))
    }

    /// Checks the options of the network between hosts.
    fn check_network(&self) -> Result<(), Error> {
        let one_host = self.hosts.iter().all(|hosts| hosts.get() == 1);
        match (self.bandwidth, self.latency) {
            (Some(Bytes(0)), _) => usage("--bandwidth: must be at least 1 byte per second"),
            (_, Some(latency)) if !(latency.is_finite() && latency >= 0.0) => {
                usage("--latency: must be at least 0 milliseconds")
            }
            (Some(_), _) if one_host => usage("--bandwidth: one host has no network; add `--hosts N`"),
            (_, Some(_)) if one_host => usage("--latency: one host has no network; add `--hosts N`"),
            _ => Ok(()),
        }
    }

    fn simulate(&self, recording: &Recording, hosts: usize) -> Result<Row, Error> {
        let cores = self.cores.map_or(recording.cores, NonZeroUsize::get);
        let processes = match self.processes {
            Some(processes) => processes.get(),
            None if hosts == 1 && self.hosts.len() == 1 => recording.processes(),
            None => hosts,
        };
        let mut all = vec![Host { cores, speed: 1.0 }; hosts];
        for Slow { host, speed } in &self.slow {
            let Some(slow) = all.get_mut(*host) else {
                let last = hosts - 1;
                return usage(&format!("--slow {host}={speed}: there is no such host; use a number from 0 to {last}"));
            };
            slow.speed = *speed;
        }
        let threads = self.threads.map_or(recording.threads, NonZeroUsize::get);
        let bandwidth = self.bandwidth.map_or(1.25e9, |bandwidth| bandwidth.0 as f64);
        let latency = self.latency.unwrap_or(0.1) / 1e3;
        let cluster = Cluster { hosts: all, processes, threads, bandwidth, latency };
        Ok(Row { hosts, processes, threads, prediction: simulate(recording, &cluster)? })
    }
}

fn usage<T>(message: &str) -> Result<T, Error> {
    Err(PipelineError::Usage(message.into()).into())
}

fn text(recording: &Recording, measured: f64, rows: &[Row]) -> String {
    let (first, last) = (recording.epochs().start().to_owned(), recording.epochs().end().to_owned());
    let mut text = format!("recorded    {recording}: {measured:.4} s per epoch (epochs {first} to {last})\n\n");
    _ = writeln!(text, "{:>5}  {:>9}  {:>7}  {:>9}  critical path", "hosts", "processes", "threads", "s / epoch");
    for Row { hosts, processes, threads, prediction } in rows {
        let Prediction { epoch_seconds, critical_path } = prediction;
        let share = |seconds: f64| 100.0 * seconds / epoch_seconds;
        let parts = critical_path.iter().filter(|part| share(part.seconds) >= 1.0);
        let parts: Vec<String> =
            parts.map(|part| format!("{} {:.0} %", part.name, share(part.seconds))).take(5).collect();
        _ = writeln!(text, "{hosts:>5}  {processes:>9}  {threads:>7}  {epoch_seconds:>9.4}  {}", parts.join(", "));
    }
    text
}
