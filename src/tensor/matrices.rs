//! Matrices as Flight messages: a schema with the matrix's name, shape and number type as metadata, and record batches of one column, in
//! which a row is one binary value of fixed size. A schema of no columns ends an answer.

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

/// Bytes of a record batch, more or less.
const BATCH: usize = 128 << 10;
/// Numbers of one matrix that are taken from anybody: 16 GiB of them.
const MOST: usize = 1 << 32;

/// Which matrix.
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
    Flat,
}

/// What stands before a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Head {
    name: Name,
    rows: usize,
    dim: usize,
    number: Number,
}

/// What stands behind the matrices of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tells {
    /// The bits of the loss, and how many examples it is of; nothing of the way forwards.
    pub(super) loss: Option<(u64, u64)>,
}

/// Something that is no message of ours.
pub(super) fn broken(error: impl std::fmt::Display) -> String {
    format!("sent what is no answer: {error}")
}

/// Numbers as the messages of a matrix.
pub(super) fn numbers(name: Name, values: &[f32], dim: usize) -> Result<Vec<FlightData>, String> {
    let rows = values.len().checked_div(dim).unwrap_or(0);
    messages(Head { name, rows, dim, number: Number::F32 }, bytemuck::cast_slice(values))
}

/// Words of 32 bits, as a matrix of one column.
pub(super) fn words(name: Name, words: &[u32]) -> Result<Vec<FlightData>, String> {
    messages(Head { name, rows: words.len(), dim: 1, number: Number::F32 }, bytemuck::cast_slice(words))
}

/// Some rows of a matrix.
pub(super) fn rows(name: Name, matrix: &Matrix, rows: Range<usize>) -> Result<Vec<FlightData>, String> {
    let row = matrix.row_bytes();
    let bytes = matrix.bytes().get(rows.start * row..rows.end * row);
    let bytes = bytes.ok_or_else(|| format!("{name:?} has fewer rows than its task"))?;
    messages(Head { name, rows: rows.len(), dim: matrix.dim, number: matrix.number() }, bytes)
}

fn messages(head: Head, bytes: &[u8]) -> Result<Vec<FlightData>, String> {
    let row = head.dim * head.number.bytes();
    let size = i32::try_from(row).map_err(|_| format!("a row of {row} bytes is too long"))?;
    let schema = Arc::new(Schema::new(vec![Field::new("rows", DataType::FixedSizeBinary(size), false)]));
    let mut batches = Vec::new();
    if let Some(rows) = BATCH.checked_div(row) {
        for chunk in bytes.chunks(rows.max(1) * row) {
            let rows = FixedSizeBinaryArray::try_new(size, Buffer::from(chunk), None).map_err(broken)?;
            batches.push(RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(rows)]).map_err(broken)?);
        }
    }
    headed(&schema, &batches, &head)
}

/// The message that ends an answer.
pub(super) fn end(tells: &Tells) -> Result<Vec<FlightData>, String> {
    headed(&Schema::empty(), &[], tells)
}

fn headed(schema: &Schema, batches: &[RecordBatch], head: &impl Serialize) -> Result<Vec<FlightData>, String> {
    let mut messages = batches_to_flight_data(schema, batches).map_err(broken)?;
    if let Some(first) = messages.first_mut() {
        first.app_metadata = serde_json::to_vec(head).map_err(broken)?.into();
    }
    Ok(messages)
}

/// Matrices, as they come.
pub(super) struct Matrices {
    decoder: FlightDataDecoder,
}

/// What comes among matrices.
pub(super) enum Part {
    Matrix(Name, Matrix),
    /// An answer is whole.
    End(Tells),
}

enum Message {
    Head(Head),
    Rows(FixedSizeBinaryArray),
    End(Tells),
}

impl Matrices {
    pub(super) fn new<S>(messages: S) -> Self
    where
        S: Stream<Item = Result<FlightData, tonic::Status>> + Send + 'static,
    {
        Self { decoder: FlightDataDecoder::new(messages.map_err(|status| FlightError::Tonic(Box::new(status)))) }
    }

    /// The next matrix; nothing at the end.
    ///
    /// # Errors
    /// When a message is none of a matrix.
    pub(super) async fn next(&mut self) -> Result<Option<(Name, Matrix)>, String> {
        match self.part().await? {
            None => Ok(None),
            Some(Part::Matrix(name, matrix)) => Ok(Some((name, matrix))),
            Some(Part::End(_)) => Err(broken("an end where rows belong")),
        }
    }

    /// The next matrix of an answer, or what stands behind them; nothing at the end.
    ///
    /// # Errors
    /// When a message is none of an answer.
    pub(super) async fn part(&mut self) -> Result<Option<Part>, String> {
        let head = match self.message().await? {
            None => return Ok(None),
            Some(Message::Head(head)) => head,
            Some(Message::End(tells)) => return Ok(Some(Part::End(tells))),
            Some(Message::Rows(_)) => return Err("rows of no matrix".to_owned()),
        };
        let row = head.dim.checked_mul(head.number.bytes());
        let len = head.rows.checked_mul(head.dim).filter(|&numbers| numbers <= MOST);
        let (Some(row), Some(len)) = (row, len) else { return Err("a matrix that is too large".to_owned()) };
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < row * head.rows {
            match self.message().await? {
                Some(Message::Rows(rows)) => {
                    if bytes.is_empty() {
                        // No more than has been said, whatever comes.
                        bytes.reserve_exact((row * head.rows).min(64 << 20));
                    }
                    bytes.extend_from_slice(rows.value_data());
                }
                _ => return Err("a matrix of fewer rows than it said".to_owned()),
            }
        }
        if bytes.len() != row * head.rows {
            return Err("a matrix of more rows than it said".to_owned());
        }
        let values = match head.number {
            Number::F32 => Values::F32(copied(&bytes, len)),
            Number::F16 => Values::F16(copied(&bytes, len)),
            Number::Bf16 => Values::Bf16(copied(&bytes, len)),
        };
        Ok(Some(Part::Matrix(head.name, Matrix { values, dim: head.dim })))
    }

    async fn message(&mut self) -> Result<Option<Message>, String> {
        let Some(decoded) = self.decoder.next().await else { return Ok(None) };
        let decoded = decoded.map_err(|error| match error {
            FlightError::Tonic(status) => super::auth::refusal(&status),
            error => broken(error),
        })?;
        let said = &decoded.inner.app_metadata[..];
        Ok(Some(match decoded.payload {
            DecodedPayload::Schema(schema) if schema.fields().is_empty() => {
                Message::End(serde_json::from_slice(said).map_err(broken)?)
            }
            DecodedPayload::Schema(_) => Message::Head(serde_json::from_slice(said).map_err(broken)?),
            DecodedPayload::RecordBatch(batch) => {
                let rows =
                    batch.columns().first().and_then(|rows| rows.as_any().downcast_ref::<FixedSizeBinaryArray>());
                Message::Rows(rows.ok_or_else(|| broken("rows that are no binary values"))?.clone())
            }
            DecodedPayload::None => return Err(broken("an empty message")),
        }))
    }
}

/// Numbers from bytes, wherever these lie.
fn copied<T: bytemuck::Pod>(bytes: &[u8], len: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); len];
    bytemuck::cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    values
}

/// The numbers of a matrix that has 32-bit ones.
pub(super) fn plain(matrix: Matrix) -> Result<Vec<f32>, String> {
    match matrix.values {
        Values::F32(values) => Ok(values),
        _ => Err("half numbers where whole ones belong".to_owned()),
    }
}
