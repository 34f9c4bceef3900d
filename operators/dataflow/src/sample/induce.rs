//! Brings the edges between the nodes of each batch: the subgraph that its list induces, wherever the nodes' in-edges are.
//!
//! *In*: batches with all their nodes. *Out*: the same batches with one block more, whose sources and destinations are all nodes of the
//! list. *Kept per time*: the batches whose edges are under way. *Capabilities*: held with them.
//!
//! A request is the whole list, and which places of it are asked for: the owner keeps the edges whose sources are listed, so that no
//! other edge travels, and knows which edges are in the subgraph. It can count them ([`Norm::Count`]), and weigh them by
//! such counts ([`Norm::Weigh`]). Batches of nodes that are all here ask nobody.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::StreamVec;

use super::pieces;
use super::sample_hop::CompactorPool;
use super::subgraph_counts::SubgraphCounts;
use crate::batch::mini_batch::{BatchKey, Drawing, MiniBatch};
use crate::flow::rpc::{CallRpc, Rpc};
use crate::graph::local_graph::LocalGraph;
use crate::wire::meter::{Meter, Stage};
use crate::wire::{Header, Rows, WireBlock};
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{Columns, Edges, Replies, Samples, assemble_listed, choose_listed};

/// What the subgraph's edges have to do with counts of earlier subgraphs.
#[derive(Clone, Default)]
pub enum Norm {
    /// Nothing.
    #[default]
    None,
    /// Owners count their nodes and edges that are in it.
    Count(Rc<RefCell<SubgraphCounts>>),
    /// Owners weigh their edges by such counts: the weights of the block, where [`Columns`] ask for them.
    Weigh(Rc<RefCell<SubgraphCounts>>),
}

/// How subgraphs are induced.
#[derive(Clone)]
pub struct InduceBy {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// What the block has of each edge besides its source.
    pub columns: Columns,
    /// Counts of earlier subgraphs. They lie with the nodes' hosts, who are asked then even where topology is replicated.
    pub norm: Norm,
    /// Where lookups find their memory.
    pub pool: CompactorPool,
    /// What is counted.
    pub meter: Rc<Meter>,
}

/// Induced subgraphs.
pub trait Induce<'scope> {
    /// Adds a block with all edges between the nodes of each batch's list: distinct nodes, each in-edge in stored order.
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
    /// use gnnflow_dataflow::sample::induce::{Induce, InduceBy, Norm};
    /// use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// // Node 0 hears from 1 and 2, node 2 from 0.
    /// let in_edges = OwnedInEdges { indptr: vec![0, 2, 2, 3], indices: vec![1, 2, 0], ..OwnedInEdges::default() };
    /// let book = PartitionBook::new(vec![0, 3]).unwrap();
    /// let load = |_| Ok::<_, ()>(Arc::new(in_edges.clone()) as _);
    /// let graph = Arc::new(LocalGraph::load(&book, Placement::new(1, 1), 0, false, load).unwrap());
    /// timely::example(move |scope| {
    ///     let by = InduceBy {
    ///         graph,
    ///         columns: Default::default(),
    ///         norm: Norm::None,
    ///         pool: Default::default(),
    ///         meter: Default::default(),
    ///     };
    ///     [0u32].to_stream(scope).container::<Vec<u32>>()
    ///         .map(|_| MiniBatch::new(BatchKey::default(), vec![2, 0]))
    ///         .induce(by)
    ///         .inspect(|batch| {
    ///             assert_eq!(batch.blocks[0].neighbors(0), [1]);
    ///             assert_eq!(batch.blocks[0].neighbors(1), [0]);
    ///         });
    /// });
    /// # use timely::dataflow::operators::vec::Map;
    /// ```
    fn induce(self, by: InduceBy) -> Self;
}

impl<'scope> Induce<'scope> for StreamVec<'scope, u64, MiniBatch> {
    fn induce(self, by: InduceBy) -> Self {
        let me = self.scope().index();
        self.rpc("induce", || InduceRpc { me, by: by.clone() })
    }
}

struct InduceRpc {
    me: usize,
    by: InduceBy,
}

impl InduceRpc {
    /// Who has the in-edges of `node`, for this worker.
    fn asked_for(&self, node: u32) -> usize {
        let (graph, part) = (&self.by.graph, self.by.graph.partition_of(node));
        match self.by.norm {
            Norm::None if graph.has_topology(part) => self.me,
            _ => graph.placement().worker_of(part),
        }
    }

    /// The edges into the nodes at `places` from nodes of `list`.
    fn choose(&self, list: &[u32], places: &[u32]) -> Samples {
        let InduceBy { graph, columns, norm, pool, .. } = &self.by;
        let mut samples = Samples::new(*columns);
        if places.is_empty() {
            return samples;
        }
        let mut listed = pool.take(|| Compactor::new(graph.num_nodes()));
        listed.start(list);
        let nodes: Vec<u32> = places.iter().map(|&place| list[place as usize]).collect();
        let each = |node: u32, positions: &[u32], weights: &mut Vec<f32>| match norm {
            Norm::None => {}
            Norm::Count(counts) => counts.borrow_mut().count(node, positions),
            Norm::Weigh(counts) => counts.borrow().weigh(node, positions, weights),
        };
        choose_listed(&graph.view(), &nodes, &listed, each, &mut samples);
        pool.give_back(listed);
        samples
    }
}

impl Rpc<MiniBatch> for InduceRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, tick: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let mut places_of = vec![Vec::new(); self.by.graph.placement().workers()];
        for (place, &node) in (0..).zip(&batch.nodes) {
            places_of[self.asked_for(node)].push(place);
        }
        batch.samples.clear();
        let samples = Samples::new(self.by.columns);
        batch.samples.resize(places_of.len(), Drawing { samples, ..Drawing::default() });
        batch.samples[self.me].asked = std::mem::take(&mut places_of[self.me]);
        let BatchKey { partition, .. } = batch.key;
        let others = places_of.iter().enumerate().filter(|(_, places)| !places.is_empty());
        let requests: Vec<WireBlock> = others
            .map(|(worker, places)| {
                let (to, from, aux) = (worker as u32, self.me as u32, places.len() as u32);
                let header = Header { to, from, partition, tag: 0, key: tick, seq: 0, aux };
                WireBlock::new(header, Vec::new(), [places.as_slice(), &batch.nodes].concat(), Rows::None)
            })
            .collect();
        requests.iter().for_each(|request| self.by.meter.sent(self.me, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _tick: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let asked = request.header();
        let samples = self.by.meter.time(Stage::Sample, || {
            let (places, list) = request.ids().split_at(asked.aux as usize);
            for &place in places {
                let node = list[place as usize];
                assert!(self.by.graph.hosts(node), "worker {} asked for node {node}, which is not here", asked.from);
            }
            self.choose(list, places)
        });
        pieces::send(asked, samples, self.me, &self.by.meter, reply);
    }

    fn local(&mut self, _tick: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let places = std::mem::take(&mut batch.samples[self.me].asked);
            batch.samples[self.me].samples = self.choose(&batch.nodes, &places);
        });
    }

    fn on_reply(&mut self, _tick: u64, batch: &mut MiniBatch, answer: &WireBlock) {
        pieces::receive(&mut batch.samples, self.by.columns, answer);
    }

    fn is_last(&self, answer: &WireBlock) -> bool {
        pieces::is_last(answer)
    }

    fn finish(&mut self, _tick: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let drawings = std::mem::take(&mut batch.samples);
            let mut replies = Replies::new(drawings.len(), batch.nodes.len() as u64);
            let mut expected = vec![0; drawings.len()];
            batch.nodes.iter().for_each(|&node| expected[self.asked_for(node)] += 1);
            for (worker, Drawing { samples, .. }) in drawings.iter().enumerate() {
                let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                replies.push_edges(worker, &samples.counts, edges).unwrap_or_else(|bad| panic!("{bad}"));
                assert_eq!(replies.remaining(worker), expected[worker], "worker {worker} answered for other nodes");
            }
            let edges_of = |place: usize| replies.next_edges(self.asked_for(batch.nodes[place]));
            let block = assemble_listed(batch.nodes.len(), edges_of, self.by.columns);
            batch.blocks.push(block);
        });
    }
}

#[cfg(test)]
mod tests;
