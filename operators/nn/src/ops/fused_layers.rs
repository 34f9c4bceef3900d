//! Fused layers of GraphSAGE. Gradients between them do not pass through candle.
//!
//! candle adds every gradient to zeros, on one thread. The rows between two layers are the longest arrays of a batch: this took a fifth of the
//! backward pass of two threads, and half of that of sixteen. Here, candle gets a tensor of one number instead of the rows. Each operation gives
//! the gradient of its input directly to the previous one.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor, WithDType, bail};

use super::linear::{Linear, product};
use super::linear_relu::{LinearRelu, ReluOfResult};
use super::self_and_mean::SelfAndMean;
use super::{column_sum, elements, expect, gradient_of, linear, linear_relu, self_and_mean, store, with_real, zeros};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::dense::elementwise::{Dropout, relu_of_result_in_place};

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

/// [`self_and_mean`] of the rows of a layer, to be read by one operation: the product of the next layer.
///
/// The results and gradients have the bits of the separate operations.
///
/// ```
/// use candle_core::{Device, Result, Tensor};
/// use gnnflow_kernels::block::Block;
/// use gnnflow_nn::{GraphBlock, ops::Means};
///
/// # fn main() -> Result<()> {
/// // Node 0 has the in-neighbors 1 and 2.
/// let block = GraphBlock::new(Block::new(1, 3, vec![0, 2], vec![1, 2]));
/// let x = Tensor::new(&[[1f32], [2.0], [6.0]], &Device::Cpu)?;
/// // Adds the own row and the mean of the neighbors.
/// let (weight, bias) = (Tensor::new(&[[1f32, 1.0]], &Device::Cpu)?, Tensor::new(&[0f32], &Device::Cpu)?);
/// assert_eq!(Means::new(&block, &x)?.linear(&weight, &bias)?.to_vec2::<f32>()?, [[5.0]]);
/// # Ok(())
/// # }
/// ```
pub struct Means {
    /// `[num_dst, 2 D]`. Without `before`, candle tracks their gradient.
    rows: Tensor,
    before: Option<Before>,
}

/// The operation that has computed the rows of [`Means`].
struct Before {
    /// One number, which candle tracks instead of the rows.
    link: Tensor,
    /// Where the operation takes the gradient of the rows from.
    gradient: Arc<GradientSlot>,
}

impl Means {
    /// Returns the own rows and means of `x [num_src, D]`: the beginning of fused layers.
    ///
    /// # Errors
    /// When `x` does not fit the block.
    pub fn new(block: &Arc<GraphBlock>, x: &Tensor) -> Result<Self> {
        Ok(Self { rows: self_and_mean(block, x)?, before: None })
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

    /// Returns the own rows and means, over `block`, of [`linear_relu`] of the rows. Devices other than the CPU run separate operations.
    ///
    /// # Errors
    /// When shapes disagree, or the rows do not fit the block.
    pub fn then(
        self,
        weight: &Tensor,
        bias: &Tensor,
        dropout: Option<Dropout>,
        block: &Arc<GraphBlock>,
    ) -> Result<Self> {
        if !self.rows.device().is_cpu() {
            return Self::new(block, &self.linear_relu(weight, bias, dropout)?);
        }
        let (weight, bias) = (weight.contiguous()?, bias.contiguous()?);
        let relu = self.rows.apply_op3_no_bwd(&weight, &bias, &LinearRelu { dropout })?;
        let rows = relu.apply_op1_no_bwd(&SelfAndMean { block: block.clone() })?;
        let gradient = Arc::new(GradientSlot::default());
        let (input, operand, before) = match self.before {
            None => (self.rows.detach(), self.rows, None),
            Some(Before { link, gradient }) => (self.rows, link, Some(gradient)),
        };
        let then = Then { block: block.clone(), input, before, relu, dropout, gradient: gradient.clone() };
        Ok(Self { rows, before: Some(Before { link: operand.apply_op3(&weight, &bias, then)?, gradient }) })
    }
}

/// Applies the product of the last layer.
fn last(rows: Tensor, before: Before, [weight, bias]: [&Tensor; 2], product: Product) -> Result<Tensor> {
    let Before { link, gradient } = before;
    link.apply_op3(&weight.contiguous()?, &bias.contiguous()?, Last { rows, product, before: gradient })
}

/// [`Means::then`]: `(link [1] or rows [N, K], W [D, K], bias [D])` → a link.
struct Then {
    /// The edges.
    block: Arc<GraphBlock>,
    /// `[num_src, K]`
    input: Tensor,
    /// Where the gradient of `input` goes, if candle has a link in its place.
    before: Option<Arc<GradientSlot>>,
    /// [`linear_relu`] of the input, `[num_src, D]`.
    relu: Tensor,
    dropout: Option<Dropout>,
    /// Where the next operation puts the gradient of the result.
    gradient: Arc<GradientSlot>,
}

impl CustomOp3 for Then {
    fn name(&self) -> &'static str {
        "linear-relu-mean"
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
        let backward = MeanReluBackward { block: self.block.clone(), dropout: self.dropout };
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

/// Gradient of ReLU's input: `(result of ReLU [num_src, D], gradient of the means [num_dst, 2 D])` → `[num_src, D]`.
struct MeanReluBackward {
    block: Arc<GraphBlock>,
    dropout: Option<Dropout>,
}

impl CustomOp2 for MeanReluBackward {
    fn name(&self) -> &'static str {
        "mean-relu-backward"
    }

    fn cpu_fwd(&self, relu: &CpuStorage, lr: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, width), (destinations, columns)) = (lr.shape().dims2()?, lg.shape().dims2()?);
        expect(self.name(), "destination rows", destinations, self.block.num_dst())?;
        expect(self.name(), "columns", columns, 2 * width)?;
        let out = with_real!(relu, self.name(), T => {
            let (relu, g) = (elements::<T>(relu, lr, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(relu.len());
            segment::self_and_mean_backward(self.block.transpose(), self.block.inverse_degrees(), g, width, &mut out);
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
        "linear-of-means"
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
            let [w0, b0, w1, b1, w2, b2] = &params;
            let probe = var(&[60, 5]);
            for (dropout, relu) in [(None, false), (Some(mask), false), (Some(mask), true)] {
                let chain = |x: &Tensor| {
                    let means = Means::new(&blocks[0], x)?.then(w0, b0, dropout, &blocks[1])?;
                    let means = means.then(w1, b1, None, &blocks[2])?;
                    if relu { means.linear_relu(w2, b2, dropout) } else { means.linear(w2, b2) }
                };
                let apart = |x: &Tensor| {
                    let x = linear_relu(&self_and_mean(&blocks[0], x)?, w0, b0, dropout)?;
                    let x = linear_relu(&self_and_mean(&blocks[1], &x)?, w1, b1, None)?;
                    let x = self_and_mean(&blocks[2], &x)?;
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
