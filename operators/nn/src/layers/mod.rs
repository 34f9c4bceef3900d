//! Layers, each written once as the pieces that every schedule calls.
//!
//! A layer turns the rows of a block's sources into rows of its destinations. Its pieces are: what a node [sends](Layer::send),
//! a value on every edge ([`Layer::apply_edge`]), the sum of what arrives ([`Layer::aggregate`]), and what the node makes of it
//! ([`Layer::apply_node`]). [`Layer::forward`] runs them one after another; other schedules run them apart.

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

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use gnnflow_data::rng::Key;

use super::error::{Error, Result};
use super::graph_block::GraphBlock;
use super::ops::{activate, prefix};
use gnnflow_kernels::dense::elementwise::{Activation, Dropout};

pub use appnp::Appnp;
pub use gat::Gat;
pub use gat_propagation::GatPropagation;
pub use gatv2::Gatv2;
pub use gcn::{Gcn, gcn_weights};
pub use gin::Gin;
pub use gine::Gine;
pub use mlp::Mlp;
pub use rgcn::Rgcn;
pub use sage::{Aggregator, Sage};
pub use sgc::Sgc;

/// One run of a layer over a block.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The edges.
    pub block: &'a Arc<GraphBlock>,
    /// The true in-degree of every source, self-loops not counted; for layers that [need](Layer::needs_degrees) them.
    pub degrees: Option<&'a [u32]>,
    /// The key of this layer's dropout masks when training; `None` at inference.
    pub dropout: Option<Key>,
    /// What the destinations had before the first layer, `[num_dst, in_dim]`; for layers that [ask](Layer::needs_initial) for it.
    pub initial: Option<&'a Tensor>,
}

impl<'a> Pass<'a> {
    /// A run at inference, without degrees.
    pub fn new(block: &'a Arc<GraphBlock>) -> Self {
        Self { block, degrees: None, dropout: None, initial: None }
    }

    /// The degrees of the block's sources.
    ///
    /// # Errors
    /// [`Error::Input`] when there are none, or fewer than sources.
    pub fn source_degrees(&self) -> Result<&'a [u32]> {
        let sources = self.block.num_src();
        let known = self.degrees.and_then(|degrees| degrees.get(..sources));
        known.ok_or_else(|| Error::Input(format!("the layer needs the degrees of the block's {sources} sources")))
    }

    /// The features of the edges of `block`, `[E, dim]`, which is [`Pass::block`] or that
    /// [with self-loops](GraphBlock::with_self_loops); for layers that [need](Layer::needs_edge_features) them.
    ///
    /// # Errors
    /// [`Error::Input`] when there are none; and when the device has no memory left.
    pub fn edge_features(&self, block: &GraphBlock, device: &Device) -> Result<Tensor> {
        let missing =
            || Error::Input(format!("the layer needs the features of the block's {} edges", block.num_edges()));
        block.edge_features_on(device)?.ok_or_else(missing)
    }

    /// What the destinations had before the first layer.
    ///
    /// # Errors
    /// [`Error::Input`] when it is not there.
    pub fn initial_rows(&self) -> Result<&'a Tensor> {
        self.initial.ok_or_else(|| Error::Input("the layer needs what its destinations had at first".to_owned()))
    }
}

/// How what arrives at a node is put together, for layers that need no value on an edge but what their two ends have: schedules
/// over whole graphs ([`Model::node_task`](super::Model::node_task)) then sum rows where they lie, and hold nothing for each edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aggregation {
    /// Nothing arrives.
    Nothing,
    /// The sum over the in-edges.
    Sum,
    /// The mean over the in-edges; zeros where there are none.
    Mean,
    /// The mean over the in-neighbors and the node itself, self-loops not counted.
    MeanWithSelf,
    /// The largest of each column over the in-edges; zeros where there are none.
    Max,
    /// The sum over the in-neighbors and the node itself, self-loops not counted, of `1 / sqrt((d_i + 1)(d_j + 1))` times what
    /// they send.
    Symmetric,
    /// The mean over the in-edges of each relation, side by side; zeros where a relation has none.
    MeanByRelation {
        /// Types of edges.
        relations: usize,
    },
    /// The sum over the in-neighbors and the node itself, self-loops not counted, weighted for each head by the softmax of
    /// `leaky_relu(left_j + right_i)`, of [`Layer::attention_terms`]; or, where it is dynamic, of the sum over the head's columns c of
    /// `sign(a_c) · leaky_relu(left_jc + right_ic)`, of [`Layer::attention_vectors`].
    Attention {
        /// Heads, side by side in a row.
        heads: usize,
        /// Whether terms are as wide as what is sent, which they are computed of again: GATv2's attention, rather than GAT's.
        dynamic: bool,
        /// Leaky ReLU's slope below 0.
        slope: f64,
        /// Share of the weights that training drops.
        dropout: f64,
    },
}

/// A layer of a graph neural network.
///
/// A block's destinations are its first sources, so `h_dst` is always the first rows of `h_src`. A user's own layer implements
/// this trait and is [registered](super::Registry::register) by name:
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::initial::Initial;
/// use gnnflow_nn::{GraphBlock, Layer, LayerSpec, Model, ModelSpec, ParamBuilder, Pass, Registry, Result, ops};
///
/// /// The higher-order layer of Morris and others (2019): W₁·h_dst + W₂·Σ h_src + b.
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
///     fn in_dim(&self) -> usize { self.dims.0 }
///     fn out_dim(&self) -> usize { self.dims.1 }
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
    /// Columns of what comes in.
    fn in_dim(&self) -> usize;

    /// Columns of what comes out.
    fn out_dim(&self) -> usize;

    /// Whether [`Pass::degrees`] must be there.
    fn needs_degrees(&self) -> bool {
        false
    }

    /// Whether [`Pass::edge_features`] must be there: edges have features of [`KindOptions::edge_dim`](super::KindOptions)
    /// columns.
    fn needs_edge_features(&self) -> bool {
        false
    }

    /// Whether [`Pass::initial`] must be there.
    fn needs_initial(&self) -> bool {
        false
    }

    /// How what arrives is put together, where that is one of the ways that whole graphs have kernels for.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }

    /// Where a node's new row is, column by column, a times what has arrived and b times what it held before the first layer:
    /// `[a, b]`. Schedules that cut rows by columns then need not put them together. Where the layer behind it attends, as this one
    /// does, it is by the same terms: those of the first of such layers.
    fn by_column(&self) -> Option<[f32; 2]> {
        None
    }

    /// Columns of what is sent. By default, of what comes in.
    fn sent_dim(&self) -> usize {
        self.in_dim()
    }

    /// Columns at the end of what comes in that are no part of a node's embedding: what the layers before have put there for this one.
    fn carried_dim(&self) -> usize {
        0
    }

    /// Whether [`Layer::send`] sends what a node holds as it is (less [what is carried](Layer::carried_dim)), so that there is nothing to learn in it.
    fn sends_as_held(&self) -> bool {
        false
    }

    /// For schedules over whole graphs: what [`Layer::apply_node`] is given of what has arrived by [`Layer::aggregation`]. By
    /// default, all of it as it is.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn merge_arrived(&self, arrived: &Tensor) -> Result<Tensor> {
        Ok(arrived.clone())
    }

    /// Whether [`Layer::merge_arrived`], [`Layer::apply_node`], [`Layer::send`] and [`Layer::attention_terms`] make the same of a
    /// node's row, to the bit, whichever rows stand beside it, where these are cut at multiples of [`PANEL`](super::ops::PANEL)
    /// rows; and draw no masks of their own. Rows may then be worked on in parts ([`Model::task_works_by_row`](super::Model::task_works_by_row)).
    /// By default not: nothing is known of a registered layer.
    fn works_by_row(&self) -> bool {
        false
    }

    /// Whether [`Layer::apply_node`] reads what the node held.
    fn reads_own(&self) -> bool {
        true
    }

    /// For [`Aggregation::Attention`]: what a node has for its out-edges and what for its in-edges, each `[N, heads]`, from what it
    /// holds and what it sends. Where that is dynamic, each `[N, sent_dim]`: `|a|` times what it sends, and `|a|` times what it has for
    /// its in-edges.
    ///
    /// # Errors
    /// By default, always: the layer has no attention. As [`Layer::send`] otherwise.
    fn attention_terms(&self, held: &Tensor, sent: &Tensor) -> Result<[Tensor; 2]> {
        let _ = (held, sent);
        Err(Error::Input("the layer has no attention".to_owned()))
    }

    /// For [`Aggregation::Attention`] that is dynamic: the vectors a, `[heads, sent_dim / heads]`. By default, none.
    fn attention_vectors(&self) -> Option<&Var> {
        None
    }

    /// What every source sends along its edges: `[num_src, in_dim]` → `[num_src, _]`. By default, what it holds.
    ///
    /// # Errors
    /// When shapes disagree or the device fails; so with every piece.
    fn send(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        let _ = pass;
        Ok(h_src.clone())
    }

    /// A value for every edge, `[E, _]`, from what its destination holds and what its ends send (`sent`'s first rows are the
    /// destinations'). By default, none.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn apply_edge(&self, pass: &Pass<'_>, h_dst: &Tensor, sent: &Tensor) -> Result<Option<Tensor>> {
        let _ = (pass, h_dst, sent);
        Ok(None)
    }

    /// What arrives at every destination: `[num_src, _]` and the edges' values → `[num_dst, _]`.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor>;

    /// What a destination makes of what it held and what arrived: → `[num_dst, out_dim]`, before any activation.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn apply_node(&self, pass: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor>;

    /// All pieces in turn: `[num_src, in_dim]` → `[num_dst, out_dim]`.
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

    /// `max(_, 0)` of [`Layer::forward`], masked by `dropout`: what the next layer begins with. A layer that ends with a matrix product can do
    /// both at once ([`linear_relu`](super::ops::linear_relu)), with the same bits.
    ///
    /// # Errors
    /// As [`Layer::send`].
    fn forward_relu(&self, pass: &Pass<'_>, h_src: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        Ok(activate(&self.forward(pass, h_src)?, Activation::Relu, dropout)?)
    }
}
