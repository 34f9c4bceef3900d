//! Small graphs and naive programs for the tests of several operators.

use std::sync::Arc;

use gnnflow_data::PartitionBook;
use gnnflow_data::rng::{Key, Purpose};
pub(crate) use gnnflow_data::testing::{Adjacency, chi_square_limit, random_graph};

use crate::graph::local_graph::{InEdges, LocalGraph, OwnedInEdges};
use crate::graph::placement::Placement;
use crate::storage::{Busy, RowReader, RowSource};

/// Weight, type and time of the `i`-th edge that ends in `node`: a fourth of them weighs nothing; 3 types, 100 times.
pub(crate) fn edge(node: u32, i: usize) -> (f32, u16, i64) {
    let key = Key::new(u64::from(node), Purpose::GenerateEdges).fold(99).fold(i as u64);
    (key.below(0, 4) as f32 / 2.0, key.below(1, 3) as u16, key.below(2, 100) as i64 - 50)
}

/// `parts` ranges of about equal length, the second one empty where there are several.
pub(crate) fn book(nodes: u32, parts: usize) -> PartitionBook {
    let mut offsets: Vec<u64> = (0..=parts as u64).map(|p| p * u64::from(nodes) / parts as u64).collect();
    if parts > 2 {
        offsets[2] = offsets[1];
    }
    PartitionBook::new(offsets).unwrap()
}

/// The part of `graph` that `worker` holds.
pub(crate) fn local(
    graph: &Adjacency,
    book: &PartitionBook,
    workers: usize,
    worker: usize,
    replicated: bool,
) -> LocalGraph {
    let placement = Placement::new(book.parts(), workers);
    LocalGraph::load(book, placement, worker, replicated, |part| {
        let (mut indptr, mut indices) = (vec![0], vec![]);
        let (mut weights, mut types, mut times) = (vec![], vec![], vec![]);
        for node in book.range(part) {
            indices.extend_from_slice(&graph[node as usize]);
            indptr.push(indices.len() as i64);
            for i in 0..graph[node as usize].len() {
                let (weight, edge_type, time) = edge(node as u32, i);
                weights.push(weight);
                types.push(edge_type);
                times.push(time);
            }
        }
        let (weights, types, times) = (Some(weights), Some(types), Some(times));
        let in_edges = OwnedInEdges { indptr, indices, weights, types, times, ids: None };
        Ok::<_, std::convert::Infallible>(Arc::new(in_edges) as Arc<dyn InEdges>)
    })
    .unwrap()
    .with_degrees()
}

/// Rows of `dim` numbers that say whose they are: `node + column / 1000`.
pub(crate) struct TellingRows {
    rows: Vec<f32>,
    dim: usize,
    /// Whether all workers read them.
    pub(crate) shared: bool,
}

impl TellingRows {
    pub(crate) fn new(nodes: u32, dim: usize) -> Self {
        let row = |node: u32| (0..dim).map(move |column| node as f32 + column as f32 / 1000.0);
        Self { rows: (0..nodes).flat_map(row).collect(), dim, shared: false }
    }
}

impl RowSource for TellingRows {
    fn row_bytes(&self) -> usize {
        4 * self.dim
    }
    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(self))
    }
    fn shares(&self, _node: u32) -> bool {
        self.shared
    }
}

impl RowReader for TellingRows {
    fn row(&self, node: u32) -> &[u8] {
        bytemuck::cast_slice(&self.rows[node as usize * self.dim..(node as usize + 1) * self.dim])
    }
}
