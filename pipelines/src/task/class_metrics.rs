//! Metrics of classes: of all examples, and by class.

use std::collections::BTreeMap;
use std::sync::Arc;

use gnnflow_nn::metrics::{Bounds, ClassCounts, Counts, Task};

use super::classes::Classes;
use super::objective::Metrics;
use crate::config::ClassOptions;
use crate::runtime::records::{ByClass, ClassScores};

/// Counts predictions, and computes their metrics.
#[derive(Clone, Debug)]
pub(crate) struct ClassMetrics {
    task: Task,
    classes: Arc<Classes>,
    bounds: Bounds,
}

impl ClassMetrics {
    pub(crate) fn new(task: Task, classes: Arc<Classes>, options: &ClassOptions) -> Self {
        let bounds = Bounds { precision: options.min_precision, rows: options.top_k };
        Self { task, classes, bounds }
    }

    /// Returns all classes.
    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns empty counts.
    pub(crate) fn counts(&self) -> Counts {
        Counts::new(self.task, self.classes.count)
    }

    /// Returns the metrics of summed words of counts.
    pub(crate) fn finish(&self, words: &[u64]) -> Metrics {
        let mut counts = self.counts();
        counts.merge_words(words);
        let of = |(class, counts): (usize, &ClassCounts)| ClassScores {
            class: self.classes.plain_name(class),
            nodes: counts.rows,
            predicted: counts.predicted,
            precision: counts.precision(),
            recall: counts.recall(),
            f1: counts.f1(),
        };
        let by_class =
            ByClass { classes: counts.by_class().iter().enumerate().map(of).collect(), confusion: counts.confusion() };
        Metrics { examples: counts.rows(), values: counts.finish(&self.bounds), by_class: Some(by_class) }
    }
}

impl Metrics {
    /// Metrics without those of classes.
    pub(crate) fn plain(examples: u64, values: BTreeMap<String, f64>) -> Self {
        Self { examples, values, by_class: None }
    }
}
