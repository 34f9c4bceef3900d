//! The status of one process of a run.

use gnnflow_pipelines::Stage;
use serde::{Deserialize, Serialize};

/// Maximum characters of a text in a status, so that a status fits into a frame of a control connection.
pub(super) const TEXT: usize = 200;

/// What a process does, and what it has used so far. Times are in seconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProcessStatus {
    pub(crate) rank: usize,
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Time since the process began the run.
    pub(crate) seconds: f64,
    pub(crate) stage: Stage,
    /// The part of the stage that has an amount.
    pub(crate) work: Option<Work>,
    /// The last long work of the worker's thread.
    pub(crate) label: String,
    /// Completed timestamps and jobs, and pieces of other work.
    pub(crate) completed: u64,
    /// Time since the last one.
    pub(crate) idle_seconds: f64,
    pub(crate) memory: u64,
    pub(crate) memory_peak: u64,
    /// CPU time of all threads, of the user and of the system.
    pub(crate) cpu_seconds: f64,
    pub(crate) threads: u64,
    /// Bytes on connections between processes. Those of encryption count, those of heartbeats and tensor workers do not.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    /// Messages of the dataflows to other processes.
    pub(crate) messages_sent: u64,
    /// Steps of training or, in full-graph training, stages.
    pub(crate) steps: u64,
    /// The cache of other workers' features, if there is one.
    pub(crate) cache: Option<Cache>,
    pub(crate) rates: Rates,
}

/// Work of a known amount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) name: String,
    pub(crate) unit: String,
    pub(crate) done: u64,
    pub(crate) total: Option<u64>,
}

impl Work {
    /// Returns the share that is done, if the amount is known.
    pub(crate) fn share(&self) -> Option<f64> {
        let total = self.total.filter(|&total| total > 0)?;
        Some((self.done as f64 / total as f64).min(1.0))
    }
}

/// Rows that were looked up in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Cache {
    /// Returns the share of hits.
    pub(crate) fn hit_rate(self) -> f64 {
        self.hits as f64 / self.hits.saturating_add(self.misses).max(1) as f64
    }
}

/// Amounts per second, since the status before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// CPU seconds per second: the number of busy cores.
    pub(crate) cpu: f64,
    pub(crate) bytes_sent: f64,
    pub(crate) bytes_received: f64,
    pub(crate) messages_sent: f64,
    pub(crate) steps: f64,
}

impl Rates {
    /// Returns what was used per second between two statuses of a process.
    pub(super) fn between(before: &ProcessStatus, now: &ProcessStatus) -> Self {
        let seconds = (now.seconds - before.seconds).max(1e-3);
        let rate = |of: fn(&ProcessStatus) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
        Self {
            cpu: (now.cpu_seconds - before.cpu_seconds).max(0.0) / seconds,
            bytes_sent: rate(|of| of.bytes_sent),
            bytes_received: rate(|of| of.bytes_received),
            messages_sent: rate(|of| of.messages_sent),
            steps: rate(|of| of.steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_since_the_status_before() {
        let before =
            ProcessStatus { seconds: 10.0, cpu_seconds: 5.0, bytes_sent: 100, steps: 7, ..ProcessStatus::default() };
        let now =
            ProcessStatus { seconds: 12.0, cpu_seconds: 8.0, bytes_sent: 1100, steps: 17, ..ProcessStatus::default() };
        let rates = Rates::between(&before, &now);
        assert_eq!((rates.cpu, rates.bytes_sent, rates.bytes_received, rates.steps), (1.5, 500.0, 0.0, 5.0));
    }

    #[test]
    fn status_with_the_longest_texts_fits_into_a_frame() {
        let text = "\u{1}".repeat(TEXT);
        let work = Work { name: text.clone(), unit: text.clone(), done: u64::MAX, total: Some(u64::MAX) };
        let status = ProcessStatus {
            host: text.clone(),
            label: text,
            work: Some(work),
            seconds: f64::MAX,
            memory: u64::MAX,
            bytes_sent: u64::MAX,
            cache: Some(Cache { hits: u64::MAX, misses: u64::MAX }),
            ..ProcessStatus::default()
        };
        assert!(serde_json::to_vec(&status).unwrap().len() < 8 << 10);
    }
}
