//! Measures the passes of a preparation, and forwards their progress.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::progress::Progress;

/// One pass over nodes or edges, or another stage of the preparation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassRecord {
    /// Its name.
    pub name: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Number of items that this process handled, in `unit`s.
    pub items: u64,
    /// "nodes", "edges", or empty.
    pub unit: String,
}

impl PassRecord {
    /// Items per second; 0 if the time is too short to measure.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.items as f64 / self.seconds } else { 0.0 }
    }
}

/// Forwards progress and records every stage.
pub(crate) struct Recorder<'a> {
    inner: &'a dyn Progress,
    current: Mutex<Option<(String, String, Instant)>>,
    items: AtomicU64,
    records: Mutex<Vec<PassRecord>>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(inner: &'a dyn Progress) -> Self {
        Self { inner, current: Mutex::new(None), items: AtomicU64::new(0), records: Mutex::new(Vec::new()) }
    }

    /// Returns the completed stages.
    pub(crate) fn records(&self) -> Vec<PassRecord> {
        self.records.lock().map(|records| records.clone()).unwrap_or_default()
    }

    fn close(&self) {
        if let (Ok(mut current), Ok(mut records)) = (self.current.lock(), self.records.lock())
            && let Some((name, unit, began)) = current.take()
        {
            let items = self.items.swap(0, Ordering::Relaxed);
            records.push(PassRecord { name, seconds: began.elapsed().as_secs_f64(), items, unit });
        }
    }
}

impl Progress for Recorder<'_> {
    fn stage(&self, name: &str, total: Option<u64>, unit: &str) {
        self.close();
        if let Ok(mut current) = self.current.lock() {
            *current = Some((name.to_string(), unit.to_string(), Instant::now()));
        }
        self.inner.stage(name, total, unit);
    }

    fn advance(&self, by: u64) {
        self.items.fetch_add(by, Ordering::Relaxed);
        self.inner.advance(by);
    }

    fn done(&self) {
        self.close();
        self.inner.done();
    }
}
