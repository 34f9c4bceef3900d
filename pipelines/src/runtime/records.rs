//! What a run reports while it goes: epochs and their scores.

use std::collections::BTreeMap;
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One line of `metrics.jsonl`: an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// From 1.
    pub epoch: usize,
    /// Mean training loss over the epoch's seeds, as the steps saw them (with dropout).
    pub loss: f64,
    /// The learning rate.
    pub lr: f64,
    /// Steps in the epoch.
    pub steps: usize,
    /// Seconds of training.
    pub seconds: f64,
    /// Seconds of evaluation, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_seconds: Option<f64>,
    /// On the train nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Scores>,
    /// On the validation nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub val: Option<Scores>,
    /// On the test nodes, if evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Scores>,
    /// Whether this epoch's model is the best so far.
    #[serde(default)]
    pub best: bool,
}

impl EpochRecord {
    /// Name of the file in a run folder.
    pub const FILE: &'static str = "metrics.jsonl";

    /// Reads all epochs of a run folder, the last one for each number when a resume repeated some.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such file, [`Error::Input`] when a whole line is no epoch. A last line that was cut
    /// off, as by a crash, is left out.
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

/// A model's metrics over the nodes of one split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Number of nodes, or of edges where links are predicted.
    pub nodes: u64,
    /// Mean loss.
    pub loss: f64,
    /// Every other metric by its name: `accuracy`, and what the task has (`micro_f1`, `macro_f1`, `roc_auc`; of links `mrr`, `hits_at_1`, `hits_at_3`, `hits_at_10`, `mean_rank`).
    #[serde(flatten)]
    pub metrics: BTreeMap<String, f64>,
}

impl Scores {
    /// The share of right answers, if the task has one.
    pub fn accuracy(&self) -> Option<f64> {
        self.metrics.get("accuracy").copied()
    }
}

/// What tensor workers did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, Pod, Zeroable)]
#[repr(C)]
pub struct TensorUse {
    /// How many were in use at the end.
    pub workers: u64,
    /// Tasks that were answered, those among them that another had answered before.
    #[serde(default)]
    pub tasks: u64,
    /// Calls, of one task or several, those that failed among them.
    pub calls: u64,
    /// Seconds of all calls together, as who called counted them.
    pub seconds: f64,
    /// Tasks that were given out once more: their call was late, or its worker lost.
    pub again: u64,
    /// How often a worker was lost.
    pub lost: u64,
    /// How often one that had been launched was started again.
    #[serde(default)]
    pub relaunched: u64,
    /// The most bytes that rows of tasks under way had at once, in the process that had most.
    #[serde(default)]
    pub row_bytes_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_lie_flat_beside_the_loss() {
        let scores = Scores { nodes: 3, loss: 0.5, metrics: [("accuracy".into(), 0.75)].into() };
        let json = serde_json::to_value(&scores).unwrap();
        assert_eq!(json, serde_json::json!({ "nodes": 3, "loss": 0.5, "accuracy": 0.75 }));
        assert_eq!(serde_json::from_value::<Scores>(json).unwrap(), scores);
    }

    #[test]
    fn a_cut_off_line_is_no_epoch_and_a_repeated_epoch_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let line = |epoch, loss| serde_json::to_string(&EpochRecord { epoch, loss, ..EpochRecord::default() }).unwrap();
        let text = format!("{}\n{}\n{}\n{}", line(1, 1.0), line(2, 0.9), line(2, 0.8), &line(3, 0.7)[..12]);
        std::fs::write(folder.path().join(EpochRecord::FILE), text).unwrap();
        let losses: Vec<f64> = EpochRecord::read_all(folder.path()).unwrap().iter().map(|epoch| epoch.loss).collect();
        assert_eq!(losses, [1.0, 0.8]);
    }
}
