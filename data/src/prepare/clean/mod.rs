//! Cleaning: creates and drops nodes before the graph is partitioned.
//!
//! ```text
//! ids that only edges name ──► nodes (create) ──► pairs of indexes ──► k-core ──► largest component ──► not isolated
//! ```
//!
//! Every filter works on the graph that the previous filter returned. The remaining nodes get consecutive indexes, which all later passes
//! use. Edges of dropped nodes are dropped because their ids have no index.

mod component;
mod core;
mod create;
mod distinct;
mod isolated;
mod node_set;
mod reverse;

pub(super) use create::{BATCH, Created, Search, create};
pub(super) use node_set::NodeSet;
pub(super) use reverse::with_reverse;

use super::stream::DumpStream;
use crate::dataset::Cleaning;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::partitioner::GraphStream;
use crate::source::{GraphSource, Isolated};

/// Returns the bytes of memory that the filters need for `nodes` nodes, in addition to those of all preparations.
pub(super) fn state_bytes(nodes: u64, source: &GraphSource) -> u64 {
    let core = if source.k_core.is_some() { 12 } else { 0 };
    let component = if source.largest_component { 12 } else { 0 };
    let isolated = if source.isolated != Isolated::Keep { 4 } else { 0 };
    let most = core.max(component).max(isolated);
    if most == 0 { 0 } else { most * nodes + nodes / 8 }
}

/// Returns the remaining nodes, and the counts of dropped ones. Sorts in about `memory` bytes.
pub(super) fn filter<C: ProcessGroup>(
    stream: &DumpStream<'_, C>,
    source: &GraphSource,
    memory: u64,
) -> Result<(NodeSet, Cleaning)> {
    let mut remaining = NodeSet::all(stream.num_nodes() as usize);
    let mut cleaning = Cleaning::default();
    let all = remaining.count();
    if let Some(k) = source.k_core {
        core::keep_core(stream, k, &mut remaining, memory)?;
        cleaning.outside_core = all - remaining.count();
        if remaining.count() == 0 && all > 0 {
            let reason = format!("is {k}, but the graph has no {k}-core; choose a smaller number");
            return Err(Error::Setting { key: "graph.k_core", reason });
        }
    }
    if source.largest_component {
        let before = remaining.count();
        let found = component::keep_largest(stream, &mut remaining)?;
        cleaning.outside_component = before - remaining.count();
        cleaning.components = Some(found.count);
        cleaning.largest_component = Some(found.largest);
        cleaning.isolated = Some(found.single);
    }
    if source.isolated != Isolated::Keep {
        let (isolated, first) = isolated::remove_isolated(stream, &mut remaining)?;
        cleaning.isolated = cleaning.isolated.or(Some(isolated));
        match (source.isolated, first) {
            (Isolated::Fail, Some(first)) => {
                return Err(Error::Isolated { id: stream.find.ids.show(first)?, others: isolated - 1 });
            }
            _ => cleaning.isolated_dropped = isolated,
        }
        if remaining.count() == 0 && all > 0 {
            let reason = "is \"drop\", but every node is isolated; use \"keep\"".to_string();
            return Err(Error::Setting { key: "graph.isolated", reason });
        }
    }
    Ok((remaining, cleaning))
}
