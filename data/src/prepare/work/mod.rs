//! The passes of a preparation, in order, and the results that each records for a resumed preparation.

mod budget;
mod needs;
mod passes;
mod publish;

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

pub(super) use needs::Needs;

use super::PrepareSettings;
use super::clean::{self, NodeSet, Search, with_reverse};
use super::edge_scan::Bucketed;
use super::encode_like;
use super::ends::Ends;
use super::fingerprint::{Fingerprint, State, fingerprint, state};
use super::folder::{SCRATCH, StagingFolder, lock, restore_locked};
use super::journal::Journal;
use super::pairs::Pairs;
use super::recorder::Recorder;
use super::scan::{self, Scan};
use super::write_nodes::{NodeFiles, WrittenNodes};
use super::write_topology::TopologyFile;
use crate::dataset::{Cleaning, EdgeColumns, Manifest, SplitCounts, TypeInfo};
use crate::dump::{EdgeReader, NodeReader};
use crate::error::{Error, Result};
use crate::group::{Json, ProcessGroup};
use crate::ids::NodeIds;
use crate::partitioner::{GraphStream, Partitioner};
use crate::process_memory;
use crate::progress::Progress;
use crate::source::{GraphSource, SelfLoops, UnknownNodes};

/// Names of passes in the journal.
const CLEANING: &str = "cleaning";
const REMAINING: &str = "nodes that are left";

/// Decision of the first process, sent to the others at the start.
#[derive(Serialize, Deserialize)]
enum Plan {
    /// The dataset is current.
    Current,
    /// The dataset must be prepared, with this memory budget and memory of the program in each process. All use those of the first process,
    /// because they decide on passes that all take part in.
    Make(Fingerprint, u64, Option<u64>),
}

/// Prepares the dataset unless it is current.
pub(super) fn run<C: ProcessGroup>(
    processes: &C,
    source: &GraphSource,
    partitioner: &dyn Partitioner,
    settings: &PrepareSettings,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let began = Instant::now();
    // Opens the inputs first, so that most errors appear before a folder is created or waited for.
    let nodes = NodeReader::open(source)?;
    let edges = EdgeReader::open(source, Some(nodes.id_kind()))?;
    encode_like::check(source, &nodes, &edges)?;
    let first = processes.rank() == 0;
    let wanted = first.then(|| fingerprint(source, partitioner, settings)).transpose()?;
    // A dataset appears whole, so this needs no lock, for which all processes of a run on this machine would wait.
    let is_current = |wanted: &Fingerprint| matches!(state(&settings.out, wanted), Ok(State::Current(_)));
    let is_current = wanted.as_ref().is_some_and(is_current);
    let _lock = (first && !is_current).then(|| lock(&settings.out, progress)).transpose()?;
    let plan = match wanted {
        None => None,
        Some(_) if is_current => Some(Json(Plan::Current)),
        Some(wanted) => {
            restore_locked(&settings.out)?;
            match state(&settings.out, &wanted)? {
                State::Current(_) => Some(Json(Plan::Current)),
                State::Foreign => return Err(Error::Occupied { path: settings.out.clone() }),
                State::Updated => return Err(Error::Updated { path: settings.out.clone() }),
                state => {
                    if let State::Stale(reason) = state {
                        progress.note(&format!("{}: this dataset is replaced; {reason}", settings.out.display()));
                    }
                    Some(Json(Plan::Make(wanted, settings.memory, settings.program)))
                }
            }
        }
    };
    let (wanted, memory, program) = match processes.broadcast(plan)?.0 {
        Plan::Current => return Manifest::read(&settings.out),
        Plan::Make(wanted, memory, program) => (wanted, memory, program),
    };
    let settings = &PrepareSettings { memory, program, ..settings.clone() };
    let needs = Needs::new((&nodes, &edges), (source, settings), partitioner, processes.size());
    raise_file_limit(settings.parts);
    let key = format!("{} {} processes {}", wanted.digest, processes.size(), boot_id());
    let staging = first.then(|| StagingFolder::create(&settings.out, &key)).transpose()?;
    processes.barrier()?;
    let dir = StagingFolder::path_for(&settings.out)?;
    let scratch = dir.join(SCRATCH);
    let journal = Journal::open(processes, &scratch)?;
    let progress = Recorder::new(progress);
    let preparation = Preparation {
        processes,
        source,
        partitioner,
        settings,
        progress: &progress,
        nodes,
        edges,
        needs,
        dir: &dir,
        scratch: &scratch,
        journal,
    };
    let prepared = preparation.run(wanted)?;
    if let Some(staging) = staging {
        preparation.publish(staging, &prepared, began)?;
    }
    processes.barrier()?;
    Ok(prepared.manifest)
}

/// Returns an id of this boot_id of the machine. Files that were not synced may be lost at a reboot.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

struct Preparation<'a, C> {
    processes: &'a C,
    source: &'a GraphSource,
    partitioner: &'a dyn Partitioner,
    settings: &'a PrepareSettings,
    progress: &'a Recorder<'a>,
    nodes: NodeReader,
    edges: EdgeReader,
    needs: Needs<'a>,
    dir: &'a Path,
    scratch: &'a Path,
    journal: Journal,
}

/// The prepared dataset without the report.
struct Prepared {
    manifest: Manifest,
    partitioning: Partitioning,
    topologies: Vec<TopologyFile>,
    peak_rss: u64,
}

/// Cost of partitioning.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Partitioning {
    seconds: f64,
    bytes: u64,
}

/// Result of cleaning.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Cleaned {
    counts: Cleaning,
    /// Number of rows with unknown nodes, if nodes may have been dropped; later passes cannot determine it.
    unknown: Option<u64>,
}

/// Counts of dropped edges, and of created and dropped nodes.
struct DropCounts {
    dropped: u64,
    cleaning: Cleaning,
}

impl<C: ProcessGroup> Preparation<'_, C> {
    fn run(&self, wanted: Fingerprint) -> Result<Prepared> {
        let nodes = self.nodes.rows();
        self.check_dump()?;
        let ids = NodeIds::new(nodes as usize, self.dictionary_limit(nodes), self.scratch);
        let mut scan = scan::scan(&self.nodes, ids, self.source, self.progress)?;
        let created = self.create(&mut scan)?;
        let unknown = self.source.unknown_nodes;
        let scratch_and_journal = (self.scratch, &self.journal);
        let ends = Ends::look_up(self.processes, &self.edges, &scan.ids, unknown, scratch_and_journal, self.progress)?;
        let ends = ends.as_ref();
        let (mut cleaning, pairs) = self.clean(&mut scan, ends)?;
        cleaning.counts.nodes_created = created;
        let budget = self.budget(&scan);
        let (relabel, partitioning, pairs) = self.assign(&scan, ends, &budget, pairs)?;
        let WrittenNodes { files: node_files, scales } = self.write_nodes(&scan, &relabel, &budget)?;
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
            feature_columns: self.edges.feature_columns().columns,
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

        // From here on, every process has all results.
        let own = node_files.into_iter().zip(topologies).map(|((part, nodes), topology)| (part, nodes, topology));
        let own: Vec<(usize, NodeFiles, TopologyFile)> = own.collect();
        let all = self.processes.all_gather(Json(own))?;
        let mut all: Vec<_> = all.into_iter().flat_map(|Json(files)| files).collect();
        all.sort_by_key(|(part, ..)| *part);
        let left_out: u64 = self.processes.all_gather(vec![unknown])?.into_iter().flatten().sum();
        let unknown = cleaning.unknown.unwrap_or(left_out);
        cleaning.counts.edges_dropped = left_out - unknown;
        let peak_rss =
            self.processes.all_gather(vec![process_memory::peak()])?.into_iter().flatten().max().unwrap_or(0);
        if let Some(first_duplicate) = all.iter().filter_map(|(.., topology)| topology.first_duplicate).min() {
            return Err(self.duplicate(first_duplicate, &scan, &relabel)?);
        }
        let unknown = DropCounts { dropped: unknown, cleaning: cleaning.counts };
        let manifest = self.manifest(wanted, &scan, &relabel, (columns, scales), &all, unknown);
        let topologies = all.into_iter().map(|(.., topology)| topology).collect();
        Ok(Prepared { manifest, partitioning, topologies, peak_rss })
    }

    /// Creates nodes for ids that only edges name, if the settings request it. Returns their number.
    fn create(&self, scan: &mut Scan) -> Result<u64> {
        let Self { processes, source, edges, scratch, journal, progress, needs, .. } = self;
        if source.unknown_nodes != UnknownNodes::Create {
            return Ok(0);
        }
        let memory = needs.partitioner_limit(scan.ids.rows() as u64, 0, scan.ids.dictionary_bytes()) / 4;
        let search = Search { processes: *processes, edges, scratch, journal, memory, progress: *progress };
        let created = clean::create(&search, &mut scan.ids, |nodes| self.dictionary_limit(nodes))?;
        let count = created.count();
        scan.add(created);
        Ok(count)
    }

    /// Drops nodes according to the settings. Returns the counts and, if some nodes were dropped, the pairs of all nodes if they were
    /// written.
    fn clean(&self, scan: &mut Scan, ends: Option<&Ends>) -> Result<(Cleaned, Option<Pairs>)> {
        let Self { processes, source, journal, .. } = self;
        let mut cleaned = Cleaned::default();
        let mut pairs = None;
        if source.drops_nodes() {
            let nodes = scan.ids.len();
            self.check_cleaning(nodes as u64)?;
            let budget = self.budget(scan);
            let stream = self.stream(scan, ends, &[], None);
            let before: Option<Cleaned> = journal.completed(CLEANING)?;
            let stored = if before.is_some() { stream.load(REMAINING)? } else { None };
            let remaining = match (before, stored.and_then(|bytes| NodeSet::from_bytes(&bytes, nodes))) {
                (Some(before), Some(remaining)) => {
                    cleaned = before;
                    remaining
                }
                _ => {
                    let (remaining, counts) = clean::filter(&stream, source, budget.partitioner / 4)?;
                    cleaned = Cleaned { counts, unknown: Some(stream.unknown_rows()?) };
                    stream.save(REMAINING, remaining.bytes())?;
                    // All processes wait until the bytes are stored. Only then may a journal record the pass.
                    processes.barrier()?;
                    journal.finish(CLEANING, &cleaned)?;
                    remaining
                }
            };
            pairs = stream.pairs.into_inner();
            if remaining.count() < nodes as u64 {
                scan.retain(&remaining, &self.nodes)?;
            }
        }
        scan.draw();
        Ok((cleaned, pairs))
    }
}

/// Adds a type for added self-loops.
fn with_loop_type(types: TypeInfo) -> TypeInfo {
    let mut names = types.names;
    if names.is_empty() {
        names = (0..types.count).map(|code| code.to_string()).collect();
    }
    names.push("self-loop".into());
    TypeInfo { count: types.count + 1, names }
}

/// Raises the limit on open files as far as possible, because the node files of all partitions are open concurrently.
fn raise_file_limit(parts: u32) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = 2 * u64::from(parts) + 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < wanted) {
        let limit = maximum.map_or(wanted, |maximum| maximum.min(wanted));
        // After a failure, opening a file returns an error.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum });
    }
}
