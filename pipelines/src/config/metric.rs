//! What is measured on validation and test nodes or edges.

use super::section::words;

words! {
    /// A validation metric. Higher is better, but for `loss`, `rmse` and `mae`.
    pub enum Metric {
        /// Share of nodes whose class is right, or all of whose labels are.
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
        /// Share of edges that are ranked first.
        HitsAt1 = "hits-at-1",
        /// Share of edges among the first three.
        HitsAt3 = "hits-at-3",
        /// Share of edges among the first ten.
        HitsAt10 = "hits-at-10",
        /// Share of a source's held-out edges among `train.link.top_k` recommendations, mean over sources.
        Recall = "recall",
        /// Normalised discounted cumulative gain of those recommendations, mean over sources.
        Ndcg = "ndcg",
        /// Root of the mean squared error (lower is better).
        Rmse = "rmse",
        /// Mean absolute error (lower is better).
        Mae = "mae",
        /// Share of the labels' variance that is explained.
        R2 = "r2",
    }
}

impl Metric {
    /// Its name in metrics and summaries, where `_at_K` follows that of `recall` and `ndcg`; the loss stands beside them.
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

    /// Whether it is one of lists of recommendations.
    pub const fn is_of_lists(self) -> bool {
        matches!(self, Self::Recall | Self::Ndcg)
    }

    /// Whether it is one of ranked edges.
    pub const fn is_of_links(self) -> bool {
        matches!(self, Self::Mrr | Self::HitsAt1 | Self::HitsAt3 | Self::HitsAt10 | Self::Recall | Self::Ndcg)
    }

    /// Whether `value` is better than `best`. A number that is none never is.
    pub fn is_better(self, value: f64, best: f64) -> bool {
        if [Self::Loss, Self::Rmse, Self::Mae].contains(&self) { value < best } else { value > best }
    }
}
