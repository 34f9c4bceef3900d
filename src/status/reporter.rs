//! Makes the status of this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::activity::{Activity, Now};
use super::process::{ProcessStatus, Rates};
use super::system::{Usage, host};
use crate::cluster::Liveness;
use crate::encryption::Traffic;

/// Makes statuses of this process, each with the rates since the one before.
#[derive(Debug)]
pub(crate) struct Reporter {
    rank: usize,
    activity: Activity,
    liveness: Liveness,
    traffic: Arc<Traffic>,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    status: Option<ProcessStatus>,
    completed: u64,
    /// When the process was first seen to have completed that much.
    since: Instant,
}

impl Reporter {
    /// Makes a reporter of the process of this rank.
    pub(crate) fn new(rank: usize, activity: Activity, liveness: Liveness, traffic: Arc<Traffic>) -> Self {
        let last = Mutex::new(Last { status: None, completed: 0, since: Instant::now() });
        Self { rank, activity, liveness, traffic, last }
    }

    /// Makes a status.
    pub(crate) fn status(&self) -> ProcessStatus {
        let Now { stage, work, steps, cache, .. } = self.activity.now();
        let usage = Usage::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let completed = self.liveness.completed();
        if completed != last.completed {
            (last.completed, last.since) = (completed, Instant::now());
        }
        let status = ProcessStatus {
            rank: self.rank,
            host: host().to_owned(),
            pid: std::process::id(),
            seconds: self.activity.seconds(),
            stage,
            work,
            label: self.liveness.label(),
            completed,
            idle_seconds: last.since.elapsed().as_secs_f64(),
            memory: usage.memory,
            memory_peak: usage.memory_peak,
            cpu_seconds: usage.cpu_seconds,
            threads: usage.threads,
            bytes_sent: self.traffic.sent(),
            bytes_received: self.traffic.received(),
            messages_sent: self.activity.messages_sent(),
            steps,
            cache,
            rates: Rates::default(),
        };
        // Before the first status, the process has used nothing.
        let rates = Rates::between(&last.status.take().unwrap_or_default(), &status);
        let status = ProcessStatus { rates, ..status };
        last.status = Some(status.clone());
        status
    }
}
