//! The stages of exact inference.

use std::sync::Arc;

use candle_core::Tensor;

use super::Model;
use crate::error::{Error, Result};
use crate::graph_block::GraphBlock;
use crate::layers::Pass;
use crate::ops::{Aggregated, AggregatedProduct, Reduce, activate, prefix};
use gnnflow_kernels::block::Block;

/// A stage of exact inference: the work of [`Model::forward_stage`] for all nodes before the next stage begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Columns of the stage's result.
    pub width: usize,
    /// Whether the stage reads neighbors. Otherwise it reads only the nodes' own rows.
    pub edges: bool,
    /// The rows that the stage reads at the destinations, in addition to the previous stage's result.
    pub own: Vec<StageRows>,
    /// How the stage reduces the rows of the previous one, if it reads nothing else of the neighbors, and nothing of the edges.
    /// [`Model::finish_stage`] does the rest.
    pub reduction: Option<Reduction>,
}

/// The reduction of the sources' rows with which a stage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Over the in-edges.
    pub reduce: Reduce,
    /// Whether the destination's own row precedes the reduced row.
    pub own_first: bool,
}

/// Rows that a later stage may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageRows {
    /// The features.
    Features,
    /// The result of the stage with this index.
    Of(usize),
}

/// The work of a stage. A number is the index of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The perceptron before the first layer.
    Predict,
    /// The rows that nodes send, if they differ from the layer's input. They are computed once for each node, and not for each chunk
    /// of nodes that reads them.
    Send(usize),
    /// The rest of a layer with [`Work::Send`].
    Receive(usize),
    /// An entire layer.
    Layer(usize),
    /// The readout after the last layer.
    ReadOut,
}

impl Model {
    /// Returns the stages of exact inference in order. The last stage's result is the model's.
    pub fn stages(&self) -> Vec<Stage> {
        let works = self.works();
        let result_of = |before: usize| before.checked_sub(1).map_or(StageRows::Features, StageRows::Of);
        let stage = |(at, work): (usize, &Work)| match *work {
            Work::Predict => {
                let width = self.layers.first().map_or(self.spec.out_dim, |layer| layer.info().in_dim);
                Stage { width, edges: false, own: Vec::new(), reduction: None }
            }
            Work::Send(index) => {
                Stage { width: self.layers[index].info().sent_dim, edges: false, own: Vec::new(), reduction: None }
            }
            Work::Receive(index) | Work::Layer(index) => {
                let info = self.layers[index].info();
                let input = matches!(work, Work::Receive(_)).then(|| result_of(at - 1));
                let initial = info.needs_initial.then_some(StageRows::Of(0));
                let reduction = self.layers[index].reduction().filter(|_| self.device.is_cpu() && initial.is_none());
                let reduction = reduction.map(|reduce| Reduction { reduce, own_first: matches!(work, Work::Layer(_)) });
                Stage { width: info.out_dim, edges: true, own: input.into_iter().chain(initial).collect(), reduction }
            }
            Work::ReadOut => {
                let layers = works[..at - 1].iter().enumerate().filter(|(_, work)| work.ends_layer());
                let width = self.readout.as_ref().map_or(self.spec.out_dim, |readout| readout.out_dim());
                let own = layers.map(|(at, _)| StageRows::Of(at)).collect();
                Stage { width, edges: false, own, reduction: None }
            }
        };
        works.iter().enumerate().map(stage).collect()
    }

    /// Returns the index of the stage whose result is the nodes' embeddings: the input of the readout or, without one, of the last
    /// layer. If that input is the features, the index of the last stage.
    pub fn embedding_stage(&self) -> usize {
        let works = self.works();
        let last = works.len() - 1;
        let first_of_last = if matches!(works[last], Work::Receive(_)) { last - 1 } else { last };
        first_of_last.checked_sub(1).unwrap_or(last)
    }

    /// Runs one of [`Model::stages`] at inference, and the following activation unless the stage is the last. `h`,
    /// `[num_src, _]`, is the previous stage's result at the block's sources; for the first stage, the features. `own`
    /// holds the rows of [`Stage::own`] at the destinations, each `[num_dst, _]`. A stage without edges needs a
    /// block whose sources are its destinations.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_stage(
        &self,
        stage: usize,
        block: &Arc<GraphBlock>,
        h: &Tensor,
        degrees: Option<&[u32]>,
        own: &[Tensor],
    ) -> Result<Tensor> {
        let pass = |initial| Pass { block, degrees, dropout: None, initial };
        match self.works()[stage] {
            Work::Predict => match &self.predictor {
                Some(predictor) => predictor.forward(h, None, 0),
                None => Ok(h.clone()),
            },
            Work::Send(index) => {
                self.check(index, block, h.dims())?;
                let sent = self.layers[index].send(&pass(None), h)?;
                self.checked_sent(index, block, sent)
            }
            Work::Receive(index) => {
                let Some((input, initial)) = own.split_first() else {
                    return Err(Error::Input(format!("stage {stage} got no own rows")));
                };
                let (layer, pass) = (&self.layers[index], pass(initial.first()));
                let edges = layer.apply_edge(&pass, input, h)?;
                let aggregated = layer.aggregate(&pass, h, edges.as_ref())?;
                let z = self.checked(index, block, layer.apply_node(&pass, input, &aggregated)?)?;
                self.finish_layer(index, z, input)
            }
            Work::Layer(index) => {
                self.check(index, block, h.dims())?;
                let pass = pass(own.first());
                if self.ends_with_relu(index) {
                    return self.checked(index, block, self.layers[index].forward_relu(&pass, h, None)?);
                }
                let z = self.checked(index, block, self.layers[index].forward(&pass, h)?)?;
                self.finish_layer(index, z, &prefix(h, block.num_dst())?)
            }
            Work::ReadOut => match &self.readout {
                Some(readout) => readout.apply(&own.iter().chain([h]).cloned().collect::<Vec<_>>(), None),
                None => Ok(h.clone()),
            },
        }
    }

    /// Does the rest of a stage after its [reduction](Stage::reduction) to `reduced`, `[num_dst, _]`, with the bits of [`Model::forward_stage`].
    /// `own` is as there.
    ///
    /// # Errors
    /// As [`Model::forward_stage`].
    pub fn finish_stage(&self, stage: usize, reduced: &Tensor, own: &[Tensor]) -> Result<Tensor> {
        let nodes = reduced.dim(0)?;
        let block = GraphBlock::new(Block::new(nodes as u32, nodes as u32, vec![0; nodes + 1], Vec::new()));
        let pass = Pass::new(&block);
        match self.works()[stage] {
            Work::Receive(index) => {
                let Some(input) = own.first() else {
                    return Err(Error::Input(format!("stage {stage} got no own rows")));
                };
                let z = self.checked(index, &block, self.layers[index].apply_node(&pass, input, reduced)?)?;
                self.finish_layer(index, z, input)
            }
            Work::Layer(index) => {
                let layer = &self.layers[index];
                let width = layer.info().in_dim;
                let input = reduced.narrow(1, 0, width)?;
                let product = layer.product_of_aggregated(&pass)?;
                let z = match &product {
                    Some(AggregatedProduct { weight, bias, .. }) if self.ends_with_relu(index) => {
                        let rows = Aggregated::of(reduced.clone());
                        return self.checked(index, &block, rows.linear_relu(weight, bias, None)?);
                    }
                    Some(AggregatedProduct { weight, bias, .. }) => {
                        Aggregated::of(reduced.clone()).linear(weight, bias)?
                    }
                    None => layer.apply_node(&pass, &input, &reduced.narrow(1, width, width)?.contiguous()?)?,
                };
                self.finish_layer(index, self.checked(index, &block, z)?, &input)
            }
            _ => Err(Error::Input(format!("stage {stage} reduces no rows"))),
        }
    }

    /// Returns the work of each stage.
    fn works(&self) -> Vec<Work> {
        let layer = |index: usize| {
            let info = self.layers[index].info();
            match info.row_independent && !info.sends_input {
                true => vec![Work::Send(index), Work::Receive(index)],
                false => vec![Work::Layer(index)],
            }
        };
        let predict = self.predictor.iter().map(|_| Work::Predict);
        let layers = (0..self.layers.len()).flat_map(layer);
        predict.chain(layers).chain(self.readout.iter().map(|_| Work::ReadOut)).collect()
    }

    /// Applies what follows the layer's own result `z`: residual connection and norm and, unless it is the last, the activation.
    /// `input` has the layer's input at its destinations.
    fn finish_layer(&self, index: usize, z: Tensor, input: &Tensor) -> Result<Tensor> {
        let z = self.residual_norms[index].apply(z, input, None)?;
        let last = index + 1 == self.layers.len() && self.readout.is_none();
        if last { Ok(z) } else { Ok(activate(&z, self.activation(), None)?) }
    }
}

impl Work {
    /// Whether the result is a layer's.
    fn ends_layer(self) -> bool {
        matches!(self, Self::Receive(_) | Self::Layer(_))
    }
}
