//! The features of a graph that changes: those of the dataset, and of new nodes.

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
    /// By partition, the rows of its new nodes.
    new: RwLock<Vec<Vec<u8>>>,
}

impl LiveFeatures {
    pub(crate) fn new(store: Arc<FeatureStore>, graph: &LiveGraph) -> Self {
        let new = RwLock::new(vec![Vec::new(); store.parts.len()]);
        Self { store, nodes: Arc::clone(graph.nodes()), new }
    }

    /// Appends the rows of new nodes, which are in `partitions`.
    ///
    /// # Errors
    /// If rows are being read.
    pub(crate) fn add(&self, partitions: &[usize], rows: &[u8]) -> Result<(), Busy> {
        let mut new = self.new.try_write().map_err(|_| Busy::InUse)?;
        let bytes = self.row_bytes();
        for (&part, row) in partitions.iter().zip(rows.chunks_exact(bytes.max(1))) {
            if self.store.parts[part].is_some() {
                new[part].extend_from_slice(row);
            }
        }
        Ok(())
    }
}

impl RowSource for LiveFeatures {
    fn row_bytes(&self) -> usize {
        self.store.row_bytes()
    }

    fn open(&self) -> Result<Box<dyn RowReader + '_>, Busy> {
        Ok(Box::new(Reader { all: self, new: self.new.try_read().map_err(|_| Busy::Written)? }))
    }
}

struct Reader<'a> {
    all: &'a LiveFeatures,
    new: RwLockReadGuard<'a, Vec<Vec<u8>>>,
}

impl RowReader for Reader<'_> {
    fn row(&self, node: u32) -> &[u8] {
        let LiveFeatures { store, nodes, .. } = self.all;
        let part = nodes.partition_of(node);
        let local = (node - nodes.range(part).start) as usize;
        let features: &Features = store.features[part].as_ref().expect("this worker hosts the partition");
        let (rows, bytes) = ((store.offsets[part + 1] - store.offsets[part]) as usize, features.row_bytes());
        match local.checked_sub(rows) {
            None => &features.bytes()[local * bytes..(local + 1) * bytes],
            Some(new) => &self.new[part][new * bytes..(new + 1) * bytes],
        }
    }
}
