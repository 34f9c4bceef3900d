//! A row matrix in the number type of the feature files.

use half::{bf16, f16};

use crate::dense::gather::gathered_rows;
use crate::parallel;

/// The number type of a [`Matrix`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Number {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
}

impl Number {
    /// Returns the bytes per number.
    pub const fn bytes(self) -> usize {
        match self {
            Number::F32 => 4,
            Number::F16 | Number::Bf16 => 2,
        }
    }
}

/// A matrix of rows of `dim` numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The numbers, row by row.
    pub values: Values,
    /// Numbers per row.
    pub dim: usize,
}

/// The numbers of a [`Matrix`].
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 16-bit IEEE floats.
    F16(Vec<f16>),
    /// 16-bit brain floats.
    Bf16(Vec<bf16>),
}

impl Default for Matrix {
    fn default() -> Self {
        Self { values: Values::F32(Vec::new()), dim: 0 }
    }
}

impl Matrix {
    /// Creates a matrix of zeros.
    pub fn zeros(number: Number, rows: usize, dim: usize) -> Self {
        let values = match number {
            Number::F32 => Values::F32(vec![0.0; rows * dim]),
            Number::F16 => Values::F16(vec![f16::ZERO; rows * dim]),
            Number::Bf16 => Values::Bf16(vec![bf16::ZERO; rows * dim]),
        };
        Self { values, dim }
    }

    /// Gathers the rows of `ids`, `dim` numbers each; `row_of` returns the row of an id.
    ///
    /// # Panics
    /// Unless every row has `dim` numbers.
    pub fn gather<'a>(number: Number, dim: usize, row_of: impl Fn(u32) -> &'a [u8], ids: &[u32]) -> Self {
        let bytes = number.bytes() * dim;
        let values = match number {
            Number::F32 => Values::F32(gathered_rows(bytes, row_of, ids)),
            Number::F16 => Values::F16(gathered_rows(bytes, row_of, ids)),
            Number::Bf16 => Values::Bf16(gathered_rows(bytes, row_of, ids)),
        };
        Self { values, dim }
    }

    /// Returns the type of the numbers.
    pub fn number(&self) -> Number {
        match self.values {
            Values::F32(_) => Number::F32,
            Values::F16(_) => Number::F16,
            Values::Bf16(_) => Number::Bf16,
        }
    }

    /// Returns the bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.dim
            * match self.values {
                Values::F32(_) => Number::F32.bytes(),
                Values::F16(_) | Values::Bf16(_) => Number::Bf16.bytes(),
            }
    }

    /// Returns the rows at `positions`, as 32-bit floats.
    ///
    /// ```
    /// use gnnflow_kernels::matrix::{Matrix, Values};
    ///
    /// let matrix = Matrix { values: Values::F32(vec![1.0, 2.0, 3.0, 4.0]), dim: 2 };
    /// assert_eq!(matrix.select(&[1, 0, 1]), [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
    /// ```
    ///
    /// # Panics
    /// If there is no such row.
    pub fn select(&self, positions: &[u32]) -> Vec<f32> {
        /// Rows per task.
        const ROWS: usize = 1 << 10;
        fn select<T: Copy + Sync>(from: &[T], dim: usize, at: &[u32], widen: impl Fn(T) -> f32 + Sync) -> Vec<f32> {
            let mut into = vec![0.0; at.len() * dim];
            parallel::chunks(&mut into, ROWS * dim, &|chunk, into| {
                let positions = parallel::chunk(at, chunk, ROWS);
                for (into, &position) in into.chunks_exact_mut(dim).zip(positions) {
                    let row = &from[position as usize * dim..(position as usize + 1) * dim];
                    into.iter_mut().zip(row).for_each(|(into, &value)| *into = widen(value));
                }
            });
            into
        }
        match &self.values {
            Values::F32(values) => select(values, self.dim, positions, |value| value),
            Values::F16(values) => select(values, self.dim, positions, f16::to_f32),
            Values::Bf16(values) => select(values, self.dim, positions, bf16::to_f32),
        }
    }

    /// Returns the matrix as bytes, in native order.
    pub fn bytes(&self) -> &[u8] {
        match &self.values {
            Values::F32(values) => bytemuck::cast_slice(values),
            Values::F16(values) => bytemuck::cast_slice(values),
            Values::Bf16(values) => bytemuck::cast_slice(values),
        }
    }

    /// Returns the matrix as mutable bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.values {
            Values::F32(values) => bytemuck::cast_slice_mut(values),
            Values::F16(values) => bytemuck::cast_slice_mut(values),
            Values::Bf16(values) => bytemuck::cast_slice_mut(values),
        }
    }
}
