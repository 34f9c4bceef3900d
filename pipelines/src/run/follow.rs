//! The results of batches of changes, one batch after the other.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytemuck::{Pod, Zeroable};
use gnnflow_data::Dataset;
use gnnflow_data::fs::remove;
use gnnflow_data::update::{Batch, ChangeReader, Missing};
use gnnflow_dataflow::graph::live_graph::Applied;
use gnnflow_nn::model::Stage;

use super::Run;
use super::live::{Live, live_ids};
use crate::collectives::{self, Driver, Json};
use crate::config;
use crate::context::machine::memory;
use crate::error::Error;
use crate::evaluate::changed_predictions::ChangedNodes;
use crate::follow::follower::{Command, Follower, new_changes, pending, refused};
use crate::follow::state::{BatchResults, SCHEMA};
use crate::model_file::FittingModel;
use crate::neighborhood::reached::{Changed, Reach};
use crate::outputs::run_folder::CHANGES;
use crate::outputs::summary::Summary;
use crate::outputs::table::TableForm;
use crate::refresh::layer_store::Stored;
use crate::runtime::job::{Feed, InNeighbors, Job, Scope, Work};
use crate::runtime::stage::Stage as RunStage;

/// Bytes of a page. A changed row takes at least one.
const PAGE: u64 = 4096;
/// The share of the machine's memory that changed rows of layers may take, in all processes.
const MEMORY_SHARE: u64 = 16;

/// Why a graph in memory is left.
enum Left {
    /// All batches are applied and stored.
    AtEnd,
    /// Its changes are stored in the dataset; the next batch needs this much room for new nodes in each partition.
    Stored { room: usize },
}

/// What a batch has done at one worker.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Counts {
    added: u64,
    removed: u64,
    dropped: u64,
    /// The first row that removes an edge which does not exist; `u64::MAX` for none.
    missing: u64,
    /// The first row that adds an edge which exists.
    duplicate: u64,
}

impl collectives::Value for Counts {}

impl Counts {
    fn of(applied: &Applied) -> Self {
        let [missing, duplicate] = [applied.missing, applied.duplicate].map(|row| row.map_or(u64::MAX, u64::from));
        Self { added: applied.added, removed: applied.removed, dropped: applied.dropped, missing, duplicate }
    }
}

/// Whether there is room for the nodes of a batch.
enum Room {
    Found,
    /// This much is needed in each partition.
    Wanted(usize),
}

impl Run<'_> {
    /// Follows the changes of `feed`. Returns the summary of all results at the first worker, when all batches are stored.
    pub(super) fn follow_feed(
        driver: &mut Driver<'_>,
        job: &Job,
        (model, feed): (&FittingModel, &Feed),
        (network, train): (&config::Model, &config::Train),
    ) -> Result<Option<Summary>, Error> {
        let (mut dataset, mut room) = (job.dataset.clone(), 0);
        loop {
            let live = job.with(dataset.clone(), Work::Follow { model: model.clone(), feed: feed.clone(), room });
            // What is wrong with the folder or the dataset is said before anything is computed.
            let follower = (driver.worker.index() == 0).then(|| Follower::open(&live, model, feed)).transpose()?;
            ChangeReader::new(&dataset)?;
            let scope = Scope::Changed(feed.layers.clone());
            let refresh =
                job.with(dataset.clone(), Work::Infer { model: model.clone(), scope, neighbors: InNeighbors::All });
            let summary = Run::start(driver, &refresh, network, train)?.finish(driver)?;
            // It lists the changes of all batches that the update before has stored; their results are written already.
            let changes = job.run_dir.join(CHANGES);
            if driver.worker.index() == 0 {
                remove(&changes).map_err(Error::io("remove", &changes))?;
            }
            match Run::start(driver, &live, network, train)?.follow(driver, follower, feed)? {
                Left::AtEnd => return Ok(summary),
                Left::Stored { room: wanted } => room = wanted,
            }
            dataset = Dataset::open(dataset.dir())?;
        }
    }

    /// Applies batches until they are stored in the dataset.
    fn follow(
        mut self,
        driver: &mut Driver<'_>,
        mut follower: Option<Follower<'_>>,
        feed: &Feed,
    ) -> Result<Left, Error> {
        self.check_rows(driver)?;
        driver.runtime.stage(RunStage::Following);
        // Private copies of all rows, and other features of all nodes of the dataset, never take more than this.
        let all = self.inference.stores().iter().map(|rows| rows.reserved()).sum::<u64>();
        let all = all + self.live()?.features.most_replaced_bytes();
        let all = self.collectives.all_reduce_counts(driver, &[all])?[0];
        let most = memory() / MEMORY_SHARE;
        loop {
            let full = all > most && self.live()?.row_bytes > most;
            let command = follower.as_mut().map(|follower| follower.next(driver.runtime, full)).transpose()?;
            let Json(command) = self.collectives.broadcast(driver, command.map(Json))?;
            let room = match &command {
                Command::Wait => continue,
                Command::End => return Ok(Left::AtEnd),
                Command::Store => 0,
                Command::Replay(name) | Command::Apply(name) => {
                    let publish = matches!(command, Command::Apply(_));
                    match self.apply(driver, follower.as_mut(), (name, publish), feed)? {
                        Room::Found => continue,
                        Room::Wanted(room) => room,
                    }
                }
            };
            let partitions = self.live()?.reader.partitions().to_vec();
            if let Some(follower) = &mut follower {
                let _busy = driver.runtime.busy("storing the changes in the dataset");
                follower.store(driver.runtime, partitions)?;
            }
            self.collectives.barrier(driver)?;
            return Ok(Left::Stored { room });
        }
    }

    fn live(&mut self) -> Result<&mut Live, Error> {
        self.live.as_mut().ok_or_else(|| Error::Bug("no graph is followed".into()))
    }

    /// Checks that the stored rows of layers are those of the dataset.
    fn check_rows(&mut self, driver: &mut Driver<'_>) -> Result<(), Error> {
        let Some(refresh) = &self.refresh else { return Err(Error::Bug("no rows of layers are stored".into())) };
        match refresh.store.stored(driver, &mut self.collectives)? {
            Stored::Rows(of) if of.manifest().fingerprint == self.job.dataset.manifest().fingerprint => Ok(()),
            _ => Err(Error::Bug("the stored rows of layers are of another dataset".into())),
        }
    }

    /// Applies a batch, and writes its results if `publish`. The first worker has the follower. Does nothing if there is no room for its nodes.
    fn apply(
        &mut self,
        driver: &mut Driver<'_>,
        follower: Option<&mut Follower<'_>>,
        (name, publish): (&str, bool),
        feed: &Feed,
    ) -> Result<Room, Error> {
        let begin = Instant::now();
        let busy = driver.runtime.busy("reading a batch of changes");
        let job = self.job;
        let refused = |error| refused(job, feed, name, error);
        let live = self.live.as_mut().ok_or_else(|| Error::Bug("no graph is followed".into()))?;
        let changes = live.reader.read(&Batch::in_folder(&pending(&job.run_dir, name))).map_err(refused)?;
        drop(busy);
        if !live.graph.has_room(&changes.partitions) {
            let wanted = if let Work::Follow { room, .. } = &job.work { *room } else { 0 };
            if live.batches == 0 && wanted >= changes.partitions.len() {
                let message =
                    format!("{name}: a graph has at most 2^32 - 2 nodes, with room for new ones in each partition");
                return Err(Error::Input(message));
            }
            return Ok(Room::Wanted(changes.partitions.len()));
        }
        let before = live.graph.sizes();
        let features = live.apply_nodes(&changes)?;
        let applied = live.graph.apply(&changes.edges, live.reader.duplicates(), live.batches);
        live.batches += 1;
        let counts = self.collectives.all_gather(driver, &Counts::of(&applied))?;
        let first = |row: fn(&Counts) -> u64| counts.iter().map(row).min().filter(|row| *row < u64::MAX);
        if let Some(row) = first(|counts| counts.duplicate) {
            return Err(refused(changes.duplicate_edge(row as u32)?));
        }
        let missing = first(|counts| counts.missing).map(|row| row as u32);
        // Of a batch that is applied again, the removals were checked with the policy of that time.
        let policy = if publish { feed.missing } else { Missing::Ignore };
        if let Some(error) = changes.missing(missing, policy)? {
            return Err(refused(error));
        }
        live.commit(driver, &applied.changed)?;

        let Some(refresh) = &self.refresh else { return Err(Error::Bug("no rows of layers are stored".into())) };
        let reach = Reach {
            graph: &*live.graph,
            undirected: self.job.dataset.manifest().undirected,
            stages: &refresh.stages,
            degrees: refresh.degrees,
        };
        let feature_bytes = live.features.bytes_of(features.len());
        let mut changed = Changed { features, edges: applied.changed };
        let removed = live.removed(&changes);
        let edges_of_removed = match removed.is_empty() {
            true => 0,
            false => live.remove_nodes(driver, &mut self.collectives, reach, &removed, &mut changed)?,
        };
        let reached = reach.of(driver, &mut self.collectives, changed)?;
        // Of each changed row, its page and that of its checksum.
        let bytes =
            |(nodes, stage): (&Vec<u32>, &Stage)| nodes.len() as u64 * (PAGE.max(4 * stage.width as u64) + PAGE);
        let own_bytes: u64 = reached.iter().zip(&refresh.stages).map(bytes).sum();
        let own_bytes = own_bytes + feature_bytes;
        // Also a barrier: no worker reads degrees of others before they are counted.
        let sums = self.collectives.all_reduce_counts(driver, &[own_bytes, edges_of_removed])?;
        live.row_bytes += sums[0];
        let removed = live.removed_results(&self.context, &removed, &before, self.inference.results())?;
        let last = reached.last().cloned().unwrap_or_default();
        let old = ChangedNodes::copy(&self.context, (last, before), self.inference.results(), removed)?;
        self.inference.pass_over(driver, &reached)?;
        let damaged = self.read_damaged_rows()?;
        if self.any_worker(driver, damaged)? {
            return Err(self.forget_rows(driver)?);
        }
        if let Some(follower) = follower.as_ref().filter(|_| publish) {
            follower.begin_results(name)?;
        }
        let written = if publish { Some(self.write_results(driver, &old, name)?) } else { None };
        let Some(follower) = follower else { return Ok(Room::Found) };
        follower.in_memory(name);
        let Some((changed_nodes, changes_sha256)) = written else { return Ok(Room::Found) };
        let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum();
        let results = BatchResults {
            schema: SCHEMA,
            batch: name.to_owned(),
            nodes_added: changes.partitions.len() as u64,
            nodes_changed: changes.nodes_changed,
            nodes_removed: changes.removed.len() as u64,
            edges_added: sum(|counts| counts.added),
            edges_removed: sum(|counts| counts.removed) + sums[1],
            duplicates_dropped: sum(|counts| counts.dropped),
            changed_nodes,
            changes_sha256,
            files: changes.files,
            seconds: begin.elapsed().as_secs_f64(),
        };
        follower.publish(driver.runtime, &results, job.config.graph.retry.0)?;
        driver.runtime.say(&format!(
            "batch {name}: {} nodes added, {} removed, {} with new values; {} edges added, {} removed; {} nodes in {CHANGES}; {:.3} s",
            results.nodes_added,
            results.nodes_removed,
            results.nodes_changed,
            results.edges_added,
            results.edges_removed,
            results.changed_nodes,
            results.seconds
        ));
        Ok(Room::Found)
    }

    /// Marks the stored rows as incomplete, so that the next command computes them. Returns the error that says so. A collective operation.
    fn forget_rows(&mut self, driver: &mut Driver<'_>) -> Result<Error, Error> {
        let Some(refresh) = &self.refresh else { return Err(Error::Bug("no rows of layers are stored".into())) };
        refresh.store.begin(driver, &mut self.collectives)?;
        Ok(refresh.store.damaged())
    }

    /// Writes `changes.parquet` of a batch. Returns the number of its rows, and at the first worker their SHA-256.
    fn write_results(
        &mut self,
        driver: &mut Driver<'_>,
        changes: &ChangedNodes,
        name: &str,
    ) -> Result<(u64, String), Error> {
        let (parts, new) = (Arc::clone(&self.context.parts), Rc::clone(&self.live()?.ids));
        let ids =
            |part: usize, locals: &mut dyn Iterator<Item = usize>| live_ids(&parts, &new.borrow()[part], part, locals);
        let table = (new_changes(&self.job.run_dir, name), TableForm::one_file(self.job.config.infer.as_ref()));
        self.write_changes(driver, changes, &ids, table)
    }
}
