//! A table of results: its rows, and its form.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use gnnflow_dataflow::wire::MESSAGE_BYTES;

use crate::config::Infer;
use crate::error::Error;

/// Returns the rows of a range of one partition's nodes, given by local ids.
type MakeRows<'a> = &'a dyn Fn(usize, Range<usize>) -> Result<RecordBatch, Error>;

/// A table with rows of all workers.
pub(crate) struct Table<'a> {
    /// A file, or a folder of parts.
    pub(crate) path: PathBuf,
    pub(crate) form: TableForm,
    pub(crate) schema: Arc<Schema>,
    /// Approximate bytes of a row.
    pub(crate) row_bytes: usize,
    pub(crate) rows: MakeRows<'a>,
}

/// The files of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// One file.
    One,
    /// A folder with a file for each partition.
    ByPartition,
}

/// The form of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableForm {
    pub(crate) files: Files,
    /// Maximum number of rows in a row group; `None` for as many as take a number of bytes.
    pub(crate) row_group_size: Option<usize>,
}

impl TableForm {
    /// The form that `[infer]` sets.
    pub(crate) fn of(infer: Option<&Infer>) -> Self {
        let files = if infer.is_some_and(|infer| infer.parts) { Files::ByPartition } else { Files::One };
        Self { files, ..Self::one_file(infer) }
    }

    /// One file, with the row groups that `[infer]` sets.
    pub(crate) fn one_file(infer: Option<&Infer>) -> Self {
        Self { files: Files::One, row_group_size: infer.and_then(|infer| infer.row_group_size) }
    }
}

impl Table<'_> {
    /// The ranges of `nodes` rows that fit messages.
    pub(super) fn ranges(&self, nodes: u64) -> impl Iterator<Item = Range<usize>> + use<> {
        let (most, nodes) = ((MESSAGE_BYTES / self.row_bytes.max(1)).max(1), nodes as usize);
        (0..nodes).step_by(most).map(move |first| first..(first + most).min(nodes))
    }

    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}
