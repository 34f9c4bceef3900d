//! Which nodes are left: one bit a node.

/// A set of node indexes, full at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::prepare) struct Alive {
    words: Vec<u64>,
    nodes: u32,
}

impl Alive {
    /// All of so many nodes.
    pub(in crate::prepare) fn all(nodes: usize) -> Self {
        let mut words = vec![u64::MAX; nodes.div_ceil(64)];
        if let Some(last) = words.last_mut().filter(|_| !nodes.is_multiple_of(64)) {
            *last = (1 << (nodes % 64)) - 1;
        }
        Self { words, nodes: nodes as u32 }
    }

    /// From the bytes that [`Alive::bytes`] gave.
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

    /// Removes a node; whether it was there.
    #[inline]
    pub(in crate::prepare) fn remove(&mut self, node: u32) -> bool {
        let there = self.contains(node);
        self.words[node as usize / 64] &= !(1 << (node % 64));
        there
    }

    /// Keeps those of its nodes that `keep` wants.
    pub(in crate::prepare) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for node in 0..self.nodes {
            if self.contains(node) && !keep(node) {
                self.remove(node);
            }
        }
    }

    /// Number of nodes that are left.
    pub(in crate::prepare) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Those that are left, ascending.
    pub(in crate::prepare) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes).filter(|&node| self.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set() {
        for nodes in [0, 1, 63, 64, 65, 200] {
            let mut alive = Alive::all(nodes);
            assert_eq!(alive.count(), nodes as u64);
            alive.retain(|node| node % 3 != 0);
            let expected: Vec<u32> = (0..nodes as u32).filter(|node| node % 3 != 0).collect();
            assert_eq!(alive.iter().collect::<Vec<_>>(), expected);
            if nodes > 1 {
                assert!(alive.remove(1) && !alive.remove(1));
            }
            assert_eq!(Alive::from_bytes(alive.bytes(), nodes), Some(alive.clone()));
            assert_eq!(Alive::from_bytes(&[0; 8], nodes).is_some(), (1..=64).contains(&nodes));
        }
    }
}
