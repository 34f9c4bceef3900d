//! Reversed edges: out-edges of all nodes from all in-edges, or of the rows that a worker reads to its own nodes.

use std::sync::Arc;

use gnnflow_dataflow::ghost::Links;
use gnnflow_dataflow::graph::local_graph::InEdges;
use gnnflow_dataflow::storage::{Array, Place};

/// Edges in compressed form.
pub(crate) struct HeldEdges {
    pub(crate) indptr: Vec<i64>,
    pub(crate) indices: Array<u32>,
}

impl InEdges for HeldEdges {
    fn indptr(&self) -> &[i64] {
        &self.indptr
    }
    fn indices(&self) -> &[u32] {
        &self.indices
    }
}

/// Returns the out-edges of all nodes by partition, from the in-edges of all slots.
pub(crate) fn transposed(
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
    // By node, the position of its next edge. Destinations ascend.
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

/// Returns the edges of `links` by row of their table, own rows and ghosts. Destinations are rows of edges, ascending.
pub(crate) fn reversed(links: &Links, place: &Place) -> std::io::Result<HeldEdges> {
    let mut indptr = vec![0i64; links.table_rows() + 1];
    for_each_edge(links, |source, _| indptr[source + 1] += 1);
    (1..indptr.len()).for_each(|row| indptr[row] += indptr[row - 1]);
    let mut indices = Array::zeros(links.num_edges(), place)?;
    // By source, the position of its next edge.
    let mut next = indptr.clone();
    for_each_edge(links, |source, row| {
        indices[next[source] as usize] = row;
        next[source] += 1;
    });
    Ok(HeldEdges { indptr, indices })
}

/// Calls `edge` with the table row and the row of edges of every edge; the latter ascends.
fn for_each_edge(links: &Links, mut edge: impl FnMut(usize, u32)) {
    for row in 0..links.rows().len() {
        let (bounds, sources) = links.edges(row..row + 1);
        sources[bounds[0] as usize..bounds[1] as usize].iter().for_each(|&source| edge(source as usize, row as u32));
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_dataflow::ghost::Ends;
    use gnnflow_dataflow::graph::local_graph::OwnedInEdges;

    use super::*;

    #[test]
    fn transposed_returns_the_out_edges() {
        let first = OwnedInEdges { indptr: vec![0, 2, 3], indices: vec![1, 2, 0], ..Default::default() };
        let second = OwnedInEdges { indptr: vec![0, 3], indices: vec![0, 0, 2], ..Default::default() };
        let parts: Vec<Arc<dyn InEdges>> = vec![Arc::new(first), Arc::new(second)];
        let made = transposed(&parts, 1, &Place::Memory).unwrap();
        assert_eq!((made[0].indptr(), made[0].indices()), (&[0, 3, 4][..], &[1, 2, 2, 0][..]));
        assert_eq!((made[1].indptr(), made[1].indices()), (&[0, 2][..], &[0, 2][..]));
    }

    #[test]
    fn reversed_returns_the_readers_of_each_row() {
        // Nodes 2 to 4 are own; 1 and 5 are ghosts.
        let edges = OwnedInEdges { indptr: vec![0, 3, 4, 6], indices: vec![1, 2, 5, 1, 3, 5], ..Default::default() };
        let parts: [Arc<dyn InEdges>; 1] = [Arc::new(edges)];
        let links = Links::new(Ends::nodes(2..5, 6), &parts, Default::default(), &Place::Memory).unwrap();
        let found = reversed(&links, &Place::Memory).unwrap();
        assert_eq!(links.ghosts(), [1, 5]);
        assert_eq!((found.indptr(), found.indices()), (&[0, 1, 2, 2, 4, 6][..], &[0, 2, 0, 1, 0, 2][..]));
    }
}
