//! Random walks along in-edges, wherever those are.
//!
//! *In*: walks that stand at their roots. *Out*: the same walks, so many steps further. *Kept per time*: walks whose next nodes are
//! under way. *Capabilities*: held with them.
//!
//! A step is one round trip: who holds a node's in-edges draws one of them. What is drawn depends on the walk's batch, its number and
//! its step alone ([`Walk`]), so that the walks are the same whoever draws. Where walks look back, it is the asker who draws, from rows
//! that it is sent ([`Bias`]).

mod biased;

use std::rc::Rc;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use timely::dataflow::StreamVec;

use self::biased::BiasedRpc;
use crate::batch::mini_batch::BatchKey;
use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::sample::walk_step;
pub use gnnflow_kernels::sample::{Bias, Walk};

/// Walks of one batch.
///
/// ```
/// use gnnflow_dataflow::batch::mini_batch::BatchKey;
/// use gnnflow_dataflow::sample::random_walk::Walks;
///
/// let walks = Walks::new(BatchKey::default(), vec![7, 3]);
/// assert_eq!((walks.len(), walks.path(1).collect::<Vec<_>>()), (2, vec![3]));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Walks {
    /// The batch that they are for.
    pub key: BatchKey,
    /// Where each walk stands after each step: all roots, then all nodes after the first step, and so on.
    pub visited: Vec<u32>,
    /// Messages' round trips so far, each way counted.
    pub rounds: u32,
    walks: usize,
    /// Walks by the worker that is asked for their next node.
    asked: Vec<Vec<u32>>,
    /// The next node of each walk.
    next: Vec<u32>,
    /// What walks that look back have seen.
    looked: biased::Looked,
}

impl Walks {
    /// Walks that begin at `roots`: global ids, any of them as often as one likes.
    pub fn new(key: BatchKey, roots: Vec<u32>) -> Self {
        Self { key, walks: roots.len(), visited: roots, ..Self::default() }
    }

    /// How many walks there are.
    pub fn len(&self) -> usize {
        self.walks
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.walks == 0
    }

    /// The nodes of walk `walk`, its root first.
    ///
    /// # Panics
    /// When there is no such walk.
    pub fn path(&self, walk: usize) -> impl Iterator<Item = u32> {
        assert!(walk < self.walks, "walk {walk} of {}", self.walks);
        self.visited[walk..].iter().step_by(self.walks).copied()
    }

    /// Where the walks stand now.
    fn stand(&self) -> &[u32] {
        &self.visited[self.visited.len() - self.walks..]
    }
}

/// How to walk.
#[derive(Clone)]
pub struct WalkBy {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The run's seed.
    pub seed: u64,
    /// Steps.
    pub length: u32,
    /// How each step is drawn.
    pub walk: Walk,
    /// What is counted.
    pub meter: Rc<Meter>,
}

/// Random walks.
pub trait RandomWalk<'scope> {
    /// Lets all walks take [`WalkBy::length`] steps under `Key(seed, Sample).fold_str("walk").fold(partition).fold(epoch).fold(step)`.
    ///
    /// # Panics
    /// When an answer of another worker does not fit its request: peers run the same program, so that is our bug.
    ///
    /// # Example
    /// ```
    /// use std::sync::Arc;
    /// use gnnflow_data::PartitionBook;
    /// use gnnflow_dataflow::graph::local_graph::{LocalGraph, OwnedInEdges};
    /// use gnnflow_dataflow::graph::placement::Placement;
    /// use gnnflow_dataflow::batch::mini_batch::BatchKey;
    /// use gnnflow_dataflow::sample::random_walk::{RandomWalk, Walk, WalkBy, Walks};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// // A ring of three nodes: node v hears from v − 1.
    /// let ring = OwnedInEdges { indptr: vec![0, 1, 2, 3], indices: vec![2, 0, 1], ..OwnedInEdges::default() };
    /// let book = PartitionBook::new(vec![0, 3]).unwrap();
    /// let load = |_| Ok::<_, ()>(Arc::new(ring.clone()) as _);
    /// let graph = Arc::new(LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap());
    /// timely::example(move |scope| {
    ///     [Walks::new(BatchKey::default(), vec![0, 1])].to_stream(scope).container::<Vec<Walks>>()
    ///         .random_walk(WalkBy { graph, seed: 1, length: 4, walk: Walk::default(), meter: Default::default() })
    ///         .inspect(|walks| assert_eq!(walks.path(1).collect::<Vec<_>>(), [1, 0, 2, 1, 0]));
    /// });
    /// ```
    fn random_walk(self, by: WalkBy) -> Self;
}

impl<'scope> RandomWalk<'scope> for StreamVec<'scope, u64, Walks> {
    fn random_walk(self, by: WalkBy) -> Self {
        let me = self.scope().index();
        (0..by.length).fold(self, |stream, step| {
            let name = format!("random_walk {step}");
            match by.walk.bias {
                None => stream.rpc(&name, || StepRpc { me, step, by: by.clone() }),
                Some(bias) => stream.rpc(&name, || BiasedRpc { me, step, by: by.clone(), bias }),
            }
        })
    }
}

/// The key of step `step` of each walk of `batch`.
fn step_key(seed: u64, batch: BatchKey, step: u32) -> impl Fn(u32) -> Key {
    let key = [batch.partition, batch.epoch, batch.step]
        .into_iter()
        .fold(Key::new(seed, Purpose::Sample).fold_str("walk"), |key, word| key.fold(u64::from(word)));
    move |walk| key.fold(u64::from(walk)).fold(u64::from(step))
}

struct StepRpc {
    me: usize,
    step: u32,
    by: WalkBy,
}

/// Walks that one request is about: a node and a number each.
const PER_MESSAGE: usize = MESSAGE_BYTES / 8;

impl StepRpc {
    /// The key of this step of walk `walk`.
    fn key(&self, batch: BatchKey) -> impl Fn(u32) -> Key + use<> {
        step_key(self.by.seed, batch, self.step)
    }

    fn draw(&self, nodes: &[u32], walks: &[u32], batch: BatchKey) -> Vec<u32> {
        let (key, mut next) = (self.key(batch), Vec::with_capacity(nodes.len()));
        walk_step(&self.by.graph.view(), nodes, self.by.walk, walks.iter().map(|&walk| key(walk)), &mut next);
        next
    }
}

impl Rpc<Walks> for StepRpc {
    fn partition(&self, item: &Walks) -> u32 {
        item.key.partition
    }

    fn requests(&mut self, tick: u64, item: &mut Walks) -> Vec<WireBlock> {
        let (graph, key) = (&self.by.graph, self.key(item.key));
        let requests = self.by.meter.time(Stage::Sample, || {
            let mut asked = vec![Vec::new(); graph.placement().workers()];
            item.next.clear();
            item.next.extend_from_slice(&item.visited[..item.walks]);
            for (walk, &node) in (0..).zip(item.stand()) {
                // Who goes back to the root, which stands in `next` already, needs no edge.
                if !self.by.walk.restarts(key(walk)) {
                    let part = graph.partition_of(node);
                    let worker = if graph.has_topology(part) { self.me } else { graph.placement().worker_of(part) };
                    asked[worker].push(walk);
                }
            }
            let BatchKey { epoch, step, partition } = item.key;
            let mut requests = Vec::new();
            for (worker, walks) in asked.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
                for (seq, walks) in walks.chunks(PER_MESSAGE).enumerate() {
                    let (to, from, seq) = (worker as u32, self.me as u32, seq as u32);
                    let header = Header { to, from, partition, tag: 0, key: tick, seq, aux: walks.len() as u32 };
                    let stand = item.stand();
                    let ids = walks.iter().map(|&walk| stand[walk as usize]).chain(walks.iter().copied()).collect();
                    requests.push(WireBlock::new(header, vec![u64::from(epoch), u64::from(step)], ids, Rows::None));
                }
            }
            item.asked = asked;
            requests
        });
        requests.iter().for_each(|request| self.by.meter.sent(self.me, request));
        item.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _tick: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let asked = request.header();
        let &[epoch, step] = request.words() else { panic!("a request names epoch and step") };
        let batch = BatchKey { epoch: epoch as u32, step: step as u32, partition: asked.partition };
        let next = self.by.meter.time(Stage::Sample, || {
            let (nodes, walks) = request.ids().split_at(asked.aux as usize);
            assert_eq!(nodes.len(), walks.len(), "every walk has a node and a number");
            for &node in nodes {
                assert!(self.by.graph.hosts(node), "worker {} asked for node {node}, which is not here", asked.from);
            }
            self.draw(nodes, walks, batch)
        });
        let header = Header { to: asked.from, from: self.me as u32, ..asked };
        let block = WireBlock::new(header, Vec::new(), next, Rows::None);
        self.by.meter.sent(self.me, &block);
        reply(block);
    }

    fn local(&mut self, _tick: u64, item: &mut Walks) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let walks = std::mem::take(&mut item.asked[self.me]);
            let nodes: Vec<u32> = walks.iter().map(|&walk| item.stand()[walk as usize]).collect();
            let next = self.draw(&nodes, &walks, item.key);
            walks.iter().zip(next).for_each(|(&walk, node)| item.next[walk as usize] = node);
        });
    }

    fn on_reply(&mut self, _tick: u64, item: &mut Walks, answer: &WireBlock) {
        let header = answer.header();
        let first = header.seq as usize * PER_MESSAGE;
        let walks = &item.asked[header.from as usize][first..first + header.aux as usize];
        assert_eq!(walks.len(), answer.ids().len(), "worker {} answered for other walks", header.from);
        for (&walk, &node) in walks.iter().zip(answer.ids()) {
            assert!(u64::from(node) < self.by.graph.num_nodes(), "worker {} sent node {node}", header.from);
            item.next[walk as usize] = node;
        }
    }

    fn is_last(&self, _answer: &WireBlock) -> bool {
        true
    }

    fn finish(&mut self, _tick: u64, item: &mut Walks) {
        item.visited.extend_from_slice(&item.next);
    }
}

#[cfg(test)]
mod tests;
