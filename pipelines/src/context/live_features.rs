//! The features of a graph that changes: those of the dataset, of new nodes, and those that batches have replaced.

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use gnnflow_data::dataset::Features;
use gnnflow_dataflow::graph::live_graph::LiveGraph;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::storage::{Busy, RowReader, RowSource};

use super::feature_store::FeatureStore;

/// The features of a worker's nodes, by live ids.
pub(crate) struct LiveFeatures {
    store: Arc<FeatureStore>,
    nodes: Arc<LocalGraph>,
    changes: RwLock<ChangedRows>,
}

/// The rows that are not those of the dataset.
struct ChangedRows {
    /// By partition, the rows of its new nodes.
    new: Vec<Vec<u8>>,
    /// The rows of nodes of the dataset, by live id.
    replaced: HashMap<u32, Vec<u8>>,
}

impl LiveFeatures {
    pub(crate) fn new(store: Arc<FeatureStore>, graph: &LiveGraph) -> Self {
        let changes = ChangedRows { new: vec![Vec::new(); store.parts.len()], replaced: HashMap::new() };
        Self { store, nodes: Arc::clone(graph.nodes()), changes: RwLock::new(changes) }
    }

    /// Appends the rows of new nodes, which are in `partitions`.
    ///
    /// # Errors
    /// If rows are being read.
    pub(crate) fn add(&self, partitions: &[usize], rows: &[u8]) -> Result<(), Busy> {
        let new = &mut self.changes.try_write().map_err(|_| Busy::InUse)?.new;
        let bytes = self.row_bytes();
        for (&part, row) in partitions.iter().zip(rows.chunks_exact(bytes.max(1))) {
            if self.store.parts[part].is_some() {
                new[part].extend_from_slice(row);
            }
        }
        Ok(())
    }

    /// Replaces the rows of own nodes, given by live id.
    ///
    /// # Errors
    /// If rows are being read.
    pub(crate) fn replace(&self, rows: &[(u32, &Vec<u8>)]) -> Result<(), Busy> {
        let ChangedRows { new, replaced } = &mut *self.changes.try_write().map_err(|_| Busy::InUse)?;
        for &(node, row) in rows {
            match self.find(node) {
                (_, Place::Dataset(_)) => {
                    replaced.insert(node, row.clone());
                }
                (part, Place::New(at)) => new[part][at * row.len()..(at + 1) * row.len()].copy_from_slice(row),
            }
        }
        Ok(())
    }

    /// Returns the memory of other rows for all own nodes of the dataset.
    pub(crate) fn most_replaced_bytes(&self) -> u64 {
        let own = self.store.parts.iter().zip(self.store.offsets.windows(2)).filter(|(part, _)| part.is_some());
        self.bytes_of(own.map(|(_, ends)| (ends[1] - ends[0]) as usize).sum())
    }

    /// Returns the memory of `rows` changed rows, at most.
    pub(crate) fn bytes_of(&self, rows: usize) -> u64 {
        (rows * (self.row_bytes() + size_of::<(u32, Vec<u8>)>())) as u64
    }

    /// Returns the partition of a node, and the place of its row there.
    fn find(&self, node: u32) -> (usize, Place) {
        let part = self.nodes.partition_of(node);
        let local = (node - self.nodes.range(part).start) as usize;
        let of_dataset = (self.store.offsets[part + 1] - self.store.offsets[part]) as usize;
        (part, local.checked_sub(of_dataset).map_or(Place::Dataset(local), Place::New))
    }
}

/// The row of a node among those of a partition.
enum Place {
    /// Of the dataset.
    Dataset(usize),
    /// Of the new nodes.
    New(usize),
}

impl RowSource for LiveFeatures {
    fn row_bytes(&self) -> usize {
        self.store.row_bytes()
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(Reader { all: self, changes: self.changes.try_read().map_err(|_| Busy::Written)? }))
    }
}

struct Reader<'a> {
    all: &'a LiveFeatures,
    changes: RwLockReadGuard<'a, ChangedRows>,
}

impl RowReader for Reader<'_> {
    fn row(&self, node: u32) -> &[u8] {
        let ChangedRows { new, replaced } = &*self.changes;
        let (part, place) = self.all.find(node);
        let features: &Features = self.all.store.features[part].as_ref().expect("this worker hosts the partition");
        let bytes = features.row_bytes();
        match place {
            Place::Dataset(local) => match replaced.get(&node) {
                Some(row) => row,
                None => &features.bytes()[local * bytes..(local + 1) * bytes],
            },
            Place::New(at) => &new[part][at * bytes..(at + 1) * bytes],
        }
    }
}
