//! `fennel`: each node is placed in the part with most of its neighbors, less a cost that grows with the part.
//!
//! C. Tsourakakis et al., FENNEL: Streaming Graph Partitioning for Massive Scale Graphs, WSDM 2014. Nodes are placed in
//! dump order. Node v is placed in the part P with the highest |N(v) ∩ P| − αγ|P|^(γ−1). On a tie the part with the
//! fewest nodes is used, then the lowest. γ = 3/2 and α = √p |E| / |V|^(3/2), as in the paper. The paper's bound ν|V|/p
//! on a part's nodes is here max(⌊β|V|/p⌋, ⌈|V|/p⌉) with the goal's β. Neighbors count once per edge, in either
//! direction.
//!
//! Edges are gathered by node in batches ([`node_stream`]), in two passes or more. Memory: 14 bytes per node.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::node_stream;

/// The `fennel` method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fennel;

impl Partitioner for Fennel {
    fn name(&self) -> &str {
        "fennel"
    }

    fn needed_bytes(&self, size: GraphSize, _: &Goal) -> u64 {
        node_stream::needed_bytes(size.nodes)
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
                if sizes.has_capacity(part) && better {
                    best = (score, size, part);
                }
            });
            best.2
        });
        parts.map(Assignment::Stored)
    }
}
