//! The work of a process by epoch and step.

use std::time::Duration;

use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::meter::{Meter, Stage};

use super::Trace;
use crate::engine::EpochSums;
use crate::outputs::trace_table::SentTo;
use crate::outputs::work_log::{Round, SentWork, WorkLog};

/// The CPU time of the threads so far.
#[derive(Clone, Copy)]
pub(crate) struct CpuSoFar {
    worker: Duration,
    sampling: Duration,
    reducing: Duration,
}

impl Trace {
    /// Returns the CPU time so far, for the start of a round.
    pub(crate) fn cpu_so_far(&self, meter: &Meter) -> CpuSoFar {
        let (worker, sampling) = (self.worker.cpu(), self.sampling.group().cpu());
        CpuSoFar { worker, sampling, reducing: meter.spent(Stage::Reduce) }
    }

    /// Records a round that began with epoch `first_epoch`, if all its jobs and messages are recorded.
    pub(crate) fn end_of_round(&mut self, before: CpuSoFar, first_epoch: u32, epochs: &[EpochSums], meter: &Meter) {
        if self.compute.jobs().is_full || meter.is_full() {
            return;
        }
        let now = self.cpu_so_far(meter);
        let since = |now: Duration, before: Duration| now.saturating_sub(before).as_secs_f64();
        self.rounds.push(Round {
            first_epoch,
            seconds: epochs.iter().map(|epoch| epoch.seconds).collect(),
            steps: epochs.iter().map(|epoch| epoch.steps).collect(),
            worker_cpu: since(now.worker, before.worker),
            sampling_cpu: since(now.sampling, before.sampling),
            reducing: since(now.reducing, before.reducing),
        });
    }

    /// Returns the work of all rounds.
    pub(super) fn work(&self, meter: &Meter) -> WorkLog {
        let sent = meter.by_time().into_iter().map(|(key, sent)| SentWork {
            epoch: time::epoch(key.time),
            step: time::step(key.time),
            purpose: key.stage.into(),
            to: key.to,
            sent: SentTo { messages: sent.messages, bytes: sent.bytes },
        });
        WorkLog {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            window: self.window,
            at_once: self.at_once,
            shares_features: self.shares_features,
            rounds: self.rounds.clone(),
            jobs: self.compute.jobs().by_time(),
            sent: sent.collect(),
        }
    }
}
