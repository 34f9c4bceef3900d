//! A model: layers chosen by name, built from a [`ModelSpec`] and run over blocks.

mod edge_copies;
mod node_task;
mod pass_memory;
mod readout;
mod registry;
mod residual_norm;
mod spec;
mod stages;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor, Var};
use gnnflow_data::rng::Key;

use self::readout::Readout;
use self::residual_norm::ResidualNorm;
use super::error::{Error, Result};
use super::graph_block::GraphBlock;
use super::initial::Initial;
use super::layers::{Layer, Pass};
use super::ops::{Aggregated, AggregatedProduct, RowAggregation, activate, prefix};
use super::pair_head::PairHead;
use super::params::{ParamBuilder, Params};
use super::perceptron::{Perceptron, PerceptronDropout};
use gnnflow_kernels::block::Block;
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

pub use edge_copies::EdgeCopies;
pub(crate) use node_task::Factors;
pub use node_task::{Hop, NodeInputs, NodeOutputs, split_row};
pub use pass_memory::{BlockSize, PassMemory};
pub use registry::{LayerFactory, Order, Registry};
pub use spec::{Decoder, JumpingKnowledge, ModelSpec, Norm};
pub use stages::{Reduction, Stage, StageRows};

pub use super::layers::{KindOptions, LayerSpec};

/// The input of a batch.
enum Input<'a> {
    /// The sources' rows, `[num_src, _]`.
    Rows(&'a Tensor),
    /// The first layer's aggregated rows, `[num_dst, _]`.
    Reduced(Tensor),
}

/// Whether a layer begins with the rows of its nodes and the means of their neighbors' rows.
fn is_of_self_and_mean(product: Option<&AggregatedProduct>) -> bool {
    product.is_some_and(|product| matches!(product.aggregation, RowAggregation::SelfAndMean(_)))
}

/// The parameter name of the decoder's relation vectors.
const RELATIONS: &str = "relations";

/// A stack of layers with their parameters.
///
/// Between two layers follow a residual connection, a norm, the activation and dropout, in this order. A perceptron may
/// precede the first layer ([`Order::PredictFirst`]). A readout may follow the last one ([`JumpingKnowledge`]).
pub struct Model {
    spec: ModelSpec,
    activation: Activation,
    order: Order,
    predictor: Option<Perceptron>,
    layers: Vec<Box<dyn Layer>>,
    residual_norms: Vec<ResidualNorm>,
    readout: Option<Readout>,
    pair_head: Option<PairHead>,
    params: Params,
    device: Device,
    /// Whether results are checked for numbers that are not finite.
    check_values: bool,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("spec", &self.spec).field("params", &self.params).finish_non_exhaustive()
    }
}

impl Model {
    /// Builds the model of `spec`. Parameters are drawn under `seed`, with equal values on all machines and devices.
    ///
    /// # Errors
    /// [`Error::UnknownLayer`] or [`Error::Spec`] for an invalid spec; [`Error::OutOfMemory`] when the device has
    /// no memory left.
    pub fn build(spec: &ModelSpec, registry: &Registry, device: &Device, seed: u64) -> Result<Self> {
        let kind = registry.kind(&spec.kind)?;
        let (order, factory) = match (spec.options.decoupled, &kind.propagation) {
            (false, _) => (kind.order, &kind.factory),
            (true, Some(propagation)) => (Order::PredictFirst, propagation),
            (true, None) => {
                let why = format!("{:?} cannot be decoupled; use \"gat\", or set `decoupled` to false", spec.kind);
                return Err(Error::spec("decoupled", why));
            }
        };
        check(spec, order)?;
        let activation = spec.activation.unwrap_or(kind.activation);
        let jumps = spec.jumping_knowledge != JumpingKnowledge::None;
        let mut params = ParamBuilder::new(seed, device);
        // Decoupled models predict one row per head. Between layers, rows also carry two attention scores per head.
        let decoupled = spec.options.decoupled;
        let predicted = if decoupled { spec.output_heads * spec.out_dim } else { spec.out_dim };
        let predictor = match order {
            Order::PredictFirst if decoupled => {
                let dims = Perceptron::dims(spec.in_dim, spec.hidden, predicted, spec.layers);
                Some(Perceptron::without_last_bias(&dims, activation, &mut params)?)
            }
            Order::PredictFirst => {
                let dims = Perceptron::dims(spec.in_dim, spec.hidden, predicted, spec.options.mlp_layers);
                Some(Perceptron::new(&dims, activation, &mut params)?)
            }
            _ => None,
        };
        let [first, between] = match order {
            Order::Interleaved => [spec.in_dim, spec.hidden],
            Order::PropagateFirst => [spec.in_dim; 2],
            Order::PredictFirst if decoupled => [predicted, predicted + 2 * spec.output_heads],
            Order::PredictFirst => [predicted; 2],
        };
        let (mut layers, mut residual_norms) = (Vec::with_capacity(spec.layers), Vec::with_capacity(spec.layers));
        for index in 0..spec.layers {
            let last = index + 1 == spec.layers && !jumps;
            let layer = LayerSpec {
                index,
                in_dim: if index == 0 { first } else { between },
                out_dim: if last { spec.out_dim } else { between },
                hidden: spec.hidden,
                heads: if last || decoupled { spec.output_heads } else { spec.heads },
                last,
                attention_dropout: spec.attention_dropout.unwrap_or(spec.dropout),
                activation,
                options: spec.options.clone(),
            };
            params.set_prefix(format!("layers.{index}."));
            layers.push(factory(&layer, &mut params)?);
            let norm = if last { Norm::None } else { spec.norm };
            residual_norms.push(ResidualNorm::new([layer.in_dim, layer.out_dim], spec.residual, norm, &mut params)?);
        }
        if predictor.is_none() && layers.iter().any(|layer| layer.info().needs_initial) {
            let why = format!("{:?} needs initial rows; register it with `Order::PredictFirst`", spec.kind);
            return Err(Error::spec("kind", why));
        }
        let readout = Readout::new(spec.jumping_knowledge, spec.layers, [spec.hidden, spec.out_dim], &mut params)?;
        params.set_prefix("decoder.");
        let pair_head = match spec.decoder {
            Decoder::None | Decoder::Relations(0) => None,
            Decoder::Relations(relations) => {
                params.add(RELATIONS, &[relations, spec.out_dim], Initial::XavierUniform { gain: 1.0 })?;
                None
            }
            Decoder::Pairs { outputs, layers } => Some(PairHead::new(spec.out_dim, outputs, layers, &mut params)?),
        };
        let (params, device, spec) = (params.finish(), device.clone(), spec.clone());
        let check_values = false;
        Ok(Self {
            spec,
            activation,
            order,
            predictor,
            layers,
            residual_norms,
            readout,
            pair_head,
            params,
            device,
            check_values,
        })
    }

    /// Returns the spec that the model was built from.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the device of the parameters. Inputs must be on the same device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the number of layers, which is also the number of blocks of a batch.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns layer `index`, for schedules that run its pieces separately.
    pub fn layer(&self, index: usize) -> &dyn Layer {
        self.layers[index].as_ref()
    }

    /// Returns the activation between two layers.
    pub fn activation(&self) -> Activation {
        if self.order == Order::Interleaved { self.activation } else { Activation::Identity }
    }

    /// Whether any layer needs degrees.
    pub fn needs_degrees(&self) -> bool {
        self.layers.iter().any(|layer| layer.info().needs_degrees)
    }

    /// Whether any layer needs edge features.
    pub fn needs_edge_features(&self) -> bool {
        self.layers.iter().any(|layer| layer.info().needs_edge_features)
    }

    /// Returns the input columns of each layer, followed by the output columns of the last layer.
    pub fn dims(&self) -> Vec<usize> {
        let ins = self.layers.iter().map(|layer| layer.info().in_dim);
        ins.chain(self.layers.last().map(|layer| layer.info().out_dim)).collect()
    }

    /// Returns how many trailing columns of the result of [`Model::embedding_stage`] are not part of a node's embedding.
    pub fn carried_dim(&self) -> usize {
        self.layers.last().filter(|_| self.readout.is_none()).map_or(0, |layer| layer.info().carried_dim)
    }

    /// Returns the decoder's relation vectors, `[relations, out_dim]`, if it has any.
    pub fn relations(&self) -> Option<&Tensor> {
        self.params.get(&format!("decoder.{RELATIONS}")).map(Var::as_tensor)
    }

    /// Returns the pair head, which computes outputs for pairs of nodes from the model's results, if the spec has one.
    pub fn pair_head(&self) -> Option<&PairHead> {
        self.pair_head.as_ref()
    }

    /// Returns the parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the parameters for modification.
    pub fn params_mut(&mut self) -> &mut Params {
        &mut self.params
    }

    /// Runs all layers over the blocks of a batch, from the input side: `x [num_src of the first block, in_dim]` →
    /// `[num_dst of the last block, out_dim]`. `x` is in `f32`, `bf16` or `f16`.
    ///
    /// `degrees` are the true in-degrees of the rows of `x`. `dropout` is the batch's key in training, else `None`.
    ///
    /// # Errors
    /// [`Error::Input`] when the blocks, `x` or `degrees` do not match the model.
    pub fn forward(
        &self,
        blocks: &[Arc<GraphBlock>],
        x: &Tensor,
        degrees: Option<&[u32]>,
        dropout: Option<Key>,
    ) -> Result<Tensor> {
        Ok(self.forward_with_sums(blocks, x, degrees, dropout)?.0)
    }

    /// As [`Model::forward`]. Also returns the batch's sums for the buffers, one number per buffer element, zeros at
    /// inference. Sum them over all batches and pass them to [`Model::absorb`].
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_with_sums(
        &self,
        blocks: &[Arc<GraphBlock>],
        x: &Tensor,
        degrees: Option<&[u32]>,
        dropout: Option<Key>,
    ) -> Result<(Tensor, Vec<f32>)> {
        self.forward_from(blocks, Input::Rows(x), degrees, dropout)
    }

    /// Returns the reduction of the first layer's input, if [`Model::forward_reduced`] can take its result.
    pub fn first_reduction(&self) -> Option<Reduction> {
        let layer = self.layers.first()?;
        let reduce = layer.reduction().filter(|_| self.only_first_layer_reads_input())?;
        let block = GraphBlock::new(Block::new(0, 0, vec![0], Vec::new()));
        let product = layer.product_of_aggregated(&Pass::new(&block)).ok()?;
        is_of_self_and_mean(product.as_ref()).then_some(Reduction { reduce, own_first: true })
    }

    /// As [`Model::forward_with_sums`], from the result of [`Model::first_reduction`] over the first block, `[num_dst of the first block, _]`, with
    /// the same bits.
    ///
    /// # Errors
    /// As [`Model::forward`], if there is no such reduction, or if the first block has weights.
    pub fn forward_reduced(
        &self,
        blocks: &[Arc<GraphBlock>],
        reduced: Tensor,
        dropout: Option<Key>,
    ) -> Result<(Tensor, Vec<f32>)> {
        let rows = reduced.dim(0)?;
        let fits = |block: &Arc<GraphBlock>| block.num_dst() == rows && block.edge_weights().is_none();
        if !self.only_first_layer_reads_input() || !blocks.first().is_some_and(fits) {
            return Err(Error::Input(format!("the model or the first block does not fit {rows} reduced rows")));
        }
        self.forward_from(blocks, Input::Reduced(reduced), None, dropout)
    }

    fn forward_from(
        &self,
        blocks: &[Arc<GraphBlock>],
        input: Input<'_>,
        degrees: Option<&[u32]>,
        dropout: Option<Key>,
    ) -> Result<(Tensor, Vec<f32>)> {
        let (Some(last), true) = (blocks.last(), blocks.len() == self.layers.len()) else {
            return Err(Error::Input(format!("{} blocks for {} layers", blocks.len(), self.layers.len())));
        };
        let mut sums = vec![0.0; self.params.flat_len() - self.params.trained_len()];
        let seeds = last.num_dst();
        let key_of = |index: usize| dropout.map(|key| key.fold(index as u64));
        // The aggregated input of the layer, if it was computed instead of `h`, which is then not read.
        let (mut h, mut aggregated) = match input {
            Input::Rows(x) => match &self.predictor {
                Some(predictor) => (predictor.forward(x, self.predictor_dropout(dropout), 0)?, None),
                None => (x.clone(), None),
            },
            Input::Reduced(rows) => (rows.clone(), Some(Aggregated::of(rows))),
        };
        h = self.finite(h, || self.result_of(0))?;
        let (first, mut results) = (h.clone(), Vec::new());
        // By layer, its parts if it is one product of aggregated rows, and nothing else reads its input or changes its result. Two such
        // layers in a row are fused.
        let products = blocks.iter().zip(&self.layers).enumerate().map(|(index, (block, layer))| {
            let pass = Pass { block, degrees, dropout: None, initial: None };
            if self.is_plain(index) { layer.product_of_aggregated(&pass) } else { Ok(None) }
        });
        let products = products.collect::<Result<Vec<_>>>()?;
        if aggregated.is_some() && !is_of_self_and_mean(products[0].as_ref()) {
            return Err(Error::Input("the first layer does not begin with a reduction".into()));
        }
        for (index, (block, layer)) in blocks.iter().zip(&self.layers).enumerate() {
            if aggregated.is_none() {
                self.check(index, block, h.dims())?;
            }
            let key = key_of(index);
            if index == 0 || !self.ends_with_relu(index - 1) {
                let activation = if index == 0 { Activation::Identity } else { self.activation() };
                let mask = self.mask(index, dropout);
                if activation != Activation::Identity || mask.is_some() {
                    h = activate(&h, activation, mask)?;
                }
            }
            let initial = if layer.info().needs_initial { Some(prefix(&first, block.num_dst())?) } else { None };
            let pass = Pass { block, degrees, dropout: key.map(|key| key.fold(1)), initial: initial.as_ref() };
            let mask = self.mask(index + 1, dropout);
            if let Some(AggregatedProduct { aggregation, weight, bias }) = &products[index] {
                let input = aggregated.take().map_or_else(|| Aggregated::new(aggregation, &h), Ok)?;
                if !self.ends_with_relu(index) {
                    h = self.checked(index, block, input.linear(weight, bias)?)?;
                } else if let Some(next) = products[index + 1].as_ref().filter(|_| !self.check_values) {
                    self.check(index + 1, &blocks[index + 1], &[block.num_dst(), weight.dim(0)?])?;
                    aggregated = Some(input.then(weight, bias, mask, &next.aggregation)?);
                } else {
                    h = self.checked(index, block, input.linear_relu(weight, bias, mask)?)?;
                }
                continue;
            }
            if self.ends_with_relu(index) {
                h = self.checked(index, block, layer.forward_relu(&pass, &h, mask)?)?;
                continue;
            }
            let z = self.checked(index, block, layer.forward(&pass, &h)?)?;
            let sums = dropout.is_some().then_some(&mut sums[..]);
            h = self.residual_norms[index].apply(z, &prefix(&h, block.num_dst())?, sums)?;
            if self.readout.is_some() {
                results.push(activate(&prefix(&h, seeds)?, self.activation(), None)?);
            }
        }
        if let Some(readout) = &self.readout {
            h = readout.apply(&results, self.mask(self.layers.len(), dropout))?;
        }
        Ok((h, sums))
    }

    /// Updates the buffers in `flat`, the flat vector of all parameters, from the sums of all batches of a step. `sums`
    /// is as long, with the summed numbers of [`Model::forward_with_sums`] at the buffers' positions.
    pub fn absorb(&self, flat: &mut [f32], sums: &[f32]) {
        let trained = self.params.trained_len();
        for running in self.residual_norms.iter().filter_map(ResidualNorm::running) {
            running.absorb(&mut flat[trained..], &sums[trained..]);
        }
    }

    /// Whether the input goes as it is into the first layer, and nowhere else, in training as well.
    fn only_first_layer_reads_input(&self) -> bool {
        self.predictor.is_none()
            && self.spec.input_dropout == 0.0
            && self.is_plain(0)
            && !self.layers.iter().any(|layer| layer.info().needs_initial)
            && self.device.is_cpu()
    }

    /// Whether nothing but the layer itself reads its input or changes its result.
    fn is_plain(&self, index: usize) -> bool {
        self.residual_norms[index].is_identity() && self.readout.is_none()
    }

    /// Whether ReLU directly follows layer `index`, so that the layer can fuse it ([`Layer::forward_relu`]).
    pub(crate) fn ends_with_relu(&self, index: usize) -> bool {
        let is_last = index + 1 == self.layers.len();
        !is_last && self.activation() == Activation::Relu && self.is_plain(index)
    }

    /// Returns the mask of the input of layer `index`, or of the readout after the last layer. `key` is the batch's key in
    /// training. `None` if nothing is dropped.
    fn mask(&self, index: usize, key: Option<Key>) -> Option<Dropout> {
        let share = match (self.order, index) {
            (Order::PredictFirst, _) => 0.0,
            (_, 0) => self.spec.input_dropout,
            (Order::PropagateFirst, _) => 0.0,
            (Order::Interleaved, _) => self.spec.dropout,
        };
        key.filter(|_| share > 0.0).map(|key| Dropout::new(share, key.fold(index as u64).fold(0)))
    }

    /// Returns the dropout of the predictor. `key` is the batch's key in training.
    fn predictor_dropout(&self, key: Option<Key>) -> Option<PerceptronDropout> {
        let ModelSpec { input_dropout: input, dropout: between, .. } = self.spec;
        key.map(|key| PerceptronDropout { input, between, key: key.fold(self.layers.len() as u64) })
    }

    /// Checks the shape of the input of layer `index`.
    fn check(&self, index: usize, block: &GraphBlock, found: &[usize]) -> Result<()> {
        let wanted = [block.num_src(), self.layers[index].info().in_dim];
        if found != wanted {
            return Err(Error::Input(format!("layer {index} got rows of shape {found:?}; expected {wanted:?}")));
        }
        Ok(())
    }

    /// Returns `result` of layer `index` if it has the promised shape. A registered layer can get it wrong.
    fn checked(&self, index: usize, block: &GraphBlock, result: Tensor) -> Result<Tensor> {
        let result = promised(index, "returned", result, [block.num_dst(), self.layers[index].info().out_dim])?;
        self.finite(result, || self.result_of(index + 1))
    }

    /// Switches the check of values on or off: an input or a result of a layer with a number that is not finite is then
    /// [`Error::NotFinite`]. It reads all results once more, and on a GPU waits for each of them. The bits of results do not depend on it.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use gnnflow_kernels::block::Block;
    /// use gnnflow_nn::{GraphBlock, Model, ModelSpec, Registry};
    ///
    /// let mut model = Model::build(&ModelSpec::new("sage", 1, 2, 4, 2), &Registry::default(), &Device::Cpu, 7)?;
    /// let block = GraphBlock::new(Block::new(1, 1, vec![0, 1], vec![0]));
    /// let rows = Tensor::new(&[[1f32, f32::NAN]], &Device::Cpu).map_err(gnnflow_nn::Error::from)?;
    /// assert!(model.forward(&[block.clone()], &rows, None, None).is_ok());
    /// model.set_check_values(true);
    /// let error = model.forward(&[block], &rows, None, None).unwrap_err();
    /// assert_eq!(error.to_string(), "the input of layer 1 has a number that is not finite");
    /// # Ok::<(), gnnflow_nn::Error>(())
    /// ```
    pub fn set_check_values(&mut self, on: bool) {
        self.check_values = on;
    }

    /// Whether values are checked.
    pub fn checks_values(&self) -> bool {
        self.check_values
    }

    /// Returns `rows`, unless values are checked and one is not finite. `place` names the rows.
    fn finite(&self, rows: Tensor, place: impl FnOnce() -> String) -> Result<Tensor> {
        if !self.check_values || rows.elem_count() == 0 {
            return Ok(rows);
        }
        // A product with 0 is NaN for numbers that are not finite.
        let sum = (rows.detach() * 0.0)?.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        if sum == 0.0 { Ok(rows) } else { Err(Error::NotFinite(place())) }
    }

    /// Names the result of layer `layer`, from 1; of 0, what precedes the first one.
    fn result_of(&self, layer: usize) -> String {
        match layer {
            0 => "the input of layer 1".to_owned(),
            _ => format!("the result of layer {layer} of {}", self.layers.len()),
        }
    }

    /// As [`Model::checked`], for the rows that the layer sends.
    fn checked_sent(&self, index: usize, block: &GraphBlock, sent: Tensor) -> Result<Tensor> {
        promised(index, "sent", sent, [block.num_src(), self.layers[index].info().sent_dim])
    }
}

fn promised(index: usize, what: &str, rows: Tensor, wanted: [usize; 2]) -> Result<Tensor> {
    if rows.dims() != wanted {
        let promised = format!("its LayerInfo and the block promise {wanted:?}");
        return Err(Error::Input(format!("layer {index} {what} rows of shape {:?}; {promised}", rows.dims())));
    }
    Ok(rows)
}

/// Checks the spec.
fn check(spec: &ModelSpec, order: Order) -> Result<()> {
    let share = |key, p: f64| {
        if (0.0..1.0).contains(&p) { Ok(()) } else { Err(Error::spec(key, format!("{p} is not in 0 ≤ p < 1"))) }
    };
    share("input_dropout", spec.input_dropout)?;
    share("dropout", spec.dropout)?;
    share("attention_dropout", spec.attention_dropout.unwrap_or(0.0))?;
    for (key, value) in [
        ("layers", spec.layers),
        ("in_dim", spec.in_dim),
        ("hidden", spec.hidden),
        ("out_dim", spec.out_dim),
        ("output_heads", spec.output_heads),
        ("mlp_layers", spec.options.mlp_layers),
    ] {
        if value == 0 {
            return Err(Error::spec(key, "is 0; use at least 1"));
        }
    }
    if order != Order::Interleaved {
        let options = [
            ("residual", spec.residual),
            ("norm", spec.norm != Norm::None),
            ("jumping_knowledge", spec.jumping_knowledge != JumpingKnowledge::None),
        ];
        if let Some((key, _)) = options.into_iter().find(|(_, enabled)| *enabled) {
            return Err(Error::spec(key, format!("{:?} has no parameters between layers; remove this key", spec.kind)));
        }
    }
    Ok(())
}
