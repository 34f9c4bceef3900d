//! What the first worker does: chooses what all workers do next, and keeps the state on disk.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gnnflow_data::dataset::{Dataset, Manifest};
use gnnflow_data::fs::sync_folder;
use gnnflow_data::group::SingleProcess;
use gnnflow_data::prepare::Quality;
use gnnflow_data::progress::Silent;
use gnnflow_data::update::{Batch, Missing, UpdateSettings, batch_files, update};
use gnnflow_data::upload::upload;
use gnnflow_data::{Error as DataError, Fault};
use serde::{Deserialize, Serialize};

use super::batch_queue::{BatchQueue, Next};
use super::place::Place;
use super::state::{
    BATCHES, BatchResults, MANIFEST, PENDING, RESTORE, SCHEMA, State, add_applied, folders_in, read_applied,
};
use crate::error::Error;
use crate::model_file::FittingModel;
use crate::outputs::run_folder::CHANGES;
use crate::runtime::job::{Feed, Job, Runtime};

/// How long all workers wait before they ask again.
const POLL: Duration = Duration::from_millis(100);
/// A share of edges between partitions that has grown by this factor is reported.
const WORSE_CUT: f64 = 1.2;

/// What all workers do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Apply a pending batch whose results are complete.
    Replay(String),
    /// Apply a pending batch, and write its results.
    Apply(String),
    /// Ask again.
    Wait,
    /// Store the pending batches in the dataset.
    Store,
    /// End.
    End,
}

/// The state of following at the first worker.
pub(crate) struct Follower<'a> {
    out: PathBuf,
    feed: &'a Feed,
    dataset: Dataset,
    state: State,
    queue: BatchQueue,
    /// Pending batches that are not in memory yet.
    replay: VecDeque<String>,
    /// The batches in memory, in their order.
    memory: Vec<String>,
    /// The batch for which the program has said that it waits.
    waits_for: Option<String>,
    /// The time at which there was no complete batch.
    looked: Option<Instant>,
}

impl<'a> Follower<'a> {
    /// Reads the state of the folder of `job`.
    ///
    /// # Errors
    /// If it belongs to another model or dataset, or cannot be read.
    pub(crate) fn open(job: &Job, model: &FittingModel, feed: &'a Feed) -> Result<Self, Error> {
        let (out, manifest) = (&job.run_dir, job.dataset.manifest());
        let applied = read_applied(out)?;
        // A batch whose results are complete may not be recorded as applied yet.
        let begun = !applied.is_empty() || !folders_in(&out.join(BATCHES))?.is_empty();
        let earlier = State::read(out)?;
        let after = feed.after.clone().or_else(|| earlier.as_ref()?.after.clone());
        let state = match earlier.filter(|state| begun || state.stored.is_some()) {
            Some(state) => state,
            None if !applied.is_empty() => {
                return Err(Error::Input(format!(
                    "{}: it has results of batches and no follow.json; {RESTORE}",
                    out.display()
                )));
            }
            None => State {
                schema: SCHEMA,
                model: model.sha256.clone(),
                dataset: manifest.fingerprint.clone(),
                after,
                stored: None,
                edge_cut: Quality::read(job.dataset.dir())?.edge_cut,
                upload: feed.upload.clone(),
            },
        };
        if state.model != model.sha256 {
            let message = "the folder has results of another model; choose another folder with --out, and give --after with the last batch that \
                           the dataset contains";
            return Err(Error::Input(format!("{}: {message}", out.display())));
        }
        if feed.after.is_some() && feed.after != state.after {
            let message = format!(
                "--after {:?}: {} was begun with other batches before; leave --after out, or choose another folder with --out",
                feed.after.as_deref().unwrap_or_default(),
                out.display()
            );
            return Err(Error::Usage(message));
        }
        if feed.upload != state.upload {
            let begun = state.upload.map_or("without it".to_owned(), |url| format!("with {}", url.display()));
            let message = format!(
                "--upload: {} was begun {begun}; do the same, or choose another folder with --out",
                out.display()
            );
            return Err(Error::Usage(message));
        }
        let busy = job.runtime.busy("looking for batches of changes");
        let place = Place::open(&feed.changes, job.config.graph.retry.0)?;
        drop(busy);
        let queue = BatchQueue::new(place, state.after.clone(), applied);
        if let Some(after) = state.after.as_ref().filter(|_| !begun) {
            let (skipped, named) = queue.skipped()?;
            let other = if named { "" } else { ", and no batch has this name" };
            job.runtime.say(&format!("note: --after {after}: {skipped} batches are not applied{other}"));
        }
        let mut follower = Self {
            out: out.clone(),
            feed,
            dataset: job.dataset.clone(),
            state,
            queue,
            replay: VecDeque::new(),
            memory: Vec::new(),
            waits_for: None,
            looked: None,
        };
        let busy = job.runtime.busy("verifying pending batches");
        follower.find_pending()?;
        drop(busy);
        follower.state.write(out)?;
        Ok(follower)
    }

    /// Finds the pending batches, and completes what was interrupted: the publication of results, and a store.
    fn find_pending(&mut self) -> Result<(), Error> {
        for name in folders_in(&self.out.join(PENDING))? {
            let stored = self.state.stored.as_ref().is_some_and(|stored| name <= *stored);
            if !stored && !self.queue.is_applied(&name) && self.batch(&name).is_dir() {
                self.record_applied(&name)?;
            }
            // It is in the dataset; or it was copied and not applied, and is copied again.
            if stored || !self.queue.is_applied(&name) {
                remove(&self.pending(&name))?;
            }
        }
        let pending: Vec<String> = folders_in(&self.out.join(PENDING))?.into_iter().collect();
        let out = self.out.display();
        if let Some(stored) = self.state.stored.as_ref().filter(|stored| !self.queue.is_applied(stored)) {
            let message = format!("{out}: applied.txt lacks batch {stored}, which is in the dataset; {RESTORE}");
            return Err(Error::Input(message));
        }
        let mut applied = self.queue.applied_after(self.state.stored.as_deref());
        if let Some(lost) = applied.find(|name| !pending.contains(name)) {
            let message = format!(
                "{out}: batch {lost} is in applied.txt and not in the dataset yet, and its copy in pending is gone; {RESTORE}"
            );
            return Err(Error::Input(message));
        }
        drop(applied);
        let dataset = self.dataset.clone();
        let manifest = dataset.manifest();
        let mut stored = 0;
        if manifest.fingerprint != self.state.dataset {
            // The update of a store, or one by another command.
            let update = manifest.updates.last().map_or(&[][..], |update| &update.batches);
            stored = update.len().min(pending.len());
            let files = pending[..stored].iter().map(|name| batch_files(&Batch::in_folder(&self.pending(name))));
            if stored == 0 || update != files.collect::<Result<Vec<_>, _>>()? {
                return Err(changed(&self.dataset, &self.out, self.state.stored.as_deref()));
            }
            self.stored(manifest.fingerprint.clone(), &pending[..stored])?;
        }
        self.replay = pending[stored..].iter().cloned().collect();
        self.replay.iter().try_for_each(|name| self.verify_copy(name))
    }

    /// Compares the copy of an applied batch with its description, if its results are still there.
    fn verify_copy(&self, name: &str) -> Result<(), Error> {
        let Some(results) = BatchResults::read(&self.batch(name))? else { return Ok(()) };
        let folder = self.pending(name);
        let files = batch_files(&Batch::in_folder(&folder))?;
        if files == results.files {
            return Ok(());
        }
        let differs = files.iter().find(|file| !results.files.contains(file)).map_or("", |file| file.name.as_str());
        let message = format!("is damaged: it is not the file that was applied; {RESTORE}");
        Err(Error::Input(format!("{}: {message}", folder.join(differs).display())))
    }

    /// Returns what all workers do next. `full` says that memory or room for nodes is used up.
    ///
    /// # Errors
    /// If a batch is out of order, or files cannot be read or written.
    pub(crate) fn next(&mut self, runtime: &dyn Runtime, full: bool) -> Result<Command, Error> {
        if let Some(name) = self.replay.pop_front() {
            return Ok(Command::Replay(name));
        }
        if full || self.memory.len() >= self.feed.store_every {
            return Ok(Command::Store);
        }
        if self.looked.is_some_and(|looked| looked.elapsed() < self.queue.place.pause()) {
            std::thread::sleep(POLL);
            return Ok(Command::Wait);
        }
        let busy = runtime.busy("looking for a batch of changes");
        let next = self.queue.next()?;
        drop(busy);
        let incomplete = match next {
            Next::Complete(name) => {
                let _busy = runtime.busy("copying a batch of changes");
                self.queue.place.copy(&name, &self.pending(&name))?;
                self.check_first(&name)?;
                return Ok(Command::Apply(name));
            }
            Next::Incomplete(name) => Some(name),
            Next::None => None,
        };
        if let Some(name) = incomplete.as_ref().filter(|name| self.waits_for.as_ref() != Some(*name)) {
            let verb = if self.feed.once { "is not applied" } else { "waits" };
            runtime.say(&format!(
                "note: batch {name} {verb}: it has no _SUCCESS yet; later batches wait for it, so move other folders out"
            ));
        }
        self.waits_for = incomplete;
        if self.feed.once {
            return Ok(if !self.memory.is_empty() { Command::Store } else { Command::End });
        }
        self.looked = Some(Instant::now());
        Ok(Command::Wait)
    }

    /// Refuses the first batch if the dataset contains it.
    fn check_first(&self, name: &str) -> Result<(), Error> {
        if !self.queue.is_new() {
            return Ok(());
        }
        let files = batch_files(&Batch::in_folder(&self.pending(name)))?;
        match self.dataset.manifest().updates.iter().any(|update| update.batches.contains(&files)) {
            false => Ok(()),
            true => Err(Error::Input(format!(
                "{}: the dataset contains this batch already; give --after with the name of the last batch that it contains",
                self.queue.place.path(name).display()
            ))),
        }
    }

    /// Creates the folder for the results of a batch. It gets its name when they are complete.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn begin_results(&self, name: &str) -> Result<(), Error> {
        let folder = new_results(&self.out, name);
        remove(&folder)?;
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))
    }

    /// Uploads the results of a batch, if the feed has a URL for them, and gives them their name. After an interruption in between, the batch is applied
    /// and uploaded again.
    ///
    /// # Errors
    /// If the folder cannot be written, or the store refuses the files or cannot be reached for `retry`.
    pub(crate) fn publish(
        &mut self,
        runtime: &dyn Runtime,
        results: &BatchResults,
        retry: Duration,
    ) -> Result<(), Error> {
        let (new, folder) = (new_results(&self.out, &results.batch), self.batch(&results.batch));
        results.write(&new)?;
        if let Some(url) = &self.feed.upload {
            let _busy = runtime.busy("uploading the results of a batch");
            let names = [CHANGES, MANIFEST].map(str::to_owned);
            upload(&SingleProcess, &new, &names, &url.join(BATCHES).join(&results.batch), retry, &Silent)?;
        }
        remove(&folder)?;
        std::fs::rename(&new, &folder).map_err(Error::io("rename", &new))?;
        let batches = self.out.join(BATCHES);
        sync_folder(&batches).map_err(Error::io("write", &batches))?;
        self.record_applied(&results.batch)
    }

    /// Records that a batch is in memory.
    pub(crate) fn in_memory(&mut self, name: &str) {
        self.memory.push(name.to_owned());
    }

    /// Records that the results of a batch are complete.
    fn record_applied(&mut self, name: &str) -> Result<(), Error> {
        add_applied(&self.out, name)?;
        self.queue.apply(name);
        Ok(())
    }

    /// Updates the dataset with the batches in memory; their new nodes are in `partitions`.
    ///
    /// # Errors
    /// If the dataset cannot be written.
    pub(crate) fn store(&mut self, runtime: &dyn Runtime, partitions: Vec<usize>) -> Result<(), Error> {
        let dataset = &self.dataset.clone();
        if Manifest::read(dataset.dir())?.fingerprint != self.state.dataset {
            return Err(changed(&self.dataset, &self.out, self.state.stored.as_deref()));
        }
        let names = std::mem::take(&mut self.memory);
        let batches: Vec<Batch> = names.iter().map(|name| Batch::in_folder(&self.pending(name))).collect();
        // The removals were checked when the batches were applied, with the policy of that time.
        let settings = UpdateSettings { out: None, missing: Missing::Ignore, hops: 0, partitions: Some(partitions) };
        let updated = update(dataset.dir(), &batches, &settings, &Silent)?;
        self.stored(updated.manifest.fingerprint, &names)?;
        let cut = Quality::read(dataset.dir())?.edge_cut;
        if cut > WORSE_CUT * self.state.edge_cut + 0.01 {
            runtime.say(&format!(
                "note: {:.1} % of the edges are between partitions; they were {:.1} % at the beginning: prepare the graph again when it suits",
                100.0 * cut,
                100.0 * self.state.edge_cut
            ));
        }
        Ok(())
    }

    /// Records that the dataset has these batches.
    fn stored(&mut self, dataset: String, stored: &[String]) -> Result<(), Error> {
        (self.state.dataset, self.state.stored) = (dataset, stored.last().cloned().or(self.state.stored.take()));
        self.state.write(&self.out)?;
        stored.iter().try_for_each(|name| remove(&self.pending(name)))
    }

    fn batch(&self, name: &str) -> PathBuf {
        self.out.join(BATCHES).join(name)
    }

    fn pending(&self, name: &str) -> PathBuf {
        pending(&self.out, name)
    }
}

/// Another command has changed the dataset. `stored` is the last batch that it had before, if this is known.
fn changed(dataset: &Dataset, out: &Path, stored: Option<&str>) -> Error {
    let stored = stored.map(|name| format!(" (of {}, it had those up to {name})", out.display())).unwrap_or_default();
    Error::Input(format!(
        "{}: another command has changed the dataset since {} was written; follow it with another folder, --out, and give --after with the last \
         batch that the dataset contains{stored}",
        dataset.dir().display(),
        out.display()
    ))
}

/// Returns the error of a batch that cannot be applied, with the user's file instead of its copy; another one if the dataset has changed meanwhile.
pub(crate) fn refused(job: &Job, feed: &Feed, name: &str, error: DataError) -> Error {
    let dataset = &job.dataset;
    let now = Manifest::read(dataset.dir()).map(|manifest| manifest.fingerprint);
    match Error::from(error) {
        _ if now.is_ok_and(|now| now != dataset.manifest().fingerprint) => changed(dataset, &job.run_dir, None),
        Error::Data(error) if error.fault() == Fault::Input => {
            let [copy, own] =
                [pending(&job.run_dir, name), feed.changes.join(name)].map(|path| path.display().to_string());
            Error::Input(error.to_string().replace(&copy, &own))
        }
        error => error,
    }
}

/// Returns the folder of a batch that is not in the dataset yet.
pub(crate) fn pending(out: &Path, name: &str) -> PathBuf {
    out.join(PENDING).join(name)
}

/// Returns the folder of the results of a batch while they are written.
fn new_results(out: &Path, name: &str) -> PathBuf {
    out.join(BATCHES).join(format!(".{name}"))
}

/// Returns the file of the results of a batch while they are written.
pub(crate) fn new_changes(out: &Path, name: &str) -> PathBuf {
    new_results(out, name).join(CHANGES)
}

fn remove(folder: &Path) -> Result<(), Error> {
    gnnflow_data::fs::remove(folder).map_err(Error::io("remove", folder))
}
