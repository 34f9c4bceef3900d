//! How far a long piece of work has come, told to whoever shows it.

/// Hears about progress. Called from several threads; must be quick.
pub trait Progress: Send + Sync {
    /// A stage begins: `total` units of work, if known (rows, say).
    fn stage(&self, name: &str, total: Option<u64>, unit: &str);
    /// `by` more units of the current stage are done.
    fn advance(&self, by: u64);
    /// The current stage is done.
    fn done(&self);
}

/// Shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn stage(&self, _name: &str, _total: Option<u64>, _unit: &str) {}
    fn advance(&self, _by: u64) {}
    fn done(&self) {}
}
