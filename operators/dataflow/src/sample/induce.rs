//! Induces the subgraph of each batch's nodes from the in-edges at all workers.
//!
//! *In*: batches with all their nodes. *Out*: the same batches with one more block, whose sources and destinations are all nodes
//! of the list. *Kept per time*: batches that wait for replies. *Capabilities*: held with them.
//!
//! A request is the whole node list, and the positions whose in-edges are requested. The owner replies with the edges whose
//! sources are in the list. Since it knows the edges of the subgraph, it can count them ([`Norm::Count`]) and compute weights
//! from such counts ([`Norm::Weigh`]). A batch whose nodes are all local sends no request. If batches are restricted to their own
//! partition, none does: nodes of other partitions have no in-edges then.

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

/// The use of counts of earlier subgraphs, for GraphSAINT's normalization.
#[derive(Clone, Default)]
pub enum Norm {
    /// No counts.
    #[default]
    None,
    /// Owners count their nodes and edges in the subgraph.
    Count(Rc<RefCell<SubgraphCounts>>),
    /// Owners compute edge weights from such counts. Blocks have them if [`Columns`] requests weights.
    Weigh(Rc<RefCell<SubgraphCounts>>),
}

/// The parameters of induced subgraphs.
#[derive(Clone)]
pub struct InduceBy {
    /// This worker's part of the graph.
    pub graph: Arc<LocalGraph>,
    /// The columns of edges in the block.
    pub columns: Columns,
    /// Counts of earlier subgraphs. Only the nodes' hosts have them, so they get requests even if the topology is replicated. If
    /// batches are restricted to their own partition, counts are of its own subgraphs.
    pub norm: Norm,
    /// Memory for lookups.
    pub pool: CompactorPool,
    /// Counts messages and time.
    pub meter: Rc<Meter>,
}

/// Induces subgraphs.
pub trait Induce<'scope> {
    /// Adds a block with all edges between the nodes of each batch's list, which are distinct. In-edges are in stored order.
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
    /// use gnnflow_dataflow::sample::induce::{Induce, InduceBy, Norm};
    /// use gnnflow_dataflow::batch::mini_batch::{BatchKey, MiniBatch};
    /// use timely::dataflow::operators::{ToStream, core::Inspect};
    ///
    /// // Edges from 1 and 2 to 0, and from 0 to 2.
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
    /// Returns the worker from which the in-edges of `node` are read.
    fn owner_of(&self, node: u32) -> usize {
        let graph = &self.by.graph;
        match self.by.norm {
            Norm::Count(_) | Norm::Weigh(_) if !graph.is_partition_local() => graph.worker_of(node),
            _ => graph.read_from(node),
        }
    }

    /// Returns the edges from nodes of `list` into the nodes at positions `positions`, for a batch of partition `part`.
    fn choose(&self, part: u32, list: &[u32], positions: &[u32]) -> Samples {
        let InduceBy { graph, columns, norm, pool, .. } = &self.by;
        let mut samples = Samples::new(*columns);
        if positions.is_empty() {
            return samples;
        }
        let mut listed = pool.take(|| Compactor::new(graph.num_nodes()));
        listed.start(list);
        let nodes: Vec<u32> = positions.iter().map(|&position| list[position as usize]).collect();
        let each = |node: u32, positions: &[u32], weights: &mut Vec<f32>| match norm {
            Norm::Count(counts) if graph.sees_edges_of(part, node) => counts.borrow_mut().count(node, positions),
            Norm::Weigh(counts) if graph.sees_edges_of(part, node) => counts.borrow().weigh(node, positions, weights),
            _ => {}
        };
        match graph.is_partition_local() {
            true => choose_listed(&graph.partition_view(part as usize), &nodes, &listed, each, &mut samples),
            false => choose_listed(&graph.view(), &nodes, &listed, each, &mut samples),
        }
        pool.give_back(listed);
        samples
    }
}

impl Rpc<MiniBatch> for InduceRpc {
    fn partition(&self, batch: &MiniBatch) -> u32 {
        batch.key.partition
    }

    fn requests(&mut self, timestamp: u64, batch: &mut MiniBatch) -> Vec<WireBlock> {
        let mut positions_of = vec![Vec::new(); self.by.graph.placement().workers()];
        for (position, &node) in (0..).zip(&batch.nodes) {
            positions_of[self.owner_of(node)].push(position);
        }
        batch.samples.clear();
        let samples = Samples::new(self.by.columns);
        batch.samples.resize(positions_of.len(), Drawing { samples, ..Drawing::default() });
        batch.samples[self.me].positions = std::mem::take(&mut positions_of[self.me]);
        let BatchKey { partition, .. } = batch.key;
        let others = positions_of.iter().enumerate().filter(|(_, positions)| !positions.is_empty());
        let requests: Vec<WireBlock> = others
            .map(|(worker, positions)| {
                let (to, from, aux) = (worker as u32, self.me as u32, positions.len() as u32);
                let header = Header { to, from, partition, tag: 0, key: timestamp, seq: 0, aux };
                WireBlock::new(header, Vec::new(), [positions.as_slice(), &batch.nodes].concat(), Rows::None)
            })
            .collect();
        requests.iter().for_each(|request| self.by.meter.sent(self.me, Stage::Sample, request));
        batch.rounds += if requests.is_empty() { 0 } else { 2 };
        requests
    }

    fn serve(&mut self, _timestamp: u64, request: &WireBlock, reply: &mut dyn FnMut(WireBlock)) {
        let header = request.header();
        let samples = self.by.meter.time(Stage::Sample, || {
            let (positions, list) = request.ids().split_at(header.aux as usize);
            for &position in positions {
                let node = list[position as usize];
                assert!(self.by.graph.hosts(node), "worker {} requested node {node}, which is not here", header.from);
            }
            self.choose(header.partition, list, positions)
        });
        pieces::send(header, samples, self.me, &self.by.meter, reply);
    }

    fn local(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let positions = std::mem::take(&mut batch.samples[self.me].positions);
            batch.samples[self.me].samples = self.choose(batch.key.partition, &batch.nodes, &positions);
        });
    }

    fn on_reply(&mut self, _timestamp: u64, batch: &mut MiniBatch, reply: &WireBlock) {
        pieces::receive(&mut batch.samples, self.by.columns, reply);
    }

    fn is_last(&self, reply: &WireBlock) -> bool {
        pieces::is_last(reply)
    }

    fn finish(&mut self, _timestamp: u64, batch: &mut MiniBatch) {
        let meter = Rc::clone(&self.by.meter);
        meter.time(Stage::Sample, || {
            let drawings = std::mem::take(&mut batch.samples);
            let mut replies = Replies::new(drawings.len(), batch.nodes.len() as u64);
            let mut expected = vec![0; drawings.len()];
            batch.nodes.iter().for_each(|&node| expected[self.owner_of(node)] += 1);
            for (worker, Drawing { samples, .. }) in drawings.iter().enumerate() {
                let edges = Edges { sources: &samples.neighbors, columns: samples.columns() };
                replies.push_edges(worker, &samples.counts, edges).unwrap_or_else(|bad| panic!("{bad}"));
                assert_eq!(
                    replies.remaining(worker),
                    expected[worker],
                    "worker {worker} replied with the edges of other nodes"
                );
            }
            let edges_of = |position: usize| replies.next_edges(self.owner_of(batch.nodes[position]));
            let block = assemble_listed(batch.nodes.len(), edges_of, self.by.columns);
            batch.blocks.push(block);
        });
    }
}

#[cfg(test)]
mod tests;
