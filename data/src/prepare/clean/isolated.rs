//! `isolated`: nodes that no edge joins with another node. One pass in which every edge marks its ends; four bytes a node.

use std::sync::atomic::{AtomicU32, Ordering};

use super::alive::Alive;
use crate::error::Result;
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::prepare::stream::DumpStream;

/// Removes the isolated nodes from `alive`, as far as edges between its nodes go; returns how many, and the first.
pub(super) fn remove_isolated<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    alive: &mut Alive,
) -> Result<(u64, Option<u32>)> {
    // A count for every node: of more than 2^32 edges only a multiple of that many would be taken for none.
    let cells: Vec<AtomicU32> = (0..stream.num_nodes()).map(|_| AtomicU32::new(0)).collect();
    let all = &*alive;
    stream.accumulate("looking for isolated nodes", &cells, &|some| {
        for &(src, dst) in some {
            if src != dst && all.contains(src) && all.contains(dst) {
                cells[src as usize].fetch_add(1, Ordering::Relaxed);
                cells[dst as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    })?;
    let isolated = |node: u32| cells[node as usize].load(Ordering::Relaxed) == 0;
    let first = alive.iter().find(|&node| isolated(node));
    let before = alive.count();
    alive.retain(|node| !isolated(node));
    Ok((before - alive.count(), first))
}
