//! Random walks along in-edges at all workers.
//!
//! *In*: walks at their roots. *Out*: the same walks after all steps. *Kept per time*: walks that wait for replies.
//! *Capabilities*: held with them.
//!
//! A step is one round trip: the owner of a node draws one of its in-edges. The draw depends only on the walk's batch, number and
//! step ([`Walk`]), so walks are the same on any number of workers. In biased walks ([`Bias`]) the owners send whole rows, and the
//! caller draws. If batches are restricted to their own partition, a walk ends at a node of another partition, which has no
//! in-edges then.

mod biased;
mod walks;

use std::rc::Rc;

use gnnflow_data::rng::Key;
use timely::dataflow::StreamVec;

use self::biased::BiasedRpc;
use self::walks::step_key;
pub use self::walks::{WalkBy, Walks};
use crate::batch::mini_batch::BatchKey;
use crate::flow::rpc::{CallRpc, Rpc};
use crate::wire::meter::Stage;
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::sample::walk_step;
pub use gnnflow_kernels::sample::{Bias, Walk};

/// Walks randomly along in-edges.
pub trait RandomWalk<'scope> {
    /// Extends all walks by [`WalkBy::length`] steps, drawn under
    /// `Key(seed, Sample).fold_str("walk").fold(partition).fold(epoch).fold(step)`.
    ///
    /// # Panics
    /// When a reply does not match its request. All workers run the same program, so this is a bug.
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
    /// // A ring of three nodes, with an edge from v − 1 to v.
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

struct StepRpc {
    me: usize,
    step: u32,
    by: WalkBy,
}

/// The number of walks in one request: a node and a walk number each.
const PER_MESSAGE: usize = MESSAGE_BYTES / 8;

impl StepRpc {
    /// Returns the random key of this step for each walk.
    fn key(&self, batch: BatchKey) -> impl Fn(u32) -> Key + use<> {
        step_key(self.by.seed, batch, self.step)
    }

    fn draw(&self, nodes: &[u32], walks: &[u32], batch: BatchKey) -> Vec<u32> {
        let (key, mut next) = (self.key(batch), Vec::with_capacity(nodes.len()));
        let (graph, keys) = (&self.by.graph, walks.iter().map(|&walk| key(walk)));
        match graph.is_partition_local() {
            true => walk_step(&graph.partition_view(batch.partition as usize), nodes, self.by.walk, keys, &mut next),
            false => walk_step(&graph.view(), nodes, self.by.walk, keys, &mut next),
        }
        next
    }
}

impl Rpc<Walks> for StepRpc {
    fn partition(&self, item: &Walks) -> u32 {
        item.key.partition
    }

    fn requests(&mut self, timestamp: u64, item: &mut Walks) -> Vec<WireBlock> {
        let (graph, key) = (&self.by.graph, self.key(item.key));
        let requests = self.by.meter.time(Stage::Sample, || {
            let mut by_worker = vec![Vec::new(); graph.placement().workers()];
            item.next.clear();
            item.next.extend_from_slice(&item.visited[..item.walks]);
            for (walk, &node) in (0..).zip(item.current()) {
                // A walk that restarts needs no edge: `next` already holds its root.
                if !self.by.walk.restarts(key(walk)) {
                    by_worker[graph.read_from(node)].push(walk);
                }
            }
            let BatchKey { epoch, step, partition } = item.key;
            let mut requests = Vec::new();
            for (worker, walks) in by_worker.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
                for (seq, walks) in walks.chunks(PER_MESSAGE).enumerate() {
                    let (to, from, seq) = (worker as u32, self.me as u32, seq as u32);
                    let header = Header { to, from, partition, tag: 0, key: timestamp, seq, aux: walks.len() as u32 };
                    let current = item.current();
                    let ids = walks.iter().map(|&walk| current[walk as usize]).chain(walks.iter().copied()).collect();
                    requests.push(WireBlock::new(header, vec![u64::from(epoch), u64::from(step)], ids, Rows::None));
                }
            }
            item.by_worker = by_worker;
            requests
        });
        requests.iter().for_each(|request| self.by.meter.sent(self.me, Stage::Sample, request));
        item.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let header = request.header();
        let &[epoch, step] = request.words() else { panic!("a request has epoch and step") };
        let batch = BatchKey { epoch: epoch as u32, step: step as u32, partition: header.partition };
        let next = self.by.meter.time(Stage::Sample, || {
            let (nodes, walks) = request.ids().split_at(header.aux as usize);
            assert_eq!(nodes.len(), walks.len(), "every walk has a node and a number");
            for &node in nodes {
                assert!(self.by.graph.hosts(node), "worker {} requested node {node}, which is not here", header.from);
            }
            self.draw(nodes, walks, batch)
        });
        let header = Header { to: header.from, from: self.me as u32, ..header };
        let block = WireBlock::new(header, Vec::new(), next, Rows::None);
        self.by.meter.sent(self.me, Stage::Sample, &block);
        reply(block);
    }

    fn local(&mut self, _timestamp: u64, item: &mut Walks) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let walks = std::mem::take(&mut item.by_worker[self.me]);
            let nodes: Vec<u32> = walks.iter().map(|&walk| item.current()[walk as usize]).collect();
            let next = self.draw(&nodes, &walks, item.key);
            walks.iter().zip(next).for_each(|(&walk, node)| item.next[walk as usize] = node);
        });
    }

    fn on_reply(&mut self, _timestamp: u64, item: &mut Walks, reply: &WireBlock) {
        let header = reply.header();
        let first = header.seq as usize * PER_MESSAGE;
        let walks = &item.by_worker[header.from as usize][first..first + header.aux as usize];
        assert_eq!(walks.len(), reply.ids().len(), "worker {} replied for other walks", header.from);
        for (&walk, &node) in walks.iter().zip(reply.ids()) {
            assert!(u64::from(node) < self.by.graph.num_nodes(), "worker {} sent node {node}", header.from);
            item.next[walk as usize] = node;
        }
    }

    fn is_last(&self, _reply: &WireBlock) -> bool {
        true
    }

    fn finish(&mut self, _timestamp: u64, item: &mut Walks) {
        item.visited.extend_from_slice(&item.next);
    }
}

#[cfg(test)]
mod tests;
