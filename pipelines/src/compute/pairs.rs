//! The loss of pairs of nodes in full-graph training, from the rows of their nodes.

use std::sync::Arc;
use std::time::Instant;

use candle_core::Var;
use gnnflow_dataflow::batch::mini_batch::MiniBatch;
use gnnflow_dataflow::embed::push_rows::RowGradients;
use gnnflow_kernels::matrix::{Matrix, Values};

use super::ComputeState;
use super::passes::Pass;
use crate::error::Error;
use crate::task::objective::{Examples, Loss};
use gnnflow_nn::tensors::row_gradients;

/// The gradients of a chunk of a partition's pairs.
pub(crate) struct PairGradients {
    /// Gradients of the rows of its nodes.
    pub(crate) rows: RowGradients,
    /// The gradient of the parameters, if the decoder has any.
    pub(crate) flat: Option<Vec<f32>>,
    /// The loss, summed over the examples.
    pub(crate) loss: f64,
}

impl ComputeState {
    /// Returns the loss of a batch's pairs and its gradients; zeros for a batch without pairs.
    ///
    /// # Errors
    /// When the device fails, or rows are not `f32`.
    pub(crate) fn pair_gradients(&mut self, batch: MiniBatch) -> Result<PairGradients, Error> {
        let tensor = gnnflow_nn::Error::from;
        let partition = batch.key.partition;
        if batch.nodes.is_empty() {
            let rows = RowGradients { partition, ..RowGradients::default() };
            return Ok(PairGradients { rows, flat: None, loss: 0.0 });
        }
        let Self { all, passes, .. } = self;
        let model = &passes.read().model;
        let (nodes, Matrix { values, dim }) = (batch.nodes, batch.features);
        let Values::F32(values) = values else {
            return Err(Error::Bug("the model's results are 32-bit floats".into()));
        };
        all.threads.install(|| {
            let start = Instant::now();
            let x = Var::from_vec(values, (nodes.len(), dim), model.device()).map_err(tensor)?;
            let (relations, head) = (model.relations(), model.pair_head());
            let examples = Examples { seeds: &nodes, pairs: batch.pairs.as_ref(), relations, head };
            let Loss { sum, examples } = passes.objective.loss(&examples, x.as_tensor())?;
            let loss = sum.to_scalar::<f64>().map_err(tensor)?;
            passes.spend(Pass::Forward, all, start);
            let start = Instant::now();
            let gradients = sum.backward().map_err(tensor)?;
            let flat = match relations.is_some() || head.is_some() {
                true => {
                    let mut flat = vec![0.0; model.params().flat_len()];
                    model.params().gradients(&gradients, &mut flat)?;
                    Some(flat)
                }
                false => None,
            };
            let rows = Arc::new(row_gradients(&gradients, &x)?);
            passes.spend(Pass::Backward, all, start);
            Ok(PairGradients { rows: RowGradients { partition, examples, nodes, rows }, flat, loss })
        })
    }
}
