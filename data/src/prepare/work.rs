//! The passes of a preparation, in their order, and what each of them leaves for a next try.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::PrepareSettings;
use super::arrange::Twice;
use super::buckets::{Bucket, Bucketed, Cuts, EdgePass, Spool};
use super::clean::{self, Alive, with_reverse};
use super::crew::{Crew, collect};
use super::fingerprint::{Fingerprint, State, fingerprint, state};
use super::folder::{self, Growing, Lock, SCRATCH};
use super::halo::HaloFeatures;
use super::journal::Journal;
use super::pairs::Pairs;
use super::quality::{self, Quality};
use super::record::Record;
use super::recorder::Recorder;
use super::relabel::Relabel;
use super::scale::Scale;
use super::scan::{self, Scan};
use super::stream::DumpStream;
use super::types::edge_types;
use super::write_nodes::{NodeFiles, NodePass};
use super::write_topology::{TopologyFile, TopologyPass};
use crate::dataset::{Cleaning, EdgeColumns, FORMAT, FeatureInfo, Manifest, PartitionInfo, SCHEMA_VERSION, TypeInfo};
use crate::dump::{EdgeReader, NodeReader, Types};
use crate::error::{Error, Result};
use crate::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use crate::progress::Progress;
use crate::source::{Duplicates, GraphSource, SelfLoops, UnknownNodes};

/// Smallest bucket that is worth a file.
const SMALLEST_BUCKET: u64 = 4 << 10;
/// What the program takes before any data.
const PROGRAM: u64 = 48 << 20;
/// What a reading thread takes.
const READER: u64 = 16 << 20;

/// Names of passes in the journal.
const CLEANING: &str = "cleaning";
const ALIVE: &str = "nodes that are left";
const ASSIGNMENT: &str = "assignment";
const NODES: &str = "nodes";
const TYPES: &str = "types";
const EDGES: &str = "edges";

/// What the first process tells the others before anything begins.
#[derive(Serialize, Deserialize)]
enum Plan {
    /// The dataset is there.
    Current,
    /// It has to be made, within so many bytes in each process: the budget may decide a partitioner's result, so all have the
    /// first one's.
    Make(Fingerprint, u64),
}

/// Prepares what is not there already.
pub(super) fn run<C: Crew>(
    crew: &C,
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let began = Instant::now();
    // What can be found wrong without reading much is said before a folder is made or waited for.
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    let first = crew.rank() == 0;
    let _lock = first.then(|| Lock::take(&settings.out, progress)).transpose()?;
    let plan = if first {
        let wanted = fingerprint(source, partitioner, settings)?;
        match state(&settings.out, &wanted)? {
            State::Current(_) => Plan::Current,
            State::Foreign => return Err(Error::Occupied { path: settings.out.clone() }),
            State::Missing | State::Stale(_) => Plan::Make(wanted, settings.memory),
        }
    } else {
        Plan::Current
    };
    let (wanted, memory) = match told(crew, &plan)? {
        Plan::Current => return Manifest::read(&settings.out),
        Plan::Make(wanted, memory) => (wanted, memory),
    };
    let settings = &PrepareSettings { memory, ..settings.clone() };
    more_files(settings.parts);
    let key = format!("{} {} processes {}", wanted.digest, crew.size(), boot());
    let growing = first.then(|| Growing::create(&settings.out, &key)).transpose()?;
    crew.broadcast(Vec::new())?;
    let dir = Growing::path_for(&settings.out)?;
    let scratch = dir.join(SCRATCH);
    let journal = Journal::open(crew, &scratch)?;
    let progress = Recorder::new(progress);
    let work = Work {
        crew,
        source,
        partitioner,
        settings,
        progress: &progress,
        nodes,
        edges,
        dir: &dir,
        scratch: &scratch,
        journal,
    };
    let made = work.run(wanted)?;
    if let Some(growing) = growing {
        work.publish(growing, &made, began)?;
    }
    crew.broadcast(Vec::new())?;
    Ok(made.manifest)
}

/// What the first process says.
fn told<C: Crew, T: Serialize + for<'a> Deserialize<'a>>(crew: &C, own: &T) -> Result<T> {
    let bug = |e: serde_json::Error| Error::Bug(e.to_string());
    serde_json::from_slice(&crew.broadcast(serde_json::to_vec(own).map_err(bug)?)?).map_err(bug)
}

/// What all processes say, by rank.
fn gathered<C: Crew, T: Serialize + for<'a> Deserialize<'a>>(crew: &C, own: &T) -> Result<Vec<T>> {
    let bug = |e: serde_json::Error| Error::Bug(e.to_string());
    let own = serde_json::to_vec(own).map_err(bug)?;
    crew.gather(&own)?.iter().map(|bytes| serde_json::from_slice(bytes).map_err(bug)).collect()
}

/// Names the run of this machine: files that no flush has seen are lost with it.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

struct Work<'a, C> {
    crew: &'a C,
    source: &'a GraphSource,
    partitioner: &'a dyn Partitioner,
    settings: &'a PrepareSettings,
    progress: &'a Recorder<'a>,
    nodes: NodeReader,
    edges: EdgeReader,
    dir: &'a Path,
    scratch: &'a Path,
    journal: Journal,
}

/// What has been made, but for the report.
struct Made {
    manifest: Manifest,
    partitioning: Partitioning,
    topologies: Vec<TopologyFile>,
    peak_rss: u64,
}

/// What partitioning took.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Partitioning {
    seconds: f64,
    bytes: u64,
}

/// What cleaning came to.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Cleaned {
    counts: Cleaning,
    /// Rows that name an unknown node, where nodes may have been dropped: later passes cannot tell.
    unknown: Option<u64>,
}

/// Edges and nodes that are in the dataset against the dump, or the other way round.
struct Unknown {
    dropped: u64,
    cleaning: Cleaning,
}

/// The budget of a preparation once its nodes are known.
struct Budget {
    /// For the partitioner, beside its few dozen bytes a node.
    partitioner: u64,
    /// For buckets and buffers when it is done.
    buffers: u64,
}

impl<C: Crew> Work<'_, C> {
    fn run(&self, wanted: Fingerprint) -> Result<Made> {
        let mut scan = scan::scan(&self.nodes, self.source, self.progress)?;
        let (mut cleaning, pairs) = self.clean(&mut scan)?;
        let goal = self.goal(self.settings.memory);
        let budget = self.budget(&scan, self.partitioner.state_bytes(scan.ids.len() as u64, &goal))?;
        let (relabel, partitioning) = self.assign(&scan, &budget, pairs)?;
        let node_files = self.write_nodes(&scan, &relabel, &budget)?;
        let types = self.edge_types()?;
        let add = self.source.self_loops == SelfLoops::Add;
        let (all_types, reverse) = match self.source.reverse_edges {
            true => with_reverse(types.clone()).map(|(all, by)| (Some(all), Some(by)))?,
            false => (types.clone(), None),
        };
        let columns = EdgeColumns {
            weight: self.source.columns.weight.is_some(),
            edge_type: all_types.map(|types| if add { with_loop_type(types) } else { types }),
            time: self.source.columns.time.is_some(),
            features: self.edges.feature_width(),
        };
        let Bucketed { buckets, unknown } = self.read_edges(&scan, &relabel, (types.as_ref(), reverse), &budget)?;
        let mut all_files: Vec<(usize, NodeFiles)> = gathered(self.crew, &node_files)?.into_iter().flatten().collect();
        all_files.sort_by_key(|(part, _)| *part);
        let all_files: Vec<NodeFiles> = all_files.into_iter().map(|(_, files)| files).collect();
        let topologies = self.write_edges(&relabel, buckets, &columns, &all_files, &budget)?;

        // From here on every process knows everything.
        let mut all: Vec<(usize, NodeFiles, TopologyFile)> = gathered(
            self.crew,
            &node_files
                .into_iter()
                .zip(topologies)
                .map(|((part, nodes), topology)| (part, nodes, topology))
                .collect::<Vec<_>>(),
        )?
        .into_iter()
        .flatten()
        .collect();
        all.sort_by_key(|(part, ..)| *part);
        let left_out: u64 = gathered(self.crew, &unknown)?.into_iter().sum();
        let unknown = cleaning.unknown.unwrap_or(left_out);
        cleaning.counts.edges_dropped = left_out - unknown;
        let peak_rss = gathered(self.crew, &quality::peak_rss())?.into_iter().max().unwrap_or(0);
        if let Some(twice) = all.iter().filter_map(|(.., topology)| topology.twice).min() {
            return Err(self.duplicate(twice, &scan, &relabel)?);
        }
        let unknown = Unknown { dropped: unknown, cleaning: cleaning.counts };
        let manifest = self.manifest(wanted, &scan, &relabel, columns, &all, unknown);
        let topologies = all.into_iter().map(|(.., topology)| topology).collect();
        Ok(Made { manifest, partitioning, topologies, peak_rss })
    }

    /// Creates and drops nodes as the settings say. Besides what became of them: the pairs of all nodes, where they have been
    /// written and some nodes dropped.
    fn clean(&self, scan: &mut Scan) -> Result<(Cleaned, Option<Pairs>)> {
        let Self { crew, source, edges, scratch, journal, progress, settings, .. } = self;
        let mut created = 0;
        if source.unknown_nodes == UnknownNodes::Create {
            let memory = settings.memory.saturating_sub(scan.ids.bytes()) / 4;
            created = clean::create(*crew, edges, &mut scan.ids, scratch, journal, memory, *progress)?;
            scan.created(created);
        }
        let mut cleaned = Cleaned::default();
        let mut pairs = None;
        if source.drops_nodes() {
            let nodes = scan.ids.len();
            let budget = self.budget(scan, clean::state_bytes(nodes as u64, source))?;
            let stream = self.stream(scan, &[], None);
            let before: Option<Cleaned> = journal.agreed(CLEANING)?;
            let kept = if before.is_some() { stream.kept(ALIVE)? } else { None };
            let alive = match (before, kept.and_then(|bytes| Alive::from_bytes(&bytes, nodes))) {
                (Some(before), Some(alive)) => {
                    cleaned = before;
                    alive
                }
                _ => {
                    let (alive, counts) = clean::filter(&stream, source, budget.partitioner / 4)?;
                    cleaned = Cleaned { counts, unknown: Some(stream.unknown_rows()?) };
                    stream.keep(ALIVE, alive.bytes())?;
                    // Told to all before anybody notes it: a journal without the bytes would be of no use.
                    crew.broadcast(Vec::new())?;
                    journal.finish(CLEANING, &cleaned)?;
                    alive
                }
            };
            pairs = stream.pairs.into_inner();
            if alive.count() < nodes as u64 {
                scan.keep(&alive, &self.nodes)?;
            }
        }
        cleaned.counts.nodes_created = created;
        scan.draw();
        Ok((cleaned, pairs))
    }

    /// The edges as partitioners and filters see them; `pairs` when they have been written, before nodes were dropped or none.
    fn stream<'b>(&'b self, scan: &'b Scan, types: &'b [u16], pairs: Option<Pairs>) -> DumpStream<'b, C> {
        let (there, written) = if scan.ids.has_dropped() { (None, pairs) } else { (pairs, None) };
        DumpStream {
            crew: self.crew,
            edges: &self.edges,
            ids: &scan.ids,
            splits: &scan.splits,
            types,
            undirected: self.source.both_ways(),
            unknown: self.source.unknown_nodes,
            scratch: self.scratch,
            journal: &self.journal,
            progress: self.progress,
            pairs: there.map(OnceCell::from).unwrap_or_default(),
            written: Cell::new(written),
        }
    }

    /// What is left of the memory beside what is held of every node, and `state`, which is held for some time.
    fn budget(&self, scan: &Scan, state: u64) -> Result<Budget> {
        let n = scan.ids.len() as u64;
        let types = if self.settings.balance.types.is_some() { 2 * n } else { 0 };
        let nodes = scan.ids.bytes() + 5 * n + n / 8 + types;
        let needed = nodes + state;
        if needed > self.settings.memory {
            return Err(Error::Budget { nodes: n, needed, memory: self.settings.memory });
        }
        let rest = self.settings.memory - nodes;
        // What depends on this machine's threads must not decide what a partitioner does.
        let reserve = |wanted: u64| wanted.min(rest / 2);
        let reader = READER + self.nodes.read_ahead().max(self.edges.read_ahead());
        let readers = PROGRAM + rayon::current_num_threads() as u64 * reader;
        Ok(Budget { partitioner: rest - reserve(PROGRAM + 4 * READER), buffers: rest - reserve(readers) })
    }

    fn goal(&self, memory: u64) -> Goal {
        let PrepareSettings { parts, seed, balance, .. } = *self.settings;
        Goal { parts, seed, memory, balance }
    }

    fn assign(&self, scan: &Scan, budget: &Budget, pairs: Option<Pairs>) -> Result<(Relabel, Partitioning)> {
        let Self { partitioner, settings, progress, .. } = self;
        let n = scan.ids.len() as u64;
        let types = self.node_types(scan)?;
        let stream = self.stream(scan, &types, pairs);
        let before: Option<Partitioning> = self.journal.agreed(ASSIGNMENT)?;
        let kept = if before.is_some() { stream.kept(ASSIGNMENT)? } else { None };
        if let (Some(partitioning), Some(bytes)) = (before, kept) {
            let stored = Assignment::Stored(collect(&bytes));
            return Ok((Relabel::new(&stored, n, settings.parts, *partitioner)?, partitioning));
        }
        let (began, watch) = (Instant::now(), quality::PeakWatch::start());
        if scan.ids.has_dropped() {
            stream.pairs()?;
        }
        progress.stage("partitioning", None, "");
        let assignment = partitioner.assign(&stream, &self.goal(budget.partitioner))?;
        progress.done();
        let partitioning = Partitioning { seconds: began.elapsed().as_secs_f64(), bytes: watch.grown() };
        let relabel = Relabel::new(&assignment, n, settings.parts, *partitioner)?;
        if let Assignment::Stored(parts) = &assignment {
            stream.keep(ASSIGNMENT, bytemuck::cast_slice(parts))?;
            // Told to all before anybody notes it: a journal without the bytes would be of no use.
            self.crew.broadcast(Vec::new())?;
            self.journal.finish(ASSIGNMENT, &partitioning)?;
        }
        Ok((relabel, partitioning))
    }

    /// The nodes' types, where parts are to be balanced by them.
    fn node_types(&self, scan: &Scan) -> Result<Vec<u16>> {
        let (Some(info), Some(_)) = (&scan.types, self.settings.balance.types) else { return Ok(Vec::new()) };
        let mut all = Vec::with_capacity(scan.ids.len());
        self.nodes.for_each_without_features(Ok, |chunk| {
            let codes = match chunk.types {
                Some(Types::Code(codes)) => codes,
                Some(Types::Name(names)) => {
                    scan::ranks(&names, &info.names)?.into_iter().map(|rank| rank as u16).collect()
                }
                None => Vec::new(),
            };
            let rows = (chunk.first_row as u32..).zip(codes);
            all.extend(rows.filter(|(row, _)| scan.ids.index_of_row(*row).is_some()).map(|(_, code)| code));
            Ok(())
        })?;
        // Created nodes come last, and are of the first type.
        all.resize(scan.ids.len(), 0);
        Ok(all)
    }

    fn write_nodes(&self, scan: &Scan, relabel: &Relabel, budget: &Budget) -> Result<Vec<(usize, NodeFiles)>> {
        let Self { source, progress, nodes, .. } = self;
        if let Some(files) = self.journal.agreed(NODES)? {
            return Ok(files);
        }
        let scale = Scale::new(self.crew, source.normalize_features, nodes, &scan.ids, *progress)?;
        progress.stage("writing nodes", Some(nodes.rows()), "nodes");
        let pass = NodePass {
            nodes,
            scan,
            relabel,
            scale: &scale,
            dtype: source.feature_dtype,
            dir: self.dir,
            memory: budget.buffers,
        };
        let files = pass.run(self.crew, |rows| progress.advance(rows))?;
        progress.done();
        self.journal.finish(NODES, &files)?;
        Ok(files)
    }

    /// The edges' types as the dump has them.
    fn edge_types(&self) -> Result<Option<TypeInfo>> {
        if self.source.columns.edge_type.is_none() {
            return Ok(None);
        }
        let types = match self.journal.agreed(TYPES)? {
            Some(types) => types,
            None => {
                let types = edge_types(self.crew, &self.edges, self.progress)?;
                self.journal.finish(TYPES, &types)?;
                types
            }
        };
        Ok(Some(types))
    }

    /// Bytes of a bucket that is sorted in one piece: sorting takes up to three times as much, in every thread at once.
    fn target(&self, budget: &Budget) -> u64 {
        (budget.buffers / (4 * rayon::current_num_threads() as u64)).max(SMALLEST_BUCKET)
    }

    fn read_edges(
        &self,
        scan: &Scan,
        relabel: &Relabel,
        (types, reverse): (Option<&TypeInfo>, Option<u16>),
        budget: &Budget,
    ) -> Result<Bucketed> {
        let Self { source, edges, progress, .. } = self;
        if let Some((left, unknown)) = self.journal.agreed::<(Vec<(u32, u32, u64)>, u64)>(EDGES)? {
            let buckets = left.into_iter().map(|bucket| Bucket::left(bucket, self.scratch)).collect();
            return Ok(Bucketed { buckets, unknown });
        }
        let record = Record::new(source, edges.feature_width());
        let bytes = edges.rows() * (1 + u64::from(source.both_ways())) * record.stride as u64;
        // Enough that none is too large, and that every thread has some.
        let for_threads = (bytes >> 20).min(8 * rayon::current_num_threads() as u64);
        let wanted = (2 * bytes).div_ceil(self.target(budget)).max(for_threads).max(1);
        let spool = Spool::new(Cuts::new(&relabel.book, wanted), budget.buffers / 4, self.scratch);
        progress.stage("sorting edges into buckets", Some(edges.rows()), "edges");
        let pass = EdgePass { source, edges, ids: &scan.ids, relabel, record, types, reverse };
        let bucketed = pass.run(self.crew, spool, |rows| progress.advance(rows))?;
        progress.done();
        let left: Option<Vec<_>> = bucketed.buckets.iter().map(Bucket::on_disk).collect();
        if let Some(left) = left {
            self.journal.finish(EDGES, &(left, bucketed.unknown))?;
        }
        Ok(bucketed)
    }

    /// The topologies of this process's partitions, one after the other.
    fn write_edges(
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
            target: self.target(budget),
            book: &relabel.book,
            halo_features: (self.settings.halo_features && self.nodes.feature_width() > 0).then(|| HaloFeatures {
                files,
                width: self.nodes.feature_width(),
                dtype: source.feature_dtype,
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
            if !self.crew.owns(part) {
                continue;
            }
            let name = format!("topology-{part}");
            let spilled = own.iter().any(|bucket| bucket.file().is_some());
            let rows = own.iter().map(Bucket::bytes).sum::<u64>() / record.stride as u64;
            let file = match self.journal.own(&name)? {
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

    /// The error for the first duplicate.
    fn duplicate(&self, twice: Twice, scan: &Scan, relabel: &Relabel) -> Result<Error> {
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

    fn manifest(
        &self,
        wanted: Fingerprint,
        scan: &Scan,
        relabel: &Relabel,
        edge_columns: EdgeColumns,
        all: &[(usize, NodeFiles, TopologyFile)],
        unknown: Unknown,
    ) -> Manifest {
        let book = &relabel.book;
        let partition = |(part, nodes, topology): &(usize, NodeFiles, TopologyFile)| {
            let range = book.range(*part);
            PartitionInfo {
                nodes: range.end - range.start,
                edges: topology.edges,
                train: nodes.train,
                topology: topology.file,
                halo: Some(topology.halo_file),
                halo_nodes: topology.halo.iter().sum(),
                node_columns: nodes.nodes,
                features: nodes.features,
            }
        };
        let sum = |what: fn(&TopologyFile) -> u64| all.iter().map(|(.., topology)| what(topology)).sum::<u64>();
        Manifest {
            format: FORMAT.into(),
            schema: SCHEMA_VERSION,
            fingerprint: wanted.digest,
            settings: wanted.settings,
            inputs: wanted.inputs,
            nodes: book.nodes(),
            edges: sum(|part| part.edges),
            edge_rows: self.edges.rows(),
            duplicates_dropped: if self.source.duplicates == Duplicates::Drop { sum(|part| part.dropped) } else { 0 },
            unknown_dropped: unknown.dropped,
            cleaning: unknown.cleaning,
            self_loops: sum(|part| part.loops),
            undirected: self.source.undirected,
            offsets: book.offsets().to_vec(),
            method: self.partitioner.name().to_string(),
            ids: self.nodes.id_kind(),
            halo_features: self.settings.halo_features && self.nodes.feature_width() > 0,
            features: FeatureInfo {
                dim: self.nodes.feature_width(),
                dtype: self.source.feature_dtype,
                normalize: self.source.normalize_features,
            },
            labels: scan.labels.as_ref().map(|(info, _)| info.clone()),
            splits: scan.splits_counted(),
            node_types: scan.types.clone(),
            edge_columns,
            partitions: all.iter().map(partition).collect(),
            updates: Vec::new(),
        }
    }

    /// Writes report and manifest, and moves the dataset into place.
    fn publish(&self, growing: Growing, made: &Made, began: Instant) -> Result<()> {
        std::fs::remove_dir_all(self.scratch).map_err(Error::io(self.scratch, "remove"))?;
        let quality = Quality {
            seconds: began.elapsed().as_secs_f64(),
            partition_seconds: made.partitioning.seconds,
            partition_bytes: made.partitioning.bytes,
            peak_rss_bytes: made.peak_rss,
            processes: self.crew.size(),
            passes: self.progress.records(),
            ..Quality::of(&made.manifest, &made.topologies)
        };
        let json = |value: serde_json::Result<String>| value.map_err(|e| Error::Bug(e.to_string()));
        let report = json(serde_json::to_string_pretty(&quality))?;
        folder::write_file(&growing.path().join(Quality::FILE), report.as_bytes())?;
        // The manifest last: a folder without it is no dataset.
        let text = json(serde_json::to_string_pretty(&made.manifest))?;
        folder::write_file(&growing.path().join(Manifest::FILE), text.as_bytes())?;
        growing.publish()
    }
}

/// Removes the buckets of the destinations `core`, and the pieces that they were split into.
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
