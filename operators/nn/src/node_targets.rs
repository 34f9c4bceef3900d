//! Targets that the results for nodes are compared with.

use crate::loss;
use candle_core::Tensor;

use crate::error::Result;

/// The targets of nodes, in the order of the results' rows.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeTargets {
    /// One class per node: softmax and cross-entropy.
    Classes(Vec<u32>),
    /// One class and one weight per node: softmax and focal loss.
    WeightedClasses {
        /// The classes.
        classes: Vec<u32>,
        /// Factors of the nodes' losses.
        weights: Vec<f32>,
        /// The exponent of the focal loss; 0 for cross-entropy.
        gamma: f64,
    },
    /// 0 or 1 for every label, row by row: sigmoid and binary cross-entropy.
    Flags(Vec<f32>),
    /// A weight for every label, row by row: sigmoid focal loss.
    WeightedFlags {
        /// Factors of the labels' losses; negative for labels that the node does not have.
        weights: Vec<f32>,
        /// The exponent of the focal loss; 0 for binary cross-entropy.
        gamma: f64,
    },
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
            Self::WeightedClasses { classes, weights, gamma } => loss::focal_loss(outputs, classes, weights, *gamma)?,
            Self::Flags(flags) => loss::binary_cross_entropy(outputs, flags)?,
            Self::WeightedFlags { weights, gamma } => loss::sigmoid_focal_loss(outputs, weights, *gamma)?,
            Self::Numbers(numbers) => loss::squared_error(outputs, numbers)?,
        })
    }
}
