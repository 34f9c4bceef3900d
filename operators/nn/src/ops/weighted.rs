//! The sum of source rows, weighted per edge and head.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::weighted;
use gnnflow_kernels::simd::element::Element;

/// `(x [num_src, H·F], weights [E, H])` → `[num_dst, H·F]`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct WeightedSum {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`WeightedSum`] with respect to `x`: `(gradient [num_dst, H·F], weights [E, H])` → `[num_src, H·F]`.
#[derive(Clone, Debug)]
pub(crate) struct WeightedSumRows {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`WeightedSum`] with respect to the weights: `(x [num_src, H·F], gradient [num_dst, H·F])` → `[E, H]`.
#[derive(Clone, Debug)]
pub(crate) struct WeightedSumWeights {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// `H`
    pub heads: usize,
}

/// `out[i, h, :] = Σ weights[e, h] · x[source of e, h, :]` over the edges `e` of destination `i`.
///
/// `weights` is `[E, H]`, or `[E]` for one head, in the block's order of edges; `x` is `[num_src, H·F]`.
///
/// # Errors
/// When shapes do not fit the block.
pub fn weighted_sum(block: &Arc<GraphBlock>, x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let weights = if weights.rank() == 1 { weights.unsqueeze(1)? } else { weights.clone() };
    x.contiguous()?.apply_op2(&weights.contiguous()?, WeightedSum { block: block.clone() })
}

/// Returns the columns per head; fails unless `columns` is a multiple of `heads`.
pub(crate) fn head_width(op: &'static str, columns: usize, heads: usize) -> Result<usize> {
    if heads == 0 || !columns.is_multiple_of(heads) {
        bail!("{op}: {columns} columns cannot be split among {heads} heads");
    }
    Ok(columns / heads)
}

impl CustomOp2 for WeightedSum {
    fn name(&self) -> &'static str {
        "weighted-sum"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, columns), (edges, heads)) = (lx.shape().dims2()?, lw.shape().dims2()?);
        expect(self.name(), "source rows", rows, self.block.num_src())?;
        expect(self.name(), "edges' weights", edges, self.block.num_edges())?;
        let width = head_width(self.name(), columns, heads)?;
        let block = self.block.block();
        let out = with_element!(x, self.name(), T => {
            let w = elements::<<T as Element>::Acc>(w, lw, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(block.num_dst() * columns);
            let x = elements::<T>(x, lx, self.name())?;
            weighted::sum(block.indptr(), block.indices(), w, heads, x, width, &mut out);
            store(out)
        });
        Ok((out, (block.num_dst(), columns).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::weighted_sum(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (block, g, heads) = (&self.block, g.contiguous()?, w.dim(1)?);
        let dx = gradient_of(x, || g.apply_op2_no_bwd(w, &WeightedSumRows { block: block.clone() }))?;
        let dw = gradient_of(w, || x.apply_op2_no_bwd(&g, &WeightedSumWeights { block: block.clone(), heads }))?;
        Ok((dx, dw))
    }
}

impl CustomOp2 for WeightedSumRows {
    fn name(&self) -> &'static str {
        "weighted-sum-rows"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((_, columns), (_, heads)) = (lg.shape().dims2()?, lw.shape().dims2()?);
        let width = head_width(self.name(), columns, heads)?;
        let out = with_real!(g, self.name(), T => {
            let (g, w) = (elements::<T>(g, lg, self.name())?, elements::<T>(w, lw, self.name())?);
            let mut out = zeros::<T>(self.block.num_src() * columns);
            weighted::backward_rows(self.block.transpose(), w, heads, g, width, &mut out);
            store(out)
        });
        Ok((out, (self.block.num_src(), columns).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::weighted_sum_rows(self, a, la, b, lb)
    }
}

impl CustomOp2 for WeightedSumWeights {
    fn name(&self) -> &'static str {
        "weighted-sum-weights"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, columns) = lx.shape().dims2()?;
        let (block, heads) = (self.block.block(), self.heads);
        let width = head_width(self.name(), columns, heads)?;
        let out = with_element!(x, self.name(), T => {
            let (x, g) = (elements::<T>(x, lx, self.name())?, elements::<<T as Element>::Acc>(g, lg, self.name())?);
            let mut out = zeros::<<T as Element>::Acc>(block.num_edges() * heads);
            weighted::backward_weights(block.indptr(), block.indices(), g, heads, x, width, &mut out);
            store(out)
        });
        Ok((out, (block.num_edges(), heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::weighted_sum_weights(self, a, la, b, lb)
    }
}
