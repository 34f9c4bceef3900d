//! Metrics as integer counts, which add up exactly over partitions, in any order.
//!
//! Accuracy, F1 and the confusion matrix come from counts of hits and misses by class. Metrics of ranked scores, such as the
//! area under the ROC curve, come from histograms of the scores of positives and negatives.

use std::collections::BTreeMap;

use crate::score_bins::{self, ScoreBins, bins};

/// The kind of prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One of several classes.
    SingleLabel,
    /// Any number of labels.
    MultiLabel,
}

/// Maximum number of classes with a confusion matrix.
const MAX_CONFUSED: usize = 64;

/// Bounds of metrics that need one. A metric without its bound is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// The precision for `recall_at_precision_P`.
    pub precision: Option<f64>,
    /// The number of rows for `precision_at_K`.
    pub rows: Option<u64>,
}

/// The counts of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    /// Rows of this class.
    pub rows: u64,
    /// Rows with this class as prediction.
    pub predicted: u64,
    /// Rows of this class with this class as prediction.
    pub correct: u64,
}

impl ClassCounts {
    /// Returns the precision: correct over predicted rows, or 0 without predicted rows.
    pub fn precision(&self) -> f64 {
        share(self.correct, self.predicted)
    }

    /// Returns the recall: correct rows over rows of the class, or 0 without rows.
    pub fn recall(&self) -> f64 {
        share(self.correct, self.rows)
    }

    /// Returns the harmonic mean of precision and recall, or 0 without any row.
    pub fn f1(&self) -> f64 {
        share(2 * self.correct, self.rows + self.predicted)
    }
}

/// Counts of predictions against the truth.
///
/// ```
/// use gnnflow_nn::metrics::{Bounds, Counts, Task};
///
/// let mut counts = Counts::new(Task::SingleLabel, 3);
/// counts.update_classes(&[3., 1., 2., 0., 5., 1.], &[0, 2]); // predicts 0 and 1
/// let mut all = Counts::new(Task::SingleLabel, 3);
/// all.merge_words(&counts.words());
/// assert_eq!(all.finish(&Bounds::default())["accuracy"], 0.5);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    task: Task,
    classes: usize,
    rows: u64,
    /// Rows without any error.
    correct: u64,
    /// By class: true positives, false positives, false negatives.
    hits: Vec<[u64; 3]>,
    /// Rows by class and, within it, by prediction; empty with more than [`MAX_CONFUSED`] classes or several labels.
    confusion: Vec<u64>,
    /// For each label with ranked scores: the bins of negatives, then of positives.
    scores: Vec<u64>,
}

impl Counts {
    /// Empty counts for `classes` classes or labels.
    pub fn new(task: Task, classes: usize) -> Self {
        let areas = match task {
            Task::SingleLabel => usize::from(classes == 2),
            Task::MultiLabel => classes,
        };
        let scores = vec![0; areas * 2 * bins(classes)];
        let confused = if task == Task::SingleLabel && classes <= MAX_CONFUSED { classes } else { 0 };
        let confusion = vec![0; confused * confused];
        Self { task, classes, rows: 0, correct: 0, hits: vec![[0; 3]; classes], confusion, scores }
    }

    /// Counts rows of `classes` logits against each row's class. The first largest logit is the prediction.
    ///
    /// # Panics
    /// When lengths disagree, a label is not a class, or the task is not [`Task::SingleLabel`].
    pub fn update_classes(&mut self, logits: &[f32], labels: &[u32]) {
        assert_eq!(self.task, Task::SingleLabel, "the task must be single-label");
        assert_eq!(logits.len(), labels.len() * self.classes, "one logit per class and row");
        for (row, &label) in logits.chunks_exact(self.classes).zip(labels) {
            let label = label as usize;
            let predicted = (1..row.len()).fold(0, |best, c| if row[c] > row[best] { c } else { best });
            self.rows += 1;
            self.correct += u64::from(predicted == label);
            self.hits[predicted][usize::from(predicted != label)] += 1;
            self.hits[label][2] += u64::from(predicted != label);
            if let Some(cell) = self.confusion.get_mut(label * self.classes + predicted) {
                *cell += 1;
            }
            if let [no, yes] = *row {
                self.score(0, yes - no, label == 1);
            }
        }
    }

    /// Counts rows of `classes` logits against their targets, which are true above 0.5. A logit above 0 predicts true.
    ///
    /// # Panics
    /// When lengths disagree or the task is not [`Task::MultiLabel`].
    pub fn update_labels(&mut self, logits: &[f32], targets: &[f32]) {
        assert_eq!(self.task, Task::MultiLabel, "the task must be multi-label");
        assert_eq!(logits.len(), targets.len(), "one target per logit");
        for (row, targets) in logits.chunks_exact(self.classes).zip(targets.chunks_exact(self.classes)) {
            let mut right = true;
            for (label, (&logit, &target)) in row.iter().zip(targets).enumerate() {
                let (predicted, truth) = (logit > 0.0, target > 0.5);
                right &= predicted == truth;
                match (predicted, truth) {
                    (true, true) => self.hits[label][0] += 1,
                    (true, false) => self.hits[label][1] += 1,
                    (false, true) => self.hits[label][2] += 1,
                    (false, false) => {}
                }
                self.score(label, logit, truth);
            }
            self.rows += 1;
            self.correct += u64::from(right);
        }
    }

    fn score(&mut self, label: usize, score: f32, truth: bool) {
        let bins = bins(self.classes);
        self.scores[(2 * label + usize::from(truth)) * bins + score_bins::bin(score, bins)] += 1;
    }

    /// Returns all counts in a fixed order, for [`Counts::merge_words`].
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![self.rows, self.correct];
        words.extend(self.hits.as_flattened());
        words.extend(&self.confusion);
        words.extend(&self.scores);
        words
    }

    /// Adds the [`Counts::words`] of other counts.
    ///
    /// # Panics
    /// When the other counts have another length.
    pub fn merge_words(&mut self, words: &[u64]) {
        let length = 2 + 3 * self.classes + self.confusion.len() + self.scores.len();
        assert_eq!(words.len(), length, "counts of the same task");
        let own = [&mut self.rows, &mut self.correct].into_iter();
        let own = own.chain(self.hits.as_flattened_mut()).chain(&mut self.confusion).chain(&mut self.scores);
        own.zip(words).for_each(|(own, word)| *own += word);
    }

    /// Returns the number of counted rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the counts of every class or label.
    pub fn by_class(&self) -> Vec<ClassCounts> {
        let of = |&[hits, false_hits, misses]: &[u64; 3]| ClassCounts {
            rows: hits + misses,
            predicted: hits + false_hits,
            correct: hits,
        };
        self.hits.iter().map(of).collect()
    }

    /// Returns the number of rows by class and, within it, by prediction; empty with more than 64 classes or several labels.
    pub fn confusion(&self) -> Vec<Vec<u64>> {
        self.confusion.chunks(self.classes.max(1)).map(<[u64]>::to_vec).collect()
    }

    /// Returns `accuracy` (with several labels: the share of rows without any error), `micro_f1` and `macro_f1` (without
    /// classes that are neither predicted nor true). For two classes or several labels also the means over labels with
    /// positives of `roc_auc` (with negatives, too), `pr_auc` and those with [`Bounds`]. With two classes, the second is the
    /// positive one. A metric without data is 0.
    pub fn finish(&self, bounds: &Bounds) -> BTreeMap<String, f64> {
        let by_class = self.by_class();
        let total = by_class.iter().fold(ClassCounts::default(), |sum, class| ClassCounts {
            rows: sum.rows + class.rows,
            predicted: sum.predicted + class.predicted,
            correct: sum.correct + class.correct,
        });
        let seen = by_class.iter().filter(|class| class.rows + class.predicted > 0);
        let mut metrics = BTreeMap::from([
            ("accuracy".to_owned(), share(self.correct, self.rows)),
            ("micro_f1".to_owned(), total.f1()),
            ("macro_f1".to_owned(), mean(seen.map(ClassCounts::f1))),
        ]);
        if !self.scores.is_empty() {
            self.ranked(bounds, &mut metrics);
        }
        metrics
    }

    /// Adds the metrics of ranked scores.
    fn ranked(&self, bounds: &Bounds, metrics: &mut BTreeMap<String, f64>) {
        let bins = bins(self.classes);
        let labels = self.scores.chunks_exact(2 * bins);
        let labels: Vec<ScoreBins<'_>> =
            labels.map(|counts| ScoreBins { negatives: &counts[..bins], positives: &counts[bins..] }).collect();
        let mut add = |name: String, of: &dyn Fn(&ScoreBins<'_>) -> Option<f64>| {
            metrics.insert(name, mean(labels.iter().filter_map(of)));
        };
        add("roc_auc".into(), &|label| label.roc_auc());
        add("pr_auc".into(), &|label| label.average_precision());
        if let Some(precision) = bounds.precision {
            add(format!("recall_at_precision_{precision}"), &|label| label.recall_at_precision(precision));
        }
        if let Some(rows) = bounds.rows {
            add(format!("precision_at_{rows}"), &|label| label.precision_at(rows));
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
    if count == 0 { 0.0 } else { sum / f64::from(count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    #[test]
    fn single_label_metrics_equal_hand_counts() {
        let mut counts = Counts::new(Task::SingleLabel, 3);
        // Predictions 0 0 1 2 1, truth 0 1 1 2 2.
        let logits = [9., 0., 0., 9., 0., 0., 0., 9., 0., 0., 0., 9., 0., 9., 0.];
        counts.update_classes(&logits, &[0, 1, 1, 2, 2]);
        let metrics = counts.finish(&Bounds::default());
        assert_eq!(metrics["accuracy"], 0.6);
        assert_eq!(metrics["micro_f1"], 0.6);
        let by_class = [2. / 3., 0.5, 2. / 3.];
        assert!((metrics["macro_f1"] - by_class.iter().sum::<f64>() / 3.).abs() < 1e-12);
        assert!(!metrics.contains_key("roc_auc"));
        assert_eq!(counts.confusion(), [[1, 0, 0], [1, 1, 0], [0, 1, 1]]);
        let second = counts.by_class()[1];
        assert_eq!(second, ClassCounts { rows: 2, predicted: 2, correct: 1 });
        assert_eq!([second.precision(), second.recall(), second.f1()], [0.5; 3]);
        assert!(Counts::new(Task::SingleLabel, MAX_CONFUSED + 1).confusion().is_empty());
    }

    #[test]
    fn multi_label_metrics_equal_hand_counts() {
        let mut counts = Counts::new(Task::MultiLabel, 2);
        counts.update_labels(&[1., -1., 1., 1., -1., -1.], &[1., 0., 0., 1., 1., 0.]);
        let metrics = counts.finish(&Bounds::default());
        assert_eq!(metrics["accuracy"], 1. / 3.);
        assert!((metrics["micro_f1"] - 2. * 2. / (2. * 2. + 1. + 1.)).abs() < 1e-12);
        assert!((metrics["macro_f1"] - (0.5 + 1.) / 2.).abs() < 1e-12);
        // Label 0: positives 1, −1, negative 1: half a pair of two. Label 1: positive above both negatives.
        assert!((metrics["roc_auc"] - (0.25 + 1.) / 2.).abs() < 1e-12);
    }

    #[test]
    fn roc_auc_equals_pair_counts_and_merging_is_exact() {
        let key = Key::new(3, Purpose::GenerateNodes);
        let (n, mut logits, mut labels) = (400usize, Vec::new(), Vec::new());
        for i in 0..n as u64 {
            let label = u32::from(key.unit(2 * i) < 0.2);
            logits.extend([0.0, (key.normal(1000 + i) + f64::from(label)) as f32]);
            labels.push(label);
        }
        let mut whole = Counts::new(Task::SingleLabel, 2);
        whole.update_classes(&logits, &labels);
        let mut merged = Counts::new(Task::SingleLabel, 2);
        for part in [300..n, 0..300] {
            let mut counts = Counts::new(Task::SingleLabel, 2);
            counts.update_classes(&logits[2 * part.start..2 * part.end], &labels[part]);
            merged.merge_words(&counts.words());
        }
        assert_eq!(whole, merged);
        let (mut ordered, mut pairs) = (0.0, 0.0);
        for i in (0..n).filter(|&i| labels[i] == 1) {
            for j in (0..n).filter(|&j| labels[j] == 0) {
                let (a, b) = (logits[2 * i + 1], logits[2 * j + 1]);
                ordered += if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                };
                pairs += 1.0;
            }
        }
        assert!((whole.finish(&Bounds::default())["roc_auc"] - ordered / pairs).abs() < 1e-3);
    }

    #[test]
    fn metrics_without_rows_are_zero() {
        for task in [Task::SingleLabel, Task::MultiLabel] {
            assert!(Counts::new(task, 2).finish(&Bounds::default()).values().all(|&v| v == 0.0));
        }
    }
}
