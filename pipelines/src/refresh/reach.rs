//! The nodes whose rows change, by stage of the model.

use std::cell::RefCell;
use std::ops::Range;

use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_nn::model::Stage;
use rayon::prelude::*;

use crate::collectives::{Collectives, Driver};
use crate::error::Error;

/// The nodes of a worker that have changed, by global ids, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Nodes with other features.
    pub(crate) features: Vec<u32>,
    /// Nodes with other in-edges.
    pub(crate) edges: Vec<u32>,
}

/// The graph and the model, which decide how far a change reaches.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    pub(crate) graph: &'a LocalGraph,
    /// Whether all in-neighbors are out-neighbors.
    pub(crate) undirected: bool,
    pub(crate) stages: &'a [Stage],
    /// Whether stages read the degrees of neighbors.
    pub(crate) degrees: bool,
}

impl Reach<'_> {
    /// Returns, for each stage, the nodes of this worker whose rows may change, ascending. A collective operation.
    ///
    /// # Errors
    /// If the program ends the run.
    pub(crate) fn of(
        self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        changed: Changed,
    ) -> Result<Vec<Vec<u32>>, Error> {
        let Changed { features, edges } = changed;
        let mut search = Search::new(self.graph, self.undirected);
        search.found.insert_all(&features);
        let mut reached = features.clone();
        // Nodes whose neighbors have not been searched yet.
        let (mut fresh, mut edges) = (features, Some(edges));
        let mut by_stage = Vec::with_capacity(self.stages.len());
        for stage in self.stages {
            if stage.edges {
                let mut next = search.neighbors(driver, collectives, &fresh)?;
                if let Some(edges) = edges.take() {
                    if self.degrees {
                        next.extend(search.neighbors(driver, collectives, &edges)?);
                    }
                    next.extend(edges.into_iter().filter(|&node| search.found.insert(node)));
                }
                next.sort_unstable();
                reached.extend_from_slice(&next);
                reached.sort_unstable();
                fresh = next;
            }
            by_stage.push(reached.clone());
        }
        Ok(by_stage)
    }
}

/// A search along the edges, for nodes of this worker.
struct Search<'a> {
    graph: &'a LocalGraph,
    undirected: bool,
    own: Range<u32>,
    found: NodeSet,
}

impl<'a> Search<'a> {
    fn new(graph: &'a LocalGraph, undirected: bool) -> Self {
        let hosted = graph.hosted();
        let own = graph.range(hosted.start).start..graph.range(hosted.end - 1).end;
        Self { graph, undirected, found: NodeSet::new(own.clone()), own }
    }

    /// Returns the own nodes that were not found before and have an in-neighbor among the nodes `from` of all workers. Each worker gives its
    /// own. A collective operation.
    fn neighbors(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
    ) -> Result<Vec<u32>, Error> {
        if self.undirected {
            self.along_lists(driver, collectives, from)
        } else {
            self.in_all_lists(driver, collectives, from)
        }
    }

    /// In an undirected graph, the in-neighbors of a node are its out-neighbors. They are sent to their owners.
    fn along_lists(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let Self { graph, own, found, .. } = self;
        let next = RefCell::new((found, Vec::new()));
        let find = |node: u32| {
            let (found, next) = &mut *next.borrow_mut();
            if found.insert(node) {
                next.push(node);
            }
        };
        collectives.all_to_all(
            driver,
            |sender| {
                from.iter().flat_map(|&node| sources(graph, node)).try_for_each(|&node| {
                    if own.contains(&node) {
                        find(node);
                        return Ok(());
                    }
                    sender.send(graph.placement().worker_of(graph.partition_of(node)), node)
                })
            },
            |_, nodes: &[u32]| {
                nodes.iter().for_each(|&node| find(node));
                Ok(())
            },
        )?;
        Ok(next.into_inner().1)
    }

    /// All workers get all nodes of `from`, and search the in-edges of their own nodes.
    fn in_all_lists(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let Self { graph, own, found, .. } = self;
        let mut wanted = NodeSet::new(0..graph.num_nodes() as u32);
        let workers = graph.placement().workers();
        collectives.all_to_all(
            driver,
            |sender| from.iter().try_for_each(|&node| (0..workers).try_for_each(|rank| sender.send(rank, node))),
            |_, nodes: &[u32]| {
                wanted.insert_all(nodes);
                Ok(())
            },
        )?;
        let _busy = driver.runtime.busy("finding the nodes that a change reaches");
        let reads =
            |&node: &u32| !found.contains(node) && sources(graph, node).iter().any(|&source| wanted.contains(source));
        let next: Vec<u32> = own.clone().into_par_iter().filter(reads).collect();
        found.insert_all(&next);
        Ok(next)
    }
}

/// Returns the in-neighbors of a node of this worker.
fn sources(graph: &LocalGraph, node: u32) -> &[u32] {
    let part = graph.partition_of(node);
    let (edges, local) = (graph.in_edges(part), (node - graph.range(part).start) as usize);
    &edges.indices()[edges.indptr()[local] as usize..edges.indptr()[local + 1] as usize]
}

/// A set of nodes: one bit for each node of a range.
struct NodeSet {
    first: u32,
    words: Vec<u64>,
}

impl NodeSet {
    fn new(range: Range<u32>) -> Self {
        Self { first: range.start, words: vec![0; range.len().div_ceil(64)] }
    }

    fn contains(&self, node: u32) -> bool {
        let at = node - self.first;
        self.words[at as usize / 64] & (1 << (at % 64)) != 0
    }

    fn insert_all(&mut self, nodes: &[u32]) {
        for &node in nodes {
            self.insert(node);
        }
    }

    /// Adds a node, and returns whether it is new.
    fn insert(&mut self, node: u32) -> bool {
        let at = node - self.first;
        let (word, bit) = (&mut self.words[at as usize / 64], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use gnnflow_data::PartitionBook;
    use gnnflow_data::rng::{Key, Purpose};
    use gnnflow_dataflow::graph::local_graph::{InEdges, OwnedInEdges};
    use gnnflow_dataflow::graph::placement::Placement;

    use super::*;
    use crate::collectives::tests::{PARTS, at};

    const NODES: u64 = 400;

    /// Returns random edges `(source, destination)`.
    fn edges(undirected: bool) -> BTreeSet<(u32, u32)> {
        let key = Key::new(5, Purpose::GenerateEdges);
        let draw = |at: u64| key.below(at, NODES) as u32;
        let pairs = (0..300).map(|edge| (draw(2 * edge), draw(2 * edge + 1)));
        pairs.flat_map(|(a, b)| if undirected { vec![(a, b), (b, a)] } else { vec![(a, b)] }).collect()
    }

    /// The reference implementation: a row changes if one that it reads has changed.
    fn expected(
        edges: &BTreeSet<(u32, u32)>,
        stages: &[Stage],
        degrees: bool,
        changed: &Changed,
    ) -> Vec<BTreeSet<u32>> {
        let mut rows: BTreeSet<u32> = changed.features.iter().copied().collect();
        let reads = |set: &BTreeSet<u32>| -> BTreeSet<u32> {
            edges.iter().filter(|(source, _)| set.contains(source)).map(|&(_, node)| node).collect()
        };
        let other_edges: BTreeSet<u32> = changed.edges.iter().copied().collect();
        let mut by_stage = Vec::new();
        for stage in stages {
            if stage.edges {
                rows.extend(reads(&rows));
                rows.extend(&other_edges);
                if degrees {
                    rows.extend(reads(&other_edges));
                }
            }
            by_stage.push(rows.clone());
        }
        by_stage
    }

    #[test]
    fn reached_nodes_are_those_of_a_plain_search() {
        let stage = |edges: bool| Stage { width: 1, edges, own: Vec::new() };
        let stages = [false, true, true, false, true].map(stage);
        let changed = Changed { features: vec![7, 300], edges: vec![7, 12, 150, 399] };
        for (undirected, degrees) in [(false, false), (false, true), (true, false), (true, true)] {
            let all = edges(undirected);
            let expected = expected(&all, &stages, degrees, &changed);
            assert!(expected.iter().all(|nodes| nodes.len() < NODES as usize), "some nodes are not reached");
            for workers in [1, 2, 4] {
                let (all, stages, changed) = (all.clone(), stages.clone(), changed.clone());
                let found = at(workers, move |collectives, driver| {
                    let (rank, placement) = (driver.worker.index(), Placement::new(PARTS, workers));
                    let book = PartitionBook::even(NODES, placement.parts());
                    let load = |part: usize| -> Result<Arc<dyn InEdges>, ()> {
                        let sources = |node: u32| all.iter().filter(move |edge| edge.1 == node).map(|edge| edge.0);
                        Ok(Arc::new(OwnedInEdges::from_fn(book.range(part), sources)))
                    };
                    let graph = LocalGraph::load(&book, placement, rank, false, load).unwrap();
                    let own = |nodes: &[u32]| nodes.iter().copied().filter(|&node| graph.hosts(node)).collect();
                    let changed = Changed { features: own(&changed.features), edges: own(&changed.edges) };
                    let reach = Reach { graph: &graph, undirected, stages: &stages, degrees };
                    reach.of(driver, collectives, changed).unwrap()
                });
                for (stage, expected) in expected.iter().enumerate() {
                    let nodes: Vec<u32> = found.iter().flat_map(|by_stage| by_stage[stage].clone()).collect();
                    let expected: Vec<u32> = expected.iter().copied().collect();
                    assert_eq!(nodes, expected, "{workers} workers, stage {stage}, {undirected}, {degrees}");
                }
            }
        }
    }
}
