//! The part of the graph that one worker holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gnnflow_data::PartitionBook;

use crate::graph::placement::Placement;
use gnnflow_kernels::node_index::NodeIndex;
use gnnflow_kernels::sample::{Csc, EdgeColumns, PartitionView, Partitions};

/// The in-edges of a partition's own nodes, as CSC: `indices[indptr[i]..indptr[i + 1]]` are the in-neighbors of its `i`-th node, as
/// ascending global ids.
pub trait InEdges: Send + Sync {
    /// Returns the bounds of the nodes' in-neighbors: one entry per node and one more, ascending from 0.
    fn indptr(&self) -> &[i64];
    /// Returns the sources of all edges, as global ids.
    fn indices(&self) -> &[u32];
    /// Returns the columns of the edges: weights, types, times and ids, as far as there are any.
    fn columns(&self) -> EdgeColumns<'_> {
        EdgeColumns::default()
    }
}

impl InEdges for gnnflow_data::Topology {
    fn indptr(&self) -> &[i64] {
        self.indptr()
    }
    fn indices(&self) -> &[u32] {
        self.indices()
    }
    fn columns(&self) -> EdgeColumns<'_> {
        EdgeColumns { weights: self.weights(), types: self.edge_types(), times: self.times(), ids: None }
    }
}

impl InEdges for gnnflow_data::Partition {
    fn indptr(&self) -> &[i64] {
        self.topology.indptr()
    }
    fn indices(&self) -> &[u32] {
        self.topology.indices()
    }
    fn columns(&self) -> EdgeColumns<'_> {
        InEdges::columns(&self.topology)
    }
}

/// In-edges in memory, for tests and for graphs that do not come from a prepared dataset.
#[derive(Clone, Debug, Default)]
pub struct OwnedInEdges {
    /// See [`InEdges::indptr`].
    pub indptr: Vec<i64>,
    /// See [`InEdges::indices`].
    pub indices: Vec<u32>,
    /// A weight for each edge.
    pub weights: Option<Vec<f32>>,
    /// A type for each edge.
    pub types: Option<Vec<u16>>,
    /// A time for each edge.
    pub times: Option<Vec<i64>>,
    /// The position of each edge among all edges of the partition, if this is a subset of them.
    pub ids: Option<Vec<u64>>,
}

impl OwnedInEdges {
    /// Collects the in-neighbors that `neighbors` returns for each of `nodes`, in any order.
    ///
    /// ```
    /// use gnnflow_dataflow::graph::local_graph::OwnedInEdges;
    ///
    /// let edges = OwnedInEdges::from_fn(4..6, |node| [node + 1, 0]);
    /// assert_eq!((edges.indptr, edges.indices), (vec![0, 2, 4], vec![0, 5, 0, 6]));
    /// ```
    pub fn from_fn<I: IntoIterator<Item = u32>>(
        nodes: std::ops::Range<u64>,
        mut neighbors: impl FnMut(u32) -> I,
    ) -> Self {
        let mut edges = Self { indptr: vec![0], ..Self::default() };
        for node in nodes {
            let first = edges.indices.len();
            edges.indices.extend(neighbors(node as u32));
            edges.indices[first..].sort_unstable();
            edges.indptr.push(edges.indices.len() as i64);
        }
        edges
    }

    /// Copies the edges for which `keep` returns true. It gets the local number of the destination and the position among the
    /// partition's edges.
    pub fn some_of(edges: &dyn InEdges, mut keep: impl FnMut(usize, usize) -> bool) -> Self {
        fn pick<T: Copy>(ids: &[u64], column: Option<&[T]>) -> Option<Vec<T>> {
            column.map(|column| ids.iter().map(|&id| column[id as usize]).collect())
        }
        let (mut indptr, mut ids) = (vec![0], Vec::new());
        for (node, bounds) in edges.indptr().windows(2).enumerate() {
            ids.extend((bounds[0]..bounds[1]).filter(|&at| keep(node, at as usize)).map(|at| at as u64));
            indptr.push(ids.len() as i64);
        }
        let columns = edges.columns();
        Self {
            indptr,
            indices: ids.iter().map(|&id| edges.indices()[id as usize]).collect(),
            weights: pick(&ids, columns.weights),
            types: pick(&ids, columns.types),
            times: pick(&ids, columns.times),
            ids: Some(ids),
        }
    }
}

impl InEdges for OwnedInEdges {
    fn indptr(&self) -> &[i64] {
        &self.indptr
    }
    fn indices(&self) -> &[u32] {
        &self.indices
    }
    fn columns(&self) -> EdgeColumns<'_> {
        EdgeColumns {
            weights: self.weights.as_deref(),
            types: self.types.as_deref(),
            times: self.times.as_deref(),
            ids: self.ids.as_deref(),
        }
    }
}

/// The partitions that a worker holds, and the placement of all others. Clones share the edges.
#[derive(Clone)]
pub struct LocalGraph {
    placement: Placement,
    worker: usize,
    /// `offsets[p]..offsets[p + 1]` are the global ids of partition `p`.
    offsets: Vec<u64>,
    /// By partition; `None` where only other workers hold the topology.
    parts: Vec<Option<Arc<dyn InEdges>>>,
    /// In-degree without self loops of each own node, by partition hosted here. Set by `with_degrees`.
    degrees: Vec<Option<Arc<[AtomicU32]>>>,
    partition_local: bool,
    /// Degrees of nodes of other workers. Set by `with_known_degrees`.
    known_degrees: (NodeIndex, Arc<Vec<u32>>),
}

impl LocalGraph {
    /// Loads the part of the graph that `worker` holds. Calls `load` for each partition that it hosts, or for all partitions if the
    /// topology is `replicated` (FastSample, section III).
    ///
    /// # Errors
    /// The first error of `load`.
    ///
    /// # Panics
    /// When `book` has more than 2³² − 1 nodes, or another number of partitions than the placement.
    pub fn load<E>(
        book: &PartitionBook,
        placement: Placement,
        worker: usize,
        replicated: bool,
        mut load: impl FnMut(usize) -> Result<Arc<dyn InEdges>, E>,
    ) -> Result<Self, E> {
        assert_eq!(book.parts(), placement.parts(), "book and placement have different numbers of partitions");
        assert!(u32::try_from(book.nodes()).is_ok(), "a graph has at most 2^32 - 1 nodes");
        let mut parts = vec![None; book.parts()];
        let held = if replicated { 0..book.parts() } else { placement.parts_of(worker) };
        for part in held {
            let in_edges = load(part)?;
            let nodes = book.range(part).end - book.range(part).start;
            assert_eq!(
                in_edges.indptr().len() as u64,
                nodes + 1,
                "the topology of partition {part} has another number of nodes"
            );
            parts[part] = Some(in_edges);
        }
        let degrees = vec![None; book.parts()];
        Ok(Self {
            placement,
            worker,
            offsets: book.offsets().to_vec(),
            parts,
            degrees,
            partition_local: false,
            known_degrees: Default::default(),
        })
    }

    /// Creates the part of `worker` of a graph whose edges are elsewhere: it knows which worker hosts which nodes.
    ///
    /// # Panics
    /// As [`LocalGraph::load`].
    pub(crate) fn of_nodes(book: &PartitionBook, placement: Placement, worker: usize) -> Self {
        assert_eq!(book.parts(), placement.parts(), "book and placement have different numbers of partitions");
        assert!(u32::try_from(book.nodes()).is_ok(), "a graph has at most 2^32 - 1 nodes");
        Self {
            placement,
            worker,
            offsets: book.offsets().to_vec(),
            parts: vec![None; book.parts()],
            degrees: vec![None; book.parts()],
            partition_local: false,
            known_degrees: Default::default(),
        }
    }

    /// Adds degrees of all nodes hosted here, 0 until they are set.
    pub(crate) fn with_zero_degrees(mut self) -> Self {
        for part in self.placement.parts_of(self.worker) {
            self.degrees[part] = Some(self.range(part).map(|_| AtomicU32::new(0)).collect());
        }
        self
    }

    /// Sets the degree of a node hosted here, if degrees are known.
    pub(crate) fn set_degree(&self, node: u32, degree: u32) {
        let part = self.partition_of(node);
        if let Some(degrees) = &self.degrees[part] {
            degrees[(u64::from(node) - self.offsets[part]) as usize].store(degree, Ordering::Relaxed);
        }
    }

    /// Restricts batches to their own partition (SDT-GNN, section III). A batch sees the in-edges of its partition's nodes only;
    /// nodes of other partitions have none. No operator sends requests then.
    pub fn into_partition_views(self) -> Self {
        Self { partition_local: true, ..self }
    }

    /// Adds the in-degrees, without self loops, of `nodes`, which other workers host.
    ///
    /// # Panics
    /// Unless there is one degree per node.
    pub fn with_known_degrees(self, nodes: NodeIndex, degrees: Vec<u32>) -> Self {
        assert_eq!(nodes.nodes().len(), degrees.len(), "one degree per node");
        Self { known_degrees: (nodes, Arc::new(degrees)), ..self }
    }

    /// Returns whether batches are restricted to their own partition.
    #[inline]
    pub fn is_partition_local(&self) -> bool {
        self.partition_local
    }

    /// Returns the edges that a batch of partition `part` sees if batches are restricted to their own partition.
    ///
    /// # Panics
    /// When this worker does not hold the partition.
    pub(crate) fn partition_view(&self, part: usize) -> PartitionView<'_> {
        let in_edges = self.parts[part].as_ref().expect("a worker trains the partitions that it hosts");
        let csc = Csc::starting_at(self.offsets[part] as u32, in_edges.indptr(), in_edges.indices());
        PartitionView::new(if in_edges.indices().is_empty() { csc } else { csc.with_columns(in_edges.columns()) })
    }

    /// Counts the in-degrees, without self loops, of the nodes hosted here, for models that need them. Takes four bytes per node.
    pub fn with_degrees(mut self) -> Self {
        for part in self.placement.parts_of(self.worker) {
            let in_edges = self.parts[part].as_ref().expect("a worker holds the partitions that it hosts");
            let (indptr, indices, first) = (in_edges.indptr(), in_edges.indices(), self.offsets[part] as u32);
            let degree = |i: usize| {
                let neighbors = &indices[indptr[i] as usize..indptr[i + 1] as usize];
                let node = first + i as u32;
                let loops = neighbors.partition_point(|&n| n <= node) - neighbors.partition_point(|&n| n < node);
                (neighbors.len() - loops) as u32
            };
            self.degrees[part] = Some((0..indptr.len() - 1).map(degree).map(AtomicU32::new).collect());
        }
        self
    }

    /// Returns, for each node of other workers, its number of edges into the partitions hosted here. Nodes without such edges are
    /// left out.
    pub(crate) fn halo_degrees(&self) -> HashMap<u32, u32> {
        let mut degrees = HashMap::new();
        for part in self.placement.parts_of(self.worker) {
            let in_edges = self.parts[part].as_ref().expect("a worker holds the partitions that it hosts");
            for &source in in_edges.indices() {
                if !self.hosts(source) {
                    *degrees.entry(source).or_default() += 1;
                }
            }
        }
        degrees
    }

    /// Returns, for each node, the number of edges from it into the partitions hosted here: how often batches of this worker may read it.
    pub fn edges_from(&self) -> Vec<u32> {
        let mut edges = vec![0u32; self.num_nodes() as usize];
        for part in self.placement.parts_of(self.worker) {
            let in_edges = self.parts[part].as_ref().expect("a worker holds the partitions that it hosts");
            in_edges
                .indices()
                .iter()
                .for_each(|&source| edges[source as usize] = edges[source as usize].saturating_add(1));
        }
        edges
    }

    /// Returns the placement of partitions on workers.
    #[inline]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns the number of nodes of the graph.
    #[inline]
    pub fn num_nodes(&self) -> u64 {
        self.offsets[self.offsets.len() - 1]
    }

    /// Returns whether this worker hosts every partition.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.placement.workers() == 1
    }

    /// Returns whether batches of this worker read nothing from other workers.
    #[inline]
    pub(crate) fn is_self_contained(&self) -> bool {
        self.partition_local || self.is_whole()
    }

    /// Returns whether this worker holds the in-edges of every node that its batches may see.
    pub fn has_whole_topology(&self) -> bool {
        self.partition_local || self.parts.iter().all(Option::is_some)
    }

    /// Returns the worker from which a batch of this worker reads the in-edges of `node`.
    #[inline]
    pub(crate) fn read_from(&self, node: u32) -> usize {
        let part = self.partition_of(node);
        if self.partition_local || self.has_topology(part) { self.worker } else { self.placement.worker_of(part) }
    }

    /// Returns whether a batch of partition `part` may see in-edges of `node`.
    #[inline]
    pub(crate) fn sees_edges_of(&self, part: u32, node: u32) -> bool {
        !self.partition_local || self.partition_of(node) == part as usize
    }

    /// Returns whether this worker holds the in-edges of partition `part`.
    #[inline]
    pub(crate) fn has_topology(&self, part: usize) -> bool {
        self.parts[part].is_some()
    }

    /// Returns the partitions hosted here.
    pub fn hosted(&self) -> std::ops::Range<usize> {
        self.placement.parts_of(self.worker)
    }

    /// Returns the number of in-edges of partition `part`'s nodes, or 0 if this worker does not hold its topology.
    pub fn num_edges(&self, part: usize) -> usize {
        self.parts[part].as_ref().map_or(0, |in_edges| in_edges.indices().len())
    }

    /// Returns the in-edges of partition `part`.
    ///
    /// # Panics
    /// When this worker does not hold its topology.
    pub fn in_edges(&self, part: usize) -> &dyn InEdges {
        self.parts[part].as_deref().expect("this worker holds the topology of the partition")
    }

    /// Returns the in-edges of partition `part`, shared.
    ///
    /// # Panics
    /// When this worker does not hold its topology.
    pub fn shared_in_edges(&self, part: usize) -> Arc<dyn InEdges> {
        Arc::clone(self.parts[part].as_ref().expect("this worker holds the topology of the partition"))
    }

    /// Returns the global ids of partition `part`.
    #[inline]
    pub fn range(&self, part: usize) -> std::ops::Range<u32> {
        self.offsets[part] as u32..self.offsets[part + 1] as u32
    }

    /// Returns the in-edges held here, in the form that the sampling kernel reads.
    pub fn view(&self) -> Partitions<'_> {
        let held = || self.parts.iter().map(Option::as_deref);
        Partitions::new(&self.offsets, held().map(|part| part.map(|part| (part.indptr(), part.indices()))))
            .with_columns(held().map(|part| part.map_or_else(EdgeColumns::default, InEdges::columns)))
    }

    /// Returns the partition that owns `node`.
    #[inline]
    pub fn partition_of(&self, node: u32) -> usize {
        match self.offsets.len() {
            2 => 0,
            _ => self.offsets.partition_point(|&start| start <= u64::from(node)) - 1,
        }
    }

    /// Returns the worker that hosts `node`.
    #[inline]
    pub fn worker_of(&self, node: u32) -> usize {
        self.placement.worker_of(self.partition_of(node))
    }

    /// Returns whether this worker hosts `node`; false if there is no such node.
    #[inline]
    pub fn hosts(&self, node: u32) -> bool {
        u64::from(node) < self.num_nodes() && (self.is_whole() || self.worker_of(node) == self.worker)
    }

    /// Returns the in-degree of `node` without self loops.
    ///
    /// # Panics
    /// When the degree is unknown: it was added neither by [`LocalGraph::with_degrees`] nor by [`LocalGraph::with_known_degrees`].
    #[inline]
    pub fn degree(&self, node: u32) -> u32 {
        let part = self.partition_of(node);
        if let Some(degrees) = &self.degrees[part] {
            return degrees[(u64::from(node) - self.offsets[part]) as usize].load(Ordering::Relaxed);
        }
        let (nodes, degrees) = &self.known_degrees;
        degrees[nodes.find(node).expect("the degree of the node is known here")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_do_not_count_self_loops() {
        // Node 0 ← 1, 2; node 1 ← 1, 1, 2; node 2 ← nothing.
        let in_edges = OwnedInEdges { indptr: vec![0, 2, 5, 5], indices: vec![1, 2, 1, 1, 2], ..Default::default() };
        let book = PartitionBook::new(vec![0, 3]).unwrap();
        let load = |_| Ok::<_, ()>(Arc::new(in_edges.clone()) as Arc<dyn InEdges>);
        let graph = LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap().with_degrees();
        assert_eq!([0, 1, 2].map(|node| graph.degree(node)), [2, 1, 0]);
        assert!(graph.hosts(2) && !graph.hosts(3));
    }

    #[test]
    fn a_worker_holds_the_topology_that_it_hosts_or_all_if_replicated() {
        let book = PartitionBook::new(vec![0, 2, 2, 5]).unwrap();
        for replicated in [false, true] {
            let load = |part: usize| {
                let nodes = (book.range(part).end - book.range(part).start) as usize;
                let none = OwnedInEdges { indptr: vec![0; nodes + 1], ..OwnedInEdges::default() };
                Ok::<_, ()>(Arc::new(none) as Arc<dyn InEdges>)
            };
            let graph = LocalGraph::load(&book, Placement::new(3, 2), 1, replicated, load).unwrap();
            assert_eq!(
                (0..6).map(|node| graph.hosts(node)).collect::<Vec<_>>(),
                [false, false, true, true, true, false]
            );
            assert_eq!([0, 1, 2].map(|part| graph.has_topology(part)), [replicated, replicated, true]);
        }
    }
}
