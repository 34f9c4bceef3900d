//! The record of an edge in a bucket: destination, source and other columns, packed.

use crate::dump::EdgeChunk;
use crate::source::{Duplicates, GraphSource};

/// Layout of a record: `destination << 32 | source` (8 bytes), then the optional fields in this order. Little-endian,
/// unaligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Bytes of a record.
    pub(super) stride: usize,
    /// Offset of the row number, which is present only for error messages about duplicates.
    row: Option<usize>,
    weight: Option<usize>,
    edge_type: Option<usize>,
    time: Option<usize>,
    split: Option<usize>,
    label: Option<usize>,
    features: Option<usize>,
    /// Number of features.
    pub(super) width: usize,
}

/// Values of an edge whose codes in the dataset may differ from those in the dump.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    /// Its type.
    pub(super) kind: u16,
    /// Its class; −1 = unlabeled.
    pub(super) label: i32,
}

impl Record {
    /// Creates the layout of records of `source`'s edges with `width` features.
    pub(super) fn new(source: &GraphSource, width: usize) -> Self {
        let columns = &source.columns;
        let mut stride = 8;
        let mut take = |wanted: bool, bytes: usize| {
            wanted.then(|| {
                stride += bytes;
                stride - bytes
            })
        };
        let row = take(source.duplicates == Duplicates::Fail, 8);
        let weight = take(columns.weight.is_some(), 4);
        let edge_type = take(source.typed_edges(), 2);
        let time = take(columns.time.is_some(), 8);
        let split = take(columns.edge_split.is_some(), 1);
        let label = take(columns.edge_label.is_some(), 4);
        let features = take(width > 0, 4 * width);
        Self { row, weight, edge_type, time, split, label, features, width, stride }
    }

    /// Whether a record consists of destination and source only.
    pub(super) fn is_plain(&self) -> bool {
        self.stride == 8
    }

    /// Writes the other columns of edge `i` of the chunk into `record`.
    pub(super) fn fill(&self, record: &mut [u8], chunk: &EdgeChunk, codes: Codes, i: usize) {
        if let Some(at) = self.row {
            record[at..at + 8].copy_from_slice(&(chunk.first_row + i as u64).to_le_bytes());
        }
        if let (Some(at), Some(weights)) = (self.weight, &chunk.weights) {
            record[at..at + 4].copy_from_slice(&weights[i].to_le_bytes());
        }
        if let Some(at) = self.edge_type {
            record[at..at + 2].copy_from_slice(&codes.kind.to_le_bytes());
        }
        if let (Some(at), Some(times)) = (self.time, &chunk.times) {
            record[at..at + 8].copy_from_slice(&times[i].to_le_bytes());
        }
        if let (Some(at), Some(splits)) = (self.split, &chunk.splits) {
            record[at] = splits[i];
        }
        if let Some(at) = self.label {
            record[at..at + 4].copy_from_slice(&codes.label.to_le_bytes());
        }
        if let Some(at) = self.features {
            let values = &chunk.features[i * self.width..(i + 1) * self.width];
            record[at..at + 4 * self.width].copy_from_slice(bytemuck::cast_slice(values));
        }
    }

    /// Returns destination and source of a record.
    #[inline]
    pub(super) fn ends(record: &[u8]) -> (u32, u32) {
        let key = u64::from_le_bytes(array(record, 0));
        ((key >> 32) as u32, key as u32)
    }

    pub(super) fn row(&self, record: &[u8]) -> u64 {
        self.row.map_or(0, |at| u64::from_le_bytes(array(record, at)))
    }

    pub(super) fn weight(&self, record: &[u8]) -> Option<f32> {
        self.weight.map(|at| f32::from_le_bytes(array(record, at)))
    }

    pub(super) fn edge_type(&self, record: &[u8]) -> Option<u16> {
        self.edge_type.map(|at| u16::from_le_bytes(array(record, at)))
    }

    pub(super) fn time(&self, record: &[u8]) -> Option<i64> {
        self.time.map(|at| i64::from_le_bytes(array(record, at)))
    }

    /// The split, see [`split`](crate::dataset::split).
    pub(super) fn split(&self, record: &[u8]) -> Option<u8> {
        self.split.map(|at| record[at])
    }

    /// The class; −1 = unlabeled.
    pub(super) fn label(&self, record: &[u8]) -> Option<i32> {
        self.label.map(|at| i32::from_le_bytes(array(record, at)))
    }

    /// The bytes of the features.
    pub(super) fn features<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        self.features.map(|at| &record[at..at + 4 * self.width])
    }
}

#[inline]
fn array<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}
