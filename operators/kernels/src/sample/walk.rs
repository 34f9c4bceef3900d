//! One step of random walks along in-edges.

use gnnflow_data::rng::Key;

use super::sum_tree::SumTree;
use super::{Bias, Neighbors};

/// A random walk against the direction of edges.
///
/// Step `s` (from 0) of walk `i` draws under `key.fold(i).fold(s)`, where `key` is the key of the batch's walks. With
/// probability `restart` (if `unit 0` is below it) the walk returns to its root. Otherwise it moves to the source of an
/// in-edge of its node. The edge is uniform (edge `draw 1 below d`), or in proportion to edge weights (`unit 1` of
/// their sum, in stored order). A walk stays if its node has no in-edges or all weights are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Walk {
    /// Whether edges are drawn in proportion to their weights.
    pub weighted: bool,
    /// Probability of a return to the root instead of a step, in `[0, 1)`.
    pub restart: f64,
    /// The bias by the previous node ([`biased_step`](super::biased_step)), if any.
    pub bias: Option<Bias>,
}

impl Walk {
    /// Returns whether the step under `key` returns to the root.
    #[inline]
    pub fn restarts(&self, key: Key) -> bool {
        self.restart > 0.0 && key.unit(0) < self.restart
    }
}

/// Takes a first-order step of one walk from each of `nodes`, under one key each, and appends the next nodes to `next`.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::sample::{Csc, Walk, walk_step};
///
/// // Node 1 has an in-edge from 0, node 2 from 1, node 0 none.
/// let csc = Csc::new(&[0, 0, 1, 2], &[0, 1]);
/// let keys = (0..3).map(|walk| Key::new(1, Purpose::Sample).fold(walk));
/// let mut next = vec![];
/// walk_step(&csc, &[0, 1, 2], Walk::default(), keys, &mut next);
/// assert_eq!(next, [0, 0, 1]);
/// ```
///
/// # Panics
/// If the topology does not hold one of `nodes`, or has no weights for a weighted walk.
pub fn walk_step(
    topology: &impl Neighbors,
    nodes: &[u32],
    walk: Walk,
    keys: impl Iterator<Item = Key>,
    next: &mut Vec<u32>,
) {
    /// Distance, in nodes, of the prefetch of row bounds.
    const AHEAD: usize = 16;
    nodes.iter().take(AHEAD).for_each(|&node| topology.prefetch(node));
    let mut tree = SumTree::<f32>::default();
    for ((i, &node), key) in nodes.iter().enumerate().zip(keys) {
        if let Some(&later) = nodes.get(i + AHEAD) {
            topology.prefetch(later);
        }
        let row = topology.neighbors(node);
        let edge = match (row.is_empty(), walk.weighted) {
            (true, _) => None,
            (false, false) => Some(key.below(1, row.len() as u64) as usize),
            (false, true) => {
                let weights = topology.edge_weights(node).expect("the topology has edge weights");
                tree.fill(weights.iter().copied());
                (tree.positive() > 0).then(|| tree.find(key.unit(1)))
            }
        };
        next.push(edge.map_or(node, |edge| row[edge]));
    }
}
