//! Draws by edge weight, type and time, as positions in one row.

use gnnflow_data::rng::Key;

use super::pick::PickedEdges;
use super::sum_tree::SumTree;
use super::{Draw, EdgeFanout, Neighbors, PerEdgeStrategy};

/// Draws by a [`PerEdgeStrategy`]; memory is reused between rows.
pub(super) struct Chooser<'c> {
    strategy: &'c PerEdgeStrategy,
    scratch: Scratch,
    /// Eligible positions in the row of a temporal draw.
    older: Vec<u32>,
    /// Eligible positions by type.
    by_type: Vec<Vec<u32>>,
    /// Types that occur in the row.
    types: Vec<usize>,
}

#[derive(Default)]
struct Scratch {
    picked: PickedEdges,
    tree: SumTree<f32>,
    latest: Vec<(i64, u32)>,
}

/// A node's row, and the hop's key.
struct Row<'t, N> {
    topology: &'t N,
    node: u32,
    sources: &'t [u32],
    hop: Key,
}

impl<'c> Chooser<'c> {
    pub(super) fn new(strategy: &'c PerEdgeStrategy) -> Self {
        let types = match &strategy.fanouts {
            EdgeFanout::Each(_) => 0,
            EdgeFanout::ByType(fanouts) => fanouts.len(),
        };
        Self {
            strategy,
            scratch: Scratch::default(),
            older: Vec::new(),
            by_type: vec![Vec::new(); types],
            types: Vec::new(),
        }
    }

    /// Appends the positions in `node`'s row of the chosen edges to `picks`. `hop` is the hop's key; `tree` the index
    /// and time of the tree's seed, for temporal strategies.
    pub(super) fn choose<N: Neighbors>(
        &mut self,
        topology: &N,
        node: u32,
        hop: Key,
        tree: Option<(u32, i64)>,
        picks: &mut Vec<u32>,
    ) {
        let Self { strategy, scratch, older, by_type, types } = self;
        let row = Row { topology, node, sources: topology.neighbors(node), hop };
        let key = hop.fold(u64::from(node));
        let key = tree.map_or(key, |(tree, _)| key.fold(u64::from(tree)));
        let len = row.sources.len();
        let eligible = tree.filter(|_| strategy.temporal).map(|(_, time)| {
            let times = topology.edge_times(node).expect("the topology has edge times");
            older.clear();
            older.extend((0..len as u32).filter(|&at| times[at as usize] < time));
            &older[..]
        });
        match &strategy.fanouts {
            EdgeFanout::Each(fanout) => scratch.draw(&row, strategy.draw, *fanout, eligible, key, picks),
            EdgeFanout::ByType(fanouts) => {
                let type_of = topology.edge_types(node).expect("the topology has edge types");
                let mut group = |at: u32| {
                    let edge_type = usize::from(type_of[at as usize]);
                    if fanouts.get(edge_type).is_some_and(|&fanout| fanout != 0) {
                        if by_type[edge_type].is_empty() {
                            types.push(edge_type);
                        }
                        by_type[edge_type].push(at);
                    }
                };
                match eligible {
                    Some(eligible) => eligible.iter().for_each(|&at| group(at)),
                    None => (0..len as u32).for_each(&mut group),
                }
                types.sort_unstable();
                for edge_type in types.drain(..) {
                    let (key, eligible) = (key.fold(edge_type as u64), &mut by_type[edge_type]);
                    scratch.draw(&row, strategy.draw, fanouts[edge_type], Some(eligible), key, picks);
                    eligible.clear();
                }
            }
        }
    }
}

impl Scratch {
    /// Appends the picks of `draw` among the positions `eligible`, or among the whole row.
    fn draw<N: Neighbors>(
        &mut self,
        row: &Row<'_, N>,
        draw: Draw,
        fanout: i64,
        eligible: Option<&[u32]>,
        key: Key,
        picks: &mut Vec<u32>,
    ) {
        let count = eligible.map_or(row.sources.len(), <[u32]>::len);
        let at = |i: usize| eligible.map_or(i as u32, |eligible| eligible[i]);
        // Except with replacement, a fanout that reaches the number of eligible edges takes all.
        let k = usize::try_from(fanout).ok();
        match draw {
            Draw::Weighted | Draw::WeightedWithReplacement => {
                let weights = row.topology.edge_weights(row.node).expect("the topology has edge weights");
                self.tree.fill((0..count).map(|i| weights[at(i) as usize]));
                match k {
                    Some(k) if draw == Draw::WeightedWithReplacement => {
                        if self.tree.positive() > 0 {
                            picks.extend((0..k as u64).map(|j| at(self.tree.find(key.unit(j)))));
                        }
                    }
                    Some(k) if k < self.tree.positive() => picks.extend((0..k as u64).map(|j| {
                        let found = self.tree.find(key.unit(j));
                        self.tree.remove(found);
                        at(found)
                    })),
                    _ => picks.extend((0..count).filter(|&i| self.tree.is_positive(i)).map(at)),
                }
            }
            Draw::UniformWithReplacement => match k {
                Some(k) if count > 0 => {
                    picks.extend((0..k as u64).map(|j| at(key.below(j, count as u64) as usize)));
                }
                _ => picks.extend((0..count).map(at)),
            },
            Draw::Uniform | Draw::Labor | Draw::Last if k.is_none_or(|k| count <= k) => {
                picks.extend((0..count).map(at));
            }
            Draw::Uniform => {
                self.picked.subset(key, count, k.unwrap_or(count), |i| picks.push(at(i)));
            }
            Draw::Labor => {
                let limit = labor_limit(k.unwrap_or(count), count);
                let is_taken = |at: &u32| row.hop.fold(u64::from(row.sources[*at as usize])).draw(0) < limit;
                picks.extend((0..count).map(at).filter(is_taken));
            }
            Draw::Last => {
                let times = row.topology.edge_times(row.node).expect("the topology has edge times");
                self.latest.clear();
                self.latest.extend((0..count).map(|i| (times[at(i) as usize], at(i))));
                let k = k.unwrap_or(count);
                if k > 0 {
                    self.latest.select_nth_unstable(count - k);
                    let first = picks.len();
                    picks.extend(self.latest[count - k..].iter().map(|&(_, at)| at));
                    picks[first..].sort_unstable();
                }
            }
        }
    }
}

/// Returns the limit below which a draw takes a source: `k / count` of the range, for `count` > `k` in-edges.
fn labor_limit(k: usize, count: usize) -> u64 {
    (((k as u128) << 64) / count as u128) as u64
}
