//! The command line: one file per command.
//!
//! Results are on stdout, messages on stderr. Each error is one line `error: …`; the exit code names what is at fault.

mod bus_error;
mod calibrate;
mod check_cluster;
mod check_device;
mod compare;
mod completions;
mod context;
mod export;
mod follow;
mod generate;
mod import;
mod infer;
mod init;
mod inspect;
mod interrupt;
mod launch;
mod man;
mod output;
mod prepare;
mod reference;
mod refresh;
mod remote_launch;
mod run;
mod simulate;
mod sweep;
mod tensor_worker;
mod top;
mod update;

use self::context::Context;
use self::launch::OnHosts;
use crate::c_heap;
use crate::console::Console;
use crate::error::Error;
use crate::stderr::{self, Level};
use crate::threads::start_reading_threads;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use gnnflow_pipelines::Registry;
use gnnflow_pipelines::config::reference::keys_named;
use std::ffi::OsString;
use std::process::ExitCode;

/// Train graph neural networks on Parquet data, as one dataflow in one or more processes.
#[derive(Debug, Parser)]
#[command(name = "gnnflow", version, before_long_help = EXAMPLES, after_help = EXIT_CODES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Print nothing but errors: no progress, no warnings and no table of results. `--json` still prints the results.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print results as JSON on stdout.
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  gnnflow run pipelines/quickstart.toml     a complete run on a generated graph
  gnnflow init dump                         write pipeline.toml for dump/nodes.parquet and dump/edges.parquet
  gnnflow run pipeline.toml --dry-run       print the plan
  gnnflow run pipeline.toml                 prepare, train, and infer";

const EXIT_CODES: &str = "Exit codes: 0 success; 2 the command line or the pipeline file; 3 the input data; 4 this machine (disk, \
memory, port, device); 5 the cluster (a process is lost, stalled or refused); 70 a bug in gnnflow; 130 interrupted.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Infer(infer::Infer),
    Refresh(refresh::Refresh),
    Follow(follow::Follow),
    Top(top::Top),
    Compare(compare::Compare),
    Sweep(sweep::Sweep),
    Prepare(prepare::Prepare),
    Generate(generate::Generate),
    Import(Box<import::Import>),
    Init(init::Init),
    Export(export::Export),
    Inspect(inspect::Inspect),
    Update(Box<update::Update>),
    Reference(reference::Reference),
    CheckCluster(check_cluster::CheckCluster),
    CheckDevice(check_device::CheckDevice),
    Calibrate(calibrate::Calibrate),
    Simulate(simulate::Simulate),
    Launch(launch::Launch),
    RemoteLaunch(remote_launch::RemoteLaunch),
    TensorWorker(tensor_worker::TensorWorker),
    Completions(completions::Completions),
    Man(man::Man),
}

/// Parses `args`, with the program's name first, runs the command, and prints its error.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>, registry: Registry) -> ExitCode {
    c_heap::share();
    let given: Vec<OsString> = args.into_iter().collect();
    if let Err(error) = stderr::set_format() {
        stderr::print(Level::Error, &error);
        return ExitCode::from(2);
    }
    let args = match Args::try_parse_from(&given) {
        Ok(args) => args,
        // `--help` and `--version` are errors of clap with exit code 0.
        Err(mut error) => {
            match tip(&error, &given) {
                Some(tip) => {
                    error.remove(ContextKind::SuggestedArg);
                    error.remove(ContextKind::Usage);
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
                }
                None => remove_advice_on_values(&mut error),
            }
            match stderr::is_json() && error.use_stderr() {
                true => stderr::print(Level::Error, error.render().to_string().trim().trim_start_matches("error: ")),
                false => drop(error.print()),
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    interrupt::end_with_130();
    bus_error::name_the_file();
    let console = if args.quiet { Console::silent() } else { Console::new() };
    if let Err(error) = crate::log::install(console.clone()) {
        stderr::print(Level::Error, &error);
        return ExitCode::from(2);
    }
    let context = Context { json: args.json, console, registry };
    match crate::panics::run_guarded(|| execute(args.command, context)) {
        Ok(code) => ExitCode::from(code),
        // The supervisor says what happens.
        Err(error) if error.is_rejoin() => ExitCode::from(error.exit_code()),
        // The run has ended well, without this process.
        Err(error) if error.exit_code() == 0 => {
            stderr::print(Level::Info, &format!("gnnflow: {error}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            for line in error.to_string().lines() {
                stderr::print(Level::Error, line);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Returns advice for an option that is a key of pipeline files, with its value in `args`.
fn tip(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let keys = keys_named(option.strip_prefix("--").filter(|_| error.kind() == ErrorKind::UnknownArgument)?);
    let mut texts = args.iter().filter_map(|arg| arg.to_str()).skip_while(|arg| !arg.starts_with(option.as_str()));
    let value = texts.next().and_then(|arg| arg.split_once('=')).map(|(_, value)| value);
    // The argument after an option without a value may be the pipeline file.
    let is_value = |next: &&str| !next.starts_with('-') && !next.ends_with(".toml");
    let value = value.or_else(|| texts.next().filter(is_value)).unwrap_or("..");
    let sets: Vec<String> = keys.iter().map(|key| format!("`--set {key}={value}`")).collect();
    (!sets.is_empty()).then(|| format!("it is a key of the pipeline file: write it there, or {}", sets.join(" or ")))
}

/// Removes the advice to write `--` before an unknown option: no value of this program begins with `--`.
fn remove_advice_on_values(error: &mut clap::Error) {
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().contains("as a value, use"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}

fn execute(command: Command, context: Context) -> Result<u8, Error> {
    match command {
        // They start the threads later, only in processes that read files.
        Command::Run(_) | Command::Infer(_) | Command::Refresh(_) | Command::Follow(_) => {}
        // They do not need them.
        Command::TensorWorker(_) | Command::Reference(_) | Command::Compare(_) | Command::Sweep(_) => {}
        Command::Completions(_) | Command::Man(_) | Command::Top(_) => {}
        Command::CheckCluster(_) | Command::Launch(_) | Command::RemoteLaunch(_) => {}
        _ => start_reading_threads()?,
    }
    match command {
        Command::Run(command) => command.execute(context),
        Command::Infer(command) => command.execute(context),
        Command::Refresh(command) => command.execute(context),
        Command::Follow(command) => command.execute(context),
        Command::Top(command) => command.execute(&context).map(|()| 0),
        Command::Compare(command) => command.execute(&context).map(|()| 0),
        Command::Sweep(command) => command.execute(&context),
        Command::Prepare(command) => command.execute(&context),
        Command::Generate(command) => command.execute(&context).map(|()| 0),
        Command::Import(command) => command.execute(&context).map(|()| 0),
        Command::Init(command) => command.execute(&context).map(|()| 0),
        Command::Export(command) => command.execute(&context).map(|()| 0),
        Command::Inspect(command) => command.execute(&context).map(|()| 0),
        Command::Update(command) => command.execute(&context).map(|()| 0),
        Command::Reference(command) => command.execute(&context).map(|()| 0),
        Command::CheckCluster(command) => command.execute(context),
        Command::CheckDevice(command) => command.execute(&context).map(|()| 0),
        Command::Calibrate(command) => command.execute(&context).map(|()| 0),
        Command::Simulate(command) => command.execute(&context).map(|()| 0),
        Command::Launch(command) => command.execute(&context, command_of_hosts),
        Command::RemoteLaunch(command) => command.execute(),
        Command::TensorWorker(command) => command.execute(context).map(|()| 0),
        Command::Completions(command) => command.execute(Args::command()).map(|()| 0),
        Command::Man(command) => command.execute(Args::command()).map(|()| 0),
    }
}

/// Checks the arguments of one process of several hosts.
fn command_of_hosts(args: &[String]) -> Result<OnHosts, clap::Error> {
    let other = || {
        let problem =
            "this command does not run on several hosts; launch run, prepare, infer, follow or check-cluster\n";
        clap::Error::raw(ErrorKind::InvalidSubcommand, problem)
    };
    let added = |error: &clap::Error| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(arg)) => error.kind() == ErrorKind::UnknownArgument && arg.starts_with("--hosts"),
        _ => false,
    };
    let program = std::iter::once("gnnflow").chain(args.iter().map(String::as_str));
    let parsed = Args::try_parse_from(program).map_err(|error| if added(&error) { other() } else { error })?;
    match parsed.command {
        Command::Run(command) => Ok(OnHosts::Run(Box::new(command))),
        Command::Prepare(command) => Ok(OnHosts::Prepare(Box::new(command))),
        Command::Infer(_) | Command::Follow(_) | Command::CheckCluster(_) => Ok(OnHosts::Other),
        _ => Err(other()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declaration_of_all_arguments_is_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn examples_in_help_are_valid() {
        let args = Args::command();
        let mut count = 0;
        for command in args.get_subcommands().chain([&args]) {
            let help = command.get_before_long_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
                let line = line.split("   ").next().unwrap_or_default();
                if let Err(error) = Args::try_parse_from(line.split_whitespace()) {
                    panic!("{line}: {error}");
                }
                count += 1;
            }
        }
        assert!(count >= 20, "{count}");
    }
}
