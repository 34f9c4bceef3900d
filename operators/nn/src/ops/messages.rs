//! Sums of rectified messages from source rows and edge rows (GINE).

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor, bail};

use super::{elements, expect, gradient_of, store, with_real, zeros};
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::messages;

/// `(x [num_src, F], edges [E, F])` → `[num_dst, F]`.
#[derive(Clone, Debug)]
pub(crate) struct MessageSum {
    /// The edges.
    pub block: Arc<GraphBlock>,
}

/// A gradient of [`MessageSum`]: `(x, edges)` → the shape of the argument.
#[derive(Clone, Debug)]
pub(crate) struct MessageSumBackward {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// `[num_dst, F]`
    pub gradient: Tensor,
    /// Whether to compute the gradient of the edges' rows instead of the sources' rows.
    pub of_edges: bool,
}

/// `out[i] = Σ relu(x[source of e] + edges[e])` over the edges `e` of destination `i`.
///
/// On a GPU, composed of other operations, with a stored row per edge.
///
/// # Errors
/// When shapes do not fit the block.
pub fn message_sum(block: &Arc<GraphBlock>, x: &Tensor, edges: &Tensor) -> Result<Tensor> {
    let (x, edges) = (x.contiguous()?, edges.contiguous()?);
    if x.device().is_cpu() {
        return x.apply_op2(&edges, MessageSum { block: block.clone() });
    }
    let (rows, width) = x.dims2()?;
    expect("message-sum", "source rows", rows, block.num_src())?;
    expect("message-sum", "edges' rows", edges.dim(0)?, block.num_edges())?;
    let sums = Tensor::zeros((block.num_dst(), width), x.dtype(), x.device())?;
    if block.num_edges() == 0 {
        return Ok(sums);
    }
    let on = block.on_device(x.device());
    let sources = on.by_destination().map_err(candle_core::Error::wrap)?.indices;
    let messages = (x.index_select(&sources, 0)? + edges)?.relu()?;
    sums.index_add(&on.destinations().map_err(candle_core::Error::wrap)?, &messages, 0)
}

impl CustomOp2 for MessageSum {
    fn name(&self) -> &'static str {
        "message-sum"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, e: &CpuStorage, le: &Layout) -> Result<(CpuStorage, Shape)> {
        let ((rows, width), (edges, columns)) = (lx.shape().dims2()?, le.shape().dims2()?);
        expect(self.name(), "source rows", rows, self.block.num_src())?;
        expect(self.name(), "edges' rows", edges, self.block.num_edges())?;
        expect(self.name(), "columns", columns, width)?;
        let block = self.block.block();
        let out = with_real!(x, self.name(), T => {
            let (x, e) = (elements::<T>(x, lx, self.name())?, elements::<T>(e, le, self.name())?);
            let mut out = zeros::<T>(block.num_dst() * width);
            messages::sum(block.indptr(), block.indices(), x, e, width, &mut out);
            store(out)
        });
        Ok((out, (block.num_dst(), width).into()))
    }

    fn bwd(&self, x: &Tensor, e: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = g.contiguous()?;
        let one = |argument: &Tensor, of_edges| {
            gradient_of(argument, || {
                let (block, gradient) = (self.block.clone(), gradient.clone());
                x.apply_op2_no_bwd(e, &MessageSumBackward { block, gradient, of_edges })
            })
        };
        Ok((one(x, false)?, one(e, true)?))
    }
}

impl CustomOp2 for MessageSumBackward {
    fn name(&self) -> &'static str {
        "message-sum-backward"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, e: &CpuStorage, le: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let block = self.block.block();
        let (storage, layout) = self.gradient.storage_and_layout();
        let Storage::Cpu(g) = &*storage else { bail!("{}: tensors are on several devices", self.name()) };
        let rows = if self.of_edges { block.num_edges() } else { block.num_src() };
        let out = with_real!(x, self.name(), T => {
            let (x, e) = (elements::<T>(x, lx, self.name())?, elements::<T>(e, le, self.name())?);
            let g = elements::<T>(g, layout, self.name())?;
            let mut out = zeros::<T>(rows * width);
            match self.of_edges {
                true => messages::backward_edges(block.indptr(), block.indices(), x, e, g, width, &mut out),
                false => messages::backward_rows(self.block.transpose(), x, e, g, width, &mut out),
            }
            store(out)
        });
        Ok((out, (rows, width).into()))
    }
}
