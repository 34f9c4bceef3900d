//! Fused layers of GraphSAGE and GCN. Gradients between them do not pass through candle.
//!
//! candle adds every gradient to zeros, on one thread. The rows between two layers are the longest arrays of a batch: this took a fifth of the
//! backward pass of two threads, and half of that of sixteen. Here, candle gets a tensor of one number instead of the rows. Each operation gives
//! the gradient of its input directly to the previous one.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor, WithDType, bail};

use super::linear::{Linear, product};
use super::linear_relu::{LinearRelu, ReluOfResult};
use super::self_and_mean::SelfAndMean;
use super::weighted::WeightedSum;
use super::{
    column_sum, elements, expect, gradient_of, linear, linear_relu, self_and_mean, store, weighted_sum, with_real,
    zeros,
};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::{segment, weighted};
use gnnflow_kernels::dense::elementwise::{Dropout, relu_of_result_in_place};

/// A layer that multiplies aggregated rows: `aggregation(h)·weightᵀ + bias`.
#[derive(Clone, Debug)]
pub struct AggregatedProduct {
    /// The aggregation of the input rows `h [num_src, D]`, to `[num_dst, K]`.
    pub aggregation: RowAggregation,
    /// `[O, K]`
    pub weight: Tensor,
    /// `[O]`
    pub bias: Tensor,
}

/// An aggregation of the sources' rows without parameters.
#[derive(Clone, Debug)]
pub enum RowAggregation {
    /// [`self_and_mean`] over the block.
    SelfAndMean(Arc<GraphBlock>),
    /// [`weighted_sum`] over the block, with constant weights `[E, 1]`.
    WeightedSum(Arc<GraphBlock>, Tensor),
}

impl RowAggregation {
    fn block(&self) -> &Arc<GraphBlock> {
        match self {
            Self::SelfAndMean(block) | Self::WeightedSum(block, _) => block,
        }
    }

    /// Returns the aggregated rows of `x`.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::SelfAndMean(block) => self_and_mean(block, x),
            Self::WeightedSum(block, weights) => weighted_sum(block, x, weights),
        }
    }

    /// Returns the aggregated rows of `x`, on the CPU, which candle does not track.
    fn apply_untracked(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::SelfAndMean(block) => x.apply_op1_no_bwd(&SelfAndMean { block: block.clone() }),
            Self::WeightedSum(block, weights) => x.apply_op2_no_bwd(weights, &WeightedSum { block: block.clone() }),
        }
    }
}

/// Holds the gradient of an operation's input until the previous operation takes it.
#[derive(Default)]
struct GradientSlot(Mutex<Option<Tensor>>);

impl GradientSlot {
    fn put(&self, gradient: Tensor) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self, op: &str) -> Result<Tensor> {
        let gradient = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        gradient.map_or_else(|| bail!("{op}: the next operation has left no gradient"), Ok)
    }
}

/// The aggregated rows of a layer, to be read by one operation: the product of the next layer.
///
/// The results and gradients have the bits of the separate operations.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::{GraphBlock, ops::{Aggregated, RowAggregation}};
///
/// # fn main() -> Result<()> {
/// // Node 0 has the in-neighbors 1 and 2.
/// let block = GraphBlock::new(Block::new(1, 3, vec![0, 2], vec![1, 2]));
/// let x = Tensor::new(&[[1f32], [2.0], [6.0]], &Device::Cpu)?;
/// // Adds the own row and the mean of the neighbors.
/// let (weight, bias) = (Tensor::new(&[[1f32, 1.0]], &Device::Cpu)?, Tensor::new(&[0f32], &Device::Cpu)?);
/// let aggregated = Aggregated::new(&RowAggregation::SelfAndMean(block), &x)?;
/// assert_eq!(aggregated.linear(&weight, &bias)?.to_vec2::<f32>()?, [[5.0]]);
/// # Ok(())
/// # }
/// ```
pub struct Aggregated {
    /// `[num_dst, K]`. Without `before`, candle tracks their gradient.
    rows: Tensor,
    before: Option<Before>,
}

/// The operation that has computed the rows of [`Aggregated`].
struct Before {
    /// One number, which candle tracks instead of the rows.
    link: Tensor,
    /// Where the operation takes the gradient of the rows from.
    gradient: Arc<GradientSlot>,
}

impl Aggregated {
    /// Returns the aggregated rows of `x [num_src, D]`: the beginning of fused layers.
    ///
    /// # Errors
    /// When `x` does not fit the block.
    pub fn new(aggregation: &RowAggregation, x: &Tensor) -> Result<Self> {
        Ok(Self { rows: aggregation.apply(x)?, before: None })
    }

    /// Takes `rows`, `[num_dst, K]`, that were aggregated elsewhere.
    pub(crate) fn of(rows: Tensor) -> Self {
        Self { rows, before: None }
    }

    /// Returns [`linear`] of the rows: the end of fused layers.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn linear(self, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        match self.before {
            None => linear(&self.rows, weight, Some(bias)),
            Some(before) => last(self.rows, before, [weight, bias], Product::Linear),
        }
    }

    /// Returns [`linear_relu`] of the rows: the end of fused layers.
    ///
    /// # Errors
    /// When shapes disagree.
    pub fn linear_relu(self, weight: &Tensor, bias: &Tensor, dropout: Option<Dropout>) -> Result<Tensor> {
        match self.before {
            None => linear_relu(&self.rows, weight, bias, dropout),
            Some(before) => last(self.rows, before, [weight, bias], Product::Relu(dropout)),
        }
    }

    /// Returns the aggregated rows of the next layer, whose input is [`linear_relu`] of the rows. Devices other than the CPU run separate
    /// operations.
    ///
    /// # Errors
    /// When shapes disagree, or the rows do not fit the block of `next`.
    pub fn then(self, weight: &Tensor, bias: &Tensor, dropout: Option<Dropout>, next: &RowAggregation) -> Result<Self> {
        if !self.rows.device().is_cpu() {
            return Self::new(next, &self.linear_relu(weight, bias, dropout)?);
        }
        let (weight, bias) = (weight.contiguous()?, bias.contiguous()?);
        let relu = self.rows.apply_op3_no_bwd(&weight, &bias, &LinearRelu { dropout })?;
        let rows = next.apply_untracked(&relu)?;
        let gradient = Arc::new(GradientSlot::default());
        let (input, operand, before) = match self.before {
            None => (self.rows.detach(), self.rows, None),
            Some(Before { link, gradient }) => (self.rows, link, Some(gradient)),
        };
        let then = Then { input, before, relu, dropout, next: next.clone(), gradient: gradient.clone() };
        Ok(Self { rows, before: Some(Before { link: operand.apply_op3(&weight, &bias, then)?, gradient }) })
    }
}

/// Applies the product of the last layer.
fn last(rows: Tensor, before: Before, [weight, bias]: [&Tensor; 2], product: Product) -> Result<Tensor> {
    let Before { link, gradient } = before;
    link.apply_op3(&weight.contiguous()?, &bias.contiguous()?, Last { rows, product, before: gradient })
}

/// [`Aggregated::then`]: `(link [1] or rows [N, K], W [D, K], bias [D])` → a link.
struct Then {
    /// `[N, K]`
    input: Tensor,
    /// Where the gradient of `input` goes, if candle has a link in its place.
    before: Option<Arc<GradientSlot>>,
    /// [`linear_relu`] of the input, `[N, D]`: the sources of `next`.
    relu: Tensor,
    dropout: Option<Dropout>,
    next: RowAggregation,
    /// Where the next operation puts the gradient of the result.
    gradient: Arc<GradientSlot>,
}

impl CustomOp3 for Then {
    fn name(&self) -> &'static str {
        "linear-relu-aggregate"
    }

    fn cpu_fwd(
        &self,
        operand: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let link = with_real!(operand, self.name(), T => store(vec![<T as WithDType>::from_f64(0.0)]));
        Ok((link, 1.into()))
    }

    fn bwd(
        &self,
        operand: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let backward = AggregateReluBackward { aggregation: self.next.clone(), dropout: self.dropout };
        let g = self.relu.apply_op2_no_bwd(&self.gradient.take(self.name())?.contiguous()?, &backward)?;
        gradients(&g, &self.input, [operand, w, bias], self.before.as_deref())
    }
}

/// Returns the gradients of the operands of a product, from that of its result.
fn gradients(
    g: &Tensor,
    input: &Tensor,
    [operand, w, bias]: [&Tensor; 3],
    before: Option<&GradientSlot>,
) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
    let dx = match before {
        Some(before) => gradient_of(operand, || {
            before.put(product(g, w, false, false)?);
            operand.zeros_like()
        })?,
        None => gradient_of(operand, || product(g, w, false, false))?,
    };
    let dw = gradient_of(w, || product(g, input, true, false))?;
    Ok((dx, dw, gradient_of(bias, || column_sum(g))?))
}

/// Gradient of ReLU's input: `(result of ReLU [num_src, D], gradient of the aggregated rows [num_dst, K])` → `[num_src, D]`.
struct AggregateReluBackward {
    aggregation: RowAggregation,
    dropout: Option<Dropout>,
}

impl CustomOp2 for AggregateReluBackward {
    fn name(&self) -> &'static str {
        "aggregate-relu-backward"
    }

    fn cpu_fwd(&self, relu: &CpuStorage, lr: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, width), (destinations, columns)) = (lr.shape().dims2()?, lg.shape().dims2()?);
        let block = self.aggregation.block();
        let per_column = if matches!(self.aggregation, RowAggregation::SelfAndMean(_)) { 2 } else { 1 };
        expect(self.name(), "destination rows", destinations, block.num_dst())?;
        expect(self.name(), "columns", columns, per_column * width)?;
        let out = with_real!(relu, self.name(), T => {
            let (relu, g) = (elements::<T>(relu, lr, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(relu.len());
            match &self.aggregation {
                RowAggregation::SelfAndMean(_) => {
                    segment::self_and_mean_backward(block.transpose(), block.inverse_degrees(), g, width, &mut out);
                }
                RowAggregation::WeightedSum(_, weights) => {
                    let (weights, layout) = weights.storage_and_layout();
                    let Storage::Cpu(weights) = &*weights else { bail!("{}: the weights are not on the CPU", self.name()) };
                    let weights = elements::<T>(weights, layout, self.name())?;
                    weighted::backward_rows(block.transpose(), weights, 1, g, width, &mut out);
                }
            }
            relu_of_result_in_place(self.dropout, relu, &mut out);
            store(out)
        });
        Ok((out, (rows, width).into()))
    }
}

/// The product of the last layer.
enum Product {
    /// [`linear`]
    Linear,
    /// [`linear_relu`]
    Relu(Option<Dropout>),
}

/// `(link [1], W [O, K], bias [O])` → `[N, O]`.
struct Last {
    /// `[N, K]`
    rows: Tensor,
    product: Product,
    /// Where the gradient of `rows` goes.
    before: Arc<GradientSlot>,
}

impl CustomOp3 for Last {
    fn name(&self) -> &'static str {
        "linear-of-aggregated"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        bias: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (rows, layout) = self.rows.storage_and_layout();
        let Storage::Cpu(rows) = &*rows else { bail!("{}: the rows are not on the CPU", self.name()) };
        match self.product {
            Product::Linear => Linear.cpu_fwd(rows, layout, w, lw, bias, lb),
            Product::Relu(dropout) => LinearRelu { dropout }.cpu_fwd(rows, layout, w, lw, bias, lb),
        }
    }

    fn bwd(
        &self,
        link: &Tensor,
        w: &Tensor,
        bias: &Tensor,
        result: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut g = g.contiguous()?;
        if let Product::Relu(dropout) = self.product {
            g = result.apply_op2_no_bwd(&g, &ReluOfResult { dropout })?;
        }
        gradients(&g, &self.rows, [link, w, bias], Some(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_kernels::block::Block;

    use super::*;

    /// A block in which every destination but the first one has five sources.
    fn block(destinations: u32, sources: u32) -> Arc<GraphBlock> {
        let ends = (0..=destinations).map(|node| 5 * node.saturating_sub(1)).collect();
        let edges = (0..5 * (destinations - 1)).map(|edge| (edge * 7919) % sources).collect();
        GraphBlock::new(Block::new(destinations, sources, ends, edges))
    }

    #[test]
    fn fused_layers_equal_separate_operations_bit_for_bit() {
        let mask = Dropout::new(0.4, Key::new(1, Purpose::Dropout));
        let blocks = [block(1030, 2000), block(520, 1030), block(60, 520)];
        for dtype in [DType::F32, DType::F64] {
            let number = std::cell::Cell::new(0.3);
            let var = |shape: &[usize]| {
                number.set(number.get() + 0.1);
                let values = (0..shape.iter().product()).map(|i: usize| (i as f32 * number.get()).sin());
                let tensor = Tensor::from_vec(values.collect(), shape, &Device::Cpu).unwrap();
                Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap()
            };
            let x = var(&[2000, 7]);
            let params = [var(&[19, 14]), var(&[19]), var(&[33, 38]), var(&[33]), var(&[5, 66]), var(&[5])];
            let probe = var(&[60, 5]);
            // The weights of a sum fit its `K` columns, which are those of the source rows.
            let weights = |block: &GraphBlock| var(&[block.num_edges(), 1]).as_tensor().detach();
            let sums = blocks.clone().map(|block| RowAggregation::WeightedSum(block.clone(), weights(&block)));
            let means = blocks.clone().map(RowAggregation::SelfAndMean);
            let narrow = [var(&[19, 7]), var(&[19]), var(&[33, 19]), var(&[33]), var(&[5, 33]), var(&[5])];
            let cases = [(None, false), (Some(mask), false), (Some(mask), true)];
            let cases = cases.iter().flat_map(|case| [(case, &means, &params), (case, &sums, &narrow)]);
            for (&(dropout, relu), [first, second, third], params) in cases {
                let [w0, b0, w1, b1, w2, b2] = params;
                let chain = |x: &Tensor| {
                    let rows = Aggregated::new(first, x)?.then(w0, b0, dropout, second)?;
                    let rows = rows.then(w1, b1, None, third)?;
                    if relu { rows.linear_relu(w2, b2, dropout) } else { rows.linear(w2, b2) }
                };
                let apart = |x: &Tensor| {
                    let x = linear_relu(&first.apply(x)?, w0, b0, dropout)?;
                    let x = linear_relu(&second.apply(&x)?, w1, b1, None)?;
                    let x = third.apply(&x)?;
                    if relu { linear_relu(&x, w2, b2, dropout) } else { linear(&x, w2, Some(b2)) }
                };
                // With and without a gradient of the input.
                for x in [x.as_tensor().clone(), x.as_tensor().detach()] {
                    let all = |result: Result<Tensor>| {
                        let result = result.unwrap();
                        let gradients = (&result * probe.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
                        let found = params.iter().map(|var| gradients.get(var).cloned());
                        let all = found.chain([gradients.get(&x).cloned(), Some(result)]).map(|tensor| {
                            let tensor = tensor?.to_dtype(DType::F64).unwrap();
                            Some(tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap())
                        });
                        all.collect::<Vec<_>>()
                    };
                    assert_eq!(all(chain(&x)), all(apart(&x)));
                }
            }
        }
    }
}
