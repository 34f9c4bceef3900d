//! Layers of graph neural networks, each written once as the pieces that every schedule calls.
//!
//! A layer maps the rows of a block's sources to rows of its destinations. Its pieces are: the row that a node
//! [sends](Layer::send), a value on every edge ([`Layer::apply_edge`]), the reduction of the received rows
//! ([`Layer::aggregate`]), and the node's new row ([`Layer::apply_node`]). [`Layer::forward`] runs all of them; full-graph
//! schedules run them separately.

mod appnp;
mod gat;
mod gat_propagation;
mod gatv2;
mod gcn;
mod gin;
mod gine;
mod mlp;
mod rgcn;
mod sage;
mod sgc;
mod spec;

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use gnnflow_data::rng::Key;

use super::error::{Error, Result};
use super::graph_block::GraphBlock;
use super::ops::{AggregatedProduct, Reduce, activate, prefix};
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

pub use appnp::Appnp;
pub use gat::Gat;
pub use gat_propagation::GatPropagation;
pub use gatv2::Gatv2;
pub(crate) use gcn::degree_weights;
pub use gcn::{Gcn, gcn_weights};
pub use gin::Gin;
pub use gine::Gine;
pub use mlp::Mlp;
pub use rgcn::Rgcn;
pub use sage::{Aggregator, Sage};
pub use sgc::Sgc;
pub use spec::{KindOptions, LayerSpec};

/// The inputs of one run of a layer over a block, besides the rows.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The edges.
    pub block: &'a Arc<GraphBlock>,
    /// The true in-degree of every source, without self-loops. Required by [`LayerInfo::needs_degrees`].
    pub degrees: Option<&'a [u32]>,
    /// The key of this layer's dropout masks in training; `None` at inference.
    pub dropout: Option<Key>,
    /// The destinations' rows before the first layer, `[num_dst, in_dim]`. Required by [`LayerInfo::needs_initial`].
    pub initial: Option<&'a Tensor>,
}

impl<'a> Pass<'a> {
    /// A pass at inference, without degrees.
    pub fn new(block: &'a Arc<GraphBlock>) -> Self {
        Self { block, degrees: None, dropout: None, initial: None }
    }

    /// Returns the in-degree of every source of the block.
    ///
    /// # Errors
    /// [`Error::Input`] when degrees are missing or fewer than the sources.
    pub(crate) fn source_degrees(&self) -> Result<&'a [u32]> {
        let sources = self.block.num_src();
        let known = self.degrees.and_then(|degrees| degrees.get(..sources));
        known.ok_or_else(|| Error::Input(format!("the layer needs the degrees of the block's {sources} sources")))
    }

    /// Returns the features of the edges of `block`, `[E, dim]`. `block` is [`Pass::block`] itself or the same block
    /// [with self-loops](GraphBlock::with_self_loops). For layers with [`LayerInfo::needs_edge_features`].
    ///
    /// # Errors
    /// [`Error::Input`] when the block has no edge features; [`Error::OutOfMemory`] when the device has no memory left.
    pub fn edge_features(&self, block: &GraphBlock, device: &Device) -> Result<Tensor> {
        let missing =
            || Error::Input(format!("the layer needs the features of the block's {} edges", block.num_edges()));
        block.edge_features_on(device)?.ok_or_else(missing)
    }

    /// Returns the destinations' rows before the first layer.
    ///
    /// # Errors
    /// [`Error::Input`] when they are missing.
    pub(crate) fn initial_rows(&self) -> Result<&'a Tensor> {
        self.initial.ok_or_else(|| Error::Input("the layer needs its destinations' rows before the first layer".into()))
    }
}

/// How a node reduces the rows that its in-neighbors send.
///
/// Every weight follows from the two ends of an edge. Full-graph schedules ([`Model::node_task`](super::Model::node_task))
/// therefore have fused kernels for these reductions, and store no value per edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// No reduction: the layer reads no edges.
    Nothing,
    /// The sum over the in-edges.
    Sum,
    /// The mean over the in-edges; zeros for a node without in-edges.
    Mean,
    /// The mean over the in-neighbors and the node itself. Stored self-loops are skipped.
    MeanWithSelf,
    /// The maximum of each column over the in-edges; zeros for a node without in-edges.
    Max,
    /// GCN's normalized sum over the in-neighbors and the node itself: weight `1 / sqrt((d_i + 1)(d_j + 1))`. Stored
    /// self-loops are skipped.
    Symmetric,
    /// The mean over the in-edges of each relation, concatenated by relation; zeros for a relation without in-edges.
    MeanByRelation {
        /// The number of edge types.
        relations: usize,
    },
    /// For each head, the sum over the in-neighbors and the node itself, weighted by a softmax. Stored self-loops are skipped.
    ///
    /// The logits are `leaky_relu(left_j + right_i)` with the scores of [`Layer::attention_terms`]. With `dynamic`, they are
    /// the sum over the head's columns c of `sign(a_c) · leaky_relu(left_jc + right_ic)`, where a is
    /// [`Layer::attention_vectors`].
    Attention {
        /// The number of heads, concatenated in a row.
        heads: usize,
        /// Whether this is GATv2's attention instead of GAT's: scores have the width of the sent row.
        dynamic: bool,
        /// Leaky ReLU's slope below 0.
        slope: f64,
        /// The share of attention weights that training drops.
        dropout: f64,
    },
}

/// The fixed properties of a layer: widths in columns, needed inputs, and what a full-graph schedule may rely on.
///
/// [`LayerInfo::new`] assumes nothing but the widths, so a user's layer needs no other field to train with mini-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInfo {
    /// Columns of the input row.
    pub in_dim: usize,
    /// Columns of the output row.
    pub out_dim: usize,
    /// Columns of the row that a node sends.
    pub sent_dim: usize,
    /// Trailing input columns that earlier layers computed for this one. They are not part of a node's embedding.
    pub carried_dim: usize,
    /// Columns of the rows within [`Layer::apply_node`], between its input and its output; 0 if there are none.
    pub hidden_dim: usize,
    /// Whether [`Pass::degrees`] must be set.
    pub needs_degrees: bool,
    /// Whether [`Pass::edge_features`] must be available, with [`KindOptions::edge_dim`] columns.
    pub needs_edge_features: bool,
    /// Whether [`Pass::initial`] must be set.
    pub needs_initial: bool,
    /// Whether [`Layer::apply_node`] reads the destination's own input row.
    pub reads_own: bool,
    /// Whether [`Layer::send`] sends the input row unchanged, except for the [carried](LayerInfo::carried_dim) columns. No
    /// parameter is then learned before the aggregation.
    pub sends_input: bool,
    /// Whether every piece that works on nodes computes a row from that row alone, with the same bits wherever the rows are cut
    /// at multiples of [`PANEL`](super::ops::PANEL), and draws no dropout masks. Tasks may then be split
    /// ([`Model::task_works_by_row`](super::Model::task_works_by_row)), and inference computes the sent rows of each node once, in a
    /// [stage](super::model::Stage) of their own, unless the layer [sends its input](LayerInfo::sends_input). The result of all pieces must
    /// then equal that of [`Layer::forward`]. The pieces that work on nodes are
    /// [`Layer::send`], [`Layer::attention_terms`], [`Layer::merge_aggregated`], [`Layer::apply_node`] and [`Layer::apply_node_relu`].
    pub row_independent: bool,
    /// The reduction of the received rows, if full-graph schedules have a kernel for it.
    pub aggregation: Option<Aggregation>,
    /// `[a, b]` if the layer is element-wise linear: output = a · aggregated + b · initial. Tensor-parallel training then
    /// chains aggregations without gathering full rows. If the next layer has attention, it reuses this layer's scores.
    pub element_wise: Option<[f32; 2]>,
}

impl LayerInfo {
    /// A layer that sends rows of `in_dim` columns, returns rows of `out_dim` columns and reads the destination's own row.
    /// It needs no further inputs and gives no guarantees to full-graph schedules.
    pub fn new(in_dim: usize, out_dim: usize) -> Self {
        Self {
            in_dim,
            out_dim,
            sent_dim: in_dim,
            carried_dim: 0,
            hidden_dim: 0,
            needs_degrees: false,
            needs_edge_features: false,
            needs_initial: false,
            reads_own: true,
            sends_input: false,
            row_independent: false,
            aggregation: None,
            element_wise: None,
        }
    }
}

/// A layer of a graph neural network.
///
/// A block's destinations are its first sources, so `h_dst` is always the first rows of `h_src`. A user's layer implements this
/// trait and is [registered](super::Registry::register) by name:
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::initial::Initial;
/// use gnnflow_nn::{GraphBlock, Layer, LayerInfo, LayerSpec, Model, ModelSpec, ParamBuilder, Pass, Registry, Result, ops};
///
/// /// The higher-order layer of Morris et al. (2019): W₁·h_dst + W₂·Σ h_src + b.
/// struct GraphConv { dims: (usize, usize), own: Var, neighbor: Var, bias: Var }
///
/// impl GraphConv {
///     fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
///         let (dims, xavier) = ((spec.in_dim, spec.out_dim), Initial::XavierUniform { gain: 1.0 });
///         Ok(GraphConv {
///             dims,
///             own: params.add("own.weight", &[dims.1, dims.0], xavier)?,
///             neighbor: params.add("neighbor.weight", &[dims.1, dims.0], xavier)?,
///             bias: params.add("bias", &[dims.1], Initial::Zeros)?,
///         })
///     }
/// }
///
/// impl Layer for GraphConv {
///     fn info(&self) -> LayerInfo { LayerInfo::new(self.dims.0, self.dims.1) }
///     fn aggregate(&self, pass: &Pass, sent: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
///         Ok(ops::segment_sum(pass.block, sent)?)
///     }
///     fn apply_node(&self, _: &Pass, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
///         let own = ops::linear(h_dst, &self.own, Some(&self.bias))?;
///         Ok(ops::linear(aggregated, &self.neighbor, Some(&own))?)
///     }
/// }
///
/// let mut registry = Registry::default();
/// registry.register("graphconv", |spec, params| Ok(Box::new(GraphConv::new(spec, params)?)));
/// let model = Model::build(&ModelSpec::new("graphconv", 1, 3, 8, 2), &registry, &Device::Cpu, 7)?;
/// let block = GraphBlock::new(Block::new(2, 3, vec![0, 2, 3], vec![1, 2, 2]));
/// let x = Tensor::ones((3, 3), candle_core::DType::F32, &Device::Cpu)?;
/// assert_eq!(model.forward(&[block], &x, None, None)?.dims(), [2, 2]);
/// # Ok::<(), gnnflow_nn::Error>(())
/// ```
pub trait Layer: Send + Sync {
    /// Returns the layer's fixed properties. They never change.
    fn info(&self) -> LayerInfo;

    /// Maps the result of [`LayerInfo::aggregation`] to the input of [`Layer::apply_node`], in full-graph schedules:
    /// `[N, sent_dim]` (for each relation, if they are separate) → `[N, _]`. By default, returns it unchanged.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn merge_aggregated(&self, aggregated: &Tensor) -> Result<Tensor> {
        Ok(aggregated.clone())
    }

    /// Computes the attention scores of nodes, for [`Aggregation::Attention`]: as sources and as destinations, each
    /// `[N, heads]`, from the input rows and the sent rows. With `dynamic`, each is `[N, sent_dim]`: `|a|` times the sent row,
    /// and `|a|` times the row that the node has as a destination.
    ///
    /// # Errors
    /// By default always, since the layer has no attention. Otherwise as [`Layer::send`].
    fn attention_terms(&self, held: &Tensor, sent: &Tensor) -> Result<[Tensor; 2]> {
        let _ = (held, sent);
        Err(Error::Input("the layer has no attention".to_owned()))
    }

    /// Returns the attention vectors a, `[heads, sent_dim / heads]`, for `dynamic` [`Aggregation::Attention`]. By default, none.
    fn attention_vectors(&self) -> Option<&Var> {
        None
    }

    /// Computes the row that every source sends along its out-edges: `[num_src, in_dim]` → `[num_src, sent_dim]`. By default,
    /// its input row.
    ///
    /// # Errors
    /// When shapes do not match or the device fails. This holds for every piece.
    fn send(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        let _ = pass;
        Ok(h_src.clone())
    }

    /// Returns the weight W, `[sent_dim, in_dim]`, of a layer whose [`Layer::send`] is `h_src·Wᵀ` and nothing else. A backward pass then leaves
    /// out the product, of which it needs the gradient only; not with attention, whose scores need the rows. By default, returns none.
    fn send_weight(&self) -> Option<&Var> {
        None
    }

    /// Computes a value for every edge, `[E, _]`, from the destinations' input rows and all sent rows. The first rows of
    /// `sent` are those of the destinations. By default, none.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn apply_edge(&self, pass: &Pass<'_>, h_dst: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        let _ = (pass, h_dst, sent);
        Ok(None)
    }

    /// Reduces the received rows of every destination: `[num_src, sent_dim]` and the edges' values → `[num_dst, _]`.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor>;

    /// Computes the destinations' new rows from their input rows and the aggregated rows: → `[num_dst, out_dim]`, before any
    /// activation.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn apply_node(&self, pass: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor>;

    /// Returns ReLU of [`Layer::apply_node`], masked by `dropout`. A layer that ends with a matrix product or a bias can fuse both with
    /// the same bits ([`linear_relu`](super::ops::linear_relu), [`bias_relu`](super::ops::bias_relu)).
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn apply_node_relu(
        &self,
        pass: &Pass<'_>,
        h_dst: &Tensor,
        aggregated: &Tensor,
        dropout: Option<Dropout>,
    ) -> Result<Tensor> {
        Ok(activate(&self.apply_node(pass, h_dst, aggregated)?, Activation::Relu, dropout)?)
    }

    /// Runs all pieces: `[num_src, in_dim]` → `[num_dst, out_dim]`.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn forward(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        let h_dst = prefix(h_src, pass.block.num_dst())?;
        let sent = self.send(pass, h_src)?;
        let edges = self.apply_edge(pass, &h_dst, &sent)?;
        let aggregated = self.aggregate(pass, &sent, edges.as_ref())?;
        self.apply_node(pass, &h_dst, &aggregated)
    }

    /// Returns the parts of [`Layer::forward`] if it is one product of aggregated input rows. Such layers that follow one another are
    /// fused, with the same bits ([`Aggregated`](super::ops::Aggregated)). By default, returns none.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn product_of_aggregated(&self, pass: &Pass<'_>) -> Result<Option<AggregatedProduct>> {
        let _ = pass;
        Ok(None)
    }

    /// Returns the reduction that [`Layer::aggregate`] applies to the sent rows of edges without weights, if it reads nothing else.
    /// Inference may then apply it to rows where they lie. [`Layer::forward`] must have the bits of the pieces, or of
    /// [`Layer::product_of_aggregated`]. By default, returns none.
    fn reduction(&self) -> Option<Reduce> {
        None
    }

    /// Returns ReLU of [`Layer::forward`], masked by `dropout`: the input of the next layer. A layer that ends with a matrix
    /// product can fuse both with the same bits ([`linear_relu`](super::ops::linear_relu)).
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        Ok(activate(&self.forward(pass, h_src)?, Activation::Relu, dropout)?)
    }
}
