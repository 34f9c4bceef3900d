//! Tables of results, with rows of all workers.

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use gnnflow_data::format::hex;
use gnnflow_data::fs::{hidden_beside, remove};
use gnnflow_dataflow::flow::in_order::InOrder;
use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::meter::Stage;
use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use timely::container::NoopBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};

use super::parquet_file::{ParquetFile, encode};
use super::parts::write_parts;
use crate::collectives::{Driver, FirstError};
use crate::config::Infer;
use crate::context::WorkerContext;
use crate::error::Error;

/// Messages of one worker in flight.
const WINDOW: u32 = 8;

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

/// The form of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableForm {
    /// A folder with a file for each partition, instead of one file.
    pub(crate) parts: bool,
    /// Maximum number of rows in a row group; `None` for as many as take a number of bytes.
    pub(crate) row_group_size: Option<usize>,
}

impl TableForm {
    /// One file.
    pub(crate) const FILE: Self = Self { parts: false, row_group_size: None };

    /// The form that `[infer]` wants.
    pub(crate) fn of(infer: Option<&Infer>) -> Self {
        infer.map_or(Self::FILE, |infer| Self { parts: infer.parts, row_group_size: infer.row_group_size })
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

/// Writes a table with `nodes[p]` rows of each partition `p`, in the order of global ids. Returns the SHA-256 of all rows at the first
/// worker, and an empty string at the others. That of a table in parts is the SHA-256 of those of the parts.
pub(crate) fn write_table(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<String, Error> {
    let digest = if table.form.parts {
        write_parts(driver, context, nodes, table)?
    } else {
        write_file(driver, context, nodes, table)?
    };
    Ok(digest.map_or(String::new(), |digest| hex(&digest)))
}

/// Writes one file at the first worker, to which all workers send their rows.
fn write_file(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<Option<[u8; 32]>, Error> {
    let create = || {
        // A killed process has left parts.
        let parts = hidden_beside(&table.path, "new");
        remove(&parts).map_err(Error::io("remove", &parts))?;
        ParquetFile::create(&table.path, table)
    };
    let file = (context.worker == 0).then(create).transpose()?;
    let file = Rc::new(RefCell::new(file));
    let target = Rc::clone(&file);
    let mut messages = Messages::new(driver, context, move |bytes| {
        target.borrow_mut().as_mut().expect("the first worker receives all rows and has the file").write(bytes)
    });
    let (progress, hosted) = (driver.runtime.progress(), context.placement.parts_of(context.worker));
    progress.brief_stage(&format!("write {}", table.name()), nodes[hosted].iter().sum(), "rows");
    for (part, &nodes) in nodes.iter().enumerate() {
        for (step, range) in table.ranges(nodes).enumerate() {
            messages.advance_to(time::at(part as u32, step as u32));
            if context.placement.worker_of(part) == context.worker {
                let rows = (table.rows)(part, range)?;
                progress.advance(rows.num_rows() as u64);
                messages.send(encode(&rows)?);
            }
            messages.wait(driver, time::at(part as u32, (step as u32).saturating_sub(WINDOW)))?;
        }
    }
    messages.barrier(driver, time::at(nodes.len() as u32, 0))?;
    progress.done();
    drop(messages);
    let file = file.borrow_mut().take();
    file.map(ParquetFile::finish).transpose()
}

/// A dataflow that brings messages to the first worker, in the order of times.
pub(super) struct Messages<'a> {
    input: InputHandle<u64, NoopBuilder<WireBlock>>,
    probe: probe::Handle<u64>,
    errors: FirstError,
    context: &'a WorkerContext,
    now: u64,
}

impl<'a> Messages<'a> {
    /// Builds the dataflow. The first worker calls `receive` for each message.
    pub(super) fn new(
        driver: &mut Driver<'_>,
        context: &'a WorkerContext,
        mut receive: impl FnMut(&[u8]) -> Result<(), Error> + 'static,
    ) -> Self {
        let (errors, probe) = (FirstError::default(), probe::Handle::new());
        let mut input = InputHandle::<u64, NoopBuilder<WireBlock>>::new_with_builder();
        let first_error = errors.clone();
        driver.worker.dataflow::<u64, _, _>(|scope| {
            scope
                .input_from(&mut input)
                .in_order()
                .inspect(move |(_, bytes)| {
                    first_error.capture(receive(bytes));
                })
                .probe_with(&probe);
        });
        Self { input, probe, errors, context, now: 0 }
    }

    /// Ends this worker's messages before `time`.
    pub(super) fn advance_to(&mut self, time: u64) {
        self.input.advance_to(time);
        self.now = time;
    }

    /// Sends a message at the present time.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        let header = Header { from: self.context.worker as u32, key: self.now, ..Header::default() };
        let mut block = WireBlock::new(header, vec![], vec![], Rows::Bytes(bytes));
        self.context.other_meter.sent(self.context.worker, Stage::Fetch, &block);
        self.input.send_batch(&mut block);
    }

    /// Waits until the first worker has received all messages before `time`.
    pub(super) fn wait(&self, driver: &mut Driver<'_>, time: u64) -> Result<(), Error> {
        driver.run_until(&self.probe, time, &self.errors)
    }

    /// Lets the dataflow do what is ready, without waiting.
    pub(super) fn poll(&self, driver: &mut Driver<'_>) -> Result<(), Error> {
        driver.poll(&self.errors)
    }

    /// Waits until all workers have come to `time`.
    pub(super) fn barrier(&mut self, driver: &mut Driver<'_>, time: u64) -> Result<(), Error> {
        self.advance_to(time);
        self.wait(driver, time)
    }
}
