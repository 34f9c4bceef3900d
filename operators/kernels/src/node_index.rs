//! Positions of nodes in a sorted list of ids, such as a worker's halo.

/// A sorted list of distinct node ids, searched by leading bits.
///
/// Has one bucket per id. For evenly distributed ids, a search reads one bucket and one or two ids. Takes eight bytes
/// per id.
///
/// ```
/// use gnnflow_kernels::node_index::NodeIndex;
///
/// let index = NodeIndex::new(vec![3, 8, 1_000_000]);
/// assert_eq!([3, 8, 9, 1_000_000].map(|node| index.find(node)), [Some(0), Some(1), None, Some(2)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct NodeIndex {
    nodes: Vec<u32>,
    /// The ids whose bits above `shift` are `b` begin at `starts[b]`.
    starts: Vec<u32>,
    shift: u32,
}

impl NodeIndex {
    /// Creates the index of `nodes`.
    ///
    /// # Panics
    /// Unless `nodes` are distinct and ascending.
    pub fn new(nodes: Vec<u32>) -> Self {
        assert!(nodes.is_sorted_by(|a, b| a < b), "nodes are distinct and ascending");
        let max = nodes.last().copied().unwrap_or(0);
        let bits = (nodes.len().max(1)).ilog2();
        // At least two buckets: a shift by 32 bits would overflow.
        let shift = (u32::BITS - max.leading_zeros()).saturating_sub(bits).min(u32::BITS - 1);
        let buckets = (max >> shift) + 1;
        let mut starts = Vec::with_capacity(buckets as usize + 1);
        let mut at = 0;
        for bucket in 0..buckets {
            starts.push(at as u32);
            at += nodes[at..].iter().take_while(|&&node| node >> shift == bucket).count();
        }
        starts.push(nodes.len() as u32);
        Self { nodes, starts, shift }
    }

    /// Returns the ids in ascending order.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Returns the position of `node`.
    #[inline]
    pub fn find(&self, node: u32) -> Option<usize> {
        let bucket = (node >> self.shift) as usize;
        let (&start, &end) = (self.starts.get(bucket)?, self.starts.get(bucket + 1)?);
        let place = self.nodes[start as usize..end as usize].iter().position(|&listed| listed >= node)?;
        let place = start as usize + place;
        (self.nodes[place] == node).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use gnnflow_data::rng::{Key, Purpose};

    use super::*;

    #[test]
    fn find_equals_a_binary_search() {
        let key = Key::new(5, Purpose::GenerateNodes);
        for (count, below) in [(0, 1), (1, 1), (1, 1 << 32), (50, 60), (300, 1 << 20), (1000, 1 << 32)] {
            let mut nodes: Vec<u32> = (0..count).map(|i| key.below(i, below) as u32).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let index = NodeIndex::new(nodes.clone());
            assert!(index.starts.len() <= 2 * nodes.len() + 2, "about one bucket per id");
            let near = nodes.iter().flat_map(|&node| [node.saturating_sub(1), node, node.saturating_add(1)]);
            for node in near.chain([0, 7, u32::MAX]) {
                assert_eq!(index.find(node), nodes.binary_search(&node).ok(), "{node} of {count} below {below}");
            }
        }
    }
}
