//! The partition book: it maps nodes to the partitions that own them.
//!
//! Nodes are relabeled so that partition `p` owns one contiguous range of global ids. Therefore the book has `parts + 1`
//! numbers for any size of graph (DistDGL, section III-B).

/// Ranges of global node ids, one per partition.
///
/// ```
/// use gnnflow_data::PartitionBook;
///
/// let book = PartitionBook::new(vec![0, 3, 3, 10]).unwrap();
/// assert_eq!(book.parts(), 3);
/// assert_eq!(book.owner(2), Some(0));
/// assert_eq!(book.owner(3), Some(2)); // partition 1 is empty
/// assert_eq!(book.owner(10), None);
/// assert_eq!(book.range(2), 3..10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionBook {
    /// `offsets[p]..offsets[p + 1]` are the global ids of partition `p`. Offsets never decrease.
    offsets: Vec<u64>,
}

impl PartitionBook {
    /// Creates a book from `parts + 1` offsets. Returns `None` unless they start at 0 and never decrease.
    pub fn new(offsets: Vec<u64>) -> Option<Self> {
        let valid = offsets.len() > 1 && offsets[0] == 0 && offsets.is_sorted();
        valid.then_some(Self { offsets })
    }

    /// Splits `nodes` nodes into `parts` partitions whose sizes differ by one at most.
    ///
    /// ```
    /// assert_eq!(gnnflow_data::PartitionBook::even(10, 3).offsets(), [0, 3, 6, 10]);
    /// ```
    ///
    /// # Panics
    /// When `parts` is 0.
    pub fn even(nodes: u64, parts: usize) -> Self {
        assert!(parts > 0, "a graph has at least one partition");
        let start = |part: usize| (u128::from(nodes) * part as u128 / parts as u128) as u64;
        Self { offsets: (0..=parts).map(start).collect() }
    }

    /// Number of partitions.
    pub fn parts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of nodes in all partitions together.
    pub fn nodes(&self) -> u64 {
        self.offsets[self.offsets.len() - 1]
    }

    /// The `parts + 1` offsets.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The global ids of partition `part`.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn range(&self, part: usize) -> std::ops::Range<u64> {
        self.offsets[part]..self.offsets[part + 1]
    }

    /// Returns the partition that owns global id `node`, or `None` beyond the last node. Time: O(log parts).
    #[inline]
    pub fn owner(&self, node: u64) -> Option<usize> {
        let owner = self.offsets.partition_point(|&start| start <= node);
        (owner < self.offsets.len()).then(|| owner - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation: a linear search over all ranges.
    fn owner_by_search(offsets: &[u64], node: u64) -> Option<usize> {
        (0..offsets.len() - 1).find(|&p| (offsets[p]..offsets[p + 1]).contains(&node))
    }

    #[test]
    fn owner_equals_linear_search() {
        for offsets in [vec![0, 1], vec![0, 0, 5], vec![0, 5, 5, 5, 9], vec![0, 2, 4, 6, 8]] {
            let book = PartitionBook::new(offsets.clone()).unwrap();
            for node in 0..12 {
                assert_eq!(book.owner(node), owner_by_search(&offsets, node), "{offsets:?} at {node}");
            }
        }
    }

    #[test]
    fn new_refuses_offsets_that_do_not_start_at_0_or_decrease() {
        for offsets in [vec![], vec![0], vec![1, 2], vec![0, 5, 4]] {
            assert_eq!(PartitionBook::new(offsets), None);
        }
    }
}
