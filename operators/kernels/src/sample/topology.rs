//! Where in-neighbors come from: one CSC, or those of several partitions.

use std::borrow::Cow;

use crate::prefetch;

/// In-neighbors by global node id.
pub trait Neighbors: Sync {
    /// The sources of the edges that end in `node`, as global ids, in stored order.
    ///
    /// # Panics
    /// When `node` is not held here.
    fn neighbors(&self, node: u32) -> &[u32];

    /// Where [`Neighbors::neighbors`] of `node` begins in the edge columns of the partition that owns it.
    ///
    /// # Panics
    /// When `node` is not held here.
    fn edge_offset(&self, node: u32) -> u64;

    /// The position in those columns of the `at`-th edge that ends in `node`: so far behind [`Neighbors::edge_offset`], unless
    /// edges have been left out here that the columns have.
    ///
    /// # Panics
    /// When `node` is not held here.
    #[inline(always)]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        self.edge_offset(node) + at as u64
    }

    /// Weights of the edges that end in `node`, beside [`Neighbors::neighbors`]; `None` where edges have none.
    ///
    /// # Panics
    /// When `node` is not held here.
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        let _ = node;
        None
    }

    /// Types of the edges that end in `node`, beside [`Neighbors::neighbors`]; `None` where edges have none.
    ///
    /// # Panics
    /// When `node` is not held here.
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        let _ = node;
        None
    }

    /// Times of the edges that end in `node`, beside [`Neighbors::neighbors`]; `None` where edges have none.
    ///
    /// # Panics
    /// When `node` is not held here.
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        let _ = node;
        None
    }

    /// Brings near what [`Neighbors::neighbors`] of `node` reads first. Any `node` may be given.
    #[inline(always)]
    fn prefetch(&self, node: u32) {
        let _ = node;
    }
}

/// What a topology knows of its edges besides their sources: one entry per edge in each column that is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgeColumns<'a> {
    /// Weights.
    pub weights: Option<&'a [f32]>,
    /// Types.
    pub types: Option<&'a [u16]>,
    /// Times.
    pub times: Option<&'a [i64]>,
    /// Positions in the owner's columns, where edges have been left out here; else they follow each other.
    pub ids: Option<&'a [u64]>,
}

/// The in-edges of consecutive nodes: those of node `first + i` are `indices[indptr[i]..indptr[i + 1]]`.
///
/// ```
/// use gnnflow_kernels::sample::{Csc, Neighbors};
///
/// let csc = Csc::new(&[0, 2, 3], &[7, 1, 0]);
/// assert_eq!(csc.neighbors(0), [7, 1]);
/// assert_eq!(csc.edge_offset(1), 2);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Csc<'a> {
    first: u32,
    indptr: &'a [i64],
    indices: &'a [u32],
    columns: EdgeColumns<'a>,
}

impl<'a> Csc<'a> {
    /// The in-edges of nodes `0..indptr.len() - 1`.
    ///
    /// `indptr` must start at 0, never decrease and end at `indices.len()`. Only the length and the two ends are
    /// looked at here (the arrays are large, and checked when the dataset is opened); a wrong entry between panics
    /// where it is used.
    ///
    /// # Panics
    /// When `indptr` is empty or its ends are wrong.
    pub fn new(indptr: &'a [i64], indices: &'a [u32]) -> Self {
        Self::starting_at(0, indptr, indices)
    }

    /// As [`Csc::new`], for nodes `first..first + indptr.len() - 1`: a partition's own.
    ///
    /// # Panics
    /// As [`Csc::new`].
    pub fn starting_at(first: u32, indptr: &'a [i64], indices: &'a [u32]) -> Self {
        assert!(indptr.first() == Some(&0), "indptr starts at 0");
        assert!(indptr.last() == Some(&(indices.len() as i64)), "indptr ends at the number of edges");
        Self { first, indptr, indices, columns: EdgeColumns::default() }
    }

    /// The same edges with columns.
    ///
    /// # Panics
    /// Unless each column is as long as the edges are many.
    #[must_use]
    pub fn with_columns(mut self, columns: EdgeColumns<'a>) -> Self {
        let lengths = [columns.weights.map(<[_]>::len), columns.types.map(<[_]>::len), columns.times.map(<[_]>::len)];
        let lengths = lengths.into_iter().chain([columns.ids.map(<[_]>::len)]);
        let whole = lengths.flatten().all(|length| length == self.indices.len());
        assert!(whole, "a column has one entry per edge");
        self.columns = columns;
        self
    }

    fn edges(&self, node: u32) -> std::ops::Range<usize> {
        let at = node.wrapping_sub(self.first) as usize;
        self.indptr[at] as usize..self.indptr[at + 1] as usize
    }

    /// Number of nodes whose in-edges are here.
    pub fn nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Whether the in-edges of `node` are here.
    pub fn holds(&self, node: u32) -> bool {
        node >= self.first && ((node - self.first) as usize) < self.nodes()
    }
}

impl Neighbors for Csc<'_> {
    #[inline(always)]
    fn neighbors(&self, node: u32) -> &[u32] {
        let at = node.wrapping_sub(self.first) as usize;
        &self.indices[self.indptr[at] as usize..self.indptr[at + 1] as usize]
    }

    #[inline(always)]
    fn edge_offset(&self, node: u32) -> u64 {
        self.indptr[node.wrapping_sub(self.first) as usize] as u64
    }

    #[inline]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        let position = self.edge_offset(node) + at as u64;
        self.columns.ids.map_or(position, |ids| ids[position as usize])
    }

    #[inline]
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        self.columns.weights.map(|weights| &weights[self.edges(node)])
    }

    #[inline]
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        self.columns.types.map(|types| &types[self.edges(node)])
    }

    #[inline]
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        self.columns.times.map(|times| &times[self.edges(node)])
    }

    #[inline(always)]
    fn prefetch(&self, node: u32) {
        // Both bounds: one node in eight has them on two cache lines.
        let start = self.indptr.as_ptr().wrapping_add(node.wrapping_sub(self.first) as usize);
        prefetch(start);
        prefetch(start.wrapping_add(1));
    }
}

/// One partition by itself: the in-edges of its own nodes, and none of all others.
///
/// ```
/// use gnnflow_kernels::sample::{Csc, PartitionView, Neighbors};
///
/// let view = PartitionView::new(Csc::starting_at(4, &[0, 2, 3], &[7, 1, 4]));
/// assert_eq!(view.neighbors(4), [7, 1]);
/// assert!(view.neighbors(7).is_empty());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PartitionView<'a>(Csc<'a>);

impl<'a> PartitionView<'a> {
    /// The view of the nodes whose in-edges `csc` has.
    pub fn new(csc: Csc<'a>) -> Self {
        Self(csc)
    }

    fn column<'b, T>(&'b self, node: u32, column: Option<&'b [T]>) -> Option<&'b [T]> {
        column.map(|column| if self.0.holds(node) { &column[self.0.edges(node)] } else { &[] })
    }
}

impl Neighbors for PartitionView<'_> {
    #[inline(always)]
    fn neighbors(&self, node: u32) -> &[u32] {
        if self.0.holds(node) { self.0.neighbors(node) } else { &[] }
    }

    #[inline(always)]
    fn edge_offset(&self, node: u32) -> u64 {
        if self.0.holds(node) { self.0.edge_offset(node) } else { 0 }
    }

    #[inline]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        self.0.edge_id(node, at)
    }

    #[inline]
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        self.column(node, self.0.columns.weights)
    }

    #[inline]
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        self.column(node, self.0.columns.types)
    }

    #[inline]
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        self.column(node, self.0.columns.times)
    }

    #[inline(always)]
    fn prefetch(&self, node: u32) {
        self.0.prefetch(node);
    }
}

/// The partitions that are held here, of a graph that is cut by `offsets`.
///
/// ```
/// use gnnflow_kernels::sample::{Neighbors, Partitions};
///
/// // Partition 0 owns nodes 0 and 1, partition 1 owns node 2; both are here.
/// let parts = Partitions::new(&[0, 2, 3], [Some((&[0, 1, 1][..], &[2][..])), Some((&[0, 2][..], &[0, 1][..]))]);
/// assert_eq!(parts.neighbors(0), [2]);
/// assert_eq!(parts.neighbors(2), [0, 1]);
/// ```
#[derive(Clone, Debug)]
pub struct Partitions<'a> {
    /// `starts[p]..starts[p + 1]` are the nodes of partition `p`.
    starts: Cow<'a, [u64]>,
    /// One per partition; one that is not held has no nodes.
    parts: Vec<Csc<'a>>,
    /// `guesses[node >> shift]` is the owner of the first node with those leading bits, or a partition before it.
    guesses: Vec<u32>,
    shift: u32,
}

impl<'a> Partitions<'a> {
    /// The partitions given as `(indptr, indices)`, `None` for one that is not held here.
    ///
    /// # Panics
    /// Unless there is one entry per partition of `offsets`, and each is as [`Csc::new`] wants it and as long as its
    /// range.
    pub fn new(offsets: &'a [u64], parts: impl IntoIterator<Item = Option<(&'a [i64], &'a [u32])>>) -> Self {
        let parts: Vec<_> = parts
            .into_iter()
            .zip(offsets.windows(2))
            .map(|(part, range)| match part {
                Some((indptr, indices)) => {
                    assert_eq!(indptr.len() as u64, range[1] - range[0] + 1, "indptr is as long as the partition");
                    Csc::starting_at(range[0] as u32, indptr, indices)
                }
                None => Csc::starting_at(range[0] as u32, &[0], &[]),
            })
            .collect();
        assert_eq!(parts.len() + 1, offsets.len(), "one entry per partition");
        // About four guesses a partition: most nodes are then found at once, the rest one step further on.
        let nodes = offsets[parts.len()];
        let shift = (u64::BITS - nodes.leading_zeros()).saturating_sub((4 * parts.len()).ilog2() + 1);
        let guesses = (0..=nodes >> shift)
            .map(|bucket| (offsets.partition_point(|&start| start <= bucket << shift) as u32).saturating_sub(1))
            .map(|owner| owner.min(parts.len() as u32 - 1))
            .collect();
        Self { starts: Cow::Borrowed(offsets), parts, guesses, shift }
    }

    /// The same partitions with the columns of their edges; what is given for one that is not held is not looked at.
    ///
    /// # Panics
    /// Unless there is one entry per partition, as [`Csc::with_columns`] wants it.
    #[must_use]
    pub fn with_columns(mut self, columns: impl IntoIterator<Item = EdgeColumns<'a>>) -> Self {
        let mut columns = columns.into_iter();
        for part in &mut self.parts {
            let columns = columns.next().expect("one entry per partition");
            if part.nodes() > 0 {
                *part = part.with_columns(columns);
            }
        }
        self
    }

    /// The partition that owns `node`.
    ///
    /// # Panics
    /// When `node` is past the last node.
    #[inline(always)]
    pub fn owner(&self, node: u32) -> usize {
        let mut owner = self.guesses[(node >> self.shift) as usize] as usize;
        while u64::from(node) >= self.starts[owner + 1] {
            owner += 1;
        }
        owner
    }

    /// Whether the in-edges of `node` are here.
    pub fn holds(&self, node: u32) -> bool {
        self.parts[self.owner(node)].holds(node)
    }
}

impl Neighbors for Partitions<'_> {
    #[inline(always)]
    fn neighbors(&self, node: u32) -> &[u32] {
        self.parts[self.owner(node)].neighbors(node)
    }

    #[inline(always)]
    fn edge_offset(&self, node: u32) -> u64 {
        self.parts[self.owner(node)].edge_offset(node)
    }

    #[inline]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        self.parts[self.owner(node)].edge_id(node, at)
    }

    #[inline]
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        self.parts[self.owner(node)].edge_weights(node)
    }

    #[inline]
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        self.parts[self.owner(node)].edge_types(node)
    }

    #[inline]
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        self.parts[self.owner(node)].edge_times(node)
    }

    #[inline(always)]
    fn prefetch(&self, node: u32) {
        self.parts[self.owner(node)].prefetch(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_find_the_owner_as_a_search_of_every_range_does() {
        for offsets in
            [vec![0, 1], vec![0, 0, 5], vec![0, 5, 5, 5, 9, 9], vec![0, 2, 4, 6, 8], vec![0, 1000, 1001, 1003]]
        {
            let parts = Partitions::new(&offsets, offsets.windows(2).map(|_| None));
            for node in 0..offsets[offsets.len() - 1] {
                let expected = offsets.windows(2).position(|range| (range[0]..range[1]).contains(&node)).unwrap();
                assert_eq!(parts.owner(node as u32), expected, "{offsets:?} at {node}");
                assert!(!parts.holds(node as u32));
            }
        }
    }

    #[test]
    fn a_graph_without_nodes_has_partitions() {
        Partitions::new(&[0, 0, 0], [None, None]);
    }

    #[test]
    #[should_panic(expected = "ends at the number of edges")]
    fn an_indptr_of_other_edges_is_refused() {
        Csc::new(&[0, 1], &[]);
    }
}
