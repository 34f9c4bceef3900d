//! Which nodes of a partition differ from those of an earlier version of the dataset.

use rayon::prelude::*;

use super::kept::Kept;
use super::{Dataset, FileKind, IdColumn, Manifest, Topology};
use crate::error::Result;
use crate::partition_book::PartitionBook;

/// The nodes of a partition that differ from those of an earlier version of the dataset, by local ids of now, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Nodes with other features, and new nodes.
    pub features: Vec<u32>,
    /// Nodes with other in-edges: other sources, weights, types or features of edges; and new nodes.
    pub edges: Vec<u32>,
}

impl Dataset {
    /// Returns the nodes of partition `part` that an earlier version has and this dataset no longer has, by local ids there, ascending. `None`: the
    /// earlier dataset is no version of this one, because it was prepared from other files or settings, its updates are not the first ones of this dataset, or types of
    /// edges differ.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) for a file that does not match its manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn removed_since(&self, earlier: &Self, part: usize) -> Result<Option<Vec<u32>>> {
        let [own, old] = [self, earlier].map(Self::manifest);
        let is_version = (own.parts(), &own.inputs, &own.settings) == (old.parts(), &old.inputs, &old.settings)
            && own.updates.starts_with(&old.updates);
        if !is_version || columns(own) != columns(old) {
            return Ok(None);
        }
        let [now, then] = [own, old].map(|manifest| FileKind::Nodes.info(&manifest.partitions[part]));
        if now == then {
            return Ok(Some(Vec::new()));
        }
        earlier.inherit(self);
        Ok(Some(missing(earlier.nodes(part)?.ids(), self.nodes(part)?.ids())))
    }

    /// Compares partition `part` with the same partition of an earlier version. `removed` are the results of [`Dataset::removed_since`] for all
    /// partitions. A node that was removed and added again counts as new, or as the node that it was.
    ///
    /// Files with equal checksums are not read. A hard link to a file of this dataset is not verified again.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) for a file that does not match its manifest.
    ///
    /// # Panics
    /// When there is no such partition, or `removed` has other numbers of partitions or nodes.
    pub fn differences(&self, earlier: &Self, part: usize, removed: &[Vec<u32>]) -> Result<Differences> {
        let [own, old] = [self, earlier].map(Self::manifest);
        earlier.inherit(self);
        let files = [own, old].map(|manifest| &manifest.partitions[part]);
        let equal = |kind: FileKind| kind.info(files[0]) == kind.info(files[1]);
        let [nodes, before] = files.map(|files| files.nodes as u32);
        let kept = Kept::without(removed[part].iter().copied());
        let before = before - removed[part].len() as u32;
        let mut differences = Differences::default();
        // Rows of a file that is equal may be those of other nodes.
        if own.features.dim > 0 && (!removed[part].is_empty() || !equal(FileKind::Features)) {
            let [now, then] = [self, earlier].map(|dataset| dataset.features(part));
            let (now, then) = (now?, then?);
            let size = now.row_bytes();
            let row = |local: u32| local as usize * size..(local as usize + 1) * size;
            let differs = |&local: &u32| now.bytes()[row(local)] != then.bytes()[row(kept.before_removal(local))];
            differences.features = (0..before).into_par_iter().filter(differs).collect();
        }
        // The ids of all nodes after a new or removed node have changed.
        let moved = own.offsets != old.offsets || removed.iter().any(|nodes| !nodes.is_empty());
        if moved || !equal(FileKind::Topology) {
            let [now, then] = [self, earlier].map(|dataset| dataset.topology(part));
            let moved = moved.then(|| Moved { now: self.book(), earlier: earlier.book(), removed });
            let edges = Edges { now: now?, then: then?, moved };
            let differs = |&local: &u32| !edges.are_equal(local as usize, kept.before_removal(local) as usize);
            differences.edges = (0..before).into_par_iter().filter(differs).collect();
        }
        differences.features.extend(before..nodes);
        differences.edges.extend(before..nodes);
        Ok(differences)
    }
}

/// Returns the columns that two versions of a dataset have in common.
fn columns(manifest: &Manifest) -> impl PartialEq {
    let edges = &manifest.edge_columns;
    (
        manifest.ids,
        manifest.undirected,
        manifest.features.clone(),
        edges.weight,
        edges.edge_type.clone(),
        edges.features,
    )
}

/// Returns the rows of `then` whose ids are missing in `now`. Kept nodes have the order that they had, and precede new ones.
fn missing(then: IdColumn<'_>, now: IdColumn<'_>) -> Vec<u32> {
    fn find<T: PartialEq>(then: impl Iterator<Item = T>, now: impl Iterator<Item = T>) -> Vec<u32> {
        let mut now = now.peekable();
        (0..).zip(then).filter_map(|(row, id)| now.next_if_eq(&id).is_none().then_some(row)).collect()
    }
    match (then, now) {
        (IdColumn::Int(then), IdColumn::Int(now)) => find(then.iter(), now.iter()),
        (IdColumn::Text(then), IdColumn::Text(now)) => find(then.iter(), now.iter()),
        // Both datasets have ids of one kind.
        _ => Vec::new(),
    }
}

/// The edges of a partition, now and then.
struct Edges<'a> {
    now: Topology,
    then: Topology,
    /// `None` if all nodes have the ids that they had.
    moved: Option<Moved<'a>>,
}

impl Edges<'_> {
    /// Compares a node, by its local id, with an earlier one.
    fn are_equal(&self, local: usize, earlier: usize) -> bool {
        let (now, then) = (self.now.edge_range(local), self.then.edge_range(earlier));
        let sources = (&self.now.indices()[now.clone()], &self.then.indices()[then.clone()]);
        let equal_sources = match &self.moved {
            None => sources.0 == sources.1,
            Some(moved) => {
                let same = |(now, then): (&u32, &u32)| moved.id(*then) == Some(*now);
                now.len() == then.len() && sources.0.iter().zip(sources.1).all(same)
            }
        };
        let equal_types = || match (self.now.edge_types(), self.then.edge_types()) {
            (Some(now_types), Some(then_types)) => now_types[now.clone()] == then_types[then.clone()],
            _ => true,
        };
        equal_sources
            && equal_types()
            && equal_values(self.now.weights(), self.then.weights(), 1, (&now, &then))
            && match (self.now.edge_features(), self.then.edge_features()) {
                (Some((values, width)), Some((others, _))) => {
                    equal_values(Some(values), Some(others), width, (&now, &then))
                }
                _ => true,
            }
    }
}

/// Compares the bits of the values of edges.
fn equal_values(
    now: Option<&[f32]>,
    then: Option<&[f32]>,
    width: usize,
    (own, old): (&std::ops::Range<usize>, &std::ops::Range<usize>),
) -> bool {
    let (Some(now), Some(then)) = (now, then) else { return true };
    let of = |edges: &std::ops::Range<usize>| edges.start * width..edges.end * width;
    let (now, then): (&[u32], &[u32]) = (bytemuck::cast_slice(now), bytemuck::cast_slice(then));
    own.len() == old.len() && now[of(own)] == then[of(old)]
}

/// Maps earlier global ids to those of now.
struct Moved<'a> {
    now: &'a PartitionBook,
    earlier: &'a PartitionBook,
    /// By partition, the local ids of removed nodes.
    removed: &'a [Vec<u32>],
}

impl Moved<'_> {
    /// Returns `None` for a removed node.
    fn id(&self, earlier: u32) -> Option<u32> {
        let part = self.earlier.owner(u64::from(earlier))?;
        let local = earlier - self.earlier.range(part).start as u32;
        let before = self.removed[part].binary_search(&local).err()?;
        Some(self.now.range(part).start as u32 + local - before as u32)
    }
}
