//! The command line: one file per command.
//!
//! stdout is data, stderr is for messages. An error is one line `error: …` on stderr for each thing that is wrong, and the exit code
//! says whose fault it is.

mod check_device;
mod export;
mod generate;
mod import;
mod inspect;
mod interrupt;
mod prepare;
mod reference;
mod run;
mod tensor_worker;
mod update;

use crate::Error;
use crate::console::Console;
use crate::threads::start_reading_threads;
use clap::{Parser, Subcommand};
use gnnflow_pipelines::config::Config;
use gnnflow_pipelines::{Error as PipelineError, Registry};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Trains graph neural networks: Parquet in, model, predictions and embeddings out, as one dataflow in one process or many.
#[derive(Debug, Parser)]
#[command(name = "gnnflow", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Say nothing on stderr but errors.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print results as JSON on stdout.
    #[arg(long, global = true)]
    json: bool,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 2 the command line or the pipeline file; 3 the input data; 4 this machine (disk, memory, \
port, device); 5 the cluster (a peer lost, stalled, refused); 70 a bug of ours; 130 interrupted.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Prepare(prepare::Prepare),
    Generate(generate::Generate),
    Import(Box<import::Import>),
    Export(export::Export),
    Inspect(inspect::Inspect),
    Update(Box<update::Update>),
    Reference(reference::Reference),
    CheckDevice(check_device::CheckDevice),
    TensorWorker(tensor_worker::TensorWorker),
}

/// A pipeline file and what to change in it.
#[derive(Debug, clap::Args)]
struct Pipeline {
    /// The pipeline file.
    file: PathBuf,
    /// Change a key of the pipeline, as in `--set train.epochs=5`. The value is TOML; a word that is no TOML is a string.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl Pipeline {
    fn load(&self, registry: &Registry) -> Result<Config, PipelineError> {
        let mut config = Config::load(&self.file, &self.sets, &registry.names())?;
        config.resolve_parts()?;
        Ok(config)
    }
}

/// What every command gets.
struct Context {
    json: bool,
    console: Console,
    registry: Registry,
}

/// Runs the command that `args` (the program's name first) asks for.
pub(crate) fn main(args: impl IntoIterator<Item = OsString>, registry: Registry) -> ExitCode {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        // `--help` and `--version` come this way too, with code 0.
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    interrupt::end_with_130();
    let console = if args.quiet { Console::silent() } else { Console::new() };
    if let Err(error) = crate::log::install(console.clone()) {
        let _ = writeln!(std::io::stderr(), "error: {error}");
        return ExitCode::from(2);
    }
    let context = Context { json: args.json, console, registry };
    match crate::panics::guarded(|| execute(args.command, context)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            for line in error.to_string().lines() {
                let _ = writeln!(std::io::stderr(), "error: {line}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn execute(command: Command, context: Context) -> Result<u8, Error> {
    // A run starts them itself, and not in a process that only watches over others; the last two need none.
    if !matches!(command, Command::Run(_) | Command::TensorWorker(_) | Command::Reference(_)) {
        start_reading_threads()?;
    }
    match command {
        Command::Run(command) => command.execute(context),
        Command::Prepare(command) => command.execute(&context),
        Command::Generate(command) => command.execute(&context).map(|()| 0),
        Command::Import(command) => command.execute(&context).map(|()| 0),
        Command::Export(command) => command.execute(&context).map(|()| 0),
        Command::Inspect(command) => command.execute(&context).map(|()| 0),
        Command::Update(command) => command.execute(&context).map(|()| 0),
        Command::Reference(command) => command.execute(&context).map(|()| 0),
        Command::CheckDevice(command) => command.execute(&context).map(|()| 0),
        Command::TensorWorker(command) => command.execute(context).map(|()| 0),
    }
}

/// Prints data. A reader that has gone away, like `head`, is content: that ends the program with 0.
fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result.map_err(PipelineError::io("write", "standard output"))?),
    }
}

/// Prints `value` as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| PipelineError::Bug(error.to_string()))?;
    print(&(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_of_all_arguments_is_sound() {
        Args::command().debug_assert();
    }
}
