//! `gnnflow inspect`: what is in a dump, a prepared dataset, or a run folder.

use super::{Context, print, print_json};
use crate::{Error, report};
use gnnflow_data::inspect::{self, Kind};
use gnnflow_pipelines::summary::EpochRecord;
use gnnflow_pipelines::{Summary, verify_tensors};
use std::path::PathBuf;

/// Tell what is in Parquet files, a prepared dataset, or a run folder. The checksums of a dataset's files and of a run's model are verified.
#[derive(Debug, clap::Args)]
pub(super) struct Inspect {
    /// A Parquet file, a folder of them (either may be a URL), a prepared dataset, or a run folder.
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

    /// A finished run has a summary; one under way, or one that failed, has only its epochs.
    fn run(&self, context: &Context) -> Result<(), Error> {
        let model = self.path.join("model.safetensors");
        if model.is_file() {
            verify_tensors(&model)?;
        }
        if self.path.join(Summary::FILE).is_file() {
            let summary = Summary::read(&self.path)?;
            return if context.json { print(&summary.to_json()) } else { print(&report::table(&summary)) };
        }
        let epochs = EpochRecord::read_all(&self.path)?;
        if context.json {
            return print_json(&epochs);
        }
        let path = self.path.display();
        let last = epochs.last().map_or_else(String::new, |last| format!(", the last with loss {:.4}", last.loss));
        print(&format!("{path}: a run that is not finished: {} epochs{last}\n", epochs.len()))
    }
}
