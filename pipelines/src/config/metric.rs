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
    /// Name in metrics and summaries. `_at_K` is appended to `recall` and `ndcg`.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::Loss => "loss",
            Self::MicroF1 => "micro_f1",
            Self::MacroF1 => "macro_f1",
            Self::RocAuc => "roc_auc",
            Self::Mrr => "mrr",
            Self::HitsAt1 => "hits_at_1",
            Self::HitsAt3 => "hits_at_3",
            Self::HitsAt10 => "hits_at_10",
            Self::Recall => "recall",
            Self::Ndcg => "ndcg",
            Self::Rmse => "rmse",
            Self::Mae => "mae",
            Self::R2 => "r2",
        }
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
        if [Self::Loss, Self::Rmse, Self::Mae].contains(&self) { value < best } else { value > best }
    }
}
