//! Metrics of validation and test nodes or edges.

use super::section::words;

words! {
    /// A validation metric. Higher is better, except for `loss`, `rmse` and `mae`.
    pub enum Metric {
        /// Fraction of nodes whose class, or whose labels, are all correct.
        Accuracy = "accuracy",
        /// The loss (lower is better).
        Loss = "loss",
        /// F1 over all labels together.
        MicroF1 = "micro-f1",
        /// Mean of the classes' F1.
        MacroF1 = "macro-f1",
        /// Area under the receiver operating characteristic, mean over labels.
        RocAuc = "roc-auc",
        /// Area under the curve of precision and recall (average precision), mean over labels.
        PrAuc = "pr-auc",
        /// Recall with the precision `train.classes.min_precision`, mean over labels.
        RecallAtPrecision = "recall-at-precision",
        /// Precision of the `train.classes.top_k` highest scores, mean over labels.
        PrecisionAtK = "precision-at-k",
        /// Mean reciprocal rank of edges.
        Mrr = "mrr",
        /// Fraction of edges ranked first.
        HitsAt1 = "hits-at-1",
        /// Fraction of edges ranked among the first three.
        HitsAt3 = "hits-at-3",
        /// Fraction of edges ranked among the first ten.
        HitsAt10 = "hits-at-10",
        /// Fraction of a source's held-out edges among `train.link.top_k` recommendations, mean over sources.
        Recall = "recall",
        /// Normalized discounted cumulative gain of these recommendations, mean over sources.
        Ndcg = "ndcg",
        /// Root of the mean squared error (lower is better).
        Rmse = "rmse",
        /// Mean absolute error (lower is better).
        Mae = "mae",
        /// Coefficient of determination.
        R2 = "r2",
    }
}

impl Metric {
    /// Name in metrics and summaries, or its beginning ([`Metric::has_bound`]).
    pub const fn key(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Loss => "loss",
            Self::MicroF1 => "micro_f1",
            Self::MacroF1 => "macro_f1",
            Self::RocAuc => "roc_auc",
            Self::PrAuc => "pr_auc",
            Self::RecallAtPrecision => "recall_at_precision_",
            Self::PrecisionAtK => "precision_at_",
            Self::Mrr => "mrr",
            Self::HitsAt1 => "hits_at_1",
            Self::HitsAt3 => "hits_at_3",
            Self::HitsAt10 => "hits_at_10",
            Self::Recall => "recall_at_",
            Self::Ndcg => "ndcg_at_",
            Self::Rmse => "rmse",
            Self::Mae => "mae",
            Self::R2 => "r2",
        }
    }

    /// Whether its name ends with a number of the pipeline, as in `recall_at_20`.
    pub const fn has_bound(self) -> bool {
        matches!(self, Self::Recall | Self::Ndcg | Self::RecallAtPrecision | Self::PrecisionAtK)
    }

    /// Whether it ranks nodes or edges by the score of a label, and needs two classes or several labels.
    pub(crate) const fn is_of_labels(self) -> bool {
        matches!(self, Self::RocAuc | Self::PrAuc | Self::RecallAtPrecision | Self::PrecisionAtK)
    }

    /// Whether it measures lists of recommendations.
    pub(crate) const fn is_of_lists(self) -> bool {
        matches!(self, Self::Recall | Self::Ndcg)
    }

    /// Whether it measures ranked edges.
    pub(crate) const fn is_of_links(self) -> bool {
        matches!(self, Self::Mrr | Self::HitsAt1 | Self::HitsAt3 | Self::HitsAt10 | Self::Recall | Self::Ndcg)
    }

    /// Whether `value` is better than `best`; false for NaN.
    pub(crate) fn is_better(self, value: f64, best: f64) -> bool {
        if Self::is_lower_better(self.key()) { value < best } else { value > best }
    }

    /// Whether lower values are better of the metric with this name in metrics and summaries.
    pub fn is_lower_better(key: &str) -> bool {
        [Self::Loss, Self::Rmse, Self::Mae].iter().any(|metric| metric.key() == key)
    }
}
