//! The layer store: the rows of all stages of exact inference, and the dataset from which they were computed.
//!
//! ```text
//! FOLDER/MODEL/dataset/                 a snapshot of the dataset: hard links to its files
//!              part-00000/lock          locked by the process that uses the rows
//!              part-00000/layers.json   what the rows belong to; missing while they are written
//!              part-00000/stage-0.f32   rows of a stage, in the order of local ids
//!              part-00000/stage-0.crc32 the checksum of each row, compared when the row is read
//!              part-00000/stage-1.f32   …
//! ```
//!
//! A process writes only its own partitions. The rows of a partition are changed in place. Its description is removed before and written after
//! that, when the rows are on disk. So a store that was being written when a process or the machine stopped is not used. Threads wait for the disk,
//! for many files at the same time, while the process writes its results.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{JoinHandle, ScopedJoinHandle};

use bytemuck::Pod;
use gnnflow_data::Dataset;
use gnnflow_data::fs::{sync_folder, write_atomic};
use gnnflow_data::lock_file::LockFile;
use gnnflow_dataflow::graph::local_graph::LocalGraph;
use gnnflow_dataflow::storage::{Array, RowStore, checksum, sums_file};
use gnnflow_nn::model::{ModelSpec, Stage};
use serde::{Deserialize, Serialize};

use crate::collectives::{Collectives, Driver};
use crate::context::WorkerContext;
use crate::error::Error;
use crate::model_file::FittingModel;
use crate::runtime::job::Job;

/// Version of [`Description`]. It increases when a field or the format of rows changes.
const SCHEMA: u32 = 2;
/// Maximum number of partitions whose descriptions are written at the same time.
const SYNCS: usize = 8;
/// The description of a partition's rows.
const DESCRIPTION: &str = "layers.json";

/// What the rows of a partition belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Description {
    /// [`SCHEMA`].
    schema: u32,
    /// The build of gnnflow that computed them.
    build: String,
    /// The device that computed them.
    device: String,
    /// The model, without parameters.
    network: String,
    /// The SHA-256 of the model's file.
    model: String,
    /// The fingerprint of the dataset.
    dataset: String,
}

/// The layer store of one worker.
pub(crate) struct LayerStore {
    folder: PathBuf,
    /// The description of the rows when they are complete.
    description: Description,
    /// The partitions of this worker, whose rows it has locked.
    own: Range<usize>,
    /// The dataset from which the rows of this worker's partitions were computed; or why there is none.
    found: Result<Dataset, Unusable>,
    _locks: Vec<LockFile>,
}

/// The threads that write changed rows to disk.
pub(crate) struct WritingRows(Vec<JoinHandle<std::io::Result<()>>>);

/// What a layer store has when it is opened.
pub(crate) enum Stored {
    /// The rows of all partitions, computed from this dataset.
    Rows(Dataset),
    /// No rows that can be used.
    Nothing(Unusable),
}

/// Why stored rows cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// There are none.
    Missing,
    /// They are incomplete or damaged, or of another build or device.
    Other,
}

impl LayerStore {
    /// Opens and locks this worker's part of the store in `folder` of a model.
    ///
    /// # Errors
    /// If another process uses it, or the folder cannot be written.
    pub(crate) fn open(
        job: &Job,
        context: &WorkerContext,
        (model, network, stages): (&FittingModel, &ModelSpec, &[Stage]),
        folder: &Path,
    ) -> Result<Self, Error> {
        let folder = folder.join(&model.sha256[..16]);
        let own = context.placement.parts_of(context.worker);
        let lock = |part: usize| {
            let path = part_folder(&folder, part).join("lock");
            let lock = LockFile::try_take(&path).map_err(Error::io("lock", &path))?;
            lock.ok_or_else(|| {
                let message =
                    "another process uses these rows; wait until it has ended, or choose another folder with --layers";
                Error::Machine(format!("{}: {message}", folder.display()))
            })
        };
        let locks = own.clone().map(lock).collect::<Result<_, _>>()?;
        let description = Description {
            schema: SCHEMA,
            build: job.build.clone(),
            device: job.config.train.as_ref().map(|train| train.device.kind().to_owned()).unwrap_or_default(),
            network: format!("{network:?}"),
            model: model.sha256.clone(),
            dataset: job.dataset.manifest().fingerprint.clone(),
        };
        let mut store = Self { folder, description, own, found: Err(Unusable::Missing), _locks: locks };
        store.found = store.find(stages)?;
        Ok(store)
    }

    /// Returns the dataset from which the rows of this worker's partitions were computed.
    fn find(&self, stages: &[Stage]) -> Result<Result<Dataset, Unusable>, Error> {
        let dataset = match Dataset::open(self.snapshot()) {
            Ok(dataset) => dataset,
            Err(gnnflow_data::Error::Missing { .. }) => return Ok(Err(Unusable::Missing)),
            Err(error @ gnnflow_data::Error::Io { .. }) => return Err(error.into()),
            Err(_) => return Ok(Err(Unusable::Other)),
        };
        for part in self.own.clone() {
            let Some(info) = dataset.manifest().partitions.get(part) else { return Ok(Err(Unusable::Other)) };
            let fingerprint = dataset.manifest().fingerprint.clone();
            let expected = Description { dataset: fingerprint, ..self.description.clone() };
            let has_rows = |(stage, Stage { width, .. }): (usize, &Stage)| {
                // A partition without nodes may have no files.
                let has = |path: &Path, bytes| std::fs::metadata(path).is_ok_and(|file| file.len() >= bytes);
                let rows = self.rows_file(part, stage);
                info.nodes == 0 || has(&rows, info.nodes * 4 * *width as u64) && has(&sums_file(&rows), info.nodes * 4)
            };
            if self.described(part)?.as_ref() != Some(&expected) || !stages.iter().enumerate().all(has_rows) {
                return Ok(Err(Unusable::Other));
            }
        }
        Ok(Ok(dataset))
    }

    /// Returns what is stored for all partitions. A collective operation.
    ///
    /// # Errors
    /// If the program ends the run.
    pub(crate) fn stored(&self, driver: &mut Driver<'_>, collectives: &mut Collectives) -> Result<Stored, Error> {
        let own = match &self.found {
            Ok(dataset) => dataset.manifest().fingerprint.clone(),
            Err(Unusable::Missing) => "missing".to_owned(),
            Err(Unusable::Other) => "other".to_owned(),
        };
        let all = collectives.all_gather(driver, &own)?;
        Ok(match &self.found {
            Ok(dataset) if all.iter().all(|one| *one == own) => Stored::Rows(dataset.clone()),
            Err(Unusable::Missing) if all.iter().all(|one| *one == own) => Stored::Nothing(Unusable::Missing),
            _ => Stored::Nothing(Unusable::Other),
        })
    }

    /// Maps the rows of all stages. Those of new nodes have any values.
    ///
    /// # Errors
    /// If there is no space for them.
    pub(crate) fn rows(&self, context: &WorkerContext, stages: &[Stage]) -> Result<Vec<Arc<RowStore>>, Error> {
        let map = |(stage, Stage { width, .. }): (usize, &Stage)| {
            let rows = RowStore::in_files(|part| self.rows_file(part, stage), &context.graph, context.worker, *width);
            Ok(Arc::new(rows.map_err(Error::io("reserve space for rows of layers in", &self.folder))?))
        };
        stages.iter().enumerate().map(map).collect()
    }

    /// Maps copies of the rows of all stages for the nodes of `graph`: changed rows stay in memory. Those of new nodes have any values.
    ///
    /// # Errors
    /// If a file is missing, or one of a partition without nodes cannot be created.
    pub(crate) fn copies(
        &self,
        graph: &Arc<LocalGraph>,
        worker: usize,
        stages: &[Stage],
    ) -> Result<Vec<Arc<RowStore>>, Error> {
        let empty = |part: &usize| self.found.as_ref().is_ok_and(|of| of.manifest().partitions[*part].nodes == 0);
        for part in self.own.clone().filter(empty) {
            let rows = (0..stages.len()).map(|stage| self.rows_file(part, stage));
            for path in rows.flat_map(|rows| [sums_file(&rows), rows]) {
                let file = File::options().create(true).append(true).open(&path);
                file.map_err(Error::io("create", &path))?;
            }
        }
        let map = |(stage, Stage { width, .. }): (usize, &Stage)| {
            let rows = RowStore::copies_of_files(|part| self.rows_file(part, stage), graph, worker, *width);
            Ok(Arc::new(rows.map_err(Error::io("map rows of layers in", &self.folder))?))
        };
        stages.iter().enumerate().map(map).collect()
    }

    /// Removes the rows of `removed` nodes of a partition, given by local ids, ascending; it had `nodes` nodes. Returns their rows of the last stage. The
    /// rows must be marked as incomplete.
    ///
    /// Also returns whether one of these is damaged.
    ///
    /// # Errors
    /// If a file cannot be mapped.
    pub(crate) fn remove_rows(
        &self,
        stages: &[Stage],
        part: usize,
        (nodes, removed): (usize, &[u32]),
    ) -> Result<(Vec<f32>, bool), Error> {
        let (mut results, mut damaged) = (Vec::new(), false);
        for (stage, Stage { width, .. }) in stages.iter().enumerate() {
            let path = self.rows_file(part, stage);
            let mut rows = Array::<f32>::in_file(nodes * width, &path).map_err(Error::io("map", &path))?;
            let sums_path = sums_file(&path);
            let mut sums = Array::<u32>::in_file(nodes, &sums_path).map_err(Error::io("map", &sums_path))?;
            if stage + 1 == stages.len() {
                for local in removed.iter().map(|&local| local as usize) {
                    let row = &rows[local * width..(local + 1) * width];
                    damaged |= checksum(row) != sums[local];
                    results.extend_from_slice(row);
                }
            }
            remove(&mut rows, *width, removed);
            remove(&mut sums, 1, removed);
        }
        Ok((results, damaged))
    }

    /// The error of damaged rows that are marked as incomplete.
    pub(crate) fn damaged(&self) -> Error {
        Error::Input(format!(
            "{}: stored rows of layers are damaged: they differ from their checksums; run the command again, which then computes all rows anew",
            self.folder.display()
        ))
    }

    /// Marks the rows of this worker as incomplete: they are about to be changed. A collective operation.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn begin(&self, driver: &mut Driver<'_>, collectives: &mut Collectives) -> Result<(), Error> {
        self.for_each_part(|part| {
            let path = self.part(part).join(DESCRIPTION);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed.and_then(|()| sync_folder(&self.part(part))).map_err(Error::io("remove", &path)),
            }
        })?;
        // No worker changes a row before all have marked theirs.
        collectives.barrier(driver)
    }

    /// Starts to write changed `rows` to disk, on a thread for each stage.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start_writing(&self, rows: &[Arc<RowStore>]) -> Result<WritingRows, Error> {
        let start = |rows: &Arc<RowStore>| {
            let rows = Arc::clone(rows);
            writing_thread().spawn(move || rows.sync()).map_err(cannot_start)
        };
        Ok(WritingRows(rows.iter().map(start).collect::<Result<_, _>>()?))
    }

    /// Marks the rows as complete, computed from the dataset of the job, when they are on disk. A collective operation.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn complete(
        &self,
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        job: &Job,
        writing: WritingRows,
    ) -> Result<(), Error> {
        let busy = driver.runtime.busy("writing the rows of layers");
        for thread in writing.0 {
            let written = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            written.map_err(Error::io("write", &self.folder))?;
        }
        let snapshot = self.snapshot();
        std::fs::create_dir_all(&snapshot).map_err(Error::io("create", &snapshot))?;
        job.dataset.write_snapshot_manifest(&snapshot)?;
        let text = serde_json::to_string_pretty(&self.description).map_err(|error| Error::Bug(error.to_string()))?;
        self.for_each_part(|part| {
            job.dataset.link_partition(part, &snapshot)?;
            let path = self.part(part).join(DESCRIPTION);
            write_atomic(&path, text.as_bytes()).map_err(Error::io("write", &path))
        })?;
        drop(busy);
        collectives.barrier(driver)
    }

    /// Calls `work` for each own partition, for several at the same time: a disk syncs several files in about the time of one.
    fn for_each_part(&self, work: impl Fn(usize) -> Result<(), Error> + Sync) -> Result<(), Error> {
        let (parts, work): (Vec<usize>, _) = (self.own.clone().collect(), &work);
        std::thread::scope(|scope| {
            let start = |parts: &'_ [usize]| {
                let parts = parts.to_vec();
                let thread = writing_thread().spawn_scoped(scope, move || parts.into_iter().try_for_each(work));
                thread.map_err(cannot_start)
            };
            let threads = parts.chunks(parts.len().div_ceil(SYNCS).max(1)).map(start);
            let threads: Vec<ScopedJoinHandle<'_, _>> = threads.collect::<Result<_, _>>()?;
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().try_for_each(join)
        })
    }

    /// Returns the description of a partition's rows. `None`: they are incomplete, or the description is damaged.
    fn described(&self, part: usize) -> Result<Option<Description>, Error> {
        let path = self.part(part).join(DESCRIPTION);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.join("dataset")
    }

    fn part(&self, part: usize) -> PathBuf {
        part_folder(&self.folder, part)
    }

    fn rows_file(&self, part: usize, stage: usize) -> PathBuf {
        self.part(part).join(format!("stage-{stage}.f32"))
    }
}

/// Removes the rows of `removed`, ascending, from rows of `width` numbers.
fn remove<T: Pod>(rows: &mut Array<T>, width: usize, removed: &[u32]) {
    let row = |local: u32| local as usize * width..(local as usize + 1) * width;
    let ends = removed.iter().skip(1).map(|&next| row(next).start).chain([rows.len()]);
    let mut to = removed.first().map_or(rows.len(), |&first| row(first).start);
    for (&local, end) in removed.iter().zip(ends.collect::<Vec<_>>()) {
        let kept = row(local).end..end;
        rows.copy_within(kept.clone(), to);
        to += kept.len();
    }
}

fn writing_thread() -> std::thread::Builder {
    std::thread::Builder::new().name("write-rows".to_owned())
}

fn cannot_start(error: std::io::Error) -> Error {
    Error::Machine(format!("start a thread: {error}"))
}

fn part_folder(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:05}"))
}
