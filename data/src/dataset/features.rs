//! `features.arrow`: the features of a partition's core nodes, one contiguous matrix.

use std::path::Path;

use arrow::array::{Array, FixedSizeListArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use super::mapped::column;
use crate::error::{Error, Result};
use crate::source::FeatureDtype;

/// Name of the only column.
pub(crate) const COLUMN: &str = "features";

/// Metadata of the list's item: "f32", "f16" or "bf16". Arrow has no bf16; its bits are stored as `UInt16`.
pub const DTYPE_KEY: &str = "gnnflow:dtype";

/// Features of the core nodes of one partition, row by row. Cloning is cheap.
///
/// ```
/// use gnnflow_data::dataset::Features;
///
/// let features = Features::from_f32(2, vec![1.0, 2.0, 3.0, 4.0]);
/// assert_eq!((features.num_rows(), features.dim()), (2, 2));
/// let mut row = [0.0; 2];
/// features.row_to_f32(1, &mut row);
/// assert_eq!(row, [3.0, 4.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Features {
    bytes: Buffer,
    rows: usize,
    dim: usize,
    dtype: FeatureDtype,
}

impl Features {
    /// Features in memory.
    ///
    /// # Panics
    /// Unless `values` is whole rows of `dim` values, at least one.
    pub fn from_f32(dim: usize, values: Vec<f32>) -> Self {
        assert!(values.len().is_multiple_of(dim), "whole rows of {dim} values");
        Self { rows: values.len() / dim, dim, dtype: FeatureDtype::F32, bytes: Buffer::from_vec(values) }
    }

    /// `rows` rows of no values: what a graph without features has.
    pub fn none(rows: usize) -> Self {
        Self { bytes: Buffer::from_vec(Vec::<f32>::new()), rows, dim: 0, dtype: FeatureDtype::F32 }
    }

    pub(super) fn from_batch(batch: &RecordBatch, path: &Path, dim: usize, dtype: FeatureDtype) -> Result<Self> {
        let list: FixedSizeListArray = column(batch, path, COLUMN)?;
        let item = match dtype {
            FeatureDtype::F32 => DataType::Float32,
            FeatureDtype::F16 => DataType::Float16,
            FeatureDtype::Bf16 => DataType::UInt16,
        };
        let values = list.values();
        if list.value_length() as usize != dim || values.data_type() != &item || values.null_count() > 0 {
            let reason = format!("its features are {}, the manifest says {dim} × {item}", list.data_type());
            return Err(Error::Damaged { path: path.to_path_buf(), reason });
        }
        let rows = list.len();
        let length = rows * dim * dtype.size();
        let data = values.to_data();
        let bytes = data.buffers()[0].slice_with_length(data.offset() * dtype.size(), length);
        Ok(Self { bytes, rows, dim, dtype })
    }

    /// Number of core nodes.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Values per node.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How values are stored.
    pub fn dtype(&self) -> FeatureDtype {
        self.dtype
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.dim * self.dtype.size()
    }

    /// The whole matrix, row by row, in the machine's byte order.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole matrix, row by row, when it is stored as `f32`.
    #[inline]
    pub fn as_f32(&self) -> Option<&[f32]> {
        (self.dtype == FeatureDtype::F32).then(|| bytemuck::cast_slice(&self.bytes))
    }

    /// The bits of the whole matrix, row by row, when it is stored as `f16` or `bf16`.
    #[inline]
    pub fn as_u16(&self) -> Option<&[u16]> {
        (self.dtype != FeatureDtype::F32).then(|| bytemuck::cast_slice(&self.bytes))
    }

    /// Row `row`, converted to `f32`.
    ///
    /// # Panics
    /// Unless there is such a row and `into` holds [`Features::dim`] values.
    pub fn row_to_f32(&self, row: usize, into: &mut [f32]) {
        let bytes = &self.bytes[row * self.row_bytes()..(row + 1) * self.row_bytes()];
        match self.dtype {
            FeatureDtype::F32 => into.copy_from_slice(bytemuck::cast_slice(bytes)),
            FeatureDtype::F16 => {
                bytemuck::cast_slice::<_, u16>(bytes).reinterpret_cast::<f16>().convert_to_f32_slice(into);
            }
            FeatureDtype::Bf16 => {
                bytemuck::cast_slice::<_, u16>(bytes).reinterpret_cast::<bf16>().convert_to_f32_slice(into);
            }
        }
    }
}
