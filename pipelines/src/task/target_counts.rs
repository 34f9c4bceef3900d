//! The numbers of target edges, for the plan.

use gnnflow_data::dataset::{Dataset, split};
use serde::Serialize;

use super::target_edges::TargetRules;
use crate::config::{Config, Task};
use crate::error::Error;

/// The numbers of target edges.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetCounts {
    /// Training edges of every partition.
    pub train: Vec<u64>,
    /// Validation and test edges.
    pub held_out: u64,
}

impl TargetCounts {
    /// Counts the target edges of a task on edges, in one pass over the mapped files of `dataset`; `None` for other tasks.
    ///
    /// # Errors
    /// If the dataset cannot be read, or lacks a named edge type.
    pub(crate) fn of(config: &Config, dataset: &Dataset) -> Result<Option<Self>, Error> {
        let Some(train) = config.train.as_ref().filter(|train| train.learns_edges()) else { return Ok(None) };
        let rules = TargetRules::new(config, dataset.manifest(), train)?;
        let mut this = Self { train: vec![0; dataset.manifest().parts()], held_out: 0 };
        for (part, count) in this.train.iter_mut().enumerate() {
            let (topology, first) = (dataset.topology(part)?, dataset.book().range(part).start as u32);
            let labels = topology.labels().unwrap_or_default();
            rules.for_each(&topology, first, |_, split, at| {
                let split = match train.task {
                    Task::EdgeClassification => rules.of_labeled(split, labels.get(at).copied().unwrap_or(-1)),
                    _ => split,
                };
                *count += u64::from(split == split::TRAIN);
                this.held_out += u64::from(matches!(split, split::VAL | split::TEST));
            });
        }
        Ok(Some(this))
    }
}
