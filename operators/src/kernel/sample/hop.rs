//! The loops of sampling, by stages over small chunks of nodes.
//!
//! The time goes into waiting for memory: for a node's row bounds, for the chosen entries of its row, for the compactor's
//! entry of each. So no step reads what it could only now name. A chunk passes three stages, each of which names what the
//! next one reads: *choose* (bounds are here; draws edges and asks for their entries), *load* (entries are here; asks the
//! compactor for theirs), *settle* (positions). Other chunks' stages lie between, long enough for memory to answer.

use gnnflow_data::rng::Key;

use super::columns::{Columns, EdgeValues, Keep};
use super::drawn::Chooser;
use super::pick::{self, Taken};
use super::samples::Samples;
use super::{Choice, Fanout, Neighbors, Sampler};
use crate::block::Block;
use crate::kernel::compact::Compactor;

/// Picks that one chunk aims at.
const CHUNK_PICKS: usize = 512;
/// Nodes that one chunk may have.
const CHUNK_NODES: usize = 128;

/// Samples in-neighbours of `nodes`: the owner's half of a hop.
///
/// Appends to `counts` how many each node got, and to `out` the neighbours' global ids, node by node. `key` names the
/// hop of the batch that asks.
///
/// # Panics
/// When the topology does not hold one of `nodes`.
pub fn sample_neighbors(
    topology: &impl Neighbors,
    nodes: &[u32],
    fanout: Fanout,
    key: Key,
    counts: &mut Vec<u32>,
    out: &mut Vec<u32>,
) {
    counts.reserve(nodes.len());
    let mut before = out.len();
    let mut asked = Asked { nodes, trees: None };
    run(topology, fanout, key, out, &mut asked, &mut (), |end| {
        counts.push((end - before) as u32);
        before = end;
    });
}

/// As [`sample_neighbors`], by a sampler of one's own.
///
/// # Panics
/// As [`sample_neighbors`].
pub fn sample_neighbors_by(
    sampler: &dyn Sampler,
    topology: &impl Neighbors,
    nodes: &[u32],
    fanout: i64,
    key: Key,
    counts: &mut Vec<u32>,
    out: &mut Vec<u32>,
) {
    counts.reserve(nodes.len());
    let mut before = out.len();
    let mut asked = Asked { nodes, trees: None };
    run_by(sampler, topology, fanout, key, out, &mut asked, |end| {
        counts.push((end - before) as u32);
        before = end;
    });
}

/// Samples in-neighbours of every node of `list` and returns the hop's block; nodes not listed before are appended to
/// `list` in order of first appearance.
///
/// `compactor` follows `list`: it was [started](Compactor::start) with the batch's seeds and has seen its earlier
/// hops. `key` names the hop.
///
/// ```
/// use gnnflow_data::rng::{Key, Purpose};
/// use gnnflow_operators::kernel::compact::Compactor;
/// use gnnflow_operators::kernel::sample::{Csc, Fanout, sample_hop};
///
/// // A path 0 → 1 → 2: node 1 hears from 0, node 2 from 1.
/// let topology = Csc::new(&[0, 0, 1, 2], &[0, 1]);
/// let mut compactor = Compactor::new(3);
/// let mut list = vec![2];
/// compactor.start(&list);
/// let batch = Key::new(1, Purpose::Sample).fold(0).fold(0).fold(0);
/// let first = sample_hop(&topology, &mut list, Fanout::Uniform { k: 5 }, batch.fold(0), &mut compactor);
/// let second = sample_hop(&topology, &mut list, Fanout::Uniform { k: 5 }, batch.fold(1), &mut compactor);
/// assert_eq!(list, [2, 1, 0]);
/// assert_eq!((first.num_dst(), first.num_src()), (1, 2));
/// assert_eq!((second.num_dst(), second.neighbors(0), second.neighbors(1)), (2, &[1][..], &[2][..]));
/// ```
///
/// # Panics
/// When the topology does not hold one of the list's nodes, or `compactor` follows another list.
pub fn sample_hop(
    topology: &impl Neighbors,
    list: &mut Vec<u32>,
    fanout: Fanout,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    let (num_dst, mut indices, mut indptr) = (list.len(), Vec::new(), begun(list.len()));
    let mut growing = Growing { num_dst, list, compactor };
    run(topology, fanout, key, &mut indices, &mut growing, &mut (), |end| indptr.push(edge_count(end)));
    finish(num_dst, list.len(), indptr, indices)
}

/// As [`sample_hop`], by a sampler of one's own.
///
/// # Panics
/// As [`sample_hop`].
pub fn sample_hop_by(
    sampler: &dyn Sampler,
    topology: &impl Neighbors,
    list: &mut Vec<u32>,
    fanout: i64,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    let (num_dst, mut indices, mut indptr) = (list.len(), Vec::new(), begun(list.len()));
    let mut growing = Growing { num_dst, list, compactor };
    run_by(sampler, topology, fanout, key, &mut indices, &mut growing, |end| indptr.push(edge_count(end)));
    finish(num_dst, list.len(), indptr, indices)
}

/// Samples in-neighbours of `nodes` by any choice, and appends them to `samples`, with the columns that it has: the
/// owner's half of a hop. `trees` says in whose tree each node stands, for a [temporal](Choice::is_temporal) choice.
///
/// # Panics
/// When the topology does not hold one of `nodes`, or lacks a column that the choice or `samples` needs; when a user's
/// sampler is to bring columns along, which it cannot.
pub fn choose_neighbors(
    topology: &impl Neighbors,
    nodes: &[u32],
    trees: Option<Trees<'_>>,
    choice: &Choice,
    key: Key,
    samples: &mut Samples,
) {
    assert_eq!(choice.is_temporal(), trees.is_some(), "each node of a temporal hop stands in a seed's tree");
    let Samples { counts, neighbors, values } = samples;
    counts.reserve(nodes.len());
    let mut before = neighbors.len();
    let mut asked = Asked { nodes, trees };
    let end_of_node = |end| {
        counts.push((end - before) as u32);
        before = end;
    };
    if *values == EdgeValues::default() {
        run_choice(topology, choice, key, neighbors, &mut asked, &mut (), end_of_node);
    } else {
        run_choice(topology, choice, key, neighbors, &mut asked, values, end_of_node);
    }
}

/// As [`sample_hop`], by any choice that can be [fused](Choice::is_fused), with `columns` in the block.
///
/// # Panics
/// As [`sample_hop`] and [`choose_neighbors`].
pub fn choose_hop(
    topology: &impl Neighbors,
    list: &mut Vec<u32>,
    choice: &Choice,
    columns: Columns,
    key: Key,
    compactor: &mut Compactor,
) -> Block {
    assert!(choice.is_fused(), "trees and layers are drawn and then assembled");
    let (num_dst, mut indices, mut indptr) = (list.len(), Vec::new(), begun(list.len()));
    let mut growing = Growing { num_dst, list, compactor };
    let mut values = EdgeValues::new(columns);
    let end_of_node = |end| indptr.push(edge_count(end));
    if columns.is_empty() {
        run_choice(topology, choice, key, &mut indices, &mut growing, &mut (), end_of_node);
    } else {
        run_choice(topology, choice, key, &mut indices, &mut growing, &mut values, end_of_node);
    }
    values.into_block(finish(num_dst, list.len(), indptr, indices))
}

/// An `indptr` with room for `nodes` ends, and the 0 before them.
pub(super) fn begun(nodes: usize) -> Vec<u32> {
    let mut indptr = Vec::with_capacity(nodes + 1);
    indptr.push(0);
    indptr
}

/// The end of a node's edges as a block holds it.
#[inline(always)]
pub(super) fn edge_count(edges: usize) -> u32 {
    u32::try_from(edges).expect("a block has at most 2^32 - 1 edges")
}

pub(super) fn finish(num_dst: usize, num_src: usize, indptr: Vec<u32>, indices: Vec<u32>) -> Block {
    Block::new(num_dst as u32, num_src as u32, indptr, indices)
}

/// Whose neighbours are sampled, and what becomes of the samples.
trait Work {
    /// How many nodes are sampled.
    fn len(&self) -> usize;
    /// The node at position `i`.
    fn node(&self, i: usize) -> u32;
    /// The index and time of the seed in whose tree it stands, where seeds have trees.
    #[inline(always)]
    fn tree(&self, _i: usize) -> Option<(u32, i64)> {
        None
    }
    /// Hears of a neighbour soon to be settled.
    fn expect(&self, neighbor: u32);
    /// Takes over sampled neighbours, in order, and may replace them.
    fn settle(&mut self, neighbors: &mut [u32]);
}

/// In whose tree each node stands, and the time of that seed.
#[derive(Clone, Copy, Debug)]
pub struct Trees<'a> {
    /// The position of the seed among its batch's, by node.
    pub trees: &'a [u32],
    /// The seed's time, by node.
    pub times: &'a [i64],
}

/// The nodes of a request: samples are left as global ids.
struct Asked<'a> {
    nodes: &'a [u32],
    trees: Option<Trees<'a>>,
}

impl Work for Asked<'_> {
    fn len(&self) -> usize {
        self.nodes.len()
    }
    #[inline(always)]
    fn node(&self, i: usize) -> u32 {
        self.nodes[i]
    }
    #[inline(always)]
    fn tree(&self, i: usize) -> Option<(u32, i64)> {
        self.trees.map(|trees| (trees.trees[i], trees.times[i]))
    }
    #[inline(always)]
    fn expect(&self, _neighbor: u32) {}
    fn settle(&mut self, _neighbors: &mut [u32]) {}
}

/// The first `num_dst` nodes of a list that grows by what is sampled: samples become positions in it.
struct Growing<'a> {
    num_dst: usize,
    list: &'a mut Vec<u32>,
    compactor: &'a mut Compactor,
}

impl Work for Growing<'_> {
    fn len(&self) -> usize {
        self.num_dst
    }
    #[inline(always)]
    fn node(&self, i: usize) -> u32 {
        self.list[i]
    }
    #[inline(always)]
    fn expect(&self, neighbor: u32) {
        self.compactor.prefetch(neighbor);
    }
    fn settle(&mut self, neighbors: &mut [u32]) {
        self.compactor.compact(neighbors, self.list);
    }
}

/// Samples by a built-in uniform way: picks the loop made for it.
fn run<N: Neighbors>(
    topology: &N,
    fanout: Fanout,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut impl Work,
    keep: &mut impl Keep,
    end: impl FnMut(usize),
) {
    match fanout {
        // Fanouts in the field are multiples of five.
        Fanout::Uniform { k } if k <= 5 => run_picks(topology, Subset::<5>(k as usize), key, out, work, keep, end),
        Fanout::Uniform { k } if k <= 10 => run_picks(topology, Subset::<10>(k as usize), key, out, work, keep, end),
        Fanout::Uniform { k } if k <= 15 => run_picks(topology, Subset::<15>(k as usize), key, out, work, keep, end),
        Fanout::Uniform { k } if k <= 25 => run_picks(topology, Subset::<25>(k as usize), key, out, work, keep, end),
        Fanout::Uniform { k } => {
            run_picks(topology, AnySubset { k: k as usize, taken: Taken::default() }, key, out, work, keep, end);
        }
        Fanout::UniformWithReplacement { k } => run_picks(topology, Draws(k as usize), key, out, work, keep, end),
        Fanout::All => run_rows(topology, out, work, end, |node, _, row, out| {
            out.extend_from_slice(row);
            keep.keep(topology, node, 0..row.len());
        }),
    }
}

/// Samples by any choice.
fn run_choice<N: Neighbors>(
    topology: &N,
    choice: &Choice,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut impl Work,
    keep: &mut impl Keep,
    end: impl FnMut(usize),
) {
    match choice {
        Choice::Fanout(fanout) => run(topology, *fanout, key, out, work, keep, end),
        Choice::Layer(_) => run(topology, Fanout::All, key, out, work, keep, end),
        Choice::Drawn(drawn) => {
            let (mut chooser, mut picks) = (Chooser::new(drawn), Vec::new());
            run_rows(topology, out, work, end, |node, tree, row, out| {
                picks.clear();
                chooser.choose(topology, node, key, tree, &mut picks);
                out.extend(picks.iter().map(|&at| row[at as usize]));
                keep.keep(topology, node, picks.iter().map(|&at| at as usize));
            });
        }
        Choice::By(sampler, fanout) => {
            assert!(!keep.is_kept(), "sampler {} says which sources it takes, not which edges", sampler.name());
            run_by(&**sampler, topology, *fanout, key, out, work, end);
        }
    }
}

/// Samples by a user's own sampler.
fn run_by<N: Neighbors>(
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
        assert!(out.len() >= before, "sampler {} took from what was there before", sampler.name());
    });
}

/// Chooses edges of one row.
trait Pick {
    /// About how many it picks of a node.
    fn fanout(&self) -> usize;
    /// Appends the chosen entries of `row` to `chosen` and asks memory for them.
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
            chosen.extend(picks[..self.0].iter().map(|&edge| ask(&row[edge as usize])));
        }
    }
}

/// Any number of picks without replacement.
struct AnySubset {
    k: usize,
    taken: Taken,
}

impl Pick for AnySubset {
    fn fanout(&self) -> usize {
        self.k
    }
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>) {
        if row.len() <= self.k {
            choose_all(row, chosen);
        } else {
            self.taken.subset(key, row.len(), self.k, |edge| chosen.push(ask(&row[edge])));
        }
    }
}

/// Picks with replacement.
struct Draws(usize);

impl Pick for Draws {
    fn fanout(&self) -> usize {
        self.0
    }
    #[inline(always)]
    fn pick<'t>(&mut self, row: &'t [u32], key: Key, chosen: &mut Vec<&'t u32>) {
        if !row.is_empty() {
            let degree = row.len() as u64;
            chosen.extend((0..self.0 as u64).map(|j| ask(&row[key.below(j, degree) as usize])));
        }
    }
}

#[inline(always)]
fn ask(entry: &u32) -> &u32 {
    crate::kernel::prefetch(entry);
    entry
}

#[inline(always)]
fn choose_all<'t>(row: &'t [u32], chosen: &mut Vec<&'t u32>) {
    // One request per cache line of 16 entries.
    row.iter().step_by(16).chain(row.last()).for_each(|entry| crate::kernel::prefetch(entry));
    chosen.extend(row);
}

/// Where `entry` stands in the row that it is of.
#[inline(always)]
fn position(row: &[u32], entry: &u32) -> usize {
    (std::ptr::from_ref(entry).addr() - row.as_ptr().addr()) / size_of::<u32>()
}

/// A chunk between its stages.
#[derive(Default)]
struct Chunk<'t> {
    chosen: Vec<&'t u32>,
    /// Where each node's entries end in `chosen`.
    ends: Vec<usize>,
}

/// The loop for ways that look at few entries of a row.
fn run_picks<N: Neighbors, W: Work>(
    topology: &N,
    mut pick: impl Pick,
    key: Key,
    out: &mut Vec<u32>,
    work: &mut W,
    keep: &mut impl Keep,
    mut end_of_node: impl FnMut(usize),
) {
    let nodes = work.len();
    let step = (CHUNK_PICKS / pick.fanout().max(1)).clamp(1, CHUNK_NODES);
    (0..step.min(nodes)).for_each(|i| topology.prefetch(work.node(i)));
    let mut chunk = Chunk::default();
    let mut settled = out.len();
    for start in (0..nodes).step_by(step) {
        let end = (start + step).min(nodes);
        // Bounds of the next chunk's rows.
        (end..(end + step).min(nodes)).for_each(|i| topology.prefetch(work.node(i)));
        // Choose.
        chunk.chosen.clear();
        chunk.ends.clear();
        for i in start..end {
            let (node, before) = (work.node(i), chunk.chosen.len());
            let row = topology.neighbors(node);
            pick.pick(row, key.fold(u64::from(node)), &mut chunk.chosen);
            keep.keep(topology, node, chunk.chosen[before..].iter().map(|entry| position(row, entry)));
            chunk.ends.push(chunk.chosen.len());
        }
        // Settle the chunk before: its compactor entries were asked for when it was loaded.
        let loaded = out.len();
        work.settle(&mut out[settled..]);
        settled = loaded;
        // Load.
        out.extend(chunk.chosen.iter().map(|&&neighbor| {
            work.expect(neighbor);
            neighbor
        }));
        chunk.ends.iter().for_each(|&end| end_of_node(loaded + end));
    }
    work.settle(&mut out[settled..]);
}

/// The loop for ways that look at whole rows: `append` appends what it takes of a node's row, given the node and its tree.
fn run_rows<N: Neighbors, W: Work>(
    topology: &N,
    out: &mut Vec<u32>,
    work: &mut W,
    mut end_of_node: impl FnMut(usize),
    mut append: impl FnMut(u32, Option<(u32, i64)>, &[u32], &mut Vec<u32>),
) {
    /// Nodes ahead for bounds; half of it for the first entries.
    const AHEAD: usize = 16;
    let nodes = work.len();
    let mut settled = out.len();
    for i in 0..nodes {
        if i + AHEAD < nodes {
            topology.prefetch(work.node(i + AHEAD));
        }
        if i + AHEAD / 2 < nodes
            && let Some(first) = topology.neighbors(work.node(i + AHEAD / 2)).first()
        {
            crate::kernel::prefetch(first);
        }
        let node = work.node(i);
        append(node, work.tree(i), topology.neighbors(node), out);
        end_of_node(out.len());
        if out.len() - settled >= CHUNK_PICKS {
            work.settle(&mut out[settled..]);
            settled = out.len();
        }
    }
    work.settle(&mut out[settled..]);
}
