//! Sum and mean over the sources of every destination, and the first rows of a tensor.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_element, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::segment;
use gnnflow_kernels::simd::element::Element;

/// How the rows of a neighborhood are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// `Σ`
    Sum,
    /// `Σ` divided by the number of edges; 0 for none.
    Mean,
}

/// `[num_src, D]` → `[num_dst, D]`; half precision in, `f32` out.
#[derive(Clone, Debug)]
pub(crate) struct SegmentReduce {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// Sum or mean.
    pub reduce: Reduce,
}

/// Gradient of [`SegmentReduce`]: `[num_dst, D]` → `[num_src, D]`.
#[derive(Clone, Debug)]
pub(crate) struct SegmentReduceBackward {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// Sum or mean.
    pub reduce: Reduce,
}

/// Sums the rows of `x`, `[num_src, D]`, over the sources of every destination.
///
/// # Errors
/// When `x` does not fit the block.
pub fn segment_sum(block: &Arc<GraphBlock>, x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(SegmentReduce { block: block.clone(), reduce: Reduce::Sum })
}

/// As [`segment_sum`], with the mean.
///
/// # Errors
/// When `x` does not fit the block.
pub fn segment_mean(block: &Arc<GraphBlock>, x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(SegmentReduce { block: block.clone(), reduce: Reduce::Mean })
}

impl CustomOp1 for SegmentReduce {
    fn name(&self) -> &'static str {
        "segment-reduce"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        expect(self.name(), "source rows", rows, self.block.num_src())?;
        let block = self.block.block();
        let out = with_element!(x, self.name(), T => {
            let x = elements::<T>(x, layout, self.name())?;
            let mut out = zeros::<<T as Element>::Acc>(block.num_dst() * width);
            match self.reduce {
                Reduce::Sum => segment::sum(block.indptr(), block.indices(), x, width, &mut out),
                Reduce::Mean => segment::mean(block.indptr(), block.indices(), x, width, &mut out),
            }
            store(out)
        });
        Ok((out, (block.num_dst(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::segment_reduce(self, x, layout)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let Self { block, reduce } = self.clone();
        gradient_of(x, || gradient.contiguous()?.apply_op1_no_bwd(&SegmentReduceBackward { block, reduce }))
    }
}

impl CustomOp1 for SegmentReduceBackward {
    fn name(&self) -> &'static str {
        "segment-reduce-backward"
    }

    fn cpu_fwd(&self, g: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        expect(self.name(), "destination rows", rows, self.block.num_dst())?;
        let out = with_real!(g, self.name(), T => {
            let g = elements::<T>(g, layout, self.name())?;
            let mut out = zeros::<T>(self.block.num_src() * width);
            let by_source = self.block.transpose();
            match self.reduce {
                Reduce::Sum => segment::sum_backward(by_source, g, width, &mut out),
                Reduce::Mean => segment::mean_backward(by_source, self.block.inverse_degrees(), g, width, &mut out),
            }
            store(out)
        });
        Ok((out, (self.block.num_src(), width).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::segment_reduce_backward(self, x, layout)
    }
}

/// Returns the first `rows` rows of `x` without a copy. A block's destinations are its first sources.
///
/// # Errors
/// When `x` has fewer rows.
pub fn prefix(x: &Tensor, rows: usize) -> Result<Tensor> {
    if x.dim(0)? == rows { Ok(x.clone()) } else { x.narrow(0, 0, rows) }
}
