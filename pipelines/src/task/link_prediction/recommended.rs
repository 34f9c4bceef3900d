//! The held-out edges that lists of recommendations are compared with.

use std::collections::BTreeMap;

use gnnflow_kernels::pairs::Edge;

/// Held-out edges by source, for lists of K recommendations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recommended {
    /// K: how long lists are.
    pub(crate) length: usize,
    /// Held-out edges of each source and relation in the whole graph: to validate, and to test.
    pub(crate) sources: BTreeMap<(u32, u16), [u32; 2]>,
}

impl Recommended {
    pub(crate) fn new(length: usize) -> Self {
        Self { length, sources: BTreeMap::new() }
    }

    /// There is such an edge among those to validate (0) or to test with (1).
    pub(crate) fn add(&mut self, edge: Edge, split: usize) {
        self.sources.entry((edge.head, edge.relation)).or_default()[split] += 1;
    }
}
