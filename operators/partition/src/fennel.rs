//! `fennel`: a node goes where most of its neighbors are, at a price that grows with the part.
//!
//! C. Tsourakakis et al., FENNEL: Streaming Graph Partitioning for Massive Scale Graphs, WSDM 2014. Nodes come in the order of the dump. Node v
//! goes to the part P of highest |N(v) ∩ P| − αγ|P|^(γ−1), of several to the one with fewest nodes, the lowest of these; γ = 3/2 and
//! α = √p |E| / |V|^(3/2), as in the paper. The paper's bound ν|V|/p on a part's nodes is the goal's: ⌊β|V|/p⌋, or ⌈|V|/p⌉ if that is more.
//! Neighbors count as often as there are edges, in either direction.
//!
//! **Nodes out of edges.** A dump's edges need not be sorted by node. So nodes are taken in batches by ascending index, and a pass over the
//! edges gathers the neighbors that come before the nodes of a batch: as many as fit in half the budget. The budget decides the number of
//! passes (two if the graph fits), not the result. 14 bytes a node.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphStream, Partitioner, Result};

use super::node_stream;

/// The method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fennel;

impl Partitioner for Fennel {
    fn name(&self) -> &str {
        "fennel"
    }

    fn state_bytes(&self, nodes: u64, _: &Goal) -> u64 {
        node_stream::state_bytes(nodes)
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let nodes = graph.num_nodes() as f64;
        let alpha = f64::from(goal.parts).sqrt() * graph.num_edges() as f64 / (nodes * nodes.sqrt());
        let parts = node_stream::place(graph, goal, |neighbors, sizes| {
            let mut best = (f64::MIN, u64::MAX, u32::MAX);
            neighbors.each(sizes, |part, count| {
                let size = sizes.of(part);
                let score = f64::from(count) - alpha * 1.5 * (size as f64).sqrt();
                let better = score > best.0 || score == best.0 && (size, part) < (best.1, best.2);
                if sizes.has_room(part) && better {
                    best = (score, size, part);
                }
            });
            best.2
        });
        parts.map(Assignment::Stored)
    }
}
