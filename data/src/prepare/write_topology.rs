//! Writes `topology.arrow` of one partition after another from buckets, and counts for the quality report.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::{DataType, Field, Schema};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tempfile::SpooledTempFile;

use super::arrange::{Arranged, Duplicate, Rules, arrange};
use super::buckets::Bucket;
use super::halo::{HaloFeatures, count_halo, write_halo};
use super::record::Record;
use crate::dataset::ipc::{IpcFile, Region, Span, align};
use crate::dataset::{EdgeColumns, FileInfo, SplitCounts, TOPOLOGY, edge_names, part_folder};
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;
use crate::source::Duplicates;

/// Bytes of a write buffer.
const BUFFER: usize = 1 << 20;

/// The inputs of the pass, for all partitions.
pub(super) struct TopologyPass<'a> {
    pub(super) dir: &'a Path,
    pub(super) scratch: &'a Path,
    pub(super) record: Record,
    pub(super) duplicates: Duplicates,
    pub(super) add_loops: bool,
    pub(super) loop_type: u16,
    pub(super) columns: &'a EdgeColumns,
    /// Maximum size in bytes of a bucket that is sorted in memory.
    pub(super) target: u64,
    pub(super) book: &'a PartitionBook,
    /// The features of halo nodes, if requested.
    pub(super) halo_features: Option<HaloFeatures<'a>>,
    /// One bit per node.
    pub(super) halo: Vec<AtomicU64>,
}

/// The results for one partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TopologyFile {
    pub(super) file: FileInfo,
    pub(super) edges: u64,
    /// `halo.arrow`.
    pub(super) halo_file: FileInfo,
    /// Edges from other partitions.
    pub(super) cross: u64,
    /// Number of halo nodes by owning partition; one sum if there are many partitions.
    pub(super) halo: Vec<u64>,
    pub(super) dropped: u64,
    pub(super) loops: u64,
    /// Number of nodes with each number of in-edges.
    pub(super) degrees: BTreeMap<u32, u64>,
    /// Number of edges of each split and of each class.
    #[serde(default)]
    pub(super) splits: SplitCounts,
    #[serde(default)]
    pub(super) classes: Vec<u64>,
    #[serde(rename = "twice")]
    pub(super) first_duplicate: Option<Duplicate>,
}

/// A column that is written to a temporary file until all indices are written.
struct SpooledColumn {
    path: PathBuf,
    file: SpooledTempFile,
}

impl SpooledColumn {
    fn new(scratch: &Path) -> Self {
        Self { path: scratch.to_path_buf(), file: SpooledTempFile::new_in(4 * BUFFER, scratch) }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path, "write a temporary file in"))
    }

    fn copy(mut self, into: &mut Region) -> Result<()> {
        self.file.rewind().map_err(Error::io(&self.path, "read a temporary file in"))?;
        let mut block = vec![0; BUFFER];
        loop {
            let length = self.file.read(&mut block).map_err(Error::io(&self.path, "read a temporary file in"))?;
            if length == 0 {
                return Ok(());
            }
            into.write(&block[..length])?;
        }
    }
}

impl TopologyPass<'_> {
    /// Writes the topology of partition `part` with core nodes `core` and edges `buckets`.
    pub(super) fn run(
        &mut self,
        part: usize,
        core: Range<u64>,
        buckets: Vec<Bucket>,
        mut advance: impl FnMut(u64),
    ) -> Result<TopologyFile> {
        self.halo.iter_mut().for_each(|word| *word.get_mut() = 0);
        let n = core.end - core.start;
        let path = self.dir.join(part_folder(part)).join(TOPOLOGY);
        let file = IpcFile::create(&path, topology_schema(self.columns))?;
        let mut offsets = file.region(0, BUFFER);
        let mut indices = file.region(align(8 * (n + 1)), BUFFER);
        let mut weights = self.columns.weight.then(|| SpooledColumn::new(self.scratch));
        let mut types = self.columns.edge_type.is_some().then(|| SpooledColumn::new(self.scratch));
        let mut times = self.columns.time.then(|| SpooledColumn::new(self.scratch));
        let mut splits = self.columns.split.is_some().then(|| SpooledColumn::new(self.scratch));
        let mut labels = self.columns.label.is_some().then(|| SpooledColumn::new(self.scratch));
        let mut features = (self.columns.features > 0).then(|| SpooledColumn::new(self.scratch));
        let info = FileInfo { bytes: 0, body: (0, 0), headers_crc32: 0, crc32: 0 };
        let mut all = TopologyFile {
            file: info,
            halo_file: info,
            edges: 0,
            cross: 0,
            halo: Vec::new(),
            dropped: 0,
            loops: 0,
            degrees: BTreeMap::new(),
            splits: SplitCounts::default(),
            classes: vec![0; self.columns.label.as_ref().map_or(0, |labels| labels.classes as usize)],
            first_duplicate: None,
        };
        offsets.write(&0i64.to_le_bytes())?;

        let rules = Rules {
            record: self.record,
            duplicates: self.duplicates,
            add_loops: self.add_loops,
            loop_type: self.loop_type,
            core,
            halo: &self.halo,
        };
        let mut queue = VecDeque::from(buckets);
        while let Some(window) = self.window(&mut queue)? {
            let rows: u64 = window.iter().map(|bucket| bucket.bytes() / self.record.stride as u64).sum();
            let arranged: Vec<Arranged> =
                window.into_par_iter().map(|bucket| arrange_bucket(bucket, &rules)).collect::<Result<_>>()?;
            for arranged in arranged {
                for degree in &arranged.degrees {
                    all.edges += u64::from(*degree);
                    *all.degrees.entry(*degree).or_default() += 1;
                    offsets.write(&(all.edges as i64).to_le_bytes())?;
                }
                indices.write(bytemuck::cast_slice(&arranged.indices))?;
                write_column(&mut weights, bytemuck::cast_slice(&arranged.weights))?;
                write_column(&mut types, bytemuck::cast_slice(&arranged.types))?;
                write_column(&mut times, bytemuck::cast_slice(&arranged.times))?;
                write_column(&mut splits, &arranged.splits)?;
                write_column(&mut labels, bytemuck::cast_slice(&arranged.labels))?;
                arranged.splits.iter().for_each(|&split| all.splits.add(split));
                for &label in arranged.labels.iter().filter(|&&label| label >= 0) {
                    all.classes[label as usize] += 1;
                }
                write_column(&mut features, &arranged.features)?;
                all.cross += arranged.cross;
                all.dropped += arranged.dropped;
                all.loops += arranged.loops;
                all.first_duplicate = [all.first_duplicate, arranged.first_duplicate].into_iter().flatten().min();
            }
            advance(rows);
        }
        all.halo = count_halo(&self.halo, self.book);

        let (mut nodes, offset_span) = (vec![n, all.edges], offsets.span());
        let mut buffers = vec![Span::NONE, offset_span, Span::NONE, indices.span()];
        let mut next = indices.span().next();
        let mut regions = vec![offsets, indices];
        let narrow = [weights, types, times, splits, labels].map(|column| (column, false));
        for (column, wide) in narrow.into_iter().chain([(features, true)]) {
            let Some(column) = column else { continue };
            let mut region = file.region(next, BUFFER);
            column.copy(&mut region)?;
            nodes.extend([n, all.edges]);
            buffers.extend([Span::NONE, offset_span, Span::NONE]);
            if wide {
                nodes.push(all.edges * self.columns.features as u64);
                buffers.push(Span::NONE);
            }
            buffers.push(region.span());
            next = region.span().next();
            regions.push(region);
        }
        all.halo_file = write_halo(self.dir, part, self.book, &self.halo, self.halo_features.as_ref())?;
        all.file = file.finish(&nodes, &buffers, regions)?;
        Ok(all)
    }

    /// Returns the next buckets to sort in parallel, one per thread. Splits too large buckets first.
    fn window(&self, queue: &mut VecDeque<Bucket>) -> Result<Option<Vec<Bucket>>> {
        let mut window = Vec::new();
        while window.len() < rayon::current_num_threads()
            && let Some(bucket) = queue.pop_front()
        {
            if bucket.bytes() > self.target && bucket.range.end - bucket.range.start > 1 {
                for piece in bucket.split(&self.record, self.target, self.scratch)?.into_iter().rev() {
                    queue.push_front(piece);
                }
            } else {
                window.push(bucket);
            }
        }
        Ok((!window.is_empty()).then_some(window))
    }
}

/// Returns the schema of `topology.arrow`.
pub(crate) fn topology_schema(columns: &EdgeColumns) -> Schema {
    let list = |name: &str, item: DataType| {
        Field::new(name, DataType::LargeList(Arc::new(Field::new("item", item, false))), false)
    };
    let mut fields = vec![list(edge_names::NEIGHBORS, DataType::UInt32)];
    if columns.weight {
        fields.push(list(edge_names::WEIGHT, DataType::Float32));
    }
    if columns.edge_type.is_some() {
        fields.push(list(edge_names::EDGE_TYPE, DataType::UInt16));
    }
    if columns.time {
        fields.push(list(edge_names::TIME, DataType::Int64));
    }
    if columns.split.is_some() {
        fields.push(list(edge_names::SPLIT, DataType::UInt8));
    }
    if columns.label.is_some() {
        fields.push(list(edge_names::LABEL, DataType::Int32));
    }
    if columns.features > 0 {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        fields.push(list(edge_names::FEATURES, DataType::FixedSizeList(item, columns.features as i32)));
    }
    Schema::new(fields)
}

fn write_column(column: &mut Option<SpooledColumn>, bytes: &[u8]) -> Result<()> {
    column.as_mut().map_or(Ok(()), |column| column.write(bytes))
}

fn arrange_bucket(bucket: Bucket, rules: &Rules<'_>) -> Result<Arranged> {
    let (range, limit) = (bucket.range.clone(), u64::from(u32::MAX));
    let count = bucket.bytes() / rules.record.stride as u64;
    if count > limit {
        let what = format!("number of edges into the {} nodes from {} on", range.end - range.start, range.start);
        return Err(Error::TooLarge { what, found: count, limit });
    }
    Ok(arrange(&bucket.load()?, range, rules))
}
