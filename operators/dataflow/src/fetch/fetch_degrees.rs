//! Fetches the in-degrees of nodes from their owners.
//!
//! *In*: lists of nodes. *Out*: the same lists with a degree for each node. *Kept per time*: lists that wait for replies.
//! *Capabilities*: held with them.
//!
//! Batches fetch degrees together with their rows ([`fetch_rows`](super::fetch_rows)). This operator fetches them once and without
//! rows: partition-parallel training needs the degrees of its halo.

use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};

/// A list of nodes and their degrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDegrees {
    /// The number of the list, unique among those of its time.
    pub list: u32,
    /// Global ids.
    pub nodes: Vec<u32>,
    /// The in-degree of each node without self loops, once fetched.
    pub degrees: Vec<u32>,
    /// Positions in `nodes` by the worker that owns them.
    positions: Vec<Vec<u32>>,
}

impl NodeDegrees {
    /// Creates a list without degrees.
    pub fn new(list: u32, nodes: Vec<u32>) -> Self {
        Self { list, nodes, ..Self::default() }
    }
}

/// Fetches degrees from their owners.
pub trait FetchDegrees<'scope> {
    /// Fetches a degree for each node of each list. `graph` must be [`with_degrees`](LocalGraph::with_degrees) at all workers.
    ///
    /// # Panics
    /// When an owner does not know a degree.
    fn fetch_degrees(self, graph: Arc<LocalGraph>, meter: Rc<Meter>) -> Self;
}

impl<'scope> FetchDegrees<'scope> for StreamVec<'scope, u64, NodeDegrees> {
    fn fetch_degrees(self, graph: Arc<LocalGraph>, meter: Rc<Meter>) -> Self {
        let me = self.scope().index();
        self.rpc("fetch_degrees", || DegreesRpc { me, graph: Arc::clone(&graph), meter: Rc::clone(&meter) })
    }
}

/// The number of degrees in one reply.
const PER_MESSAGE: usize = MESSAGE_BYTES / 4;

struct DegreesRpc {
    me: usize,
    graph: Arc<LocalGraph>,
    meter: Rc<Meter>,
}

impl DegreesRpc {
    fn degrees_of(&self, nodes: impl Iterator<Item = u32>) -> Vec<u32> {
        nodes.map(|node| self.graph.degree(node)).collect()
    }
}

impl Rpc<NodeDegrees> for DegreesRpc {
    fn partition(&self, item: &NodeDegrees) -> u32 {
        item.list
    }

    fn requests(&mut self, timestamp: u64, item: &mut NodeDegrees) -> Vec<WireBlock> {
        item.degrees = vec![0; item.nodes.len()];
        item.positions = vec![Vec::new(); self.graph.placement().workers()];
        for (position, &node) in (0..).zip(&item.nodes) {
            item.positions[self.graph.worker_of(node)].push(position);
        }
        let mut requests = Vec::new();
        for (worker, positions) in item.positions.iter().enumerate().filter(|&(worker, _)| worker != self.me) {
            for (seq, positions) in positions.chunks(PER_MESSAGE).enumerate() {
                let header = Header {
                    to: worker as u32,
                    from: self.me as u32,
                    partition: item.list,
                    tag: 0,
                    key: timestamp,
                    seq: seq as u32,
                    aux: 0,
                };
                let nodes = positions.iter().map(|&position| item.nodes[position as usize]).collect();
                let request = WireBlock::new(header, Vec::new(), nodes, Rows::None);
                self.meter.sent(self.me, Stage::Fetch, &request);
                requests.push(request);
            }
        }
        requests
    }

    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let degrees = self.degrees_of(request.ids().iter().copied());
        let header = request.header();
        let header = Header { to: header.from, from: self.me as u32, ..header };
        let block = WireBlock::new(header, Vec::new(), degrees, Rows::None);
        self.meter.sent(self.me, Stage::Fetch, &block);
        reply(block);
    }

    fn local(&mut self, _timestamp: u64, item: &mut NodeDegrees) {
        let positions = &item.positions[self.me];
        let found = self.degrees_of(positions.iter().map(|&position| item.nodes[position as usize]));
        positions.iter().zip(found).for_each(|(&position, degree)| item.degrees[position as usize] = degree);
    }

    fn on_reply(&mut self, _timestamp: u64, item: &mut NodeDegrees, reply: &WireBlock) {
        let header = reply.header();
        let first = header.seq as usize * PER_MESSAGE;
        let positions = &item.positions[header.from as usize][first..first + reply.ids().len()];
        positions.iter().zip(reply.ids()).for_each(|(&position, &degree)| item.degrees[position as usize] = degree);
    }

    fn is_last(&self, _reply: &WireBlock) -> bool {
        true // every request has one reply
    }

    fn finish(&mut self, _timestamp: u64, item: &mut NodeDegrees) {
        item.positions = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use timely::dataflow::operators::core::Inspect;
    use timely::dataflow::operators::vec::ToStream;

    use super::*;
    use crate::testing::{book, local, random_graph};

    #[test]
    fn degrees_equal_the_graph_at_1_2_and_4_workers() {
        let nodes = 70_000; // more than fit one message
        let graph = random_graph(nodes, 3);
        for workers in [1, 2, 4] {
            let (send, receive) = mpsc::channel();
            let (send, graph_of) = (std::sync::Mutex::new(send), graph.clone());
            timely::execute(timely::Config::process(workers), move |worker| {
                let (index, send) = (worker.index(), send.lock().unwrap().clone());
                let graph = Arc::new(local(&graph_of, &book(nodes, 4), workers, index, false));
                worker.dataflow::<u64, _, _>(|scope| {
                    let lists: Vec<NodeDegrees> = vec![
                        NodeDegrees::new(0, (0..nodes).rev().collect()),
                        NodeDegrees::new(1, Vec::new()),
                        NodeDegrees::new(2, vec![5, 5, nodes - 1]),
                    ];
                    lists
                        .to_stream(scope)
                        .fetch_degrees(graph, Rc::default())
                        .inspect(move |list| send.send((list.nodes.clone(), list.degrees.clone())).unwrap());
                });
            })
            .unwrap();
            let lists: Vec<(Vec<u32>, Vec<u32>)> = receive.into_iter().collect();
            assert_eq!(lists.len(), 3 * workers);
            for (nodes, degrees) in lists {
                assert_eq!(nodes.len(), degrees.len());
                for (&node, degree) in nodes.iter().zip(degrees) {
                    let row = &graph[node as usize];
                    assert_eq!(degree as usize, row.len() - row.iter().filter(|&&n| n == node).count());
                }
            }
        }
    }
}
