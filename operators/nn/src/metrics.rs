//! Metrics as integer counts, which add up exactly over partitions, in any order.
//!
//! Accuracy and F1 come from counts of hits and misses by class. The area under the ROC curve comes from histograms of
//! the scores of positives and negatives. A score is a logit or, for two classes, the difference of both. A histogram
//! has [`bins`] equal bins over [−32, 32); the outermost also count scores beyond. Scores in one bin count as equal, so
//! the area is exact up to ties closer than 1/1024 (1/64 above 16 labels, where fewer bins keep the counts small).

use std::collections::BTreeMap;

/// The kind of prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One of several classes.
    SingleLabel,
    /// Any number of labels.
    MultiLabel,
}

/// Histograms cover the scores −REACH..REACH.
const REACH: f32 = 32.0;

/// Returns the number of bins of a label's histogram.
pub fn bins(labels: usize) -> usize {
    if labels <= 16 { 65_536 } else { 4_096 }
}

/// Counts of predictions against the truth.
///
/// ```
/// use gnnflow_nn::metrics::{Counts, Task};
///
/// let mut counts = Counts::new(Task::SingleLabel, 3);
/// counts.update_classes(&[3., 1., 2., 0., 5., 1.], &[0, 2]); // predicts 0 and 1
/// let mut all = Counts::new(Task::SingleLabel, 3);
/// all.merge_words(&counts.words());
/// assert_eq!(all.finish()["accuracy"], 0.5);
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
    /// For each label with a ROC curve: the bins of negatives, then of positives.
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
        Self { task, classes, rows: 0, correct: 0, hits: vec![[0; 3]; classes], scores }
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
        let place = ((score + REACH) * (bins as f32 / (2.0 * REACH))).clamp(0.0, (bins - 1) as f32) as usize;
        self.scores[(2 * label + usize::from(truth)) * bins + place] += 1;
    }

    /// Returns all counts in a fixed order, for [`Counts::merge_words`].
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![self.rows, self.correct];
        words.extend(self.hits.as_flattened());
        words.extend(&self.scores);
        words
    }

    /// Adds the [`Counts::words`] of other counts.
    ///
    /// # Panics
    /// When the other counts have another length.
    pub fn merge_words(&mut self, words: &[u64]) {
        assert_eq!(words.len(), 2 + 3 * self.classes + self.scores.len(), "counts of the same task");
        let own = [&mut self.rows, &mut self.correct].into_iter();
        let own = own.chain(self.hits.as_flattened_mut()).chain(&mut self.scores);
        own.zip(words).for_each(|(own, word)| *own += word);
    }

    /// Returns the number of counted rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns `accuracy` (with several labels: the share of rows without any error), `micro_f1`, `macro_f1` (without
    /// classes that are neither predicted nor true) and, for two classes or several labels, `roc_auc` (the mean over
    /// labels with positives and negatives). A metric without data is 0.
    pub fn finish(&self) -> BTreeMap<String, f64> {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let f1 = |[tp, fp, fn_]: [u64; 3]| share(2 * tp, 2 * tp + fp + fn_);
        let total = self.hits.iter().fold([0; 3], |sum, h| [sum[0] + h[0], sum[1] + h[1], sum[2] + h[2]]);
        let class_f1: Vec<f64> = self.hits.iter().filter(|h| h.iter().any(|&n| n > 0)).map(|&h| f1(h)).collect();
        let mut metrics = BTreeMap::from([
            ("accuracy".to_owned(), share(self.correct, self.rows)),
            ("micro_f1".to_owned(), f1(total)),
            ("macro_f1".to_owned(), mean(&class_f1)),
        ]);
        if !self.scores.is_empty() {
            let bins = bins(self.classes);
            let areas: Vec<f64> =
                self.scores.chunks_exact(2 * bins).filter_map(|s| area(&s[..bins], &s[bins..])).collect();
            metrics.insert("roc_auc".to_owned(), mean(&areas));
        }
        metrics
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns the share of pairs of a positive and a negative whose positive scores higher. Ties count half.
fn area(negatives: &[u64], positives: &[u64]) -> Option<f64> {
    let (mut below, mut twice) = (0u128, 0u128);
    for (&n, &p) in negatives.iter().zip(positives) {
        let (n, p) = (u128::from(n), u128::from(p));
        twice += p * (2 * below + n);
        below += n;
    }
    let pairs = below * positives.iter().map(|&p| u128::from(p)).sum::<u128>();
    (pairs > 0).then(|| twice as f64 / (2 * pairs) as f64)
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
        let metrics = counts.finish();
        assert_eq!(metrics["accuracy"], 0.6);
        assert_eq!(metrics["micro_f1"], 0.6);
        let by_class = [2. / 3., 0.5, 2. / 3.];
        assert!((metrics["macro_f1"] - by_class.iter().sum::<f64>() / 3.).abs() < 1e-12);
        assert!(!metrics.contains_key("roc_auc"));
    }

    #[test]
    fn multi_label_metrics_equal_hand_counts() {
        let mut counts = Counts::new(Task::MultiLabel, 2);
        counts.update_labels(&[1., -1., 1., 1., -1., -1.], &[1., 0., 0., 1., 1., 0.]);
        let metrics = counts.finish();
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
        assert!((whole.finish()["roc_auc"] - ordered / pairs).abs() < 1e-3);
    }

    #[test]
    fn metrics_without_rows_are_zero() {
        for task in [Task::SingleLabel, Task::MultiLabel] {
            assert!(Counts::new(task, 2).finish().values().all(|&v| v == 0.0));
        }
    }
}
