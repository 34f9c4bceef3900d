//! Progress of long operations.

/// Receives progress reports. Methods are called from several threads and must return quickly.
pub trait Progress: Send + Sync {
    /// Starts a stage of `total` units of work (rows, for example), if the total is known.
    fn stage(&self, name: &str, total: Option<u64>, unit: &str);
    /// Starts a stage that is often short. It is shown only while it takes long, and leaves no line behind.
    /// By default it is not shown.
    fn brief_stage(&self, name: &str, total: u64, unit: &str) {
        let _ = (name, total, unit);
    }
    /// Adds `by` completed units to the current stage.
    fn advance(&self, by: u64);
    /// Ends the current stage.
    fn done(&self);
    /// Tells the user something. By default it is not shown.
    fn note(&self, text: &str) {
        let _ = text;
    }
}

/// Ignores all reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn stage(&self, _name: &str, _total: Option<u64>, _unit: &str) {}
    fn advance(&self, _by: u64) {}
    fn done(&self) {}
}
