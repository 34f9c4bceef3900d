//! A graph in memory that batches of changes change, with the features and ids of its new nodes.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, LargeStringArray};
use gnnflow_data::dataset::{IdColumn, IdKind};
use gnnflow_data::update::{ChangeReader, Changes, NewIds};
use gnnflow_dataflow::graph::live_graph::LiveGraph;
use gnnflow_dataflow::storage::RowStore;
use timely::worker::Worker;

use crate::collectives::{Collectives, Driver, FirstError};
use crate::context::feature_store::FeatureStore;
use crate::context::live_features::LiveFeatures;
use crate::context::{ModelInputs, WorkerContext};
use crate::error::Error;
use crate::evaluate::changed_predictions::RemovedResults;
use crate::neighborhood::reached::{Changed, Reach};
use crate::runtime::job::Job;

/// Least room for new nodes in a partition.
const ROOM: u64 = 1 << 12;

/// A graph in memory that batches change.
pub(super) struct Live {
    pub(super) graph: Rc<LiveGraph>,
    pub(super) features: Arc<LiveFeatures>,
    pub(super) reader: ChangeReader,
    /// By partition, the users' ids of its new nodes.
    pub(super) ids: Rc<RefCell<Vec<NewIds>>>,
    /// Batches in memory.
    pub(super) batches: u32,
    /// Bytes of all rows computed so far, at most.
    pub(super) row_bytes: u64,
}

impl Live {
    /// Opens the graph of a dataset for changes, and makes it the graph of `context`.
    pub(super) fn open(
        worker: &mut Worker,
        job: &Job,
        context: &mut WorkerContext,
        (needs, room): (ModelInputs, usize),
    ) -> Result<Self, Error> {
        if needs.edge_features {
            let message =
                "the model reads features of edges, which are not followed; use `gnnflow update` and `gnnflow refresh`";
            return Err(Error::Usage(message.into()));
        }
        let manifest = job.dataset.manifest();
        let parts = manifest.parts() as u64;
        let free = (u64::from(u32::MAX) - 1).saturating_sub(manifest.nodes) / parts;
        let room = (manifest.nodes / parts / 4).max(ROOM).max(room as u64).min(free);
        let columns = &manifest.edge_columns;
        let has_columns = columns.weight || columns.edge_type.is_some() || columns.time || columns.features > 0;
        let graph = Rc::new(LiveGraph::build(worker, &context.graph, room as u32, needs.degrees, has_columns));
        let features = Arc::new(LiveFeatures::new(Arc::clone(&context.parts), &graph));
        context.graph = Arc::clone(graph.nodes());
        (context.features.source, context.features.halo) = (Arc::clone(&features) as _, None);
        let none = match manifest.ids {
            IdKind::Int => NewIds::Int(Vec::new()),
            IdKind::Text => NewIds::Text(Vec::new()),
        };
        let reader = ChangeReader::new(&job.dataset)?;
        let ids = Rc::new(RefCell::new(vec![none; manifest.parts()]));
        Ok(Self { graph, features, reader, ids, batches: 0, row_bytes: 0 })
    }

    /// Makes the changes of edges readable, and counts the degrees of the own nodes with other in-edges.
    pub(super) fn commit(&self, driver: &mut Driver<'_>, changed: &[u32]) -> Result<(), Error> {
        let readable = self.graph.commit();
        driver.run_until(&self.graph.probe(), readable, &FirstError::default())?;
        self.graph.count_degrees(changed);
        Ok(())
    }

    /// Returns the live ids of the removed nodes of a batch, ascending.
    pub(super) fn removed(&self, changes: &Changes) -> Vec<u32> {
        let mut removed: Vec<u32> = changes.removed.iter().map(|&node| self.graph.node(node)).collect();
        removed.sort_unstable();
        removed
    }

    /// Removes the edges of `removed` nodes. Adds the own nodes that lose in-edges to `changed`, and takes removed nodes out. Returns the number of removed
    /// in-edges of own nodes. A collective operation.
    pub(super) fn remove_nodes(
        &self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        reach: Reach<'_>,
        removed: &[u32],
        Changed { features, edges }: &mut Changed,
    ) -> Result<u64, Error> {
        let own: Vec<u32> = removed.iter().copied().filter(|&node| self.graph.nodes().hosts(node)).collect();
        let readers = reach.readers(driver, collectives, &own)?;
        let (changed, count) = self.graph.remove_edges_of(removed, &readers);
        self.commit(driver, &changed)?;
        edges.extend(changed);
        edges.sort_unstable();
        edges.dedup();
        let stays = |node: &u32| removed.binary_search(node).is_err();
        edges.retain(stays);
        features.retain(stays);
        Ok(count)
    }

    /// Returns the results of own removed nodes, by partition. `before` are the numbers of nodes of partitions before the batch: nodes after these have none.
    pub(super) fn removed_results(
        &self,
        context: &WorkerContext,
        removed: &[u32],
        before: &[u64],
        results: &RowStore,
    ) -> Result<Vec<RemovedResults>, Error> {
        let mut all: Vec<RemovedResults> = before.iter().map(|_| RemovedResults::default()).collect();
        let (results, new) = (results.read()?, self.ids.borrow());
        for part in context.placement.parts_of(context.worker) {
            let range = self.graph.nodes().range(part);
            let old = range.start..range.start + before[part] as u32;
            let own: Vec<u32> = removed.iter().copied().filter(|node| old.contains(node)).collect();
            if own.is_empty() {
                continue;
            }
            let mut locals = own.iter().map(|node| (node - range.start) as usize);
            let ids = live_ids(&context.parts, &new[part], part, &mut locals);
            let rows = own.iter().flat_map(|&node| results.row(node)).copied().collect();
            all[part] = RemovedResults { ids: Some(ids), rows };
        }
        Ok(all)
    }

    /// Adds the new nodes of a batch, and changes the features of others. Returns the live ids of those of this worker, ascending.
    pub(super) fn apply_nodes(&mut self, changes: &Changes) -> Result<Vec<u32>, Error> {
        self.reader.apply(changes);
        self.features.add(&changes.partitions, &changes.features)?;
        let mut all = self.ids.borrow_mut();
        for (node, &part) in changes.partitions.iter().enumerate() {
            match (&mut all[part], &changes.ids) {
                (NewIds::Int(all), NewIds::Int(ids)) => all.push(ids[node]),
                (NewIds::Text(all), NewIds::Text(ids)) => all.push(ids[node].clone()),
                _ => return Err(Error::Bug("ids of two kinds".into())),
            }
        }
        let mut own = self.graph.add_nodes(&changes.partitions);
        let changed = changes.changed_features.iter().map(|(node, row)| (self.graph.node(*node), row));
        let changed: Vec<_> = changed.filter(|(node, _)| self.graph.nodes().hosts(*node)).collect();
        self.features.replace(&changed)?;
        own.extend(changed.iter().map(|(node, _)| node));
        own.sort_unstable();
        Ok(own)
    }
}

/// Returns the users' ids of nodes of a partition, by local ids: those of the dataset, then the new ones.
pub(super) fn live_ids(
    parts: &FeatureStore,
    new: &NewIds,
    part: usize,
    locals: &mut dyn Iterator<Item = usize>,
) -> ArrayRef {
    let old = parts.get(part).nodes.ids();
    match (old, new) {
        (IdColumn::Int(old), NewIds::Int(new)) => {
            let id = |local: usize| local.checked_sub(old.len()).map_or_else(|| old[local], |at| new[at]);
            Arc::new(Int64Array::from_iter_values(locals.map(id)))
        }
        (IdColumn::Text(old), NewIds::Text(new)) => {
            let id = |local: usize| match local.checked_sub(old.len()) {
                None => old.value(local),
                Some(at) => &new[at],
            };
            Arc::new(LargeStringArray::from_iter_values(locals.map(id)))
        }
        _ => unreachable!("ids of one kind"),
    }
}
