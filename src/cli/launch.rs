//! `gnnflow launch`: starts the processes of a hosts file.

use super::context::Context;
use super::prepare::Prepare;
use super::run::Run;
use crate::error::Error;
use crate::launch::{Launch as Start, Ssh};
use gnnflow_pipelines::Error as PipelineError;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow launch --hosts hosts.txt -- run pipeline.toml
  gnnflow launch --hosts hosts.txt --folder work --env AWS_PROFILE -- run pipeline.toml --resume
  gnnflow launch --hosts hosts.txt -- check-cluster --seconds 2";

/// Start a command on all hosts of a hosts file over ssh: one process per line, with its rank.
///
/// This program is copied to hosts that do not have it, and the pipeline file to all. Data are not copied: paths must exist on each host, or be URLs.
/// The secret is in GNNFLOW_SECRET, or a new one. Lines of ranks above 0 begin with `[rank host]`. All processes end with this one.
/// The exit code is that of the first process that failed with an error of its own. If the command is `run` and `cluster.elastic` is set, lost processes of ranks
/// above 0 are started again, and the exit code is that of rank 0.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Launch {
    /// File with one line `host:port` per process. ssh connects with the host, and the processes with host and port.
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// The program that connects with a host, and its first arguments, quoted as in a shell. A host and a command follow.
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=5"
    )]
    ssh: Ssh,
    /// Working folder on each host, absolute or below the folder of the login; it is created [default: the path of the current folder].
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Give the processes an environment variable of this one; may be repeated.
    #[arg(long = "env", value_name = "NAME")]
    variables: Vec<String>,
    /// The command without --hosts and --rank: run, prepare, infer, follow or check-cluster.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A command for all hosts.
pub(super) enum OnHosts {
    Run(Box<Run>),
    Prepare(Box<Prepare>),
    /// One without a pipeline file.
    Other,
}

impl Launch {
    /// Starts the command. `check` reads its complete arguments.
    pub(super) fn execute(
        self,
        context: &Context,
        check: fn(&[String]) -> Result<OnHosts, clap::Error>,
    ) -> Result<u8, Error> {
        let is_given = |arg: &&String| ["--hosts", "--rank"].contains(&arg.split('=').next().unwrap_or_default());
        if let Some(arg) = self.command.iter().find(is_given) {
            return usage(format!("`{arg}`: leave out --hosts and --rank after `--`; each process gets its own"));
        }
        let mut arguments = self.command;
        for (is_given, flag) in [(context.json, "--json"), (context.console.is_silent(), "--quiet")] {
            if is_given && !arguments.iter().any(|arg| arg == flag) {
                arguments.push(flag.into());
            }
        }
        let Some(hosts) = self.hosts.to_str() else {
            return usage(format!("--hosts {}: the path is not UTF-8", self.hosts.display()));
        };
        let mut start = Start {
            hosts: hosts.into(),
            ssh: self.ssh,
            folder: folder(self.folder.as_deref())?,
            environment: self.variables.iter().map(|name| variable(name)).collect::<Result<_, _>>()?,
            arguments,
            pipeline: None,
            is_elastic: false,
        };
        match check(&start.arguments_of(0, hosts)) {
            Ok(OnHosts::Run(run)) => {
                start.pipeline = Some(run.pipeline_file().to_owned());
                start.is_elastic = run.is_elastic(&context.registry)?;
            }
            Ok(OnHosts::Prepare(prepare)) => start.pipeline = Some(prepare.pipeline_file().to_owned()),
            Ok(OnHosts::Other) => {}
            Err(error) => {
                // Also `--help`, with exit code 0.
                let _ = error.print();
                return Ok(u8::try_from(error.exit_code()).unwrap_or(2));
            }
        }
        start.run()
    }
}

/// Returns the working folder on the hosts.
fn folder(given: Option<&Path>) -> Result<PathBuf, Error> {
    match given {
        Some(folder) => Ok(folder.to_owned()),
        None => Ok(std::env::current_dir().map_err(PipelineError::io("find", "the current folder"))?),
    }
}

/// Returns a variable of this process.
fn variable(name: &str) -> Result<(String, String), Error> {
    match std::env::var(name) {
        Ok(value) => Ok((name.to_owned(), value)),
        Err(_) => {
            usage(format!("--env {name}: this process has no such variable, or it is not UTF-8; set and export it"))
        }
    }
}

fn usage<T>(message: String) -> Result<T, Error> {
    Err(PipelineError::Usage(message).into())
}
