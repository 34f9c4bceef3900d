//! Counts of nodes and edges in sampled subgraphs, and the edge weights that follow from them.

use std::io;
use std::sync::Arc;

use crate::graph::local_graph::LocalGraph;
use crate::storage::{Array, Place};

/// Counts of the nodes and in-edges of the partitions that a worker hosts. Takes 4 bytes each.
///
/// GraphSAINT (Zeng and others, ICLR 2020, section 3.2) divides the message of edge (u, v) by α, the probability that a subgraph with
/// node v also has the edge. It is estimated by `C[u, v] / C[v]` over subgraphs drawn before training. A count of 0 is taken as
/// 1.
///
/// ```
/// use std::sync::Arc;
/// use gnnflow_data::PartitionBook;
/// use gnnflow_dataflow::graph::local_graph::{LocalGraph, OwnedInEdges};
/// use gnnflow_dataflow::graph::placement::Placement;
/// use gnnflow_dataflow::sample::subgraph_counts::SubgraphCounts;
/// use gnnflow_dataflow::storage::Place;
///
/// // Edges from 1 and 2 to 0.
/// let in_edges = OwnedInEdges { indptr: vec![0, 2, 2, 2], indices: vec![1, 2], ..OwnedInEdges::default() };
/// let book = PartitionBook::new(vec![0, 3]).unwrap();
/// let load = |_| Ok::<_, ()>(Arc::new(in_edges.clone()) as _);
/// let graph = LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap();
/// let mut counts = SubgraphCounts::new(Arc::new(graph), &Place::Memory)?;
/// counts.count(0, &[0, 1]);
/// counts.count(0, &[1]);
/// let mut weights = vec![];
/// counts.weigh(0, &[0, 1], &mut weights);
/// assert_eq!(weights, [1.0, 0.5]); // P[v, u] / α: half over a half, half over 1
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct SubgraphCounts {
    graph: Arc<LocalGraph>,
    /// By partition; empty for those of other workers.
    nodes: Vec<Array<u32>>,
    edges: Vec<Array<u32>>,
}

impl SubgraphCounts {
    /// Creates counts of 0 at `place`, for the nodes and edges that the worker of `graph` hosts.
    ///
    /// # Errors
    /// When memory or disk is full, or the folder is not writable.
    pub fn new(graph: Arc<LocalGraph>, place: &Place) -> io::Result<Self> {
        let hosted = graph.hosted();
        let zeros = |len: &dyn Fn(usize) -> usize| -> io::Result<Vec<Array<u32>>> {
            let len = |part| if hosted.contains(&part) { len(part) } else { 0 };
            (0..graph.placement().parts()).map(|part| Array::zeros(len(part), place)).collect()
        };
        let (nodes, edges) = (zeros(&|part| graph.range(part).len())?, zeros(&|part| graph.num_edges(part))?);
        Ok(Self { graph, nodes, edges })
    }

    /// Returns the partition of `node`, its position there, and the range of its in-edges.
    fn place(&self, node: u32) -> (usize, usize, std::ops::Range<usize>) {
        let part = self.graph.partition_of(node);
        let place = (node - self.graph.range(part).start) as usize;
        let indptr = self.graph.in_edges(part).indptr();
        (part, place, indptr[place] as usize..indptr[place + 1] as usize)
    }

    /// Counts a subgraph that contains `node` and those of its in-edges at `positions` of its row.
    ///
    /// # Panics
    /// When the worker does not host the node.
    pub fn count(&mut self, node: u32, positions: &[u32]) {
        let (part, place, edges) = self.place(node);
        self.nodes[part][place] += 1;
        let edges = &mut self.edges[part][edges];
        positions.iter().for_each(|&at| edges[at as usize] += 1);
    }

    /// Appends the weights of the in-edges at `positions` of `node`'s row: `P[v, u] · C[v] / C[u, v]`, where `P` is the
    /// row-normalized adjacency matrix.
    ///
    /// # Panics
    /// When the worker does not host the node.
    pub fn weigh(&self, node: u32, positions: &[u32], weights: &mut Vec<f32>) {
        let (part, place, edges) = self.place(node);
        let (degree, seen) = (edges.len() as f64, f64::from(self.nodes[part][place].max(1)));
        let edges = &self.edges[part][edges];
        weights.extend(positions.iter().map(|&at| (seen / degree / f64::from(edges[at as usize].max(1))) as f32));
    }
}
