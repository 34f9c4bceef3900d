//! Matrices as Flight messages.
//!
//! A matrix is a schema, with the matrix's name, shape and number type as metadata, and record batches of one column, in which a row
//! is one binary value of fixed size. A schema without columns ends a result.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, FixedSizeBinaryArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow_flight::FlightData;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::utils::batches_to_flight_data;
use futures_util::{Stream, StreamExt, TryStreamExt};
use gnnflow_kernels::matrix::{Matrix, Number, Values};
use serde::{Deserialize, Serialize};

/// Approximate bytes of a record batch.
const BATCH_BYTES: usize = 128 << 10;
/// Maximum numbers in a received matrix: 16 GiB.
const MAX_NUMBERS: usize = 1 << 32;

/// The name of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Name {
    Held,
    Aggregated,
    Initial,
    Sent,
    Left,
    Right,
    GradientHeld,
    Targets,
    Weights,
    Flat,
}

/// The metadata before a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct MatrixHeader {
    name: Name,
    rows: usize,
    dim: usize,
    number: Number,
}

/// The metadata behind the matrices of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResultEnd {
    /// The bits of the loss and its number of examples; `None` for a forward task.
    pub(super) loss: Option<(u64, u64)>,
}

/// Describes a message that does not follow the protocol.
pub(super) fn malformed(error: impl std::fmt::Display) -> String {
    format!("sent a malformed message: {error}")
}

/// Returns the messages of a matrix of 32-bit floats with `dim` columns.
pub(super) fn numbers(name: Name, values: &[f32], dim: usize) -> Result<Vec<FlightData>, String> {
    let rows = values.len().checked_div(dim).unwrap_or(0);
    messages(MatrixHeader { name, rows, dim, number: Number::F32 }, bytemuck::cast_slice(values))
}

/// Returns the messages of 32-bit words, as a matrix of one column.
pub(super) fn words(name: Name, words: &[u32]) -> Result<Vec<FlightData>, String> {
    messages(MatrixHeader { name, rows: words.len(), dim: 1, number: Number::F32 }, bytemuck::cast_slice(words))
}

/// Returns the messages of some rows of a matrix.
pub(super) fn rows(name: Name, matrix: &Matrix, rows: Range<usize>) -> Result<Vec<FlightData>, String> {
    let row = matrix.row_bytes();
    let bytes = matrix.bytes().get(rows.start * row..rows.end * row);
    let bytes = bytes.ok_or_else(|| format!("{name:?} has fewer rows than its task"))?;
    messages(MatrixHeader { name, rows: rows.len(), dim: matrix.dim, number: matrix.number() }, bytes)
}

fn messages(header: MatrixHeader, bytes: &[u8]) -> Result<Vec<FlightData>, String> {
    let row = header.dim * header.number.bytes();
    let size = i32::try_from(row).map_err(|_| format!("a row of {row} bytes is too long"))?;
    let schema = Arc::new(Schema::new(vec![Field::new("rows", DataType::FixedSizeBinary(size), false)]));
    let mut batches = Vec::new();
    if let Some(rows) = BATCH_BYTES.checked_div(row) {
        for chunk in bytes.chunks(rows.max(1) * row) {
            let rows = FixedSizeBinaryArray::try_new(size, Buffer::from(chunk), None).map_err(malformed)?;
            batches.push(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(rows)]).map_err(malformed)?);
        }
    }
    with_metadata(&schema, &batches, &header)
}

/// Returns the message that ends a result.
pub(super) fn end(end: &ResultEnd) -> Result<Vec<FlightData>, String> {
    with_metadata(&Schema::empty(), &[], end)
}

fn with_metadata(
    schema: &Schema,
    batches: &[RecordBatch],
    metadata: &impl Serialize,
) -> Result<Vec<FlightData>, String> {
    let mut messages = batches_to_flight_data(schema, batches).map_err(malformed)?;
    if let Some(first) = messages.first_mut() {
        first.app_metadata = serde_json::to_vec(metadata).map_err(malformed)?.into();
    }
    Ok(messages)
}

/// Reads matrices from a stream of messages.
pub(super) struct Matrices {
    decoder: FlightDataDecoder,
}

/// A matrix, or the end of a result.
pub(super) enum Part {
    Matrix(Name, Matrix),
    /// The result is complete.
    End(ResultEnd),
}

enum Message {
    Header(MatrixHeader),
    Rows(FixedSizeBinaryArray),
    End(ResultEnd),
}

impl Matrices {
    pub(super) fn new<S>(messages: S) -> Self
    where
        S: Stream<Item = Result<FlightData, tonic::Status>> + Send + 'static,
    {
        Self { decoder: FlightDataDecoder::new(messages.map_err(|status| FlightError::Tonic(Box::new(status)))) }
    }

    /// Returns the next matrix; `None` at the end of the stream.
    ///
    /// # Errors
    /// If a message does not belong to a matrix.
    pub(super) async fn next(&mut self) -> Result<Option<(Name, Matrix)>, String> {
        match self.part().await? {
            None => Ok(None),
            Some(Part::Matrix(name, matrix)) => Ok(Some((name, matrix))),
            Some(Part::End(_)) => Err(malformed("the end of a result instead of rows")),
        }
    }

    /// Returns the next matrix or the end of a result; `None` at the end of the stream.
    ///
    /// # Errors
    /// If a message does not belong to a result.
    pub(super) async fn part(&mut self) -> Result<Option<Part>, String> {
        let header = match self.message().await? {
            None => return Ok(None),
            Some(Message::Header(header)) => header,
            Some(Message::End(end)) => return Ok(Some(Part::End(end))),
            Some(Message::Rows(_)) => return Err("sent rows before the header of their matrix".to_owned()),
        };
        let row = header.dim.checked_mul(header.number.bytes());
        let len = header.rows.checked_mul(header.dim).filter(|&numbers| numbers <= MAX_NUMBERS);
        let (Some(row), Some(len)) = (row, len) else { return Err("sent a matrix that is too large".to_owned()) };
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < row * header.rows {
            match self.message().await? {
                Some(Message::Rows(rows)) => {
                    if bytes.is_empty() {
                        // At most the announced size, whatever follows.
                        bytes.reserve_exact((row * header.rows).min(64 << 20));
                    }
                    bytes.extend_from_slice(rows.value_data());
                }
                _ => return Err("sent a matrix with fewer rows than its header says".to_owned()),
            }
        }
        if bytes.len() != row * header.rows {
            return Err("sent a matrix with more rows than its header says".to_owned());
        }
        let values = match header.number {
            Number::F32 => Values::F32(copied(&bytes, len)),
            Number::F16 => Values::F16(copied(&bytes, len)),
            Number::Bf16 => Values::Bf16(copied(&bytes, len)),
        };
        Ok(Some(Part::Matrix(header.name, Matrix { values, dim: header.dim })))
    }

    async fn message(&mut self) -> Result<Option<Message>, String> {
        let Some(decoded) = self.decoder.next().await else { return Ok(None) };
        let decoded = decoded.map_err(|error| match error {
            FlightError::Tonic(status) => super::auth::describe(&status),
            error => malformed(error),
        })?;
        let metadata = &decoded.inner.app_metadata[..];
        Ok(Some(match decoded.payload {
            DecodedPayload::Schema(schema) if schema.fields().is_empty() => {
                Message::End(serde_json::from_slice(metadata).map_err(malformed)?)
            }
            DecodedPayload::Schema(_) => Message::Header(serde_json::from_slice(metadata).map_err(malformed)?),
            DecodedPayload::RecordBatch(batch) => {
                let rows =
                    batch.columns().first().and_then(|rows| rows.as_any().downcast_ref::<FixedSizeBinaryArray>());
                Message::Rows(rows.ok_or_else(|| malformed("rows that are not binary values"))?.clone())
            }
            DecodedPayload::None => return Err(malformed("an empty message")),
        }))
    }
}

/// Copies numbers from bytes of any alignment.
fn copied<T: bytemuck::Pod>(bytes: &[u8], len: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); len];
    bytemuck::cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    values
}

/// Returns the numbers of a matrix of 32-bit floats.
///
/// # Errors
/// If the matrix has 16-bit floats.
pub(super) fn floats(matrix: Matrix) -> Result<Vec<f32>, String> {
    match matrix.values {
        Values::F32(values) => Ok(values),
        _ => Err("sent 16-bit floats instead of 32-bit ones".to_owned()),
    }
}
