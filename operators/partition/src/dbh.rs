//! `dbh`: degree-based hashing. The part of an edge is the hash of its end with the lower degree.
//!
//! C. Xie et al., Distributed Power-law Graph Computing: Theoretical and Empirical Analysis, NIPS 2014. Hubs are cut;
//! nodes of low degree stay whole. If both degrees are equal, the destination is hashed, as in the paper. The hash is
//! keyed by the goal's seed.
//!
//! Two passes on all threads; with [`Degrees::Online`], one pass in dump order. Memory: 4 bytes per node, and the
//! counters of [`VertexCut`].

use gnnflow_data::partitioner::Goal;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::degrees::Degrees;
use super::vertex_cut::VertexCut;

/// The method's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dbh(pub VertexCut);

impl Partitioner for Dbh {
    fn name(&self) -> &str {
        "dbh"
    }

    fn settings(&self) -> String {
        self.0.settings()
    }

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        self.0.needed_bytes(size, goal, 4 * size.nodes)
    }

    fn memory_decides(&self) -> bool {
        true
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        const PASS: &str = "hashing edges";
        let key = Key::new(goal.seed, Purpose::Partition);
        let hash = |node: u32| key.below(u64::from(node), u64::from(goal.parts)) as u32;
        let mut degrees = self.0.degrees.begin(graph)?;
        let mut counters = self.0.counters(graph, goal, 4 * graph.num_nodes());
        match self.0.degrees {
            Degrees::Exact => counters.count(graph, PASS, |src, dst| {
                let lower = if degrees[src as usize] < degrees[dst as usize] { src } else { dst };
                Some([hash(lower); 2])
            })?,
            Degrees::Online => self.0.stream(graph, PASS, &mut counters, |src, dst| {
                degrees[src as usize] += 1;
                degrees[dst as usize] += 1;
                let lower = if degrees[src as usize] < degrees[dst as usize] { src } else { dst };
                Some(hash(lower))
            })?,
        }
        Ok(Assignment::Stored(self.0.core_parts(&counters, graph.num_nodes(), goal)))
    }
}
