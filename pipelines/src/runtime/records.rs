//! Records of a run: epochs, their scores, and the use of tensor workers.

use std::collections::BTreeMap;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An epoch: one line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// From 1.
    pub epoch: usize,
    /// Mean training loss over the epoch's seeds, with dropout.
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// Steps in the epoch.
    pub steps: usize,
    /// Seconds of training.
    pub seconds: f64,
    /// Seconds of evaluation, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_seconds: Option<f64>,
    /// Metrics of the training nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Scores>,
    /// Metrics of the validation nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Scores>,
    /// Metrics of the test nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Scores>,
    /// Name of the validation metric that selects the best epoch, if evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Whether this epoch's model is the best so far.
    #[serde(default)]
    pub best: bool,
}

impl EpochRecord {
    /// Name of the file in a run folder.
    pub const FILE: &'static str = "metrics.jsonl";

    /// Reads all epochs of a run folder. If a resumed run has repeated an epoch, the last record counts.
    ///
    /// # Errors
    /// [`Error::Io`] if the file does not exist; [`Error::Input`] if a complete line is not an epoch. An incomplete last
    /// line, as after a crash, is ignored.
    pub fn read_all(run_dir: &Path) -> Result<Vec<Self>, Error> {
        let path = run_dir.join(Self::FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let mut epochs = BTreeMap::new();
        for (i, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str::<Self>(line) {
                Ok(record) => drop(epochs.insert(record.epoch, record)),
                Err(_) if !line.ends_with('\n') => {}
                Err(error) => return Err(Error::Input(format!("{}:{}: not an epoch: {error}", path.display(), i + 1))),
            }
        }
        Ok(epochs.into_values().collect())
    }
}

/// The metrics of a model on one split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Number of nodes, or of edges in tasks on edges.
    pub nodes: u64,
    /// Mean loss.
    pub loss: f64,
    /// All other metrics of the task by name: `accuracy`, `micro_f1`, `macro_f1`, `roc_auc`; in link prediction `mrr`,
    /// `hits_at_1`, `hits_at_3`, `hits_at_10`, `mean_rank`.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
}

impl Scores {
    /// Returns the accuracy, if the task has it.
    pub fn accuracy(&self) -> Option<f64> {
        self.metrics.get("accuracy").copied()
    }

    /// Returns the metric `name`, or the loss if that is its name.
    pub fn value(&self, name: &str) -> Option<f64> {
        if name == "loss" { Some(self.loss) } else { self.metrics.get(name).copied() }
    }
}

/// The metrics of each class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByClass {
    /// By ascending number or name.
    pub classes: Vec<ClassScores>,
    /// Confusion matrix: nodes by class (rows) and prediction (columns). Empty with more than 64 classes or several labels per node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub confusion: Vec<Vec<u64>>,
}

impl ByClass {
    /// Returns the second of two classes, whose scores are ranked; `None` with more classes or several labels.
    pub(crate) fn positive(&self) -> Option<String> {
        match &self.classes[..] {
            [_, second] if !self.confusion.is_empty() => Some(second.class.clone()),
            _ => None,
        }
    }
}

/// The metrics of one class or label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassScores {
    /// Its name or number.
    pub class: String,
    /// Nodes or edges of the class.
    pub nodes: u64,
    /// Nodes or edges with this prediction.
    pub predicted: u64,
    /// Share of the class among those with this prediction.
    pub precision: f64,
    /// Share of the class with this prediction.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
}

/// Counts of tensor workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct TensorUse {
    /// Workers in use at the end, or the choice of the autotuner.
    pub workers: u64,
    /// Completed tasks, including repeated ones.
    #[serde(default)]
    pub tasks: u64,
    /// Tasks that idle compute threads of the processes took over.
    #[serde(default)]
    pub local: u64,
    /// Calls of one or more tasks, including failed calls.
    pub calls: u64,
    /// Seconds of all calls, measured by the callers.
    pub seconds: f64,
    /// Tasks that were sent again, because their call was late or its worker was lost.
    pub again: u64,
    /// How often a worker was lost.
    pub lost: u64,
    /// How often a launched worker was restarted.
    #[serde(default)]
    pub relaunched: u64,
    /// Maximum bytes of rows of tasks in flight in one process.
    #[serde(default)]
    pub row_bytes_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_serialize_metrics_at_the_level_of_the_loss() {
        let scores = Scores { nodes: 3, loss: 0.5, metrics: [("accuracy".into(), 0.75)].into() };
        let json = serde_json::to_value(&scores).unwrap();
        assert_eq!(json, serde_json::json!({ "nodes": 3, "loss": 0.5, "accuracy": 0.75 }));
        assert_eq!(serde_json::from_value::<Scores>(json).unwrap(), scores);
    }

    #[test]
    fn read_all_ignores_an_incomplete_line_and_keeps_the_last_record_of_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let line = |epoch, loss| serde_json::to_string(&EpochRecord { epoch, loss, ..EpochRecord::default() }).unwrap();
        let text = format!("{}\n{}\n{}\n{}", line(1, 1.0), line(2, 0.9), line(2, 0.8), &line(3, 0.7)[..12]);
        std::fs::write(folder.path().join(EpochRecord::FILE), text).unwrap();
        let losses: Vec<f64> = EpochRecord::read_all(folder.path()).unwrap().iter().map(|epoch| epoch.loss).collect();
        assert_eq!(losses, [1.0, 0.8]);
    }
}
