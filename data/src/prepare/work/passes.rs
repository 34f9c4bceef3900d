//! The passes that read the dump and write the dataset's files.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::budget::Budget;
use super::{Partitioning, Preparation};
use crate::dataset::{EdgeColumns, LabelInfo, TypeInfo};
use crate::dump::Types;
use crate::error::{Error, Result};
use crate::group::{ProcessGroup, collect};
use crate::partitioner::{Assignment, GraphStream};
use crate::prepare::buckets::{Bucket, Cuts, Spool};
use crate::prepare::edge_scan::{Bucketed, EdgeScan};
use crate::prepare::encode_like;
use crate::prepare::ends::{Ends, FindEnds};
use crate::prepare::halo::HaloFeatures;
use crate::prepare::labels::ranks;
use crate::prepare::pairs::Pairs;
use crate::prepare::record::Record;
use crate::prepare::relabel::Relabel;
use crate::prepare::scale::Scale;
use crate::prepare::scan::Scan;
use crate::prepare::stream::DumpStream;
use crate::prepare::types::{edge_labels, edge_types};
use crate::prepare::write_nodes::{NodeFiles, NodePass, WrittenNodes};
use crate::prepare::write_topology::{TopologyFile, TopologyPass};
use crate::process_memory::PeakWatch;
use crate::progress::Progress;
use crate::source::{Normalize, SelfLoops};

/// Names of passes in the journal.
const ASSIGNMENT: &str = "assignment";
const NODES: &str = "nodes";
const TYPES: &str = "types";
const LABELS: &str = "edge labels";
const EDGES: &str = "edges";

impl<C: ProcessGroup> Preparation<'_, C> {
    /// Returns the lookup of the nodes of edges.
    fn find<'b>(&'b self, scan: &'b Scan, ends: Option<&'b Ends>) -> FindEnds<'b> {
        FindEnds { edges: &self.edges, ids: &scan.ids, ends, policy: self.source.unknown_nodes }
    }

    /// Returns the stream of edges for partitioners and filters. `pairs` are those of all nodes, if they have been written.
    pub(super) fn stream<'b>(
        &'b self,
        scan: &'b Scan,
        ends: Option<&'b Ends>,
        types: &'b [u16],
        pairs: Option<Pairs>,
    ) -> DumpStream<'b, C> {
        let (pairs_of_all, written) = if scan.ids.has_dropped() { (None, pairs) } else { (pairs, None) };
        DumpStream {
            processes: self.processes,
            find: self.find(scan, ends),
            splits: &scan.splits,
            types,
            undirected: self.source.both_ways(),
            scratch: self.scratch,
            journal: &self.journal,
            progress: self.progress,
            pairs: pairs_of_all.map(OnceCell::from).unwrap_or_default(),
            written: Cell::new(written),
        }
    }

    pub(super) fn assign(
        &self,
        scan: &Scan,
        ends: Option<&Ends>,
        budget: &Budget,
        pairs: Option<Pairs>,
    ) -> Result<(Relabel, Partitioning, Option<Pairs>)> {
        let Self { partitioner, settings, progress, .. } = self;
        let n = scan.ids.len() as u64;
        let types = self.node_types(scan)?;
        let stream = self.stream(scan, ends, &types, pairs);
        let before: Option<Partitioning> = self.journal.completed(ASSIGNMENT)?;
        let stored = if before.is_some() { stream.load(ASSIGNMENT)? } else { None };
        if let (Some(partitioning), Some(bytes)) = (before, stored) {
            let stored = Assignment::Stored(collect(&bytes));
            return Ok((Relabel::new(&stored, n, settings.parts, *partitioner)?, partitioning, None));
        }
        let (began, watch) = (Instant::now(), PeakWatch::start());
        if scan.ids.has_dropped() {
            stream.pairs()?;
        }
        self.check(n, stream.num_edges(), scan.ids.index_bytes())?;
        progress.stage("partitioning", None, "");
        let assignment = partitioner.assign(&stream, &self.goal(scan, budget))?;
        progress.done();
        let partitioning = Partitioning { seconds: began.elapsed().as_secs_f64(), bytes: watch.grown() };
        let relabel = Relabel::new(&assignment, n, settings.parts, *partitioner)?;
        if let Assignment::Stored(parts) = &assignment {
            stream.save(ASSIGNMENT, bytemuck::cast_slice(parts))?;
            // All processes wait until the bytes are stored. Only then may a journal record the pass.
            self.processes.barrier()?;
            self.journal.finish(ASSIGNMENT, &partitioning)?;
        }
        Ok((relabel, partitioning, stream.pairs.into_inner()))
    }

    /// Returns the types of the nodes if parts are balanced by them, else an empty list.
    fn node_types(&self, scan: &Scan) -> Result<Vec<u16>> {
        let (Some(info), Some(_)) = (&scan.types, self.settings.balance.types) else { return Ok(Vec::new()) };
        let mut all = Vec::with_capacity(scan.ids.len());
        self.nodes.for_each_without_features(Ok, |chunk| {
            let codes = match chunk.types {
                Some(Types::Code(codes)) => codes,
                Some(Types::Name(names)) => ranks(&names, &info.names)?.into_iter().map(|rank| rank as u16).collect(),
                None => Vec::new(),
            };
            let rows = (chunk.first_row as u32..).zip(codes);
            all.extend(rows.filter(|(row, _)| scan.ids.index_of_row(*row).is_some()).map(|(_, code)| code));
            Ok(())
        })?;
        // Created nodes are last and have type 0.
        all.resize(scan.ids.len(), 0);
        Ok(all)
    }

    /// Writes the files of nodes. Returns those of this process's partitions, and the scales of features.
    pub(super) fn write_nodes(&self, scan: &Scan, relabel: &Relabel, budget: &Budget) -> Result<WrittenNodes> {
        let Self { source, progress, nodes, .. } = self;
        if let Some(written) = self.journal.completed(NODES)? {
            return Ok(written);
        }
        let scale = match &source.encode_like {
            Some(encoding) if source.normalize_features == Normalize::Standard && nodes.feature_width() > 0 => {
                Scale::Standard(encoding.scales.clone())
            }
            _ => Scale::new(self.processes, source.normalize_features, nodes, &scan.ids, *progress)?,
        };
        progress.stage("writing nodes", Some(nodes.rows()), "nodes");
        let pass = NodePass { nodes, scan, relabel, scale: &scale, dir: self.dir, memory: budget.buffers };
        let files = pass.run(self.processes, |rows| progress.advance(rows))?;
        progress.done();
        let written = WrittenNodes { files, scales: scale.columns().to_vec() };
        self.journal.finish(NODES, &written)?;
        Ok(written)
    }

    /// Returns the types of edges in the dump.
    pub(super) fn edge_types(&self) -> Result<Option<TypeInfo>> {
        if self.source.columns.edge_type.is_none() {
            return Ok(None);
        }
        let types = match self.journal.completed(TYPES)? {
            Some(types) => types,
            None => {
                let found = edge_types(self.processes, &self.edges, self.progress)?;
                let types = match &self.source.encode_like {
                    Some(encoding) => encode_like::edge_types(found, encoding)?,
                    None => found,
                };
                self.journal.finish(TYPES, &types)?;
                types
            }
        };
        Ok(Some(types))
    }

    /// Returns the classes of edges, with counts of 0.
    pub(super) fn edge_labels(&self) -> Result<Option<LabelInfo>> {
        if self.source.columns.edge_label.is_none() {
            return Ok(None);
        }
        let labels = match self.journal.completed(LABELS)? {
            Some(labels) => labels,
            None => {
                let found = edge_labels(self.processes, &self.edges, self.progress)?;
                let labels = match &self.source.encode_like {
                    Some(encoding) => encode_like::edge_labels(found, encoding)?,
                    None => found,
                };
                self.journal.finish(LABELS, &labels)?;
                labels
            }
        };
        Ok(Some(labels))
    }

    pub(super) fn read_edges(
        &self,
        (scan, ends, pairs): (&Scan, Option<&Ends>, Option<&Pairs>),
        relabel: &Relabel,
        (types, reverse, labels): (Option<&TypeInfo>, Option<u16>, Option<&LabelInfo>),
        budget: &Budget,
    ) -> Result<Bucketed> {
        let Self { source, edges, progress, .. } = self;
        if let Some((on_disk, unknown)) = self.journal.completed::<(Vec<(u32, u32, u64)>, u64)>(EDGES)? {
            let buckets = on_disk.into_iter().map(|bucket| Bucket::from_disk(bucket, self.scratch)).collect();
            return Ok(Bucketed { buckets, unknown });
        }
        let record = Record::new(source, edges.feature_width());
        let bytes = edges.rows() * (1 + u64::from(source.both_ways())) * record.stride as u64;
        // The number of buckets bounds their size, and is sufficient for all threads.
        let for_threads = (bytes >> 20).min(8 * rayon::current_num_threads() as u64);
        let wanted = (2 * bytes).div_ceil(budget.bucket()).max(for_threads).max(1);
        let spool = Spool::new(Cuts::new(&relabel.book, wanted), budget.buffers / 4, self.scratch);
        progress.stage("sorting edges into buckets", Some(edges.rows()), "edges");
        let pass = EdgeScan { source, find: self.find(scan, ends), relabel, record, types, labels, reverse, pairs };
        let bucketed = pass.run(self.processes, spool, |rows| progress.advance(rows))?;
        progress.done();
        let on_disk: Option<Vec<_>> = bucketed.buckets.iter().map(Bucket::on_disk).collect();
        if let Some(on_disk) = on_disk {
            self.journal.finish(EDGES, &(on_disk, bucketed.unknown))?;
        }
        Ok(bucketed)
    }

    /// Writes the topologies of this process's partitions, one after another.
    pub(super) fn write_edges(
        &self,
        relabel: &Relabel,
        buckets: Vec<Bucket>,
        columns: &EdgeColumns,
        files: &[NodeFiles],
        budget: &Budget,
    ) -> Result<Vec<TopologyFile>> {
        let Self { source, edges, progress, .. } = self;
        let record = Record::new(source, edges.feature_width());
        let records = buckets.iter().map(Bucket::bytes).sum::<u64>() / record.stride as u64;
        let mut pass = TopologyPass {
            dir: self.dir,
            scratch: self.scratch,
            record,
            duplicates: source.duplicates,
            add_loops: source.self_loops == SelfLoops::Add,
            loop_type: columns.edge_type.as_ref().map_or(0, |types| types.count.saturating_sub(1) as u16),
            columns,
            target: budget.bucket(),
            book: &relabel.book,
            halo_features: (self.settings.halo_features && self.nodes.feature_width() > 0).then(|| HaloFeatures {
                files,
                layout: self.nodes.feature_layout().clone(),
                of: None,
            }),
            halo: std::iter::repeat_with(|| AtomicU64::new(0)).take(relabel.book.nodes() as usize / 64 + 1).collect(),
        };
        progress.stage("writing edges", Some(records), "edges");
        let mut buckets = buckets.into_iter().peekable();
        let mut files = Vec::new();
        for part in 0..relabel.book.parts() {
            let core = relabel.book.range(part);
            let mut own = Vec::new();
            while let Some(bucket) = buckets.next_if(|bucket| u64::from(bucket.range.end) <= core.end) {
                own.push(bucket);
            }
            if !self.processes.owns(part) {
                continue;
            }
            let name = format!("topology-{part}");
            let spilled = own.iter().any(|bucket| bucket.file().is_some());
            let rows = own.iter().map(Bucket::bytes).sum::<u64>() / record.stride as u64;
            let file = match self.journal.completed_here(&name)? {
                Some(file) => {
                    progress.advance(rows);
                    file
                }
                None => {
                    let file = pass.run(part, core.clone(), own, |rows| progress.advance(rows))?;
                    self.journal.finish(&name, &file)?;
                    file
                }
            };
            if spilled {
                remove_buckets(self.scratch, &core)?;
            }
            files.push(file);
        }
        progress.done();
        Ok(files)
    }
}

/// Removes the bucket files of the destinations `core`, and those that they were split into.
fn remove_buckets(scratch: &Path, core: &std::ops::Range<u64>) -> Result<()> {
    for entry in std::fs::read_dir(scratch).map_err(Error::io(scratch, "list"))? {
        let entry = entry.map_err(Error::io(scratch, "list"))?;
        let name = entry.file_name();
        let range = name.to_str().and_then(|name| name.strip_prefix("edges-")?.split_once('-'));
        let Some((start, end)) = range.and_then(|(a, b)| Some((a.parse::<u64>().ok()?, b.parse::<u64>().ok()?))) else {
            continue;
        };
        if core.start <= start && end <= core.end {
            std::fs::remove_file(entry.path()).map_err(Error::io(entry.path(), "remove"))?;
        }
    }
    Ok(())
}
