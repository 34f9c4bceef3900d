//! Columns of sampled edges besides their sources.

use super::Neighbors;
use crate::block::Block;

/// The edge columns that a hop returns; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// [`Block::edge_types`].
    pub types: bool,
    /// [`Block::edge_weights`].
    pub weights: bool,
    /// [`Block::edge_ids`].
    pub ids: bool,
}

impl Columns {
    /// Returns whether no column is requested.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the number of 32-bit words that the columns of `edges` edges take in a message.
    pub fn words(self, edges: usize) -> usize {
        let types = if self.types { edges.div_ceil(2) } else { 0 };
        types + edges * (usize::from(self.weights) + 2 * usize::from(self.ids))
    }
}

/// Columns of some edges, in the edges' order; `None` for a column that is not requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeValues {
    /// Types.
    pub types: Option<Vec<u16>>,
    /// Weights.
    pub weights: Option<Vec<f32>>,
    /// Positions in the edge columns of the partition that owns the edge's destination.
    pub ids: Option<Vec<u64>>,
}

impl EdgeValues {
    /// Creates the requested columns, without edges.
    pub fn new(columns: Columns) -> Self {
        Self {
            types: columns.types.then(Vec::new),
            weights: columns.weights.then(Vec::new),
            ids: columns.ids.then(Vec::new),
        }
    }

    /// Borrows the columns.
    pub fn view(&self) -> EdgeSlices<'_> {
        EdgeSlices { types: self.types.as_deref(), weights: self.weights.as_deref(), ids: self.ids.as_deref() }
    }

    /// Appends the columns of further edges, which must have the same columns.
    pub fn extend(&mut self, edges: EdgeSlices<'_>) {
        fn extend<T: Copy>(column: &mut Option<Vec<T>>, more: Option<&[T]>) {
            column.iter_mut().zip(more).for_each(|(column, more)| column.extend_from_slice(more));
        }
        extend(&mut self.types, edges.types);
        extend(&mut self.weights, edges.weights);
        extend(&mut self.ids, edges.ids);
    }

    /// Adds these columns to the block.
    ///
    /// # Panics
    /// If a column does not have one entry per edge of the block.
    pub(crate) fn into_block(self, block: Block) -> Block {
        let block = self.types.into_iter().fold(block, Block::with_edge_types);
        let block = self.weights.into_iter().fold(block, Block::with_edge_weights);
        self.ids.into_iter().fold(block, Block::with_edge_ids)
    }

    /// Serializes the columns: two types per word, weights as their bits, ids with the low word first.
    pub fn write(&self, words: &mut Vec<u32>) {
        for pair in self.types.iter().flat_map(|types| types.chunks(2)) {
            words.push(u32::from(pair[0]) | u32::from(*pair.get(1).unwrap_or(&0)) << 16);
        }
        words.extend(self.weights.iter().flatten().map(|weight| weight.to_bits()));
        words.extend(self.ids.iter().flatten().flat_map(|&id| [id as u32, (id >> 32) as u32]));
    }

    /// Appends the columns of `edges` edges from the words of [`EdgeValues::write`].
    ///
    /// # Panics
    /// If the number of words is not [`Columns::words`].
    pub fn read(&mut self, edges: usize, mut words: &[u32]) {
        let mut take = |count: usize| words.split_off(..count).expect("one word per value");
        if let Some(types) = &mut self.types {
            let pairs = take(edges.div_ceil(2)).iter().flat_map(|&pair| [pair as u16, (pair >> 16) as u16]);
            types.extend(pairs.take(edges));
        }
        if let Some(weights) = &mut self.weights {
            weights.extend(take(edges).iter().map(|&bits| f32::from_bits(bits)));
        }
        if let Some(ids) = &mut self.ids {
            let halves = take(2 * edges).chunks_exact(2);
            ids.extend(halves.map(|half| u64::from(half[0]) | u64::from(half[1]) << 32));
        }
    }
}

/// Borrowed columns of some edges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EdgeSlices<'a> {
    /// Types.
    pub types: Option<&'a [u16]>,
    /// Weights.
    pub weights: Option<&'a [f32]>,
    /// Positions in the edge columns of the partition that owns the edge's destination.
    pub ids: Option<&'a [u64]>,
}

impl<'a> EdgeSlices<'a> {
    /// Splits off the first `edges` edges.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(super) fn split_off(&mut self, edges: usize) -> Self {
        fn split_off<'a, T>(column: &mut Option<&'a [T]>, edges: usize) -> Option<&'a [T]> {
            let (first, rest) = (*column)?.split_at(edges);
            *column = Some(rest);
            Some(first)
        }
        Self {
            types: split_off(&mut self.types, edges),
            weights: split_off(&mut self.weights, edges),
            ids: split_off(&mut self.ids, edges),
        }
    }
}

/// Collects columns of the chosen edges; `()` collects nothing, at no cost.
pub(super) trait Collect {
    /// Returns whether columns are collected.
    fn is_active(&self) -> bool;
    /// Collects the columns of the edges at `positions` in the row of `node`, in order.
    fn collect<N: Neighbors>(&mut self, topology: &N, node: u32, positions: impl Iterator<Item = usize> + Clone);
    /// As `collect`, with `weights` in place of the topology's.
    fn collect_weighted<N: Neighbors>(&mut self, topology: &N, node: u32, positions: &[u32], weights: &[f32]);
}

impl Collect for () {
    fn is_active(&self) -> bool {
        false
    }
    #[inline(always)]
    fn collect<N: Neighbors>(&mut self, _topology: &N, _node: u32, _positions: impl Iterator<Item = usize> + Clone) {}
    #[inline(always)]
    fn collect_weighted<N: Neighbors>(&mut self, _topology: &N, _node: u32, _positions: &[u32], _weights: &[f32]) {}
}

impl Collect for EdgeValues {
    fn is_active(&self) -> bool {
        true
    }
    #[inline]
    fn collect<N: Neighbors>(&mut self, topology: &N, node: u32, positions: impl Iterator<Item = usize> + Clone) {
        if let Some(types) = &mut self.types {
            let row = topology.edge_types(node).expect("the topology has edge types");
            types.extend(positions.clone().map(|at| row[at]));
        }
        if let Some(weights) = &mut self.weights {
            let row = topology.edge_weights(node).expect("the topology has edge weights");
            weights.extend(positions.clone().map(|at| row[at]));
        }
        if let Some(ids) = &mut self.ids {
            ids.extend(positions.map(|at| topology.edge_id(node, at)));
        }
    }

    fn collect_weighted<N: Neighbors>(&mut self, topology: &N, node: u32, positions: &[u32], weights: &[f32]) {
        let own = self.weights.take();
        self.collect(topology, node, positions.iter().map(|&at| at as usize));
        self.weights = own;
        self.weights.iter_mut().for_each(|own| own.extend_from_slice(weights));
    }
}
