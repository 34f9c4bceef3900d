//! `random`: random parts of equal size. The baseline for other methods.

use gnnflow_data::partitioner::Goal;
use gnnflow_data::rng::{Key, Permutation, Purpose};
use gnnflow_data::{Assignment, GraphStream, Partitioner, Result};

use super::range::piece;

/// Random parts of equal size.
///
/// Divides a keyed permutation of the nodes into ranges whose sizes differ by at most one. Reads no edges.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl Partitioner for Random {
    fn name(&self) -> &str {
        "random"
    }

    fn assign(&self, graph: &dyn GraphStream, goal: &Goal) -> Result<Assignment> {
        let (n, parts) = (graph.num_nodes(), goal.parts);
        let order = Permutation::new(Key::new(goal.seed, Purpose::Partition), n);
        Ok(Assignment::computed(move |node| piece(order.at(node), n, parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::testing::TestGraph;

    fn nodes(nodes: u32) -> TestGraph {
        TestGraph { name: "nodes", nodes, edges: Vec::new() }
    }

    #[test]
    fn random_parts_have_equal_sizes_and_depend_on_the_seed() {
        for (n, parts) in [(0, 1), (1, 1), (2, 5), (100, 3), (1001, 8)] {
            let assign = |seed| Random.assign(&nodes(n).stream(), &Goal { seed, ..Goal::new(parts) }).unwrap();
            let (one, other) = (assign(1), assign(2));
            let mut sizes = vec![0; parts as usize];
            (0..u64::from(n)).for_each(|node| sizes[one.part(node) as usize] += 1);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{n} nodes, {parts} parts: {sizes:?}");
            if n > 50 {
                assert!((0..u64::from(n)).any(|node| one.part(node) != other.part(node)));
            }
        }
    }

    #[test]
    fn random_separates_consecutive_indexes() {
        // 10,000 pairs of neighbors in 4 parts: 2,500 ± 43 stay together by chance.
        let assignment = Random.assign(&nodes(10_001).stream(), &Goal { seed: 7, ..Goal::new(4) }).unwrap();
        let together = (0..10_000).filter(|&v| assignment.part(v) == assignment.part(v + 1)).count();
        assert!((2300..2700).contains(&together), "{together}");
    }
}
