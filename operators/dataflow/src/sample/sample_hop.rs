//! Samples one hop of each batch, wherever the nodes' in-edges are.
//!
//! *In*: batches. *Out*: the same batches with one more block, and the nodes that the hop found. *Kept per time*: the
//! batches whose samples are under way. *Capabilities*: held with them.
//!
//! Where this worker holds the in-edges of every node, the fused kernel runs. Otherwise owners sample what they are
//! asked (DistDGL, section III-C) and the asker puts the block together, with the same bits. Samples are large where a
//! node has many in-edges, so an answer may come in several messages; the last one says so.
//!
//! Edges that a batch must not see travel with the requests, to whoever samples the node where they end: it draws from what is
//! left, as if the graph had never had them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use super::draw::Draw;
use super::pieces;
use super::sample_batch::SamplingThreads;
use crate::batch::mini_batch::{BatchKey, Drawing, MiniBatch};
use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::compact::{Compactor, TreeCompactor};
pub use gnnflow_kernels::sample::Strategy;
use gnnflow_kernels::sample::{
    Columns, EdgeName, Edges, Excluded, Replies, Samples, Trees, assemble, assemble_edges, assemble_layer,
    assemble_trees,
};

/// How a hop samples.
#[derive(Clone)]
pub struct Hop {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The run's seed.
    pub seed: u64,
    /// 0 for the seeds' own neighbors, 1 for theirs, …
    pub hop: u32,
    /// Which in-edges are taken.
    pub strategy: Strategy,
    /// What the block has of each edge besides its source.
    pub columns: Columns,
    /// Whether no hop follows.
    pub last: bool,
    /// Where compaction finds its memory; one pool for all hops of a worker.
    pub pool: CompactorPool,
    /// What is counted.
    pub meter: Rc<Meter>,
}

/// Compactors of batches that are through, for the next ones; and the threads that draw for many nodes at once, if any do.
#[derive(Clone, Default)]
pub struct CompactorPool {
    spare: Rc<RefCell<Vec<Compactor>>>,
    threads: Option<Arc<SamplingThreads>>,
    two_steps: bool,
}

impl CompactorPool {
    /// A pool whose hops draw on `threads`.
    pub fn on(threads: Arc<SamplingThreads>) -> Self {
        Self { threads: Some(threads), ..Self::default() }
    }

    /// The same pool, whose hops are drawn first and then put together even where the fused kernel could do both: what FastSample
    /// (section IV) measures its kernel against.
    #[must_use]
    pub fn in_two_steps(self) -> Self {
        Self { two_steps: true, ..self }
    }

    /// A spare one, or else a new one.
    pub(super) fn take(&self, new: impl FnOnce() -> Compactor) -> Compactor {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(new)
    }

    /// Keeps one for later.
    pub(super) fn give_back(&self, compactor: Compactor) {
        self.spare.borrow_mut().push(compactor);
    }
}

/// Sampling of one hop.
pub trait SampleHop<'scope> {
    /// Samples in-neighbors of every node of each batch's list, under
    /// `Key(seed, Sample).fold(partition).fold(epoch).fold(step).fold(hop)`.
    ///
    /// # Panics
    /// When an answer of another worker does not fit its request: peers run the same program, so that is our bug.
    fn sample_hop(self, hop: Hop) -> Self;
}

impl<'scope> SampleHop<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_hop(self, hop: Hop) -> Self {
        let me = self.scope().index();
        self.rpc(&format!("sample_hop {}", hop.hop), || HopRpc { me, draw: hop.draw(), hop: hop.clone() })
    }
}

impl Hop {
    /// What it draws, apart from where and for whom.
    pub(super) fn draw(&self) -> Draw {
        let Self { graph, seed, hop, strategy, columns, pool, .. } = self.clone();
        Draw { graph, seed, hop, strategy, columns, two_steps: pool.two_steps }
    }
}

struct HopRpc {
    me: usize,
    hop: Hop,
    draw: Draw,
}

impl HopRpc {
    /// The compactor that follows the batch's list.
    fn compactor(&self, batch: &mut MiniBatch) -> Compactor {
        batch.compactor.take().unwrap_or_else(|| {
            let mut compactor = self.hop.pool.take(|| Compactor::new(self.hop.graph.num_nodes()));
            compactor.start(&batch.nodes);
            compactor
        })
    }

    /// Keeps the compactor for the next hop, or for another batch.
    fn keep(&self, batch: &mut MiniBatch, compactor: Compactor) {
        if self.hop.last {
            self.hop.pool.give_back(compactor);
        } else {
            batch.compactor = Some(compactor);
        }
    }

    /// Samples of `nodes`, on the sampling threads where there are several; `excluded` are the edges that the batch does not see.
    fn samples(&self, batch: BatchKey, nodes: &[u32], trees: Option<Trees<'_>>, excluded: &Excluded) -> Samples {
        let draw = &self.draw;
        match self.hop.pool.threads.as_ref().filter(|threads| threads.threads() > 1) {
            Some(threads) => threads.install(|| draw.samples(batch, nodes, trees, excluded)),
            None => draw.samples(batch, nodes, trees, excluded),
        }
    }

    /// What is drawn for the nodes of `batch` at `places`.
    fn draw_at(&self, batch: &MiniBatch, places: &[u32]) -> Samples {
        let nodes: Vec<u32> = places.iter().map(|&place| batch.nodes[place as usize]).collect();
        if !self.hop.strategy.is_temporal() {
            return self.samples(batch.key, &nodes, None, &batch.excluded);
        }
        let (trees, times) = trees_at(batch, places);
        self.samples(batch.key, &nodes, Some(Trees { trees: &trees, times: &times }), &batch.excluded)
    }

    /// Who samples `node` for this worker.
    fn sampler_of(&self, node: u32) -> usize {
        let (graph, part) = (&self.hop.graph, self.hop.graph.partition_of(node));
        if graph.is_partition_local() || graph.has_topology(part) { self.me } else { graph.placement().worker_of(part) }
    }

    /// The block of a batch whose samples are all here.
    fn put_together(&self, batch: &mut MiniBatch) {
        let drawings = std::mem::take(&mut batch.samples);
        let mut replies = Replies::new(drawings.len(), self.hop.graph.num_nodes());
        let mut expected = vec![0; drawings.len()];
        batch.nodes.iter().for_each(|&node| expected[self.sampler_of(node)] += 1);
        for (worker, Drawing { samples, .. }) in drawings.iter().enumerate() {
            let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
            replies.push_edges(worker, &samples.counts, edges).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!(replies.remaining(worker), expected[worker], "worker {worker} answered for other nodes");
        }
        let columns = self.hop.columns;
        if self.hop.strategy.is_temporal() {
            let mut compactor = batch.tree_compactor.take().unwrap_or_else(|| TreeCompactor::new(&batch.nodes));
            let samples_of = |node| replies.next_edges(self.sampler_of(node));
            let MiniBatch { nodes, trees, .. } = batch;
            batch.blocks.push(assemble_trees(nodes, trees, samples_of, columns, &mut compactor));
            batch.tree_compactor = Some(compactor).filter(|_| !self.hop.last);
            return;
        }
        let mut compactor = self.compactor(batch);
        let (key, nodes) = (self.draw.key(batch.key), &mut batch.nodes);
        let block = if columns.is_empty() && self.hop.strategy.is_fused() {
            assemble(nodes, |node| replies.next(self.sampler_of(node)), &mut compactor)
        } else {
            let samples_of = |node| replies.next_edges(self.sampler_of(node));
            match self.hop.strategy {
                Strategy::Layer(sources) => assemble_layer(nodes, samples_of, columns, sources, key, &mut compactor),
                _ => assemble_edges(nodes, samples_of, columns, &mut compactor),
            }
        };
        batch.blocks.push(block);
        self.keep(batch, compactor);
    }
}

/// Seeds and their times of the trees in which the nodes at `places` stand.
fn trees_at(batch: &MiniBatch, places: &[u32]) -> (Vec<u32>, Vec<i64>) {
    places
        .iter()
        .map(|&place| {
            let tree = batch.trees[place as usize];
            (tree, batch.seed_times[tree as usize])
        })
        .unzip()
}

impl Rpc<MiniBatch> for HopRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, tick: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let temporal = self.hop.strategy.is_temporal();
        if temporal && batch.trees.is_empty() {
            assert_eq!(batch.seed_times.len(), batch.nodes.len(), "temporal hops need a time for each seed");
            batch.trees = (0..batch.nodes.len() as u32).collect();
        }
        if self.draw.is_fused() {
            return Vec::new();
        }
        let graph = &self.hop.graph;
        let expected = self.hop.strategy.expected();
        let per_message = (MESSAGE_BYTES / 4 / (1 + expected + self.hop.columns.words(expected))).max(1);
        let requests = self.hop.meter.time(Stage::Sample, || {
            let mut places_of = vec![Vec::new(); graph.placement().workers()];
            for (place, &node) in (0..).zip(&batch.nodes) {
                places_of[self.sampler_of(node)].push(place);
            }
            batch.samples.clear();
            batch.samples.resize_with(places_of.len(), || Drawing {
                samples: Samples::new(self.hop.columns),
                ..Drawing::default()
            });
            let mut requests = Vec::new();
            for (worker, places) in places_of.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
                for (seq, places) in places.chunks(per_message).enumerate() {
                    let BatchKey { epoch, step, partition } = batch.key;
                    let header = Header {
                        to: worker as u32,
                        from: self.me as u32,
                        partition,
                        tag: 0,
                        key: tick,
                        seq: seq as u32,
                        aux: 0,
                    };
                    // Epoch, step, the seed's time of every node, and the edges not to be seen; nodes, and the tree of each.
                    let mut words = vec![u64::from(epoch), u64::from(step)];
                    let mut ids: Vec<u32> = places.iter().map(|&place| batch.nodes[place as usize]).collect();
                    if temporal {
                        let (trees, times) = trees_at(batch, places);
                        words.extend(times.iter().map(|&time| time as u64));
                        ids.extend(trees);
                    }
                    if !batch.excluded.is_empty() {
                        let asked = places.iter().map(|&place| batch.nodes[place as usize]);
                        for edge in asked.flat_map(|node| batch.excluded.into_node(node)) {
                            words.extend([u64::from(edge.to) << 32 | u64::from(edge.from), u64::from(edge.edge_type)]);
                        }
                    }
                    requests.push(WireBlock::new(header, words, ids, Rows::None));
                }
            }
            batch.samples[self.me].asked = std::mem::take(&mut places_of[self.me]);
            requests
        });
        requests.iter().for_each(|request| self.hop.meter.sent(self.me, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _tick: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (asked, ids) = (request.header(), request.ids());
        let &[epoch, step, ref rest @ ..] = request.words() else { panic!("a request names epoch and step") };
        let batch = BatchKey { epoch: epoch as u32, step: step as u32, partition: asked.partition };
        let samples = self.hop.meter.time(Stage::Sample, || {
            let (nodes, trees) =
                if self.hop.strategy.is_temporal() { ids.split_at(ids.len() / 2) } else { (ids, &[][..]) };
            for &node in nodes {
                assert!(self.hop.graph.hosts(node), "worker {} asked for node {node}, which is not here", asked.from);
            }
            let (times, excluded) = rest.split_at(trees.len());
            let name = |words: &[u64]| EdgeName {
                to: (words[0] >> 32) as u32,
                from: words[0] as u32,
                edge_type: words[1] as u16,
            };
            let excluded = Excluded::new(excluded.chunks_exact(2).map(name).collect());
            let times: Vec<i64> = times.iter().map(|&time| time as i64).collect();
            let trees = self.hop.strategy.is_temporal().then_some(Trees { trees, times: &times });
            self.samples(batch, nodes, trees, &excluded)
        });
        pieces::send(asked, samples, self.me, &self.hop.meter, reply);
    }

    fn local(&mut self, _tick: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.hop.meter);
        meter.time(Stage::Sample, || {
            if self.draw.is_fused() {
                let mut compactor = self.compactor(batch);
                self.draw.add_hop(batch, &mut compactor);
                self.keep(batch, compactor);
            } else {
                let asked = std::mem::take(&mut batch.samples[self.me].asked);
                batch.samples[self.me].samples = self.draw_at(batch, &asked);
            }
        });
    }

    fn on_reply(&mut self, _tick: u64, batch: &mut MiniBatch, answer: &WireBlock) {
        pieces::receive(&mut batch.samples, self.hop.columns, answer);
    }

    fn is_last(&self, answer: &WireBlock) -> bool {
        pieces::is_last(answer)
    }

    fn finish(&mut self, _tick: u64, batch: &mut MiniBatch) {
        if !self.draw.is_fused() {
            let meter = Rc::clone(&self.hop.meter);
            meter.time(Stage::Sample, || self.put_together(batch));
        }
    }
}

#[cfg(test)]
mod tests;
