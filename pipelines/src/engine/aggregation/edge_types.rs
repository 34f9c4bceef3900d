//! In-edges by relation, for sums that are kept apart by the type of the edge.
//!
//! A node receives in as many *slots* as there are relations: slot `node · R + relation`. Slots are the rows that edges lead to,
//! and those that gradients come from; so the loops that add rows up need to know nothing of relations, and no number is held for
//! an edge but its end.

use std::sync::Arc;

use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::{Array, Place};

use super::transpose::HeldEdges;
use crate::error::Error;

/// The type of each edge of a partition, all below `slots`; nothing where they are not told apart.
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

/// The in-edges of a partition's slots; those of one slot in the order in which they were.
///
/// # Errors
/// When an edge has no type that the model knows, or there is no room at `place`.
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
            let many = std::mem::replace(count, place);
            place += many;
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
    fn edges_lie_by_relation_and_keep_their_order() {
        let (indptr, indices) = (vec![0, 4, 4, 6], vec![3, 5, 7, 9, 1, 2]);
        let typed = OwnedInEdges { indptr, indices, types: Some(vec![2, 0, 2, 1, 1, 0]), ..Default::default() };
        let edges: Arc<dyn InEdges> = Arc::new(typed);
        let found = by_relation(&edges, 3, &Place::Memory).unwrap();
        assert_eq!(found.indptr(), [0, 1, 2, 4, 4, 4, 4, 5, 6, 6]);
        assert_eq!(found.indices(), [5, 9, 3, 7, 2, 1]);
        let error = by_relation(&edges, 2, &Place::Memory).err().unwrap().to_string();
        assert!(error.contains("type 2") && error.contains("2 types"), "{error}");
        assert!(Arc::ptr_eq(&by_relation(&edges, 1, &Place::Memory).unwrap(), &edges));
    }
}
