//! `features.arrow`: the features of a partition's core nodes, one contiguous matrix.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, FixedSizeListArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field};

use memmap2::{Advice, Mmap};

use super::mapped::column;
use super::row_layout::RowLayout;
use crate::error::{Error, Result};
use crate::source::FeatureDtype;

/// What the system reads at a time, at least.
const PAGE: usize = 4096;

/// Name of the only column.
const COLUMN: &str = "features";

/// Metadata of the list's item: "f32", "f16" or "bf16". Arrow has no bf16; its bits are stored as `UInt16`. So are rows whose columns
/// have several types, as so many pairs of bytes: "3 × f32, 128 × bf16".
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
    /// The file that `bytes` lie in.
    map: Option<Arc<Mmap>>,
}

impl Features {
    /// Features in memory.
    ///
    /// # Panics
    /// Unless `values` is whole rows of `dim` values, at least one.
    pub fn from_f32(dim: usize, values: Vec<f32>) -> Self {
        assert!(values.len().is_multiple_of(dim), "whole rows of {dim} values");
        let layout = RowLayout::new([(dim, FeatureDtype::F32)]);
        Self { rows: values.len() / dim, layout, bytes: Buffer::from_vec(values), map: None }
    }

    /// `rows` rows of no values: what a graph without features has.
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

    /// Values per node.
    pub fn dim(&self) -> usize {
        self.layout.dim()
    }

    /// How rows are stored.
    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// The whole matrix, row by row, in the machine's byte order.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The whole matrix, row by row, when it is stored as `f32`.
    #[inline]
    pub fn as_f32(&self) -> Option<&[f32]> {
        (self.layout.dtype() == Some(FeatureDtype::F32)).then(|| bytemuck::cast_slice(&self.bytes))
    }

    /// Says that rows will be read at random places: what lies around one is not read with it. Only for features in a file that
    /// may not fit into memory; [`Features::will_need`] then names those that are.
    pub fn read_at_random(&self) {
        if let Some(map) = &self.map {
            // Advice: without it all is slower, and nothing else.
            let _ = map.advise(Advice::Random);
        }
    }

    /// Starts reading `rows` from the file, those that are not in memory, and does not wait for them. In any order; each page is
    /// named once.
    ///
    /// # Panics
    /// When there is no such row.
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
            // Advice, too.
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

    /// Row `row`, converted to `f32`.
    ///
    /// # Panics
    /// Unless there is such a row and `into` holds [`Features::dim`] values.
    pub fn row_to_f32(&self, row: usize, into: &mut [f32]) {
        let bytes = &self.bytes[row * self.row_bytes()..(row + 1) * self.row_bytes()];
        self.layout.widen(bytes, into);
    }
}

/// The type and number of the items that a row is in Arrow's eyes.
fn item(layout: &RowLayout) -> (DataType, usize) {
    match layout.dtype() {
        Some(FeatureDtype::F32) => (DataType::Float32, layout.dim()),
        Some(FeatureDtype::F16) => (DataType::Float16, layout.dim()),
        Some(FeatureDtype::Bf16) | None => (DataType::UInt16, layout.row_bytes() / 2),
    }
}

/// The column of features, and the number of items in a row of it.
pub(crate) fn feature_field(layout: &RowLayout) -> (Field, u64) {
    let (item, length) = item(layout);
    let name = layout.dtype().map_or_else(|| layout.to_string(), |dtype| dtype.word().into());
    let metadata: HashMap<_, _> = [(DTYPE_KEY.to_string(), name)].into();
    let item = Field::new("item", item, false).with_metadata(metadata);
    (Field::new(COLUMN, DataType::FixedSizeList(Arc::new(item), length as i32), false), length as u64)
}
