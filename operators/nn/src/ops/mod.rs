//! candle operations on the kernels of `gnnflow-kernels`, each with its exact backward pass.
//!
//! Every operation is a struct and a function that applies it. Backward passes are structs too, and compute nothing for
//! arguments without gradients. A device has a kernel for each struct, unless the function is documented as composed of
//! other operations. Inputs must be on one device; they are made contiguous.

pub(crate) mod activate;
pub(crate) mod attention;
mod bias_relu;
pub(crate) mod edges;
mod fused_layers;
pub(crate) mod gather;
pub(crate) mod heads;
mod inject_gradient;
pub(crate) mod linear;
mod linear_relu;
pub(crate) mod max;
mod messages;
mod norm;
mod pair_scores;
pub(crate) mod put_rows;
mod relation_mix;
mod relations;
pub(crate) mod segment;
mod self_and_mean;
pub(crate) mod softmax_loss;
pub(crate) mod weighted;

pub use activate::{activate, add_bias, column_sum, widen};
pub use attention::{attention_logits, attention_softmax};
pub use bias_relu::bias_relu;
pub use edges::{Side, edge_add, edge_softmax, edge_sum};
pub use fused_layers::{Aggregated, AggregatedProduct, RowAggregation};
pub use gather::{RowNumbers, gather_rows};
pub use heads::{head_dot, head_mean};
pub use inject_gradient::{inject_gradient, inject_product_gradient};
pub use linear::{MatMul, PANEL, linear, matmul};
pub use linear_relu::linear_relu;
pub use max::segment_max;
pub use messages::message_sum;
pub use norm::{Moments, batch_norm, layer_norm};
pub use pair_scores::{pair_scores, shared_scores};
pub use put_rows::put_rows;
pub use relation_mix::relation_mix;
pub use relations::{relation_sum, relation_sum_composed};
pub use segment::{Reduce, prefix, segment_mean, segment_sum};
pub use self_and_mean::self_and_mean;
pub use softmax_loss::log_softmax;
#[cfg(feature = "cuda")]
pub(super) use weighted::head_width;
pub use weighted::weighted_sum;

use candle_core::{CpuStorage, Layout, Result, Tensor, WithDType, bail};
use gnnflow_kernels::parallel;

/// Returns the elements of a contiguous tensor.
fn elements<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<T>()?[start..end]),
        None => bail!("{op}: the input is not contiguous"),
    }
}

/// Runs `make` if `argument` needs a gradient.
fn gradient_of(argument: &Tensor, make: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
    if argument.track_op() && !argument.dtype().is_int() { make().map(Some) } else { Ok(None) }
}

/// Fails unless `found` equals `wanted`.
pub(super) fn expect(op: &'static str, what: &str, found: usize, wanted: usize) -> Result<()> {
    if found != wanted {
        bail!("{op}: {found} {what}; expected {wanted}");
    }
    Ok(())
}

/// Runs `$body` with `$T` as the element type of an `f32` or `f64` storage.
macro_rules! with_real {
    ($storage:expr, $op:expr, $T:ident => $body:expr) => {
        match $storage {
            candle_core::CpuStorage::F32(_) => {
                type $T = f32;
                $body
            }
            candle_core::CpuStorage::F64(_) => {
                type $T = f64;
                $body
            }
            other => {
                candle_core::bail!("{}: no kernel for {:?}", $op, candle_core::backend::BackendStorage::dtype(other))
            }
        }
    };
}

/// As `with_real`, also for half precision.
macro_rules! with_element {
    ($storage:expr, $op:expr, $T:ident => $body:expr) => {
        match $storage {
            candle_core::CpuStorage::BF16(_) => {
                type $T = half::bf16;
                $body
            }
            candle_core::CpuStorage::F16(_) => {
                type $T = half::f16;
                $body
            }
            other => $crate::ops::with_real!(other, $op, $T => $body),
        }
    };
}

pub(super) use {with_element, with_real};

/// Returns `len` zeros for a kernel to fill. All threads zero large vectors, since page faults make that slow.
fn zeros<A: Default + Copy + Send>(len: usize) -> Vec<A> {
    const PIECE: usize = 1 << 18;
    if len <= PIECE {
        return vec![A::default(); len];
    }
    let mut out = Vec::with_capacity(len);
    parallel::chunks(&mut out.spare_capacity_mut()[..len], PIECE, &|_, piece| {
        piece.fill(std::mem::MaybeUninit::new(A::default()));
    });
    // SAFETY: every piece has been written, and together they have `len` numbers.
    unsafe { out.set_len(len) };
    out
}

/// Wraps `values` in candle's storage.
fn store<A: WithDType>(values: Vec<A>) -> CpuStorage {
    A::to_cpu_storage_owned(values)
}
