//! Dump → prepared dataset, in two streaming passes.
//!
//! ```text
//! nodes ──► ids, splits, label kinds ──► partitioner ──► global ids
//! nodes ──► nodes.arrow, features.arrow of every partition
//! edges ──► buckets by destination, on disk when memory runs short ──► topology.arrow
//! ```
//!
//! **Memory**: the budget of [`PrepareSettings::memory`] for buckets and buffers; per node 5 bytes, 14.4 more unless ids are
//! `0, 1, 2, …`, the ids themselves when they are strings, and what the partitioner needs; a few chunks a thread (some MiB each);
//! and twice the in-edges of the node that has most, should that be more than the budget. Never anything per edge.
//!
//! **Determinism**: the bytes depend on dump, settings and seed alone, not on threads or memory.

mod arrange;
mod buckets;
mod fingerprint;
mod folder;
mod quality;
mod record;
mod relabel;
mod scale;
mod scan;
mod stream;
#[cfg(test)]
mod tests;
mod types;
mod write_nodes;
mod write_topology;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

pub use fingerprint::{Fingerprint, State, fingerprint, state};
pub use quality::{Balance, Quality};

use crate::dataset::{EdgeColumns, FORMAT, FeatureInfo, Manifest, PartitionInfo, SCHEMA_VERSION, TypeInfo};
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::partitioner::{Goal, MAX_PARTS, Partitioner, Targets};
use crate::progress::Progress;
use crate::source::{Duplicates, GraphSource, SelfLoops};
use arrange::Twice;
use buckets::{Bucket, Cuts, EdgePass, Spool};
use folder::{Growing, Lock};
use record::Record;
use relabel::Relabel;
use scale::Scale;
use stream::DumpStream;
use write_nodes::{NodeFiles, NodePass};
use write_topology::{TopologyFile, TopologyPass};

/// Smallest bucket that is worth a file.
const SMALLEST_BUCKET: u64 = 4 << 10;

/// How to prepare.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareSettings {
    /// Number of partitions, at least one.
    pub parts: u32,
    /// Folder of the dataset.
    pub out: PathBuf,
    /// Bytes of memory for buckets and buffers.
    pub memory: u64,
    /// Seed of the partitioner.
    pub seed: u64,
    /// How even the partitions have to be.
    pub balance: Targets,
}

impl PrepareSettings {
    fn goal(&self) -> Goal {
        Goal { parts: self.parts, seed: self.seed, memory: self.memory, balance: self.balance }
    }
}

/// What a dump needs, from its footers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edge rows.
    pub edge_rows: u64,
    /// Number of edges in the dataset at most.
    pub edges: u64,
    /// Values per node.
    pub feature_dim: usize,
    /// Bytes of memory while preparing, at most; the partitioner's own not counted, nor strings.
    pub memory: u64,
    /// Bytes of the dataset on disk, about.
    pub disk: u64,
    /// Bytes on disk while preparing, besides.
    pub scratch: u64,
}

/// What preparing `source` needs. Reads footers only.
///
/// # Errors
/// Missing or broken files, missing columns, columns of the wrong type.
pub fn estimate(source: &GraphSource, settings: &PrepareSettings) -> Result<Estimate> {
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    let record = Record::new(&source.columns, source.duplicates, edges.feature_width());
    let (n, rows) = (nodes.rows(), edges.rows());
    let loops = if source.self_loops == SelfLoops::Add { n } else { 0 };
    let most = rows * (1 + u64::from(source.undirected)) + loops;
    let features = n * (nodes.feature_width() * source.feature_dtype.size()) as u64;
    Ok(Estimate {
        nodes: n,
        edge_rows: rows,
        edges: most,
        feature_dim: nodes.feature_width(),
        memory: settings.memory + 22 * n + n / 8 + ((rayon::current_num_threads() as u64 * 16) << 20),
        disk: features + 21 * n + most * (record.stride as u64 - 4),
        scratch: most * record.stride as u64,
    })
}

/// Prepares the dataset in `settings.out`, unless the very same is there already.
///
/// One process at a time: others wait, and find it done. A stale dataset is replaced; a folder that holds something else is
/// left alone. Until everything has reached the disk, `settings.out` stays as it was.
///
/// # Errors
/// Bad input, with its place; a full disk; [`Error::Occupied`].
pub fn prepare(
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    source.check()?;
    if settings.parts == 0 || settings.parts > MAX_PARTS {
        let reason = format!("is {}, but must be in 1..={MAX_PARTS}", settings.parts);
        return Err(Error::Setting { key: "partition.parts", reason });
    }
    // What can be found wrong without reading much is said before a folder is made or waited for.
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    let _lock = Lock::take(&settings.out, progress)?;
    let wanted = fingerprint(source, partitioner, settings)?;
    match state(&settings.out, &wanted)? {
        State::Current(manifest) => return Ok(*manifest),
        State::Foreign => return Err(Error::Occupied { path: settings.out.clone() }),
        State::Missing | State::Stale(_) => {}
    }
    Work { source, partitioner, settings, progress, nodes, edges, began: Instant::now() }.run(wanted)
}

struct Work<'a> {
    source: &'a GraphSource,
    partitioner: &'a dyn Partitioner,
    settings: &'a PrepareSettings,
    progress: &'a dyn Progress,
    nodes: NodeReader,
    edges: EdgeReader,
    began: Instant,
}

impl Work<'_> {
    fn run(&self, wanted: Fingerprint) -> Result<Manifest> {
        let Self { source, progress, nodes, .. } = self;
        more_files(self.settings.parts);
        let growing = Growing::create(&self.settings.out)?;
        let scratch = growing.path().join("scratch");
        std::fs::create_dir(&scratch).map_err(Error::io(&scratch, "create"))?;

        let scan = scan::scan(nodes, source, *progress)?;
        let (relabel, partition_seconds) = self.assign(&scan)?;
        let scale = Scale::new(source.normalize_features, nodes, *progress)?;
        progress.stage("writing nodes", Some(nodes.rows()), "nodes");
        let pass = NodePass {
            nodes,
            scan: &scan,
            relabel: &relabel,
            scale: &scale,
            dtype: source.feature_dtype,
            dir: growing.path(),
            memory: self.settings.memory,
        };
        let node_files = pass.run(|rows| progress.advance(rows))?;
        progress.done();

        let (buckets, columns, remap) = self.read_edges(&scan, &relabel, &scratch)?;
        let topologies = self.write_edges(&relabel, buckets, &columns, remap.as_deref(), growing.path(), &scratch)?;
        if let Some(twice) = topologies.iter().filter_map(|part| part.twice).min() {
            return Err(self.duplicate(twice, &scan, &relabel)?);
        }
        std::fs::remove_dir_all(&scratch).map_err(Error::io(&scratch, "remove"))?;

        let (manifest, quality) =
            self.report(wanted, &scan, &relabel, columns, &node_files, &topologies, partition_seconds);
        let json = |value: serde_json::Result<String>| value.map_err(|e| Error::Bug(e.to_string()));
        let report = json(serde_json::to_string_pretty(&quality))?;
        folder::write_file(&growing.path().join(Quality::FILE), report.as_bytes())?;
        // The manifest last: a folder without it is no dataset.
        let text = json(serde_json::to_string_pretty(&manifest))?;
        folder::write_file(&growing.path().join(Manifest::FILE), text.as_bytes())?;
        growing.publish()?;
        Ok(manifest)
    }

    fn assign(&self, scan: &scan::Scan) -> Result<(Relabel, f64)> {
        let began = Instant::now();
        let Self { source, partitioner, settings, progress, .. } = self;
        let stream = DumpStream {
            edges: &self.edges,
            ids: &scan.ids,
            splits: &scan.splits,
            undirected: source.undirected,
            progress: *progress,
        };
        progress.stage("partitioning", None, "edges");
        let assignment = partitioner.assign(&stream, &settings.goal())?;
        let relabel = Relabel::new(&assignment, scan.ids.len() as u64, settings.parts, *partitioner)?;
        progress.done();
        Ok((relabel, began.elapsed().as_secs_f64()))
    }

    /// Bytes of a bucket that is sorted in one piece: sorting takes up to three times as much, in every thread at once.
    fn target(&self) -> u64 {
        (self.settings.memory / (4 * rayon::current_num_threads() as u64)).max(SMALLEST_BUCKET)
    }

    #[allow(clippy::type_complexity, reason = "three results of one pass, taken apart at once")]
    fn read_edges(
        &self,
        scan: &scan::Scan,
        relabel: &Relabel,
        scratch: &std::path::Path,
    ) -> Result<(Vec<Bucket>, EdgeColumns, Option<Vec<u16>>)> {
        let Self { source, edges, progress, .. } = self;
        let record = Record::new(&source.columns, source.duplicates, edges.feature_width());
        let bytes = edges.rows() * (1 + u64::from(source.undirected)) * record.stride as u64;
        // Enough that none is too large, and that every thread has some.
        let for_threads = (bytes >> 20).min(8 * rayon::current_num_threads() as u64);
        let wanted = (2 * bytes).div_ceil(self.target()).max(for_threads).max(1);
        let spool = Spool::new(Cuts::new(&relabel.book, wanted), self.settings.memory / 4, scratch);
        progress.stage("reading edges", Some(edges.rows()), "edges");
        let pass = EdgePass { source, edges, ids: &scan.ids, relabel, record };
        let (buckets, names) = pass.run(spool, |rows| progress.advance(rows))?;
        progress.done();
        let (mut types, remap) = names.finish()?;
        let mut columns = EdgeColumns {
            weight: source.columns.weight.is_some(),
            edge_type: None,
            time: source.columns.time.is_some(),
            features: edges.feature_width(),
        };
        if source.columns.edge_type.is_some() {
            if source.self_loops == SelfLoops::Add {
                types = with_loop_type(types);
            }
            columns.edge_type = Some(types);
        }
        Ok((buckets, columns, remap))
    }

    fn write_edges(
        &self,
        relabel: &Relabel,
        buckets: Vec<Bucket>,
        columns: &EdgeColumns,
        remap: Option<&[u16]>,
        dir: &std::path::Path,
        scratch: &std::path::Path,
    ) -> Result<Vec<TopologyFile>> {
        let Self { source, edges, progress, .. } = self;
        let record = Record::new(&source.columns, source.duplicates, edges.feature_width());
        let records = buckets.iter().map(Bucket::bytes).sum::<u64>() / record.stride as u64;
        let mut pass = TopologyPass {
            dir,
            scratch,
            record,
            duplicates: source.duplicates,
            add_loops: source.self_loops == SelfLoops::Add,
            remap,
            loop_type: columns.edge_type.as_ref().map_or(0, |types| types.count.saturating_sub(1) as u16),
            columns,
            target: self.target(),
            halo: std::iter::repeat_with(|| AtomicU64::new(0)).take(relabel.book.nodes() as usize / 64 + 1).collect(),
        };
        progress.stage("sorting edges", Some(records), "edges");
        let mut buckets = buckets.into_iter().peekable();
        let mut files = Vec::with_capacity(relabel.book.parts());
        for part in 0..relabel.book.parts() {
            let core = relabel.book.range(part);
            let mut own = Vec::new();
            while let Some(bucket) = buckets.next_if(|bucket| u64::from(bucket.range.end) <= core.end) {
                own.push(bucket);
            }
            files.push(pass.run(part, core, own, |rows| progress.advance(rows))?);
        }
        progress.done();
        Ok(files)
    }

    /// The error for the first duplicate.
    fn duplicate(&self, twice: Twice, scan: &scan::Scan, relabel: &Relabel) -> Result<Error> {
        let (second, first, dst, src) = twice;
        let id = |global| relabel.index(global).map_or(Ok("?".into()), |index| scan.ids.show(index));
        let first = self.edges.place(first);
        Ok(Error::DuplicateEdge {
            place: self.edges.place(second),
            first: format!("{} row {}", first.path.display(), first.row),
            src: id(src)?,
            dst: id(dst)?,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "the results of all passes come together here")]
    fn report(
        &self,
        wanted: Fingerprint,
        scan: &scan::Scan,
        relabel: &Relabel,
        edge_columns: EdgeColumns,
        nodes: &[NodeFiles],
        topologies: &[TopologyFile],
        partition_seconds: f64,
    ) -> (Manifest, Quality) {
        let book = &relabel.book;
        let partition = |(part, (nodes, topology)): (usize, (&NodeFiles, &TopologyFile))| {
            let range = book.range(part);
            PartitionInfo {
                nodes: range.end - range.start,
                edges: topology.edges,
                train: nodes.train,
                topology: topology.file,
                node_columns: nodes.nodes,
                features: nodes.features,
            }
        };
        let partitions: Vec<_> = nodes.iter().zip(topologies).enumerate().map(partition).collect();
        let sum = |what: fn(&TopologyFile) -> u64| topologies.iter().map(what).sum::<u64>();
        let (edges, n) = (sum(|part| part.edges), book.nodes());
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let quality = Quality {
            method: self.partitioner.name().to_string(),
            parts: self.settings.parts,
            edge_cut: share(sum(|part| part.cross), edges),
            replication_factor: if n == 0 { 1.0 } else { share(n + sum(|part| part.halo), n) },
            balance: Balance {
                nodes: quality::imbalance(partitions.iter().map(|part| part.nodes)),
                edges: quality::imbalance(partitions.iter().map(|part| part.edges)),
                train: quality::imbalance(partitions.iter().map(|part| part.train)),
            },
            seconds: self.began.elapsed().as_secs_f64(),
            partition_seconds,
            peak_rss_bytes: quality::peak_rss(),
        };
        let manifest = Manifest {
            format: FORMAT.into(),
            schema: SCHEMA_VERSION,
            fingerprint: wanted.digest,
            settings: wanted.settings,
            inputs: wanted.inputs,
            nodes: n,
            edges,
            edge_rows: self.edges.rows(),
            duplicates_dropped: if self.source.duplicates == Duplicates::Drop { sum(|part| part.dropped) } else { 0 },
            self_loops: sum(|part| part.loops),
            undirected: self.source.undirected,
            offsets: book.offsets().to_vec(),
            method: self.partitioner.name().to_string(),
            ids: self.nodes.id_kind(),
            features: FeatureInfo {
                dim: self.nodes.feature_width(),
                dtype: self.source.feature_dtype,
                normalize: self.source.normalize_features,
            },
            labels: scan.labels.as_ref().map(|(info, _)| info.clone()),
            splits: scan.splits_counted(),
            node_types: scan.types.clone(),
            edge_columns,
            partitions,
        };
        (manifest, quality)
    }
}

/// One more type, for the self-loops that are added.
fn with_loop_type(types: TypeInfo) -> TypeInfo {
    let mut names = types.names;
    if names.is_empty() {
        names = (0..types.count).map(|code| code.to_string()).collect();
    }
    names.push("self-loop".into());
    TypeInfo { count: types.count + 1, names }
}

/// All partitions' node files are open at once: raises the limit as far as the system lets.
fn more_files(parts: u32) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = 2 * u64::from(parts) + 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let limit = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // Where that is refused, opening a file will say so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum });
    }
}
