//! Matrices as Flight messages.
//!
//! The body of a message has the bytes of some rows. The first message of a matrix has the matrix's name, shape and number type as metadata, in
//! JSON; later ones have none. Messages with rows hold no Arrow data, because encoding record batches would copy each matrix twice more. A
//! message with other metadata ends a result.

use std::ops::Range;
use std::pin::Pin;

use arrow_flight::FlightData;
use futures_util::{Stream, StreamExt};
use gnnflow_kernels::matrix::{Matrix, Number, Values};
use serde::{Deserialize, Serialize};
use tonic::Status;

/// Approximate maximum bytes of a message's body.
const BODY_BYTES: usize = 256 << 10;
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

/// The metadata of a message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Metadata {
    Matrix(MatrixHeader),
    End(ResultEnd),
}

/// The metadata of a matrix's first message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct MatrixHeader {
    name: Name,
    rows: usize,
    dim: usize,
    number: Number,
}

/// The metadata of the message behind the matrices of a result.
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
    let row = (header.dim * header.number.bytes()).max(1);
    let body = |chunk: &[u8]| FlightData { data_body: chunk.to_vec().into(), ..FlightData::default() };
    let mut messages: Vec<FlightData> = bytes.chunks((BODY_BYTES / row).max(1) * row).map(body).collect();
    if messages.is_empty() {
        messages.push(FlightData::default());
    }
    messages[0].app_metadata = serde_json::to_vec(&Metadata::Matrix(header)).map_err(malformed)?.into();
    Ok(messages)
}

/// Returns the message that ends a result.
pub(super) fn end(end: &ResultEnd) -> Result<FlightData, String> {
    let metadata = serde_json::to_vec(&Metadata::End(*end)).map_err(malformed)?;
    Ok(FlightData { app_metadata: metadata.into(), ..FlightData::default() })
}

/// Reads matrices from a stream of messages.
pub(super) struct Matrices {
    messages: Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>,
}

/// A matrix, or the end of a result.
pub(super) enum Part {
    Matrix(Name, Matrix),
    /// The result is complete.
    End(ResultEnd),
}

impl Matrices {
    pub(super) fn new(messages: impl Stream<Item = Result<FlightData, Status>> + Send + 'static) -> Self {
        Self { messages: Box::pin(messages) }
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
        let Some(first) = self.message().await? else { return Ok(None) };
        if first.app_metadata.is_empty() {
            return Err("sent rows before the header of their matrix".to_owned());
        }
        let header = match serde_json::from_slice(&first.app_metadata).map_err(malformed)? {
            Metadata::Matrix(header) => header,
            Metadata::End(end) => return Ok(Some(Part::End(end))),
        };
        let values = match header.number {
            Number::F32 => Values::F32(self.values(header, first).await?),
            Number::F16 => Values::F16(self.values(header, first).await?),
            Number::Bf16 => Values::Bf16(self.values(header, first).await?),
        };
        Ok(Some(Part::Matrix(header.name, Matrix { values, dim: header.dim })))
    }

    /// Reads the numbers of a matrix, from its first message on.
    async fn values<T: bytemuck::Pod>(&mut self, header: MatrixHeader, first: FlightData) -> Result<Vec<T>, String> {
        let len = header.rows.checked_mul(header.dim).filter(|&numbers| numbers <= MAX_NUMBERS);
        let len = len.ok_or("sent a matrix that is too large")?;
        // At most the announced size, whatever follows.
        let (size, mut message) = (size_of::<T>(), first);
        let mut values: Vec<T> = Vec::with_capacity(len.min((64 << 20) / size));
        loop {
            if !message.data_body.len().is_multiple_of(size) || values.len() + message.data_body.len() / size > len {
                return Err("sent a matrix with more rows than its header says".to_owned());
            }
            values.extend(message.data_body.chunks_exact(size).map(bytemuck::pod_read_unaligned::<T>));
            if values.len() == len {
                return Ok(values);
            }
            message = match self.message().await? {
                Some(message) if message.app_metadata.is_empty() && !message.data_body.is_empty() => message,
                _ => return Err("sent a matrix with fewer rows than its header says".to_owned()),
            };
        }
    }

    async fn message(&mut self) -> Result<Option<FlightData>, String> {
        match self.messages.next().await {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(status)) => Err(super::client::describe(&status)),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all matrices of a stream with these messages.
    fn read(messages: Vec<FlightData>) -> Result<Vec<(Name, Matrix)>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut matrices = Matrices::new(futures_util::stream::iter(messages.into_iter().map(Ok)));
        runtime.block_on(async {
            let mut found = Vec::new();
            while let Some(next) = matrices.next().await? {
                found.push(next);
            }
            Ok(found)
        })
    }

    #[test]
    fn matrices_arrive_as_they_were_sent() {
        let long = BODY_BYTES / 4 + 3;
        for (rows, dim) in [(0, 4), (3, 0), (1, 1), (5, 7), (long, 1), (100, long / 10), (2, long)] {
            let values: Vec<f32> = (0..rows * dim).map(|i| i as f32 - 0.5).collect();
            let matrix = Matrix { values: Values::F32(values), dim };
            let halves = Matrix { values: Values::Bf16(vec![half::bf16::from_f32(1.5); rows * dim]), dim };
            let sent = [(Name::Held, &matrix), (Name::Sent, &halves)];
            let messages = sent.map(|(name, matrix)| super::rows(name, matrix, 0..rows).unwrap()).concat();
            assert!(messages.iter().all(|message| message.data_body.len() <= BODY_BYTES.max(4 * dim)));
            let found = read(messages).unwrap();
            assert_eq!(found, [(Name::Held, matrix), (Name::Sent, halves)], "{rows} rows of {dim}");
        }
    }

    #[test]
    fn messages_that_do_not_fit_their_header_are_refused() {
        let whole = numbers(Name::Flat, &vec![1.0; BODY_BYTES], 1).unwrap();
        assert_eq!(whole.len(), 4);
        let refused = |messages: &[&[FlightData]], text: &str| {
            let error = read(messages.concat()).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        refused(&[&whole[..3]], "fewer rows");
        refused(&[&whole[..3], &whole], "fewer rows");
        refused(&[&whole[..3], &[FlightData::default()]], "fewer rows");
        refused(&[&whole, &whole[3..]], "before the header");
        let body = FlightData { data_body: vec![0; 5].into(), ..FlightData::default() };
        refused(&[&whole[..3], &[body]], "more rows");
        let header = |text: &'static str| FlightData { app_metadata: text.into(), ..FlightData::default() };
        refused(&[&[header("[]")]], "malformed");
        refused(&[&[header(r#"{"name":"Flat","rows":4294967296,"dim":4294967296,"number":"F32"}"#)]], "too large");
        refused(&[&[header(r#"{"loss":null}"#)]], "end of a result");
    }
}
