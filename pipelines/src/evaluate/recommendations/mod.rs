//! `recommendations.parquet`: for each source, the tails with the highest scores that it has no edge to.
//!
//! ```text
//! a chunk of sources → their rows → query vectors (compute thread)
//! all tails, block by block → their rows → the best ones of each source (compute thread)
//! ```
//!
//! Each worker computes the lists of the sources of its own partitions. Blocks of tails are fetched, scored and dropped. The order of a list is that of
//! scores, then of global ids, so it does not depend on the order of blocks.

mod lists;
mod table;

use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::storage::RowStore;
use gnnflow_kernels::pairs::Edge;
use timely::worker::Worker;

use self::lists::Lists;
use super::fetch_results::{FetchedRows, ResultFetcher};
use super::node_blocks::{QUERY_BYTES, Share, WINDOW, node_blocks};
use crate::collectives::Driver;
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::outputs::output_nodes::OutputNodes;
use crate::runtime::job::Job;
use crate::task::link_prediction::sources::{Sources, TailKind};

pub(crate) use self::table::write;

/// A recommended edge: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Recommendation {
    pub(crate) edge: Edge,
    /// The place on the list of its source, from 1.
    pub(crate) rank: u32,
    pub(crate) score: f32,
}

/// The dataflow of one worker that computes recommendations.
pub(crate) struct Recommender {
    fetcher: ResultFetcher<Lists>,
    blocks: Vec<std::ops::Range<u32>>,
    sources: Sources,
    width: usize,
}

impl Recommender {
    /// Builds the dataflow over the model's `results`.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        sources: Sources,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let fetcher = ResultFetcher::build(worker, context, results, compute_thread, "recommend", consume);
        Self { fetcher, blocks: node_blocks(context, &sources.nodes), width: results.width(), sources }
    }

    /// Returns the recommendations for `sources`, by partition hosted here, in the order of the sources' global ids.
    ///
    /// # Errors
    /// The first error of an operator, of the compute thread, or of the dataset.
    pub(crate) fn recommend(
        &mut self,
        driver: &mut Driver<'_>,
        job: &Job,
        context: &WorkerContext,
        sources: &OutputNodes,
    ) -> Result<Vec<Vec<Recommendation>>, Error> {
        let hosted = context.placement.parts_of(context.worker);
        let (progress, counts, kinds) = (driver.runtime.progress(), sources.counts(), self.sources.kinds.clone());
        let of_part = |part: usize| {
            let first = context.graph.range(part).start;
            sources.locals(context, part, 0..counts[part] as usize).into_iter().map(move |local| first + local as u32)
        };
        let all: Vec<u32> = hosted.clone().flat_map(of_part).collect();
        let of_kind = |node: &u32, kind: &TailKind| self.sources.nodes.group_of(*node) == kind.heads;
        let by_kind: Vec<Vec<u32>> =
            kinds.iter().map(|kind| all.iter().copied().filter(|node| of_kind(node, kind)).collect()).collect();
        progress.brief_stage("recommend", by_kind.iter().map(|heads| heads.len() as u64).sum(), "lists");
        let chunk = (QUERY_BYTES / (4 * self.width.max(1))).max(1);
        let mut rows = Vec::new();
        for (kind, heads) in kinds.iter().zip(&by_kind) {
            for heads in heads.chunks(chunk) {
                self.lists(driver, job, (kind, heads), &mut rows)?;
            }
        }
        // Other workers may still request rows of this worker.
        self.fetcher.end(driver)?;
        progress.done();
        // The lists of a source by kind, which are in order already.
        rows.sort_by_key(|row| row.edge.head);
        let mut rest = &rows[..];
        let rows_of = |part: usize| {
            let end = context.graph.range(part).end;
            let (own, after) = rest.split_at(rest.partition_point(|row| row.edge.head < end));
            rest = after;
            own.to_vec()
        };
        Ok(hosted.map(rows_of).collect())
    }

    /// Appends the lists of the sources `heads`, ascending.
    fn lists(
        &mut self,
        driver: &mut Driver<'_>,
        job: &Job,
        (kind, heads): (&TailKind, &[u32]),
        rows: &mut Vec<Recommendation>,
    ) -> Result<(), Error> {
        let busy = job.runtime.busy("reading the edges of sources");
        let known = self.sources.known_tails(&job.dataset, kind, heads)?;
        drop(busy);
        *self.fetcher.state() = Lists::new(self.sources.length, self.width, known);
        let edges: Vec<Edge> = heads.iter().map(|&head| Edge { head, tail: head, relation: kind.relation }).collect();
        self.fetcher.request_ends(&edges);
        self.fetcher.wait(driver, 0)?;
        let mut share = Share::new(heads.len() as u64);
        for (at, block) in self.blocks.iter().enumerate() {
            if self.sources.nodes.group_of(block.start) == kind.tails {
                self.fetcher.request(block.clone().collect(), None);
                self.fetcher.wait(driver, WINDOW)?;
                share.reach(driver, (at + 1, self.blocks.len()));
            }
        }
        self.fetcher.wait(driver, 0)?;
        share.reach(driver, (1, 1));
        let lists = std::mem::take(&mut *self.fetcher.state());
        for (edge, list) in edges.iter().zip(lists.finish()) {
            let row =
                |(rank, (tail, score)): (u32, (u32, f32))| Recommendation { edge: Edge { tail, ..*edge }, rank, score };
            rows.extend((1..).zip(list).map(row));
        }
        Ok(())
    }
}

/// Sets the queries from the rows of sources, or scores the rows of tails.
fn consume(lists: &mut Lists, compute: &ComputeState, fetched: &FetchedRows<'_>) -> Result<(), Error> {
    let Some(pairs) = fetched.pairs else {
        compute.on_threads(|| lists.add(fetched.nodes, fetched.rows));
        return Ok(());
    };
    lists.set_queries(pairs, fetched.rows, compute.relations()?.as_deref());
    Ok(())
}
