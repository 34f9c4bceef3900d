//! Topologies: the in-edges of one CSC or of several partitions.

use std::borrow::Cow;

use crate::prefetch::prefetch;

/// The in-neighbors of nodes, by global id. All methods but `prefetch` may panic if `node` is not held here.
pub trait Neighbors: Sync {
    /// Returns the sources of the in-edges of `node`, as global ids, in stored order.
    fn neighbors(&self, node: u32) -> &[u32];

    /// Returns the row of the first in-edge of `node` in the edge columns of the partition that owns it.
    fn edge_offset(&self, node: u32) -> u64;

    /// Returns the row of in-edge `at` of `node` in those columns: [`Neighbors::edge_offset`] plus `at`, unless this
    /// topology omits edges of the partition.
    #[inline(always)]
    fn edge_id(&self, node: u32, at: usize) -> u64 {
        self.edge_offset(node) + at as u64
    }

    /// Returns the weights of the in-edges of `node`; `None` if edges have no weights.
    fn edge_weights(&self, node: u32) -> Option<&[f32]> {
        let _ = node;
        None
    }

    /// Returns the types of the in-edges of `node`; `None` if edges have no types.
    fn edge_types(&self, node: u32) -> Option<&[u16]> {
        let _ = node;
        None
    }

    /// Returns the times of the in-edges of `node`; `None` if edges have no times.
    fn edge_times(&self, node: u32) -> Option<&[i64]> {
        let _ = node;
        None
    }

    /// Prefetches the row bounds of `node`. Any `node` is valid.
    #[inline(always)]
    fn prefetch(&self, node: u32) {
        let _ = node;
    }
}

/// Optional edge columns of a topology, each with one entry per edge.
#[derive(Clone, Copy, Debug, Default)]
pub struct EdgeColumns<'a> {
    /// Weights.
    pub weights: Option<&'a [f32]>,
    /// Types.
    pub types: Option<&'a [u16]>,
    /// Times.
    pub times: Option<&'a [i64]>,
    /// Rows in the owner's columns, if this topology omits edges; otherwise rows are consecutive.
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
    /// Creates the topology of nodes `0..indptr.len() - 1`.
    ///
    /// `indptr` must start at 0, be nondecreasing and end at `indices.len()`. Only its two ends are checked here,
    /// because the arrays are large and are checked when a dataset is opened. A wrong entry in between panics at use.
    ///
    /// # Panics
    /// If `indptr` is empty or its ends are wrong.
    pub fn new(indptr: &'a [i64], indices: &'a [u32]) -> Self {
        Self::starting_at(0, indptr, indices)
    }

    /// Like [`Csc::new`], for the nodes `first..first + indptr.len() - 1` of a partition.
    ///
    /// # Panics
    /// As [`Csc::new`].
    pub fn starting_at(first: u32, indptr: &'a [i64], indices: &'a [u32]) -> Self {
        assert!(indptr.first() == Some(&0), "indptr starts at 0");
        assert!(indptr.last() == Some(&(indices.len() as i64)), "indptr ends at the number of edges");
        Self { first, indptr, indices, columns: EdgeColumns::default() }
    }

    /// Adds edge columns.
    ///
    /// # Panics
    /// If a column does not have one entry per edge.
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

    /// Returns the number of nodes whose in-edges are held.
    pub fn nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Returns whether the in-edges of `node` are held.
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
        // One node in eight has its two bounds on different cache lines.
        let start = self.indptr.as_ptr().wrapping_add(node.wrapping_sub(self.first) as usize);
        prefetch(start);
        prefetch(start.wrapping_add(1));
    }
}

/// One partition alone: nodes of other partitions have no in-edges.
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
    /// Creates the view of the nodes of `csc`.
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

/// The locally held partitions of a graph whose partition `p` owns the nodes `offsets[p]..offsets[p + 1]`.
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
    /// One per partition; empty if the partition is not held.
    parts: Vec<Csc<'a>>,
    /// `guesses[node >> shift]` is the owner of the first node with these leading bits, or an earlier partition.
    guesses: Vec<u32>,
    shift: u32,
}

impl<'a> Partitions<'a> {
    /// Creates the topology from one `(indptr, indices)` per partition, or `None` if it is not held here.
    ///
    /// # Panics
    /// If there is not one entry per partition of `offsets`, or [`Csc::new`] panics, or an `indptr` does not match the
    /// partition's range.
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
        // With about four guesses per partition, most owners are found directly, the others one step later.
        let nodes = offsets[parts.len()];
        let shift = (u64::BITS - nodes.leading_zeros()).saturating_sub((4 * parts.len()).ilog2() + 1);
        let guesses = (0..=nodes >> shift)
            .map(|bucket| (offsets.partition_point(|&start| start <= bucket << shift) as u32).saturating_sub(1))
            .map(|owner| owner.min(parts.len() as u32 - 1))
            .collect();
        Self { starts: Cow::Borrowed(offsets), parts, guesses, shift }
    }

    /// Adds the edge columns of the partitions; those of partitions that are not held are ignored.
    ///
    /// # Panics
    /// If there is not one entry per partition, or [`Csc::with_columns`] panics.
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

    /// Returns the partition that owns `node`.
    ///
    /// # Panics
    /// If there is no such node.
    #[inline(always)]
    pub fn owner(&self, node: u32) -> usize {
        let mut owner = self.guesses[(node >> self.shift) as usize] as usize;
        while u64::from(node) >= self.starts[owner + 1] {
            owner += 1;
        }
        owner
    }

    /// Returns whether the in-edges of `node` are held.
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
    fn owner_equals_a_search_over_all_ranges() {
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
    fn partitions_of_a_graph_without_nodes_are_valid() {
        Partitions::new(&[0, 0, 0], [None, None]);
    }

    #[test]
    #[should_panic(expected = "ends at the number of edges")]
    fn csc_new_with_a_wrong_last_indptr_entry_panics() {
        Csc::new(&[0, 1], &[]);
    }
}
