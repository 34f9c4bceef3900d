//! Tasks and results as Flight messages.
//!
//! A question is a descriptor, then matrices; an answer is what is not a matrix, as metadata, then matrices. A matrix is a schema with
//! its name, shape and number type as metadata, and record batches of one column: a row is one binary value of fixed size.

use std::sync::Arc;

use arrow::array::{Array, FixedSizeBinaryArray, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::utils::batches_to_flight_data;
use arrow_flight::{FlightData, FlightDescriptor};
use futures_util::{Stream, StreamExt, TryStreamExt};
use gnnflow_data::rng::Key;
use gnnflow_operators::compute::model::{ModelSpec, NodeOutputs};
use gnnflow_operators::fetch::matrix::{Matrix, Number, Values};
use gnnflow_pipelines::tensor::{NodeBack, NodeGradient, NodeRows, NodeTargets, TensorResult, TensorTask, Work};
use serde::{Deserialize, Serialize};

/// Bytes of a record batch, more or less.
const BATCH: usize = 128 << 10;
/// Numbers of one matrix that are taken from anybody: 16 GiB of them.
const MOST: usize = 1 << 32;

/// A task but for its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) model: ModelSpec,
    /// Whose versions these are.
    pub(super) run: String,
    pub(super) version: u64,
    /// Who has them: the one that was chosen, then the one that asks.
    pub(super) servers: Vec<String>,
    pub(super) index: usize,
    pub(super) count: usize,
    /// How many matrices the way forwards reads.
    pub(super) rows: usize,
    pub(super) key: Option<u64>,
    pub(super) asks: Asks,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Asks {
    Forward,
    Backward { of_rows: bool },
    Classes,
    Flags,
    Numbers,
}

/// A result but for its matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tells {
    /// The bits of the loss, and how many examples it is of; nothing of the way forwards.
    pub(super) loss: Option<(u64, u64)>,
}

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

fn broken(error: impl std::fmt::Display) -> String {
    format!("sent what is no answer: {error}")
}

/// Numbers as the messages of a matrix.
pub(super) fn numbers(name: Name, values: &[f32], dim: usize) -> Result<Vec<FlightData>, String> {
    let rows = values.len().checked_div(dim).unwrap_or(0);
    messages(Head { name, rows, dim, number: Number::F32 }, bytemuck::cast_slice(values))
}

fn matrix(name: Name, matrix: &Matrix) -> Result<Vec<FlightData>, String> {
    let (bytes, row) = (matrix.bytes(), matrix.row_bytes());
    let rows = bytes.len().checked_div(row).unwrap_or(0);
    messages(Head { name, rows, dim: matrix.dim, number: matrix.number() }, bytes)
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
    let mut messages = batches_to_flight_data(&schema, &batches).map_err(broken)?;
    if let Some(first) = messages.first_mut() {
        first.app_metadata = serde_json::to_vec(&head).map_err(broken)?.into();
    }
    Ok(messages)
}

/// The matrices of a task, those that the way forwards reads first; and how many those are.
fn parts(task: &TensorTask) -> (Vec<(Name, Part<'_>)>, usize) {
    let NodeRows { held, aggregated, initial } = &task.rows;
    let rows = [(Name::Held, held), (Name::Aggregated, aggregated), (Name::Initial, initial)];
    let mut all: Vec<(Name, Part<'_>)> =
        rows.into_iter().filter_map(|(name, matrix)| Some((name, Part::Matrix(matrix.as_ref()?)))).collect();
    let first = all.len();
    match &task.work {
        Work::Forward => {}
        Work::Backward { gradient: NodeGradient { held, sent, terms }, .. } => {
            all.extend(held.iter().map(|held| (Name::GradientHeld, Part::Matrix(held))));
            all.extend(sent.iter().map(|sent| (Name::Sent, Part::Matrix(sent))));
            if let Some([left, right]) = terms {
                all.extend([(Name::Left, Part::Matrix(left)), (Name::Right, Part::Matrix(right))]);
            }
        }
        Work::Loss(NodeTargets::Classes(classes)) => all.push((Name::Targets, Part::Words(classes))),
        Work::Loss(NodeTargets::Flags(numbers) | NodeTargets::Numbers(numbers)) => {
            all.push((Name::Targets, Part::Numbers(numbers)));
        }
    }
    (all, first)
}

enum Part<'a> {
    Matrix(&'a Matrix),
    Numbers(&'a [f32]),
    Words(&'a [u32]),
}

/// The question of a task, and then its matrices one after another, made when they are asked for.
pub(super) fn ask<'a>(
    task: &'a TensorTask,
    question: impl FnOnce(usize, Asks) -> Question,
) -> Result<impl Iterator<Item = Result<Vec<FlightData>, String>> + 'a, String> {
    let (parts, rows) = parts(task);
    let asks = match &task.work {
        Work::Forward => Asks::Forward,
        Work::Backward { of_rows, .. } => Asks::Backward { of_rows: *of_rows },
        Work::Loss(NodeTargets::Classes(_)) => Asks::Classes,
        Work::Loss(NodeTargets::Flags(_)) => Asks::Flags,
        Work::Loss(NodeTargets::Numbers(_)) => Asks::Numbers,
    };
    let cmd = serde_json::to_vec(&question(rows, asks)).map_err(|error| error.to_string())?;
    let first = FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(cmd)), ..FlightData::default() };
    let rest = parts.into_iter().map(|(name, part)| match part {
        Part::Matrix(found) => matrix(name, found),
        Part::Numbers(values) => numbers(name, values, 1),
        Part::Words(words) => {
            let head = Head { name, rows: words.len(), dim: 1, number: Number::F32 };
            messages(head, bytemuck::cast_slice(words))
        }
    });
    Ok([Ok(vec![first])].into_iter().chain(rest))
}

/// The question with which a stream of messages begins.
pub(super) fn question(first: &FlightData) -> Result<Question, String> {
    let cmd = first.flight_descriptor.as_ref().map(|descriptor| &descriptor.cmd[..]).unwrap_or_default();
    serde_json::from_slice(cmd).map_err(|error| format!("not a task: {error}"))
}

/// Matrices, as they come.
pub(super) struct Matrices {
    decoder: FlightDataDecoder,
}

impl Matrices {
    pub(super) fn new<S>(messages: S) -> Self
    where
        S: Stream<Item = Result<FlightData, tonic::Status>> + Send + 'static,
    {
        Self { decoder: FlightDataDecoder::new(messages.map_err(|status| FlightError::Tonic(Box::new(status)))) }
    }

    /// The next one; nothing at the end.
    ///
    /// # Errors
    /// When a message is none of a matrix.
    pub(super) async fn next(&mut self) -> Result<Option<(Name, Matrix)>, String> {
        let head = match self.message().await? {
            None => return Ok(None),
            Some(Message::Head(head)) => head,
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
                    bytes.extend_from_slice(&rows);
                }
                Some(Message::Head(_)) | None => return Err("a matrix of fewer rows than it said".to_owned()),
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
        Ok(Some((head.name, Matrix { values, dim: head.dim })))
    }

    async fn message(&mut self) -> Result<Option<Message>, String> {
        let Some(decoded) = self.decoder.next().await else { return Ok(None) };
        let decoded = decoded.map_err(|error| match error {
            FlightError::Tonic(status) => super::auth::refusal(&status),
            error => broken(error),
        })?;
        match decoded.payload {
            DecodedPayload::Schema(_) => {
                let head = serde_json::from_slice(&decoded.inner.app_metadata).map_err(broken)?;
                Ok(Some(Message::Head(head)))
            }
            DecodedPayload::RecordBatch(batch) => {
                let rows =
                    batch.columns().first().and_then(|rows| rows.as_any().downcast_ref::<FixedSizeBinaryArray>());
                let rows = rows.ok_or_else(|| broken("rows that are no binary values"))?;
                Ok(Some(Message::Rows(rows.value_data().to_vec())))
            }
            DecodedPayload::None => Err(broken("an empty message")),
        }
    }
}

enum Message {
    Head(Head),
    Rows(Vec<u8>),
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

/// Puts a matrix that the way forwards reads in its place.
pub(super) fn place_row(rows: &mut NodeRows, name: Name, matrix: Matrix) -> Result<(), String> {
    let place = match name {
        Name::Held => &mut rows.held,
        Name::Aggregated => &mut rows.aggregated,
        Name::Initial => &mut rows.initial,
        name => return Err(format!("{name:?} among rows")),
    };
    *place = Some(matrix);
    Ok(())
}

/// What is asked, from the matrices behind the rows.
pub(super) fn work(asks: Asks, parts: Vec<(Name, Matrix)>) -> Result<Work, String> {
    let (mut gradient, mut targets, mut terms) = (NodeGradient::default(), None, [None, None]);
    for (name, matrix) in parts {
        match name {
            Name::GradientHeld => gradient.held = Some(matrix),
            Name::Sent => gradient.sent = Some(matrix),
            Name::Left => terms[0] = Some(matrix),
            Name::Right => terms[1] = Some(matrix),
            Name::Targets => targets = Some(plain(matrix)?),
            name => return Err(format!("{name:?} behind the rows")),
        }
    }
    if let [Some(left), Some(right)] = terms {
        gradient.terms = Some([left, right]);
    }
    let targets = targets.ok_or_else(|| "a loss without anything to compare with".to_owned());
    Ok(match asks {
        Asks::Forward => Work::Forward,
        Asks::Backward { of_rows } => Work::Backward { gradient, of_rows },
        Asks::Classes => Work::Loss(NodeTargets::Classes(targets?.into_iter().map(f32::to_bits).collect())),
        Asks::Flags => Work::Loss(NodeTargets::Flags(targets?)),
        Asks::Numbers => Work::Loss(NodeTargets::Numbers(targets?)),
    })
}

/// A task's key from a question.
pub(super) fn key(question: &Question) -> Option<Key> {
    question.key.map(Key::from_bits)
}

/// The messages of a result.
pub(super) fn answer(result: &TensorResult, count: usize) -> Result<Vec<FlightData>, String> {
    let (loss, mut rest) = match result {
        TensorResult::Outputs(outputs) => {
            let NodeOutputs { held, sent, terms } = outputs;
            let mut rest = tensor(Name::Held, held)?;
            if let Some(sent) = sent {
                rest.extend(tensor(Name::Sent, sent)?);
            }
            if let Some([left, right]) = terms {
                rest.extend(tensor(Name::Left, left)?);
                rest.extend(tensor(Name::Right, right)?);
            }
            (None, rest)
        }
        TensorResult::Back(NodeBack { held, aggregated, initial, flat, loss, examples }) => {
            let mut rest = Vec::new();
            for (name, values) in [(Name::Held, held), (Name::Aggregated, aggregated), (Name::Initial, initial)] {
                if let Some(values) = values {
                    rest.extend(numbers(name, values, values.len().checked_div(count).unwrap_or(0))?);
                }
            }
            rest.extend(numbers(Name::Flat, flat, 1)?);
            (Some((loss.to_bits(), *examples)), rest)
        }
    };
    let first = serde_json::to_vec(&Tells { loss }).map_err(|error| error.to_string())?;
    rest.insert(0, FlightData { app_metadata: first.into(), ..FlightData::default() });
    Ok(rest)
}

fn tensor(name: Name, tensor: &candle_core::Tensor) -> Result<Vec<FlightData>, String> {
    let (_, dim) = tensor.dims2().map_err(|error| error.to_string())?;
    let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).map_err(|error| error.to_string())?;
    numbers(name, &values, dim)
}

/// The result of a question for `count` nodes, from the first message of an answer and the matrices behind it.
pub(super) async fn read(first: &FlightData, matrices: &mut Matrices, count: usize) -> Result<TensorResult, String> {
    let tells: Tells = serde_json::from_slice(&first.app_metadata).map_err(broken)?;
    let mut found = Vec::new();
    while let Some(part) = matrices.next().await? {
        found.push(part);
    }
    let mut take = |name: Name| found.iter().position(|(found, _)| *found == name).map(|at| found.swap_remove(at).1);
    let Some((loss, examples)) = tells.loss else {
        let tensor = |matrix: Option<Matrix>| -> Result<Option<candle_core::Tensor>, String> {
            let Some(matrix) = matrix else { return Ok(None) };
            let dim = matrix.dim;
            let values = plain(matrix)?;
            if values.len() != count * dim {
                return Err(format!("sent {} numbers for {count} rows of {dim}", values.len()));
            }
            let made = candle_core::Tensor::from_vec(values, (count, dim), &candle_core::Device::Cpu);
            made.map(Some).map_err(|error| error.to_string())
        };
        let (held, sent) = (tensor(take(Name::Held))?, tensor(take(Name::Sent))?);
        let terms = match (tensor(take(Name::Left))?, tensor(take(Name::Right))?) {
            (Some(left), Some(right)) => Some([left, right]),
            _ => None,
        };
        let held = held.ok_or_else(|| "left out what nodes hold".to_owned())?;
        return Ok(TensorResult::Outputs(NodeOutputs { held, sent, terms }));
    };
    let mut values = |name: Name| take(name).map(plain).transpose();
    Ok(TensorResult::Back(NodeBack {
        held: values(Name::Held)?,
        aggregated: values(Name::Aggregated)?,
        initial: values(Name::Initial)?,
        flat: values(Name::Flat)?.ok_or_else(|| "left out the parameters' gradient".to_owned())?,
        loss: f64::from_bits(loss),
        examples,
    }))
}
