//! The passes of a preparation, in their order, and what each of them leaves for a next try.

mod budget;
mod passes;
mod publish;

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub(super) use budget::held;
use publish::Unknown;

use super::PrepareSettings;
use super::clean::{self, Alive, Search, with_reverse};
use super::edge_pass::Bucketed;
use super::ends::Ends;
use super::fingerprint::{Fingerprint, State, fingerprint, state};
use super::folder::{Growing, Lock, SCRATCH};
use super::journal::Journal;
use super::pairs::Pairs;
use super::quality;
use super::recorder::Recorder;
use super::scan::{self, Scan};
use super::write_nodes::NodeFiles;
use super::write_topology::TopologyFile;
use crate::dataset::{Cleaning, EdgeColumns, Manifest, SplitCounts, TypeInfo};
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::group::{Json, ProcessGroup};
use crate::ids::NodeIds;
use crate::partitioner::{GraphStream, Partitioner};
use crate::progress::Progress;
use crate::source::{GraphSource, SelfLoops, UnknownNodes};

/// Names of passes in the journal.
const CLEANING: &str = "cleaning";
const ALIVE: &str = "nodes that are left";

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
pub(super) fn run<C: ProcessGroup>(
    processes: &C,
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let began = Instant::now();
    // What can be found wrong without reading much is said before a folder is made or waited for.
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    let first = processes.rank() == 0;
    let _lock = first.then(|| Lock::take(&settings.out, progress)).transpose()?;
    let plan = if first {
        let wanted = fingerprint(source, partitioner, settings)?;
        match state(&settings.out, &wanted)? {
            State::Current(_) => Some(Json(Plan::Current)),
            State::Foreign => return Err(Error::Occupied { path: settings.out.clone() }),
            State::Missing | State::Stale(_) => Some(Json(Plan::Make(wanted, settings.memory))),
        }
    } else {
        None
    };
    let (wanted, memory) = match processes.broadcast(plan)?.0 {
        Plan::Current => return Manifest::read(&settings.out),
        Plan::Make(wanted, memory) => (wanted, memory),
    };
    let settings = &PrepareSettings { memory, ..settings.clone() };
    more_files(settings.parts);
    let key = format!("{} {} processes {}", wanted.digest, processes.size(), boot());
    let growing = first.then(|| Growing::create(&settings.out, &key)).transpose()?;
    processes.barrier()?;
    let dir = Growing::path_for(&settings.out)?;
    let scratch = dir.join(SCRATCH);
    let journal = Journal::open(processes, &scratch)?;
    let progress = Recorder::new(progress);
    let work = Work {
        processes,
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
    processes.barrier()?;
    Ok(made.manifest)
}

/// Names the run of this machine: files that no flush has seen are lost with it.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

struct Work<'a, C> {
    processes: &'a C,
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

impl<C: ProcessGroup> Work<'_, C> {
    fn run(&self, wanted: Fingerprint) -> Result<Made> {
        let nodes = self.nodes.rows();
        let ids = NodeIds::new(nodes as usize, self.dictionary_limit(nodes), self.scratch);
        let mut scan = scan::scan(&self.nodes, ids, self.source, self.progress)?;
        let created = self.create(&mut scan)?;
        let unknown = self.source.unknown_nodes;
        let beside = (self.scratch, &self.journal);
        let ends = Ends::look_up(self.processes, &self.edges, &scan.ids, unknown, beside, self.progress)?;
        let ends = ends.as_ref();
        let (mut cleaning, pairs) = self.clean(&mut scan, ends)?;
        cleaning.counts.nodes_created = created;
        let goal = self.goal(self.settings.memory);
        let budget = self.budget(&scan, self.partitioner.state_bytes(scan.ids.len() as u64, &goal))?;
        let (relabel, partitioning, pairs) = self.assign(&scan, ends, &budget, pairs)?;
        let node_files = self.write_nodes(&scan, &relabel, &budget)?;
        let types = self.edge_types()?;
        let add = self.source.self_loops == SelfLoops::Add;
        let (all_types, reverse) = match self.source.reverse_edges {
            true => with_reverse(types.clone()).map(|(all, by)| (Some(all), Some(by)))?,
            false => (types.clone(), None),
        };
        let labels = self.edge_labels()?;
        let columns = EdgeColumns {
            weight: self.source.columns.weight.is_some(),
            edge_type: all_types.map(|types| if add { with_loop_type(types) } else { types }),
            time: self.source.columns.time.is_some(),
            features: self.edges.feature_width(),
            split: self.source.columns.edge_split.as_ref().map(|_| SplitCounts::default()),
            label: labels.clone(),
        };
        let Bucketed { buckets, unknown } = self.read_edges(
            (&scan, ends, pairs.as_ref()),
            &relabel,
            (types.as_ref(), reverse, labels.as_ref()),
            &budget,
        )?;
        let all_files = self.processes.all_gather(Json(node_files.clone()))?;
        let mut all_files: Vec<(usize, NodeFiles)> = all_files.into_iter().flat_map(|Json(files)| files).collect();
        all_files.sort_by_key(|(part, _)| *part);
        let all_files: Vec<NodeFiles> = all_files.into_iter().map(|(_, files)| files).collect();
        let topologies = self.write_edges(&relabel, buckets, &columns, &all_files, &budget)?;

        // From here on every process knows everything.
        let own = node_files.into_iter().zip(topologies).map(|((part, nodes), topology)| (part, nodes, topology));
        let own: Vec<(usize, NodeFiles, TopologyFile)> = own.collect();
        let all = self.processes.all_gather(Json(own))?;
        let mut all: Vec<_> = all.into_iter().flat_map(|Json(files)| files).collect();
        all.sort_by_key(|(part, ..)| *part);
        let left_out: u64 = self.processes.all_gather(vec![unknown])?.into_iter().flatten().sum();
        let unknown = cleaning.unknown.unwrap_or(left_out);
        cleaning.counts.edges_dropped = left_out - unknown;
        let peak_rss = self.processes.all_gather(vec![quality::peak_rss()])?.into_iter().flatten().max().unwrap_or(0);
        if let Some(twice) = all.iter().filter_map(|(.., topology)| topology.twice).min() {
            return Err(self.duplicate(twice, &scan, &relabel)?);
        }
        let unknown = Unknown { dropped: unknown, cleaning: cleaning.counts };
        let manifest = self.manifest(wanted, &scan, &relabel, columns, &all, unknown);
        let topologies = all.into_iter().map(|(.., topology)| topology).collect();
        Ok(Made { manifest, partitioning, topologies, peak_rss })
    }

    /// Makes nodes of ids that only edges name, if the settings say so; returns how many.
    fn create(&self, scan: &mut Scan) -> Result<u64> {
        let Self { processes, source, edges, scratch, journal, progress, settings, .. } = self;
        if source.unknown_nodes != UnknownNodes::Create {
            return Ok(0);
        }
        let memory = settings.memory.saturating_sub(scan.ids.dictionary_bytes()) / 4;
        let search = Search { processes: *processes, edges, scratch, journal, memory, progress: *progress };
        let created = clean::create(&search, &mut scan.ids, |nodes| self.dictionary_limit(nodes))?;
        let count = created.count();
        scan.add(created);
        Ok(count)
    }

    /// Drops nodes as the settings say. Besides what became of them: the pairs of all nodes, where they have been written and some
    /// nodes dropped.
    fn clean(&self, scan: &mut Scan, ends: Option<&Ends>) -> Result<(Cleaned, Option<Pairs>)> {
        let Self { processes, source, journal, .. } = self;
        let mut cleaned = Cleaned::default();
        let mut pairs = None;
        if source.drops_nodes() {
            let nodes = scan.ids.len();
            let budget = self.budget(scan, clean::state_bytes(nodes as u64, source))?;
            let stream = self.stream(scan, ends, &[], None);
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
                    processes.barrier()?;
                    journal.finish(CLEANING, &cleaned)?;
                    alive
                }
            };
            pairs = stream.pairs.into_inner();
            if alive.count() < nodes as u64 {
                scan.keep(&alive, &self.nodes)?;
            }
        }
        scan.draw();
        Ok((cleaned, pairs))
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
