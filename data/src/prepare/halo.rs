//! Writes `halo.arrow` of a partition: the nodes of other partitions from which its edges come and, on request, their features.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::{DataType, Field, Schema};

use super::write_nodes::NodeFiles;
use crate::dataset::ipc::{IpcFile, Span, align};
use crate::dataset::{Dataset, FEATURES, FileInfo, FileKind, HALO, HALO_NODE, RowLayout, feature_field, part_folder};
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

/// Size of a write buffer, and of a read of features, in bytes.
const BUFFER: usize = 1 << 20;

/// Maximum number of partitions for counts of halo nodes of every pair.
pub(crate) const PAIRS: usize = 1024;

/// The source of the features of halo nodes.
pub(crate) struct HaloFeatures<'a> {
    /// The files of all partitions, in order.
    pub(crate) files: &'a [NodeFiles],
    /// The layout of stored rows.
    pub(crate) layout: RowLayout,
    /// The dataset that is updated. Its unchanged features are verified before they are copied.
    pub(crate) of: Option<&'a Dataset>,
}

/// Writes the halo of partition `part`: the nodes whose bits are set in `bits`.
pub(crate) fn write_halo(
    dir: &Path,
    part: usize,
    book: &PartitionBook,
    bits: &[AtomicU64],
    features: Option<&HaloFeatures<'_>>,
) -> Result<FileInfo> {
    let count: u64 = bits.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum();
    let mut fields = vec![Field::new(HALO_NODE, DataType::UInt32, false)];
    let column = features.map(|features| feature_field(&features.layout));
    fields.extend(column.iter().map(|(field, _)| field.clone()));
    let file = IpcFile::create(&dir.join(part_folder(part)).join(HALO), Schema::new(fields))?;
    let mut nodes = file.region(0, BUFFER);
    for_each_node(bits, |node| nodes.write(&node.to_le_bytes()))?;
    let mut spans = vec![Span::NONE, nodes.span()];
    let mut lengths = vec![count];
    let mut regions = vec![nodes];
    if let (Some(features), Some((_, items))) = (features, column) {
        let mut rows = file.region(align(4 * count), BUFFER);
        let row = features.layout.row_bytes();
        let mut open: Option<(usize, FeatureFile)> = None;
        for_each_node(bits, |node| {
            let owner = book.owner(u64::from(node)).ok_or_else(|| Error::Bug("a node is in no partition".into()))?;
            if open.as_ref().is_none_or(|(part, _)| *part != owner) {
                open = Some((owner, FeatureFile::open(dir, owner, features, row)?));
            }
            let local = u64::from(node) - book.range(owner).start;
            match &mut open {
                Some((_, file)) => rows.write(file.row(local)?),
                None => Ok(()),
            }
        })?;
        lengths.extend([count, count * items]);
        spans.extend([Span::NONE, Span::NONE, rows.span()]);
        regions.push(rows);
    }
    file.finish(&lengths, &spans, regions)
}

/// Returns the number of halo nodes by owning partition; one sum if there are many partitions. `bits` has `nodes / 64 + 1` words.
pub(crate) fn count_halo(bits: &[AtomicU64], book: &PartitionBook) -> Vec<u64> {
    match book.parts() {
        parts @ 0..=PAIRS => (0..parts).map(|part| count_bits(bits, book.range(part))).collect(),
        _ => vec![count_bits(bits, 0..book.nodes())],
    }
}

/// Returns the number of set bits in a range.
fn count_bits(bits: &[AtomicU64], range: Range<u64>) -> u64 {
    let count = |word: u64, mask: u64| u64::from((bits[word as usize].load(Ordering::Relaxed) & mask).count_ones());
    let (below, above) = (|end: u64| (1u64 << (end % 64)) - 1, |start: u64| !((1u64 << (start % 64)) - 1));
    let (first, last) = (range.start / 64, range.end / 64);
    if first == last {
        return count(first, above(range.start) & below(range.end));
    }
    let whole: u64 = (first + 1..last).map(|word| count(word, u64::MAX)).sum();
    count(first, above(range.start)) + whole + count(last, below(range.end))
}

fn for_each_node(bits: &[AtomicU64], mut each: impl FnMut(u32) -> Result<()>) -> Result<()> {
    for (word, base) in bits.iter().zip((0u64..).step_by(64)) {
        let mut left = word.load(Ordering::Relaxed);
        while left != 0 {
            each((base + u64::from(left.trailing_zeros())) as u32)?;
            left &= left - 1;
        }
    }
    Ok(())
}

/// The features of one partition, read in ascending order of rows.
struct FeatureFile {
    path: std::path::PathBuf,
    file: File,
    body: u64,
    rows: u64,
    row: usize,
    /// The first row in `window`.
    first: u64,
    window: Vec<u8>,
}

impl FeatureFile {
    fn open(dir: &Path, part: usize, features: &HaloFeatures<'_>, row: usize) -> Result<Self> {
        let path = dir.join(part_folder(part)).join(FEATURES);
        let info = features.files.get(part).and_then(|files| files.features);
        let info = info.ok_or_else(|| Error::Bug(format!("partition {part} has no features")))?;
        if let Some(dataset) = features.of
            && let Some(old) = &dataset.manifest().partitions[part].features
        {
            dataset.open_verified(part, FileKind::Features, old)?;
        }
        let file = File::open(&path).map_err(Error::io(&path, "open"))?;
        let rows = (info.body.1 - info.body.0) / row.max(1) as u64;
        Ok(Self { path, file, body: info.body.0, rows, row, first: 0, window: Vec::new() })
    }

    fn row(&mut self, at: u64) -> Result<&[u8]> {
        let held = (self.window.len() / self.row) as u64;
        if at < self.first || at >= self.first + held {
            let rows = (BUFFER / self.row).max(1) as u64;
            let rows = rows.min(self.rows.saturating_sub(at)).max(1);
            self.window.resize(rows as usize * self.row, 0);
            let offset = self.body + at * self.row as u64;
            self.file.read_exact_at(&mut self.window, offset).map_err(Error::io(&self.path, "read"))?;
            self.first = at;
        }
        let start = (at - self.first) as usize * self.row;
        Ok(&self.window[start..start + self.row])
    }
}
