//! Number of edges (or nodes) in each part, with a bound.

use gnnflow_data::partitioner::Goal;

/// Bound on a part's edges relative to the mean, if the goal sets none: 2PS-L's α, PowerGraph's λ, HDRF's τ.
const EDGE_BALANCE: f64 = 1.05;

/// Edges per part, with their minimum and maximum. An update takes amortized constant time.
#[derive(Debug)]
pub(super) struct Loads {
    edges: Vec<u64>,
    /// Bound on the edges of a part.
    bound: u64,
    /// The part with the fewest edges, the lowest on a tie.
    least: u32,
    largest: u64,
}

impl Loads {
    /// Creates empty parts for `edges` edges in total.
    pub(super) fn new(edges: u64, goal: &Goal) -> Self {
        let mean = edges as f64 / f64::from(goal.parts);
        let bound = (goal.balance.edges.unwrap_or(EDGE_BALANCE) * mean) as u64;
        Self::with_bound(goal.parts, bound.max(edges.div_ceil(goal.parts.into())))
    }

    /// Creates empty parts that hold at most `bound` edges each.
    pub(super) fn with_bound(parts: u32, bound: u64) -> Self {
        Self { edges: vec![0; parts as usize], bound, least: 0, largest: 0 }
    }

    #[inline]
    pub(super) fn of(&self, part: u32) -> u64 {
        self.edges[part as usize]
    }

    #[inline]
    pub(super) fn has_capacity(&self, part: u32) -> bool {
        self.of(part) < self.bound
    }

    /// The part with the fewest edges, the lowest on a tie. It is always below its bound.
    #[inline]
    pub(super) fn least(&self) -> u32 {
        self.least
    }

    #[inline]
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    #[inline]
    pub(super) fn add(&mut self, part: u32) {
        let edges = &mut self.edges[part as usize];
        *edges += 1;
        self.largest = self.largest.max(*edges);
        if part == self.least {
            self.next_least();
        }
    }

    /// Parts before `least` have more edges than it had, and loads only grow. So the next minimum is a later part with
    /// that load, or the first part with one more.
    fn next_least(&mut self) {
        let before = self.of(self.least) - 1;
        let later = self.edges[self.least as usize + 1..].iter().position(|&edges| edges == before);
        self.least = match later {
            Some(offset) => self.least + 1 + offset as u32,
            None => self
                .edges
                .iter()
                .position(|&edges| edges == before + 1)
                .expect("the previous minimum has one edge more") as u32,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    #[test]
    fn least_and_largest_equal_a_linear_search() {
        let key = Key::new(2, Purpose::Partition);
        for parts in [1, 2, 5, 100] {
            let mut loads = Loads::new(1 << 20, &Goal::new(parts));
            let mut expected = vec![0; parts as usize];
            for i in 0..5000 {
                // Every other edge is added to the least loaded part, as in methods that balance.
                let chance = key.below(i, u64::from(parts)) as u32;
                let part = if i % 2 == 0 { loads.least() } else { chance };
                loads.add(part);
                expected[part as usize] += 1;
                let least = (0..parts).min_by_key(|&part| (expected[part as usize], part)).unwrap();
                assert_eq!((loads.least(), Some(&loads.largest())), (least, expected.iter().max()));
                assert_eq!(loads.of(chance), expected[chance as usize]);
            }
        }
    }

    #[test]
    fn least_loaded_part_always_has_capacity() {
        for (edges, parts) in [(0, 3), (1, 3), (7, 3), (100, 7), (1000, 16)] {
            let mut loads = Loads::new(edges, &Goal::new(parts));
            for _ in 0..edges {
                assert!(loads.has_capacity(loads.least()));
                loads.add((0..parts).find(|&part| loads.has_capacity(part)).unwrap());
            }
        }
    }
}
