//! Measures the passes while it passes their progress on.

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
    /// Wall time.
    pub seconds: f64,
    /// What it went through in this process: so many `unit`s.
    pub items: u64,
    /// "nodes", "edges", or nothing.
    pub unit: String,
}

impl PassRecord {
    /// Items a second; 0 when it was too short to tell.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.items as f64 / self.seconds } else { 0.0 }
    }
}

/// Passes progress on, and keeps a record of every stage.
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

    /// The stages so far.
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
