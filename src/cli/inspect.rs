//! `gnnflow inspect`: describes a dump, a prepared dataset or a run folder.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use crate::report;
use gnnflow_data::format::plural;
use gnnflow_data::inspect::{self, Kind};
use gnnflow_pipelines::summary::EpochRecord;
use gnnflow_pipelines::{ModelDescription, Summary, verify_tensors};
use std::path::{Path, PathBuf};

/// The file of a model.
const MODEL: &str = "model.safetensors";

const EXAMPLES: &str = "\
Examples:
  gnnflow inspect dump
  gnnflow inspect prepared/cora
  gnnflow inspect runs/cora --json
  gnnflow inspect runs/cora/model.safetensors";

/// Describe Parquet files, a prepared dataset, a run folder or a model, and verify the checksums of datasets and models.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Inspect {
    /// Parquet file, folder of Parquet files (either may be a URL), prepared dataset, or run folder. The file model.safetensors stands for its folder.
    path: PathBuf,
}

impl Inspect {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let path = folder_of_model(&self.path);
        match inspect::kind(path)? {
            Kind::Run => describe_run(path, context),
            Kind::Dump | Kind::Dataset => {
                let found = inspect::inspect(path, &context.console)?;
                if context.json { print_json(&found) } else { print(&format!("{found}\n")) }
            }
        }
    }
}

/// Returns the folder of a model's file. Other paths remain.
fn folder_of_model(path: &Path) -> &Path {
    let is_model = path.is_file() && path.file_name().is_some_and(|name| name == MODEL);
    match path.parent().filter(|_| is_model) {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        folder => folder.unwrap_or(path),
    }
}

/// Describes a run by its summary, or by its epochs if it is still running or has failed.
fn describe_run(run: &Path, context: &Context) -> Result<(), Error> {
    for file in [MODEL, "optimizer.safetensors"].map(|name| run.join(name)) {
        if file.is_file() {
            verify_tensors(&file)?;
        }
    }
    let has_model = run.join(MODEL).is_file();
    if run.join(Summary::FILE).is_file() {
        let summary = Summary::read(run)?;
        if context.json {
            return print(&summary.to_json());
        }
        // A model of another version does not hide the results.
        let model = has_model.then(|| ModelDescription::read(run));
        let model =
            model.map_or(String::new(), |model| model.map_or_else(|e| format!("note: {e}\n"), |m| m.to_string()));
        return print(&format!("{}{model}", report::table(&summary)));
    }
    if has_model {
        let model = ModelDescription::read(run)?;
        return if context.json { print_json(&model) } else { print(&model.to_string()) };
    }
    let epochs = EpochRecord::read_all(run)?;
    if context.json {
        return print_json(&epochs);
    }
    let last = epochs.last().map_or_else(String::new, |last| format!(", the last with loss {:.4}", last.loss));
    print(&format!("{}: an unfinished run with {}{last}\n", run.display(), plural(epochs.len(), "epoch")))
}
