//! `gnnflow check-device`: compares a device with the CPU.

use super::context::Context;
use super::output::{print, print_json};
use crate::error::Error;
use gnnflow_nn as compute;
use gnnflow_nn::DeviceReport;
use gnnflow_pipelines::Error as PipelineError;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  gnnflow check-device --rates
  gnnflow check-device --device cpu --out check.json";

/// Run all operations, forward and backward, on a device, and compare the results with the CPU's.
///
/// `--device cpu` compares the CPU with plain arithmetic. All results are written to a JSON file; the table on stdout is a summary.
/// The exit code is 4 if the device cannot be used or a difference is too large.
#[derive(Debug, clap::Args)]
#[command(before_long_help = EXAMPLES)]
pub(super) struct CheckDevice {
    /// Device: "cuda", "cuda:1" for the GPU with this number, or "cpu".
    #[arg(long, default_value = "cuda")]
    device: String,
    /// JSON file for the results [default: check-device-DEVICE-DATE.json].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also time operations over edges on a random graph, beside a copy in the device's memory.
    #[arg(long)]
    rates: bool,
}

impl CheckDevice {
    pub(super) fn execute(&self, context: &Context) -> Result<(), Error> {
        let mut report = compute::check_device(&self.device).map_err(PipelineError::from)?;
        let file = self.out.clone().unwrap_or_else(|| default_file(&report));
        write(&report, &file)?;
        if self.rates {
            // The comparisons are in the file, whatever happens here.
            report.rates = compute::device_rates(&self.device).map_err(PipelineError::from)?;
            write(&report, &file)?;
        }
        if context.json {
            print_json(&report)?
        } else {
            print(&format!("{report}\n"))?
        }
        if report.passed {
            return Ok(());
        }
        let (wrong, all) = (report.comparisons.iter().filter(|c| !c.passed).count(), report.comparisons.len());
        let message = format!("device {:?}: {wrong} of {all} comparisons failed; see {}", self.device, file.display());
        Err(PipelineError::Machine(message).into())
    }
}

/// Returns a file name with the device and the time, without colons, which some file systems do not allow.
fn default_file(report: &DeviceReport) -> PathBuf {
    PathBuf::from(format!("check-device-{}-{}.json", report.device, report.date).replace(':', ""))
}

fn write(report: &DeviceReport, file: &Path) -> Result<(), PipelineError> {
    let text = serde_json::to_string_pretty(report).map_err(|error| PipelineError::Bug(error.to_string()))?;
    std::fs::write(file, text + "\n").map_err(PipelineError::io("write", file))
}
