//! METIS's partitioning of a weighted graph in memory.
//!
//! G. Karypis, V. Kumar: A fast and high quality multilevel scheme for partitioning irregular graphs. SIAM J. Sci.
//! Comput., 1998.

use std::sync::Mutex;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::{Error, Fault, Result};
use metis::option::Seed;

use super::balance::Bounds;
use super::graph::Graph;

/// METIS sums weights in 32 bits. Totals are scaled to stay below this.
const MAX_WEIGHT: u64 = 1 << 30;

/// Bytes per adjacency entry, including the lists.
pub(super) const BYTES_PER_ENTRY: u64 = 68;
/// Bytes per node, without its weights.
const BYTES_PER_NODE: u64 = 80;

/// Number of types of nodes for which memory is planned, before the types are read.
pub(super) const MOST_TYPES: u64 = 8;

/// Serializes calls, because METIS uses the random state of the C library.
static METIS_LOCK: Mutex<()> = Mutex::new(());

/// Options of a METIS call.
#[derive(Clone, Debug)]
pub(super) struct KwayOptions<'a> {
    /// Name of the method, for errors.
    pub(super) method: &'a str,
    pub(super) parts: u32,
    pub(super) seed: u64,
    /// Ratio of the largest part to the mean part, for each constraint.
    pub(super) targets: Vec<f32>,
    /// Recursive bisection instead of k-way: often better for few parts, slower for many.
    pub(super) bisect: bool,
    /// The weights of every node, one per constraint. Empty for a single constraint with weight 1.
    pub(super) node_weights: &'a [i32],
}

/// Upper bound of the bytes that METIS uses, including the graph.
///
/// An adjacency entry takes 4 bytes, 4 for its weight, the same again in each coarser graph, and 8 in the pool of
/// neighboring parts. R-MAT graphs hardly shrink by coarsening: 124 million entries took 8.4 GB, 66 bytes per entry.
/// Graphs with communities take half. A node takes its row, weights, matching and queue position.
pub(super) const fn bytes(nodes: u64, entries: u64, constraints: u64) -> u64 {
    entries * BYTES_PER_ENTRY + nodes * (BYTES_PER_NODE + 8 * constraints)
}

/// Returns the part of every node. Equal graphs and seeds give equal parts. Nodes are assigned round robin if there are
/// no edges or fewer than two nodes per part, because METIS may crash on such graphs.
pub(super) fn kway(graph: &Graph, options: &KwayOptions<'_>) -> Result<Vec<u16>> {
    let nodes = graph.nodes();
    if options.parts <= 1 || graph.entries() == 0 || nodes < 2 * options.parts as usize {
        return Ok((0..nodes).map(|node| (node % options.parts.max(1) as usize) as u16).collect());
    }
    let failed = |reason: String, fault| Error::Partitioner { method: options.method.into(), reason, fault };
    let bug = |error: String| failed(format!("METIS rejects the graph: {error}"), Fault::Bug);
    if graph.entries() > i32::MAX as u64 || nodes >= i32::MAX as usize {
        return Err(bug(format!("{} entries", graph.entries())));
    }
    let seed = Key::new(options.seed, Purpose::Partition).draw(0) & 0x7fff_ffff;
    let starts: Vec<i32> = graph.starts().iter().map(|&start| start as i32).collect();
    let mut parts = vec![0i32; nodes];
    let neighbors: &[i32] = bytemuck::cast_slice(graph.all_neighbors());
    let mut metis = metis::Graph::new(options.targets.len() as i32, options.parts as i32, &starts, neighbors)
        .map_err(|error| bug(error.to_string()))?
        .set_ubvec(&options.targets)
        .set_option(Seed(seed as i32));
    if !options.node_weights.is_empty() {
        metis = metis.set_vwgt(options.node_weights);
    }
    if !graph.all_weights().is_empty() {
        metis = metis.set_adjwgt(bytemuck::cast_slice(graph.all_weights()));
    }
    let result = {
        let _guard = METIS_LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if options.bisect { metis.part_recursive(&mut parts) } else { metis.part_kway(&mut parts) }
    };
    match result {
        Ok(_) => Ok(parts.into_iter().map(|part| part as u16).collect()),
        Err(metis::Error::Memory) => {
            let need = bytes(nodes as u64, graph.entries(), options.targets.len() as u64);
            Err(failed(format!("METIS ran out of memory; provide about {need} bytes"), Fault::Machine))
        }
        Err(error) => Err(bug(error.to_string())),
    }
}

/// Computes the METIS weights of `groups` groups of nodes for the first `rules` bounds; `group(node)` is the group of a node.
/// Returns an empty list if every node is its own group and has weight 1.
pub(super) fn node_weights(
    bounds: &Bounds<'_>,
    rules: usize,
    groups: usize,
    group: impl Fn(usize) -> usize,
) -> Vec<i32> {
    let nodes = bounds.nodes();
    if rules == 1 && groups == nodes {
        return Vec::new();
    }
    let mut sums = vec![0u64; groups * rules];
    for node in 0..nodes {
        let at = group(node) * rules;
        (0..rules).for_each(|rule| sums[at + rule] += bounds.weight(rule, node));
    }
    sums.iter().enumerate().map(|(at, &sum)| scaled(sum, bounds.total(at % rules))).collect()
}

/// Scales a weight so that the total stays below [`MAX_WEIGHT`]. A positive weight stays at least 1.
fn scaled(weight: u64, total: u64) -> i32 {
    if total <= MAX_WEIGHT {
        return weight as i32;
    }
    let down = (u128::from(weight) * u128::from(MAX_WEIGHT) / u128::from(total)) as i32;
    down.max(i32::from(weight > 0))
}

/// Encodes parts for the journal and for other processes.
pub(super) fn to_bytes(parts: &[u16]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.to_le_bytes()).collect()
}

/// Decodes [`to_bytes`]. Returns `None` if the bytes are not for `nodes` nodes.
pub(super) fn from_bytes(bytes: &[u8], nodes: usize) -> Option<Vec<u16>> {
    let (pairs, []) = bytes.as_chunks::<2>() else { return None };
    (pairs.len() == nodes).then(|| pairs.iter().map(|&pair| u16::from_le_bytes(pair)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::TestGraph;

    #[test]
    fn two_cliques_become_two_parts() {
        // Nodes 0..8 and 8..16 are cliques; one edge joins 7 and 8.
        let clique = |first: u32| (first..first + 8).flat_map(move |u| (first..u).map(move |v| (u, v)));
        let edges = clique(0).chain(clique(8)).chain([(7, 8)]).collect();
        let graph = Graph::read(&TestGraph { name: "cliques", nodes: 16, edges }.stream()).unwrap();
        let options =
            KwayOptions { method: "metis", parts: 2, seed: 1, targets: vec![1.05], bisect: false, node_weights: &[] };
        for options in [options.clone(), KwayOptions { bisect: true, ..options }] {
            let parts = kway(&graph, &options).unwrap();
            assert!((0..16).all(|v| (parts[v] == parts[0]) == (v < 8)), "{parts:?}");
            assert_eq!(parts, kway(&graph, &options).unwrap());
        }
    }

    #[test]
    fn weights_above_32_bits_are_scaled() {
        assert_eq!((scaled(7, 100), scaled(0, u64::MAX), scaled(1, u64::MAX)), (7, 0, 1));
        let total = 1 << 40;
        assert_eq!(scaled(total / 4, total), 1 << 28);
    }

    #[test]
    fn parts_round_trip_through_bytes() {
        let parts = vec![0, 1, 65535, 256];
        assert_eq!(from_bytes(&to_bytes(&parts), 4), Some(parts.clone()));
        assert_eq!(from_bytes(&to_bytes(&parts), 5), None);
        assert_eq!(from_bytes(&[1], 0), None);
    }
}
