//! The refresh of stored results: inference of what has changed.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

use gnnflow_data::Dataset;
use gnnflow_nn::Model;

use super::Run;
use crate::collectives::{Driver, Json};
use crate::error::Error;
use crate::evaluate::changed_predictions::{ChangedNodes, IdsOf, RemovedResults};
use crate::neighborhood;
use crate::neighborhood::reached::{Changed, Reach};
use crate::outputs;
use crate::outputs::summary::Refreshed;
use crate::outputs::table::TableForm;
use crate::refresh::Refresh;
use crate::refresh::layer_store::{Stored, Unusable, WritingRows};

/// If more than this share of all rows may change, a pass over all nodes is computed: it reads rows in order.
pub(super) const MOST_ROWS: f64 = 0.7;

const OTHER_ROWS: &str =
    "the stored rows are incomplete, or another build of gnnflow or another device has computed them";
const DAMAGED_ROWS: &str = "stored rows differ from their checksums: they are damaged";
const OTHER_DATASET: &str =
    "the stored rows are of a dataset that is no earlier version of this one, or a copy of its files is damaged";

/// What a refresh has computed.
pub(super) struct Outcome {
    pub(super) refreshed: Refreshed,
    /// `None` if there were no earlier results.
    pub(super) changes: Option<ChangedNodes>,
    pub(super) writing: WritingRows,
}

/// Returns `None` if a file of the snapshot `earlier` is damaged.
fn undamaged<T>(earlier: &Dataset, result: Result<T, gnnflow_data::Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(gnnflow_data::Error::Damaged { path, .. }) if path.starts_with(earlier.dir()) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Run<'_> {
    /// Computes the rows that have changed since the stored ones were computed, or all rows if there are none.
    pub(super) fn refresh(&mut self, driver: &mut Driver<'_>, refresh: &Refresh) -> Result<Outcome, Error> {
        let begin = Instant::now();
        let store = &refresh.store;
        let (earlier, mut because) = match store.stored(driver, &mut self.collectives)? {
            Stored::Rows(dataset) => (Some(dataset), None),
            Stored::Nothing(Unusable::Missing) => (None, Some("no rows are stored yet".to_owned())),
            Stored::Nothing(Unusable::Other) => (None, Some(OTHER_ROWS.to_owned())),
        };
        let removed = earlier.as_ref().map(|earlier| self.removed_since(driver, earlier)).transpose()?.flatten();
        let busy = driver.runtime.busy("comparing the dataset with the stored one");
        let changed = match (&earlier, &removed) {
            (Some(earlier), Some(removed)) => self.changed_since(earlier, removed)?,
            _ => None,
        };
        drop(busy);
        // 1 if the stored dataset is not an earlier version of this one.
        let others =
            self.collectives.all_reduce_counts(driver, &[u64::from(earlier.is_some() && changed.is_none())])?[0];
        let mut reached: Option<Vec<Vec<u32>>> = None;
        match (changed, &earlier) {
            (Some(changed), Some(_)) if others == 0 => {
                let reach = Reach {
                    graph: &*self.context.graph,
                    undirected: self.job.dataset.manifest().undirected,
                    stages: &refresh.stages,
                    degrees: refresh.degrees,
                };
                reached = Some(reach.of(driver, &mut self.collectives, changed)?);
            }
            (_, Some(_)) => because = Some(OTHER_DATASET.to_owned()),
            _ => {}
        }
        let (own, layers) = (reached.as_ref(), neighborhood::layers(&refresh.stages));
        let rows = own.map_or(0, |nodes| layers.iter().map(|&stage| nodes[stage].len() as u64).sum());
        let rows = self.collectives.all_reduce_counts(driver, &[rows])?[0];
        let all_rows = self.job.dataset.manifest().nodes * layers.len() as u64;
        if rows as f64 > MOST_ROWS * all_rows as f64 {
            because = Some(format!("the changes reach {:.0} % of all rows", 100.0 * rows as f64 / all_rows as f64));
        }
        if let Some(because) = because.as_ref().filter(|_| self.context.worker == 0) {
            driver.runtime.say(&format!("note: all rows are computed: {because}"));
        }
        store.begin(driver, &mut self.collectives)?;
        let mut changes = match (&reached, &earlier, &removed) {
            (Some(nodes), Some(earlier), Some(removed)) => {
                let _busy = driver.runtime.busy("copying the results before the change");
                let sizes = earlier.manifest().partitions.iter().zip(removed);
                let before: Vec<u64> = sizes.map(|(part, removed)| part.nodes - removed.len() as u64).collect();
                let again = self.added_again(driver, earlier, (removed, &before))?;
                let (removed, damaged) = self.remove_rows(refresh, earlier, removed, &again)?;
                let last = nodes.last().cloned().unwrap_or_default();
                let changes = ChangedNodes::copy(&self.context, (last, before), self.inference.results(), removed)?;
                let damaged = damaged | self.inference.results().damaged()?;
                (!self.any_worker(driver, damaged)?).then_some(changes)
            }
            _ => None,
        };
        let mut damaged = reached.is_some() && changes.is_none();
        if let Some(nodes) = reached.as_ref().filter(|_| because.is_none() && !damaged) {
            self.inference.pass_over(driver, nodes)?;
            let own = self.read_damaged_rows()? || self.any_result_damaged()?;
            damaged = self.any_worker(driver, own)?;
            if damaged {
                // Some of the earlier results are unknown.
                changes = None;
            }
        }
        if damaged {
            because = Some(DAMAGED_ROWS.to_owned());
            if self.context.worker == 0 {
                driver.runtime.warn(&format!("all rows are computed: {DAMAGED_ROWS}"));
            }
        }
        if reached.is_none() || because.is_some() {
            self.infer_all(driver)?;
        }
        let writing = store.start_writing(self.inference.stores())?;
        let own_changed = changes.as_ref().map_or(0, |changes| changes.len() as u64);
        let changed_nodes = self.collectives.all_reduce_counts(driver, &[own_changed])?[0];
        let refreshed = Refreshed {
            changed_nodes: changes.is_some().then_some(changed_nodes),
            computed_rows: if because.is_some() { all_rows } else { rows },
            all_rows,
            because,
            seconds: begin.elapsed().as_secs_f64(),
        };
        Ok(Outcome { refreshed, changes, writing })
    }

    /// Whether this worker has read a stored row that is damaged.
    pub(super) fn read_damaged_rows(&self) -> Result<bool, Error> {
        self.inference.stores().iter().try_fold(false, |damaged, rows| Ok(damaged | rows.damaged()?))
    }

    /// Whether one of the stored rows that are written to tables or evaluated is damaged, at this worker. Most of them were not read for the changes.
    fn any_result_damaged(&self) -> Result<bool, Error> {
        let infer = self.job.config.infer.clone().unwrap_or_default();
        let results = infer.predictions || self.job.labels().is_some();
        Ok(results && self.inference.results().any_damaged()?
            || infer.embeddings && self.inference.embeddings().any_damaged()?)
    }

    /// Whether it is true at any worker. A collective operation.
    pub(super) fn any_worker(&mut self, driver: &mut Driver<'_>, own: bool) -> Result<bool, Error> {
        Ok(self.collectives.all_reduce_counts(driver, &[u64::from(own)])?[0] > 0)
    }

    /// Returns the partitions of this worker.
    fn own_parts(&self) -> Range<usize> {
        self.context.placement.parts_of(self.context.worker)
    }

    /// Returns the nodes that an earlier dataset has and this one has not, by partition and local id there. `None` if it is not an earlier version of this
    /// one. A collective operation.
    fn removed_since(&mut self, driver: &mut Driver<'_>, earlier: &Dataset) -> Result<Option<Vec<Vec<u32>>>, Error> {
        let own = |part: usize| undamaged(earlier, self.job.dataset.removed_since(earlier, part)).map(Option::flatten);
        let own: Vec<Option<Vec<u32>>> = self.own_parts().map(own).collect::<Result<_, Error>>()?;
        let mut own = own.into_iter();
        let all = self.collectives.all_gather_parts(driver, |_| own.next().flatten())?;
        Ok(all.into_iter().collect())
    }

    /// Returns the own nodes that differ from an earlier dataset. `None` if one of its files is damaged.
    fn changed_since(&self, earlier: &Dataset, removed: &[Vec<u32>]) -> Result<Option<Changed>, Error> {
        let mut changed = Changed::default();
        for part in self.own_parts() {
            let differences = undamaged(earlier, self.job.dataset.differences(earlier, part, removed))?;
            let Some(differences) = differences else { return Ok(None) };
            let first = self.context.graph.range(part).start;
            changed.features.extend(differences.features.into_iter().map(|local| first + local));
            changed.edges.extend(differences.edges.into_iter().map(|local| first + local));
        }
        Ok(Some(changed))
    }

    /// Returns the ids, as text, of removed nodes that the dataset has again, as new nodes of any partition. `before` are the numbers of nodes that are not
    /// new, by partition. A collective operation.
    fn added_again(
        &mut self,
        driver: &mut Driver<'_>,
        earlier: &Dataset,
        (removed, before): (&[Vec<u32>], &[u64]),
    ) -> Result<HashSet<String>, Error> {
        let now = &self.job.dataset.manifest().partitions;
        let has_new = now.iter().zip(before).any(|(part, before)| part.nodes > *before);
        if !has_new || removed.iter().all(Vec::is_empty) {
            return Ok(HashSet::new());
        }
        let mut own = Vec::new();
        for part in self.own_parts().filter(|part| !removed[*part].is_empty()) {
            let nodes = earlier.nodes(part)?;
            own.extend(removed[part].iter().map(|&local| nodes.ids().display(local as usize).to_string()));
        }
        let removed = self.collectives.all_gather(driver, &Json(own))?;
        let removed: HashSet<String> = removed.into_iter().flat_map(|Json(ids)| ids).collect();
        let mut again = Vec::new();
        for part in self.own_parts() {
            let nodes = self.job.dataset.nodes(part)?;
            let new = (before[part] as usize..nodes.len()).map(|local| nodes.ids().display(local).to_string());
            again.extend(new.filter(|id| removed.contains(id)));
        }
        let again = self.collectives.all_gather(driver, &Json(again))?;
        Ok(again.into_iter().flat_map(|Json(ids)| ids).collect())
    }

    /// Removes the rows of removed nodes. Returns their results, without nodes that are added `again`: these are listed as new nodes. Also returns whether
    /// one of these rows is damaged.
    fn remove_rows(
        &self,
        refresh: &Refresh,
        earlier: &Dataset,
        removed: &[Vec<u32>],
        again: &HashSet<String>,
    ) -> Result<(Vec<RemovedResults>, bool), Error> {
        let mut all: Vec<RemovedResults> = removed.iter().map(|_| RemovedResults::default()).collect();
        let mut any_damaged = false;
        for part in self.own_parts().filter(|part| !removed[*part].is_empty()) {
            let nodes = earlier.nodes(part)?;
            let (rows, damaged) = refresh.store.remove_rows(&refresh.stages, part, (nodes.len(), &removed[part]))?;
            any_damaged |= damaged;
            let (mut locals, mut listed) = (Vec::new(), Vec::new());
            for (&local, row) in removed[part].iter().zip(rows.chunks_exact(rows.len() / removed[part].len())) {
                if !again.contains(&nodes.ids().display(local as usize).to_string()) {
                    locals.push(local as usize);
                    listed.extend_from_slice(row);
                }
            }
            all[part] = RemovedResults { ids: Some(outputs::ids_of(nodes.ids(), locals.into_iter())), rows: listed };
        }
        Ok((all, any_damaged))
    }

    /// Writes `changes.parquet` to `path`, in this form. Returns the number of its rows, and at the first worker their SHA-256.
    pub(super) fn write_changes(
        &mut self,
        driver: &mut Driver<'_>,
        changes: &ChangedNodes,
        ids: IdsOf<'_>,
        table: (PathBuf, TableForm),
    ) -> Result<(u64, String), Error> {
        let embeds = self.job.config.infer.as_ref().is_some_and(|infer| infer.embeddings);
        let carried = self.compute_thread.call(|compute| compute.with_model(Model::carried_dim));
        let embeddings = self.inference.embeddings();
        let embeddings = embeds.then(|| (&**embeddings, embeddings.width() - carried));
        let of_task = (&**self.task.nodes()?, &**self.inference.results());
        changes.write(driver, (self.job, &self.context), &mut self.collectives, of_task, (embeddings, ids), table)
    }
}
