//! A destination's own row concatenated with the mean of its sources' rows: the input of GraphSAGE's matrix product.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::simd::element::Element;

/// `[num_src, D]` → `[num_dst, 2 D]`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct SelfAndMean {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`SelfAndMean`]: `[num_dst, 2 D]` → `[num_src, D]`.
#[derive(Clone, Debug)]
pub(crate) struct SelfAndMeanBackward {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Concatenates each destination's own row of `x [num_src, D]` with the mean over its sources.
///
/// On the CPU, this and its gradient are one pass each. Other devices run the two operations.
///
/// # Errors
/// When `x` does not fit the block.
pub fn self_and_mean(block: &Arc<GraphBlock>, x: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        let own = super::widen(&super::prefix(x, block.num_dst())?)?;
        return Tensor::cat(&[own, super::segment_mean(block, x)?], 1);
    }
    x.contiguous()?.apply_op1(SelfAndMean { block: block.clone() })
}

impl CustomOp1 for SelfAndMean {
    fn name(&self) -> &'static str {
        "self-and-mean"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        expect(self.name(), "source rows", rows, self.block.num_src())?;
        let block = self.block.block();
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, layout, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(block.num_dst() * 2 * width);
            segment::self_and_mean(block.indptr(), block.indices(), x, width, &mut out);
            store(out)
        });
        Ok((out, (block.num_dst(), 2 * width).into()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let block = self.block.clone();
        gradient_of(x, || gradient.contiguous()?.apply_op1_no_bwd(&SelfAndMeanBackward { block }))
    }
}

impl CustomOp1 for SelfAndMeanBackward {
    fn name(&self) -> &'static str {
        "self-and-mean-backward"
    }

    fn cpu_fwd(&self, g: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let width = width / 2;
        let out = with_real!(g, self.name(), T => {
            let g = elements::<T>(g, layout, self.name())?;
            let mut out = zeros::<T>(self.block.num_src() * width);
            segment::self_and_mean_backward(self.block.transpose(), self.block.inverse_degrees(), g, width, &mut out);
            store(out)
        });
        Ok((out, (self.block.num_src(), width).into()))
    }
}
