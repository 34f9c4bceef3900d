//! Targets that the results for nodes are compared with.

use crate::loss;
use candle_core::Tensor;

use crate::error::Result;

/// The targets of nodes, in the order of the results' rows.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeTargets {
    /// One class per node: softmax and cross-entropy.
    Classes(Vec<u32>),
    /// 0 or 1 for every label, row by row: sigmoid and binary cross-entropy.
    Flags(Vec<f32>),
    /// One number per node: squared error.
    Numbers(Vec<f32>),
}

impl NodeTargets {
    /// Returns the loss of `outputs`, `[nodes, width]`, summed over the nodes.
    ///
    /// # Errors
    /// When there is not one target per row.
    pub fn loss(&self, outputs: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Classes(classes) => loss::cross_entropy(outputs, classes)?,
            Self::Flags(flags) => loss::binary_cross_entropy(outputs, flags)?,
            Self::Numbers(numbers) => loss::squared_error(outputs, numbers)?,
        })
    }
}
