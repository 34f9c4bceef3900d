//! Ranks of held-out edges: how many nodes would have been a better end.
//!
//! ```text
//! ends of some edges → fetch_rows (the model's results) → what they are compared with, and their own scores (companion)
//! all nodes, block by block → fetch_rows → how many score higher, how many the same (companion) → probe
//! ```
//!
//! An edge is ranked twice: its tail among all tails, its head among all heads; nodes that are known ends of an edge with the
//! same other end and relation, in any split, are left out (Bordes et al. 2013, filtered). Of equal scores the middle: a rank is
//! 1 + (how many score higher) + (how many the same) / 2. Counts are integers, so that their sums do not depend on who counts
//! which block. No process holds the rows of all nodes: blocks of other partitions' nodes are fetched, and gone when they are
//! counted.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::fetch::fetch_rows::{FetchFrom, FetchRows, RowsAt};
use gnnflow_operators::fetch::matrix::{Number, Values};
use gnnflow_operators::kernel::edge_scores::{compare, dot, higher_and_equal, query};
use gnnflow_operators::sample::mini_batch::{BatchKey, MiniBatch};
use gnnflow_operators::sample::node_groups::NodeGroups;
use gnnflow_operators::sample::pairs::{Edge, Pairs};
use gnnflow_operators::sync::background::{Background, Companion};
use gnnflow_operators::tick;
use rayon::prelude::*;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Input, Probe, probe};
use timely::worker::Worker;

use super::edges::{Known, LinkEdges};
use crate::Error;
use crate::agree::Agreement;
use crate::drive::{Fault, until};
use crate::evaluate::Evaluation;
use crate::job::Host;
use crate::layer_store::LayerStore;
use crate::setup::Setup;
use crate::spec::Link;
use crate::summary::Scores;
use crate::trainer::Trainer;

/// What edges are compared with takes at most so many bytes at once.
const QUERY_BYTES: usize = 64 << 20;
/// Nodes of a block.
const BLOCK: usize = 4096;
/// Rows that are compared while they are near, and edges' ends that are compared with them by one task.
const TILE: usize = 64;
/// Blocks under way.
const WINDOW: u32 = 3;

/// Nodes whose rows are wanted: the ends of edges, or those that they are compared with.
type Wanted = (BatchKey, Vec<u32>, Option<Arc<Pairs>>);

/// The score of a held-out edge, and its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) score: f32,
    /// How many tails, and how many heads, score higher, and how many the same.
    counts: [[u64; 2]; 2],
}

impl Ranked {
    /// Twice the rank of its tail, and of its head.
    fn doubled(&self) -> [u64; 2] {
        self.counts.map(|[higher, equal]| 2 + 2 * higher + equal)
    }

    /// The rank of its tail among all tails, and of its head among all heads.
    pub(crate) fn ranks(&self) -> [f64; 2] {
        self.doubled().map(|doubled| doubled as f64 / 2.0)
    }
}

/// What is being ranked, on the companion thread.
#[derive(Default)]
struct Pass {
    width: usize,
    edges: usize,
    nodes: Arc<NodeGroups>,
    /// Of each edge: what tails are compared with, then what heads are, each `width` wide.
    asked: Vec<f32>,
    own: Vec<f32>,
    /// Nodes that do not count, of each.
    known: Vec<Arc<Vec<u32>>>,
    /// The group whose nodes count.
    groups: Vec<usize>,
    /// Nodes that count, where not all do.
    drawn: Option<Vec<Vec<u32>>>,
    counts: Vec<[u64; 2]>,
}

/// The ranking dataflow of one worker.
pub(crate) struct Ranking {
    input: InputHandle<u64, CapacityContainerBuilder<Vec<Wanted>>>,
    probe: probe::Handle<u64>,
    fault: Fault,
    pass: Arc<Mutex<Pass>>,
    passes: u32,
    step: u32,
    first_part: usize,
    /// Blocks of nodes of one group, those of the partitions hosted here first.
    blocks: Vec<std::ops::Range<u32>>,
    edges: LinkEdges,
    /// Nodes drawn for each end of an edge, and under which key; else all.
    candidates: Option<(usize, Key)>,
    width: usize,
    /// As the last pass left them, by partition; validation, then test.
    ranked: Vec<[Vec<Ranked>; 2]>,
}

impl Ranking {
    /// Builds the dataflow over the model's `results`.
    pub(crate) fn build(
        worker: &mut Worker,
        setup: &Setup,
        results: &Arc<LayerStore>,
        edges: LinkEdges,
        link: &Link,
        seed: u64,
        companion: &Companion<Trainer>,
    ) -> Self {
        let (mut input, probe, fault) = (InputHandle::new_with_builder(), probe::Handle::new(), Fault::default());
        let pass: Arc<Mutex<Pass>> = Arc::default();
        let (kept, counted) = (fault.clone(), Arc::clone(&pass));
        let source = Arc::clone(results) as _;
        let rows = RowsAt { source, number: Number::F32, dim: results.dim(), packed: None, halo: None };
        worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .map(|(key, nodes, pairs): Wanted| {
                    let mut batch = MiniBatch::new(key, nodes);
                    batch.pairs = pairs;
                    batch
                })
                .fetch_rows(FetchFrom {
                    graph: Arc::clone(&setup.graph),
                    rows: Rc::new(move |_| rows.clone()),
                    degrees: false,
                    cache: None,
                    meter: Rc::clone(&setup.meter),
                })
                .background("rank", companion.clone(), move |trainer: &mut Trainer, batch: MiniBatch| {
                    let mut pass = counted.lock().unwrap_or_else(PoisonError::into_inner);
                    pass.take(trainer, &batch)
                })
                .flat_map(move |done| kept.keep(done))
                .probe_with(&probe);
        });
        let hosted = setup.placement.parts_of(setup.worker);
        let (parts, first_part) = (setup.placement.parts(), hosted.start);
        let order = (0..parts).map(|i| (first_part + i) % parts);
        let blocks = order.flat_map(|part| blocks(&edges.nodes, setup.graph.range(part))).collect();
        let candidates =
            link.num_negative_edges_eval.map(|count| (count, Key::new(seed, Purpose::Negative).fold_str("evaluation")));
        let (passes, step, width, ranked) = (0, 0, results.dim(), Vec::new());
        Self { input, probe, fault, pass, passes, step, first_part, blocks, edges, candidates, width, ranked }
    }

    /// Ranks all held-out edges by the model's results, and returns their metrics.
    ///
    /// # Errors
    /// What an operator, or the companion thread, fails with.
    pub(crate) fn evaluate(
        &mut self,
        worker: &mut Worker,
        host: &dyn Host,
        setup: &Setup,
        agreement: &mut Agreement,
    ) -> Result<Evaluation, Error> {
        let hosted = setup.placement.parts_of(setup.worker);
        let chunk = match self.candidates {
            None => QUERY_BYTES / (8 * self.width),
            Some((count, _)) => QUERY_BYTES / (8 * self.width * (1 + count)),
        };
        let mut ranked = Vec::new();
        for part in hosted {
            let mut splits = [Vec::new(), Vec::new()];
            for (split, ranked) in splits.iter_mut().enumerate() {
                let edges = self.edges.held_out[part][split].clone();
                for edges in edges.chunks(chunk.max(1)) {
                    ranked.extend(self.rank(worker, host, edges)?);
                }
            }
            ranked.push(splits);
        }
        // Others may still ask for rows that are here.
        self.passes += 1;
        self.step = 0;
        let next = tick::at(self.passes, 0);
        self.input.advance_to(next);
        self.input.flush();
        until(worker, host, &self.fault, &self.probe, next)?;
        self.ranked = ranked;
        let mut scores = [None, None];
        for (split, scores) in scores.iter_mut().enumerate() {
            let tell = |part: usize| summed(&self.ranked[part - self.first_part][split]);
            *scores = finish(&agreement.by_partition(worker, host, tell)?);
        }
        let [val, test] = scores;
        Ok(Evaluation { train: None, val, test })
    }

    /// The held-out edges of a partition hosted here, with what the last pass found.
    pub(crate) fn held_out(&self, part: usize) -> [(&[Edge], &[Ranked]); 2] {
        let ranked = &self.ranked[part - self.first_part];
        [0, 1].map(|split| (&self.edges.held_out[part][split][..], &ranked[split][..]))
    }

    /// How many edges every partition holds out.
    pub(crate) fn held_out_counts(&self) -> &[u64] {
        &self.edges.held_out_counts
    }

    /// Ranks some edges.
    fn rank(&mut self, worker: &mut Worker, host: &dyn Host, edges: &[Edge]) -> Result<Vec<Ranked>, Error> {
        let pass = Pass::begin(edges, &self.edges.known, &self.edges.nodes, self.candidates, self.width);
        let drawn = pass.drawn.as_ref().map(|drawn| distinct(drawn.iter().flatten().copied()));
        *self.lock() = pass;
        let nodes = distinct(edges.iter().flat_map(|edge| [edge.head, edge.tail]));
        let place = |node: u32| nodes.partition_point(|&other| other < node) as u32;
        let pairs = Pairs {
            heads: edges.iter().map(|edge| place(edge.head)).collect(),
            tails: edges.iter().map(|edge| place(edge.tail)).collect(),
            relations: edges.iter().map(|edge| edge.relation).collect(),
            positives: edges.len(),
            negatives: 0,
        };
        self.send(nodes, Some(pairs));
        self.wait(worker, host, 0)?;
        match drawn {
            Some(nodes) => self.send(nodes, None),
            None => {
                for block in 0..self.blocks.len() {
                    self.send(self.blocks[block].clone().collect(), None);
                    self.wait(worker, host, WINDOW)?;
                }
            }
        }
        self.wait(worker, host, 0)?;
        let pass = std::mem::take(&mut *self.lock());
        let each = pass.own.chunks_exact(2).zip(pass.counts.chunks_exact(2));
        Ok(each.map(|(own, counts)| Ranked { score: own[0], counts: [counts[0], counts[1]] }).collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pass> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&mut self, nodes: Vec<u32>, pairs: Option<Pairs>) {
        let key = BatchKey { epoch: self.passes, step: self.step, partition: self.first_part as u32 };
        self.input.send((key, nodes, pairs.map(Arc::new)));
        self.step += 1;
        self.input.advance_to(tick::at(self.passes, self.step));
        self.input.flush();
    }

    /// Waits until no more than `window` of what was sent are under way.
    fn wait(&self, worker: &mut Worker, host: &dyn Host, window: u32) -> Result<(), Error> {
        let oldest = tick::at(self.passes, self.step.saturating_sub(window));
        until(worker, host, &self.fault, &self.probe, oldest)
    }
}

/// Ascending, each once.
fn distinct(nodes: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut nodes: Vec<u32> = nodes.collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Cuts the nodes of a partition into blocks of one group.
fn blocks(groups: &NodeGroups, range: std::ops::Range<u32>) -> Vec<std::ops::Range<u32>> {
    let mut cuts: Vec<u32> = groups.runs().map(|run| run.0).filter(|first| range.contains(first)).collect();
    cuts.extend([range.start, range.end]);
    let cuts = distinct(cuts.into_iter());
    let run = |bounds: &[u32]| {
        let (first, end) = (bounds[0], bounds[1]);
        (first..end).step_by(BLOCK).map(move |start| start..end.min(start + BLOCK as u32)).collect::<Vec<_>>()
    };
    cuts.windows(2).flat_map(run).collect()
}

impl Pass {
    fn begin(
        edges: &[Edge],
        known: &Known,
        nodes: &Arc<NodeGroups>,
        candidates: Option<(usize, Key)>,
        width: usize,
    ) -> Self {
        let of = |edge: &Edge| [&known.tails[&(edge.head, edge.relation)], &known.heads[&(edge.tail, edge.relation)]];
        let groups: Vec<usize> =
            edges.iter().flat_map(|edge| [edge.tail, edge.head].map(|node| nodes.group_of(node))).collect();
        let drawn = candidates.map(|(count, key)| {
            let draw = |(i, &group): (usize, &usize)| {
                let edge = edges[i / 2];
                let words = [edge.head, edge.tail, u32::from(edge.relation), (i % 2) as u32];
                let key = words.into_iter().fold(key, |key, word| key.fold(u64::from(word)));
                (0..count as u64).map(|j| nodes.draw(group, key, j)).collect()
            };
            groups.iter().enumerate().map(draw).collect()
        });
        Self {
            width,
            edges: edges.len(),
            nodes: Arc::clone(nodes),
            known: edges.iter().flat_map(|edge| of(edge).map(Arc::clone)).collect(),
            counts: vec![[0; 2]; groups.len()],
            groups,
            drawn,
            ..Self::default()
        }
    }

    /// Takes in rows: of the edges' ends, or of nodes that they are compared with.
    fn take(&mut self, trainer: &Trainer, batch: &MiniBatch) -> Result<(), Error> {
        let Values::F32(rows) = &batch.features.values else {
            return Err(Error::Bug("the model's results are 32-bit floats".into()));
        };
        match &batch.pairs {
            Some(pairs) => {
                let tensor = gnnflow_operators::compute::Error::from;
                let relations = trainer.model().relations();
                let relations =
                    relations.map(|rows| rows.flatten_all()?.to_vec1::<f32>()).transpose().map_err(tensor)?;
                self.ask(pairs, rows, relations.as_deref());
            }
            None => trainer.on_threads(|| self.count(&batch.nodes, rows)),
        }
        Ok(())
    }

    /// Finds what the ends are compared with, and what they score.
    fn ask(&mut self, pairs: &Pairs, rows: &[f32], relations: Option<&[f32]>) {
        let width = self.width;
        fn row(rows: &[f32], at: usize, width: usize) -> &[f32] {
            &rows[at * width..(at + 1) * width]
        }
        self.asked = vec![0.0; 2 * self.edges * width];
        self.own.clear();
        for (i, asked) in self.asked.chunks_exact_mut(2 * width).enumerate() {
            let relation = relations.map(|relations| row(relations, usize::from(pairs.relations[i]), width));
            let [head, tail] = [pairs.heads[i], pairs.tails[i]].map(|place| row(rows, place as usize, width));
            for ((from, to), asked) in [(head, tail), (tail, head)].into_iter().zip(asked.chunks_exact_mut(width)) {
                query(from, relation, asked);
                self.own.push(dot(asked, to));
            }
        }
    }

    /// Counts which of `nodes`, whose `rows` these are, score no less than the edges' own ends.
    fn count(&mut self, nodes: &[u32], rows: &[f32]) {
        let Some(&start) = nodes.first() else { return };
        let group = self.nodes.group_of(start);
        let Self { width, asked, own, known, groups, drawn, counts, .. } = self;
        let (width, drawn) = (*width, drawn.as_ref());
        let row = |at: usize| &rows[at * width..(at + 1) * width];
        counts.par_chunks_mut(TILE).enumerate().for_each(|(task, counts)| {
            let first = task * TILE;
            let each = |i: usize| (&asked[(first + i) * width..(first + i + 1) * width], own[first + i]);
            match drawn {
                Some(drawn) => {
                    for (i, count) in counts.iter_mut().enumerate() {
                        let (asked, own) = each(i);
                        for &node in
                            drawn[first + i].iter().filter(|node| known[first + i].binary_search(node).is_err())
                        {
                            let found = compare(asked, own, row(nodes.partition_point(|&other| other < node)));
                            (0..2).for_each(|c| count[c] += u64::from(found[c]));
                        }
                    }
                }
                None => {
                    for tile in rows.chunks(TILE * width) {
                        for (i, count) in counts.iter_mut().enumerate().filter(|(i, _)| groups[first + i] == group) {
                            let (asked, own) = each(i);
                            let found = higher_and_equal(asked, own, tile);
                            (0..2).for_each(|c| count[c] += found[c]);
                        }
                    }
                    let end = nodes[nodes.len() - 1];
                    for (i, count) in counts.iter_mut().enumerate().filter(|(i, _)| groups[first + i] == group) {
                        let (known, (asked, own)) = (&known[first + i], each(i));
                        let from = known.partition_point(|&node| node < start);
                        for &node in known[from..].iter().take_while(|&&node| node <= end) {
                            let found = compare(asked, own, row((node - start) as usize));
                            (0..2).for_each(|c| count[c] -= u64::from(found[c]));
                        }
                    }
                }
            }
        });
    }
}

/// What one partition's ranks of a split come to: how many there are, how many are at most 1, 3 and 10, the sum of their doubles;
/// the sums of their reciprocals and of the losses, as bits.
fn summed(ranked: &[Ranked]) -> Vec<u64> {
    let ranks = || ranked.iter().flat_map(Ranked::doubled);
    let hits = |most: u64| ranks().filter(|&doubled| doubled <= 2 * most).count() as u64;
    let reciprocals: f64 = ranks().map(|doubled| 2.0 / doubled as f64).sum();
    // −log σ(score), without overflow.
    let loss = |score: f64| (-score).max(0.0) + (-score.abs()).exp().ln_1p();
    let losses: f64 = ranked.iter().map(|ranked| loss(f64::from(ranked.score))).sum();
    vec![ranks().count() as u64, hits(1), hits(3), hits(10), ranks().sum(), reciprocals.to_bits(), losses.to_bits()]
}

/// The metrics of a split, from what every partition's ranks come to: sums of integers, and of floats in partition order.
fn finish(parts: &[Vec<u64>]) -> Option<Scores> {
    let sum = |i: usize| parts.iter().map(|words| words[i]).sum::<u64>() as f64;
    let float = |i: usize| parts.iter().map(|words| f64::from_bits(words[i])).sum::<f64>();
    let ranks = sum(0);
    let metrics = [
        ("mrr", float(5) / ranks),
        ("hits_at_1", sum(1) / ranks),
        ("hits_at_3", sum(2) / ranks),
        ("hits_at_10", sum(3) / ranks),
        ("mean_rank", sum(4) / 2.0 / ranks),
    ];
    let edges = ranks / 2.0;
    let metrics = metrics.map(|(name, value)| (name.to_owned(), value)).into();
    (ranks > 0.0).then(|| Scores { nodes: edges as u64, loss: float(6) / edges, metrics })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Rows of 30 nodes with many ties; nodes 0 to 9 and 20 to 29 are of one type, the rest of another.
    fn rows() -> (Vec<f32>, Arc<NodeGroups>) {
        let key = Key::new(3, Purpose::Init);
        let rows = (0..30 * 4).map(|i| key.below(i, 3) as f32 - 1.0).collect();
        (rows, Arc::new(NodeGroups::new(&[(0, 0), (10, 1), (20, 0)], 30)))
    }

    fn known(edges: &[Edge], all: &[Edge]) -> Known {
        let mut known = Known::default();
        for edge in edges {
            let tails = all.iter().filter(|e| (e.head, e.relation) == (edge.head, edge.relation)).map(|e| e.tail);
            let heads = all.iter().filter(|e| (e.tail, e.relation) == (edge.tail, edge.relation)).map(|e| e.head);
            known.tails.insert((edge.head, edge.relation), Arc::new(distinct(tails)));
            known.heads.insert((edge.tail, edge.relation), Arc::new(distinct(heads)));
        }
        known
    }

    #[test]
    fn ranks_are_those_of_sorting_all_candidates_that_are_not_known() {
        let (rows, groups) = rows();
        let key = Key::new(8, Purpose::Init);
        let edge = |i: u64| Edge {
            head: key.below(3 * i, 30) as u32,
            tail: key.below(3 * i + 1, 30) as u32,
            relation: key.below(3 * i + 2, 2) as u16,
        };
        let all: Vec<Edge> = (0..90).map(edge).collect();
        let edges = all[..25].to_vec();
        let known = known(&edges, &all);
        let relations = [0.5f32, 1.0, -1.0, 2.0, 1.0, 1.0, 0.25, 1.0];
        let row = |node: u32| &rows[node as usize * 4..][..4];
        let score = |e: Edge| -> f32 {
            (0..4).map(|c| row(e.head)[c] * relations[usize::from(e.relation) * 4 + c] * row(e.tail)[c]).sum()
        };
        for candidates in [None, Some((12, key.fold(1)))] {
            let mut pass = Pass::begin(&edges, &known, &groups, candidates, 4);
            let pairs = Pairs {
                heads: edges.iter().map(|edge| edge.head).collect(),
                tails: edges.iter().map(|edge| edge.tail).collect(),
                relations: edges.iter().map(|edge| edge.relation).collect(),
                positives: 25,
                negatives: 0,
            };
            pass.ask(&pairs, &rows, Some(&relations));
            match pass.drawn.clone() {
                Some(drawn) => {
                    let nodes = distinct(drawn.iter().flatten().copied());
                    let some: Vec<f32> = nodes.iter().flat_map(|&node| row(node)).copied().collect();
                    pass.count(&nodes, &some);
                }
                None => {
                    for range in blocks(&groups, 0..17).into_iter().chain(blocks(&groups, 17..30)) {
                        let nodes: Vec<u32> = range.clone().collect();
                        pass.count(&nodes, &rows[range.start as usize * 4..range.end as usize * 4]);
                    }
                }
            }
            for (i, &edge) in edges.iter().enumerate() {
                for side in 0..2 {
                    let (truth, with): (u32, Box<dyn Fn(u32) -> Edge>) = match side {
                        0 => (edge.tail, Box::new(|tail| Edge { tail, ..edge })),
                        _ => (edge.head, Box::new(|head| Edge { head, ..edge })),
                    };
                    let others: Vec<u32> = match &pass.drawn {
                        Some(drawn) => drawn[2 * i + side].clone(),
                        None => (0..30).filter(|&node| groups.group_of(node) == groups.group_of(truth)).collect(),
                    };
                    let others = others.into_iter().filter(|&node| !all.contains(&with(node)));
                    let scores: Vec<f32> = others.map(|node| score(with(node))).collect();
                    let higher = scores.iter().filter(|&&s| s > score(edge)).count() as f64;
                    let equal = scores.iter().filter(|&&s| s == score(edge)).count() as f64;
                    let own = [pass.counts[2 * i], pass.counts[2 * i + 1]];
                    let ranks = Ranked { score: pass.own[2 * i], counts: own }.ranks();
                    assert_eq!(ranks[side], 1.0 + higher + equal / 2.0, "{edge:?} {side}");
                }
                assert_eq!(pass.own[2 * i], score(edge));
            }
        }
    }

    #[test]
    fn metrics_are_those_of_the_ranks() {
        let ranked = |score, higher: u64, equal| Ranked { score, counts: [[higher, equal], [0, 0]] };
        let parts = [vec![ranked(0.0, 0, 0), ranked(0.0, 2, 1)], vec![], vec![ranked(0.0, 19, 0)]];
        let scores = finish(&parts.map(|part| summed(&part))).unwrap();
        // Ranks 1, 3.5 and 20 of tails, 1 of all heads.
        let expected: HashMap<&str, f64> = HashMap::from([
            ("mrr", (4.0 + 2.0 / 7.0 + 0.05) / 6.0),
            ("hits_at_1", 4.0 / 6.0),
            ("hits_at_3", 4.0 / 6.0),
            ("hits_at_10", 5.0 / 6.0),
            ("mean_rank", 27.5 / 6.0),
        ]);
        assert_eq!(scores.nodes, 3);
        assert!((scores.loss - 2f64.ln()).abs() < 1e-12);
        assert_eq!(scores.metrics.len(), expected.len());
        for (name, value) in scores.metrics {
            assert!((value - expected[name.as_str()]).abs() < 1e-12, "{name} {value}");
        }
        assert!(finish(&[summed(&[]), summed(&[])]).is_none());
    }

    #[test]
    fn blocks_are_of_one_type_and_cover_a_partition() {
        let groups = NodeGroups::new(&[(0, 0), (10, 1), (20, 0)], 9000);
        assert_eq!(blocks(&groups, 5..15), [5..10, 10..15]);
        assert_eq!(blocks(&groups, 12..18), vec![12..18; 1]);
        assert_eq!(blocks(&groups, 20..9000), [20..4116, 4116..8212, 8212..9000]);
        assert!(blocks(&groups, 7..7).is_empty());
    }
}
