//! Layer-wise sampling from one distribution of sources over the entire graph (FastGCN).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use gnnflow_data::rng::Key;

use super::Neighbors;
use crate::compact::IdHasher;

/// Fractional bits of a squared share.
const DIGITS: u32 = 76;
/// Bits of the lower word of a norm.
const LOW: u32 = 48;

/// The probability of each node to be drawn as a source. It is proportional to the squared norm of the node's column in
/// the row-normalized adjacency `P` (Chen, Ma, Xiao: FastGCN, ICLR 2018, section 3.3). Takes 8 bytes per node.
///
/// Norms are sums of fixed-point numbers, so the result depends neither on the order of additions nor on the number of
/// workers. A probability is a ratio of integers; draws and edge weights use the same ratio.
///
/// ```
/// use gnnflow_kernels::sample::{Csc, Importance, SquaredNorms};
///
/// // Node 0 has in-edges from 1 and 2, node 1 from 2.
/// let mut norms = SquaredNorms::new(3);
/// norms.add(&Csc::new(&[0, 2, 3, 3], &[1, 2, 2]), 0..3);
/// let importance = Importance::new(&norms);
/// assert_eq!(importance.probability(0), 0.0);
/// assert!((importance.probability(1) - 0.25 / 1.5).abs() < 1e-9);
/// assert!((importance.probability(2) - 1.25 / 1.5).abs() < 1e-9);
/// ```
#[derive(Clone, Debug)]
pub struct Importance {
    /// Node `u` has the range `ends[u - 1]..ends[u]` of the draws (from 0 for node 0).
    ends: Vec<u64>,
}

/// Partial sums of the squared norms of columns, over the rows added so far. Takes 16 bytes per node.
#[derive(Clone, Debug)]
pub struct SquaredNorms(Vec<u128>);

impl SquaredNorms {
    /// Returns zero norms for a graph of `nodes` nodes.
    pub fn new(nodes: u64) -> Self {
        Self(vec![0; usize::try_from(nodes).expect("node ids fit 32 bits")])
    }

    /// Adds the rows of `nodes`: adds to each in-neighbor's norm the square of its share of the row.
    ///
    /// # Panics
    /// If the topology does not hold one of `nodes`.
    pub fn add(&mut self, topology: &impl Neighbors, nodes: std::ops::Range<u32>) {
        for node in nodes {
            let row = topology.neighbors(node);
            let all = row.len() as u128;
            // Parallel edges are adjacent.
            for parallel in row.chunk_by(|a, b| a == b) {
                let count = parallel.len() as u128;
                // Both are below 2³²: count² · 2⁷⁶ would overflow, so the division takes two steps.
                let (whole, rest) = ((count << (DIGITS / 2)) / all, (count << (DIGITS / 2)) % all);
                let square = whole * whole + 2 * whole * rest / all;
                self.0[parallel[0] as usize] += square;
            }
        }
    }

    /// Returns the norms of a range of nodes, two words each. Words of up to 2¹⁶ workers can be summed without
    /// overflow; [`SquaredNorms::absorb`] reads the sums.
    pub fn words(&self, nodes: std::ops::Range<usize>) -> Vec<u64> {
        self.0[nodes].iter().flat_map(|&norm| [(norm >> LOW) as u64, (norm & ((1 << LOW) - 1)) as u64]).collect()
    }

    /// Replaces the norms of the nodes from `first` on by the sums of all workers' words.
    ///
    /// # Panics
    /// If the words exceed the last node.
    pub fn absorb(&mut self, first: usize, words: &[u64]) {
        for (norm, pair) in self.0[first..].iter_mut().zip(words.chunks_exact(2)) {
            *norm = (u128::from(pair[0]) << LOW) + u128::from(pair[1]);
        }
    }
}

impl Importance {
    /// Builds the distribution proportional to `norms`.
    pub fn new(norms: &SquaredNorms) -> Self {
        let total: u128 = norms.0.iter().sum();
        // Ranges sum to less than 2⁶²; every positive norm keeps a nonempty range.
        let shift = (u128::BITS - total.leading_zeros()).saturating_sub(61);
        let mut end = 0;
        let ends = norms.0.iter().map(|&norm| {
            end += if norm == 0 { 0 } else { ((norm >> shift) as u64).max(1) };
            end
        });
        Self { ends: ends.collect() }
    }

    /// Returns the probability that a draw is `node`.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn probability(&self, node: u32) -> f64 {
        let at = node as usize;
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        (self.ends[at] - begin) as f64 / self.total().max(1) as f64
    }

    /// Draws `draws` sources independently under `key`. Returns for each drawn source its number of occurrences over
    /// `draws` times its probability: the scale of its edges. Returns nothing for a graph without edges.
    pub(super) fn draw(&self, draws: u32, key: Key) -> SourceScales {
        let mut scales = SourceScales::default();
        if self.total() > 0 {
            for j in 0..u64::from(draws) {
                let x = key.below(j, self.total());
                let node = self.ends.partition_point(|&end| end <= x) as u32;
                *scales.entry(node).or_insert(0.0) += 1.0;
            }
            let scale = |(&node, times): (&u32, &mut f64)| *times /= f64::from(draws) * self.probability(node);
            scales.iter_mut().for_each(scale);
        }
        scales
    }

    /// Returns the end of the last range.
    pub(super) fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// Drawn sources with the scale of their edges.
pub(super) type SourceScales = HashMap<u32, f64, BuildHasherDefault<IdHasher>>;
