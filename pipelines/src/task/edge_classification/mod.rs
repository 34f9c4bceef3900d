//! Edge classification from the results of both ends.

pub(crate) mod edges;

use candle_core::Tensor;

use super::class_loss::ClassLoss;
use super::objective::{Examples, Loss, Objective};
use crate::config::Metric;
use crate::error::Error;

pub(crate) use edges::ClassedEdges;

/// Classification of edges: softmax and cross-entropy over classes.
pub(crate) struct EdgeClassification {
    /// Columns of the model's result.
    pub(crate) width: usize,
    pub(crate) loss: ClassLoss,
}

impl Objective for EdgeClassification {
    fn width(&self) -> usize {
        self.width
    }

    fn metric(&self) -> Metric {
        Metric::Accuracy
    }

    fn loss(&self, batch: &Examples<'_>, outputs: &Tensor) -> Result<Loss, Error> {
        let (Some(pairs), Some(head)) = (batch.pairs, batch.head) else {
            return Err(Error::Bug("a batch of edge classification has no pairs, or its model no head".into()));
        };
        let sum = self.loss.of_edges(&head.forward(outputs, pairs)?, &pairs.labels)?;
        Ok(Loss { sum, examples: pairs.positives as u64 })
    }
}
