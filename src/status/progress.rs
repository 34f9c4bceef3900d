//! Progress that is shown on the terminal and in the status.

use gnnflow_data::progress::Progress;

use super::activity::Activity;
use crate::console::Console;

/// Passes progress on to a console, and records it.
#[derive(Clone, Debug)]
pub(crate) struct RecordedProgress {
    pub(crate) console: Console,
    pub(crate) activity: Activity,
}

impl Progress for RecordedProgress {
    fn stage(&self, name: &str, total: Option<u64>, unit: &str) {
        self.activity.begin_work(name, total, unit);
        self.console.stage(name, total, unit);
    }

    fn brief_stage(&self, name: &str, total: u64, unit: &str) {
        self.activity.begin_work(name, Some(total), unit);
        self.console.brief_stage(name, total, unit);
    }

    fn advance(&self, by: u64) {
        // The console gives a sign of life.
        self.activity.advance(by);
        self.console.advance(by);
    }

    fn done(&self) {
        self.activity.end_work();
        self.console.done();
    }

    fn note(&self, text: &str) {
        self.console.note(text);
    }
}
