//! Propagation of a decoupled graph attention network: its maps come first (Ai and others 2024, NeutronTP, section
//! 4.1).

use candle_core::{Tensor, Var};

use super::LayerSpec;
use super::gat::{SLOPE, attention_sum, drop_attention};
use super::{Aggregation, Layer, LayerInfo, Pass};
use crate::error::{Error, Result};
use crate::initial::Initial;
use crate::ops::{add_bias, attention_softmax, head_dot, head_mean, prefix};
use crate::params::ParamBuilder;

/// One propagation of the perceptron's predictions, with the same attention in every propagation. For each head, it
/// sums over the neighbors and the node itself. The last propagation averages the heads and adds a bias.
///
/// The attention is [`Gat`](super::Gat)'s, `softmax_j(leaky_relu(s·z_j + t·z_i))` with slope 0.2, of the predictions z
/// before any propagation. The first layer computes a node's source and destination scores. In later layers they follow
/// the node's columns: `[heads · width | heads | heads]`. Each propagation draws its own attention dropout.
#[derive(Debug)]
pub struct GatPropagation {
    heads: usize,
    /// Columns per head.
    width: usize,
    attention_dropout: f64,
    /// The vectors s and t; only in the first layer.
    vectors: Option<[Var; 2]>,
    /// Only in the last layer.
    bias: Option<Var>,
}

impl GatPropagation {
    /// Creates the layer of `spec`: parameters `source` and `destination` (s and t) in the first, `bias` in the last.
    ///
    /// # Errors
    /// When the columns are not a multiple of the heads, or the device is out of memory.
    pub fn new(spec: &LayerSpec, params: &mut ParamBuilder) -> Result<Self> {
        let LayerSpec { index, in_dim, out_dim, heads, last, attention_dropout, .. } = *spec;
        let carried = if index == 0 { 0 } else { 2 * heads };
        let columns = in_dim.checked_sub(carried).filter(|columns| heads > 0 && columns % heads == 0);
        let columns = columns.ok_or_else(|| {
            Error::spec("output_heads", format!("{in_dim} columns cannot be split among {heads} heads and their terms"))
        })?;
        let width = columns / heads;
        let mut vector = |name| params.add(name, &[heads, width], Initial::XavierUniform { gain: 1.0 });
        let vectors = if index == 0 { Some([vector("source")?, vector("destination")?]) } else { None };
        let bias = if last { Some(params.add("bias", &[out_dim], Initial::Zeros)?) } else { None };
        Ok(Self { heads, width, attention_dropout, vectors, bias })
    }

    fn columns(&self) -> usize {
        self.heads * self.width
    }

    fn row_width(&self) -> usize {
        self.columns() + 2 * self.heads
    }

    /// Returns the source and destination scores of nodes with the input rows `held`.
    fn scores(&self, held: &Tensor) -> Result<[Tensor; 2]> {
        match &self.vectors {
            Some([source, destination]) => Ok([head_dot(held, source)?, head_dot(held, destination)?]),
            None => {
                let trailing = |first: usize| held.narrow(1, self.columns() + first, self.heads)?.contiguous();
                Ok([trailing(0)?, trailing(self.heads)?])
            }
        }
    }
}

impl Layer for GatPropagation {
    fn info(&self) -> LayerInfo {
        let (heads, dropout, last) = (self.heads, self.attention_dropout, self.bias.is_some());
        let in_dim = if self.vectors.is_some() { self.columns() } else { self.row_width() };
        LayerInfo {
            sent_dim: self.columns(),
            carried_dim: in_dim - self.columns(),
            reads_own: !last,
            sends_input: true,
            aggregation: Some(Aggregation::Attention { heads, dynamic: false, slope: SLOPE, dropout }),
            element_wise: (!last).then_some([1.0, 0.0]),
            ..LayerInfo::new(in_dim, if last { self.width } else { self.row_width() })
        }
    }

    fn attention_terms(&self, held: &Tensor, _: &Tensor) -> Result<[Tensor; 2]> {
        self.scores(held)
    }

    fn send(&self, _: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        match self.vectors {
            Some(_) => Ok(h_src.clone()),
            None => Ok(h_src.narrow(1, 0, self.columns())?.contiguous()?),
        }
    }

    fn aggregate(&self, pass: &Pass<'_>, sent: &Tensor, edges: Option<&Tensor>) -> Result<Tensor> {
        attention_sum(pass, sent, edges)
    }

    fn apply_node(&self, _: &Pass<'_>, h_dst: &Tensor, aggregated: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => Ok(add_bias(&head_mean(aggregated, self.heads)?, bias)?),
            None => {
                let [left, right] = self.scores(h_dst)?;
                Ok(Tensor::cat(&[aggregated, &left, &right], 1)?)
            }
        }
    }

    /// Computes the scores from the sources' input rows, which [`Layer::apply_edge`] does not receive.
    fn forward(&self, pass: &Pass<'_>, h_src: &Tensor) -> Result<Tensor> {
        let (block, h_dst) = (pass.block.with_self_loops_on(h_src.device())?, prefix(h_src, pass.block.num_dst())?);
        let [left, right] = self.scores(h_src)?;
        let attention = attention_softmax(block, &left, &prefix(&right, block.num_dst())?, SLOPE)?;
        let attention = drop_attention(pass, &attention, self.attention_dropout)?;
        let aggregated = self.aggregate(pass, &self.send(pass, h_src)?, Some(&attention))?;
        self.apply_node(pass, &h_dst, &aggregated)
    }
}
