//! The sampling loops, pipelined over small chunks of nodes.
//!
//! Most of the time is memory latency: of a node's row bounds, of the chosen entries of its row, and of the compactor's
//! entry of each. Each stage of a chunk therefore prefetches the data of the next one. *Choose* reads row bounds, draws
//! edges and prefetches their entries. *Load* reads these and prefetches the compactor's entries. *Resolve* reads those
//! and writes positions. Stages of different chunks alternate, which hides the latency.

use std::panic::panic_any;

use gnnflow_data::rng::Key;

use super::columns::Collect;
use super::per_edge::Chooser;
use super::pick::{self, PickedEdges};
use super::{Fanout, Neighbors, Sampler, SamplerFault, Strategy};

/// Target number of picks per chunk.
const CHUNK_PICKS: usize = 512;
/// Largest number of nodes per chunk.
const CHUNK_NODES: usize = 128;

/// The nodes to sample, and the destination of their samples.
pub(super) trait Work {
    /// Returns the number of nodes to sample.
    fn len(&self) -> usize;
    /// Returns the node at position `i`.
    fn node(&self, i: usize) -> u32;
    /// Returns the index and time of the seed of the node's tree, if seeds have trees.
    #[inline(always)]
    fn tree(&self, _i: usize) -> Option<(u32, i64)> {
        None
    }
    /// Prefetches the data that `resolve` needs of a neighbor.
    fn prefetch(&self, neighbor: u32);
    /// Processes sampled neighbors, in order, and may replace them.
    fn resolve(&mut self, neighbors: &mut [u32]);
}

/// Samples by a uniform strategy, with a specialized loop.
pub(super) fn run<N: Neighbors>(
    topology: &N,
    fanout: Fanout,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut impl Work,
    columns: &mut impl Collect,
    end: impl FnMut(usize),
) {
    match fanout {
        // Common fanouts are multiples of five.
        Fanout::Uniform { k } if k <= 5 => run_picks(topology, Subset::<5>(k as usize), key, out, work, columns, end),
        Fanout::Uniform { k } if k <= 10 => run_picks(topology, Subset::<10>(k as usize), key, out, work, columns, end),
        Fanout::Uniform { k } if k <= 15 => run_picks(topology, Subset::<15>(k as usize), key, out, work, columns, end),
        Fanout::Uniform { k } if k <= 25 => run_picks(topology, Subset::<25>(k as usize), key, out, work, columns, end),
        Fanout::Uniform { k } => {
            run_picks(
                topology,
                AnySubset { k: k as usize, picked: PickedEdges::default() },
                key,
                out,
                work,
                columns,
                end,
            );
        }
        Fanout::UniformWithReplacement { k } => {
            run_picks(topology, WithReplacement(k as usize), key, out, work, columns, end)
        }
        Fanout::All => run_rows(topology, out, work, end, |node, _, row, out| {
            out.extend_from_slice(row);
            columns.collect(topology, node, 0..row.len());
        }),
    }
}

/// Samples by any strategy.
pub(super) fn run_strategy<N: Neighbors>(
    topology: &N,
    strategy: &Strategy,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut impl Work,
    columns: &mut impl Collect,
    end: impl FnMut(usize),
) {
    match strategy {
        Strategy::Fanout(fanout) => run(topology, *fanout, key, out, work, columns, end),
        Strategy::Layer(_) => run(topology, Fanout::All, key, out, work, columns, end),
        Strategy::PerEdge(strategy) => {
            let (mut chooser, mut picks) = (Chooser::new(strategy), Vec::new());
            run_rows(topology, out, work, end, |node, tree, row, out| {
                picks.clear();
                chooser.choose(topology, node, key, tree, &mut picks);
                out.extend(picks.iter().map(|&at| row[at as usize]));
                columns.collect(topology, node, picks.iter().map(|&at| at as usize));
            });
        }
        Strategy::Importance(draws, importance) => {
            let scales = importance.draw(*draws, key);
            let (mut picks, mut weights) = (Vec::new(), Vec::new());
            run_rows(topology, out, work, end, |node, _, row, out| {
                picks.clear();
                weights.clear();
                for (at, source) in (0..).zip(row) {
                    if let Some(scale) = scales.get(source) {
                        out.push(*source);
                        picks.push(at);
                        weights.push((scale / row.len() as f64) as f32);
                    }
                }
                columns.collect_weighted(topology, node, &picks, &weights);
            });
        }
        Strategy::Registered(sampler, fanout) => {
            assert!(
                !columns.is_active(),
                "sampler {} returns sources only; it cannot be combined with edge columns",
                sampler.name()
            );
            run_sampler(&**sampler, topology, *fanout, key, out, work, end);
        }
    }
}

/// Samples by a user's sampler.
fn run_sampler<N: Neighbors>(
    sampler: &dyn Sampler,
    topology: &N,
    fanout: i64,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut impl Work,
    end_of_node: impl FnMut(usize),
) {
    run_rows(topology, out, work, end_of_node, |node, _, row, out| {
        let before = out.len();
        sampler.sample(node, row, topology.edge_offset(node), fanout, key.fold(u64::from(node)), out);
        let name = || sampler.name().to_owned();
        let Some(picks) = out.get(before..) else { panic_any(SamplerFault::Removed(name())) };
        if let Some(returned) = first_not_in(row, picks) {
            panic_any(SamplerFault::NoEdge { sampler: name(), node, returned });
        }
    });
}

/// Returns the first of `picks` that is not in `row`. Reads `row` once if they have its order.
fn first_not_in(row: &[u32], picks: &[u32]) -> Option<u32> {
    let mut rest = row.iter();
    picks.iter().copied().find(|pick| !rest.any(|source| source == pick) && !row.contains(pick))
}

/// A choice of edges of one row.
trait Pick {
    /// Returns the approximate number of picks per node.
    fn fanout(&self) -> usize;
    /// Appends the chosen entries of `row` to `chosen` and prefetches them.
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>);
}

/// At most `LANES` picks without replacement.
struct Subset<const LANES: usize>(usize);

impl<const LANES: usize> Pick for Subset<LANES> {
    fn fanout(&self) -> usize {
        self.0
    }
    #[inline(always)]
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>) {
        if row.len() <= self.0 {
            choose_all(row, chosen);
        } else {
            let degree = u32::try_from(row.len()).expect("a node has at most 2^32 - 1 in-edges");
            let picks = pick::subset::<LANES>(key, degree, self.0);
            chosen.extend(picks[..self.0].iter().map(|&edge| prefetched(&row[edge as usize])));
        }
    }
}

/// Any number of picks without replacement.
struct AnySubset {
    k: usize,
    picked: PickedEdges,
}

impl Pick for AnySubset {
    fn fanout(&self) -> usize {
        self.k
    }
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>) {
        if row.len() <= self.k {
            choose_all(row, chosen);
        } else {
            self.picked.subset(key, row.len(), self.k, |edge| chosen.push(prefetched(&row[edge])));
        }
    }
}

/// Picks with replacement.
struct WithReplacement(usize);

impl Pick for WithReplacement {
    fn fanout(&self) -> usize {
        self.0
    }
    #[inline(always)]
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>) {
        if !row.is_empty() {
            let degree = row.len() as u64;
            chosen.extend((0..self.0 as u64).map(|j| prefetched(&row[key.below(j, degree) as usize])));
        }
    }
}

#[inline(always)]
fn prefetched(entry: &u32) -> &u32 {
    crate::prefetch::prefetch(entry);
    entry
}

#[inline(always)]
fn choose_all<'t>(row: &'t [u32], chosen: &mut Vec<&'t u32>) {
    // One prefetch per cache line of 16 entries.
    row.iter().step_by(16).chain(row.last()).for_each(|entry| crate::prefetch::prefetch(entry));
    chosen.extend(row);
}

/// Returns the position of `entry` in its `row`.
#[inline(always)]
fn position(row: &[u32], entry: &u32) -> usize {
    (std::ptr::from_ref(entry).addr() - row.as_ptr().addr()) / size_of::<u32>()
}

/// A chunk between two stages.
#[derive(Default)]
struct Chunk<'t> {
    chosen: Vec<&'t u32>,
    /// The end of each node's entries in `chosen`.
    ends: Vec<usize>,
}

/// The loop of draws that read few entries of a row.
fn run_picks<N: Neighbors, W: Work>(
    topology: &N,
    mut pick: impl Pick,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut W,
    columns: &mut impl Collect,
    mut end_of_node: impl FnMut(usize),
) {
    let nodes = work.len();
    let step = (CHUNK_PICKS / pick.fanout().max(1)).clamp(1, CHUNK_NODES);
    (0..step.min(nodes)).for_each(|i| topology.prefetch(work.node(i)));
    let mut chunk = Chunk::default();
    let mut resolved = out.len();
    for start in (0..nodes).step_by(step) {
        let end = (start + step).min(nodes);
        // Row bounds of the next chunk.
        (end..(end + step).min(nodes)).for_each(|i| topology.prefetch(work.node(i)));
        // Choose.
        chunk.chosen.clear();
        chunk.ends.clear();
        for i in start..end {
            let (node, before) = (work.node(i), chunk.chosen.len());
            let row = topology.neighbors(node);
            pick.pick(row, key.fold(u64::from(node)), &mut chunk.chosen);
            columns.collect(topology, node, chunk.chosen[before..].iter().map(|entry| position(row, entry)));
            chunk.ends.push(chunk.chosen.len());
        }
        // Resolve the previous chunk, whose compactor entries its load stage has prefetched.
        let loaded = out.len();
        work.resolve(&mut out[resolved..]);
        resolved = loaded;
        // Load.
        out.extend(chunk.chosen.iter().map(|&&neighbor| {
            work.prefetch(neighbor);
            neighbor
        }));
        chunk.ends.iter().for_each(|&end| end_of_node(loaded + end));
    }
    work.resolve(&mut out[resolved..]);
}

/// The loop of draws that read whole rows: `append` appends the picks of a row, given the node and its tree.
fn run_rows<N: Neighbors, W: Work>(
    topology: &N,
    out: &mut Vec<u32>,
    work: &mut W,
    mut end_of_node: impl FnMut(usize),
    mut append: impl FnMut(u32, Option<(u32, i64)>, &[u32], &mut Vec<u32>),
) {
    /// Prefetch distance of row bounds, in nodes; half of it for the first entries of rows.
    const AHEAD: usize = 16;
    let nodes = work.len();
    let mut resolved = out.len();
    for i in 0..nodes {
        if i + AHEAD < nodes {
            topology.prefetch(work.node(i + AHEAD));
        }
        if i + AHEAD / 2 < nodes
            && let Some(first) = topology.neighbors(work.node(i + AHEAD / 2)).first()
        {
            crate::prefetch::prefetch(first);
        }
        let node = work.node(i);
        append(node, work.tree(i), topology.neighbors(node), out);
        end_of_node(out.len());
        if out.len() - resolved >= CHUNK_PICKS {
            work.resolve(&mut out[resolved..]);
            resolved = out.len();
        }
    }
    work.resolve(&mut out[resolved..]);
}
