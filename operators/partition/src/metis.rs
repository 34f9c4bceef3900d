//! `metis`: METIS on the entire graph in memory, with the balance constraints of DistDGL (section III-B).

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, Error, Fault, GraphSize, GraphStream, Partitioner, Result};

use super::balance::Bounds;
use super::graph::Graph;
use super::kway::{self, KwayOptions, MOST_TYPES};

/// K-way METIS on the undirected graph without duplicate edges and self loops.
///
/// Every quantity of [`Goal::balance`] is a constraint: nodes, in-edges, train, validation and test nodes, nodes of
/// each type. METIS meets them approximately. Then nodes that lose the fewest neighbors move until the bounds hold; the
/// bound on nodes always does.
///
/// The entire graph is in memory: up to 68 bytes for each of the `2 |E|` adjacency entries and 80 per node. Returns an
/// error before reading if there are 2³¹ entries or more. `multilevel` has no such limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metis;

impl Partitioner for Metis {
    fn name(&self) -> &str {
        "metis"
    }

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        let metis = kway::bytes(size.nodes, 2 * size.edges, Bounds::most_rules(goal, MOST_TYPES));
        // Reading; then the starts of lists, and the parts before and after the bounds are restored.
        let all = Graph::reading_bytes(size).max(metis + 14 * size.nodes);
        Bounds::needed_bytes(size, goal) + all
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let nodes = graph.num_nodes() as usize;
        let bounds = Bounds::new(graph, goal)?;
        check_limits(nodes as u64, 2 * graph.num_edges())?;
        let whole = Graph::read(graph)?;
        let parts = graph.once("METIS", &mut || {
            let node_weights = kway::node_weights(&bounds, bounds.len(), nodes, |node| node);
            let (targets, node_weights) = (bounds.targets(), node_weights.as_slice());
            let (method, parts, seed) = (self.name(), goal.parts, goal.seed);
            let options = KwayOptions { method, parts, seed, targets, bisect: false, node_weights };
            let mut parts = kway::kway(&whole, &options)?;
            let mut loads = bounds.loads(&parts);
            if !bounds.satisfied(&loads) {
                let before = parts.clone();
                bounds.repair(&mut parts, &mut loads, |node, part| whole.neighbors_in(&before, node, part));
            }
            Ok(kway::to_bytes(&parts))
        })?;
        let parts = kway::from_bytes(&parts, nodes);
        parts.map(Assignment::Stored).ok_or_else(|| Error::Bug("METIS's parts do not match the nodes".into()))
    }
}

/// Returns an error for a graph that exceeds METIS's 32-bit indexes.
fn check_limits(nodes: u64, entries: u64) -> Result<()> {
    let failed = |reason| Err(Error::Partitioner { method: "metis".into(), reason, fault: Fault::Machine });
    if entries > i32::MAX as u64 || nodes >= i32::MAX as u64 {
        return failed(format!(
            "{nodes} nodes with {entries} adjacency entries are more than METIS's 32-bit indexes can hold ({}); use \"multilevel\"",
            i32::MAX
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::Targets;
    use gnnflow_data::testing::{TestGraph, graphs, power_law};

    fn parts(graph: &TestGraph, goal: &Goal, chunk: usize) -> Vec<u32> {
        let mut stream = graph.stream();
        stream.chunk = chunk;
        stream.splits = (0..graph.nodes).map(|node| (node % 4) as u8).collect();
        let assignment = Metis.assign(&stream, goal).unwrap();
        (0..u64::from(graph.nodes)).map(|node| assignment.part(node)).collect()
    }

    #[test]
    fn metis_assignment_is_balanced_and_deterministic() {
        for graph in graphs() {
            for count in [1, 2, 4, 16, 300] {
                let goal = Goal::new(count);
                let found = parts(&graph, &goal, 7);
                let mut sizes = vec![0u64; count as usize];
                found.iter().for_each(|&part| sizes[part as usize] += 1);
                let mean = f64::from(graph.nodes) / f64::from(count);
                let bound = ((1.05 * mean) as u64).max(mean.ceil() as u64);
                assert!(sizes.iter().all(|&size| size <= bound), "{} in {count}: {sizes:?}", graph.name);
                assert_eq!(found, parts(&graph, &goal, 1000), "{} in {count}", graph.name);
            }
        }
    }

    #[test]
    fn metis_with_split_targets_balances_all_constraints() {
        let graph = power_law(800, 6000, 9);
        let balance =
            Targets { train: Some(1.1), val: Some(1.1), test: Some(1.1), edges: Some(1.3), ..Targets::default() };
        let goal = Goal { balance, ..Goal::new(4) };
        let found = parts(&graph, &goal, 7);
        for split in 1..4 {
            let mut sizes = [0; 4];
            found.iter().enumerate().filter(|(v, _)| v % 4 == split).for_each(|(_, &part)| sizes[part as usize] += 1);
            assert!(sizes.iter().all(|&size| size <= 55), "{split}: {sizes:?}");
        }
    }

    #[test]
    fn needed_bytes_are_metis_and_the_graph_above_the_32_bit_limit_is_an_error() {
        let size = GraphSize { nodes: 100, edges: 1000, processes: 1 };
        assert_eq!(Metis.needed_bytes(size, &Goal::new(2)), 144_800 + 14 * 100);
        let error = check_limits(10, 1 << 31).unwrap_err();
        assert_eq!(error.fault(), Fault::Machine);
        let text = error.to_string();
        assert!(text.contains("32-bit") && text.contains("\"multilevel\""), "{text}");
    }
}
