//! The nodes that a table of results has rows of.

use std::ops::Range;

use gnnflow_data::dataset::Manifest;

use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::error::Error;

/// The nodes of a table, in the order of global ids.
pub(crate) struct OutputNodes {
    /// Their number by partition.
    counts: Vec<u64>,
    /// Those of this worker by global ids, ascending; `None` for all nodes.
    some: Option<Vec<u32>>,
}

impl OutputNodes {
    /// All nodes.
    pub(crate) fn all(manifest: &Manifest) -> Self {
        Self { counts: manifest.partitions.iter().map(|part| part.nodes).collect(), some: None }
    }

    /// Some nodes. Each worker gives its own, by global ids, ascending. A collective operation.
    ///
    /// # Errors
    /// If the program ends the run.
    pub(crate) fn some(
        driver: &mut Driver<'_>,
        context: &WorkerContext,
        collectives: &mut Collectives,
        own: Vec<u32>,
    ) -> Result<Self, Error> {
        let count = |part: usize| of_partition(&own, context, part).len() as u64;
        Ok(Self { counts: collectives.all_gather_parts(driver, count)?, some: Some(own) })
    }

    /// Returns their number by partition.
    pub(crate) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the local ids of the nodes at the places `range` of a partition hosted here.
    pub(crate) fn locals(&self, context: &WorkerContext, part: usize, range: Range<usize>) -> Vec<usize> {
        match &self.some {
            None => range.collect(),
            Some(nodes) => {
                let (own, first) = (of_partition(nodes, context, part), context.graph.range(part).start);
                nodes[own][range].iter().map(|node| (node - first) as usize).collect()
            }
        }
    }
}

/// Returns the places of a partition's nodes among `nodes`, global ids, ascending.
pub(crate) fn of_partition(nodes: &[u32], context: &WorkerContext, part: usize) -> Range<usize> {
    let range = context.graph.range(part);
    let before = |end: u32| nodes.partition_point(|&node| node < end);
    before(range.start)..before(range.end)
}
