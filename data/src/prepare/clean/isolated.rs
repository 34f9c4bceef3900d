//! `isolated`: drops nodes without an edge to or from another node. One pass counts edges by node, in four bytes per node.

use std::sync::atomic::{AtomicU32, Ordering};

use super::node_set::NodeSet;
use crate::error::Result;
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::prepare::stream::DumpStream;

/// Removes isolated nodes of the subgraph of `remaining` from it. Returns their number, and the first.
pub(super) fn remove_isolated<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    remaining: &mut NodeSet,
) -> Result<(u64, Option<u32>)> {
    // The counts wrap, so a node with an exact multiple of 2^32 edges would seem isolated.
    let cells: Vec<AtomicU32> = (0..stream.num_nodes()).map(|_| AtomicU32::new(0)).collect();
    let all = &*remaining;
    stream.accumulate("looking for isolated nodes", &cells, &|some| {
        for &(src, dst) in some {
            if src != dst && all.contains(src) && all.contains(dst) {
                cells[src as usize].fetch_add(1, Ordering::Relaxed);
                cells[dst as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    })?;
    let isolated = |node: u32| cells[node as usize].load(Ordering::Relaxed) == 0;
    let first = remaining.iter().find(|&node| isolated(node));
    let before = remaining.count();
    remaining.retain(|node| !isolated(node));
    Ok((before - remaining.count(), first))
}
