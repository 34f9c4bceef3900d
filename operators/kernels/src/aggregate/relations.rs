//! Splits typed edges by relation: the destinations of each relation's edges, and their sources.
//!
//! Work per relation then touches only its rows, for any number of relations.

use super::transpose::Transpose;
use crate::parallel;
use crate::simd::element::Real;

/// The edges of one relation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Relation {
    /// The relation's number.
    pub relation: usize,
    /// The destinations with edges of the relation, ascending.
    pub rows: Vec<u32>,
    /// The edges of `rows[k]` are `indptr[k]..indptr[k + 1]`.
    pub indptr: Vec<u32>,
    /// The source of each edge.
    pub indices: Vec<u32>,
}

/// The edges of one relation by source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BySource {
    /// The sources with edges of the relation, ascending.
    pub sources: Vec<u32>,
    /// For `sources[k]`, the positions of its destinations in [`Relation::rows`].
    pub edges: Transpose,
    /// One over the number of edges of each of [`Relation::rows`].
    pub inverse: Vec<f64>,
}

/// Splits edges by type. Returns the relations that have edges, in ascending order.
///
/// ```
/// use gnnflow_kernels::aggregate::relations::split;
///
/// // Destination 0 has in-edges from 1 and 3 by relation 5, from 2 by relation 0; destination 1 from 1 by relation 5.
/// let relations = split(&[0, 3, 4], &[1, 2, 3, 1], &[5, 0, 5, 5]);
/// assert_eq!((relations[0].relation, &relations[0].rows[..], &relations[0].indices[..]), (0, &[0][..], &[2][..]));
/// assert_eq!((relations[1].relation, &relations[1].rows[..], &relations[1].indptr[..]), (5, &[0, 1][..], &[0, 2, 3][..]));
/// ```
///
/// # Panics
/// If there are fewer types than edges.
pub fn split(indptr: &[u32], indices: &[u32], types: &[u16]) -> Vec<Relation> {
    let count = types.iter().max().map_or(0, |&largest| usize::from(largest) + 1);
    let mut all: Vec<Relation> = (0..count).map(|relation| Relation { relation, ..Relation::default() }).collect();
    for (row, edges) in indptr.windows(2).enumerate() {
        for e in edges[0] as usize..edges[1] as usize {
            let relation = &mut all[usize::from(types[e])];
            if relation.rows.last() != Some(&(row as u32)) {
                relation.rows.push(row as u32);
                relation.indptr.push(relation.indices.len() as u32);
            }
            relation.indices.push(indices[e]);
        }
    }
    all.retain(|relation| !relation.rows.is_empty());
    all.iter_mut().for_each(|relation| relation.indptr.push(relation.indices.len() as u32));
    all
}

impl Relation {
    /// Returns the same edges by source.
    pub fn by_source(&self) -> BySource {
        let mut edges: Vec<(u32, u32)> = Vec::with_capacity(self.indices.len());
        let mut inverse = Vec::with_capacity(self.rows.len());
        for (place, w) in self.indptr.windows(2).enumerate() {
            edges.extend(self.indices[w[0] as usize..w[1] as usize].iter().map(|&source| (source, place as u32)));
            inverse.push(1.0 / f64::from(w[1] - w[0]));
        }
        edges.sort_unstable();
        let mut by_source = BySource { inverse, ..BySource::default() };
        for (k, &(source, place)) in edges.iter().enumerate() {
            if by_source.sources.last() != Some(&source) {
                by_source.sources.push(source);
                by_source.edges.indptr.push(k as u32);
            }
            by_source.edges.indices.push(place);
        }
        by_source.edges.indptr.push(edges.len() as u32);
        by_source
    }
}

/// Rows per task.
const ROWS: usize = 256;

/// Gathers the given `rows` of `x`, `[_, width]`.
///
/// # Panics
/// If there is no such row.
pub fn take_rows<A: Real>(x: &[A], width: usize, rows: &[u32]) -> Vec<A> {
    let mut out = vec![A::ZERO; rows.len() * width];
    if width > 0 {
        parallel::chunks(&mut out, ROWS * width, &|chunk, out| {
            let rows = parallel::chunk(rows, chunk, ROWS);
            for (out, &row) in out.chunks_exact_mut(width).zip(rows) {
                out.copy_from_slice(&x[row as usize * width..][..width]);
            }
        });
    }
    out
}

/// Adds row `k` of `x`, `[rows.len(), width]`, to row `rows[k]` of `out`; `rows` must be ascending.
///
/// # Panics
/// If `rows` are not ascending or out of bounds.
pub fn add_rows<A: Real>(x: &[A], width: usize, rows: &[u32], mut out: &mut [A]) {
    if width == 0 {
        return;
    }
    let (mut pieces, mut begin) = (Vec::with_capacity(rows.len().div_ceil(ROWS)), 0);
    for (x, rows) in x.chunks(ROWS * width).zip(rows.chunks(ROWS)) {
        let (first, end) = (rows[0] as usize, rows[rows.len() - 1] as usize + 1);
        let (_, rest) = out.split_at_mut((first - begin) * width);
        let (piece, rest) = rest.split_at_mut((end - first) * width);
        pieces.push((x, rows, piece));
        (out, begin) = (rest, end);
    }
    parallel::each(pieces, &|(x, rows, out): (&[A], &[u32], &mut [A])| {
        for (x, &row) in x.chunks_exact(width).zip(rows) {
            let out = &mut out[(row - rows[0]) as usize * width..][..width];
            out.iter_mut().zip(x).for_each(|(o, &x)| *o += x);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use gnnflow_data::rng::{Key, Purpose};

    #[test]
    fn split_and_by_source_contain_every_edge_of_each_relation() {
        let key = Key::new(3, Purpose::Sample);
        let (rows, sources, types) = (700u64, 900u64, 9u64);
        let mut indptr = vec![0u32];
        (0..rows).for_each(|row| indptr.push(indptr[row as usize] + key.below(row, 12) as u32));
        let edges = u64::from(indptr[rows as usize]);
        let indices: Vec<u32> = (0..edges).map(|e| key.fold(1).below(e, sources) as u32).collect();
        let edge_types: Vec<u16> = (0..edges).map(|e| key.fold(2).below(e, types) as u16).collect();
        let mut wanted: Vec<(usize, u32, u32)> = Vec::new();
        for row in 0..rows as usize {
            let edges = indptr[row] as usize..indptr[row + 1] as usize;
            wanted.extend(edges.map(|e| (usize::from(edge_types[e]), row as u32, indices[e])));
        }
        wanted.sort_unstable();
        let (mut found, mut found_by_source) = (Vec::new(), Vec::new());
        for relation in split(&indptr, &indices, &edge_types) {
            assert!(relation.rows.is_sorted_by(|a, b| a < b));
            for (k, &row) in relation.rows.iter().enumerate() {
                let edges = relation.indptr[k] as usize..relation.indptr[k + 1] as usize;
                assert!(!edges.is_empty());
                found.extend(edges.map(|e| (relation.relation, row, relation.indices[e])));
            }
            let by_source = relation.by_source();
            assert!(by_source.sources.is_sorted_by(|a, b| a < b));
            for (k, &source) in by_source.sources.iter().enumerate() {
                let edges = by_source.edges.indptr[k] as usize..by_source.edges.indptr[k + 1] as usize;
                let row = |e: usize| relation.rows[by_source.edges.indices[e] as usize];
                found_by_source.extend(edges.map(|e| (relation.relation, row(e), source)));
            }
        }
        found.sort_unstable();
        found_by_source.sort_unstable();
        assert!(found == wanted && found_by_source == wanted);
        assert_eq!(split(&[0, 0], &[], &[]), []);
    }

    #[test]
    fn take_rows_and_add_rows_use_the_given_rows() {
        let rows: Vec<u32> = (0..1000).filter(|row| row % 3 != 1).collect();
        let x: Vec<f64> = (0..3000).map(f64::from).collect();
        let gathered = take_rows(&x, 3, &rows);
        let mut out = vec![1.0; 3000];
        add_rows(&gathered, 3, &rows, &mut out);
        for (k, &value) in out.iter().enumerate() {
            assert_eq!(value, if k / 3 % 3 == 1 { 1.0 } else { 1.0 + k as f64 });
        }
        add_rows(&[], 3, &[], &mut out);
    }
}
