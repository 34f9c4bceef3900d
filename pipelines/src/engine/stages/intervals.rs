//! Intervals of nodes (Dorylus, section 4), and the preparation of the graph that both row exchanges share.

use std::ops::Range;

use gnnflow_dataflow::ghost::intervals::intervals;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_nn::model::Hop;

use crate::collectives::{Collectives, Driver};
use crate::config::Train;
use crate::context::TRAIN;
use crate::error::Error;
use crate::runtime::job::Job;

/// Nodes per interval by default.
pub(crate) const INTERVAL_NODES: usize = 1 << 15;

/// Names long local work for [`Runtime::busy`](crate::Runtime::busy).
pub(crate) const PREPARING_EDGES: &str = "preparing the edges for full-graph training";

/// An interval of a partition's nodes. Its rows are counted from the worker's first node.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) partition: u32,
    /// The number among the intervals of the partition, from 0.
    pub(crate) number: u32,
    pub(crate) rows: Range<usize>,
    /// Whether it is the last interval of its partition.
    pub(crate) last: bool,
    /// Own rows of its training nodes, ascending.
    pub(crate) seeds: Vec<usize>,
}

/// How a model reads edges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeNeeds {
    /// Whether every node has an edge to itself: attention also weighs a node's own row.
    pub(crate) self_loops: bool,
    /// Number of sums per node: one per edge type in R-GCN, else 1.
    pub(crate) slots: u32,
}

impl EdgeNeeds {
    /// Returns the union of the needs of these hops.
    pub(crate) fn of(hops: &[Hop]) -> Self {
        let slots = hops.iter().map(Hop::slots).max().unwrap_or(1) as u32;
        Self { self_loops: hops.iter().any(Hop::attends), slots }
    }
}

/// Returns the slots of a range of nodes.
pub(crate) fn slots_of(nodes: &Range<u32>, slots: u32) -> Range<u32> {
    nodes.start * slots..nodes.end * slots
}

/// Refuses a graph whose slots exceed 32-bit numbers.
pub(crate) fn check_slots(nodes: u64, slots: u32) -> Result<(), Error> {
    if nodes * u64::from(slots) <= u64::from(u32::MAX) {
        return Ok(());
    }
    let message = format!(
        "{nodes} nodes with {slots} edge types each need more sums than full-graph training supports ({}); use \
         train.schedule = \"mini-batch\"",
        u32::MAX
    );
    Err(Error::Usage(message))
}

/// Cuts the partitions hosted here into `count` intervals each, by default of [`INTERVAL_NODES`] nodes. `own` are the worker's nodes; `is_seed` tells
/// whether a node has a loss.
pub(crate) fn cut(
    graph: &LocalGraph,
    own: &Range<u32>,
    count: Option<usize>,
    is_seed: &dyn Fn(u32) -> bool,
) -> Vec<Interval> {
    let mut cut = Vec::new();
    for part in graph.hosted() {
        let range = graph.range(part);
        let (nodes, first) = (range.len(), (range.start - own.start) as usize);
        let ranges = intervals(nodes.max(1), count.unwrap_or(nodes.div_ceil(INTERVAL_NODES)).max(1));
        let many = ranges.len();
        for (number, range) in ranges.into_iter().enumerate() {
            let rows = first + range.start..first + range.end.min(nodes);
            let seeds = rows.clone().filter(|&row| is_seed(own.start + row as u32)).collect();
            cut.push(Interval { partition: part as u32, number: number as u32, rows, last: number + 1 == many, seeds });
        }
    }
    cut
}

/// Tells whether the examples are edges. Then no node is a seed.
pub(crate) fn learns_edges(job: &Job) -> bool {
    job.config.train.as_ref().is_some_and(Train::learns_edges)
}

/// Returns one bit per node of the graph: whether it is a training node.
pub(crate) fn training_nodes(job: &Job) -> Result<Vec<u64>, Error> {
    let book = job.dataset.book();
    let mut bits = vec![0u64; (book.nodes() as usize).div_ceil(64)];
    for part in 0..book.parts() {
        let first = book.range(part).start as usize;
        for local in job.dataset.nodes(part)?.in_split(TRAIN) {
            let node = first + local as usize;
            bits[node / 64] |= 1 << (node % 64);
        }
    }
    Ok(bits)
}

/// Tells whether the graph has the reverse of every edge, with equal multiplicity. Gradients then follow the same links as activations.
/// Compares the sums of the hashes of all edges in both directions.
pub(crate) fn is_symmetric(
    driver: &mut Driver<'_>,
    job: &Job,
    graph: &LocalGraph,
    collectives: &mut Collectives,
) -> Result<bool, Error> {
    // Of a held-out edge, the reverse may remain in the graph.
    if job.dataset.manifest().undirected && !learns_edges(job) {
        return Ok(true);
    }
    let hash = |from: u32, to: u32| {
        // SplitMix64's finalizer.
        let mut word = (u64::from(from) << 32 | u64::from(to)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let sums = collectives.all_gather_parts(driver, |part| {
        let (edges, first) = (graph.in_edges(part), graph.range(part).start);
        let mut sum = 0u64;
        for (local, bounds) in edges.indptr().windows(2).enumerate() {
            for &source in &edges.indices()[bounds[0] as usize..bounds[1] as usize] {
                let node = first + local as u32;
                sum = sum.wrapping_add(hash(source, node)).wrapping_sub(hash(node, source));
            }
        }
        sum
    })?;
    Ok(sums.into_iter().fold(0u64, u64::wrapping_add) == 0)
}
