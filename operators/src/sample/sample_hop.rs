//! Samples one hop of each batch, wherever the nodes' in-edges are.
//!
//! *In*: batches. *Out*: the same batches with one more block, and the nodes that the hop found. *Kept per time*: the
//! batches whose samples are under way. *Capabilities*: held with them.
//!
//! Where this worker holds the in-edges of every node, the fused kernel runs. Otherwise owners sample what they are
//! asked (DistDGL, section III-C) and the asker puts the block together, with the same bits. Samples are large where a
//! node has many in-edges, so an answer may come in several messages; the last one says so.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use timely::dataflow::StreamVec;

use super::mini_batch::{BatchKey, MiniBatch, Samples};
use crate::kernel::compact::Compactor;
use crate::kernel::sample::{
    Fanout, Replies, Sampler, assemble, sample_hop, sample_hop_by, sample_neighbors, sample_neighbors_by,
};
use crate::local_graph::LocalGraph;
use crate::meter::{Meter, Stage};
use crate::sync::round_trip::{Errand, RoundTrip};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};

/// How a hop samples.
#[derive(Clone)]
pub struct Hop {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The run's seed.
    pub seed: u64,
    /// 0 for the seeds' own neighbours, 1 for theirs, …
    pub hop: u32,
    /// Which in-edges are taken.
    pub choice: Choice,
    /// Whether no hop follows.
    pub last: bool,
    /// Where compaction finds its memory; one pool for all hops of a worker.
    pub pool: CompactorPool,
    /// What is counted.
    pub meter: Rc<Meter>,
}

/// Compactors of batches that are through, for the next ones.
#[derive(Clone, Default)]
pub struct CompactorPool(Rc<RefCell<Vec<Compactor>>>);

/// Which in-edges a hop takes.
#[derive(Clone)]
pub enum Choice {
    /// A built-in way.
    Fanout(Fanout),
    /// A user's sampler, with the hop's fanout as the pipeline file has it.
    By(Arc<dyn Sampler>, i64),
}

impl Choice {
    /// Edges that one node is expected to get, for the size of messages.
    fn expected(&self) -> usize {
        match self {
            Choice::Fanout(Fanout::Uniform { k } | Fanout::UniformWithReplacement { k }) => *k as usize,
            Choice::By(_, fanout) if *fanout >= 0 => *fanout as usize,
            _ => 64,
        }
    }
}

/// Sampling of one hop.
pub trait SampleHop<'scope> {
    /// Samples in-neighbours of every node of each batch's list, under
    /// `Key(seed, Sample).fold(partition).fold(epoch).fold(step).fold(hop)`.
    ///
    /// # Panics
    /// When an answer of another worker does not fit its question: peers run the same program, so that is our bug.
    fn sample_hop(self, hop: Hop) -> Self;
}

impl<'scope> SampleHop<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn sample_hop(self, hop: Hop) -> Self {
        let me = self.scope().index();
        self.round_trip(&format!("sample_hop {}", hop.hop), || HopErrand { me, hop: hop.clone() })
    }
}

struct HopErrand {
    me: usize,
    hop: Hop,
}

impl HopErrand {
    fn key(&self, batch: BatchKey) -> Key {
        [batch.partition, batch.epoch, batch.step, self.hop.hop]
            .into_iter()
            .fold(Key::new(self.hop.seed, Purpose::Sample), |key, word| key.fold(u64::from(word)))
    }

    /// The compactor that follows the batch's list.
    fn compactor(&self, batch: &mut MiniBatch) -> Compactor {
        batch.compactor.take().unwrap_or_else(|| {
            let spare = self.hop.pool.0.borrow_mut().pop();
            let mut compactor = spare.unwrap_or_else(|| Compactor::new(self.hop.graph.num_nodes()));
            compactor.start(&batch.nodes);
            compactor
        })
    }

    /// Keeps the compactor for the next hop, or for another batch.
    fn keep(&self, batch: &mut MiniBatch, compactor: Compactor) {
        if self.hop.last {
            self.hop.pool.0.borrow_mut().push(compactor);
        } else {
            batch.compactor = Some(compactor);
        }
    }

    /// Samples of `nodes`, all of whose in-edges are here.
    fn draw(&self, nodes: &[u32], key: Key) -> Samples {
        let mut samples = Samples::default();
        let view = self.hop.graph.view();
        let (counts, neighbors) = (&mut samples.counts, &mut samples.neighbors);
        match &self.hop.choice {
            Choice::Fanout(fanout) => sample_neighbors(&view, nodes, *fanout, key, counts, neighbors),
            Choice::By(sampler, fanout) => {
                sample_neighbors_by(&**sampler, &view, nodes, *fanout, key, counts, neighbors);
            }
        }
        samples
    }

    /// Who samples `node` for this worker.
    fn sampler_of(&self, node: u32) -> usize {
        let (graph, part) = (&self.hop.graph, self.hop.graph.partition_of(node));
        if graph.has_topology(part) { self.me } else { graph.placement().worker_of(part) }
    }
}

impl Errand<MiniBatch> for HopErrand {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn ask(&mut self, tick: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let graph = &self.hop.graph;
        if graph.has_whole_topology() {
            return Vec::new();
        }
        let per_message = (MESSAGE_BYTES / 4 / (self.hop.choice.expected() + 1)).max(1);
        let questions = self.hop.meter.time(Stage::Sample, || {
            let mut nodes_of = vec![Vec::new(); graph.placement().workers()];
            for &node in &batch.nodes {
                nodes_of[self.sampler_of(node)].push(node);
            }
            batch.samples.clear();
            batch.samples.resize(nodes_of.len(), Samples::default());
            let mut questions = Vec::new();
            for (worker, nodes) in nodes_of.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
                for (seq, nodes) in nodes.chunks(per_message).enumerate() {
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
                    let words = vec![u64::from(epoch), u64::from(step)];
                    questions.push(WireBlock::new(header, words, nodes.to_vec(), Rows::None));
                }
            }
            batch.samples[self.me].asked = std::mem::take(&mut nodes_of[self.me]);
            questions
        });
        questions.iter().for_each(|question| self.hop.meter.sent(self.me, question));
        batch.rounds += if questions.is_empty() { 0 } else { 2 };
        questions
    }

    fn answer(&mut self, _tick: u64, question: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (asked, nodes) = (question.header(), question.ids());
        let &[epoch, step] = question.words() else { panic!("a question names epoch and step") };
        let batch = BatchKey { epoch: epoch as u32, step: step as u32, partition: asked.partition };
        let samples = self.hop.meter.time(Stage::Sample, || {
            for &node in nodes {
                assert!(self.hop.graph.hosts(node), "worker {} asked for node {node}, which is not here", asked.from);
            }
            self.draw(nodes, self.key(batch))
        });
        let header = Header { to: asked.from, from: self.me as u32, aux: samples.counts.len() as u32, ..asked };
        // All counts, then all neighbours, cut into messages wherever they are full.
        let column = [samples.counts, samples.neighbors].concat();
        let pieces = column.chunks(MESSAGE_BYTES / 4);
        let last = pieces.len().max(1) - 1;
        for (i, piece) in pieces.enumerate() {
            let header = Header { tag: u32::from(i == last), ..header };
            let block = WireBlock::new(header, Vec::new(), piece.to_vec(), Rows::None);
            self.hop.meter.sent(self.me, &block);
            reply(block);
        }
    }

    fn here(&mut self, _tick: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.hop.meter);
        meter.time(Stage::Sample, || {
            if self.hop.graph.has_whole_topology() {
                let key = self.key(batch.key);
                let mut compactor = self.compactor(batch);
                let (view, list) = (self.hop.graph.view(), &mut batch.nodes);
                let block = match &self.hop.choice {
                    Choice::Fanout(fanout) => sample_hop(&view, list, *fanout, key, &mut compactor),
                    Choice::By(sampler, fanout) => sample_hop_by(&**sampler, &view, list, *fanout, key, &mut compactor),
                };
                batch.blocks.push(block);
                self.keep(batch, compactor);
            } else {
                let asked = std::mem::take(&mut batch.samples[self.me].asked);
                batch.samples[self.me] = self.draw(&asked, self.key(batch.key));
            }
        });
    }

    fn receive(&mut self, _tick: u64, batch: &mut MiniBatch, answer: &WireBlock) {
        let header = answer.header();
        let samples = &mut batch.samples[header.from as usize];
        // The first `aux` ids of an answer are counts, whatever messages they come in.
        let counts = (header.aux as usize - samples.pending_counts).min(answer.ids().len());
        let (counts, neighbors) = answer.ids().split_at(counts);
        samples.counts.extend_from_slice(counts);
        samples.neighbors.extend_from_slice(neighbors);
        samples.pending_counts = if self.is_last(answer) { 0 } else { samples.pending_counts + counts.len() };
    }

    fn is_last(&self, answer: &WireBlock) -> bool {
        answer.header().tag == 1
    }

    fn complete(&mut self, _tick: u64, batch: &mut MiniBatch) {
        if self.hop.graph.has_whole_topology() {
            return;
        }
        let meter = Rc::clone(&self.hop.meter);
        meter.time(Stage::Sample, || {
            let mut compactor = self.compactor(batch);
            let samples = std::mem::take(&mut batch.samples);
            let mut replies = Replies::new(samples.len(), self.hop.graph.num_nodes());
            let mut expected = vec![0; samples.len()];
            batch.nodes.iter().for_each(|&node| expected[self.sampler_of(node)] += 1);
            for (worker, drawn) in samples.iter().enumerate() {
                replies.push(worker, &drawn.counts, &drawn.neighbors).unwrap_or_else(|bad| panic!("{bad}"));
                assert_eq!(replies.remaining(worker), expected[worker], "worker {worker} answered for other nodes");
            }
            let block = assemble(&mut batch.nodes, |node| replies.next(self.sampler_of(node)), &mut compactor);
            batch.blocks.push(block);
            self.keep(batch, compactor);
        });
    }
}
