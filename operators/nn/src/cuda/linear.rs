//! Matrix products, through cuBLAS.

use candle_core::cuda_backend::cudarc::cublas::sys::cublasOperation_t;
use candle_core::cuda_backend::cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView};
use candle_core::cuda_backend::{CudaStorage, WrapErr};
use candle_core::{CustomOp2, CustomOp3, Layout, Result, Shape, WithDType, bail};

use super::call::{Call, Number, with_real};
use super::kernels;
use super::threads::over_rows;
use crate::ops::MatMul;
use crate::ops::linear::Linear;

pub(crate) fn linear(
    op: &Linear,
    (x, lx): (&CudaStorage, &Layout),
    (w, lw): (&CudaStorage, &Layout),
    (base, lb): (&CudaStorage, &Layout),
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), x);
    let ((rows, k), (columns, wk)) = (lx.shape().dims2()?, lw.shape().dims2()?);
    call.expect("columns", k, wk)?;
    let whole = lb.shape().rank() == 2;
    call.expect("numbers in the base", lb.shape().elem_count(), if whole { rows * columns } else { columns })?;
    with_real!(call, x, A => {
        let (x, w, base) = (call.input::<A>(x, lx)?, call.input::<A>(w, lw)?, call.input::<A>(base, lb)?);
        let mut out = call.alloc::<A>(rows * columns)?;
        if whole {
            if rows * columns > 0 {
                call.device.cuda_stream().memcpy_dtod(&base.view, &mut out).w()?;
            }
        } else {
            let (r, c) = (call.count(rows)?, call.count(columns)?);
            let (threads, shift) = over_rows(r, c, 1);
            let arguments = [base.address, call.address(&out), r.into(), c.into(), shift];
            // SAFETY: these are the kernel's arguments, of those shapes.
            unsafe { call.launch::<A>(kernels::FILL_ROWS, threads, &arguments)? };
        }
        let factors = Factors { rows, columns, k, transpose_a: false, transpose_b: true };
        multiply::<A>(&call, factors, &x.view, &w.view, &mut out, true)?;
        call.output(out, (rows, columns))
    })
}

pub(crate) fn matmul(
    op: &MatMul,
    a: &CudaStorage,
    la: &Layout,
    b: &CudaStorage,
    lb: &Layout,
) -> Result<(CudaStorage, Shape)> {
    let call = Call::new(op.name(), a);
    let swap =
        |transpose: bool, (first, second): (usize, usize)| if transpose { (second, first) } else { (first, second) };
    let (rows, k) = swap(op.transpose_a, la.shape().dims2()?);
    let (bk, columns) = swap(op.transpose_b, lb.shape().dims2()?);
    call.expect("summed columns", bk, k)?;
    with_real!(call, a, A => {
        let (a, b) = (call.input::<A>(a, la)?, call.input::<A>(b, lb)?);
        let mut out = if k == 0 { call.device.alloc_zeros((rows * columns).max(1))? } else { call.alloc::<A>(rows * columns)? };
        let factors = Factors { rows, columns, k, transpose_a: op.transpose_a, transpose_b: op.transpose_b };
        multiply::<A>(&call, factors, &a.view, &b.view, &mut out, false)?;
        call.output(out, (rows, columns))
    })
}

/// `[rows, k]` times `[k, columns]`, each row-major, or stored transposed.
#[derive(Clone, Copy, Debug)]
struct Factors {
    rows: usize,
    columns: usize,
    k: usize,
    transpose_a: bool,
    transpose_b: bool,
}

/// Computes `out = a·b`, or `out += a·b` with `add`.
fn multiply<A: Number + WithDType>(
    call: &Call<'_>,
    factors: Factors,
    a: &CudaView<'_, A>,
    b: &CudaView<'_, A>,
    out: &mut CudaSlice<A>,
    add: bool,
) -> Result<()>
where
    CudaBlas: Gemm<A>,
{
    let Factors { rows, columns, k, .. } = factors;
    if rows == 0 || columns == 0 || k == 0 {
        return Ok(());
    }
    let Some(config) = config(factors, if add { A::one() } else { A::zero() }) else {
        bail!("{}: [{rows}, {k}] times [{k}, {columns}] is too large for cuBLAS", call.op)
    };
    let [m, n, k] = [config.m, config.n, config.k].map(|n| n as usize);
    debug_assert!(a.len() == n * k && b.len() == m * k && out.len() >= m * n);
    // SAFETY: the three arrays have the sizes in `config`.
    unsafe { call.device.cublas_handle().gemm(config, b, a, out) }.w()
}

/// Returns the configuration for cuBLAS. It is column-major, so it multiplies the transposes: `outᵀ = bᵀ·aᵀ`, with the
/// same numbers at the same places. Returns `None` if a size exceeds `i32`.
fn config<A: WithDType>(factors: Factors, beta: A) -> Option<GemmConfig<A>> {
    let Factors { rows, columns, k, transpose_a, transpose_b } = factors;
    let [rows, columns, k] = [i32::try_from(rows).ok()?, i32::try_from(columns).ok()?, i32::try_from(k).ok()?];
    let operation = |transpose| if transpose { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N };
    Some(GemmConfig {
        transa: operation(transpose_b),
        transb: operation(transpose_a),
        m: columns,
        n: rows,
        k,
        alpha: A::one(),
        lda: if transpose_b { k } else { columns },
        ldb: if transpose_a { rows } else { k },
        beta,
        ldc: columns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `gemm` as the BLAS standard defines it, column-major: `c = alpha·op(a)·op(b) + beta·c`.
    fn gemm(config: &GemmConfig<f64>, a: &[f64], b: &[f64], c: &mut [f64]) {
        let at = |matrix: &[f64], ld: i32, op: cublasOperation_t, row: i32, column: i32| match op {
            cublasOperation_t::CUBLAS_OP_N => matrix[(column * ld + row) as usize],
            _ => matrix[(row * ld + column) as usize],
        };
        for column in 0..config.n {
            for row in 0..config.m {
                let product =
                    |i| at(a, config.lda, config.transa, row, i) * at(b, config.ldb, config.transb, i, column);
                let sum: f64 = (0..config.k).map(product).sum();
                let c = &mut c[(column * config.ldc + row) as usize];
                *c = config.alpha * sum + config.beta * *c;
            }
        }
    }

    #[test]
    fn column_major_config_gives_the_row_major_product() -> Result<()> {
        let (rows, columns, k) = (3, 5, 4);
        let numbers = |n: usize| (0..n).map(|i| ((i * 7 + 3) % 11) as f64 - 5.0).collect::<Vec<_>>();
        let (a, b) = (numbers(rows * k), numbers(k * columns));
        for (transpose_a, transpose_b, beta) in
            [(false, false, 0.0), (false, true, 1.0), (true, false, 0.0), (true, true, 1.0)]
        {
            let factors = Factors { rows, columns, k, transpose_a, transpose_b };
            let Some(config) = config(factors, beta) else { panic!("small sizes fit") };
            let mut out = vec![1.0; rows * columns];
            gemm(&config, &b, &a, &mut out);
            for row in 0..rows {
                for column in 0..columns {
                    let left = |i: usize| if transpose_a { a[i * rows + row] } else { a[row * k + i] };
                    let right = |i: usize| if transpose_b { b[column * k + i] } else { b[i * columns + column] };
                    let sum: f64 = (0..k).map(|i| left(i) * right(i)).sum();
                    assert_eq!(out[row * columns + column], sum + beta, "{factors:?} at {row}, {column}");
                }
            }
        }
        Ok(())
    }
}
