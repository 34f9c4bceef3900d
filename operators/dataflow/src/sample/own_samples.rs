//! Samples of in-edges of own nodes. A node has one sample in each layer, which does not depend on the batch.

use std::cell::RefCell;
use std::sync::Arc;

use gnnflow_data::rng::{Key, Purpose};
use gnnflow_kernels::compact::Compactor;
use gnnflow_kernels::sample::{Columns, Fanout, Samples, Strategy, choose_hop, choose_neighbors};

use crate::batch::mini_batch::MiniBatch;
use crate::graph::local_graph::LocalGraph;

/// The sampled in-edges of nodes in one layer, under `Key(seed, Sample).fold(layer).fold(node)`.
///
/// Training draws neighbors anew for each batch. Here a node has one sample in each layer, so a layer computes each row once.
pub struct OwnSamples {
    graph: Arc<LocalGraph>,
    strategy: Strategy,
    key: Key,
    columns: Columns,
    compactor: RefCell<Compactor>,
}

impl OwnSamples {
    /// Samples at most `fanout` in-edges of each node without replacement; all if it is negative. `columns` are those of blocks.
    pub fn new(graph: &Arc<LocalGraph>, fanout: i64, (seed, layer): (u64, u64), columns: Columns) -> Self {
        Self {
            graph: Arc::clone(graph),
            strategy: Strategy::Fanout(Fanout::new(fanout, false)),
            key: Key::new(seed, Purpose::Sample).fold(layer),
            columns,
            compactor: RefCell::new(Compactor::new(graph.num_nodes())),
        }
    }

    /// Adds the block of a batch of own nodes.
    ///
    /// # Panics
    /// If a node is of another worker.
    pub fn add_block(&self, batch: &mut MiniBatch) {
        let mut compactor = self.compactor.borrow_mut();
        compactor.start(&batch.nodes);
        let view = self.graph.view();
        let block = choose_hop(&view, &mut batch.nodes, &self.strategy, self.columns, self.key, &mut compactor);
        batch.blocks.push(block);
    }

    /// Returns the sources of the sampled in-edges of an own node.
    ///
    /// # Panics
    /// If the node is of another worker.
    pub fn sources(&self, node: u32) -> Vec<u32> {
        let mut samples = Samples::new(Columns::default());
        choose_neighbors(&self.graph.view(), &[node], None, &self.strategy, self.key, &mut samples);
        samples.neighbors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::mini_batch::BatchKey;
    use crate::testing::{book, local, random_graph};

    #[test]
    fn samples_are_in_edges_and_do_not_depend_on_batches_or_workers() {
        const NODES: u32 = 60;
        let graph = random_graph(NODES, 20);
        let book = book(NODES, 4);
        let of = |node: u32, fanout: i64, layer: u64, workers: usize, together: bool| -> Vec<u32> {
            let part = (0..4).find(|&part| book.range(part).contains(&u64::from(node))).unwrap();
            let worker = (0..workers).find(|&worker| local(&graph, &book, workers, worker, false).hosts(node)).unwrap();
            let held = Arc::new(local(&graph, &book, workers, worker, false));
            let samples = OwnSamples::new(&held, fanout, (7, layer), Columns::default());
            let nodes: Vec<u32> =
                if together { book.range(part).map(|node| node as u32).collect() } else { vec![node] };
            let at = nodes.iter().position(|&other| other == node).unwrap();
            let mut batch = MiniBatch::new(BatchKey { epoch: 3, step: 9, partition: part as u32 }, nodes);
            samples.add_block(&mut batch);
            let found: Vec<u32> =
                batch.blocks[0].neighbors(at).iter().map(|&place| batch.nodes[place as usize]).collect();
            assert_eq!(found, samples.sources(node), "node {node}");
            found
        };
        for fanout in [-1, 1, 4, 1000] {
            for node in (0..NODES).step_by(7) {
                let all = &graph[node as usize];
                let first = of(node, fanout, 0, 1, true);
                let wanted = usize::try_from(fanout).map_or(all.len(), |most| most.min(all.len()));
                assert_eq!(first.len(), wanted, "node {node}");
                assert!(first.iter().all(|source| all.contains(source)), "node {node}");
                if wanted == all.len() {
                    assert_eq!(first, *all, "node {node}");
                }
                for (workers, together) in [(1, false), (2, true), (4, false)] {
                    assert_eq!(first, of(node, fanout, 0, workers, together), "node {node}, {workers} workers");
                }
            }
        }
        let layers = [0, 1].map(|layer| (0..NODES).map(|node| of(node, 4, layer, 1, false)).collect::<Vec<_>>());
        assert_ne!(layers[0], layers[1], "layers draw differently");
    }
}
