//! The requester's part of a hop: merges the samples of several owners into one block.

use super::columns::{Columns, EdgeSlices, EdgeValues};
use super::hop::{edge_count, new_block, new_indptr};
use super::samples::BadReply;
use crate::block::Block;
use crate::compact::{Compactor, TreeCompactor};

/// Builds the hop's block from samples of other workers. Block and list equal those of
/// [`sample_hop`](super::sample_hop) under the same key.
///
/// Calls `samples_of` once per initial node of `list`, in order, for the node's samples; [`Replies::next`] returns them
/// from the owners' replies. `compactor` must belong to `list`.
///
/// # Panics
/// If `compactor` belongs to another list.
pub fn assemble<'a>(
    list: &mut Vec<u32>,
    mut samples_of: impl FnMut(u32) -> &'a [u32],
    compactor: &mut Compactor,
) -> Block {
    let (num_dst, mut indptr) = (list.len(), new_indptr(list.len()));
    let mut indices = Vec::new();
    for &node in list.iter() {
        indices.extend_from_slice(samples_of(node));
        indptr.push(edge_count(indices.len()));
    }
    compactor.compact(&mut indices, list);
    new_block(num_dst, list.len(), indptr, indices)
}

/// Like [`assemble`], with `columns` in the block.
///
/// # Panics
/// If `compactor` belongs to another list, or a sample lacks one of `columns`.
pub fn assemble_edges<'a>(
    list: &mut Vec<u32>,
    mut samples_of: impl FnMut(u32) -> Edges<'a>,
    columns: Columns,
    compactor: &mut Compactor,
) -> Block {
    let mut values = EdgeValues::new(columns);
    let samples_of = |node| {
        let edges = samples_of(node);
        values.extend(edges.columns);
        edges.sources
    };
    let block = assemble(list, samples_of, compactor);
    values.into_block(block)
}

/// Like [`assemble_edges`], with a separate tree for each seed: `list[i]` belongs to the tree of seed `trees[i]`, and
/// `trees` grows with `list`. A node is listed once per tree that contains it.
///
/// # Panics
/// If `listed` belongs to another list, or a sample lacks one of `columns`.
pub fn assemble_trees<'a>(
    list: &mut Vec<u32>,
    trees: &mut Vec<u32>,
    mut samples_of: impl FnMut(u32) -> Edges<'a>,
    columns: Columns,
    listed: &mut TreeCompactor,
) -> Block {
    let (num_dst, mut indptr) = (list.len(), new_indptr(list.len()));
    let (mut indices, mut values) = (Vec::new(), EdgeValues::new(columns));
    for i in 0..num_dst {
        let edges = samples_of(list[i]);
        values.extend(edges.columns);
        indices.extend(edges.sources.iter().map(|&source| listed.position(trees[i], source, list, trees)));
        indptr.push(edge_count(indices.len()));
    }
    values.into_block(new_block(num_dst, list.len(), indptr, indices))
}

/// Samples of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Edges<'a> {
    /// Sources, as global ids.
    pub sources: &'a [u32],
    /// The requested columns.
    pub columns: EdgeSlices<'a>,
}

/// The owners' replies to one hop's requests, read node by node.
///
/// An owner receives its nodes in list order. It may reply in several pieces, in that order.
///
/// ```
/// use gnnflow_kernels::compact::Compactor;
/// use gnnflow_kernels::sample::{Replies, assemble};
///
/// let owner = |node: u32| usize::from(node >= 10); // two owners
/// let mut list = vec![3, 12, 4];
/// let mut compactor = Compactor::new(20);
/// compactor.start(&list);
/// let mut replies = Replies::new(2, 20);
/// replies.push(0, &[2, 1], &[12, 5, 3])?; // of 3: 12 and 5; of 4: 3
/// replies.push(1, &[1], &[5])?; // of 12: 5
/// let block = assemble(&mut list, |node| replies.next(owner(node)), &mut compactor);
/// assert_eq!(list, [3, 12, 4, 5]);
/// assert_eq!(block.indices(), [1, 3, 3, 0]);
/// # Ok::<(), gnnflow_kernels::sample::BadReply>(())
/// ```
#[derive(Clone, Debug)]
pub struct Replies<'a> {
    nodes: u64,
    /// Per owner: the pieces of its reply.
    pieces: Vec<Vec<Piece<'a>>>,
    /// Per owner: the index of the piece being read.
    current: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Piece<'a> {
    counts: &'a [u32],
    neighbors: &'a [u32],
    columns: EdgeSlices<'a>,
}

impl<'a> Replies<'a> {
    /// Creates empty replies of `owners` partitions of a graph of `nodes` nodes.
    pub fn new(owners: usize, nodes: u64) -> Self {
        Self { nodes, pieces: vec![Vec::new(); owners], current: vec![0; owners] }
    }

    /// Adds the next piece of `owner`'s reply: the sample `counts` of the requested nodes, and their `neighbors`.
    ///
    /// # Errors
    /// If counts and neighbors do not match, or a neighbor is not a node of the graph: replies of other workers are not
    /// trusted.
    ///
    /// # Panics
    /// If there is no such owner.
    pub fn push(&mut self, owner: usize, counts: &'a [u32], neighbors: &'a [u32]) -> Result<(), BadReply> {
        self.push_edges(owner, counts, Edges { sources: neighbors, columns: EdgeSlices::default() })
    }

    /// Like [`Replies::push`], with columns; each column must have one entry per source.
    ///
    /// # Errors
    /// As [`Replies::push`].
    ///
    /// # Panics
    /// If there is no such owner.
    pub fn push_edges(&mut self, owner: usize, counts: &'a [u32], edges: Edges<'a>) -> Result<(), BadReply> {
        let Edges { sources: neighbors, columns } = edges;
        let counted = counts.iter().map(|&count| u64::from(count)).sum();
        let sent = neighbors.len() as u64;
        if counted != sent {
            return Err(BadReply::Count { owner, counted, sent });
        }
        match neighbors.iter().copied().max() {
            Some(node) if u64::from(node) >= self.nodes => {
                return Err(BadReply::Node { owner, node, nodes: self.nodes });
            }
            _ => self.pieces[owner].push(Piece { counts, neighbors, columns }),
        }
        Ok(())
    }

    /// Returns the number of nodes of `owner` whose samples are unread.
    pub fn remaining(&self, owner: usize) -> usize {
        self.pieces[owner][self.current[owner]..].iter().map(|piece| piece.counts.len()).sum()
    }

    /// Returns the samples of the next node of `owner`.
    ///
    /// # Panics
    /// If none is left; compare [`Replies::remaining`] with the number of requested nodes before.
    #[inline]
    pub fn next(&mut self, owner: usize) -> &'a [u32] {
        let (piece, count) = self.advance(owner);
        let (samples, neighbors) = piece.neighbors.split_at(count);
        piece.neighbors = neighbors;
        samples
    }

    /// Like [`Replies::next`], with the columns.
    ///
    /// # Panics
    /// As [`Replies::next`].
    #[inline]
    pub fn next_edges(&mut self, owner: usize) -> Edges<'a> {
        let (piece, count) = self.advance(owner);
        let (sources, neighbors) = piece.neighbors.split_at(count);
        piece.neighbors = neighbors;
        Edges { sources, columns: piece.columns.split_off(count) }
    }

    /// Returns the piece with the next node of `owner`, and that node's count.
    #[inline]
    fn advance(&mut self, owner: usize) -> (&mut Piece<'a>, usize) {
        while self.pieces[owner][self.current[owner]].counts.is_empty() {
            self.current[owner] += 1;
        }
        let piece = &mut self.pieces[owner][self.current[owner]];
        let count = piece.counts[0];
        piece.counts = &piece.counts[1..];
        (piece, count as usize)
    }
}
