//! A search along the edges of all workers.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use gnnflow_dataflow::graph::live_graph::{InEdgeList, LiveGraph};
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use rayon::prelude::*;

use crate::collectives::{Collectives, Driver};
use crate::error::Error;

/// A graph whose edges are searched.
pub(crate) trait Edges {
    /// Returns which worker hosts which nodes.
    fn nodes(&self) -> &LocalGraph;

    /// Returns the in-neighbors of a node of this worker.
    fn sources(&self, node: u32) -> Cow<'_, [u32]>;

    /// Returns the nodes of this worker that are not `known` and have an in-neighbor of `wanted`.
    fn readers(&self, wanted: &NodeSet, known: &NodeSet) -> Vec<u32>;
}

impl Edges for LocalGraph {
    fn nodes(&self) -> &LocalGraph {
        self
    }

    fn sources(&self, node: u32) -> Cow<'_, [u32]> {
        Cow::Borrowed(in_neighbors(self, node))
    }

    fn readers(&self, wanted: &NodeSet, known: &NodeSet) -> Vec<u32> {
        let reads = |&node: &u32| {
            !known.contains(node) && in_neighbors(self, node).iter().any(|&source| wanted.contains(source))
        };
        own_nodes(self).into_par_iter().filter(reads).collect()
    }
}

impl Edges for LiveGraph {
    fn nodes(&self) -> &LocalGraph {
        LiveGraph::nodes(self)
    }

    fn sources(&self, node: u32) -> Cow<'_, [u32]> {
        let mut list = InEdgeList::default();
        self.in_edges(node, &mut list);
        Cow::Owned(list.sources)
    }

    fn readers(&self, wanted: &NodeSet, known: &NodeSet) -> Vec<u32> {
        LiveGraph::readers(self, |node| wanted.contains(node), |node| known.contains(node))
    }
}

/// A search along the edges, for nodes of this worker.
pub(super) struct Search<'a> {
    graph: &'a dyn Edges,
    own: Range<u32>,
    pub(super) found: NodeSet,
}

impl<'a> Search<'a> {
    pub(super) fn new(graph: &'a dyn Edges) -> Self {
        let own = own_nodes(graph.nodes());
        Self { graph, found: NodeSet::new(own.clone()), own }
    }

    /// Returns the own nodes that were not found before and are in-neighbors of the nodes `from` of any worker. Each worker gives its own, and
    /// sends their in-neighbors to the owners. A collective operation.
    pub(super) fn in_neighbors(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let graph = self.graph;
        self.sources_of(driver, collectives, from, &|node| graph.sources(node))
    }

    /// Like [`Search::in_neighbors`], with in-neighbors that `sources` returns.
    pub(super) fn sources_of<'s>(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
        sources: &dyn Fn(u32) -> Cow<'s, [u32]>,
    ) -> Result<Vec<u32>, Error> {
        let Self { graph, own, found } = self;
        let nodes = graph.nodes();
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
                from.iter().try_for_each(|&node| {
                    sources(node).iter().try_for_each(|&node| {
                        if own.contains(&node) {
                            find(node);
                            return Ok(());
                        }
                        sender.send(nodes.worker_of(node), node)
                    })
                })
            },
            |_, nodes: &[u32]| {
                nodes.iter().for_each(|&node| find(node));
                Ok(())
            },
        )?;
        Ok(next.into_inner().1)
    }

    /// Returns the own nodes that were not found before and are out-neighbors of the nodes `from` of any worker. All workers get all nodes, and
    /// search the in-edges of their own ones. A collective operation.
    pub(super) fn out_neighbors(
        &mut self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        from: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let Self { graph, found, .. } = self;
        let nodes = graph.nodes();
        let (mut wanted, mut none) = (NodeSet::new(0..nodes.num_nodes() as u32), true);
        let workers = nodes.placement().workers();
        collectives.all_to_all(
            driver,
            |sender| from.iter().try_for_each(|&node| (0..workers).try_for_each(|rank| sender.send(rank, node))),
            |_, nodes: &[u32]| {
                wanted.insert_all(nodes);
                none &= nodes.is_empty();
                Ok(())
            },
        )?;
        if none {
            return Ok(Vec::new());
        }
        let _busy = driver.runtime.busy("finding the nodes that a change reaches");
        let next = graph.readers(&wanted, found);
        found.insert_all(&next);
        Ok(next)
    }
}

/// Returns the nodes of this worker.
fn own_nodes(graph: &LocalGraph) -> Range<u32> {
    let hosted = graph.hosted();
    graph.range(hosted.start).start..graph.range(hosted.end - 1).end
}

/// Returns the in-neighbors of a node of this worker.
pub(crate) fn in_neighbors(graph: &LocalGraph, node: u32) -> &[u32] {
    let part = graph.partition_of(node);
    let (edges, local) = (graph.in_edges(part), (node - graph.range(part).start) as usize);
    &edges.indices()[edges.indptr()[local] as usize..edges.indptr()[local + 1] as usize]
}

/// A set of nodes: one bit for each node of a range.
pub(crate) struct NodeSet {
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

    pub(super) fn insert_all(&mut self, nodes: &[u32]) {
        for &node in nodes {
            self.insert(node);
        }
    }

    /// Adds a node, and returns whether it is new.
    pub(super) fn insert(&mut self, node: u32) -> bool {
        let at = node - self.first;
        let (word, bit) = (&mut self.words[at as usize / 64], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}
