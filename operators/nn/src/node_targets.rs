//! What the results for nodes are compared with: all that a loss of nodes needs beside them.

use crate::loss;
use candle_core::Tensor;

use crate::error::Result;

/// By node, in the order of the results' rows.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeTargets {
    /// A class each: softmax and cross-entropy.
    Classes(Vec<u32>),
    /// 0 or 1 for every label, row by row: a sigmoid and binary cross-entropy each.
    Flags(Vec<f32>),
    /// A number each: the square of what the result is off.
    Numbers(Vec<f32>),
}

impl NodeTargets {
    /// The loss of `outputs`, `[nodes, width]`, summed over the nodes.
    ///
    /// # Errors
    /// When there is not a target for each row.
    pub fn loss(&self, outputs: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Classes(classes) => loss::cross_entropy(outputs, classes)?,
            Self::Flags(flags) => loss::binary_cross_entropy(outputs, flags)?,
            Self::Numbers(numbers) => loss::squared_error(outputs, numbers)?,
        })
    }
}
