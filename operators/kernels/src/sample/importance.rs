//! Layer-wise sampling whose sources are drawn from one distribution over the whole graph (FastGCN).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use gnnflow_data::rng::Key;

use super::Neighbors;
use crate::compact::Spread;

/// Binary digits behind the point of a squared share.
const DIGITS: u32 = 76;
/// Binary digits of the lower word of a norm.
const LOW: u32 = 48;

/// How often each node is drawn as a source: in proportion to the squared norm of its column in the adjacency `P`, normalized by
/// rows (Chen, Ma, Xiao: FastGCN, ICLR 2018, section 3.3). 8 bytes a node.
///
/// Norms are sums of fixed-point numbers, so that the order of additions, and with it the number of workers, changes nothing; a
/// node's probability is a ratio of whole numbers, and is what draws follow and weights divide by.
///
/// ```
/// use gnnflow_kernels::sample::{Csc, Importance, SquaredNorms};
///
/// // Node 0 hears from 1 and 2, node 1 from 2.
/// let mut norms = SquaredNorms::new(3);
/// norms.add(&Csc::new(&[0, 2, 3, 3], &[1, 2, 2]), 0..3);
/// let importance = Importance::new(&norms);
/// assert_eq!(importance.share(0), 0.0);
/// assert!((importance.share(1) - 0.25 / 1.5).abs() < 1e-9);
/// assert!((importance.share(2) - 1.25 / 1.5).abs() < 1e-9);
/// ```
#[derive(Clone, Debug)]
pub struct Importance {
    /// `ends[u]` is where the stretch of node `u` ends; it begins where that of the node before ends.
    ends: Vec<u64>,
}

/// Squared norms of columns, as far as their rows have been added. 16 bytes a node.
#[derive(Clone, Debug)]
pub struct SquaredNorms(Vec<u128>);

impl SquaredNorms {
    /// No rows yet, in a graph of `nodes` nodes.
    pub fn new(nodes: u64) -> Self {
        Self(vec![0; usize::try_from(nodes).expect("nodes are numbered by 32 bits")])
    }

    /// Adds the rows of `nodes`: each of their in-neighbors gets the square of its share of the row.
    ///
    /// # Panics
    /// When the topology does not hold one of `nodes`.
    pub fn add(&mut self, topology: &impl Neighbors, nodes: std::ops::Range<u32>) {
        for node in nodes {
            let row = topology.neighbors(node);
            let all = row.len() as u128;
            // Parallel edges lie side by side.
            for parallel in row.chunk_by(|a, b| a == b) {
                let count = parallel.len() as u128;
                // Both are below 2³²: count² · 2⁷⁶ would not fit, so the quotient is taken in two steps.
                let (whole, rest) = ((count << (DIGITS / 2)) / all, (count << (DIGITS / 2)) % all);
                let square = whole * whole + 2 * whole * rest / all;
                self.0[parallel[0] as usize] += square;
            }
        }
    }

    /// The norms of some nodes, two words each, for other workers to add to theirs by [`SquaredNorms::absorb`]. Words of up
    /// to 2¹⁶ workers may be added up on the way.
    pub fn words(&self, nodes: std::ops::Range<usize>) -> Vec<u64> {
        self.0[nodes].iter().flat_map(|&norm| [(norm >> LOW) as u64, (norm & ((1 << LOW) - 1)) as u64]).collect()
    }

    /// Replaces the norms of nodes from `first` on by sums of all workers' words.
    ///
    /// # Panics
    /// Past the last node.
    pub fn absorb(&mut self, first: usize, words: &[u64]) {
        for (norm, pair) in self.0[first..].iter_mut().zip(words.chunks_exact(2)) {
            *norm = (u128::from(pair[0]) << LOW) + u128::from(pair[1]);
        }
    }
}

impl Importance {
    /// The distribution in proportion to `norms`.
    pub fn new(norms: &SquaredNorms) -> Self {
        let total: u128 = norms.0.iter().sum();
        // Stretches sum to less than 2⁶²; whatever is above 0 keeps a stretch.
        let shift = (u128::BITS - total.leading_zeros()).saturating_sub(61);
        let mut end = 0;
        let ends = norms.0.iter().map(|&norm| {
            end += if norm == 0 { 0 } else { ((norm >> shift) as u64).max(1) };
            end
        });
        Self { ends: ends.collect() }
    }

    /// The probability that a draw is `node`.
    ///
    /// # Panics
    /// When it is no node.
    pub fn share(&self, node: u32) -> f64 {
        let at = node as usize;
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        (self.ends[at] - begin) as f64 / self.total().max(1) as f64
    }

    /// What an edge from each drawn source counts: how often it came in `draws` independent draws under `key`, over `draws` times
    /// its probability. Nothing where the graph has no edges.
    pub(super) fn draw(&self, draws: u32, key: Key) -> SourceScales {
        let mut scales = SourceScales::default();
        if self.total() > 0 {
            for j in 0..u64::from(draws) {
                let x = key.below(j, self.total());
                let node = self.ends.partition_point(|&end| end <= x) as u32;
                *scales.entry(node).or_insert(0.0) += 1.0;
            }
            let scale = |(&node, times): (&u32, &mut f64)| *times /= f64::from(draws) * self.share(node);
            scales.iter_mut().for_each(scale);
        }
        scales
    }

    /// The end of the last stretch.
    pub(super) fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
}

/// SourceScales sources, each with what an edge from it counts.
pub(super) type SourceScales = HashMap<u32, f64, BuildHasherDefault<Spread>>;
