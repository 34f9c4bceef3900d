//! Metrics of ranked scores, from histograms of the scores of positives and negatives.
//!
//! A score is a logit or, for two classes, the difference of both. A histogram has [`bins`] equal bins over [−32, 32); the
//! outermost also count scores beyond. Scores in one bin count as equal, so a metric is exact up to ties closer than 1/1024
//! (1/64 above 16 labels, where fewer bins keep the counts small).

/// Histograms cover the scores −REACH..REACH.
const REACH: f32 = 32.0;

/// Returns the number of bins of a label's histogram.
pub(crate) fn bins(labels: usize) -> usize {
    if labels <= 16 { 65_536 } else { 4_096 }
}

/// Returns the bin of a score, of `bins` bins.
pub(crate) fn bin(score: f32, bins: usize) -> usize {
    ((score + REACH) * (bins as f32 / (2.0 * REACH))).clamp(0.0, (bins - 1) as f32) as usize
}

/// The numbers of negatives and positives of a label in each bin, by ascending scores.
pub(crate) struct ScoreBins<'a> {
    pub(crate) negatives: &'a [u64],
    pub(crate) positives: &'a [u64],
}

impl ScoreBins<'_> {
    fn all_positives(&self) -> u64 {
        self.positives.iter().sum()
    }

    /// Returns, for every threshold from the highest, the positives and the negatives above it.
    fn above(&self) -> impl Iterator<Item = (u64, u64)> {
        let bins = self.positives.iter().zip(self.negatives).rev().filter(|(p, n)| **p + **n > 0);
        bins.scan((0, 0), |(positives, negatives), (p, n)| {
            (*positives, *negatives) = (*positives + p, *negatives + n);
            Some((*positives, *negatives))
        })
    }

    /// Returns the share of pairs of a positive and a negative whose positive scores higher. Ties count half.
    pub(crate) fn roc_auc(&self) -> Option<f64> {
        let (mut below, mut twice) = (0u128, 0u128);
        for (&n, &p) in self.negatives.iter().zip(self.positives) {
            let (n, p) = (u128::from(n), u128::from(p));
            twice += p * (2 * below + n);
            below += n;
        }
        let pairs = below * u128::from(self.all_positives());
        (pairs > 0).then(|| twice as f64 / (2 * pairs) as f64)
    }

    /// Returns the average precision: the sum over thresholds of precision × increase of recall, as in scikit-learn's
    /// `average_precision_score`.
    pub(crate) fn average_precision(&self) -> Option<f64> {
        let all = self.all_positives();
        let (mut sum, mut before) = (0.0, 0);
        for (positives, negatives) in self.above() {
            sum += (positives - before) as f64 * positives as f64 / (positives + negatives) as f64;
            before = positives;
        }
        (all > 0).then(|| sum / all as f64)
    }

    /// Returns the highest recall of a threshold with at least this precision; 0 if there is none.
    pub(crate) fn recall_at_precision(&self, precision: f64) -> Option<f64> {
        let all = self.all_positives();
        let is_precise =
            |(positives, negatives): &(u64, u64)| *positives as f64 >= precision * (positives + negatives) as f64;
        let recalled = self.above().filter(is_precise).map(|(positives, _)| positives).max().unwrap_or(0);
        (all > 0).then(|| recalled as f64 / all as f64)
    }

    /// Returns the share of positives among the `rows` highest scores. Of equal scores at the end, a part counts.
    pub(crate) fn precision_at(&self, rows: u64) -> Option<f64> {
        let (mut positives, mut left) = (0.0, rows as f64);
        for (&p, &n) in self.positives.iter().zip(self.negatives).rev().filter(|(p, n)| **p + **n > 0) {
            let taken = left.min((p + n) as f64);
            positives += taken * p as f64 / (p + n) as f64;
            left -= taken;
        }
        (self.all_positives() > 0).then(|| positives / rows as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_equal_those_of_sklearn() {
        // Labels 1 0 1 1 0 0 1 0 by descending scores.
        let (mut negatives, mut positives) = (vec![0; 9], vec![0; 9]);
        for (place, label) in [1, 0, 1, 1, 0, 0, 1, 0].into_iter().rev().enumerate() {
            if label == 1 { positives[place] = 1 } else { negatives[place] = 1 }
        }
        let scores = ScoreBins { negatives: &negatives, positives: &positives };
        // sklearn: average_precision_score = (1/1 + 2/3 + 3/4 + 4/7) / 4; roc_auc_score = 11/16.
        let expected = (1.0 + 2.0 / 3.0 + 0.75 + 4.0 / 7.0) / 4.0;
        assert!((scores.average_precision().unwrap() - expected).abs() < 1e-12);
        assert_eq!(scores.roc_auc(), Some(11.0 / 16.0));
        assert_eq!(scores.recall_at_precision(0.75), Some(0.75));
        assert_eq!(scores.recall_at_precision(0.9), Some(0.25));
        assert_eq!([1, 2, 4].map(|rows| scores.precision_at(rows).unwrap()), [1.0, 0.5, 0.75]);
        // More than all rows.
        assert_eq!(scores.precision_at(16), Some(0.25));
        let ties = ScoreBins { negatives: &[3], positives: &[1] };
        assert_eq!((ties.precision_at(2), ties.average_precision()), (Some(0.25), Some(0.25)));
        let none = ScoreBins { negatives: &[3], positives: &[0] };
        assert_eq!((none.roc_auc(), none.average_precision(), none.precision_at(2)), (None, None, None));
    }

    #[test]
    fn scores_beyond_the_bins_are_in_the_outermost() {
        assert_eq!((bin(-1e9, 64), bin(1e9, 64), bin(0.0, 64)), (0, 63, 32));
    }
}
