//! A step of walks that look back: node2vec's p and q.
//!
//! What a walk does depends on the in-neighbors of the node where it is and of the one where it was. So owners send whole rows, each
//! once for all walks that stand there, and the asker draws; the rows of a step are kept for the next one. That is one round trip
//! a step, as of walks that do not look back, and as many bytes as the rows have.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::{BatchKey, MESSAGE_BYTES, WalkBy, Walks, step_key};
use crate::flow::rpc::Rpc;
use crate::wire::meter::Stage;
use crate::wire::{Header, Rows, WireBlock};
use gnnflow_kernels::sample::{Before, Bias, Neighbors, biased_step};

/// In-neighbors of a node that is elsewhere, and their edges' weights where walks go by them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    sources: Vec<u32>,
    weights: Vec<f32>,
}

/// Rows of nodes that are elsewhere: of where walks stand, and of where they stood.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Looked {
    here: HashMap<u32, Row>,
    before: HashMap<u32, Row>,
}

pub(super) struct BiasedRpc {
    pub(super) me: usize,
    pub(super) step: u32,
    pub(super) by: WalkBy,
    pub(super) bias: Bias,
}

/// Tag of the last answer to a request.
const LAST: u32 = 1;

impl BiasedRpc {
    /// In-neighbors of `node`, and their weights: from here, or from `rows`.
    fn row<'a>(
        &self,
        view: &'a impl Neighbors,
        rows: &'a HashMap<u32, Row>,
        node: u32,
    ) -> (&'a [u32], Option<&'a [f32]>) {
        let graph = &self.by.graph;
        let (sources, weights) = match graph.has_topology(graph.partition_of(node)) {
            true => (view.neighbors(node), view.edge_weights(node)),
            false => rows.get(&node).map_or((&[][..], None), |row| (&row.sources[..], Some(&row.weights[..]))),
        };
        (sources, weights.filter(|_| self.by.walk.weighted))
    }

    /// Where `walk`, which stands at `node`, goes.
    fn next(&self, view: &impl Neighbors, item: &Walks, walk: u32, node: u32) -> u32 {
        let key = step_key(self.by.seed, item.key, self.step)(walk);
        let root = item.visited[walk as usize];
        if self.by.walk.restarts(key) {
            return root;
        }
        let (row, weights) = self.row(view, &item.looked.here, node);
        // Who has gone back to the root has come from nowhere.
        let came = self
            .step
            .checked_sub(1)
            .filter(|&earlier| !self.by.walk.restarts(step_key(self.by.seed, item.key, earlier)(walk)));
        let before = came.map(|_| {
            let node = item.visited[item.visited.len() - 2 * item.walks + walk as usize];
            Before { node, neighbors: self.row(view, &item.looked.before, node).0 }
        });
        biased_step(row, weights, before, self.bias, key).map_or(node, |edge| row[edge])
    }
}

impl Rpc<Walks> for BiasedRpc {
    fn partition(&self, item: &Walks) -> u32 {
        item.key.partition
    }

    fn requests(&mut self, tick: u64, item: &mut Walks) -> Vec<WireBlock> {
        let graph = &self.by.graph;
        let requests = self.by.meter.time(Stage::Sample, || {
            item.looked.before = std::mem::take(&mut item.looked.here);
            let key = step_key(self.by.seed, item.key, self.step);
            let goes = (0..).zip(item.stand()).filter(|&(walk, _)| !self.by.walk.restarts(key(walk)));
            let mut asked: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); graph.placement().workers()];
            for (_, &node) in goes {
                let part = graph.partition_of(node);
                if !graph.has_topology(part) {
                    asked[graph.placement().worker_of(part)].insert(node);
                }
            }
            let BatchKey { partition, .. } = item.key;
            let mut requests = Vec::new();
            for (worker, nodes) in asked.into_iter().enumerate() {
                let nodes: Vec<u32> = nodes.into_iter().collect();
                for (seq, nodes) in nodes.chunks(MESSAGE_BYTES / 4).enumerate() {
                    let (to, from, seq) = (worker as u32, self.me as u32, seq as u32);
                    let header = Header { to, from, partition, tag: 0, key: tick, seq, aux: nodes.len() as u32 };
                    requests.push(WireBlock::new(header, Vec::new(), nodes.to_vec(), Rows::None));
                }
            }
            requests
        });
        requests.iter().for_each(|request| self.by.meter.sent(self.me, request));
        item.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    /// Rows one after another: the node, how many in-neighbors it has, and they. As many blocks as it takes.
    fn serve(&mut self, _tick: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let (asked, nodes) = (request.header(), request.ids());
        let header = Header { to: asked.from, from: self.me as u32, ..asked };
        let meter = Rc::clone(&self.by.meter);
        let mut send = |tag: u32, ids: Vec<u32>, weights: Vec<f32>| {
            let rows = if weights.is_empty() { Rows::None } else { Rows::F32(weights) };
            let block = WireBlock::new(Header { tag, ..header }, Vec::new(), ids, rows);
            meter.sent(self.me, &block);
            reply(block);
        };
        let view = self.by.graph.view();
        let (mut ids, mut weights) = (Vec::new(), Vec::new());
        for &node in nodes {
            assert!(self.by.graph.hosts(node), "worker {} asked for node {node}, which is not here", asked.from);
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

    fn local(&mut self, _tick: u64, _item: &mut Walks) {}

    fn on_reply(&mut self, _tick: u64, item: &mut Walks, answer: &WireBlock) {
        let (mut ids, weights) = (answer.ids(), answer.rows_f32().unwrap_or_default());
        let mut weights = weights.iter().copied();
        while let [node, count, rest @ ..] = ids {
            let (sources, rest) = rest.split_at(*count as usize);
            let weights =
                if self.by.walk.weighted { weights.by_ref().take(sources.len()).collect() } else { Vec::new() };
            item.looked.here.insert(*node, Row { sources: sources.to_vec(), weights });
            ids = rest;
        }
    }

    fn is_last(&self, answer: &WireBlock) -> bool {
        answer.header().tag == LAST
    }

    fn finish(&mut self, _tick: u64, item: &mut Walks) {
        let view = self.by.graph.view();
        let next: Vec<u32> = self.by.meter.time(Stage::Sample, || {
            (0..).zip(item.stand()).map(|(walk, &node)| self.next(&view, item, walk, node)).collect()
        });
        item.visited.extend(next);
    }
}
