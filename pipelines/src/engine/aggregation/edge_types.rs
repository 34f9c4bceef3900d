//! In-edges by edge type, for models with one sum per type (R-GCN).
//!
//! A node has one *slot* per relation: slot `node · R + relation`. Slots are the destinations of edges, and the sources of gradients. So the
//! kernels do not read edge types, and only the neighbor is stored per edge.

use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::{Array, Place};

use super::transpose::HeldEdges;
use crate::error::Error;

/// Returns the type of each edge of a partition, all below `slots`; `None` if there is one slot.
pub(crate) fn types(edges: &dyn InEdges, slots: u32) -> Result<Option<&[u16]>, Error> {
    if slots == 1 {
        return Ok(None);
    }
    let found = edges.columns().types;
    let types = found.ok_or_else(|| {
        let message = "the model reads edge types, but edges have none; name their column in graph.columns.edge_type";
        Error::Input(message.into())
    })?;
    match types.iter().find(|&&found| u32::from(found) >= slots) {
        Some(found) => Err(Error::Input(format!("an edge has type {found}, but the model has {slots} edge types"))),
        None => Ok(Some(types)),
    }
}

/// Returns the in-edges of a partition's slots. Edges of a slot keep their order.
///
/// # Errors
/// When an edge has no type of the model, or `place` has no space.
pub(crate) fn by_relation(edges: &Arc<dyn InEdges>, slots: u32, place: &Place) -> Result<Arc<dyn InEdges>, Error> {
    let Some(types) = types(&**edges, slots)? else { return Ok(Arc::clone(edges)) };
    let failed = |error: std::io::Error| Error::Machine(format!("cannot reserve space for the edges by type: {error}"));
    let (indptr, indices, slots) = (edges.indptr(), edges.indices(), slots as usize);
    let mut bounds = vec![0i64; (indptr.len() - 1) * slots + 1];
    let mut sorted = Array::<u32>::zeros(indices.len(), place).map_err(failed)?;
    let mut next = vec![0; slots];
    for (node, window) in indptr.windows(2).enumerate() {
        let all = window[0] as usize..window[1] as usize;
        next.fill(0);
        types[all.clone()].iter().for_each(|&of| next[usize::from(of)] += 1);
        let mut place = all.start;
        for (slot, count) in next.iter_mut().enumerate() {
            place += std::mem::replace(count, place);
            bounds[node * slots + slot + 1] = place as i64;
        }
        for edge in all {
            let slot = &mut next[usize::from(types[edge])];
            sorted[*slot] = indices[edge];
            *slot += 1;
        }
    }
    Ok(Arc::new(HeldEdges { indptr: bounds, indices: sorted }))
}

#[cfg(test)]
mod tests {
    use gnnflow_dataflow::graph::local_graph::OwnedInEdges;

    use super::*;

    #[test]
    fn edges_of_a_slot_keep_their_order() {
        let (indptr, indices) = (vec![0, 4, 4, 6], vec![3, 5, 7, 9, 1, 2]);
        let typed = OwnedInEdges { indptr, indices, types: Some(vec![2, 0, 2, 1, 1, 0]), ..Default::default() };
        let edges: Arc<dyn InEdges> = Arc::new(typed);
        let found = by_relation(&edges, 3, &Place::Memory).unwrap();
        assert_eq!(found.indptr(), [0, 1, 2, 4, 4, 4, 4, 5, 6, 6]);
        assert_eq!(found.indices(), [5, 9, 3, 7, 2, 1]);
        let error = by_relation(&edges, 2, &Place::Memory).err().unwrap().to_string();
        assert!(error.contains("type 2") && error.contains("2 edge types"), "{error}");
        assert!(Arc::ptr_eq(&by_relation(&edges, 1, &Place::Memory).unwrap(), &edges));
    }
}
