//! Values on edges: sums of the values at both ends, softmax over a destination's edges, sums over edges.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use super::{elements, expect, gradient_of, store, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::{edge_add as add, edge_softmax as softmax, segment};

/// `(left [num_src, H], right [num_dst, H])` → `[E, H]`: `left[source] + right[destination]`.
#[derive(Clone, Debug)]
pub(crate) struct EdgeAdd {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// `[E, H]` → `[E, H]`: softmax over the edges of each destination, separately for each head.
#[derive(Clone, Debug)]
pub(crate) struct EdgeSoftmax {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// Gradient of [`EdgeSoftmax`]: `(result [E, H], gradient [E, H])` → `[E, H]`.
#[derive(Clone, Debug)]
pub(crate) struct EdgeSoftmaxBackward {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// An end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// `[E, H]` → `[num_src or num_dst, H]`: the sum over the edges of each source or destination.
#[derive(Clone, Debug)]
pub(crate) struct EdgeSum {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// The end whose nodes' edges are summed.
    pub side: Side,
}

/// `out[e, h] = left[source of e, h] + right[destination of e, h]`
///
/// # Errors
/// When shapes do not fit the block.
pub fn edge_add(block: &Arc<GraphBlock>, left: &Tensor, right: &Tensor) -> Result<Tensor> {
    left.contiguous()?.apply_op2(&right.contiguous()?, EdgeAdd { block: block.clone() })
}

/// Returns the softmax of `logits [E, H]` over the edges of each destination.
///
/// # Errors
/// When shapes do not fit the block.
pub fn edge_softmax(block: &Arc<GraphBlock>, logits: &Tensor) -> Result<Tensor> {
    logits.contiguous()?.apply_op1(EdgeSoftmax { block: block.clone() })
}

/// Sums `values [E, H]` over the edges of each node on `side`. Has no gradient.
///
/// # Errors
/// When shapes do not fit the block.
pub fn edge_sum(block: &Arc<GraphBlock>, values: &Tensor, side: Side) -> Result<Tensor> {
    values.contiguous()?.apply_op1_no_bwd(&EdgeSum { block: block.clone(), side })
}

impl CustomOp2 for EdgeAdd {
    fn name(&self) -> &'static str {
        "edge-add"
    }

    fn cpu_fwd(&self, l: &CpuStorage, ll: &Layout, r: &CpuStorage, lr: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((sources, heads), (destinations, right_heads)) = (ll.shape().dims2()?, lr.shape().dims2()?);
        expect(self.name(), "source rows", sources, self.block.num_src())?;
        expect(self.name(), "destination rows", destinations, self.block.num_dst())?;
        expect(self.name(), "heads", right_heads, heads)?;
        let block = self.block.block();
        let out = with_real!(l, self.name(), T => {
            let (l, r) = (elements::<T>(l, ll, self.name())?, elements::<T>(r, lr, self.name())?);
            let mut out = zeros::<T>(block.num_edges() * heads);
            add::forward(block.indptr(), block.indices(), l, r, heads, &mut out);
            store(out)
        });
        Ok((out, (block.num_edges(), heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::edge_add(self, a, la, b, lb)
    }

    fn bwd(&self, left: &Tensor, right: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let sum = |side| edge_sum(&self.block, g, side);
        Ok((gradient_of(left, || sum(Side::Source))?, gradient_of(right, || sum(Side::Destination))?))
    }
}

impl CustomOp1 for EdgeSoftmax {
    fn name(&self) -> &'static str {
        "edge-softmax"
    }

    fn cpu_fwd(&self, z: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (edges, heads) = layout.shape().dims2()?;
        expect(self.name(), "edges", edges, self.block.num_edges())?;
        let out = with_real!(z, self.name(), T => {
            let z = elements::<T>(z, layout, self.name())?;
            let mut out = zeros::<T>(z.len());
            softmax::forward(self.block.block().indptr(), z, heads, &mut out);
            store(out)
        });
        Ok((out, layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::edge_softmax(self, x, layout)
    }

    fn bwd(&self, z: &Tensor, result: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let backward = EdgeSoftmaxBackward { block: self.block.clone() };
        gradient_of(z, || result.apply_op2_no_bwd(&g.contiguous()?, &backward))
    }
}

impl CustomOp2 for EdgeSoftmaxBackward {
    fn name(&self) -> &'static str {
        "edge-softmax-backward"
    }

    fn cpu_fwd(&self, a: &CpuStorage, la: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, heads) = la.shape().dims2()?;
        let out = with_real!(a, self.name(), T => {
            let (a, g) = (elements::<T>(a, la, self.name())?, elements::<T>(g, lg, self.name())?);
            let mut out = zeros::<T>(a.len());
            softmax::backward(self.block.block().indptr(), a, g, heads, &mut out);
            store(out)
        });
        Ok((out, la.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::edge_softmax_backward(self, a, la, b, lb)
    }
}

impl CustomOp1 for EdgeSum {
    fn name(&self) -> &'static str {
        "edge-sum"
    }

    fn cpu_fwd(&self, v: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (edges, heads) = layout.shape().dims2()?;
        expect(self.name(), "edges", edges, self.block.num_edges())?;
        let rows = match self.side {
            Side::Source => self.block.num_src(),
            Side::Destination => self.block.num_dst(),
        };
        let out = with_real!(v, self.name(), T => {
            let v = elements::<T>(v, layout, self.name())?;
            let mut out = zeros::<T>(rows * heads);
            match self.side {
                Side::Source => segment::edge_sum_by_source(self.block.transpose(), v, heads, &mut out),
                Side::Destination => segment::edge_sum(self.block.block().indptr(), v, heads, &mut out),
            }
            store(out)
        });
        Ok((out, (rows, heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::edge_sum(self, x, layout)
    }
}
