//! Samples one hop of each batch from the in-edges at all workers.
//!
//! *In*: batches. *Out*: the same batches with one more block and the nodes that the hop found. *Kept per time*:
//! batches that wait for replies. *Capabilities*: held with them.
//!
//! If this worker holds the in-edges of every node, the fused kernel does the hop. Otherwise the owners of nodes sample
//! (DistDGL, section III-D) and the caller assembles the block, with the same bits. Samples of nodes with many in-edges are large, so
//! a reply may consist of several messages; the last one is marked.
//!
//! Requests include the edges that the batch must not see. The worker that samples their destinations leaves them out, as if the
//! graph did not have them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use super::draw::Draw;
use super::pieces;
use super::sampling_threads::SamplingThreads;
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

/// The parameters of a hop.
#[derive(Clone)]
pub struct Hop {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The run's seed.
    pub seed: u64,
    /// The number of the hop: 0 samples the neighbors of the seeds.
    pub hop: u32,
    /// The sampling method.
    pub strategy: Strategy,
    /// The columns of edges in the block.
    pub columns: Columns,
    /// Whether this is the last hop.
    pub last: bool,
    /// Memory for compaction, one pool for all hops of a worker.
    pub pool: CompactorPool,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// Compactors for reuse, and threads that sample many nodes in parallel.
#[derive(Clone, Default)]
pub struct CompactorPool {
    spare: Rc<RefCell<Vec<Compactor>>>,
    threads: Option<Arc<SamplingThreads>>,
    two_steps: bool,
}

impl CompactorPool {
    /// Creates a pool whose hops sample on `threads`.
    pub fn on(threads: Arc<SamplingThreads>) -> Self {
        Self { threads: Some(threads), ..Self::default() }
    }

    /// Makes hops sample first and then compact, even if the fused kernel could do both: the baseline of FastSample
    /// (section IV).
    #[must_use]
    pub fn in_two_steps(self) -> Self {
        Self { two_steps: true, ..self }
    }

    /// Takes a compactor, a new one if none is free.
    pub(super) fn take(&self, new: impl FnOnce() -> Compactor) -> Compactor {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(new)
    }

    /// Returns a compactor for reuse.
    pub(super) fn give_back(&self, compactor: Compactor) {
        self.spare.borrow_mut().push(compactor);
    }
}

/// Samples one hop.
pub trait SampleHop<'scope> {
    /// Samples in-neighbors of every node of each batch's list, under
    /// `Key(seed, Sample).fold(partition).fold(epoch).fold(step).fold(hop)`.
    ///
    /// # Panics
    /// When a reply does not match its request. All workers run the same program, so this is a bug.
    fn sample_hop(self, hop: Hop) -> Self;
}

impl<'scope> SampleHop<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_hop(self, hop: Hop) -> Self {
        let me = self.scope().index();
        self.rpc(&format!("sample_hop {}", hop.hop), || HopRpc { me, draw: hop.draw(), hop: hop.clone() })
    }
}

impl Hop {
    /// Returns the parameters of sampling alone.
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
    /// Takes the compactor that holds the positions of the batch's nodes.
    fn compactor(&self, batch: &mut MiniBatch) -> Compactor {
        batch.compactor.take().unwrap_or_else(|| {
            let mut compactor = self.hop.pool.take(|| Compactor::new(self.hop.graph.num_nodes()));
            compactor.start(&batch.nodes);
            compactor
        })
    }

    /// Stores the compactor for the next hop, or for another batch.
    fn store(&self, batch: &mut MiniBatch, compactor: Compactor) {
        if self.hop.last {
            self.hop.pool.give_back(compactor);
        } else {
            batch.compactor = Some(compactor);
        }
    }

    /// Samples in-edges of `nodes`, on the sampling threads if there are several. `excluded` are the edges that the batch must
    /// not see.
    fn samples(&self, batch: BatchKey, nodes: &[u32], trees: Option<Trees<'_>>, excluded: &Excluded) -> Samples {
        let draw = &self.draw;
        match self.hop.pool.threads.as_ref().filter(|threads| threads.threads() > 1) {
            Some(threads) => threads.install("sample_hop", || draw.samples(batch, nodes, trees, excluded)),
            None => draw.samples(batch, nodes, trees, excluded),
        }
    }

    /// Samples in-edges of the nodes of `batch` at positions `positions`.
    fn draw_at(&self, batch: &MiniBatch, positions: &[u32]) -> Samples {
        let nodes: Vec<u32> = positions.iter().map(|&position| batch.nodes[position as usize]).collect();
        if !self.hop.strategy.is_temporal() {
            return self.samples(batch.key, &nodes, None, &batch.excluded);
        }
        let (trees, times) = trees_at(batch, positions);
        self.samples(batch.key, &nodes, Some(Trees { trees: &trees, times: &times }), &batch.excluded)
    }

    /// Returns the worker that samples `node` for this worker.
    fn sampler_of(&self, node: u32) -> usize {
        self.hop.graph.read_from(node)
    }

    /// Adds the block of a batch whose samples have all arrived.
    fn assemble_block(&self, batch: &mut MiniBatch) {
        let drawings = std::mem::take(&mut batch.samples);
        let mut replies = Replies::new(drawings.len(), self.hop.graph.num_nodes());
        let mut expected = vec![0; drawings.len()];
        batch.nodes.iter().for_each(|&node| expected[self.sampler_of(node)] += 1);
        for (worker, Drawing { samples, .. }) in drawings.iter().enumerate() {
            let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
            replies.push_edges(worker, &samples.counts, edges).unwrap_or_else(|bad| panic!("{bad}"));
            assert_eq!(
                replies.remaining(worker),
                expected[worker],
                "worker {worker} replied with samples of other nodes"
            );
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
        self.store(batch, compactor);
    }
}

/// Returns the trees of the nodes at positions `positions`, and the times of their seeds.
fn trees_at(batch: &MiniBatch, positions: &[u32]) -> (Vec<u32>, Vec<i64>) {
    positions
        .iter()
        .map(|&position| {
            let tree = batch.trees[position as usize];
            (tree, batch.seed_times[tree as usize])
        })
        .unzip()
}

impl Rpc<MiniBatch> for HopRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, timestamp: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let temporal = self.hop.strategy.is_temporal();
        if temporal && batch.trees.is_empty() {
            assert_eq!(batch.seed_times.len(), batch.nodes.len(), "temporal hops need one time per seed");
            batch.trees = (0..batch.nodes.len() as u32).collect();
        }
        if self.draw.is_fused() {
            return Vec::new();
        }
        let graph = &self.hop.graph;
        let expected = self.hop.strategy.expected();
        let per_message = (MESSAGE_BYTES / 4 / (1 + expected + self.hop.columns.words(expected))).max(1);
        let requests = self.hop.meter.time(Stage::Sample, || {
            let mut positions_of = vec![Vec::new(); graph.placement().workers()];
            for (position, &node) in (0..).zip(&batch.nodes) {
                positions_of[self.sampler_of(node)].push(position);
            }
            batch.samples.clear();
            batch.samples.resize_with(positions_of.len(), || Drawing {
                samples: Samples::new(self.hop.columns),
                ..Drawing::default()
            });
            let mut requests = Vec::new();
            for (worker, positions) in positions_of.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
                for (seq, positions) in positions.chunks(per_message).enumerate() {
                    let BatchKey { epoch, step, partition } = batch.key;
                    let header = Header {
                        to: worker as u32,
                        from: self.me as u32,
                        partition,
                        tag: 0,
                        key: timestamp,
                        seq: seq as u32,
                        aux: 0,
                    };
                    // Words: epoch, step, the time of each node's seed, and excluded edges. Ids: nodes, and the tree of each.
                    let mut words = vec![u64::from(epoch), u64::from(step)];
                    let mut ids: Vec<u32> = positions.iter().map(|&position| batch.nodes[position as usize]).collect();
                    if temporal {
                        let (trees, times) = trees_at(batch, positions);
                        words.extend(times.iter().map(|&time| time as u64));
                        ids.extend(trees);
                    }
                    if !batch.excluded.is_empty() {
                        let nodes = positions.iter().map(|&position| batch.nodes[position as usize]);
                        for edge in nodes.flat_map(|node| batch.excluded.into_node(node)) {
                            words.extend([u64::from(edge.to) << 32 | u64::from(edge.from), u64::from(edge.edge_type)]);
                        }
                    }
                    requests.push(WireBlock::new(header, words, ids, Rows::None));
                }
            }
            batch.samples[self.me].positions = std::mem::take(&mut positions_of[self.me]);
            requests
        });
        requests.iter().for_each(|request| self.hop.meter.sent(self.me, Stage::Sample, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (header, ids) = (request.header(), request.ids());
        let &[epoch, step, ref rest @ ..] = request.words() else { panic!("a request has epoch and step") };
        let batch = BatchKey { epoch: epoch as u32, step: step as u32, partition: header.partition };
        let samples = self.hop.meter.time(Stage::Sample, || {
            let (nodes, trees) =
                if self.hop.strategy.is_temporal() { ids.split_at(ids.len() / 2) } else { (ids, &[][..]) };
            for &node in nodes {
                assert!(self.hop.graph.hosts(node), "worker {} requested node {node}, which is not here", header.from);
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
        pieces::send(header, samples, self.me, &self.hop.meter, reply);
    }

    fn local(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.hop.meter);
        meter.time(Stage::Sample, || {
            if self.draw.is_fused() {
                let mut compactor = self.compactor(batch);
                self.draw.add_hop(batch, &mut compactor);
                self.store(batch, compactor);
            } else {
                let positions = std::mem::take(&mut batch.samples[self.me].positions);
                batch.samples[self.me].samples = self.draw_at(batch, &positions);
            }
        });
    }

    fn on_reply(&mut self, _timestamp: u64, batch: &mut MiniBatch, reply: &WireBlock) {
        pieces::receive(&mut batch.samples, self.hop.columns, reply);
    }

    fn is_last(&self, reply: &WireBlock) -> bool {
        pieces::is_last(reply)
    }

    fn finish(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        if !self.draw.is_fused() {
            let meter = Rc::clone(&self.hop.meter);
            meter.time(Stage::Sample, || self.assemble_block(batch));
        }
    }
}

#[cfg(test)]
mod tests;
