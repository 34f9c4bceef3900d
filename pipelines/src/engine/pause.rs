//! When training pauses, for a checkpoint or because the program shall end.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::collectives::{Collectives, Driver};
use crate::config::{CheckpointEvery, Train};
use crate::error::Error;
use crate::runtime::job::Runtime;

/// The reasons of one worker to pause.
pub(crate) struct Pause {
    runtime: Arc<dyn Runtime>,
    on_signal: bool,
    /// At the first worker: the time between checkpoints.
    every: Option<Duration>,
    last_checkpoint: Cell<Instant>,
    /// Whether any worker of the run may want a pause.
    possible: bool,
    /// The maximum number of steps in flight at any worker.
    window: u32,
}

/// The reasons of all workers together, which are equal at all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) checkpoint: bool,
    pub(crate) stop: bool,
}

impl Pause {
    /// Makes the pauses of a worker with at most `window` steps in flight. `first` says whether it is the first one, whose clock counts.
    /// A collective operation.
    ///
    /// # Errors
    /// If the run ends.
    pub(crate) fn open(
        driver: &mut Driver<'_>,
        collectives: &mut Collectives,
        runtime: Arc<dyn Runtime>,
        train: &Train,
        first: bool,
        window: usize,
    ) -> Result<Self, Error> {
        let every = match train.checkpoint_every {
            CheckpointEvery::Time(span) => Some(span.0),
            CheckpointEvery::Epochs(_) | CheckpointEvery::Steps(_) => None,
        };
        let possible = train.checkpoint_on_signal || every.is_some();
        // The plans of processes may have different windows.
        let windows = if possible { collectives.all_gather(driver, &(window as u64))? } else { Vec::new() };
        Ok(Self {
            runtime,
            on_signal: train.checkpoint_on_signal,
            every: every.filter(|_| first),
            last_checkpoint: Cell::new(Instant::now()),
            possible,
            window: windows.into_iter().max().unwrap_or(window as u64) as u32,
        })
    }

    /// Returns whether this worker wants a pause now.
    pub(crate) fn is_wanted(&self) -> bool {
        let Wanted { checkpoint, stop } = self.own();
        checkpoint || stop
    }

    fn own(&self) -> Wanted {
        Wanted {
            checkpoint: self.every.is_some_and(|every| self.last_checkpoint.get().elapsed() >= every),
            stop: self.on_signal && self.runtime.stop_requested(),
        }
    }

    /// Returns the reasons of all workers. All must call it after the same round.
    ///
    /// # Errors
    /// If the run ends.
    pub(crate) fn wanted(&self, driver: &mut Driver<'_>, collectives: &mut Collectives) -> Result<Wanted, Error> {
        if !self.possible {
            return Ok(Wanted::default());
        }
        let Wanted { checkpoint, stop } = self.own();
        let counts = collectives.all_reduce_counts(driver, &[checkpoint.into(), stop.into()])?;
        Ok(Wanted { checkpoint: counts[0] > 0, stop: counts[1] > 0 })
    }

    /// Returns the maximum number of steps in flight at any worker.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Records that a checkpoint has been written.
    pub(crate) fn checkpoint_written(&self) {
        self.last_checkpoint.set(Instant::now());
    }
}
