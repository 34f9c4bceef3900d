//! A set of nodes: one bit per node.

/// A set of node indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::prepare) struct NodeSet {
    words: Vec<u64>,
    nodes: u32,
}

impl NodeSet {
    /// Creates the set of nodes `0..nodes`.
    pub(in crate::prepare) fn all(nodes: usize) -> Self {
        let mut words = vec![u64::MAX; nodes.div_ceil(64)];
        if let Some(last) = words.last_mut().filter(|_| !nodes.is_multiple_of(64)) {
            *last = (1 << (nodes % 64)) - 1;
        }
        Self { words, nodes: nodes as u32 }
    }

    /// Creates a set from the bytes of [`NodeSet::bytes`]; `None` if their number is wrong.
    pub(in crate::prepare) fn from_bytes(bytes: &[u8], nodes: usize) -> Option<Self> {
        let words: Vec<u64> = crate::group::collect(bytes);
        (words.len() == nodes.div_ceil(64)).then_some(Self { words, nodes: nodes as u32 })
    }

    pub(in crate::prepare) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    #[inline]
    pub(in crate::prepare) fn contains(&self, node: u32) -> bool {
        self.words[node as usize / 64] >> (node % 64) & 1 == 1
    }

    /// Removes a node. Returns whether it was in the set.
    #[inline]
    pub(in crate::prepare) fn remove(&mut self, node: u32) -> bool {
        let present = self.contains(node);
        self.words[node as usize / 64] &= !(1 << (node % 64));
        present
    }

    /// Removes the nodes for which `keep` is false.
    pub(in crate::prepare) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for node in 0..self.nodes {
            if self.contains(node) && !keep(node) {
                self.remove(node);
            }
        }
    }

    /// Number of nodes in the set.
    pub(in crate::prepare) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the nodes in the set, ascending.
    pub(in crate::prepare) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes).filter(|&node| self.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_equals_filtered_range() {
        for nodes in [0, 1, 63, 64, 65, 200] {
            let mut set = NodeSet::all(nodes);
            assert_eq!(set.count(), nodes as u64);
            set.retain(|node| node % 3 != 0);
            let expected: Vec<u32> = (0..nodes as u32).filter(|node| node % 3 != 0).collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), expected);
            if nodes > 1 {
                assert!(set.remove(1) && !set.remove(1));
            }
            assert_eq!(NodeSet::from_bytes(set.bytes(), nodes), Some(set.clone()));
            assert_eq!(NodeSet::from_bytes(&[0; 8], nodes).is_some(), (1..=64).contains(&nodes));
        }
    }
}
