//! `refine = k`: refinement passes after any method.

use std::sync::Arc;

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, GraphSize, GraphStream, Partitioner, Result};

use super::balance::Bounds;
use super::refine::Refinement;

/// Another method's assignment, refined by passes over the edges.
///
/// A pass takes 4 bytes per node and part, or sketches if [`Goal::memory`] is smaller. The result satisfies
/// [`Goal::balance`] even if the inner method does not. If the inner assignment satisfies it, the cut never rises.
///
/// ```
/// use gnnflow_data::partitioner::{Goal, Partitioner};
/// use gnnflow_data::testing::power_law;
/// use gnnflow_partition::{Random, Refined};
/// use std::sync::Arc;
///
/// let graph = power_law(1000, 5000, 1);
/// let refined = Refined::new(Arc::new(Random), 3);
/// let parts = refined.assign(&graph.stream(), &Goal::new(4))?;
/// let cut = |parts: &gnnflow_data::Assignment| {
///     graph.edges.iter().filter(|&&(u, v)| parts.part(u.into()) != parts.part(v.into())).count()
/// };
/// assert!(cut(&parts) < cut(&Random.assign(&graph.stream(), &Goal::new(4))?));
/// assert_eq!(refined.settings(), "refine = 3");
/// # Ok::<(), gnnflow_data::Error>(())
/// ```
pub struct Refined {
    inner: Arc<dyn Partitioner>,
    passes: u32,
}

impl Refined {
    /// Creates a method with at most `passes` passes after `inner`, and fewer if the gain gets small.
    pub fn new(inner: Arc<dyn Partitioner>, passes: u32) -> Self {
        Self { inner, passes }
    }
}

impl Partitioner for Refined {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn settings(&self) -> String {
        let passes = format!("refine = {}", self.passes);
        match self.inner.settings() {
            inner if inner.is_empty() => passes,
            inner => format!("{inner}, {passes}"),
        }
    }

    fn needed_bytes(&self, size: GraphSize, goal: &Goal) -> u64 {
        let refinement = Refinement::needed_bytes(size, goal, goal.memory) + Bounds::needed_bytes(size, goal);
        self.inner.needed_bytes(size, goal).max(refinement)
    }

    fn memory_decides(&self) -> bool {
        true
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let inner = self.inner.assign(graph, goal)?;
        let bounds = Bounds::new(graph, goal)?;
        let mut parts = match inner {
            Assignment::Stored(parts) => parts,
            other => (0..graph.num_nodes()).map(|node| other.part(node) as u16).collect(),
        };
        let refinement = Refinement { graph, bounds: &bounds, goal, memory: goal.memory, name: "refined" };
        refinement.run(&mut parts, self.passes)?;
        Ok(Assignment::Stored(parts))
    }
}
