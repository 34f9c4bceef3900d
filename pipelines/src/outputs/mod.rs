//! Outputs of a run: predictions and embeddings as Parquet, the model as safetensors.
//!
//! All workers send their rows to the first worker, in the order of global ids, in messages of bounded size and with the
//! user's ids. The first worker writes the files.

pub(crate) mod columns;
pub(crate) mod embedding_rows;
mod event_file;
pub(crate) mod output_nodes;
pub(crate) mod run_folder;
pub(crate) mod settings;
pub mod summary;
mod trace_file;
pub mod trace_table;
pub(crate) mod work_log;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, LargeStringArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::{reader::StreamReader, writer::StreamWriter};
use gnnflow_data::dataset::{IdColumn, Manifest};
use gnnflow_data::format::hex;
use gnnflow_data::fs::temporary_file;
use gnnflow_dataflow::flow::in_order::InOrder;
use gnnflow_dataflow::time;
use gnnflow_dataflow::wire::meter::Stage;
use gnnflow_dataflow::wire::{Header, MESSAGE_BYTES, Rows, WireBlock};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use sha2::{Digest, Sha256};
use timely::container::NoopBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::core::Inspect;
use timely::dataflow::operators::{Input, Probe, probe};

use crate::collectives::{Driver, FirstError};
use crate::context::{FeatureStore, WorkerContext};
use crate::error::Error;
use crate::outputs::columns::arrow_bug;
use crate::outputs::embedding_rows::EmbeddingRows;
use crate::outputs::output_nodes::OutputNodes;

/// Bytes of a Parquet row group, before compression.
const ROW_GROUP_BYTES: usize = 64 << 20;
/// Messages of one worker in flight.
const WINDOW: u32 = 8;

/// Returns the rows of a range of one partition's nodes, given by local ids.
type MakeRows<'a> = &'a dyn Fn(usize, std::ops::Range<usize>) -> Result<RecordBatch, Error>;

/// A Parquet file with rows of all workers.
pub(crate) struct Table<'a> {
    pub(crate) path: PathBuf,
    pub(crate) schema: Arc<Schema>,
    /// Approximate bytes of a row.
    pub(crate) row_bytes: usize,
    pub(crate) rows: MakeRows<'a>,
}

/// Writes the rows of all workers to one file, in the order of global ids. Returns the SHA-256 of all rows at the first
/// worker, and an empty string at the others.
pub(crate) fn write_table(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    nodes: &[u64],
    table: &Table<'_>,
) -> Result<String, Error> {
    let per_message = (MESSAGE_BYTES / table.row_bytes.max(1)).max(1);
    let errors = FirstError::default();
    let file = match context.worker {
        0 => Some(ParquetFile::create(&table.path, &table.schema, table.row_bytes)?),
        _ => None,
    };
    let file = Rc::new(RefCell::new(file));
    let mut input = InputHandle::<u64, NoopBuilder<WireBlock>>::new_with_builder();
    let probe = probe::Handle::new();
    let (first_error, target, meter) = (errors.clone(), Rc::clone(&file), Rc::clone(&context.other_meter));
    driver.worker.dataflow::<u64, _, _>(|scope| {
        scope
            .input_from(&mut input)
            .in_order()
            .inspect(move |(_, bytes)| {
                let mut file = target.borrow_mut();
                let file = file.as_mut().expect("the first worker receives all rows and has the file");
                first_error.capture(file.write(bytes));
            })
            .probe_with(&probe);
    });
    let (progress, hosted) = (driver.runtime.progress(), context.placement.parts_of(context.worker));
    let name = table.path.file_name().unwrap_or_default().to_string_lossy();
    progress.brief_stage(&format!("write {name}"), nodes[hosted].iter().sum(), "rows");
    for (part, &nodes) in nodes.iter().enumerate() {
        for (step, first) in (0..nodes as usize).step_by(per_message).enumerate() {
            let now = time::at(part as u32, step as u32);
            input.advance_to(now);
            if context.placement.worker_of(part) == context.worker {
                let rows = (table.rows)(part, first..(first + per_message).min(nodes as usize))?;
                progress.advance(rows.num_rows() as u64);
                let header = Header { from: context.worker as u32, key: now, ..Header::default() };
                let mut block = WireBlock::new(header, vec![], vec![], Rows::Bytes(encode(&rows)?));
                meter.sent(context.worker, Stage::Fetch, &block);
                input.send_batch(&mut block);
            }
            let behind = time::at(part as u32, (step as u32).saturating_sub(WINDOW));
            driver.run_until(&probe, behind, &errors)?;
        }
    }
    let end = time::at(nodes.len() as u32, 0);
    input.advance_to(end);
    driver.run_until(&probe, end, &errors)?;
    progress.done();
    drop(input);
    let file = file.borrow_mut().take();
    file.map_or(Ok(String::new()), ParquetFile::finish)
}

fn encode(rows: &RecordBatch) -> Result<Vec<u8>, Error> {
    let mut writer = StreamWriter::try_new(Vec::new(), &rows.schema()).map_err(arrow_bug)?;
    writer.write(rows).map_err(arrow_bug)?;
    writer.into_inner().map_err(arrow_bug)
}

/// A Parquet file with a temporary name until it is complete.
struct ParquetFile {
    path: PathBuf,
    writer: ArrowWriter<File>,
    temporary: tempfile::TempPath,
    hash: Sha256,
}

impl ParquetFile {
    fn create(path: &Path, schema: &Arc<Schema>, row_bytes: usize) -> Result<Self, Error> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let (file, temporary) = temporary_file(folder).map_err(Error::io("write", path))?.into_parts();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some((ROW_GROUP_BYTES / row_bytes.max(1)).clamp(1024, 1 << 20)))
            .build();
        let writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties)).map_err(arrow_bug)?;
        Ok(Self { path: path.to_owned(), writer, temporary, hash: Sha256::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.hash.update(bytes);
        for rows in StreamReader::try_new(bytes, None).map_err(arrow_bug)? {
            let written = self.writer.write(&rows.map_err(arrow_bug)?);
            written.map_err(|error| failed(&self.path, error))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<String, Error> {
        let path = self.path;
        let file = self.writer.into_inner().map_err(|error| failed(&path, error))?;
        file.sync_all().map_err(Error::io("write", &path))?;
        self.temporary.persist(&path).map_err(|error| Error::io("write", &path)(error.error))?;
        Ok(hex(&self.hash.finalize()))
    }
}

/// Converts an error of the Parquet writer, which is an error of the system.
fn failed(path: &Path, error: parquet::errors::ParquetError) -> Error {
    let source = match error {
        parquet::errors::ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(source) => *source,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    };
    Error::Io { action: "write", path: path.to_owned(), source }
}

/// Returns the user's ids of some nodes of a partition, given by local ids.
pub(crate) fn ids(parts: &FeatureStore, part: usize, nodes: impl Iterator<Item = usize>) -> ArrayRef {
    match parts.get(part).nodes.ids() {
        IdColumn::Int(ids) => Arc::new(Int64Array::from_iter_values(nodes.map(|node| ids[node]))),
        IdColumn::Text(ids) => Arc::new(LargeStringArray::from_iter_values(nodes.map(|node| ids.value(node)))),
    }
}

pub(crate) fn id_field(manifest: &Manifest) -> Field {
    let kind = match manifest.ids {
        gnnflow_data::dataset::IdKind::Text => DataType::LargeUtf8,
        _ => DataType::Int64,
    };
    Field::new("node_id", kind, false)
}

/// Writes `embeddings.parquet` or `node_embeddings.parquet`: `node_id`, `embedding`, in the form of `rows`. `row` returns the `dim`
/// values of a node of this worker.
pub(crate) fn embeddings<'a>(
    driver: &mut Driver<'_>,
    context: &WorkerContext,
    (manifest, nodes): (&Manifest, &OutputNodes),
    (rows, dim, row): (EmbeddingRows, usize, impl Fn(u32) -> &'a [f32]),
    path: PathBuf,
) -> Result<String, Error> {
    let fields = vec![id_field(manifest), Field::new("embedding", rows.column_type(dim), false)];
    let schema = Arc::new(Schema::new(fields));
    let make = |part: usize, range: std::ops::Range<usize>| {
        let (first, locals) = (context.parts.get(part).range.start as u32, nodes.locals(context, part, range));
        let values = rows.column(dim, locals.iter().map(|&local| row(first + local as u32)))?;
        RecordBatch::try_new(Arc::clone(&schema), vec![ids(&context.parts, part, locals.into_iter()), values])
            .map_err(arrow_bug)
    };
    let table = Table { path, schema: Arc::clone(&schema), row_bytes: 16 + 4 * dim, rows: &make };
    write_table(driver, context, nodes.counts(), &table)
}
