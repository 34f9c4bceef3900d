//! The edges of a worker's own nodes, by the rows of tables that they read. Built once, before the first epoch.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::links::Filter;
use gnnflow_dataflow::ghost::{Ends, Links};
use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::Place;

use super::ghost_edges::{exchange_ghosts, reverse};
use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::engine::aggregation::edge_types::by_relation;
use crate::engine::stages::intervals::{
    EdgeNeeds, Interval, PREPARING_EDGES, check_slots, cut, is_symmetric, learns_edges, slots_of, training_nodes,
};
use crate::error::Error;
use crate::runtime::job::Job;

/// If more than this share of all nodes are training nodes, the last hop aggregates for all nodes: fewer receivers would save little.
const MANY: f64 = 0.5;

/// The edges of a worker in node-parallel training.
pub(crate) struct Topology {
    pub(crate) worker: usize,
    pub(crate) own: Range<u32>,
    pub(crate) intervals: Vec<Interval>,
    /// The links of all hops but the last.
    pub(crate) all: LinkPair,
    /// The links of the last hop, whose receivers are the nodes with a loss.
    pub(crate) last: LinkPair,
    /// In-edges of the partitions hosted here, by slot.
    pub(crate) in_edges: Vec<Arc<dyn InEdges>>,
    /// Number of sums per node.
    pub(crate) slots: u32,
    /// By worker, its first node.
    pub(crate) starts: Vec<u32>,
    /// The place of arrays of edges.
    pub(crate) edges_at: Place,
}

/// The links of a hop in both directions. Both are one object if the graph is symmetric.
#[derive(Clone)]
pub(crate) struct LinkPair {
    /// Forward links: rows are receivers' slots, the table holds senders.
    pub(crate) arriving: Arc<Links>,
    /// Backward links: rows are senders, the table holds receivers' slots.
    pub(crate) leaving: Arc<Links>,
}

impl LinkPair {
    /// Tells whether gradients use the same links as activations.
    pub(crate) fn is_symmetric(&self) -> bool {
        Arc::ptr_eq(&self.arriving, &self.leaving)
    }
}

impl Topology {
    /// Builds the links of this worker. All workers call it together. `count` is the number of intervals of a partition.
    ///
    /// # Errors
    /// When there is no space, or a file of the dataset cannot be read.
    pub(crate) fn open(
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        collectives: &mut Collectives,
        count: Option<usize>,
        EdgeNeeds { self_loops, slots }: EdgeNeeds,
    ) -> Result<Self, Error> {
        let (runtime, graph, book) = (&*job.runtime, &context.graph, job.dataset.book());
        let busy = runtime.busy(PREPARING_EDGES);
        let placement = context.placement;
        let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
        let starts: Vec<u32> = (0..placement.workers()).map(first_node).collect();
        let hosted = graph.hosted();
        let own = book.offsets()[hosted.start] as u32..book.offsets()[hosted.end] as u32;
        let of_edges = learns_edges(job);
        let trains = training_nodes(job)?;
        let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
        let intervals = cut(graph, &own, count, &|node| !of_edges && is_train(node));
        let place = Place::Folder(context.scratch.clone());
        let failed = |error: std::io::Error| {
            Error::Machine(format!("cannot reserve space for the edges in {}: {error}", context.scratch.display()))
        };
        let nodes = graph.num_nodes();
        check_slots(nodes, slots)?;
        let in_edges = hosted.clone().map(|part| by_relation(&graph.shared_in_edges(part), slots, &place));
        let in_edges = in_edges.collect::<Result<Vec<_>, _>>()?;
        drop(busy);
        // The types of an edge and its reverse may differ.
        let symmetric = slots == 1 && is_symmetric(driver, job, graph, collectives)?;
        let out_edges =
            if symmetric { in_edges.clone() } else { reverse(driver, collectives, context, &own, slots, &place)? };
        let mut build = |edges: &[Arc<dyn InEdges>], [rows, table]: [u32; 2], filter: Filter<'_>| {
            let ends = Ends { rows: slots_of(&own, rows), table: slots_of(&own, table), all: nodes * u64::from(table) };
            let busy = runtime.busy(PREPARING_EDGES);
            let mut links = Links::new(ends, edges, filter, &place).map_err(failed)?;
            drop(busy);
            let starts: Vec<u32> = starts.iter().map(|&start| start * table).collect();
            let wanted = exchange_ghosts(driver, collectives, &starts, links.ghosts())?;
            links.set_wanted(wanted);
            Ok::<_, Error>(Arc::new(links))
        };
        let share = trains.iter().map(|word| word.count_ones() as u64).sum::<u64>() as f64 / nodes.max(1) as f64;
        // Training edges may read the result of any node.
        let share = if of_edges { 1.0 } else { share };
        let every = Filter { self_loops, ..Filter::default() };
        let all = {
            let arriving = build(&in_edges, [slots, 1], every)?;
            let leaving = if symmetric { Arc::clone(&arriving) } else { build(&out_edges, [1, slots], every)? };
            LinkPair { arriving, leaving }
        };
        let last = if share > MANY {
            all.clone()
        } else {
            let has_loss = |slot: u32| is_train(slot / slots);
            let arriving = build(&in_edges, [slots, 1], Filter { rows: Some(&has_loss), ..every })?;
            let leaving = build(&out_edges, [1, slots], Filter { neighbors: Some(&has_loss), ..every })?;
            LinkPair { arriving, leaving }
        };
        let worker = context.worker;
        Ok(Self { worker, own, intervals, all, last, in_edges, slots, starts, edges_at: place })
    }

    /// Returns the links of hop `index` of `hops`.
    pub(crate) fn links(&self, index: usize, hops: usize) -> &LinkPair {
        if index + 1 == hops { &self.last } else { &self.all }
    }
}
