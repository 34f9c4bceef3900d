//! Matrix products: `x·Wᵀ` added to a bias or to another result, and the products of the backward pass.
//!
//! A product is cut into panels of [`PANEL`] rows, or of the summed dimension if `a` is transposed; their products are
//! added in order. rayon distributes the panels, and single-threaded `gemm` computes each. The panels depend on the
//! shapes only, so the bits do not depend on the number of threads.

use std::mem::MaybeUninit;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use gnnflow_kernels::parallel;

use super::{column_sum, elements, expect, gradient_of, store, widen, with_real};
#[cfg(feature = "cuda")]
use crate::cuda;

/// Rows per panel, or summed rows if `a` is transposed. A matrix cut at a multiple of this has the bits of the whole.
pub const PANEL: usize = 512;
/// Panels of the summed dimension per thread whose products are held at the same time.
const PANELS_HELD: usize = 2;
/// Numbers of a sum that a thread adds at a time.
const ADDED: usize = 4096;

/// `(x [N, K], W [O, K], base [O] or [N, O])` → `base + x·Wᵀ`.
#[derive(Clone, Debug)]
pub(crate) struct Linear;

/// `(a, b)` → `a·b`, or `aᵀ·b`.
#[derive(Clone, Debug)]
pub struct MatMul {
    /// Whether `a` is stored as `[K, M]`.
    pub transpose_a: bool,
    /// Whether `b` is stored as `[N, K]`.
    pub transpose_b: bool,
}

/// Returns `base + x·Wᵀ` for `x [N, K]` and `W [O, K]`. `base` is a bias `[O]` or rows `[N, O]`.
///
/// Half-precision `x` is converted to `f32`.
///
/// # Errors
/// When shapes disagree.
pub fn linear(x: &Tensor, weight: &Tensor, base: Option<&Tensor>) -> Result<Tensor> {
    let (x, weight) = (widen(x)?.contiguous()?, weight.contiguous()?);
    match base {
        Some(base) => x.apply_op3(&weight, &base.contiguous()?, Linear),
        None => x.apply_op2(&weight, MatMul { transpose_a: false, transpose_b: true }),
    }
}

/// Returns `a·b` for `a [M, K]` and `b [K, N]`.
///
/// # Errors
/// When shapes disagree.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.contiguous()?.apply_op2(&b.contiguous()?, MatMul { transpose_a: false, transpose_b: false })
}

pub(super) fn product(a: &Tensor, b: &Tensor, transpose_a: bool, transpose_b: bool) -> Result<Tensor> {
    a.contiguous()?.apply_op2_no_bwd(&b.contiguous()?, &MatMul { transpose_a, transpose_b })
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        base: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((rows, k), (columns, wk)) = (lx.shape().dims2()?, lw.shape().dims2()?);
        expect(self.name(), "columns", k, wk)?;
        let whole = lb.shape().rank() == 2;
        expect(
            self.name(),
            "numbers in the base",
            lb.shape().elem_count(),
            if whole { rows * columns } else { columns },
        )?;
        let out = with_real!(x, self.name(), T => {
            let (x, w) = (elements::<T>(x, lx, self.name())?, elements::<T>(w, lw, self.name())?);
            let base = elements::<T>(base, lb, self.name())?;
            let onto = if whole { Onto::Rows(base) } else { Onto::Bias(base) };
            store(rows_product(x, w, Dims { rows, columns, k, transpose_b: true }, onto, |_, _| ()))
        });
        Ok((out, (rows, columns).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        la: &Layout,
        b: &CudaStorage,
        lb: &Layout,
        c: &CudaStorage,
        lc: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::linear(self, (a, la), (b, lb), (c, lc))
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        base: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dx = gradient_of(x, || product(g, w, false, false))?;
        let dw = gradient_of(w, || product(g, x, true, false))?;
        let db = gradient_of(base, || if base.rank() == 2 { Ok(g.clone()) } else { column_sum(g) })?;
        Ok((dx, dw, db))
    }
}

impl CustomOp2 for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn cpu_fwd(&self, a: &CpuStorage, la: &Layout, b: &CpuStorage, lb: &Layout) -> Result<(CpuStorage, Shape)> {
        let swap = |transpose: bool, (first, second): (usize, usize)| {
            if transpose { (second, first) } else { (first, second) }
        };
        let (rows, k) = swap(self.transpose_a, la.shape().dims2()?);
        let (bk, columns) = swap(self.transpose_b, lb.shape().dims2()?);
        expect(self.name(), "summed columns", bk, k)?;
        let out = with_real!(a, self.name(), T => {
            let (a, b) = (elements::<T>(a, la, self.name())?, elements::<T>(b, lb, self.name())?);
            let dims = Dims { rows, columns, k, transpose_b: self.transpose_b };
            store(if self.transpose_a { summed_product(a, b, dims) } else { rows_product(a, b, dims, Onto::Nothing, |_, _| ()) })
        });
        Ok((out, (rows, columns).into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, a: &CudaStorage, la: &Layout, b: &CudaStorage, lb: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::matmul(self, a, la, b, lb)
    }

    fn bwd(&self, a: &Tensor, b: &Tensor, _: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // With the factors A and B as multiplied: dA = g·Bᵀ and dB = Aᵀ·g. Stored transposes are transposed back.
        let da = gradient_of(a, || match self.transpose_a {
            false => product(g, b, false, !self.transpose_b),
            true => product(b, g, self.transpose_b, true),
        })?;
        let db = gradient_of(b, || match self.transpose_b {
            false => product(a, g, !self.transpose_a, false),
            true => product(g, a, true, self.transpose_a),
        })?;
        Ok((da, db))
    }
}

/// `a·bᵀ` for `a` of `[_, k]` and `b` of `[columns, k]`.
pub(super) fn times_transposed<T: WithDType>(a: &[T], b: &[T], k: usize, columns: usize) -> Vec<T> {
    times_transposed_onto(a, b, [a.len() / k.max(1), k, columns], Onto::Nothing, |_, _| ())
}

/// As [`times_transposed`], with explicit dimensions and added to `onto`. `finish` receives each panel of the result
/// while it is in the cache, with the index of its first number.
pub(super) fn times_transposed_onto<T: WithDType>(
    a: &[T],
    b: &[T],
    [rows, k, columns]: [usize; 3],
    onto: Onto<'_, T>,
    finish: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    rows_product(a, b, Dims { rows, columns, k, transpose_b: true }, onto, finish)
}

/// `a·b` for `a` of `[_, k]` and `b` of `[k, columns]`.
pub(super) fn times<T: WithDType>(a: &[T], b: &[T], k: usize, columns: usize) -> Vec<T> {
    rows_product(a, b, Dims { rows: a.len() / k.max(1), columns, k, transpose_b: false }, Onto::Nothing, |_, _| ())
}

/// `aᵀ·b` for `a` of `[_, rows]` and `b` of `[_, columns]`.
pub(super) fn transposed_times<T: WithDType>(a: &[T], b: &[T], rows: usize, columns: usize) -> Vec<T> {
    summed_product(a, b, Dims { rows, columns, k: a.len() / rows.max(1), transpose_b: false })
}

/// `rows × k` times `k × columns`.
#[derive(Clone, Copy)]
struct Dims {
    rows: usize,
    columns: usize,
    k: usize,
    transpose_b: bool,
}

/// The addend of a product.
#[derive(Clone, Copy)]
pub(super) enum Onto<'a, T> {
    Nothing,
    /// One row, added to every row.
    Bias(&'a [T]),
    /// As many rows as the product.
    Rows(&'a [T]),
}

/// Returns the number of rows from which on `gemm` sums every row in the same order. For smaller products it has other kernels, so these are
/// computed with more rows. A row then has the same bits in every batch.
fn least_rows(columns: usize) -> usize {
    (256 / columns + 1).max(if columns > 64 { 2 } else { 65 })
}

/// Returns `a·b` added to `onto`, by panels of rows. `a` is `[rows, k]`; `finish` as in [`times_transposed_onto`].
fn rows_product<T: WithDType>(
    a: &[T],
    b: &[T],
    dims: Dims,
    onto: Onto<'_, T>,
    finish: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    let Dims { rows, columns, k, .. } = dims;
    let len = rows * columns;
    let mut out = Vec::with_capacity(len);
    if len == 0 {
        return out;
    }
    // A panel starts as its addend, or as the product: no number is zeroed first.
    let panel = |p: usize, out: &mut [MaybeUninit<T>]| {
        let (first, rows) = (p * PANEL * columns, out.len() / columns);
        match onto {
            Onto::Bias(bias) => out.chunks_exact_mut(columns).for_each(|row| {
                row.write_copy_of_slice(bias);
            }),
            Onto::Rows(base) => {
                out.write_copy_of_slice(&base[first..first + out.len()]);
            }
            Onto::Nothing if k == 0 => {
                out.fill(MaybeUninit::new(T::zero()));
            }
            Onto::Nothing => {}
        }
        if k > 0 {
            let a = &a[p * PANEL * k..(p * PANEL + rows) * k];
            let (add, least) = (!matches!(onto, Onto::Nothing), least_rows(columns));
            if rows < least {
                let (mut padded, mut sums) = (vec![T::zero(); least * k], vec![T::zero(); least * columns]);
                padded[..a.len()].copy_from_slice(a);
                if add {
                    // SAFETY: the panel was written above.
                    sums[..out.len()].copy_from_slice(unsafe { out.assume_init_ref() });
                }
                let (a, sum) = (padded.as_ptr(), sums.as_mut_ptr());
                // SAFETY: as below, with `least` rows.
                unsafe { gemm(Dims { rows: least, ..dims }, a, [k, 1], b.as_ptr(), sum, add) }
                out.write_copy_of_slice(&sums[..out.len()]);
            } else {
                // SAFETY: `a` is `rows × k`, `b` is `k × columns` by the strides, and `out` is `rows × columns`. `gemm`
                // reads `out` only with `add`, after it was written above.
                unsafe { gemm(Dims { rows, ..dims }, a.as_ptr(), [k, 1], b.as_ptr(), out.as_mut_ptr().cast(), add) }
            }
        }
        // SAFETY: the whole panel has been written.
        finish(first, unsafe { out.assume_init_mut() });
    };
    parallel::chunks(&mut out.spare_capacity_mut()[..len], PANEL * columns, &panel);
    // SAFETY: every panel has been written, and together they have `len` numbers.
    unsafe { out.set_len(len) };
    out
}

/// `aᵀ·b` by panels of the summed dimension; `a` is `[k, rows]`.
fn summed_product<T: WithDType>(a: &[T], b: &[T], dims: Dims) -> Vec<T> {
    let Dims { rows, columns, k, transpose_b } = dims;
    let len = rows * columns;
    let mut out = vec![T::zero(); len];
    if out.is_empty() {
        return out;
    }
    let panels = k.div_ceil(PANEL);
    let held = (PANELS_HELD * rayon::current_num_threads()).min(panels).max(1);
    let mut parts: Vec<T> = Vec::with_capacity(held * len);
    for first in (0..panels).step_by(held) {
        let count = held.min(panels - first);
        let panel = |p: usize, part: &mut [MaybeUninit<T>]| {
            let k0 = (first + p) * PANEL;
            let b = &b[if transpose_b { k0 } else { k0 * columns }..];
            let dims = Dims { k: PANEL.min(k - k0), ..dims };
            let (a, a_strides) = (a[k0 * rows..].as_ptr(), [1, rows]);
            // SAFETY: by the strides, `a[k0..]` and `b` hold at least the panel's rows (`b`'s strides are those of the
            // whole). `part` has `rows × columns` numbers, and `gemm` reads none of them.
            unsafe { gemm_strided(dims, a, a_strides, b.as_ptr(), b_strides(dims, k), part.as_mut_ptr().cast(), false) }
        };
        parallel::chunks(&mut parts.spare_capacity_mut()[..count * len], len, &panel);
        // SAFETY: each panel sums over at least one number, so `gemm` has written all numbers of these parts.
        let parts = unsafe { std::slice::from_raw_parts(parts.as_ptr(), count * len) };
        parallel::chunks(&mut out, ADDED, &|at, out| {
            for part in parts.chunks_exact(len) {
                out.iter_mut().zip(parallel::chunk(part, at, ADDED)).for_each(|(sum, &number)| *sum += number);
            }
        });
    }
    out
}

/// Returns the row and column strides of `b`, whose full summed dimension is `k`.
fn b_strides(dims: Dims, k: usize) -> [usize; 2] {
    if dims.transpose_b { [1, k] } else { [dims.columns, 1] }
}

/// # Safety
/// As [`gemm_strided`], with the strides of a whole `b`.
unsafe fn gemm<T: WithDType>(dims: Dims, a: *const T, a_strides: [usize; 2], b: *const T, out: *mut T, add: bool) {
    // SAFETY: guaranteed by the caller.
    unsafe { gemm_strided(dims, a, a_strides, b, b_strides(dims, dims.k), out, add) }
}

/// Computes `out = a·b`, or `out += a·b` with `add`, on this thread. Strides are those of rows and columns.
///
/// # Safety
/// The pointers must be valid for matrices of these dimensions and strides, and `out` (row-major) must overlap neither.
unsafe fn gemm_strided<T: WithDType>(
    dims: Dims,
    a: *const T,
    [a_row, a_column]: [usize; 2],
    b: *const T,
    [b_row, b_column]: [usize; 2],
    out: *mut T,
    add: bool,
) {
    let Dims { rows, columns, k, .. } = dims;
    // SAFETY: guaranteed by the caller.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            k,
            out,
            1,
            columns as isize,
            add,
            a,
            a_column as isize,
            a_row as isize,
            b,
            b_column as isize,
            b_row as isize,
            T::one(),
            T::one(),
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;

    #[test]
    fn rows_have_the_same_bits_in_products_of_any_size() {
        let draw = |seed: u64, count: usize| -> Vec<f32> {
            let key = Key::new(seed, Purpose::Init);
            (0..count as u64).map(|at| key.normal(at) as f32).collect()
        };
        for (k, columns) in
            [3, 47, 128, 600, 1100].into_iter().flat_map(|k| [1, 2, 5, 47, 64, 65, 128, 300].map(|c| (k, c)))
        {
            let (a, b, bias) = (draw(1, 600 * k), draw(2, columns * k), draw(3, columns));
            for (transpose_b, onto) in [(true, Onto::Bias(&bias[..])), (true, Onto::Nothing), (false, Onto::Nothing)] {
                let of = |first: usize, rows: usize| {
                    let dims = Dims { rows, columns, k, transpose_b };
                    rows_product(&a[first * k..(first + rows) * k], &b, dims, onto, |_, _| ())
                };
                let whole = of(0, 600);
                for rows in [1, 2, 3, 4, 7, 16, 63, 64, 65, 66, 130, 511, 513] {
                    for first in [0, 1, 600 - rows] {
                        let expected = &whole[first * columns..(first + rows) * columns];
                        let equal = of(first, rows).iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(equal, "{rows} rows from {first} of {k} × {columns}, {transpose_b}");
                    }
                }
            }
        }
    }
}
