//! Assigns new nodes to partitions, in the order of their rows, by the rule of a streaming partitioner (LDG).

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

use super::touched::Added;

/// Partitions and global ids of all nodes after an update.
pub(super) struct Placement {
    pub(super) book: PartitionBook,
    old: PartitionBook,
    /// Growth of the global ids of each partition's nodes.
    shift: Vec<u32>,
    /// Global ids of the new nodes.
    new: Vec<u32>,
    /// The new nodes of each partition, ascending.
    pub(super) members: Vec<Vec<u32>>,
}

impl Placement {
    /// Assigns each new node to the partition with most of its neighbors, among those below `balance` times the mean
    /// size. Ties go to the smaller partition, then to the first. (LDG with capacities: Stanton and Kliot, KDD 2012.)
    pub(super) fn new(dataset: &Dataset, count: usize, added: &[Added], balance: f64) -> Result<Self> {
        let old = dataset.book().clone();
        let (parts, before) = (old.parts(), old.nodes() as u32);
        let mut sizes: Vec<u64> = (0..parts).map(|part| old.range(part).end - old.range(part).start).collect();
        let total = u64::from(before) + count as u64;
        let capacity = (balance.max(1.0) * total as f64 / parts as f64).ceil() as u64;

        // Both ends of an edge are neighbors, whatever its direction.
        let ends = added.iter().flat_map(|edge| [(edge.dst, edge.src), (edge.src, edge.dst)]);
        let mut neighbors: Vec<(u32, u32)> = ends.filter(|(node, other)| *node >= before && node != other).collect();
        neighbors.sort_unstable();
        let mut rest = &neighbors[..];
        let mut owners: Vec<usize> = Vec::with_capacity(count);
        let mut members = vec![Vec::new(); parts];
        let mut votes = vec![0u64; parts];
        for node in 0..count {
            let length = rest.iter().take_while(|(from, _)| *from == before + node as u32).count();
            let (own, after) = rest.split_at(length);
            rest = after;
            votes.fill(0);
            for &(_, other) in own {
                let owner = match other.checked_sub(before) {
                    None => old.owner(u64::from(other)),
                    // A later new node has no partition yet.
                    Some(other) => owners.get(other as usize).copied(),
                };
                if let Some(owner) = owner {
                    votes[owner] += 1;
                }
            }
            let best = (0..parts)
                .filter(|&part| sizes[part] < capacity)
                .min_by_key(|&part| (u64::MAX - votes[part], sizes[part]))
                .ok_or_else(|| Error::Bug("every partition is full".into()))?;
            sizes[best] += 1;
            owners.push(best);
            members[best].push(node as u32);
        }

        let mut offsets = vec![0];
        for size in &sizes {
            offsets.push(offsets[offsets.len() - 1] + size);
        }
        let shift = (0..parts).map(|part| (offsets[part] - old.range(part).start) as u32).collect();
        let mut new = vec![0; count];
        for (part, members) in members.iter().enumerate() {
            let first = offsets[part + 1] - members.len() as u64;
            for (node, &member) in (first..).zip(members) {
                new[member as usize] = node as u32;
            }
        }
        let book = PartitionBook::new(offsets).ok_or_else(|| Error::Bug("offsets decrease".into()))?;
        Ok(Self { book, old, shift, new, members })
    }

    /// Returns whether global ids of old nodes change.
    pub(super) fn shifts(&self) -> bool {
        self.shift.iter().any(|&by| by > 0)
    }

    /// Returns the new global id of a node, from its number during the update.
    #[inline]
    pub(super) fn global(&self, node: u32) -> u32 {
        match self.old.owner(u64::from(node)) {
            Some(part) => node + self.shift[part],
            None => self.new[(u64::from(node) - self.old.nodes()) as usize],
        }
    }
}
