//! GATv2's attention logits, without a stored row per edge; GAT's attention.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::{activate, edge_add, edge_softmax, elements, expect, gradient_of, store, with_real, zeros};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::graph_block::GraphBlock;
use gnnflow_kernels::aggregate::attention_logits::Attention;
use gnnflow_kernels::dense::elementwise::Activation;

/// `(left [num_src, H·F], right [num_dst, H·F], vectors [H, F])` → `[E, H]`:
/// `vectors[h] · leaky(left[source, h] + right[destination, h])`.
#[derive(Clone, Debug)]
pub(crate) struct AttentionLogits {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// Leaky ReLU's slope below 0.
    pub slope: f64,
}

/// The argument of [`AttentionLogits`] whose gradient is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The sources' rows.
    Left,
    /// The destinations' rows.
    Right,
    /// The vectors.
    Vectors,
}

/// A gradient of [`AttentionLogits`]: `(left, right)` → the shape of the argument `wanted`.
#[derive(Clone, Debug)]
pub(crate) struct AttentionLogitsBackward {
    /// The operation.
    pub of: AttentionLogits,
    /// `[H, F]`
    pub vectors: Tensor,
    /// `[E, H]`
    pub gradient: Tensor,
    /// The argument whose gradient is computed.
    pub wanted: Wanted,
}

/// `(left [num_src, H], right [num_dst, H])` → `[E, H]`: [`attention_softmax`] on a GPU.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub(crate) struct AttentionSoftmax {
    /// The edges.
    pub block: Arc<GraphBlock>,
    /// Leaky ReLU's slope below 0.
    pub slope: f64,
}

/// Gradients of [`AttentionSoftmax`]: `(left, right, result [E, H])` → `[num_src + num_dst, H]`, those of `left` first.
#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
pub(crate) struct AttentionSoftmaxBackward {
    /// The operation.
    pub of: AttentionSoftmax,
    /// `[E, H]`
    pub gradient: Tensor,
}

/// `out[e, h] = vectors[h, :] · leaky(left[source of e, h, :] + right[destination of e, h, :])`; `vectors` is `[H, F]`.
///
/// # Errors
/// When shapes do not fit the block.
pub fn attention_logits(
    block: &Arc<GraphBlock>,
    left: &Tensor,
    right: &Tensor,
    vectors: &Tensor,
    slope: f64,
) -> Result<Tensor> {
    let op = AttentionLogits { block: block.clone(), slope };
    left.contiguous()?.apply_op3(&right.contiguous()?, &vectors.contiguous()?, op)
}

/// Returns the softmax of `leaky(left[source of e, h] + right[destination of e, h])` over the edges e of each destination.
///
/// On the CPU, composed of other operations.
///
/// # Errors
/// When shapes do not fit the block.
pub fn attention_softmax(block: &Arc<GraphBlock>, left: &Tensor, right: &Tensor, slope: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if left.device().is_cuda() {
        let op = AttentionSoftmax { block: block.clone(), slope };
        return left.contiguous()?.apply_op2(&right.contiguous()?, op);
    }
    edge_softmax(block, &activate(&edge_add(block, left, right)?, Activation::LeakyRelu(slope), None)?)
}

impl CustomOp3 for AttentionLogits {
    fn name(&self) -> &'static str {
        "attention-logits"
    }

    fn cpu_fwd(
        &self,
        l: &CpuStorage,
        ll: &Layout,
        r: &CpuStorage,
        lr: &Layout,
        a: &CpuStorage,
        la: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((sources, columns), (destinations, right_columns)) = (ll.shape().dims2()?, lr.shape().dims2()?);
        let (heads, width) = la.shape().dims2()?;
        expect(self.name(), "source rows", sources, self.block.num_src())?;
        expect(self.name(), "destination rows", destinations, self.block.num_dst())?;
        expect(self.name(), "columns", columns, heads * width)?;
        expect(self.name(), "columns", right_columns, columns)?;
        let block = self.block.block();
        let out = with_real!(l, self.name(), T => {
            let (left, right) = (elements::<T>(l, ll, self.name())?, elements::<T>(r, lr, self.name())?);
            let vectors = elements::<T>(a, la, self.name())?;
            let mut out = zeros::<T>(block.num_edges() * heads);
            let attention = Attention { left, right, vectors, heads, slope: self.slope };
            attention.logits(block.indptr(), block.indices(), &mut out);
            store(out)
        });
        Ok((out, (block.num_edges(), heads).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        l: &CudaStorage,
        ll: &Layout,
        r: &CudaStorage,
        lr: &Layout,
        a: &CudaStorage,
        la: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::attention_logits(self, (l, ll), (r, lr), (a, la))
    }

    fn bwd(
        &self,
        left: &Tensor,
        right: &Tensor,
        vectors: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let one = |argument: &Tensor, wanted| {
            gradient_of(argument, || {
                let (of, vectors, gradient) = (self.clone(), vectors.detach(), gradient.clone());
                left.apply_op2_no_bwd(right, &AttentionLogitsBackward { of, vectors, gradient, wanted })
            })
        };
        Ok((one(left, Wanted::Left)?, one(right, Wanted::Right)?, one(vectors, Wanted::Vectors)?))
    }
}

impl CustomOp2 for AttentionLogitsBackward {
    fn name(&self) -> &'static str {
        "attention-logits-backward"
    }

    fn cpu_fwd(&self, l: &CpuStorage, ll: &Layout, r: &CpuStorage, lr: &Layout) -> Result<(CpuStorage, Shape)> {
        let AttentionLogits { block, slope } = &self.of;
        let (heads, width) = self.vectors.dims2()?;
        let (vectors, gradient) = (self.vectors.storage_and_layout(), self.gradient.storage_and_layout());
        let (candle_core::Storage::Cpu(a), candle_core::Storage::Cpu(g)) = (&*vectors.0, &*gradient.0) else {
            candle_core::bail!("{}: tensors are on several devices", self.name());
        };
        let edges = block.block();
        let rows = match self.wanted {
            Wanted::Left => block.num_src(),
            Wanted::Right => block.num_dst(),
            Wanted::Vectors => 1,
        };
        let out = with_real!(l, self.name(), T => {
            let (left, right) = (elements::<T>(l, ll, self.name())?, elements::<T>(r, lr, self.name())?);
            let (vectors, g) =
                (elements::<T>(a, vectors.1, self.name())?, elements::<T>(g, gradient.1, self.name())?);
            let mut out = zeros::<T>(rows * heads * width);
            let attention = Attention { left, right, vectors, heads, slope: *slope };
            match self.wanted {
                Wanted::Left => attention.backward_left(block.transpose(), g, &mut out),
                Wanted::Right => attention.backward_right(edges.indptr(), edges.indices(), g, &mut out),
                Wanted::Vectors => attention.backward_vectors(edges.indptr(), edges.indices(), g, &mut out),
            }
            store(out)
        });
        let shape = if self.wanted == Wanted::Vectors { (heads, width) } else { (rows, heads * width) };
        Ok((out, shape.into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, l: &CudaStorage, ll: &Layout, r: &CudaStorage, lr: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::attention_logits_backward(self, l, ll, r, lr)
    }
}

#[cfg(feature = "cuda")]
impl CustomOp2 for AttentionSoftmax {
    fn name(&self) -> &'static str {
        "attention-softmax"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("{}: not on the CPU", self.name())
    }

    fn cuda_fwd(&self, l: &CudaStorage, ll: &Layout, r: &CudaStorage, lr: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::attention_softmax(self, l, ll, r, lr)
    }

    fn bwd(
        &self,
        left: &Tensor,
        right: &Tensor,
        result: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let backward = AttentionSoftmaxBackward { of: self.clone(), gradient: g.contiguous()? };
        let both = left.apply_op3_no_bwd(right, result, &backward)?;
        let (sources, destinations) = (self.block.num_src(), self.block.num_dst());
        let of_left = gradient_of(left, || both.narrow(0, 0, sources))?;
        Ok((of_left, gradient_of(right, || both.narrow(0, sources, destinations))?))
    }
}

#[cfg(feature = "cuda")]
impl CustomOp3 for AttentionSoftmaxBackward {
    fn name(&self) -> &'static str {
        "attention-softmax-backward"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("{}: not on the CPU", self.name())
    }

    fn cuda_fwd(
        &self,
        l: &CudaStorage,
        ll: &Layout,
        r: &CudaStorage,
        lr: &Layout,
        a: &CudaStorage,
        la: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::attention_softmax_backward(self, (l, ll), (r, lr), (a, la))
    }
}
