//! A block: the bipartite message-flow graph of one hop.
//!
//! `num_dst` destination nodes gather from `num_src` source nodes along edges stored by destination (CSC of the
//! sampled graph: `indptr`/`indices`). **The destinations are the first sources**: source `i < num_dst` is
//! destination `i`. Blocks of one batch share one node list, each block's sources being a prefix of the next deeper
//! block's; ids inside a block are positions in that list.

/// One hop of a sampled (or whole) neighborhood.
///
/// ```
/// use gnnflow_kernels::block::Block;
///
/// // Two destinations (0, 1); node 0 hears from 1 and 2, node 1 from 2.
/// let block = Block::new(2, 3, vec![0, 2, 3], vec![1, 2, 2]);
/// assert_eq!(block.num_edges(), 3);
/// assert_eq!(block.neighbors(0), [1, 2]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    num_dst: u32,
    num_src: u32,
    indptr: Vec<u32>,
    indices: Vec<u32>,
    edge_types: Option<Vec<u16>>,
    edge_weights: Option<Vec<f32>>,
    edge_ids: Option<Vec<u64>>,
}

impl Block {
    /// A block of `num_dst` destinations among `num_src` sources.
    ///
    /// # Panics
    /// Unless `indptr` has `num_dst + 1` never-decreasing entries from 0 to `indices.len()`, every index is below
    /// `num_src`, and `num_dst <= num_src`: the kernels rely on it.
    pub fn new(num_dst: u32, num_src: u32, indptr: Vec<u32>, indices: Vec<u32>) -> Self {
        assert!(num_dst <= num_src, "{num_dst} destinations among {num_src} sources");
        assert_eq!(indptr.len(), num_dst as usize + 1, "indptr has one entry per destination and one more");
        assert!(indptr[0] == 0 && indptr.is_sorted(), "indptr starts at 0 and never decreases");
        assert_eq!(indptr[num_dst as usize] as usize, indices.len(), "indptr ends at the number of edges");
        assert!(indices.iter().fold(0, |max, &i| max.max(i)) < num_src.max(1), "an index is past the last source");
        Self { num_dst, num_src, indptr, indices, edge_types: None, edge_weights: None, edge_ids: None }
    }

    /// A block whose destinations are no sources, and may be more of them: for sums inside an operation.
    pub fn rectangular(num_dst: u32, num_src: u32, indptr: Vec<u32>, indices: Vec<u32>) -> Self {
        Self { num_dst, num_src, indptr, indices, edge_types: None, edge_weights: None, edge_ids: None }
    }

    /// The block with a type for each edge, in the edges' order: its relation, from 0.
    ///
    /// ```
    /// use gnnflow_kernels::block::Block;
    ///
    /// let block = Block::new(1, 3, vec![0, 2], vec![1, 2]).with_edge_types(vec![0, 4]);
    /// assert_eq!(block.edge_types(), Some(&[0, 4][..]));
    /// ```
    ///
    /// # Panics
    /// Unless there are as many types as edges.
    #[must_use]
    pub fn with_edge_types(mut self, types: Vec<u16>) -> Self {
        assert_eq!(types.len(), self.indices.len(), "one type for each edge");
        self.edge_types = Some(types);
        self
    }

    /// The block with a weight for each edge, in the edges' order.
    ///
    /// # Panics
    /// Unless there are as many weights as edges.
    #[must_use]
    pub fn with_edge_weights(mut self, weights: Vec<f32>) -> Self {
        assert_eq!(weights.len(), self.indices.len(), "one weight for each edge");
        self.edge_weights = Some(weights);
        self
    }

    /// The block with an id for each edge, in the edges' order: its position among the in-edges of the partition that
    /// owns the destination, which is its row in that partition's edge columns.
    ///
    /// # Panics
    /// Unless there are as many ids as edges.
    #[must_use]
    pub fn with_edge_ids(mut self, ids: Vec<u64>) -> Self {
        assert_eq!(ids.len(), self.indices.len(), "one id for each edge");
        self.edge_ids = Some(ids);
        self
    }

    /// Number of destination nodes: the rows that a layer puts out.
    pub fn num_dst(&self) -> usize {
        self.num_dst as usize
    }

    /// Number of source nodes: the rows that a layer takes in.
    pub fn num_src(&self) -> usize {
        self.num_src as usize
    }

    /// Number of edges.
    pub fn num_edges(&self) -> usize {
        self.indices.len()
    }

    /// Edges of destination `i` are `indptr[i]..indptr[i + 1]`.
    pub fn indptr(&self) -> &[u32] {
        &self.indptr
    }

    /// The source of each edge, as a position in the batch's node list.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Sources of destination `dst`.
    pub fn neighbors(&self, dst: usize) -> &[u32] {
        &self.indices[self.indptr[dst] as usize..self.indptr[dst + 1] as usize]
    }

    /// The type of each edge; `None` where the graph has none, or nobody asked for them.
    pub fn edge_types(&self) -> Option<&[u16]> {
        self.edge_types.as_deref()
    }
    /// The weight of each edge; `None` where nobody asked for them.
    pub fn edge_weights(&self) -> Option<&[f32]> {
        self.edge_weights.as_deref()
    }

    /// The id of each edge (see [`Block::with_edge_ids`]); `None` where nobody asked for them.
    pub fn edge_ids(&self) -> Option<&[u64]> {
        self.edge_ids.as_deref()
    }
}
