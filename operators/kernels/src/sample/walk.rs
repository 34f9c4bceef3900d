//! One step of random walks along in-edges.

use gnnflow_data::rng::Key;

use super::sum_tree::SumTree;
use super::{Bias, Neighbors};

/// How a walk goes on: against the edges, as messages come.
///
/// Step `s` (from 0) of walk `i` draws under `key.fold(i).fold(s)`, where `key` names the batch's walks. With probability `restart`
/// (`unit 0` is below it) the walk goes back to its root. Else it takes an in-edge of the node where it is, and stands at that edge's
/// source: each with the same probability (edge `draw 1 below d`), or in proportion to edge weights (`unit 1` of their sum, along the
/// edges in stored order). Where no edge comes in, or all weigh 0, it stays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Walk {
    /// By edge weights.
    pub weighted: bool,
    /// Probability of going back to the root instead of taking an edge, in `[0, 1)`.
    pub restart: f64,
    /// Whether, and how, a step looks back to where the walk was ([`biased_step`](super::biased_step)).
    pub bias: Option<Bias>,
}

impl Walk {
    /// Whether the step under `key` goes back to the root.
    #[inline]
    pub fn restarts(&self, key: Key) -> bool {
        self.restart > 0.0 && key.unit(0) < self.restart
    }
}

/// Where walks that take an edge, and do not look back, stand after it: of each of `nodes`, the source of an in-edge. `keys` has the key of each walk's step.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_kernels::sample::{Csc, Walk, walk_step};
///
/// // Node 1 hears from 0, node 2 from 1, nobody is heard by 0.
/// let csc = Csc::new(&[0, 0, 1, 2], &[0, 1]);
/// let keys = (0..3).map(|walk| Key::new(1, Purpose::Sample).fold(walk));
/// let mut next = vec![];
/// walk_step(&csc, &[0, 1, 2], Walk::default(), keys, &mut next);
/// assert_eq!(next, [0, 0, 1]);
/// ```
///
/// # Panics
/// When the topology does not hold one of `nodes`, or a weighted walk finds no weights.
pub fn walk_step(
    topology: &impl Neighbors,
    nodes: &[u32],
    walk: Walk,
    keys: impl Iterator<Item = Key>,
    next: &mut Vec<u32>,
) {
    /// Nodes ahead whose rows' bounds are asked for.
    const AHEAD: usize = 16;
    nodes.iter().take(AHEAD).for_each(|&node| topology.prefetch(node));
    let mut tree = SumTree::<f32>::default();
    for ((i, &node), key) in nodes.iter().enumerate().zip(keys) {
        if let Some(&later) = nodes.get(i + AHEAD) {
            topology.prefetch(later);
        }
        let row = topology.neighbors(node);
        let taken = match (row.is_empty(), walk.weighted) {
            (true, _) => None,
            (false, false) => Some(key.below(1, row.len() as u64) as usize),
            (false, true) => {
                let weights = topology.edge_weights(node).expect("edges have weights");
                tree.fill(weights.iter().copied());
                (tree.positive() > 0).then(|| tree.find(key.unit(1)))
            }
        };
        next.push(taken.map_or(node, |edge| row[edge]));
    }
}
