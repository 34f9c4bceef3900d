//! Assigns new nodes to partitions, in the order of their rows, by the rule of a streaming partitioner (LDG).

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

use super::touched::Added;

/// Size limit of a partition over the mean size, if the dataset's settings have none (β of SDT-GNN).
pub(super) const BALANCE: f64 = 1.05;

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

/// Assigns each of `count` new nodes of a dataset to a partition, see [`choose`]. `added` are the new edges.
pub(super) fn choose_partitions(dataset: &Dataset, count: usize, added: &[Added], balance: f64) -> Result<Vec<usize>> {
    let book = dataset.book();
    let sizes = (0..book.parts()).map(|part| book.range(part).end - book.range(part).start).collect();
    let added = added.iter().map(|edge| (edge.dst, edge.src));
    choose(sizes, |node| book.owner(u64::from(node)), count, added, balance)
}

/// Assigns each of `count` new nodes to the partition with most of its neighbors, among those below `balance` times the mean size. Ties go to the
/// smaller partition, then to the first. (LDG with capacities: Stanton and Kliot, KDD 2012.)
///
/// `sizes` are those of the partitions before, whose nodes are numbered before the new ones and are in the partition `owner`. `added` are the new
/// edges, as pairs of nodes.
pub(super) fn choose(
    mut sizes: Vec<u64>,
    owner: impl Fn(u32) -> Option<usize>,
    count: usize,
    added: impl Iterator<Item = (u32, u32)>,
    balance: f64,
) -> Result<Vec<usize>> {
    let (parts, before) = (sizes.len(), sizes.iter().sum::<u64>() as u32);
    let total = u64::from(before) + count as u64;
    let capacity = (balance.max(1.0) * total as f64 / parts as f64).ceil() as u64;

    // Both ends of an edge are neighbors, whatever its direction.
    let ends = added.flat_map(|(dst, src)| [(dst, src), (src, dst)]);
    let mut neighbors: Vec<(u32, u32)> = ends.filter(|(node, other)| *node >= before && node != other).collect();
    neighbors.sort_unstable();
    let mut rest = &neighbors[..];
    let mut owners: Vec<usize> = Vec::with_capacity(count);
    let mut votes = vec![0u64; parts];
    for node in 0..count {
        let length = rest.iter().take_while(|(from, _)| *from == before + node as u32).count();
        let (own, after) = rest.split_at(length);
        rest = after;
        votes.fill(0);
        for &(_, other) in own {
            let owner = match other.checked_sub(before) {
                None => owner(other),
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
    }
    Ok(owners)
}

impl Placement {
    /// Places new nodes in the partitions `owners`, after the nodes that these have.
    pub(super) fn new(dataset: &Dataset, owners: &[usize]) -> Result<Self> {
        let old = dataset.book().clone();
        let mut members = vec![Vec::new(); old.parts()];
        for (node, &owner) in (0..).zip(owners) {
            members[owner].push(node);
        }
        let mut offsets = vec![0];
        for (part, members) in members.iter().enumerate() {
            let size = old.range(part).end - old.range(part).start + members.len() as u64;
            offsets.push(offsets[part] + size);
        }
        let shift = (0..old.parts()).map(|part| (offsets[part] - old.range(part).start) as u32).collect();
        let mut new = vec![0; owners.len()];
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
