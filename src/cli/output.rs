//! Results on stdout.

use crate::error::Error;
use gnnflow_pipelines::Error as PipelineError;
use std::io::Write;

/// Prints results on stdout. If the reader has closed the pipe, as `head` does, the program ends with exit code 0.
pub(super) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result.map_err(PipelineError::io("write", "standard output"))?),
    }
}

pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value).map_err(|error| PipelineError::Bug(error.to_string()))?;
    print(&(text + "\n"))
}
