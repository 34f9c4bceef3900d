//! The transpose of edges by destination, for exact backward passes without atomics.

use super::offsets::Offset;

/// Edges by source: those of source `s` are `indptr[s]..indptr[s + 1]`, in ascending order of the edge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transpose {
    /// `num_src + 1` offsets.
    pub indptr: Vec<u32>,
    /// The destination of each edge.
    pub indices: Vec<u32>,
    /// The position of each edge among the edges by destination.
    pub edges: Vec<u32>,
}

/// Transposes by counting sort, in time linear in sources, destinations and edges.
///
/// ```
/// use gnnflow_kernels::aggregate::transpose::transpose;
///
/// // Destination 0 has in-edges from 1 and 2, destination 1 from 2.
/// let t = transpose(3, &[0u32, 2, 3], &[1, 2, 2]);
/// assert_eq!((t.indptr, t.indices, t.edges), (vec![0, 0, 1, 3], vec![0, 0, 1], vec![0, 1, 2]));
/// ```
///
/// # Panics
/// If an index is not below `num_src`, or there are 2³² edges or more.
pub fn transpose<P: Offset>(num_src: usize, indptr: &[P], indices: &[u32]) -> Transpose {
    assert!(u32::try_from(indices.len()).is_ok(), "a block has fewer than 2^32 edges");
    let mut starts = vec![0u32; num_src + 1];
    for &source in indices {
        starts[source as usize + 1] += 1;
    }
    for s in 0..num_src {
        starts[s + 1] += starts[s];
    }
    let mut next = starts.clone();
    let mut by_source = Transpose { indptr: starts, indices: vec![0; indices.len()], edges: vec![0; indices.len()] };
    for row in 0..indptr.len() - 1 {
        for e in indptr[row].at()..indptr[row + 1].at() {
            let place = &mut next[indices[e] as usize];
            by_source.indices[*place as usize] = row as u32;
            by_source.edges[*place as usize] = e as u32;
            *place += 1;
        }
    }
    by_source
}
