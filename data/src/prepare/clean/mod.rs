//! Cleaning: which nodes there are, before the graph is cut.
//!
//! ```text
//! ids that only edges name ──► nodes (create) ──► pairs of indexes ──► k-core ──► largest component ──► not isolated
//! ```
//!
//! Every filter looks at the graph that the one before has left. The nodes that remain close up: everything after knows their
//! indexes only, and edges of the others are left out by the id map, which does not know them any more.

mod alive;
mod component;
mod core;
mod create;
mod distinct;
mod isolated;
mod labels;
mod reverse;

pub(super) use alive::Alive;
pub(super) use create::{BATCH, Created, Search, create};
pub(super) use labels::recount;
pub(super) use reverse::with_reverse;

use super::stream::DumpStream;
use crate::dataset::Cleaning;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::source::{GraphSource, Isolated};

/// Bytes of memory that the filters need for so many nodes, beside what all preparations need.
pub(super) fn state_bytes(nodes: u64, source: &GraphSource) -> u64 {
    let core = if source.k_core.is_some() { 12 } else { 0 };
    let component = if source.largest_component { 12 } else { 0 };
    let isolated = if source.isolated != Isolated::Keep { 4 } else { 0 };
    let most = core.max(component).max(isolated);
    if most == 0 { 0 } else { most * nodes + nodes / 8 }
}

/// Which nodes are to be left, and what became of the others. Sorts in about `memory` bytes.
pub(super) fn filter<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    source: &GraphSource,
    memory: u64,
) -> Result<(Alive, Cleaning)> {
    let mut alive = Alive::all(stream.num_nodes() as usize);
    let mut cleaning = Cleaning::default();
    let all = alive.count();
    if let Some(k) = source.k_core {
        core::keep_core(stream, k, &mut alive, memory)?;
        cleaning.outside_core = all - alive.count();
        if alive.count() == 0 && all > 0 {
            let reason = format!("is {k}, but the graph has no {k}-core: no node would be left");
            return Err(Error::Setting { key: "graph.k_core", reason });
        }
    }
    if source.largest_component {
        let before = alive.count();
        let found = component::keep_largest(stream, &mut alive)?;
        cleaning.outside_component = before - alive.count();
        cleaning.components = Some(found.count);
        cleaning.largest_component = Some(found.largest);
        cleaning.isolated = Some(found.single);
    }
    if source.isolated != Isolated::Keep {
        let (isolated, first) = isolated::remove_isolated(stream, &mut alive)?;
        cleaning.isolated = cleaning.isolated.or(Some(isolated));
        match (source.isolated, first) {
            (Isolated::Fail, Some(first)) => {
                return Err(Error::Isolated { id: stream.find.ids.show(first)?, others: isolated - 1 });
            }
            _ => cleaning.isolated_dropped = isolated,
        }
        if alive.count() == 0 && all > 0 {
            let reason = "is \"drop\", but every node is isolated: no node would be left".to_string();
            return Err(Error::Setting { key: "graph.isolated", reason });
        }
    }
    Ok((alive, cleaning))
}
