//! `features.arrow`: the features of a partition's core nodes as one contiguous matrix.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, FixedSizeListArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use super::mapped::column;
use super::row_layout::RowLayout;
use crate::error::{Error, Result};
use crate::source::FeatureDtype;

/// Size in bytes of a page of memory, the smallest unit that the system reads.
const PAGE: usize = 4096;

/// Name of the only column.
const COLUMN: &str = "features";

/// Metadata key of the list's item. The value is "f32", "f16" or "bf16". Arrow has no bf16; its bits are stored as `UInt16`. Rows with
/// columns of several types are stored as `UInt16`, too: "3 × f32, 128 × bf16".
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
    layout: RowLayout,
    /// The file that contains `bytes`.
    map: Option<Arc<Mmap>>,
}

impl Features {
    /// Creates features in memory.
    ///
    /// # Panics
    /// If `dim` is 0 or the number of values is not a multiple of `dim`.
    pub fn from_f32(dim: usize, values: Vec<f32>) -> Self {
        assert!(values.len().is_multiple_of(dim), "whole rows of {dim} values");
        let layout = RowLayout::new([(dim, FeatureDtype::F32)]);
        Self { rows: values.len() / dim, layout, bytes: Buffer::from_vec(values), map: None }
    }

    /// Returns `rows` rows without values, for graphs without features.
    pub fn none(rows: usize) -> Self {
        Self { bytes: Buffer::from_vec(Vec::<f32>::new()), rows, layout: RowLayout::default(), map: None }
    }

    pub(super) fn from_batch((batch, map): (&RecordBatch, Arc<Mmap>), path: &Path, layout: RowLayout) -> Result<Self> {
        let list: FixedSizeListArray = column(batch, path, COLUMN)?;
        let (item, length) = item(&layout);
        let values = list.values();
        if list.value_length() as usize != length || values.data_type() != &item || values.null_count() > 0 {
            let reason = format!("its features are {}, but the manifest says {layout}", list.data_type());
            return Err(Error::Damaged { path: path.to_path_buf(), reason });
        }
        let rows = list.len();
        let data = values.to_data();
        let start = data.offset() / length.max(1) * layout.row_bytes();
        let bytes = data.buffers()[0].slice_with_length(start, rows * layout.row_bytes());
        Ok(Self { bytes, rows, layout, map: Some(map) })
    }

    /// Number of core nodes.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Number of values per node.
    pub fn dim(&self) -> usize {
        self.layout.dim()
    }

    /// The layout of stored rows.
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Size of one row in bytes.
    pub fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// The whole matrix, row by row, in the machine's byte order.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole matrix, row by row, if it is stored as `f32`; else `None`.
    #[inline]
    pub fn as_f32(&self) -> Option<&[f32]> {
        (self.layout.dtype() == Some(FeatureDtype::F32)).then(|| bytemuck::cast_slice(&self.bytes))
    }

    /// Tells the system that rows will be read in random order, so that it does not read ahead. Use it only for features in a file that may
    /// not fit into memory; [`Features::will_need`] then requests the needed rows.
    pub fn read_at_random(&self) {
        if let Some(map) = &self.map {
            // This is only advice; a failure costs time, but does not change results.
            let _ = map.advise(Advice::Random);
        }
    }

    /// Starts reading those of `rows` that are not in memory from the file, and does not wait for them. Rows may be in any order; each page
    /// is requested once.
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn will_need(&self, rows: impl IntoIterator<Item = usize>) {
        let Some(map) = &self.map else { return };
        let start = self.bytes.as_ptr().addr() - map.as_ptr().addr();
        let width = self.row_bytes();
        let pages = |row: usize| {
            assert!(row < self.rows, "row {row} of {}", self.rows);
            let begin = start + row * width;
            (begin / PAGE, (begin + width).div_ceil(PAGE))
        };
        let mut pages: Vec<(usize, usize)> = rows.into_iter().map(pages).collect();
        pages.sort_unstable();
        let mut runs = pages.into_iter();
        let Some(mut run) = runs.next() else { return };
        let read = |(begin, end): (usize, usize)| {
            // This, too, is only advice.
            let _ = map.advise_range(Advice::WillNeed, begin * PAGE, (end * PAGE).min(map.len()) - begin * PAGE);
        };
        for (begin, end) in runs {
            if begin <= run.1 {
                run.1 = run.1.max(end);
            } else {
                read(std::mem::replace(&mut run, (begin, end)));
            }
        }
        read(run);
    }

    /// Copies the bytes of the matrix from byte `start` on into `into`. Their pages are then no longer mapped, until they are read again; the
    /// page cache may keep them.
    ///
    /// ```
    /// use gnnflow_data::dataset::Features;
    ///
    /// let mut second = [0; 4];
    /// Features::from_f32(2, vec![1.0, 2.0]).copy_bytes(4, &mut second);
    /// assert_eq!(second, 2f32.to_ne_bytes());
    /// ```
    ///
    /// # Panics
    /// If the matrix ends before `into` is full.
    pub fn copy_bytes(&self, start: usize, into: &mut [u8]) {
        let from = &self.bytes[start..start + into.len()];
        into.copy_from_slice(from);
        if let Some(map) = &self.map {
            let range = from.as_ptr_range();
            let [begin, end] = [range.start, range.end].map(|at| at.addr() - map.as_ptr().addr());
            let page = begin / PAGE * PAGE;
            // SAFETY: `bytes` is a part of the map, which is a file that is only read. So the same bytes are read again later.
            let released = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, page, end - page) };
            // This is only advice; a failure costs memory, but does not change results.
            let _ = released;
        }
    }

    /// Converts row `row` to `f32`.
    ///
    /// # Panics
    /// If the row does not exist, or `into` does not have [`Features::dim`] values.
    pub fn row_to_f32(&self, row: usize, into: &mut [f32]) {
        let bytes = &self.bytes[row * self.row_bytes()..(row + 1) * self.row_bytes()];
        self.layout.widen(bytes, into);
    }
}

/// Returns the Arrow type and the number of the items of a row.
fn item(layout: &RowLayout) -> (DataType, usize) {
    match layout.dtype() {
        Some(FeatureDtype::F32) => (DataType::Float32, layout.dim()),
        Some(FeatureDtype::F16) => (DataType::Float16, layout.dim()),
        Some(FeatureDtype::Bf16) | None => (DataType::UInt16, layout.row_bytes() / 2),
    }
}

/// Returns the field of the column of features, and the number of items per row.
pub(crate) fn feature_field(layout: &RowLayout) -> (Field, u64) {
    let (item, length) = item(layout);
    let name = layout.dtype().map_or_else(|| layout.to_string(), |dtype| dtype.word().into());
    let metadata: HashMap<_, _> = [(DTYPE_KEY.to_string(), name)].into();
    let item = Field::new("item", item, false).with_metadata(metadata);
    (Field::new(COLUMN, DataType::FixedSizeList(Arc::new(item), length as i32), false), length as u64)
}
