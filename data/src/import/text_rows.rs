//! A text file whose number of rows is known.

use super::records::Records;
use crate::error::{Error, Result};
use crate::format::plural;

/// The rows of a text file, one per node or edge.
pub(super) struct TextRows {
    /// The current row.
    pub(super) records: Records<'static>,
    rows: u64,
    /// The place that states the number of rows, for error messages.
    count_source: String,
    /// Number of rows that have been read.
    pub(super) read: u64,
}

impl TextRows {
    pub(super) fn new(records: Records<'static>, rows: u64, count_source: &str) -> Self {
        Self { records, rows, count_source: count_source.into(), read: 0 }
    }

    /// Advances to the next row.
    ///
    /// # Errors
    /// When the file ends.
    pub(super) fn advance(&mut self) -> Result<&Records<'static>> {
        if self.records.advance()? {
            self.read += 1;
            return Ok(&self.records);
        }
        let (found, by) = (plural(self.read as usize, "row"), &self.count_source);
        let reason = format!("has {found}, but {by} {}; was it cut off?", self.rows);
        Err(Error::File { path: self.records.path().into(), reason })
    }

    /// Checks that no rows remain.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.records.advance()? {
            true => Err(self.records.wrong(format!("too many rows: {} {}", self.count_source, self.rows))),
            false => Ok(()),
        }
    }
}
