//! Out-edges of all nodes, where a worker has all in-edges.

use std::sync::Arc;

use gnnflow_operators::local_graph::InEdges;
use gnnflow_operators::propagate::{Array, Place};

use super::exchange::HeldEdges;

/// All nodes' out-edges, from all slots' in-edges, by partition.
///
/// # Errors
/// When there is no room for them at `place`.
pub(super) fn transposed(
    parts: &[Arc<dyn InEdges>],
    slots: usize,
    place: &Place,
) -> std::io::Result<Vec<Arc<dyn InEdges>>> {
    let nodes: usize = parts.iter().map(|part| (part.indptr().len() - 1) / slots).sum();
    let mut degrees = vec![0i64; nodes];
    parts.iter().for_each(|part| part.indices().iter().for_each(|&source| degrees[source as usize] += 1));
    let mut starts = vec![0];
    parts.iter().for_each(|part| starts.push(starts[starts.len() - 1] + (part.indptr().len() - 1) / slots));
    let mut made = Vec::with_capacity(parts.len());
    for bounds in starts.windows(2) {
        let mut indptr = vec![0];
        degrees[bounds[0]..bounds[1]].iter().for_each(|degree| indptr.push(indptr[indptr.len() - 1] + degree));
        let edges = indptr[indptr.len() - 1] as usize;
        made.push(HeldEdges { indptr, indices: Array::zeros(edges, place)? });
    }
    // Where each node's next edge goes; destinations come by ascending id.
    let mut next: Vec<i64> = made.iter().flat_map(|edges| &edges.indptr[..edges.indptr.len() - 1]).copied().collect();
    let mut slot = 0u32;
    for part in parts {
        for bounds in part.indptr().windows(2) {
            for &source in &part.indices()[bounds[0] as usize..bounds[1] as usize] {
                let owner = starts.partition_point(|&start| start <= source as usize) - 1;
                let place = &mut next[source as usize];
                made[owner].indices[*place as usize] = slot;
                *place += 1;
            }
            slot += 1;
        }
    }
    Ok(made.into_iter().map(|edges| Arc::new(edges) as Arc<dyn InEdges>).collect())
}

#[cfg(test)]
mod tests {
    use gnnflow_operators::local_graph::OwnedInEdges;

    use super::*;

    #[test]
    fn out_edges_are_in_edges_turned_round() {
        let first = OwnedInEdges { indptr: vec![0, 2, 3], indices: vec![1, 2, 0], ..Default::default() };
        let second = OwnedInEdges { indptr: vec![0, 3], indices: vec![0, 0, 2], ..Default::default() };
        let parts: Vec<Arc<dyn InEdges>> = vec![Arc::new(first), Arc::new(second)];
        let made = transposed(&parts, 1, &Place::Memory).unwrap();
        assert_eq!((made[0].indptr(), made[0].indices()), (&[0, 3, 4][..], &[1, 2, 2, 0][..]));
        assert_eq!((made[1].indptr(), made[1].indices()), (&[0, 2][..], &[0, 2][..]));
    }
}
