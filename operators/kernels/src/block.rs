//! A block: the bipartite message-flow graph of one hop.
//!
//! `num_dst` destination nodes aggregate `num_src` source nodes along edges stored by destination (CSC of the sampled
//! graph: `indptr`/`indices`). **The destinations are the first sources**: source `i < num_dst` is destination `i`. All
//! blocks of a batch share one node list; each block's sources are a prefix of those of the next deeper block. Ids in a
//! block are positions in that list.

/// One hop of a sampled (or complete) neighborhood.
///
/// ```
/// use gnnflow_kernels::block::Block;
///
/// // Two destinations (0, 1); node 0 has in-edges from 1 and 2, node 1 from 2.
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
    /// Creates a block of `num_dst` destinations among `num_src` sources.
    ///
    /// # Panics
    /// Unless `indptr` has `num_dst + 1` nondecreasing entries from 0 to `indices.len()`, every index is below
    /// `num_src`, and `num_dst <= num_src`: the kernels rely on it.
    pub fn new(num_dst: u32, num_src: u32, indptr: Vec<u32>, indices: Vec<u32>) -> Self {
        assert!(num_dst <= num_src, "{num_dst} destinations among {num_src} sources");
        assert_eq!(indptr.len(), num_dst as usize + 1, "indptr has one entry per destination and one more");
        assert!(indptr[0] == 0 && indptr.is_sorted(), "indptr starts at 0 and is nondecreasing");
        assert_eq!(indptr[num_dst as usize] as usize, indices.len(), "indptr ends at the number of edges");
        assert!(indices.iter().fold(0, |max, &i| max.max(i)) < num_src.max(1), "an index is past the last source");
        Self { num_dst, num_src, indptr, indices, edge_types: None, edge_weights: None, edge_ids: None }
    }

    /// Creates a block whose destinations are not sources: for sums inside an operation.
    pub fn rectangular(num_dst: u32, num_src: u32, indptr: Vec<u32>, indices: Vec<u32>) -> Self {
        Self { num_dst, num_src, indptr, indices, edge_types: None, edge_weights: None, edge_ids: None }
    }

    /// Adds a type (relation) per edge, from 0, in the edges' order.
    ///
    /// ```
    /// use gnnflow_kernels::block::Block;
    ///
    /// let block = Block::new(1, 3, vec![0, 2], vec![1, 2]).with_edge_types(vec![0, 4]);
    /// assert_eq!(block.edge_types(), Some(&[0, 4][..]));
    /// ```
    ///
    /// # Panics
    /// If the number of types is not the number of edges.
    #[must_use]
    pub fn with_edge_types(mut self, types: Vec<u16>) -> Self {
        assert_eq!(types.len(), self.indices.len(), "one type per edge");
        self.edge_types = Some(types);
        self
    }

    /// Adds a weight per edge, in the edges' order.
    ///
    /// # Panics
    /// If the number of weights is not the number of edges.
    #[must_use]
    pub fn with_edge_weights(mut self, weights: Vec<f32>) -> Self {
        assert_eq!(weights.len(), self.indices.len(), "one weight per edge");
        self.edge_weights = Some(weights);
        self
    }

    /// Adds an id per edge, in the edges' order: its row in the edge columns of the partition that owns the
    /// destination.
    ///
    /// # Panics
    /// If the number of ids is not the number of edges.
    #[must_use]
    pub fn with_edge_ids(mut self, ids: Vec<u64>) -> Self {
        assert_eq!(ids.len(), self.indices.len(), "one id per edge");
        self.edge_ids = Some(ids);
        self
    }

    /// Returns the number of destination nodes: the rows of a layer's output.
    pub fn num_dst(&self) -> usize {
        self.num_dst as usize
    }

    /// Returns the number of source nodes: the rows of a layer's input.
    pub fn num_src(&self) -> usize {
        self.num_src as usize
    }

    /// Returns the number of edges.
    pub fn num_edges(&self) -> usize {
        self.indices.len()
    }

    /// Returns the offsets: edges of destination `i` are `indptr[i]..indptr[i + 1]`.
    pub fn indptr(&self) -> &[u32] {
        &self.indptr
    }

    /// Returns the source of each edge, as a position in the batch's node list.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Returns the sources of destination `dst`.
    pub fn neighbors(&self, dst: usize) -> &[u32] {
        &self.indices[self.indptr[dst] as usize..self.indptr[dst + 1] as usize]
    }

    /// Returns the type of each edge; `None` if the graph has none, or they were not requested.
    pub fn edge_types(&self) -> Option<&[u16]> {
        self.edge_types.as_deref()
    }
    /// Returns the weight of each edge; `None` if not requested.
    pub fn edge_weights(&self) -> Option<&[f32]> {
        self.edge_weights.as_deref()
    }

    /// Returns the id of each edge (see [`Block::with_edge_ids`]); `None` if not requested.
    pub fn edge_ids(&self) -> Option<&[u64]> {
        self.edge_ids.as_deref()
    }
}
