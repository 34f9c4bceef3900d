//! Tasks and results as Flight messages.
//!
//! A call is a header, as a Flight descriptor, and then the matrices of its tasks, task by task. A split task sends the first rows of
//! all its matrices, then the other rows. A backward task sends the inputs of its forward pass first. A response has for each task
//! matrices and an end ([`super::matrices`]); a split task has two halves of each matrix.

use std::ops::Range;

use arrow_flight::{FlightData, FlightDescriptor};
use gnnflow_data::rng::Key;
use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::{ModelSpec, NodeOutputs};
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::node_task::{NodeBack, NodeGradient, NodeResult, NodeRows, NodeTask, Work};
use gnnflow_nn::tensors::read as read_tensor;
use serde::{Deserialize, Serialize};

use super::device_kind::DeviceKind;
use super::matrices::{self, Matrices, Name, Part, ResultEnd, end, floats, numbers};
use crate::tensor_workers::scheduler::TaskRequest;

/// Maximum number of matrices in a result: two halves of four.
const MAX_PARTS: usize = 8;

/// The header of a call: its tasks without their rows. They are of one kind and use one version of the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CallHeader {
    pub(super) model: ModelSpec,
    /// Names the graph worker's process; versions of different runs never mix.
    pub(super) run: String,
    pub(super) version: u64,
    /// The kind of device that must compute the tasks.
    #[serde(default)]
    pub(super) device: DeviceKind,
    /// The run's key `cluster.encrypt`, for connections to these servers.
    pub(super) encrypt: Option<bool>,
    /// Servers of the parameters: the chosen one, then the client itself.
    pub(super) servers: Vec<String>,
    pub(super) index: usize,
    #[serde(rename = "asks")]
    pub(super) kind: TaskKind,
    pub(super) tasks: Vec<TaskHeader>,
}

/// The header of one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskHeader {
    pub(super) count: usize,
    /// Rows of the first half, if the task is split.
    #[serde(rename = "half")]
    pub(super) split: Option<usize>,
    pub(super) key: Option<u64>,
    /// Number of matrices that the forward pass reads.
    pub(super) rows: usize,
    /// Number of matrices after them: targets or output gradients.
    #[serde(rename = "late")]
    pub(super) work: usize,
}

impl TaskHeader {
    /// Returns the ranges of rows that are sent together.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (split, count) = (self.split.filter(|&split| split < self.count), self.count);
        [Some(0..split.unwrap_or(count)), split.map(|split| split..count)].into_iter().flatten()
    }
}

/// The kind of a task, and of its targets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) enum TaskKind {
    Forward {
        held: bool,
    },
    Backward {
        of_rows: bool,
    },
    Classes,
    /// With the exponent of the focal loss.
    WeightedClasses {
        gamma: f64,
    },
    Flags,
    /// With the exponent of the focal loss.
    WeightedFlags {
        gamma: f64,
    },
    Numbers,
}

impl TaskKind {
    /// Tells whether it is a forward pass only.
    pub(super) fn is_forward(self) -> bool {
        matches!(self, Self::Forward { .. })
    }
}

/// Returns the matrices that a task's forward pass reads.
fn rows(task: &NodeTask) -> impl Iterator<Item = (Name, &Matrix)> {
    let NodeRows { held, aggregated, initial } = &task.rows;
    let rows = [(Name::Held, held), (Name::Aggregated, aggregated), (Name::Initial, initial)];
    rows.into_iter().filter_map(|(name, matrix)| Some((name, matrix.as_ref()?)))
}

/// Returns a task's targets or output gradients.
fn work_data(task: &NodeTask) -> Vec<(Name, WorkData<'_>)> {
    let matrix = |name, matrix| (name, WorkData::Matrix(matrix));
    match &task.work {
        Work::Forward { .. } => Vec::new(),
        Work::Backward { gradient: NodeGradient { held, sent, terms }, .. } => {
            let held = held.iter().map(|held| matrix(Name::GradientHeld, held));
            let sent = sent.iter().map(|sent| matrix(Name::Sent, sent));
            let terms = terms.iter().flatten().zip([Name::Left, Name::Right]).map(|(term, name)| matrix(name, term));
            held.chain(sent).chain(terms).collect()
        }
        Work::Loss(NodeTargets::Classes(classes)) => vec![(Name::Targets, WorkData::Words(classes))],
        Work::Loss(NodeTargets::WeightedClasses { classes, weights, .. }) => {
            vec![(Name::Targets, WorkData::Words(classes)), (Name::Weights, WorkData::Numbers(weights))]
        }
        Work::Loss(NodeTargets::WeightedFlags { weights, .. }) => vec![(Name::Weights, WorkData::Numbers(weights))],
        Work::Loss(NodeTargets::Flags(numbers) | NodeTargets::Numbers(numbers)) => {
            vec![(Name::Targets, WorkData::Numbers(numbers))]
        }
    }
}

enum WorkData<'a> {
    Matrix(&'a Matrix),
    Numbers(&'a [f32]),
    Words(&'a [u32]),
}

/// Returns the kind of a task.
pub(super) fn kind(task: &NodeTask) -> TaskKind {
    match &task.work {
        Work::Forward { held } => TaskKind::Forward { held: *held },
        Work::Backward { of_rows, .. } => TaskKind::Backward { of_rows: *of_rows },
        Work::Loss(NodeTargets::Classes(_)) => TaskKind::Classes,
        Work::Loss(NodeTargets::WeightedClasses { gamma, .. }) => TaskKind::WeightedClasses { gamma: *gamma },
        Work::Loss(NodeTargets::Flags(_)) => TaskKind::Flags,
        Work::Loss(NodeTargets::WeightedFlags { gamma, .. }) => TaskKind::WeightedFlags { gamma: *gamma },
        Work::Loss(NodeTargets::Numbers(_)) => TaskKind::Numbers,
    }
}

/// Returns the header of a task.
pub(super) fn header(request: &TaskRequest) -> TaskHeader {
    let TaskRequest { task, split } = request;
    let key = task.key.map(Key::bits);
    TaskHeader { count: task.count, split: *split, key, rows: rows(task).count(), work: work_data(task).len() }
}

/// Returns the messages of a call: its header, then its tasks' matrices, made one after another.
///
/// # Errors
/// If a matrix does not fit its task.
pub(super) fn call<'a>(
    tasks: &'a [TaskRequest],
    call: &CallHeader,
) -> Result<impl Iterator<Item = Result<Vec<FlightData>, String>> + 'a, String> {
    let cmd = serde_json::to_vec(call).map_err(|error| error.to_string())?;
    let first = FlightData { flight_descriptor: Some(FlightDescriptor::new_cmd(cmd)), ..FlightData::default() };
    let rest = tasks.iter().flat_map(|request| {
        let task = &*request.task;
        let ranges = header(request).ranges();
        let rows = ranges
            .flat_map(move |range| rows(task).map(move |(name, matrix)| matrices::rows(name, matrix, range.clone())));
        let work = work_data(task).into_iter().map(move |(name, part)| match part {
            WorkData::Matrix(matrix) => matrices::rows(name, matrix, 0..task.count),
            WorkData::Numbers(values) => numbers(name, values, 1),
            WorkData::Words(words) => matrices::words(name, words),
        });
        rows.chain(work)
    });
    Ok([Ok(vec![first])].into_iter().chain(rest))
}

/// Reads the header with which a call begins.
///
/// # Errors
/// If there is none.
pub(super) fn call_header(first: &FlightData) -> Result<CallHeader, String> {
    let cmd = first.flight_descriptor.as_ref().map(|descriptor| &descriptor.cmd[..]).unwrap_or_default();
    serde_json::from_slice(cmd).map_err(|error| format!("the call has no valid header: {error}"))
}

/// Puts a matrix that the forward pass reads into `rows`.
///
/// # Errors
/// If its name is not that of an input.
pub(super) fn set_rows(rows: &mut NodeRows, name: Name, matrix: Matrix) -> Result<(), String> {
    let target = match name {
        Name::Held => &mut rows.held,
        Name::Aggregated => &mut rows.aggregated,
        Name::Initial => &mut rows.initial,
        name => return Err(format!("sent {name:?} as an input of a forward pass")),
    };
    *target = Some(matrix);
    Ok(())
}

/// Makes a task's work from the matrices that follow its rows.
///
/// # Errors
/// If they are not those of such a task.
pub(super) fn work(kind: TaskKind, parts: Vec<(Name, Matrix)>) -> Result<Work, String> {
    let (mut gradient, mut targets, mut weights, mut terms) = (NodeGradient::default(), None, None, [None, None]);
    for (name, matrix) in parts {
        match name {
            Name::GradientHeld => gradient.held = Some(matrix),
            Name::Sent => gradient.sent = Some(matrix),
            Name::Left => terms[0] = Some(matrix),
            Name::Right => terms[1] = Some(matrix),
            Name::Targets => targets = Some(floats(matrix)?),
            Name::Weights => weights = Some(floats(matrix)?),
            name => return Err(format!("sent {name:?} as targets or gradients")),
        }
    }
    if let [Some(left), Some(right)] = terms {
        gradient.terms = Some([left, right]);
    }
    let targets = targets.ok_or_else(|| "sent a loss task without targets".to_owned());
    let weights = weights.ok_or_else(|| "sent a weighted loss task without weights".to_owned());
    let classes = |targets: Vec<f32>| targets.into_iter().map(f32::to_bits).collect();
    Ok(match kind {
        TaskKind::Forward { held } => Work::Forward { held },
        TaskKind::Backward { of_rows } => Work::Backward { gradient, of_rows },
        TaskKind::Classes => Work::Loss(NodeTargets::Classes(classes(targets?))),
        TaskKind::WeightedClasses { gamma } => {
            Work::Loss(NodeTargets::WeightedClasses { classes: classes(targets?), weights: weights?, gamma })
        }
        TaskKind::Flags => Work::Loss(NodeTargets::Flags(targets?)),
        TaskKind::WeightedFlags { gamma } => Work::Loss(NodeTargets::WeightedFlags { weights: weights?, gamma }),
        TaskKind::Numbers => Work::Loss(NodeTargets::Numbers(targets?)),
    })
}

/// Returns the messages of the result of `count` rows: of a task, or of one half.
///
/// # Errors
/// If a tensor cannot be read.
pub(super) fn result(result: &NodeResult, count: usize) -> Result<Vec<FlightData>, String> {
    match result {
        NodeResult::Outputs(NodeOutputs { held, sent, terms }) => {
            let mut all = Vec::new();
            if let Some(held) = held {
                all.extend(tensor(Name::Held, held)?);
            }
            if let Some(sent) = sent {
                all.extend(tensor(Name::Sent, sent)?);
            }
            if let Some([left, right]) = terms {
                all.extend(tensor(Name::Left, left)?);
                all.extend(tensor(Name::Right, right)?);
            }
            Ok(all)
        }
        NodeResult::Back(NodeBack { held, aggregated, initial, flat, .. }) => {
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

/// Returns the message that ends a task's results, of which the last one is `result`.
///
/// # Errors
/// If it cannot be encoded.
pub(super) fn end_of(result: &NodeResult) -> Result<FlightData, String> {
    let loss = match result {
        NodeResult::Outputs(_) => None,
        NodeResult::Back(NodeBack { loss, examples, .. }) => Some((loss.to_bits(), *examples)),
    };
    end(&ResultEnd { loss })
}

fn tensor(name: Name, tensor: &candle_core::Tensor) -> Result<Vec<FlightData>, String> {
    let (_, dim) = tensor.dims2().map_err(|error| error.to_string())?;
    let mut messages = Ok(Vec::new());
    read_tensor(tensor, |values| messages = numbers(name, values, dim)).map_err(|error| error.to_string())?;
    messages
}

/// Reads the next result of a response, for a task of `count` nodes.
///
/// # Errors
/// If the response ends or is malformed.
pub(super) async fn read(matrices: &mut Matrices, count: usize) -> Result<NodeResult, String> {
    let mut found: Vec<(Name, usize, Vec<f32>)> = Vec::new();
    let ResultEnd { loss } = loop {
        match matrices.part().await? {
            None if found.is_empty() => return Err("sent no result".to_owned()),
            None => return Err("ended the response within a result".to_owned()),
            Some(Part::End(end)) => break end,
            Some(Part::Matrix(..)) if found.len() == MAX_PARTS => {
                return Err("sent more matrices than a result has".to_owned());
            }
            Some(Part::Matrix(name, matrix)) => {
                let dim = matrix.dim;
                found.push((name, dim, floats(matrix)?));
            }
        }
    };
    let mut take = |name: Name| {
        let index = found.iter().position(|(found, ..)| *found == name)?;
        let (_, dim, mut values) = found.remove(index);
        // The other half.
        if let Some(index) = found.iter().position(|(found, other, _)| (*found, *other) == (name, dim)) {
            values.extend(found.remove(index).2);
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
        return Ok(NodeResult::Outputs(NodeOutputs { held, sent, terms }));
    };
    let mut values = |name: Name| take(name).map(|(_, values)| values);
    Ok(NodeResult::Back(NodeBack {
        held: values(Name::Held),
        aggregated: values(Name::Aggregated),
        initial: values(Name::Initial),
        flat: values(Name::Flat).ok_or_else(|| "left out the parameters' gradient".to_owned())?,
        loss: f64::from_bits(loss),
        examples,
    }))
}
