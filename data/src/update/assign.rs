//! Assigns new nodes to partitions, in the order of their rows, by the rule of a streaming partitioner (LDG).

use std::ops::Range;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::partition_book::PartitionBook;

use super::ids::NONE;
use super::removed_nodes::RemovedNodes;
use super::touched::Added;

/// Size limit of a partition over the mean size, if the dataset's settings have none (β of SDT-GNN).
pub(super) const BALANCE: f64 = 1.05;

/// Partitions and global ids of all nodes after an update.
pub(super) struct Placement {
    pub(super) book: PartitionBook,
    old: PartitionBook,
    /// The removed nodes of the dataset, by old global ids.
    removed: RemovedNodes,
    /// Change of the global ids of each partition's nodes, modulo 2³², without that by removed nodes before a node.
    shift: Vec<u32>,
    /// Global ids of the new nodes; [`NONE`] for removed ones.
    new: Vec<u32>,
    /// The new nodes of each partition, ascending, without removed ones.
    pub(super) members: Vec<Vec<u32>>,
}

/// Assigns each of `count` new nodes of a dataset to a partition, see [`choose`]. `added` are the new edges.
pub(super) fn choose_partitions(dataset: &Dataset, count: usize, added: &[Added], balance: f64) -> Result<Vec<usize>> {
    let book = dataset.book();
    let sizes = (0..book.parts()).map(|part| book.range(part).end - book.range(part).start).collect();
    let added = added.iter().map(|edge| (edge.dst, edge.src));
    let numbers = book.nodes() as u32..book.nodes() as u32 + count as u32;
    choose(sizes, |node| book.owner(u64::from(node)), numbers, added, balance)
}

/// Assigns each of the new nodes to the partition with most of its neighbors, among those below `balance` times the mean size. Ties go to the
/// smaller partition, then to the first. (LDG with capacities: Stanton and Kliot, KDD 2012.)
///
/// `sizes` are those of the partitions before. The new nodes have the numbers `new`; those with smaller numbers are in the partition `owner`. `added` are
/// the new edges, as pairs of nodes.
pub(super) fn choose(
    mut sizes: Vec<u64>,
    owner: impl Fn(u32) -> Option<usize>,
    new: Range<u32>,
    added: impl Iterator<Item = (u32, u32)>,
    balance: f64,
) -> Result<Vec<usize>> {
    let (parts, before) = (sizes.len(), new.start);
    let total = sizes.iter().sum::<u64>() + new.len() as u64;
    let capacity = (balance.max(1.0) * total as f64 / parts as f64).ceil() as u64;

    // Both ends of an edge are neighbors, whatever its direction.
    let ends = added.flat_map(|(dst, src)| [(dst, src), (src, dst)]);
    let mut neighbors: Vec<(u32, u32)> = ends.filter(|(node, other)| *node >= before && node != other).collect();
    neighbors.sort_unstable();
    let mut rest = &neighbors[..];
    let mut owners: Vec<usize> = Vec::with_capacity(new.len());
    let mut votes = vec![0u64; parts];
    for node in new {
        let length = rest.iter().take_while(|(from, _)| *from == node).count();
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
    /// Places new nodes in the partitions `owners`, after the nodes that these have. `removed` are removed nodes, ascending: those of the dataset,
    /// followed by new ones.
    pub(super) fn new(dataset: &Dataset, owners: &[usize], removed: &[u32]) -> Result<Self> {
        let old = dataset.book().clone();
        let (of_dataset, of_new) = removed.split_at(removed.partition_point(|&node| u64::from(node) < old.nodes()));
        let is_removed = |new: u32| of_new.binary_search(&(old.nodes() as u32 + new)).is_ok();
        let mut members = vec![Vec::new(); old.parts()];
        for (node, &owner) in (0..).zip(owners).filter(|(node, _)| !is_removed(*node)) {
            members[owner].push(node);
        }
        let removed = RemovedNodes::new(of_dataset.to_vec(), old.nodes());
        let mut offsets = vec![0];
        for (part, members) in members.iter().enumerate() {
            let kept = old.range(part).end - old.range(part).start - removed.of(old.range(part)).len() as u64;
            offsets.push(offsets[part] + kept + members.len() as u64);
        }
        let shift = |part: usize| {
            let start = old.range(part).start as u32;
            (offsets[part] as u32).wrapping_sub(start).wrapping_add(removed.before(start))
        };
        let shift = (0..old.parts()).map(shift).collect();
        let mut new = vec![NONE; owners.len()];
        for (part, members) in members.iter().enumerate() {
            let first = offsets[part + 1] - members.len() as u64;
            for (node, &member) in (first..).zip(members) {
                new[member as usize] = node as u32;
            }
        }
        let book = PartitionBook::new(offsets).ok_or_else(|| Error::Bug("offsets decrease".into()))?;
        Ok(Self { book, old, removed, shift, new, members })
    }

    /// Returns whether global ids of old nodes change.
    pub(super) fn shifts(&self) -> bool {
        !self.removed.is_empty() || self.shift.iter().any(|&by| by > 0)
    }

    /// Returns the removed nodes of a partition, by old local ids, ascending.
    pub(super) fn removed_of(&self, part: usize) -> Vec<usize> {
        let range = self.old.range(part);
        self.removed.of(range.clone()).iter().map(|&node| (u64::from(node) - range.start) as usize).collect()
    }

    /// Returns the new global id of a node, from its number during the update. For a removed node of the dataset, it is that of the next node.
    #[inline]
    pub(super) fn global(&self, node: u32) -> u32 {
        match self.old.owner(u64::from(node)) {
            Some(part) => node.wrapping_add(self.shift[part]).wrapping_sub(self.removed.before(node)),
            None => self.new[(u64::from(node) - self.old.nodes()) as usize],
        }
    }
}
