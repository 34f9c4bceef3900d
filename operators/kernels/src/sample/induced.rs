//! The subgraph that a list of nodes induces: all edges between listed nodes.

use super::columns::{Collect, Columns, EdgeValues};
use super::hop::{edge_count, new_block, new_indptr};
use super::{Edges, Neighbors, Samples};
use crate::block::Block;
use crate::compact::Compactor;

/// Selects the in-edges of `nodes` whose sources are listed, in stored order: an owner's part of an induced subgraph.
///
/// Appends sources to `samples` as *positions in the list* of `listed`. Calls `weights_of` for every node with the
/// positions of the selected edges in the node's row. It may append one weight per selected edge, which replace the
/// graph's weights.
///
/// # Panics
/// If the topology does not hold one of `nodes` or lacks a column, or `weights_of` appends a wrong number of weights.
pub fn choose_listed(
    topology: &impl Neighbors,
    nodes: &[u32],
    listed: &Compactor,
    mut weights_of: impl FnMut(u32, &[u32], &mut Vec<f32>),
    samples: &mut Samples,
) {
    let (mut selected, mut weights) = (Vec::new(), Vec::new());
    for (i, &node) in nodes.iter().enumerate() {
        if let Some(&next) = nodes.get(i + 1) {
            topology.prefetch(next);
        }
        selected.clear();
        weights.clear();
        for (at, &source) in (0..).zip(topology.neighbors(node)) {
            if let Some(position) = listed.find(source) {
                selected.push(at);
                samples.neighbors.push(position);
            }
        }
        samples.counts.push(selected.len() as u32);
        weights_of(node, &selected, &mut weights);
        if selected.is_empty() {
            continue;
        }
        if weights.is_empty() {
            samples.values.collect(topology, node, selected.iter().map(|&at| at as usize));
        } else {
            assert_eq!(weights.len(), selected.len(), "one weight per selected edge");
            samples.values.collect_weighted(topology, node, &selected, &weights);
        }
    }
}

/// Builds the block of an induced subgraph, whose destinations are all its sources. Calls `edges_of` once per position
/// of the list of `nodes` nodes, in order; it must return the result of [`choose_listed`].
///
/// # Panics
/// If a source is not a position of the list, or one of `columns` is missing.
pub fn assemble_listed<'a>(nodes: usize, mut edges_of: impl FnMut(usize) -> Edges<'a>, columns: Columns) -> Block {
    let (mut indptr, mut indices, mut values) = (new_indptr(nodes), Vec::new(), EdgeValues::new(columns));
    for place in 0..nodes {
        let edges = edges_of(place);
        indices.extend_from_slice(edges.sources);
        values.extend(edges.columns);
        indptr.push(edge_count(indices.len()));
    }
    values.into_block(new_block(nodes, nodes, indptr, indices))
}
