//! A step of biased walks: node2vec's p and q.
//!
//! A step depends on the in-neighbors of the walk's current node and of its previous one. So owners send whole rows, each
//! once for all walks at that node, and the caller draws. The rows of a step are kept for the next one. A step takes one round trip,
//! as in unbiased walks, but sends whole rows.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::walks::{Row, WalkBy, Walks, step_key};
use crate::batch::mini_batch::BatchKey;
use crate::flow::rpc::Rpc;
use crate::wire::meter::Stage;
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use gnnflow_kernels::sample::{Before, Bias, Neighbors, biased_step};

pub(super) struct BiasedRpc {
    pub(super) me: usize,
    pub(super) step: u32,
    pub(super) by: WalkBy,
    pub(super) bias: Bias,
}

/// The tag of the last message of a reply.
const LAST: u32 = 1;

impl BiasedRpc {
    /// Returns the in-neighbors of `node` and their weights, from the local graph or from `rows`.
    fn row<'a>(
        &self,
        view: &'a impl Neighbors,
        rows: &'a HashMap<u32, Row>,
        node: u32,
    ) -> (&'a [u32], Option<&'a [f32]>) {
        let (sources, weights) = match self.by.graph.read_from(node) == self.me {
            true => (view.neighbors(node), view.edge_weights(node)),
            false => rows.get(&node).map_or((&[][..], None), |row| (&row.sources[..], Some(&row.weights[..]))),
        };
        (sources, weights.filter(|_| self.by.walk.weighted))
    }

    /// Returns the next node of each walk.
    fn next_nodes(&self, view: &impl Neighbors, item: &Walks) -> Vec<u32> {
        (0..).zip(item.current()).map(|(walk, &node)| self.next(view, item, walk, node)).collect()
    }

    /// Returns the next node of `walk`, whose current node is `node`.
    fn next(&self, view: &impl Neighbors, item: &Walks, walk: u32, node: u32) -> u32 {
        let key = step_key(self.by.seed, item.key, self.step)(walk);
        let root = item.visited[walk as usize];
        if self.by.walk.restarts(key) {
            return root;
        }
        let (row, weights) = self.row(view, &item.looked.current, node);
        // A walk that has just restarted has no previous node.
        let earlier = self
            .step
            .checked_sub(1)
            .filter(|&earlier| !self.by.walk.restarts(step_key(self.by.seed, item.key, earlier)(walk)));
        let before = earlier.map(|_| {
            let node = item.visited[item.visited.len() - 2 * item.walks + walk as usize];
            Before { node, neighbors: self.row(view, &item.looked.previous, node).0 }
        });
        biased_step(row, weights, before, self.bias, key).map_or(node, |edge| row[edge])
    }
}

impl Rpc<Walks> for BiasedRpc {
    fn partition(&self, item: &Walks) -> u32 {
        item.key.partition
    }

    fn requests(&mut self, timestamp: u64, item: &mut Walks) -> Vec<WireBlock> {
        let graph = &self.by.graph;
        let requests = self.by.meter.time(Stage::Sample, || {
            item.looked.previous = std::mem::take(&mut item.looked.current);
            let key = step_key(self.by.seed, item.key, self.step);
            let moving = (0..).zip(item.current()).filter(|&(walk, _)| !self.by.walk.restarts(key(walk)));
            let mut wanted: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); graph.placement().workers()];
            for (_, &node) in moving {
                let worker = graph.read_from(node);
                if worker != self.me {
                    wanted[worker].insert(node);
                }
            }
            let BatchKey { partition, .. } = item.key;
            let mut requests = Vec::new();
            for (worker, nodes) in wanted.into_iter().enumerate() {
                let nodes: Vec<u32> = nodes.into_iter().collect();
                for (seq, nodes) in nodes.chunks(MESSAGE_BYTES / 4).enumerate() {
                    let (to, from, seq) = (worker as u32, self.me as u32, seq as u32);
                    let header = Header { to, from, partition, tag: 0, key: timestamp, seq, aux: nodes.len() as u32 };
                    requests.push(WireBlock::new(header, Vec::new(), nodes.to_vec(), Rows::None));
                }
            }
            requests
        });
        requests.iter().for_each(|request| self.by.meter.sent(self.me, Stage::Sample, request));
        item.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    /// Replies with one or more blocks of rows. A row is the node, the number of its in-neighbors, and the in-neighbors.
    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (received, nodes) = (request.header(), request.ids());
        let header = Header { to: received.from, from: self.me as u32, ..received };
        let meter = Rc::clone(&self.by.meter);
        let mut send = |tag: u32, ids: Vec<u32>, weights: Vec<f32>| {
            let rows = if weights.is_empty() { Rows::None } else { Rows::F32(weights) };
            let block = WireBlock::new(Header { tag, ..header }, Vec::new(), ids, rows);
            meter.sent(self.me, Stage::Sample, &block);
            reply(block);
        };
        let view = self.by.graph.view();
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for &node in nodes {
            assert!(self.by.graph.hosts(node), "worker {} requested node {node}, which is not here", received.from);
            let row = view.neighbors(node);
            if !ids.is_empty() && 4 * (ids.len() + weights.len() + 2 * row.len()) > MESSAGE_BYTES {
                send(0, std::mem::take(&mut ids), std::mem::take(&mut weights));
            }
            ids.extend([node, row.len() as u32]);
            ids.extend_from_slice(row);
            if self.by.walk.weighted {
                weights.extend_from_slice(view.edge_weights(node).expect("edges have weights"));
            }
        }
        send(LAST, ids, weights);
    }

    fn local(&mut self, _timestamp: u64, _item: &mut Walks) {}

    fn on_reply(&mut self, _timestamp: u64, item: &mut Walks, reply: &WireBlock) {
        let (mut ids, weights) = (reply.ids(), reply.rows_f32().unwrap_or_default());
        let mut weights = weights.iter().copied();
        while let [node, count, rest @ ..] = ids {
            let (sources, rest) = rest.split_at(*count as usize);
            let weights =
                if self.by.walk.weighted { weights.by_ref().take(sources.len()).collect() } else { Vec::new() };
            item.looked.current.insert(*node, Row { sources: sources.to_vec(), weights });
            ids = rest;
        }
    }

    fn is_last(&self, reply: &WireBlock) -> bool {
        reply.header().tag == LAST
    }

    fn finish(&mut self, _timestamp: u64, item: &mut Walks) {
        let graph = &self.by.graph;
        let next = self.by.meter.time(Stage::Sample, || match graph.is_partition_local() {
            true => self.next_nodes(&graph.partition_view(item.key.partition as usize), item),
            false => self.next_nodes(&graph.view(), item),
        });
        item.visited.extend(next);
    }
}
