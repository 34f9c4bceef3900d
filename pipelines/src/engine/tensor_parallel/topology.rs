//! All edges of the graph. In column-parallel training, every worker has them.

use std::ops::Range;
use std::sync::Arc;

use gnnflow_dataflow::ghost::links::Filter;
use gnnflow_dataflow::ghost::{Ends, Links};
use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::Place;

use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::engine::aggregation::edge_types::by_relation;
use crate::engine::aggregation::transpose::transposed;
use crate::engine::stages::intervals::{
    EdgeNeeds, Interval, PREPARING_EDGES, check_slots, cut, is_symmetric, learns_edges, training_nodes,
};
use crate::error::Error;
use crate::runtime::job::Job;

/// The edges and intervals of a worker in column-parallel training.
pub(crate) struct AllEdges {
    pub(crate) worker: usize,
    pub(crate) own: Range<u32>,
    pub(crate) intervals: Vec<Interval>,
    /// In-edges of all nodes: rows are receivers' slots.
    pub(crate) arriving: Arc<Links>,
    /// Out-edges of all nodes: rows are senders.
    pub(crate) leaving: Arc<Links>,
    /// By partition, its in-edges, by slot.
    pub(crate) parts: Vec<Arc<dyn InEdges>>,
    /// Number of sums per node.
    pub(crate) slots: usize,
    /// By worker, its first node; and the number of nodes.
    pub(crate) starts: Vec<u32>,
    /// Maximum bytes of the shards of a chunk.
    pub(crate) chunk_memory: u64,
}

impl AllEdges {
    /// Reads all edges. All workers call it together. `count` is the number of intervals of a partition.
    ///
    /// # Errors
    /// When there is no space, or a file of the dataset cannot be read.
    pub(crate) fn open(
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        collectives: &mut Collectives,
        count: Option<usize>,
        chunk_memory: u64,
        EdgeNeeds { self_loops, slots }: EdgeNeeds,
    ) -> Result<Self, Error> {
        let (runtime, graph, book) = (&*job.runtime, &context.graph, job.dataset.book());
        let busy = runtime.busy(PREPARING_EDGES);
        let placement = context.placement;
        let first_node = |worker: usize| book.offsets()[placement.parts_of(worker).start] as u32;
        let all = graph.num_nodes() as u32;
        let starts: Vec<u32> = (0..placement.workers()).map(first_node).chain([all]).collect();
        let own = starts[context.worker]..starts[context.worker + 1];
        let trains = training_nodes(job)?;
        let is_train = |node: u32| trains[node as usize / 64] >> (node % 64) & 1 == 1;
        let place = Place::Folder(context.scratch.clone());
        let failed = |error: std::io::Error| {
            Error::Machine(format!("cannot reserve space for the out-edges in {}: {error}", context.scratch.display()))
        };
        check_slots(u64::from(all), slots)?;
        let parts = (0..placement.parts()).map(|part| by_relation(&graph.shared_in_edges(part), slots, &place));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let links = |parts: &[Arc<dyn InEdges>], [rows, table]: [u32; 2]| {
            let (rows, table) = (all * rows, all * table);
            let ends = Ends { rows: 0..rows, table: 0..table, all: u64::from(table) };
            Links::new(ends, parts, Filter { self_loops, ..Filter::default() }, &place).map(Arc::new).map_err(failed)
        };
        let arriving = links(&parts, [slots, 1])?;
        drop(busy);
        let symmetric = slots == 1 && is_symmetric(driver, job, graph, collectives)?;
        let _busy = runtime.busy(PREPARING_EDGES);
        let leaving = match symmetric {
            true => Arc::clone(&arriving),
            false => links(&transposed(&parts, slots as usize, &place).map_err(failed)?, [1, slots])?,
        };
        let intervals = cut(graph, &own, count, &|node| !learns_edges(job) && is_train(node));
        let (worker, slots) = (context.worker, slots as usize);
        Ok(Self { worker, own, intervals, arriving, leaving, parts, slots, starts, chunk_memory })
    }

    /// Returns the links of the forward or the backward pass.
    pub(crate) fn links(&self, backward: bool) -> &Links {
        if backward { &self.leaving } else { &self.arriving }
    }
}
