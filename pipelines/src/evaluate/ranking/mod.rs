//! Ranks of held-out edges: how many nodes would have been a better end.
//!
//! ```text
//! ends of some edges → their rows → what they are compared with, and their own scores (compute thread)
//! all nodes, block by block → their rows → how many score higher, how many the same (compute thread)
//! ```
//!
//! An edge is ranked twice: its tail among all tails, its head among all heads; nodes that are known ends of an edge with the
//! same other end and relation, in any split, are left out (Bordes et al. 2013, filtered). Of equal scores the middle: a rank is
//! 1 + (how many score higher) + (how many the same) / 2. Counts are integers, so that their sums do not depend on who counts
//! which block. No process holds the rows of all nodes: blocks of other partitions' nodes are fetched, and gone when they are
//! counted.

mod metrics;
mod pass;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use gnnflow_dataflow::flow::compute_thread::ComputeThread;
use gnnflow_dataflow::sample::node_groups::NodeGroups;
use gnnflow_kernels::pairs::Edge;
use timely::worker::Worker;

use self::metrics::RankSums;
use self::pass::{Asking, Pass};
use super::recommend;
use crate::collectives::{Collectives, Driver};
use crate::compute::ComputeState;
use crate::context::WorkerContext;
use crate::error::Error;
use crate::evaluate::Evaluation;
use crate::evaluate::rows_of::{Brought, RowsOf, distinct};
use crate::task::link_prediction::candidates::Candidates;
use crate::task::link_prediction::edges::LinkEdges;
use gnnflow_dataflow::storage::RowStore;

/// What edges are compared with takes at most so many bytes at once.
const QUERY_BYTES: usize = 64 << 20;
/// Nodes of a block.
const BLOCK: usize = 4096;
/// Blocks under way.
const WINDOW: u32 = 3;

/// The score of a held-out edge, and how many others score higher, and how many the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ranked {
    pub(crate) score: f32,
    /// Of tails, those that are known left out.
    tails: [u64; 2],
    /// Of heads, where those are looked for too.
    heads: Option<[u64; 2]>,
    /// Of tails, only those left out that another split knows.
    fresh: [u64; 2],
}

impl Ranked {
    /// Twice the rank of its tail, and of its head.
    fn doubled(&self) -> impl Iterator<Item = u64> + use<> {
        std::iter::once(self.tails).chain(self.heads).map(doubled)
    }

    /// The rank of its tail among all tails.
    pub(crate) fn tail_rank(&self) -> f64 {
        doubled(self.tails) as f64 / 2.0
    }

    /// The rank of its head among all heads, where those are looked for too.
    pub(crate) fn head_rank(&self) -> Option<f64> {
        self.heads.map(|heads| doubled(heads) as f64 / 2.0)
    }

    /// Twice the rank of its tail among those that could be recommended.
    pub(crate) fn fresh_doubled(&self) -> u64 {
        doubled(self.fresh)
    }
}

fn doubled([higher, equal]: [u64; 2]) -> u64 {
    2 + 2 * higher + equal
}

/// The ranking dataflow of one worker.
pub(crate) struct Ranking {
    rows: RowsOf<Pass>,
    first_part: usize,
    /// Blocks of nodes of one group, those of the partitions hosted here first.
    blocks: Vec<std::ops::Range<u32>>,
    edges: LinkEdges,
    width: usize,
    /// As the last pass left them, by partition; validation, then test.
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
        let rows = RowsOf::build(worker, context, results, compute_thread, "rank", take);
        let hosted = context.placement.parts_of(context.worker);
        let (parts, first_part) = (context.placement.parts(), hosted.start);
        let order = (0..parts).map(|i| (first_part + i) % parts);
        let blocks = order.flat_map(|part| blocks(&edges.nodes, context.graph.range(part))).collect();
        Self { rows, first_part, blocks, edges, width: results.width(), ranked: Vec::new() }
    }

    /// Ranks all held-out edges by the model's results, and returns their metrics.
    ///
    /// # Errors
    /// What an operator, or the compute thread, fails with.
    pub(crate) fn evaluate(
        &mut self,
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
    ) -> Result<Evaluation, Error> {
        let hosted = context.placement.parts_of(context.worker);
        let numbers = 1 + self.edges.candidates.each().unwrap_or(0);
        let chunk = QUERY_BYTES / (8 * self.width * numbers);
        let mut ranked = Vec::new();
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
        // Others may still ask for rows that are here.
        self.rows.end(driver)?;
        self.ranked = ranked;
        let mut scores = [None, None];
        for (split, scores) in scores.iter_mut().enumerate() {
            let own = |part: usize| RankSums::new(&self.ranked[part - self.first_part][split]);
            *scores = metrics::finish(&collectives.all_gather_parts(driver, own)?);
            if let (Some(scores), Some(wanted)) = (scores, &self.edges.recommended) {
                let found = |part: usize| {
                    let (edges, ranked) = self.held_out(part)[split];
                    recommend::found(edges, ranked, wanted.length)
                };
                let found = collectives.all_gather_parts(driver, found)?.concat();
                scores.metrics.extend(recommend::metrics(found, wanted, split));
            }
        }
        let [val, test] = scores;
        Ok(Evaluation { train: None, val, test })
    }

    /// The held-out edges of a partition hosted here, with what the last pass found.
    pub(crate) fn held_out(&self, part: usize) -> [(&[Edge], &[Ranked]); 2] {
        let ranked = &self.ranked[part - self.first_part];
        [0, 1].map(|split| (&self.edges.held_out[part][split][..], &ranked[split][..]))
    }

    /// How many edges every partition holds out.
    pub(crate) fn held_out_counts(&self) -> &[u64] {
        &self.edges.held_out_counts
    }

    /// Whether heads are ranked, not tails alone.
    pub(crate) fn ranks_heads(&self) -> bool {
        self.edges.candidates.replace_heads()
    }

    /// Ranks some edges of a split.
    fn rank(&mut self, driver: &mut Driver<'_>, split: usize, edges: &[Edge]) -> Result<Vec<Ranked>, Error> {
        let LinkEdges { known, nodes, candidates, .. } = &self.edges;
        let pass = Pass::begin(&Asking { edges, split, known, nodes, candidates, width: self.width });
        let among = (!matches!(candidates, Candidates::All)).then(|| pass.among());
        *self.rows.state() = pass;
        self.rows.send_ends(edges);
        self.rows.wait(driver, 0)?;
        match among {
            Some(nodes) => self.rows.send(nodes, None),
            None => {
                for block in 0..self.blocks.len() {
                    self.rows.send(self.blocks[block].clone().collect(), None);
                    self.rows.wait(driver, WINDOW)?;
                }
            }
        }
        self.rows.wait(driver, 0)?;
        let pass = std::mem::take(&mut *self.rows.state());
        Ok(pass.finish())
    }
}

/// Takes in rows: of the edges' ends, or of nodes that they are compared with.
fn take(pass: &mut Pass, trainer: &ComputeState, brought: &Brought<'_>) -> Result<(), Error> {
    let Some(pairs) = brought.pairs else {
        trainer.on_threads(|| pass.count(brought.nodes, brought.rows));
        return Ok(());
    };
    let relations = trainer.model().relations();
    let relations = relations.map(|rows| rows.flatten_all()?.to_vec1::<f32>()).transpose();
    let relations = relations.map_err(gnnflow_nn::Error::from)?;
    pass.ask(pairs, brought.rows, relations.as_deref());
    Ok(())
}

/// Cuts the nodes of a partition into blocks of one group.
fn blocks(groups: &NodeGroups, range: std::ops::Range<u32>) -> Vec<std::ops::Range<u32>> {
    let mut cuts: Vec<u32> = groups.runs().map(|run| run.0).filter(|first| range.contains(first)).collect();
    cuts.extend([range.start, range.end]);
    let cuts = distinct(cuts.into_iter());
    let run = |bounds: &[u32]| {
        let (first, end) = (bounds[0], bounds[1]);
        (first..end).step_by(BLOCK).map(move |start| start..end.min(start + BLOCK as u32)).collect::<Vec<_>>()
    };
    cuts.windows(2).flat_map(run).collect()
}
