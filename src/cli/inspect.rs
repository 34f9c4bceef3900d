//! `gnnflow inspect`: describes a dump, a prepared dataset or a run folder.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use crate::report;
use gnnflow_data::inspect::{self, Kind};
use gnnflow_pipelines::summary::EpochRecord;
use gnnflow_pipelines::{ModelDescription, Summary, verify_tensors};
use std::path::PathBuf;

/// The file of a model.
const MODEL: &str = "model.safetensors";

const EXAMPLES: &str = "\
Examples:
  gnnflow inspect dump
  gnnflow inspect prepared/cora
  gnnflow inspect runs/cora --json";

/// Describe Parquet files, a prepared dataset, a run folder or a model, and verify the checksums of datasets and models.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct Inspect {
    /// Parquet file, folder of Parquet files (either may be a URL), prepared dataset, or run folder.
    path: PathBuf,
}

impl Inspect {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        match inspect::kind(&self.path)? {
            Kind::Run => self.run(context),
            Kind::Dump | Kind::Dataset => {
                let found = inspect::inspect(&self.path, &context.console)?;
                if context.json { print_json(&found) } else { print(&format!("{found}\n")) }
            }
        }
    }

    /// Describes a run by its summary, or by its epochs if it is still running or has failed.
    fn run(&self, context: &Context) -> Result<(), Error> {
        for file in [MODEL, "optimizer.safetensors"].map(|name| self.path.join(name)) {
            if file.is_file() {
                verify_tensors(&file)?;
            }
        }
        let has_model = self.path.join(MODEL).is_file();
        if self.path.join(Summary::FILE).is_file() {
            let summary = Summary::read(&self.path)?;
            if context.json {
                return print(&summary.to_json());
            }
            // A model of another version does not hide the results.
            let model = has_model.then(|| ModelDescription::read(&self.path));
            let model =
                model.map_or(String::new(), |model| model.map_or_else(|e| format!("note: {e}\n"), |m| m.to_string()));
            return print(&format!("{}{model}", report::table(&summary)));
        }
        if has_model {
            let model = ModelDescription::read(&self.path)?;
            return if context.json { print_json(&model) } else { print(&model.to_string()) };
        }
        let epochs = EpochRecord::read_all(&self.path)?;
        if context.json {
            return print_json(&epochs);
        }
        let path = self.path.display();
        let last = epochs.last().map_or_else(String::new, |last| format!(", the last with loss {:.4}", last.loss));
        print(&format!("{path}: an unfinished run with {} epochs{last}\n", epochs.len()))
    }
}
