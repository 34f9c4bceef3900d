//! What passes of the model over batches and nodes read. Several passes may run at the same time.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use gnnflow_dataflow::fetch::cache::CacheCounts;
use gnnflow_dataflow::fetch::fetch_rows::FeatureView;
use gnnflow_nn::device::DeviceTime;
use gnnflow_nn::model::{EdgeCopies, Reduction};
use gnnflow_nn::parameter_versions::ParameterVersions;
use gnnflow_nn::{Model, Upload};

use super::device_sampler::DeviceSampler;
use super::held_rows::HeldRows;
use super::job_threads::JobThread;
use crate::error::Error;
use crate::task::objective::Objective;

/// Time spent on the compute threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputeTime {
    pub(crate) forward: Duration,
    pub(crate) backward: Duration,
    pub(crate) step: Duration,
    /// Both passes on a GPU, by its own clock.
    pub(crate) device: Duration,
}

/// The model of a process, its objective, and the options of passes.
pub(crate) struct Passes {
    pub(super) edge_copies: EdgeCopies,
    model: RwLock<LoadedModel>,
    pub(super) objective: Arc<dyn Objective>,
    pub(super) uses_edges: bool,
    pub(super) seed: u64,
    pub(super) hash_blocks: bool,
    /// Whether the input rows of nodes are learned.
    pub(super) learns_rows: bool,
    /// Where the rows of a batch's nodes are.
    rows: Mutex<BatchRows>,
    /// Rows of batches that were on the device, and that were copied to it.
    held_counts: Mutex<CacheCounts>,
    /// Samples batches, if the model's device does so.
    sampler: Mutex<Option<Arc<DeviceSampler>>>,
    /// Copies batches to a GPU asynchronously, if another thread does so.
    upload: OnceLock<Upload>,
    /// In full-graph training: the published versions of the parameters.
    pub(super) versions: OnceLock<Arc<ParameterVersions>>,
    /// Held while the results of a batch are written into a table, which has one writer at a time.
    pub(super) store_rows: Mutex<()>,
    spent: Mutex<ComputeTime>,
}

/// The model, with one version of the parameters.
pub(super) struct LoadedModel {
    pub(super) model: Model,
    /// The number of the version in [`Passes::versions`].
    pub(super) version: u64,
}

/// Where the rows of a batch's nodes are in training.
#[derive(Clone, Default)]
pub(super) enum BatchRows {
    /// In the batch.
    #[default]
    InBatch,
    /// On the model's device, or some of them.
    OnDevice(Arc<HeldRows>),
    /// In one array, with those of all nodes. The first layer begins with a reduction, which reads them there.
    InPlace(FeatureView, Reduction),
}

/// The two passes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pass {
    Forward,
    Backward,
}

impl Passes {
    pub(super) fn new(
        model: Model,
        objective: Arc<dyn Objective>,
        (uses_edges, learns_rows, hash_blocks): (bool, bool, bool),
        seed: u64,
    ) -> Self {
        Self {
            edge_copies: model.edge_copies(learns_rows),
            model: RwLock::new(LoadedModel { model, version: 0 }),
            objective,
            uses_edges,
            seed,
            hash_blocks,
            learns_rows,
            rows: Mutex::default(),
            held_counts: Mutex::default(),
            sampler: Mutex::default(),
            upload: OnceLock::new(),
            versions: OnceLock::new(),
            store_rows: Mutex::default(),
            spent: Mutex::default(),
        }
    }

    /// Returns where the rows of a batch's nodes are.
    pub(super) fn rows(&self) -> MutexGuard<'_, BatchRows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what samples batches on the device, if it does.
    pub(super) fn sampler(&self) -> MutexGuard<'_, Option<Arc<DeviceSampler>>> {
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of rows of batches that were on the device.
    pub(super) fn held_counts(&self) -> MutexGuard<'_, CacheCounts> {
        self.held_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies batches asynchronously from now on.
    ///
    /// # Errors
    /// When the system has no page-locked memory, or the driver fails.
    pub(crate) fn start_uploads(&self) -> Result<(), Error> {
        let upload = Upload::new(self.edge_copies.device())?;
        // A second one would do the same.
        let _ = self.upload.set(upload);
        Ok(())
    }

    /// Returns what copies batches asynchronously.
    pub(super) fn upload(&self) -> Option<&Upload> {
        self.upload.get()
    }

    /// Returns the model for reading.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, LoadedModel> {
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the model for writing, when no pass reads it.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, LoadedModel> {
        self.model.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the time since `start` to that of a pass.
    pub(super) fn spend(&self, pass: Pass, on: &JobThread, start: Instant) {
        let elapsed = on.spent_since(start);
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        match pass {
            Pass::Forward => spent.forward += elapsed,
            Pass::Backward => spent.backward += elapsed,
        }
    }

    /// Adds the time of both passes on a GPU. Waits for their end.
    pub(super) fn spend_on_device(&self, time: Option<DeviceTime>) -> Result<(), Error> {
        if let Some(time) = time {
            self.add_device_time(time.elapsed()?);
        }
        Ok(())
    }

    /// Adds time of a GPU.
    pub(super) fn add_device_time(&self, time: Duration) {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).device += time;
    }

    /// Returns the times of both passes so far.
    pub(super) fn spent(&self) -> ComputeTime {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
