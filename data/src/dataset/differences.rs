//! Which nodes of a partition differ from those of an earlier version of the dataset.

use arrow::array::Array as _;
use rayon::prelude::*;

use super::{Dataset, FileKind, IdColumn, Manifest, Topology};
use crate::error::Result;
use crate::partition_book::PartitionBook;

/// The nodes of a partition that differ from those of an earlier version of the dataset, by local ids, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Nodes with other features, and new nodes.
    pub features: Vec<u32>,
    /// Nodes with other in-edges: other sources, weights, types or features of edges; and new nodes.
    pub edges: Vec<u32>,
}

impl Dataset {
    /// Compares partition `part` with the same partition of an earlier version. `None`: the earlier dataset is no version of this one, because
    /// columns differ, or its nodes are not the first nodes of this one's partitions.
    ///
    /// Files with equal checksums are not read. A hard link to a file of this dataset is not verified again.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) for a file that does not match its manifest.
    ///
    /// # Panics
    /// When there is no such partition.
    pub fn differences(&self, earlier: &Self, part: usize) -> Result<Option<Differences>> {
        let [own, old] = [self, earlier].map(Self::manifest);
        let grows = || own.partitions.iter().zip(&old.partitions).all(|(own, old)| old.nodes <= own.nodes);
        if own.parts() != old.parts() || columns(own) != columns(old) || !grows() {
            return Ok(None);
        }
        earlier.inherit(self);
        let files = [own, old].map(|manifest| &manifest.partitions[part]);
        let equal = |kind: FileKind| kind.info(files[0]) == kind.info(files[1]);
        if !equal(FileKind::Nodes) && !begins_with(self.nodes(part)?.ids(), earlier.nodes(part)?.ids()) {
            return Ok(None);
        }
        let [nodes, before] = files.map(|files| files.nodes as u32);
        let mut differences = Differences::default();
        if !equal(FileKind::Features) {
            let [now, then] = [self, earlier].map(|dataset| dataset.features(part));
            let (now, then) = (now?, then?);
            let rows =
                now.bytes().par_chunks_exact(now.row_bytes()).zip(then.bytes().par_chunks_exact(now.row_bytes()));
            let changed = rows.enumerate().filter(|(_, (now, then))| now != then);
            differences.features = changed.map(|(local, _)| local as u32).collect();
        }
        // The ids of all nodes after a new node are larger than before.
        let moved = own.offsets != old.offsets;
        if moved || !equal(FileKind::Topology) {
            let [now, then] = [self, earlier].map(|dataset| dataset.topology(part));
            let edges = Edges { now: now?, then: then?, moved: moved.then(|| Moved::new(self.book(), earlier.book())) };
            let locals = (0..before).into_par_iter();
            differences.edges = locals.filter(|&local| !edges.are_equal(local as usize)).collect();
        }
        differences.features.extend(before..nodes);
        differences.edges.extend(before..nodes);
        Ok(Some(differences))
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

fn begins_with(ids: IdColumn<'_>, first: IdColumn<'_>) -> bool {
    match (ids, first) {
        (IdColumn::Int(ids), IdColumn::Int(first)) => ids.starts_with(first),
        (IdColumn::Text(ids), IdColumn::Text(first)) => {
            first.len() <= ids.len() && (0..first.len()).into_par_iter().all(|row| ids.value(row) == first.value(row))
        }
        _ => false,
    }
}

/// The edges of a partition, now and then.
struct Edges {
    now: Topology,
    then: Topology,
    /// `None` if all nodes have the ids that they had.
    moved: Option<Moved>,
}

impl Edges {
    fn are_equal(&self, local: usize) -> bool {
        let [now, then] = [&self.now, &self.then].map(|topology| topology.edge_range(local));
        let sources = (&self.now.indices()[now.clone()], &self.then.indices()[then.clone()]);
        let equal_sources = match &self.moved {
            None => sources.0 == sources.1,
            Some(moved) => {
                now.len() == then.len() && sources.0.iter().zip(sources.1).all(|(now, &then)| *now == moved.id(then))
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
struct Moved {
    earlier: PartitionBook,
    /// By partition, how much its nodes' ids have grown.
    by: Vec<u32>,
}

impl Moved {
    fn new(now: &PartitionBook, earlier: &PartitionBook) -> Self {
        let by = now.offsets().iter().zip(earlier.offsets()).map(|(now, then)| (now - then) as u32).collect();
        Self { earlier: earlier.clone(), by }
    }

    fn id(&self, earlier: u32) -> u32 {
        // A node of the earlier dataset has an owner; its topology was checked.
        earlier + self.earlier.owner(u64::from(earlier)).map_or(0, |part| self.by[part])
    }
}
