//! What this process does, as its threads report it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gnnflow_pipelines::Stage;
use gnnflow_pipelines::summary::EpochRecord;

use super::process::{Cache, TEXT, Work};
use super::training::TrainingClock;

/// The activity of this process. Clones share it. Its methods take a lock for an instant, as progress on the terminal does; they are called per
/// step, never per node.
#[derive(Clone, Debug)]
pub(crate) struct Activity(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    now: Mutex<Now>,
    messages: Arc<AtomicU64>,
}

/// What the process does now.
#[derive(Clone, Debug, Default)]
pub(super) struct Now {
    pub(super) stage: Stage,
    /// Whether the run has begun its own work, so that it was not refused.
    pub(super) is_under_way: bool,
    pub(super) work: Option<Work>,
    work_begun: Option<Instant>,
    pub(super) steps: u64,
    pub(super) cache: Option<Cache>,
    pub(super) last_epoch: Option<EpochRecord>,
    pub(super) training: TrainingClock,
}

impl Activity {
    /// The process begins to prepare.
    pub(crate) fn begin() -> Self {
        Self(Arc::new(Inner { begun: Instant::now(), now: Mutex::default(), messages: Arc::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        // Each change leaves a valid state.
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stage.
    pub(crate) fn stage(&self, stage: Stage) {
        let mut now = self.lock();
        now.stage = stage;
        now.is_under_way |= !stage.is_before_work();
        if let Stage::Training { epoch } = stage {
            now.training.begin(epoch);
        }
    }

    /// Sets the number of epochs of the run.
    pub(crate) fn set_epochs(&self, epochs: usize) {
        self.lock().training.epochs = epochs;
    }

    /// Ends an epoch.
    pub(crate) fn epoch(&self, record: &EpochRecord) {
        let mut now = self.lock();
        now.training.end(record.epoch);
        now.last_epoch = Some(record.clone());
    }

    /// Sets the counts of the cache of features.
    pub(crate) fn cached(&self, cache: Cache) {
        self.lock().cache = Some(cache);
    }

    /// Returns the counter of messages sent.
    pub(crate) fn messages(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0.messages)
    }

    pub(super) fn begin_work(&self, name: &str, total: Option<u64>, unit: &str) {
        let short = |text: &str| text.chars().take(TEXT).collect();
        let work = Work { name: short(name), unit: short(unit), done: 0, total };
        let mut now = self.lock();
        (now.work, now.work_begun) = (Some(work), Some(Instant::now()));
    }

    pub(super) fn advance(&self, by: u64) {
        let mut now = self.lock();
        if matches!(now.stage, Stage::Training { .. }) {
            now.steps += by;
        }
        if let Some(work) = &mut now.work {
            work.done += by;
        }
    }

    pub(super) fn end_work(&self) {
        self.lock().work = None;
    }

    pub(super) fn now(&self) -> Now {
        self.lock().clone()
    }

    pub(super) fn messages_sent(&self) -> u64 {
        self.0.messages.load(Ordering::Relaxed)
    }

    /// Returns the seconds since the process began the run.
    pub(super) fn seconds(&self) -> f64 {
        self.0.begun.elapsed().as_secs_f64()
    }
}

impl Now {
    /// Returns an estimate of the seconds until the last epoch ends or, outside of training, until the current work ends.
    pub(super) fn remaining(&self) -> Option<f64> {
        let share = self.work.as_ref().and_then(Work::share).filter(|share| *share > 0.0);
        match self.stage {
            Stage::Training { .. } | Stage::Evaluating { .. } => {
                let is_epoch = |work: &Work| self.stage.epoch().is_some_and(|n| work.name == format!("epoch {n}"));
                self.training.remaining(share.filter(|_| self.work.as_ref().is_some_and(is_epoch)))
            }
            _ => Some(self.work_begun?.elapsed().as_secs_f64() * (1.0 / share? - 1.0)),
        }
    }
}
