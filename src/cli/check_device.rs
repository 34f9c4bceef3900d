//! `gnnflow check-device`: whether a device computes what the CPU does.

use super::{Context, PipelineError, print, print_json};
use crate::Error;
use gnnflow_nn as compute;
use gnnflow_nn::DeviceReport;
use std::path::{Path, PathBuf};

/// Run every operation, forward and backward, on a device and compare with the CPU; the CPU itself with plain arithmetic.
///
/// Prints a table (with --json, all of it) and writes all of it to a file. Ends with 4 when the device cannot be used or
/// something differs by more than it may.
#[derive(Debug, clap::Args)]
pub(super) struct CheckDevice {
    /// The device: "cuda" or "cpu".
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Where the result goes, as JSON [default: check-device-DEVICE-DATE.json].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl CheckDevice {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let report = compute::check_device(&self.device).map_err(PipelineError::from)?;
        let file = self.out.clone().unwrap_or_else(|| default_file(&report));
        write(&report, &file)?;
        if context.json {
            print_json(&report)?
        } else {
            print(&format!("{report}\n"))?
        }
        if report.passed {
            return Ok(());
        }
        let (wrong, all) = (report.comparisons.iter().filter(|c| !c.passed).count(), report.comparisons.len());
        let message =
            format!("device {:?}: {wrong} of {all} comparisons are wrong; {} has all", self.device, file.display());
        Err(PipelineError::Machine(message).into())
    }
}

/// A name with the time in it that every file system takes.
fn default_file(report: &DeviceReport) -> PathBuf {
    PathBuf::from(format!("check-device-{}-{}.json", report.device, report.date.replace(':', "")))
}

fn write(report: &DeviceReport, file: &Path) -> Result<(), PipelineError> {
    let text = serde_json::to_string_pretty(report).map_err(|error| PipelineError::Bug(error.to_string()))?;
    std::fs::write(file, text + "\n").map_err(PipelineError::io("write", file))
}
