//! The entry points of sampling: one owner's samples of a hop, and a whole hop on a local topology.

use gnnflow_data::rng::Key;

use super::columns::{Columns, EdgeValues};
use super::loops::{Work, run, run_strategy};
use super::samples::Samples;
use super::{Fanout, Neighbors, Strategy};
use crate::block::Block;
use crate::compact::Compactor;

/// Samples in-neighbors of `nodes` for a requester.
///
/// Appends the number of samples per node to `counts`, and the neighbors' global ids to `out`, node by node. `key` is
/// the key of the requesting batch's hop.
///
/// # Panics
/// If the topology does not hold one of `nodes`.
pub fn sample_neighbors(
    topology: &impl Neighbors,
    nodes: &[u32],
    fanout: Fanout,
    key: Key,
    counts: &mut Vec<u32>,
    out: &mut Vec<u32>,
) {
    counts.reserve(nodes.len());
    let mut before = out.len();
    let mut request = Request { nodes, trees: None };
    run(topology, fanout, key, out, &mut request, &mut (), |end| {
        counts.push((end - before) as u32);
        before = end;
    });
}

/// Samples in-neighbors of every node of `list` and returns the hop's block. Appends newly found nodes to `list` in
/// order of first appearance.
///
/// `compactor` must have been [started](Compactor::start) with the batch's seeds, and used for its earlier hops. `key`
/// is the hop's key.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::compact::Compactor;
/// use gnnflow_kernels::sample::{Csc, Fanout, sample_hop};
///
/// // The path 0 → 1 → 2: node 1 has an in-edge from 0, node 2 from 1.
/// let topology = Csc::new(&[0, 0, 1, 2], &[0, 1]);
/// let mut compactor = Compactor::new(3);
/// let mut list = vec![2];
/// compactor.start(&list);
/// let batch = Key::new(1, Purpose::Sample).fold(0).fold(0).fold(0);
/// let first = sample_hop(&topology, &mut list, Fanout::Uniform { k: 5 }, batch.fold(0), &mut compactor);
/// let second = sample_hop(&topology, &mut list, Fanout::Uniform { k: 5 }, batch.fold(1), &mut compactor);
/// assert_eq!(list, [2, 1, 0]);
/// assert_eq!((first.num_dst(), first.num_src()), (1, 2));
/// assert_eq!((second.num_dst(), second.neighbors(0), second.neighbors(1)), (2, &[1][..], &[2][..]));
/// ```
///
/// # Panics
/// If the topology does not hold a node of `list`, or `compactor` belongs to another list.
pub fn sample_hop(
    topology: &impl Neighbors,
    list: &mut Vec<u32>,
    fanout: Fanout,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    let (num_dst, mut indices, mut indptr) = (list.len(), Vec::new(), new_indptr(list.len()));
    let mut work = GrowingList { num_dst, list, compactor };
    run(topology, fanout, key, &mut indices, &mut work, &mut (), |end| indptr.push(edge_count(end)));
    new_block(num_dst, list.len(), indptr, indices)
}

/// Samples in-neighbors of `nodes` by any strategy. Appends them to `samples`, with the columns of `samples`. A
/// [temporal](Strategy::is_temporal) strategy needs `trees`.
///
/// # Panics
/// If the topology does not hold one of `nodes` or lacks a column that the strategy or `samples` needs. If columns are
/// requested from a user's sampler, which returns sources only.
pub fn choose_neighbors(
    topology: &impl Neighbors,
    nodes: &[u32],
    trees: Option<Trees<'_>>,
    strategy: &Strategy,
    key: Key,
    samples: &mut Samples,
) {
    assert_eq!(strategy.is_temporal(), trees.is_some(), "trees are given if and only if the strategy is temporal");
    let Samples { counts, neighbors, values } = samples;
    counts.reserve(nodes.len());
    let mut before = neighbors.len();
    let mut request = Request { nodes, trees };
    let end_of_node = |end| {
        counts.push((end - before) as u32);
        before = end;
    };
    if *values == EdgeValues::default() {
        run_strategy(topology, strategy, key, neighbors, &mut request, &mut (), end_of_node);
    } else {
        run_strategy(topology, strategy, key, neighbors, &mut request, values, end_of_node);
    }
}

/// Like [`sample_hop`], for any [fused](Strategy::is_fused) strategy and with `columns` in the block.
///
/// # Panics
/// As [`sample_hop`] and [`choose_neighbors`].
pub fn choose_hop(
    topology: &impl Neighbors,
    list: &mut Vec<u32>,
    strategy: &Strategy,
    columns: Columns,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    assert!(strategy.is_fused(), "temporal and layer-wise strategies cannot be fused");
    let (num_dst, mut indices, mut indptr) = (list.len(), Vec::new(), new_indptr(list.len()));
    let mut work = GrowingList { num_dst, list, compactor };
    let mut values = EdgeValues::new(columns);
    let end_of_node = |end| indptr.push(edge_count(end));
    if columns.is_empty() {
        run_strategy(topology, strategy, key, &mut indices, &mut work, &mut (), end_of_node);
    } else {
        run_strategy(topology, strategy, key, &mut indices, &mut work, &mut values, end_of_node);
    }
    values.into_block(new_block(num_dst, list.len(), indptr, indices))
}

/// Returns an `indptr` that contains the initial 0 and has capacity for `nodes` ends.
pub(super) fn new_indptr(nodes: usize) -> Vec<u32> {
    let mut indptr = Vec::with_capacity(nodes + 1);
    indptr.push(0);
    indptr
}

/// Converts the end of a node's edges to the type of a block's `indptr`.
#[inline(always)]
pub(super) fn edge_count(edges: usize) -> u32 {
    u32::try_from(edges).expect("a block has at most 2^32 - 1 edges")
}

pub(super) fn new_block(num_dst: usize, num_src: usize, indptr: Vec<u32>, indices: Vec<u32>) -> Block {
    Block::new(num_dst as u32, num_src as u32, indptr, indices)
}

/// The seed whose tree each node belongs to, and the time of that seed.
#[derive(Clone, Copy, Debug)]
pub struct Trees<'a> {
    /// By node: the position of the seed in its batch.
    pub trees: &'a [u32],
    /// By node: the seed's time.
    pub times: &'a [i64],
}

/// The nodes of a request; samples remain global ids.
struct Request<'a> {
    nodes: &'a [u32],
    trees: Option<Trees<'a>>,
}

impl Work for Request<'_> {
    fn len(&self) -> usize {
        self.nodes.len()
    }
    #[inline(always)]
    fn node(&self, i: usize) -> u32 {
        self.nodes[i]
    }
    #[inline(always)]
    fn tree(&self, i: usize) -> Option<(u32, i64)> {
        self.trees.map(|trees| (trees.trees[i], trees.times[i]))
    }
    #[inline(always)]
    fn prefetch(&self, _neighbor: u32) {}
    fn resolve(&mut self, _neighbors: &mut [u32]) {}
}

/// The first `num_dst` nodes of a growing list; samples become positions in it.
struct GrowingList<'a> {
    num_dst: usize,
    list: &'a mut Vec<u32>,
    compactor: &'a mut Compactor,
}

impl Work for GrowingList<'_> {
    fn len(&self) -> usize {
        self.num_dst
    }
    #[inline(always)]
    fn node(&self, i: usize) -> u32 {
        self.list[i]
    }
    #[inline(always)]
    fn prefetch(&self, neighbor: u32) {
        self.compactor.prefetch(neighbor);
    }
    fn resolve(&mut self, neighbors: &mut [u32]) {
        self.compactor.compact(neighbors, self.list);
    }
}
