//! Ranks of held-out edges among candidate ends.
//!
//! ```text
//! ends of a chunk of edges → their rows → query vectors and scores of the edges (compute thread)
//! all nodes, block by block → their rows → counts of higher and of equal scores (compute thread)
//! ```
//!
//! An edge is ranked twice: its tail among all tails, its head among all heads. Known ends, which have an edge with the same other end and
//! relation in any split, are left out (Bordes et al. 2013, filtered). A rank is 1 + (number of higher scores) + (number of equal scores) / 2.
//! Counts are integers, so their sums do not depend on the distribution of blocks. No process holds the rows of all nodes: blocks of other
//! partitions' nodes are fetched, counted and dropped.

mod metrics;
mod pass;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_kernels::pairs::Edge;
use timely::worker::Worker;

use self::metrics::RankSums;
use self::pass::{Among, Pass, PassInputs};
use super::recommend::{self, Listed};
use crate::collectives::{Collectives, Driver, List};
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::evaluate::fetch_results::{FetchedRows, ResultFetcher};
use crate::evaluate::node_blocks::{BLOCK, QUERY_BYTES, Share, WINDOW, node_blocks};
use crate::task::link_prediction::candidates::Candidates;
use crate::task::link_prediction::edges::LinkEdges;
use gnnflow_dataflow::storage::RowStore;

/// The score of a held-out edge, and the numbers `[higher, equal]` of candidates with higher and with equal scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) score: f32,
    /// Of tails, without known ones.
    tails: [u64; 2],
    /// Of heads, without known ones, if heads are ranked.
    heads: Option<[u64; 2]>,
    /// Of tails, without those known from another split.
    fresh: [u64; 2],
}

impl Ranked {
    /// Returns twice the rank of the tail, and of the head if heads are ranked.
    fn doubled(&self) -> impl Iterator<Item = u64> + use<> {
        std::iter::once(self.tails).chain(self.heads).map(doubled)
    }

    /// Returns the rank of the tail.
    pub(crate) fn tail_rank(&self) -> f64 {
        doubled(self.tails) as f64 / 2.0
    }

    /// Returns the rank of the head, if heads are ranked.
    pub(crate) fn head_rank(&self) -> Option<f64> {
        self.heads.map(|heads| doubled(heads) as f64 / 2.0)
    }

    /// Returns twice the rank of the tail among the tails that could be recommended.
    pub(crate) fn fresh_doubled(&self) -> u64 {
        doubled(self.fresh)
    }
}

fn doubled([higher, equal]: [u64; 2]) -> u64 {
    2 + 2 * higher + equal
}

/// The ranking dataflow of one worker.
pub(crate) struct Ranking {
    fetcher: ResultFetcher<Pass>,
    first_part: usize,
    /// Blocks of nodes of one group, from the partitions hosted here on.
    blocks: Vec<std::ops::Range<u32>>,
    edges: LinkEdges,
    width: usize,
    /// By partition, the results of the last evaluation: validation, then test.
    ranked: Vec<[Vec<Ranked>; 2]>,
}

impl Ranking {
    /// Builds the dataflow over the model's `results`.
    pub(crate) fn build(
        worker: &mut Worker,
        context: &WorkerContext,
        results: &Arc<RowStore>,
        edges: LinkEdges,
        compute_thread: &ComputeThread<ComputeState>,
    ) -> Self {
        let fetcher = ResultFetcher::build(worker, context, results, compute_thread, "rank", count);
        let hosted = context.placement.parts_of(context.worker);
        let blocks = node_blocks(context, &edges.nodes);
        Self { fetcher, first_part: hosted.start, blocks, edges, width: results.width(), ranked: Vec::new() }
    }

    /// Ranks all held-out edges and returns their metrics.
    ///
    /// # Errors
    /// The first error of an operator or of the compute thread.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        let hosted = context.placement.parts_of(context.worker);
        let numbers = 1 + self.edges.candidates.of_one_edge();
        let chunk = QUERY_BYTES / (8 * self.width * numbers);
        let mut ranked = Vec::new();
        let progress = driver.runtime.progress();
        let edges = self.edges.held_out[hosted.clone()].iter().flatten().map(|edges| edges.len() as u64);
        progress.brief_stage("rank held-out edges", edges.sum(), "edges");
        for part in hosted {
            let mut splits = [Vec::new(), Vec::new()];
            for (split, ranked) in splits.iter_mut().enumerate() {
                let edges = self.edges.held_out[part][split].clone();
                for edges in edges.chunks(chunk.max(1)) {
                    ranked.extend(self.rank(driver, split, edges)?);
                }
            }
            ranked.push(splits);
        }
        // Other workers may still request rows of this worker.
        self.fetcher.end(driver)?;
        progress.done();
        self.ranked = ranked;
        let wanted = self.edges.recommended.as_ref();
        let own = |part: usize| {
            let splits = self.held_out(part).map(|(edges, ranked)| {
                let doubled = || ranked.iter().map(Ranked::fresh_doubled);
                let found = wanted.map(|wanted| recommend::found(edges, doubled(), wanted.length));
                (RankSums::new(ranked), found.unwrap_or_default())
            });
            List(splits.into())
        };
        let parts: Vec<List<(RankSums, Vec<Listed>)>> = collectives.all_gather_parts(driver, own)?;
        let mut scores = [None, None];
        for (split, scores) in scores.iter_mut().enumerate() {
            let of_split = || parts.iter().map(|splits| &splits.0[split]);
            *scores = metrics::finish(&of_split().map(|(sums, _)| *sums).collect::<Vec<_>>());
            if let (Some(scores), Some(wanted)) = (scores, wanted) {
                let found = of_split().flat_map(|(_, found)| found.iter().copied()).collect();
                scores.metrics.extend(recommend::metrics(found, wanted, split));
            }
        }
        let [val, test] = scores;
        Ok(Evaluation { val, test, ..Evaluation::default() })
    }

    /// Returns the held-out edges of a partition hosted here, with the results of the last evaluation.
    pub(crate) fn held_out(&self, part: usize) -> [(&[Edge], &[Ranked]); 2] {
        let ranked = &self.ranked[part - self.first_part];
        [0, 1].map(|split| (&self.edges.held_out[part][split][..], &ranked[split][..]))
    }

    /// Returns the number of held-out edges of every partition.
    pub(crate) fn held_out_counts(&self) -> &[u64] {
        &self.edges.held_out_counts
    }

    /// Tells whether heads are ranked, too.
    pub(crate) fn ranks_heads(&self) -> bool {
        self.edges.candidates.replace_heads()
    }

    /// Ranks some edges of a split. Counts them as progress, each candidate as an equal share.
    fn rank(&mut self, driver: &mut Driver<'_>, split: usize, edges: &[Edge]) -> Result<Vec<Ranked>, Error> {
        let LinkEdges { known, nodes, candidates, .. } = &self.edges;
        let pass = Pass::begin(&PassInputs { edges, split, known, nodes, candidates, width: self.width });
        let chosen = match candidates {
            Candidates::All => Vec::new(),
            Candidates::Drawn(_) => (0..pass.lists()).map(Among::List).collect(),
            Candidates::Given(_) => vec![Among::Given],
        };
        *self.fetcher.state() = pass;
        self.fetcher.request_ends(edges);
        self.fetcher.wait(driver, 0)?;
        let mut share = Share::new(edges.len() as u64);
        if chosen.is_empty() {
            for block in 0..self.blocks.len() {
                self.fetcher.request(self.blocks[block].clone().collect(), None);
                self.fetcher.wait(driver, WINDOW)?;
                share.reach(driver, (block + 1, self.blocks.len()));
            }
        }
        let lists = chosen.len();
        for (list, among) in chosen.into_iter().enumerate() {
            let nodes = self.fetcher.state().announce(among);
            let blocks = nodes.len().div_ceil(BLOCK);
            for (block, nodes) in nodes.chunks(BLOCK).enumerate() {
                self.fetcher.request(nodes.to_vec(), None);
                self.fetcher.wait(driver, WINDOW)?;
                share.reach(driver, (list * blocks + block + 1, lists * blocks));
            }
            self.fetcher.wait(driver, 0)?;
        }
        self.fetcher.wait(driver, 0)?;
        share.reach(driver, (1, 1));
        let pass = std::mem::take(&mut *self.fetcher.state());
        Ok(pass.finish())
    }
}

/// Sets the queries from the rows of the edges' ends, or counts the scores of candidates.
fn count(pass: &mut Pass, compute: &ComputeState, fetched: &FetchedRows<'_>) -> Result<(), Error> {
    let Some(pairs) = fetched.pairs else {
        compute.on_threads(|| pass.count(fetched.nodes, fetched.rows));
        return Ok(());
    };
    pass.set_queries(pairs, fetched.rows, compute.relations()?.as_deref());
    Ok(())
}
