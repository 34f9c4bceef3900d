//! `range`: consecutive ranges of nodes in dump order. The quality depends on that order.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::{Assignment, Error, GraphStream, PartitionBook, Partitioner, Result};

/// Ranges of nodes in dump order whose sizes differ by at most one. Global ids equal the rows of the dump.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range;

impl Partitioner for Range {
    fn name(&self) -> &str {
        "range"
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let (n, parts) = (graph.num_nodes(), goal.parts);
        // Part p begins at the first i whose piece is p: ceil(p n / parts).
        let start = |part: u64| (u128::from(part) * u128::from(n)).div_ceil(u128::from(parts)) as u64;
        let book = PartitionBook::new((0..=u64::from(parts)).map(start).collect());
        book.map(Assignment::Ranges).ok_or_else(|| Error::Bug(format!("{n} nodes in {parts} ranges")))
    }
}

/// Returns the part of position `i` of `n`. Parts are consecutive ranges whose sizes differ by at most one.
pub(crate) fn piece(i: u64, n: u64, parts: u32) -> u32 {
    (u128::from(i) * u128::from(parts) / u128::from(n)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::TestGraph;

    #[test]
    fn range_assignment_equals_position_times_parts_over_nodes() {
        for (n, parts) in [(0, 1), (0, 3), (1, 1), (2, 5), (100, 3), (1001, 8)] {
            let nodes = TestGraph { name: "nodes", nodes: n, edges: Vec::new() };
            let assignment = Range.assign(&nodes.stream(), &Goal::new(parts)).unwrap();
            for node in 0..u64::from(n) {
                assert_eq!(assignment.part(node), piece(node, u64::from(n), parts), "{node} of {n} in {parts}");
            }
        }
    }
}
