//! The memory that a preparation needs, pass by pass. A budget below it is refused.
//!
//! ```text
//! reading        splits, types, rows of remaining nodes    + reading threads
//! partitioning   the same                                  + the partitioner, and threads that read pairs
//! writing        splits, global ids, halo bits             + reading threads or write buffers, and buckets
//! ```
//!
//! The program and the dictionary of ids exist in all passes.

use crate::dataset::IdKind;
use crate::dump::{EdgeReader, NodeReader};
use crate::partitioner::{Goal, GraphSize, Partitioner};
use crate::prepare::{PrepareSettings, clean};
use crate::source::GraphSource;

/// Sockets, threads and messages of several processes.
const MESSAGES: u64 = 16 << 20;
/// Memory of a reading thread: pages of Parquet files, and chunks that wait for their consumer.
const READER: u64 = 8 << 20;
/// Additional memory of a reading thread, and of the dictionary, for ids that are strings.
const STRINGS: u64 = 4 << 20;
/// Memory of a thread that reads pairs: four slices as words and as pairs.
const PAIR_READER: u64 = 2 << 20;
/// Write buffers of a topology, and those of each further column.
const TOPOLOGY: u64 = 4 << 20;
const COLUMN: u64 = 6 << 20;
/// Smallest write buffers of the columns of a partition's nodes.
const NODE_COLUMNS: u64 = 7 * (4 << 10);
/// Smallest memory for buckets of edges.
const BUCKETS: u64 = 8 << 20;
/// Smallest memory for the dictionary of ids, which may be on disk.
const DICTIONARY: u64 = 6 << 20;
/// Of the planned memory of a partitioner, the part that is taken for the rest of the process. Results depend on it.
const UNPLANNED: u64 = 112 << 20;

/// The inputs of a preparation that decide its memory.
pub(in crate::prepare) struct Needs<'a> {
    settings: &'a PrepareSettings,
    partitioner: &'a dyn Partitioner,
    source: &'a GraphSource,
    processes: u64,
    threads: u64,
    /// Bytes that a reading thread prefetches.
    read_ahead: u64,
    /// Columns of edges beside their ends.
    columns: u64,
    /// [`STRINGS`] if ids are strings, else 0.
    strings: u64,
}

/// Returns the bytes of the arrays over all nodes that exist while files are written, ids excluded: global id, split, a bit for halos.
fn held(nodes: u64) -> u64 {
    5 * nodes + nodes / 8
}

impl<'a> Needs<'a> {
    pub(in crate::prepare) fn new(
        (nodes, edges): (&NodeReader, &EdgeReader),
        (source, settings): (&'a GraphSource, &'a PrepareSettings),
        partitioner: &'a dyn Partitioner,
        processes: usize,
    ) -> Self {
        Self {
            settings,
            partitioner,
            source,
            processes: processes as u64,
            threads: rayon::current_num_threads() as u64,
            read_ahead: nodes.read_ahead().max(edges.read_ahead()),
            columns: edges.other_columns() as u64,
            strings: if nodes.id_kind() == IdKind::Text { STRINGS } else { 0 },
        }
    }

    /// Returns `bytes`, the size of a buffer; 0 if the budget is for data only ([`PrepareSettings::program`] is `None`).
    fn fixed(&self, bytes: u64) -> u64 {
        self.settings.program.map_or(0, |_| bytes)
    }

    /// Bytes of the program without a graph, and of messages between processes.
    pub(super) fn program(&self) -> u64 {
        let messages = if self.processes > 1 { MESSAGES } else { 0 };
        self.settings.program.map_or(0, |program| program + messages)
    }

    /// Bytes of the reading threads.
    fn readers(&self) -> u64 {
        self.fixed(self.threads * (READER + self.strings + self.read_ahead))
    }

    /// Smallest bytes of the dictionary.
    fn dictionary(&self) -> u64 {
        self.fixed(DICTIONARY + self.strings)
    }

    /// Bytes of the threads that read pairs.
    pub(super) fn pair_readers(&self) -> u64 {
        self.fixed(self.threads * PAIR_READER)
    }

    /// Bytes of reading threads or write buffers while files are written.
    pub(super) fn writers(&self) -> u64 {
        let nodes = u64::from(self.settings.parts) * NODE_COLUMNS;
        self.fixed((self.readers() + nodes).max(TOPOLOGY + self.columns * COLUMN))
    }

    /// Bytes per node before files are written: splits, and types if parts are balanced by them.
    fn known(&self, nodes: u64) -> u64 {
        nodes + if self.settings.balance_types() { 2 * nodes } else { 0 }
    }

    /// Returns the goal of the partitioner, with at most `limit` bytes for it. `index` are the bytes of the rows' indexes.
    pub(super) fn goal(&self, nodes: u64, index: u64, limit: u64) -> Goal {
        let PrepareSettings { parts, seed, balance, method_memory, .. } = *self.settings;
        let types = if self.settings.balance_types() { 2 * nodes } else { 0 };
        let rest = method_memory.saturating_sub(held(nodes) + types + index);
        Goal { parts, seed, memory: rest - UNPLANNED.min(rest / 2), limit, balance }
    }

    /// Bytes that the partitioner may use of the budget, beside a dictionary of `dictionary` bytes.
    pub(super) fn partitioner_limit(&self, nodes: u64, index: u64, dictionary: u64) -> u64 {
        let others = self.program() + self.known(nodes) + index + dictionary + self.pair_readers();
        self.settings.memory.saturating_sub(others)
    }

    /// Bytes for buckets and buffers while files are written, beside a dictionary of `dictionary` bytes.
    pub(super) fn buffers(&self, nodes: u64, index: u64, dictionary: u64) -> u64 {
        let rest = self.settings.memory.saturating_sub(self.program() + held(nodes) + index + dictionary);
        match self.settings.program {
            Some(_) => rest.saturating_sub(self.writers()),
            None => rest - rest / 2,
        }
    }

    /// Returns the bytes that a preparation needs at least.
    pub(super) fn least(&self, nodes: u64, edges: u64, index: u64) -> u64 {
        let writing = held(nodes) + index + self.writers() + self.fixed(BUCKETS);
        self.with(nodes, edges, index, 0, writing) + self.dictionary()
    }

    /// Returns the bytes of a preparation whose buffers take as much as is useful, with `records` bytes of edges.
    pub(in crate::prepare) fn largest(&self, nodes: u64, edges: u64, records: u64) -> u64 {
        let index = if self.source.drops_nodes() { 4 * nodes } else { 0 };
        let dictionary = self.dictionary_limit(nodes, edges, index).min(40 * nodes);
        let buffers = (3 * records).min(self.buffers(nodes, index, dictionary));
        let limit = self.partitioner_limit(nodes, index, dictionary);
        let writing = held(nodes) + index + self.writers() + buffers;
        self.with(nodes, edges, index, limit, writing) + dictionary
    }

    /// Returns the largest pass, with `limit` for the partitioner and `writing` bytes while files are written.
    fn with(&self, nodes: u64, edges: u64, index: u64, limit: u64, writing: u64) -> u64 {
        let reading = self.known(nodes) + index + self.readers();
        let partitioning = self.partitioning(nodes, edges, index, limit);
        // The parts of all nodes become global ids.
        let numbering = 5 * nodes + index + self.fixed(2 * nodes);
        self.program() + reading.max(partitioning).max(numbering).max(writing)
    }

    /// Returns the bytes of the partitioner with at most `limit` for it, and those beside it but the program's.
    fn partitioning(&self, nodes: u64, edges: u64, index: u64, limit: u64) -> u64 {
        let size = GraphSize { nodes, edges, processes: self.processes };
        let method = self.partitioner.needed_bytes(size, &self.goal(nodes, index, limit));
        self.known(nodes) + index + method + self.pair_readers()
    }

    /// Returns whether a smaller [`PrepareSettings::method_memory`] would lower [`Needs::least`].
    pub(super) fn method_decides(&self, nodes: u64, edges: u64, index: u64) -> bool {
        let method = self.program() + self.partitioning(nodes, edges, index, 0) + self.dictionary();
        self.partitioner.memory_decides() && self.least(nodes, edges, index) == method
    }

    /// Returns the bytes that filters need.
    pub(super) fn cleaning(&self, nodes: u64) -> u64 {
        let filters = clean::state_bytes(nodes, self.source);
        self.program() + self.known(nodes) + filters + self.readers() + self.dictionary()
    }

    /// Returns the maximum bytes of memory of the dictionary: a quarter of the budget, if that leaves enough for all passes.
    pub(super) fn dictionary_limit(&self, nodes: u64, edges: u64, index: u64) -> u64 {
        let memory = self.settings.memory;
        let needed = self.least(nodes, edges, index).max(self.cleaning(nodes));
        let spare = memory.saturating_sub(needed) + self.dictionary();
        (memory.saturating_sub(self.program()) / 4).min(spare)
    }
}
