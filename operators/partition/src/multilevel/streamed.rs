//! Partitioning of a graph that does not fit in memory: a graph of clusters in memory, and passes over the stream.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Error, GraphStream, Result};

use super::budget::Budget;
use super::gather::{self, Limits};
use super::{by_degree, contract, resident};
use crate::balance::Bounds;
use crate::degrees::Degrees;
use crate::kway;
use crate::refine::Refinement;

const MAX_PASSES: u32 = 8;
/// Names of the clusters and the start in the journal, for a preparation that is interrupted later.
const CLUSTERS_NAME: &str = "multilevel-clusters";
const START_NAME: &str = "multilevel-start";
/// Number of 32-bit cells for a sum over all edges, so that none overflows.
const CELLS: usize = 1024;

pub(super) fn assign(graph: &dyn GraphStream, goal: &Goal, bounds: &Bounds<'_>, budget: &Budget) -> Result<Vec<u16>> {
    let nodes = graph.num_nodes() as usize;
    let mut start = match graph.load(START_NAME)?.and_then(|bytes| kway::from_bytes(&bytes, nodes)) {
        Some(start) => start,
        None => {
            let start = best_start(graph, goal, bounds, budget)?;
            graph.save(START_NAME, &kway::to_bytes(&start))?;
            start
        }
    };
    let refinement = Refinement { graph, bounds, goal, memory: budget.counters, name: "multilevel-refined" };
    refinement.run(&mut start, MAX_PASSES)?;
    Ok(start)
}

/// Returns the better start of METIS on clusters and ranges of descending degree.
fn best_start(graph: &dyn GraphStream, goal: &Goal, bounds: &Bounds<'_>, budget: &Budget) -> Result<Vec<u16>> {
    let nodes = graph.num_nodes() as usize;
    let degrees = Degrees::Exact.begin(graph)?;
    let clusters = match graph.load(CLUSTERS_NAME)?.and_then(|bytes| read_labels(&bytes, nodes)) {
        Some(clusters) => clusters,
        None => {
            // Twice the mean, because some clusters stay small.
            let volume = (4 * graph.num_edges() / budget.max_clusters as u64).max(2);
            let limits = Limits { volume, nodes: budget.max_cluster_nodes.max(2), clusters: budget.max_clusters };
            let (clusters, _) = gather::gather(graph, &degrees, limits)?;
            graph.save(CLUSTERS_NAME, &clusters.iter().flat_map(|label| label.to_le_bytes()).collect::<Vec<_>>())?;
            clusters
        }
    };
    let count = clusters.iter().max().map_or(0, |&most| most as usize + 1);
    let small = contract::contract(graph, &clusters, count, budget.max_edges, budget.sorting)?;
    let parts = graph.once("METIS on clusters", &mut || {
        let parts = resident::metis(&small, goal, bounds, 0, count, |node| clusters[node] as usize)?;
        Ok(kway::to_bytes(&parts))
    })?;
    drop(small);
    let parts = kway::from_bytes(&parts, count).ok_or_else(|| Error::Bug("parts do not match the clusters".into()))?;
    let by_metis: Vec<u16> = clusters.iter().map(|&cluster| parts[cluster as usize]).collect();
    drop(clusters);
    let by_degree = by_degree(nodes, goal.parts, |node| u64::from(degrees[node]));
    let cuts = cuts(graph, [&by_metis, &by_degree])?;
    // Restoring the bounds of a start that is far from them would lose its cut.
    let far = bounds.excess(&bounds.loads(&by_degree)) > bounds.excess(&bounds.loads(&by_metis)) + 0.05;
    Ok(if far || cuts[0] <= cuts[1] { by_metis } else { by_degree })
}

fn read_labels(bytes: &[u8], nodes: usize) -> Option<Vec<u32>> {
    let (labels, []) = bytes.as_chunks::<4>() else { return None };
    (labels.len() == nodes).then(|| labels.iter().map(|&label| u32::from_le_bytes(label)).collect())
}

/// Counts the edges that two assignments cut, in one pass.
fn cuts(graph: &dyn GraphStream, assignments: [&[u16]; 2]) -> Result<[u64; 2]> {
    let cells: Vec<AtomicU32> = std::iter::repeat_with(AtomicU32::default).take(2 * CELLS).collect();
    graph.accumulate("comparing starts", &cells, &|edges| {
        let cell = edges.first().map_or(0, |edge| edge.0 as usize % CELLS);
        for (which, parts) in assignments.into_iter().enumerate() {
            let cut = edges.iter().filter(|edge| parts[edge.0 as usize] != parts[edge.1 as usize]).count();
            cells[which * CELLS + cell].fetch_add(cut as u32, Relaxed);
        }
    })?;
    let sum = |cells: &[AtomicU32]| cells.iter().map(|cell| u64::from(cell.load(Relaxed))).sum();
    Ok([sum(&cells[..CELLS]), sum(&cells[CELLS..])])
}
