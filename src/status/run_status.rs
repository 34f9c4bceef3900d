//! `status.json`: the status of a run.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use gnnflow_data::fs::replace;
use gnnflow_pipelines::summary::EpochRecord;
use gnnflow_pipelines::{Error, Stage};
use serde::{Deserialize, Deserializer, Serialize};

use super::memory::MemoryOverTime;
use super::process::ProcessStatus;

/// The version of the file.
pub(super) const SCHEMA: u32 = 1;

/// The status of a run, as rank 0 writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunStatus {
    pub(crate) schema: u32,
    /// Name of the pipeline.
    pub(crate) name: String,
    pub(crate) state: State,
    /// The error of a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// When rank 0 began, and when it wrote this, in seconds since 1970.
    pub(crate) began: f64,
    pub(crate) updated: f64,
    /// The stage of rank 0.
    pub(crate) stage: Stage,
    /// Epochs that the run trains at most; 0 if it does not train.
    pub(crate) epochs: usize,
    /// The last epoch that has ended.
    #[serde(deserialize_with = "if_numbers")]
    pub(crate) last_epoch: Option<EpochRecord>,
    /// An estimate of the seconds until the last epoch ends or, outside of training, until the work of rank 0 ends.
    pub(crate) remaining_seconds: Option<f64>,
    /// Number of processes.
    pub(crate) processes: usize,
    /// The statuses that rank 0 has, by rank.
    pub(crate) statuses: Vec<ReceivedStatus>,
    /// Memory over time, when the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryOverTime>,
}

/// Reads the record of an epoch; `None` if a metric is infinite or no number, for which JSON has no text but `null`.
fn if_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<EpochRecord>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(deserializer)?).unwrap_or_default())
}

/// A status, and how old it was when rank 0 wrote the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReceivedStatus {
    pub(crate) age_seconds: f64,
    #[serde(flatten)]
    pub(crate) status: ProcessStatus,
}

/// Whether a run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    #[default]
    Running,
    Finished,
    Failed,
}

impl RunStatus {
    /// Name of the file in a run folder.
    pub(crate) const FILE: &str = "status.json";

    /// Reads the status of the run in a folder.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none; [`Error::Io`] if it cannot be read; [`Error::Input`] if it is not a status.
    pub(crate) fn read(run_dir: &Path) -> Result<Self, Error> {
        let path = run_dir.join(Self::FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let message = "no run writes there, or it has not run for a second yet; name the run folder of rank 0";
                return Err(Error::Usage(format!("{}: {message}", path.display())));
            }
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let invalid = |problem: String| Error::Input(format!("{}: not a status of a run: {problem}", path.display()));
        let status: Self = serde_json::from_slice(&text).map_err(|error| invalid(error.to_string()))?;
        match status.schema {
            SCHEMA => Ok(status),
            other => Err(invalid(format!("it has version {other}, and this program reads version {SCHEMA}"))),
        }
    }

    /// Writes the file. Readers see the old content or the new one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, run_dir: &Path) -> Result<(), Error> {
        let path = run_dir.join(Self::FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|error| Error::Bug(error.to_string()))?;
        replace(&path, &text).map_err(Error::io("write", &path))
    }

    /// Returns the time since the file was written, in seconds; 0 if it was written later, by a host with another clock.
    pub(crate) fn age(&self) -> f64 {
        (since_1970() - self.updated).max(0.0)
    }
}

/// Returns the seconds since 1970.
pub(super) fn since_1970() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_without_a_number_for_a_metric_is_readable() {
        let status = |loss| RunStatus {
            name: "p".into(),
            last_epoch: Some(EpochRecord { epoch: 3, loss, ..EpochRecord::default() }),
            ..RunStatus::default()
        };
        let read = |status| serde_json::from_str::<RunStatus>(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(read(status(0.5)), status(0.5));
        assert_eq!(read(status(f64::NAN)), RunStatus { last_epoch: None, ..status(0.5) });
        assert_eq!(read(RunStatus::default()), RunStatus::default());
    }
}
