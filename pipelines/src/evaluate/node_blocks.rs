//! All nodes in blocks, whose results are fetched, scored and dropped. So no process holds the results of all nodes.

use std::ops::Range;

use gnnflow_dataflow::sample::node_groups::NodeGroups;

use super::fetch_results::distinct;
use crate::collectives::Driver;
use crate::context::WorkerContext;

/// Maximum number of nodes of a block.
pub(crate) const BLOCK: usize = 4096;
/// Maximum number of blocks in flight.
pub(crate) const WINDOW: u32 = 3;
/// Maximum bytes of query vectors at a time.
pub(crate) const QUERY_BYTES: usize = 64 << 20;

/// Returns all nodes in blocks of one group, from the partitions hosted here on.
pub(crate) fn node_blocks(context: &WorkerContext, groups: &NodeGroups) -> Vec<Range<u32>> {
    let (parts, first_part) = (context.placement.parts(), context.placement.parts_of(context.worker).start);
    let order = (0..parts).map(|i| (first_part + i) % parts);
    order.flat_map(|part| blocks(groups, context.graph.range(part))).collect()
}

/// Cuts the nodes of a partition into blocks of one group.
pub(super) fn blocks(groups: &NodeGroups, range: Range<u32>) -> Vec<Range<u32>> {
    let mut cuts: Vec<u32> = groups.runs().map(|run| run.0).filter(|first| range.contains(first)).collect();
    cuts.extend([range.start, range.end]);
    let cuts = distinct(cuts.into_iter());
    let run = |bounds: &[u32]| {
        let (first, end) = (bounds[0], bounds[1]);
        (first..end).step_by(BLOCK).map(move |start| start..end.min(start + BLOCK as u32)).collect::<Vec<_>>()
    };
    cuts.windows(2).flat_map(run).collect()
}

/// The progress of a chunk of edges or sources.
pub(crate) struct Share {
    items: u64,
    shown: u64,
}

impl Share {
    pub(crate) fn new(items: u64) -> Self {
        Self { items, shown: 0 }
    }

    /// Shows as large a share of the items as `done` of `all` candidates are.
    pub(crate) fn reach(&mut self, driver: &Driver<'_>, (done, all): (usize, usize)) {
        let due = (u128::from(self.items) * done as u128 / all.max(1) as u128) as u64;
        driver.runtime.progress().advance(due.saturating_sub(self.shown));
        self.shown = self.shown.max(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_of_one_type_and_cover_a_partition() {
        let groups = NodeGroups::new(&[(0, 0), (10, 1), (20, 0)], 9000);
        assert_eq!(blocks(&groups, 5..15), [5..10, 10..15]);
        assert_eq!(blocks(&groups, 12..18), vec![12..18; 1]);
        assert_eq!(blocks(&groups, 20..9000), [20..4116, 4116..8212, 8212..9000]);
        assert!(blocks(&groups, 7..7).is_empty());
    }
}
