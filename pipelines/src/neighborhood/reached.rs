//! The nodes whose rows change, by stage of the model.

use gnnflow_nn::model::Stage;

use crate::collectives::{Collectives, Driver};
use crate::error::Error;
use crate::neighborhood::search::{Edges, Search};

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
    pub(crate) graph: &'a dyn Edges,
    /// Whether all in-neighbors are out-neighbors.
    pub(crate) undirected: bool,
    pub(crate) stages: &'a [Stage],
    /// Whether stages read the degrees of neighbors.
    pub(crate) degrees: bool,
}

impl Reach<'_> {
    /// Returns the nodes of this worker that have an in-edge from one of `nodes`, in any order. Each worker gives its own nodes. A collective operation.
    ///
    /// # Errors
    /// If the program ends the run.
    pub(crate) fn readers(
        &self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        nodes: &[u32],
    ) -> Result<Vec<u32>, Error> {
        let mut search = Search::new(self.graph);
        self.search_readers(&mut search, driver, collectives, nodes)
    }

    /// Continues a search with the nodes that read `nodes`.
    fn search_readers(
        &self,
        search: &mut Search<'_>,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        nodes: &[u32],
    ) -> Result<Vec<u32>, Error> {
        match self.undirected {
            // Its in-neighbors are its out-neighbors.
            true => search.in_neighbors(driver, collectives, nodes),
            false => search.out_neighbors(driver, collectives, nodes),
        }
    }

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
        let mut search = Search::new(self.graph);
        search.found.insert_all(&features);
        let mut reached = features.clone();
        // Nodes whose neighbors have not been searched yet.
        let (mut fresh, mut edges) = (features, Some(edges));
        let mut readers = |search: &mut Search<'_>, of: &[u32]| self.search_readers(search, driver, collectives, of);
        let mut by_stage = Vec::with_capacity(self.stages.len());
        for stage in self.stages {
            if stage.edges {
                let mut next = readers(&mut search, &fresh)?;
                if let Some(edges) = edges.take() {
                    if self.degrees {
                        next.extend(readers(&mut search, &edges)?);
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
