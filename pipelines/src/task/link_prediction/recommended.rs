//! The held-out edges of metrics of recommendations.

use std::collections::BTreeMap;

use gnnflow_kernels::pairs::Edge;

/// Held-out edges by source, for lists of K recommendations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recommended {
    /// K, the length of lists.
    pub(crate) length: usize,
    /// By source and relation, the numbers of validation and of test edges in the entire graph.
    pub(crate) sources: BTreeMap<(u32, u16), [u32; 2]>,
}

impl Recommended {
    pub(crate) fn new(length: usize) -> Self {
        Self { length, sources: BTreeMap::new() }
    }

    /// Adds a validation (0) or test (1) edge.
    pub(crate) fn add(&mut self, edge: Edge, split: usize) {
        self.sources.entry((edge.head, edge.relation)).or_default()[split] += 1;
    }
}
