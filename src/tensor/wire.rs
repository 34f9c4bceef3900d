//! Tasks and results as Flight messages.
//!
//! A question is a descriptor, which says what all its tasks have in common and what each has by itself, and then the matrices of one task
//! behind those of another. Of a task that comes in halves, first the first rows of all its matrices come, then the others; of one that
//! goes back, first what its way forwards reads. An answer is, task by task, matrices and an end ([`super::matrices`]); the halves of a
//! matrix are two.

use std::ops::Range;

use arrow_flight::{FlightData, FlightDescriptor};
use gnnflow_data::rng::Key;
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::{ModelSpec, NodeOutputs};
use gnnflow_pipelines::tensor::{Asked, NodeBack, NodeGradient, NodeRows, NodeTargets, TensorResult, TensorTask, Work};
use serde::{Deserialize, Serialize};

use super::matrices::{self, Matrices, Name, Part, Tells, end, numbers, plain};

/// Matrices of an answer to one task at most: halves of four.
const PARTS: usize = 8;

/// Tasks but for their rows: they are of one kind, by one version of the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) model: ModelSpec,
    /// Whose versions these are.
    pub(super) run: String,
    pub(super) version: u64,
    /// Who has them: the one that was chosen, then the one that asks.
    pub(super) servers: Vec<String>,
    pub(super) index: usize,
    pub(super) asks: Asks,
    pub(super) tasks: Vec<One>,
}

/// What each task has by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct One {
    pub(super) count: usize,
    /// Rows of the first half, where it comes in halves.
    pub(super) half: Option<usize>,
    pub(super) key: Option<u64>,
    /// How many matrices the way forwards reads.
    pub(super) rows: usize,
    /// How many come behind them.
    pub(super) late: usize,
}

impl One {
    /// The rows that come at once.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (half, count) = (self.half.filter(|&half| half < self.count), self.count);
        [Some(0..half.unwrap_or(count)), half.map(|half| half..count)].into_iter().flatten()
    }
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

/// The matrices that a task's way forwards reads.
fn rows(task: &TensorTask) -> impl Iterator<Item = (Name, &Matrix)> {
    let NodeRows { held, aggregated, initial } = &task.rows;
    let rows = [(Name::Held, held), (Name::Aggregated, aggregated), (Name::Initial, initial)];
    rows.into_iter().filter_map(|(name, matrix)| Some((name, matrix.as_ref()?)))
}

/// What its results are compared with.
fn late(task: &TensorTask) -> Vec<(Name, Late<'_>)> {
    let matrix = |name, matrix| (name, Late::Matrix(matrix));
    match &task.work {
        Work::Forward => Vec::new(),
        Work::Backward { gradient: NodeGradient { held, sent, terms }, .. } => {
            let held = held.iter().map(|held| matrix(Name::GradientHeld, held));
            let sent = sent.iter().map(|sent| matrix(Name::Sent, sent));
            let terms = terms.iter().flatten().zip([Name::Left, Name::Right]).map(|(term, name)| matrix(name, term));
            held.chain(sent).chain(terms).collect()
        }
        Work::Loss(NodeTargets::Classes(classes)) => vec![(Name::Targets, Late::Words(classes))],
        Work::Loss(NodeTargets::Flags(numbers) | NodeTargets::Numbers(numbers)) => {
            vec![(Name::Targets, Late::Numbers(numbers))]
        }
    }
}

enum Late<'a> {
    Matrix(&'a Matrix),
    Numbers(&'a [f32]),
    Words(&'a [u32]),
}

/// What is asked of a task.
pub(super) fn asks(task: &TensorTask) -> Asks {
    match &task.work {
        Work::Forward => Asks::Forward,
        Work::Backward { of_rows, .. } => Asks::Backward { of_rows: *of_rows },
        Work::Loss(NodeTargets::Classes(_)) => Asks::Classes,
        Work::Loss(NodeTargets::Flags(_)) => Asks::Flags,
        Work::Loss(NodeTargets::Numbers(_)) => Asks::Numbers,
    }
}

/// What a task has by itself.
pub(super) fn one(asked: &Asked) -> One {
    let Asked { task, half } = asked;
    let key = task.key.map(Key::bits);
    One { count: task.count, half: *half, key, rows: rows(task).count(), late: late(task).len() }
}

/// A question, and then its tasks' matrices one after another, made when they are asked for.
pub(super) fn ask<'a>(
    tasks: &'a [Asked],
    question: &Question,
) -> Result<impl Iterator<Item = Result<Vec<FlightData>, String>> + 'a, String> {
    let cmd = serde_json::to_vec(question).map_err(|error| error.to_string())?;
    let first = FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(cmd)), ..FlightData::default() };
    let rest = tasks.iter().flat_map(|asked| {
        let task = &*asked.task;
        let pieces = one(asked).pieces();
        let rows = pieces
            .flat_map(move |piece| rows(task).map(move |(name, matrix)| matrices::rows(name, matrix, piece.clone())));
        let late = late(task).into_iter().map(move |(name, part)| match part {
            Late::Matrix(matrix) => matrices::rows(name, matrix, 0..task.count),
            Late::Numbers(values) => numbers(name, values, 1),
            Late::Words(words) => matrices::words(name, words),
        });
        rows.chain(late)
    });
    Ok([Ok(vec![first])].into_iter().chain(rest))
}

/// The question with which a stream of messages begins.
pub(super) fn question(first: &FlightData) -> Result<Question, String> {
    let cmd = first.flight_descriptor.as_ref().map(|descriptor| &descriptor.cmd[..]).unwrap_or_default();
    serde_json::from_slice(cmd).map_err(|error| format!("not a task: {error}"))
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

/// The messages of what a task, or a half of one, of `count` rows has come to.
pub(super) fn result(result: &TensorResult, count: usize) -> Result<Vec<FlightData>, String> {
    match result {
        TensorResult::Outputs(NodeOutputs { held, sent, terms }) => {
            let mut all = tensor(Name::Held, held)?;
            if let Some(sent) = sent {
                all.extend(tensor(Name::Sent, sent)?);
            }
            if let Some([left, right]) = terms {
                all.extend(tensor(Name::Left, left)?);
                all.extend(tensor(Name::Right, right)?);
            }
            Ok(all)
        }
        TensorResult::Back(NodeBack { held, aggregated, initial, flat, .. }) => {
            let mut all = Vec::new();
            for (name, values) in [(Name::Held, held), (Name::Aggregated, aggregated), (Name::Initial, initial)] {
                if let Some(values) = values {
                    all.extend(numbers(name, values, values.len().checked_div(count).unwrap_or(0))?);
                }
            }
            all.extend(numbers(Name::Flat, flat, 1)?);
            Ok(all)
        }
    }
}

/// The message behind a task's results, of which the last, or only, one is `result`.
pub(super) fn end_of(result: &TensorResult) -> Result<Vec<FlightData>, String> {
    let loss = match result {
        TensorResult::Outputs(_) => None,
        TensorResult::Back(NodeBack { loss, examples, .. }) => Some((loss.to_bits(), *examples)),
    };
    end(&Tells { loss })
}

fn tensor(name: Name, tensor: &candle_core::Tensor) -> Result<Vec<FlightData>, String> {
    let (_, dim) = tensor.dims2().map_err(|error| error.to_string())?;
    let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).map_err(|error| error.to_string())?;
    numbers(name, &values, dim)
}

/// The next result of an answer: of a task of `count` nodes.
pub(super) async fn read(matrices: &mut Matrices, count: usize) -> Result<TensorResult, String> {
    let mut found: Vec<(Name, usize, Vec<f32>)> = Vec::new();
    let Tells { loss } = loop {
        match matrices.part().await? {
            None if found.is_empty() => return Err("answered nothing".to_owned()),
            None => return Err("broke off in the midst of an answer".to_owned()),
            Some(Part::End(tells)) => break tells,
            Some(Part::Matrix(..)) if found.len() == PARTS => return Err("sent more than was asked for".to_owned()),
            Some(Part::Matrix(name, matrix)) => {
                let dim = matrix.dim;
                found.push((name, dim, plain(matrix)?));
            }
        }
    };
    let mut take = |name: Name| {
        let at = found.iter().position(|(found, ..)| *found == name)?;
        let (_, dim, mut values) = found.remove(at);
        // The other half.
        if let Some(at) = found.iter().position(|(found, other, _)| (*found, *other) == (name, dim)) {
            values.extend(found.remove(at).2);
        }
        Some((dim, values))
    };
    let Some((loss, examples)) = loss else {
        let tensor = |found: Option<(usize, Vec<f32>)>| -> Result<Option<candle_core::Tensor>, String> {
            let Some((dim, values)) = found else { return Ok(None) };
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
    let mut values = |name: Name| take(name).map(|(_, values)| values);
    Ok(TensorResult::Back(NodeBack {
        held: values(Name::Held),
        aggregated: values(Name::Aggregated),
        initial: values(Name::Initial),
        flat: values(Name::Flat).ok_or_else(|| "left out the parameters' gradient".to_owned())?,
        loss: f64::from_bits(loss),
        examples,
    }))
}
