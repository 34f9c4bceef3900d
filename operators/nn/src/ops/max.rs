//! Maximum over the sources of every destination.
//!
//! [`Argmax`] finds the edges and [`Pick`] reads their sources' values. Only the latter has a gradient.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::simd::element::Element;

/// `[num_src, D]` → `u32 [num_dst, D]`: the first edge with the largest source value; `u32::MAX` without edges.
#[derive(Clone, Debug)]
pub(crate) struct Argmax {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// `([num_src, D], u32 [num_dst, D])` → `[num_dst, D]`: the source values of the given edges; 0 for none.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`Pick`]: `([num_dst, D], u32 [num_dst, D])` → `[num_src, D]`.
#[derive(Clone, Debug)]
pub(crate) struct PickBackward {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Returns the maximum of each column of `x [num_src, D]` over the sources of every destination; 0 for none.
///
/// # Errors
/// When `x` does not fit the block.
pub fn segment_max(block: &Arc<GraphBlock>, x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let arg = x.apply_op1_no_bwd(&Argmax { block: block.clone() })?;
    x.apply_op2(&arg, Pick { block: block.clone() })
}

impl CustomOp1 for Argmax {
    fn name(&self) -> &'static str {
        "segment-argmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        expect(self.name(), "source rows", rows, self.block.num_src())?;
        let block = self.block.block();
        let mut out = zeros::<u32>(block.num_dst() * width);
        with_element!(x, self.name(), T => {
            segment::argmax(block.indptr(), block.indices(), elements::<T>(x, layout, self.name())?, width, &mut out)
        });
        Ok((store(out), (block.num_dst(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::argmax(self, x, layout)
    }
}

impl CustomOp2 for Pick {
    fn name(&self) -> &'static str {
        "segment-pick"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, arg: &CpuStorage, la: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let (rows, arg_width) = la.shape().dims2()?;
        expect(self.name(), "columns", arg_width, width)?;
        let arg = elements::<u32>(arg, la, self.name())?;
        let out = with_element!(x, self.name(), T => {
            let mut out = zeros::<<T as Element>::Acc>(rows * width);
            segment::pick(self.block.block().indices(), arg, elements::<T>(x, lx, self.name())?, width, &mut out);
            store(out)
        });
        Ok((out, (rows, width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::pick(self, a, la, b, lb)
    }

    fn bwd(&self, x: &Tensor, arg: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let backward = PickBackward { block: self.block.clone() };
        Ok((gradient_of(x, || g.contiguous()?.apply_op2_no_bwd(arg, &backward))?, None))
    }
}

impl CustomOp2 for PickBackward {
    fn name(&self) -> &'static str {
        "segment-pick-backward"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, arg: &CpuStorage, la: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lg.shape().dims2()?;
        let arg = elements::<u32>(arg, la, self.name())?;
        let out = with_real!(g, self.name(), T => {
            let mut out = zeros::<T>(self.block.num_src() * width);
            segment::pick_backward(self.block.transpose(), arg, elements::<T>(g, lg, self.name())?, width, &mut out);
            store(out)
        });
        Ok((out, (self.block.num_src(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::pick_backward(self, a, la, b, lb)
    }
}
