//! The layout of a stored row of features: stretches of columns, each with its own type.

use std::fmt;

use bytemuck::Pod;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::source::FeatureDtype;

/// Adjacent columns that are stored in one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Number of columns.
    pub columns: usize,
    /// Their type.
    pub dtype: FeatureDtype,
}

/// The layout of a stored row: one stretch after another, without gaps. The size of every type, and therefore of every row, is a
/// multiple of two bytes.
///
/// ```
/// use gnnflow_data::dataset::RowLayout;
/// use gnnflow_data::source::FeatureDtype::{Bf16, F32};
///
/// let layout = RowLayout::new([(1, F32), (2, Bf16)]);
/// assert_eq!((layout.dim(), layout.row_bytes(), layout.dtype()), (3, 8, None));
/// let bytes = layout.narrow(&[0.1, 0.5, -2.0]).unwrap();
/// let mut row = [0.0; 3];
/// layout.widen(&bytes, &mut row);
/// assert_eq!(row, [0.1, 0.5, -2.0]);
/// assert_eq!(layout.to_string(), "1 × f32, 2 × bf16");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowLayout(Vec<Stretch>);

impl RowLayout {
    /// Creates a layout from numbers of columns and their types, in order.
    pub fn new(stretches: impl IntoIterator<Item = (usize, FeatureDtype)>) -> Self {
        let mut merged: Vec<Stretch> = Vec::new();
        for (columns, dtype) in stretches.into_iter().filter(|&(columns, _)| columns > 0) {
            match merged.last_mut() {
                Some(last) if last.dtype == dtype => last.columns += columns,
                _ => merged.push(Stretch { columns, dtype }),
            }
        }
        Self(merged)
    }

    /// The stretches. None is empty, and adjacent ones have different types.
    pub fn stretches(&self) -> &[Stretch] {
        &self.0
    }

    /// Number of values per row.
    pub fn dim(&self) -> usize {
        self.0.iter().map(|stretch| stretch.columns).sum()
    }

    /// Size of a row in bytes.
    pub fn row_bytes(&self) -> usize {
        self.0.iter().map(|stretch| stretch.columns * stretch.dtype.size()).sum()
    }

    /// The type of all columns; `None` if they have several types; `f32` for no columns.
    pub fn dtype(&self) -> Option<FeatureDtype> {
        match self.0[..] {
            [] => Some(FeatureDtype::F32),
            [Stretch { dtype, .. }] => Some(dtype),
            _ => None,
        }
    }

    /// Converts whole rows to `f32`.
    ///
    /// # Panics
    /// If the numbers of rows in `rows` and `into` differ.
    pub fn widen(&self, rows: &[u8], into: &mut [f32]) {
        let (dim, bytes) = (self.dim(), self.row_bytes());
        assert_eq!(rows.len() * dim, into.len() * bytes, "equal numbers of rows");
        for (row, into) in rows.chunks_exact(bytes.max(1)).zip(into.chunks_exact_mut(dim.max(1))) {
            let (mut row, mut into) = (row, into);
            for Stretch { columns, dtype } in &self.0 {
                let (numbers, rest) = row.split_at(columns * dtype.size());
                let (wide, after) = into.split_at_mut(*columns);
                match dtype {
                    // After an odd number of 16-bit values, these bytes are not aligned to four.
                    FeatureDtype::F32 => bytemuck::cast_slice_mut(wide).copy_from_slice(numbers),
                    FeatureDtype::F16 => widen_halves(numbers, wide, <[f16]>::convert_to_f32_slice, f16::to_f32),
                    FeatureDtype::Bf16 => widen_halves(numbers, wide, <[bf16]>::convert_to_f32_slice, bf16::to_f32),
                }
                (row, into) = (rest, after);
            }
        }
    }

    /// Converts whole rows to their stored bytes.
    ///
    /// # Errors
    /// The position of the first number that is stored as `f16` and not finite as such.
    ///
    /// # Panics
    /// If `rows` is not a whole number of rows.
    pub fn narrow(&self, rows: &[f32]) -> Result<Vec<u8>, usize> {
        let dim = self.dim();
        assert!(rows.len().is_multiple_of(dim.max(1)), "whole rows");
        if self.dtype() == Some(FeatureDtype::F32) {
            return Ok(bytemuck::cast_slice(rows).to_vec());
        }
        let mut bytes = Vec::with_capacity(rows.len() / dim.max(1) * self.row_bytes());
        let mut bits: Vec<u16> = Vec::new();
        let mut at = 0;
        while at < rows.len() {
            for &Stretch { columns, dtype } in &self.0 {
                let numbers = &rows[at..at + columns];
                bits.clear();
                bits.resize(columns, 0);
                match dtype {
                    FeatureDtype::F32 => bytes.extend_from_slice(bytemuck::cast_slice(numbers)),
                    FeatureDtype::F16 => {
                        let halves = bits.reinterpret_cast_mut::<f16>();
                        halves.convert_from_f32_slice(numbers);
                        if let Some(i) = halves.iter().position(|half| !half.is_finite()) {
                            return Err(at + i);
                        }
                    }
                    FeatureDtype::Bf16 => bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(numbers),
                }
                if dtype != FeatureDtype::F32 {
                    bytes.extend_from_slice(bytemuck::cast_slice(&bits));
                }
                at += columns;
            }
        }
        Ok(bytes)
    }
}

/// Converts 16-bit numbers to `f32`, in one call if they are aligned. Only bytes from the network may be unaligned.
fn widen_halves<T: Pod>(bytes: &[u8], into: &mut [f32], all: impl Fn(&[T], &mut [f32]), one: impl Fn(T) -> f32) {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => all(numbers, into),
        Err(_) => {
            bytes.chunks_exact(2).zip(into).for_each(|(number, into)| *into = one(bytemuck::pod_read_unaligned(number)))
        }
    }
}

impl fmt::Display for RowLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Stretch { columns, dtype }) in self.0.iter().enumerate() {
            write!(f, "{}{columns} × {}", if i > 0 { ", " } else { "" }, dtype.word())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::FeatureDtype::{Bf16, F16, F32};
    use super::*;

    #[test]
    fn stored_rows_equal_rows_rounded_by_a_plain_loop() {
        for stretches in
            [vec![(3, F32)], vec![(3, Bf16), (2, F32), (1, F16)], vec![(5, F16)], vec![(0, F16), (2, F32), (2, F32)]]
        {
            let layout = RowLayout::new(stretches.clone());
            let dim = layout.dim();
            let rows: Vec<f32> = (0..7 * dim).map(|i| (i as f32 - 9.0) * 1.37).collect();
            let bytes = layout.narrow(&rows).unwrap();
            assert_eq!(bytes.len(), 7 * layout.row_bytes());
            let dtypes: Vec<FeatureDtype> = stretches.iter().flat_map(|&(n, dtype)| vec![dtype; n]).collect();
            let expected: Vec<f32> = (rows.iter().enumerate())
                .map(|(i, &x)| match dtypes[i % dim] {
                    F32 => x,
                    F16 => f16::from_f32(x).to_f32(),
                    Bf16 => bf16::from_f32(x).to_f32(),
                })
                .collect();
            let mut wide = vec![0.0; rows.len()];
            layout.widen(&bytes, &mut wide);
            assert_eq!(wide, expected, "{stretches:?}");
        }
        assert_eq!(RowLayout::new([(2, F32), (1, F32)]).dtype(), Some(F32));
    }

    #[test]
    fn overflowing_f16_value_is_refused_with_its_position() {
        let layout = RowLayout::new([(2, F32), (1, F16)]);
        assert_eq!(layout.narrow(&[1e9, 1e9, 1.0, 0.0, 0.0, 1e6]), Err(5));
        assert_eq!(RowLayout::new([]).narrow(&[]), Ok(vec![]));
    }
}
