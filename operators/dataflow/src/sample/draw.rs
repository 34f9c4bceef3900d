//! Sampling of one hop, as plain data that any thread can use.

use std::sync::Arc;

use gnnflow_data::rng::Key;
use rayon::prelude::*;

use crate::batch::mini_batch::{BatchKey, MiniBatch};
use crate::graph::local_graph::LocalGraph;
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{
    Columns, Excluded, Neighbors, Samples, Strategy, Trees, Without, choose_hop, choose_neighbors,
};

/// The number of nodes that one task samples.
const TASK: usize = 4096;

/// The parameters of one hop.
#[derive(Clone)]
pub(super) struct Draw {
    pub(super) graph: Arc<LocalGraph>,
    pub(super) seed: u64,
    pub(super) hop: u32,
    pub(super) strategy: Strategy,
    pub(super) columns: Columns,
    /// Whether sampling and compaction are separate steps, without the fused kernel.
    pub(super) two_steps: bool,
}

impl Draw {
    /// Returns the random key of this hop of a batch.
    pub(super) fn key(&self, batch: BatchKey) -> Key {
        batch.of_hop(self.seed, self.hop)
    }

    /// Returns whether the fused kernel does the whole hop.
    pub(super) fn is_fused(&self) -> bool {
        !self.two_steps && self.graph.has_whole_topology() && self.strategy.is_fused()
    }

    /// Samples in-edges of `nodes`, all held here, for a batch: within `trees`, if seeds have trees, and without the edges
    /// `excluded`. Runs in parallel if called on a thread of a rayon pool. The samples of a node do not depend on the thread.
    pub(super) fn samples(
        &self,
        batch: BatchKey,
        nodes: &[u32],
        trees: Option<Trees<'_>>,
        excluded: &Excluded,
    ) -> Samples {
        let (graph, key) = (&self.graph, self.key(batch));
        if graph.is_partition_local() {
            return self.samples_in(&graph.partition_view(batch.partition as usize), key, nodes, trees);
        }
        let view = graph.view();
        if excluded.is_empty() {
            return self.samples_in(&view, key, nodes, trees);
        }
        let held = |node| graph.has_topology(graph.partition_of(node));
        self.samples_in(&Without::new(&view, excluded, held), key, nodes, trees)
    }

    fn samples_in(&self, topology: &impl Neighbors, key: Key, nodes: &[u32], trees: Option<Trees<'_>>) -> Samples {
        let alone = rayon::current_thread_index().is_none() || rayon::current_num_threads() == 1;
        let part = |nodes: &[u32], trees: Option<Trees<'_>>| {
            let mut samples = Samples::new(self.columns);
            choose_neighbors(topology, nodes, trees, &self.strategy, key, &mut samples);
            samples
        };
        if alone || nodes.len() < 2 * TASK {
            return part(nodes, trees);
        }
        let tasks = (0..nodes.len().div_ceil(TASK)).into_par_iter().map(|task| {
            let range = task * TASK..((task + 1) * TASK).min(nodes.len());
            let trees = trees
                .map(|Trees { trees, times }| Trees { trees: &trees[range.clone()], times: &times[range.clone()] });
            part(&nodes[range], trees)
        });
        let mut all = Samples::new(self.columns);
        for part in tasks.collect::<Vec<_>>() {
            all.append(&part);
        }
        all
    }

    /// Adds this hop to `batch` with the fused kernel. `compactor` holds the positions of the batch's nodes.
    pub(super) fn add_hop(&self, batch: &mut MiniBatch, compactor: &mut Compactor) {
        let Self { graph, strategy, columns, .. } = self;
        let (key, nodes) = (self.key(batch.key), &mut batch.nodes);
        let block = if graph.is_partition_local() {
            choose_hop(&graph.partition_view(batch.key.partition as usize), nodes, strategy, *columns, key, compactor)
        } else if batch.excluded.is_empty() {
            choose_hop(&graph.view(), nodes, strategy, *columns, key, compactor)
        } else {
            let view = graph.view();
            let seen = Without::new(&view, &batch.excluded, |_| true);
            choose_hop(&seen, nodes, strategy, *columns, key, compactor)
        };
        batch.blocks.push(block);
    }
}
