//! Node tasks: the model's work on a set of nodes between two full-graph aggregations.
//!
//! A [`NodeTask`] is a pure function of its rows, the model's parameters and a key (Dorylus, section 4: apply-vertex and its
//! backward twin). Any process may run it, any number of times, with the same bits.
//!
//! A backward task repeats its forward pass instead of keeping activations (Dorylus, section 6: rematerialization). The last
//! task, the loss and the backward pass through that task are one task (task fusion).

use candle_core::{Tensor, Var};
use gnnflow_data::rng::Key;
use gnnflow_kernels::matrix::{Matrix, Values};

use crate::error::{Error, Result};
use crate::model::{Factors, Model, NodeInputs, NodeOutputs};
use crate::node_targets::NodeTargets;
use crate::ops::{inject_gradient, inject_product_gradient};
use crate::tensors::{read, tensor};

/// The input rows of a task, `[count, dim]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRows {
    /// The rows that the nodes held when they sent; for task 0, their features.
    pub held: Option<Matrix>,
    /// The aggregated rows of their neighbors.
    pub aggregated: Option<Matrix>,
    /// The rows that the nodes held before the first layer.
    pub initial: Option<Matrix>,
}

/// Gradients with respect to a task's outputs; `None` for outputs that no later task reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeGradient {
    /// With respect to the held rows.
    pub held: Option<Matrix>,
    /// With respect to the sent rows.
    pub sent: Option<Matrix>,
    /// With respect to the attention scores of sources and of destinations.
    pub terms: Option<[Matrix; 2]>,
}

/// The kind of work that a task does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// The forward pass.
    Forward {
        /// Whether to return the held rows.
        held: bool,
    },
    /// The backward pass, for these gradients of the outputs.
    Backward {
        /// Gradients with respect to the outputs.
        gradient: NodeGradient,
        /// Whether to compute gradients of the input rows too.
        of_rows: bool,
    },
    /// The loss of the outputs, and its gradients.
    Loss(NodeTargets),
}

/// Work on some nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeTask {
    /// Index of the node task, from 0 to the model's number of layers.
    pub index: usize,
    /// Number of nodes.
    pub count: usize,
    /// Input rows.
    pub rows: NodeRows,
    /// Key of the dropout masks; `None` outside training.
    pub key: Option<Key>,
    /// The kind of work.
    pub work: Work,
}

/// Gradients of a task's input rows, where they exist and were requested, and of the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeBack {
    /// With respect to the held rows, row by row.
    pub held: Option<Vec<f32>>,
    /// With respect to the aggregated rows.
    pub aggregated: Option<Vec<f32>>,
    /// With respect to the rows held before the first layer.
    pub initial: Option<Vec<f32>>,
    /// With respect to the parameters, followed by the sums that the rows add to the buffers.
    pub flat: Vec<f32>,
    /// The loss, summed over the nodes; 0 for a backward task.
    pub loss: f64,
    /// Number of examples in the loss.
    pub examples: u64,
}

/// The result of a task.
#[derive(Clone, Debug)]
pub enum NodeResult {
    /// Of a forward pass.
    Outputs(NodeOutputs),
    /// Of a backward pass or a loss.
    Back(NodeBack),
}

impl NodeRows {
    fn bytes(&self) -> usize {
        [&self.held, &self.aggregated, &self.initial].into_iter().flatten().map(|rows| rows.bytes().len()).sum()
    }
}

impl NodeGradient {
    fn bytes(&self) -> usize {
        let Self { held, sent, terms } = self;
        let all = held.iter().chain(sent).chain(terms.iter().flatten());
        all.map(|rows| rows.bytes().len()).sum()
    }
}

/// Input rows on the model's device. `vars` has the rows that need a gradient: held, aggregated, initial.
struct Inputs {
    held: Option<Tensor>,
    aggregated: Option<Tensor>,
    initial: Option<Tensor>,
    vars: [Option<Var>; 3],
    /// Number of the task's rows before these.
    first: usize,
}

/// Makes a matrix of 32-bit floats with `dim` columns.
pub fn matrix(values: Vec<f32>, dim: usize) -> Matrix {
    Matrix { dim, values: Values::F32(values) }
}

impl NodeTask {
    /// Runs the task with `model` on the caller's threads.
    ///
    /// # Errors
    /// If the rows do not fit the model, or the device fails.
    pub fn run(self, model: &Model) -> Result<NodeResult> {
        self.run_when(model, Ok)
    }

    /// Runs the forward pass on rows that follow `first` other rows of the same task.
    ///
    /// Dropout masks are those of the whole task, so the two halves of a split task ([`split_row`](crate::model::split_row)) have
    /// the bits of the whole.
    ///
    /// # Errors
    /// As [`NodeTask::run`].
    pub fn run_from_row(self, model: &Model, first: usize) -> Result<NodeResult> {
        let Self { index, count, rows, key, work } = self;
        let inputs = Inputs { first, ..Inputs::new(count, rows, false, model)? };
        // Only the backward pass adds to the running statistics; a forward pass drops its sums.
        let mut dropped = vec![0.0; model.params().flat_len() - model.params().trained_len()];
        let sums = key.is_some().then_some(&mut dropped[..]);
        let mut outputs = model.node_task(index, inputs.rows(), key, sums)?;
        if work == (Work::Forward { held: false }) {
            outputs.held = None;
        }
        Ok(NodeResult::Outputs(outputs))
    }

    /// Runs the task like [`NodeTask::run`], but obtains targets or output gradients from `late` after the forward pass.
    ///
    /// `late` gets the task's own `work` and returns the work with its data; data may thus arrive while the forward pass runs.
    ///
    /// # Errors
    /// As [`NodeTask::run`], and those of `late`.
    pub fn run_when(self, model: &Model, late: impl FnOnce(Work) -> Result<Work, Error>) -> Result<NodeResult> {
        if self.is_forward() {
            return self.run_from_row(model, 0);
        }
        let Self { index, count, rows, key, work } = self;
        let of_rows = match &work {
            Work::Forward { .. } => false,
            Work::Backward { of_rows, .. } => *of_rows,
            Work::Loss(_) => true,
        };
        let inputs = Inputs::new(count, rows, of_rows, model)?;
        let (trained, all) = (model.params().trained_len(), model.params().flat_len());
        let (mut flat, mut sums) = (vec![0.0; all], vec![0.0; all - trained]);
        let (outputs, factors) = match work {
            Work::Backward { .. } => model.backward_task(index, inputs.rows(), key, &mut sums)?,
            _ => (model.node_task(index, inputs.rows(), key, Some(&mut sums))?, None),
        };
        let (mut loss, mut examples) = (0.0, 0);
        let root = match late(work)? {
            Work::Loss(targets) => {
                let sum = targets.loss(outputs.held()?)?;
                loss = sum.to_scalar::<f64>()?;
                examples = count as u64;
                sum
            }
            Work::Backward { gradient, .. } => backward_root(count, &outputs, factors.as_ref(), gradient, model)?,
            Work::Forward { .. } => return Err(bug("a forward task has no gradient")),
        };
        let gradients = root.backward()?;
        model.params().gradients(&gradients, &mut flat)?;
        flat[trained..].copy_from_slice(&sums);
        let of = |var: &Option<Var>| -> Result<Option<Vec<f32>>> {
            let Some(var) = var else { return Ok(None) };
            let mut values = Vec::new();
            match gradients.get(var) {
                Some(gradient) => read(gradient, |found| values.extend_from_slice(found))?,
                None => values.resize(var.elem_count(), 0.0),
            }
            Ok(Some(values))
        };
        let [held, aggregated, initial] = &inputs.vars;
        let (held, aggregated, initial) = (of(held)?, of(aggregated)?, of(initial)?);
        if model.checks_values() {
            model.params().check_gradients(&flat)?;
            let mut rows = [&held, &aggregated, &initial].into_iter().flatten().flatten();
            if rows.any(|gradient| !gradient.is_finite()) {
                return Err(Error::NotFinite(format!("a gradient of the rows that layer {index} reads")));
            }
        }
        Ok(NodeResult::Back(NodeBack { held, aggregated, initial, flat, loss, examples }))
    }

    /// Returns the bytes of the task's input rows, gradients and targets.
    pub fn bytes(&self) -> usize {
        let more = match &self.work {
            Work::Forward { .. } => 0,
            Work::Backward { gradient, .. } => gradient.bytes(),
            Work::Loss(NodeTargets::Classes(classes)) => 4 * classes.len(),
            Work::Loss(NodeTargets::WeightedClasses { classes, .. }) => 8 * classes.len(),
            Work::Loss(
                NodeTargets::Flags(numbers)
                | NodeTargets::Numbers(numbers)
                | NodeTargets::WeightedFlags { weights: numbers, .. },
            ) => 4 * numbers.len(),
        };
        self.rows.bytes() + more
    }

    /// Returns whether `other` does the same work on other nodes.
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same_work = match (&self.work, &other.work) {
            (Work::Forward { held }, Work::Forward { held: others }) => held == others,
            (Work::Backward { of_rows, .. }, Work::Backward { of_rows: others, .. }) => of_rows == others,
            (Work::Loss(targets), Work::Loss(others)) => {
                std::mem::discriminant(targets) == std::mem::discriminant(others)
            }
            (work, other) => std::mem::discriminant(work) == std::mem::discriminant(other),
        };
        is_same_work && self.index == other.index && self.key.is_some() == other.key.is_some()
    }

    /// Returns whether this is a forward pass only.
    pub fn is_forward(&self) -> bool {
        matches!(self.work, Work::Forward { .. })
    }
}

/// Returns a scalar whose gradient with respect to the task's outputs is `gradient`.
fn backward_root(
    count: usize,
    outputs: &NodeOutputs,
    factors: Option<&Factors>,
    gradient: NodeGradient,
    model: &Model,
) -> Result<Tensor> {
    let mut roots = Vec::new();
    let on_device = |gradient: Matrix| tensor(gradient, count, model.device());
    if let Some(gradient) = gradient.held {
        roots.push(inject_gradient(outputs.held()?, &on_device(gradient)?)?);
    }
    match (&outputs.sent, factors, gradient.sent) {
        (Some(sent), _, Some(gradient)) => roots.push(inject_gradient(sent, &on_device(gradient)?)?),
        (None, Some(Factors { rows, weight }), Some(gradient)) => {
            roots.push(inject_product_gradient(rows, weight, &on_device(gradient)?)?);
        }
        (None, None, Some(_)) => return Err(bug("a gradient of rows that the task does not send")),
        (_, _, None) => {}
    }
    match (&outputs.terms, gradient.terms) {
        (Some(terms), Some(gradients)) => {
            for (term, gradient) in terms.iter().zip(gradients) {
                roots.push(inject_gradient(term, &on_device(gradient)?)?);
            }
        }
        (None, Some(_)) => return Err(bug("a gradient of attention scores that the task does not compute")),
        (_, None) => {}
    }
    let (first, rest) = roots.split_first().ok_or_else(|| bug("a task without gradients"))?;
    let total = rest.iter().try_fold(first.clone(), |sum: Tensor, root: &Tensor| sum + root);
    Ok(total?)
}

impl Inputs {
    fn new(count: usize, rows: NodeRows, gradients: bool, model: &Model) -> Result<Self> {
        let place = |matrix: Option<Matrix>| -> Result<(Option<Tensor>, Option<Var>)> {
            let Some(matrix) = matrix else { return Ok((None, None)) };
            let rows = tensor(matrix, count, model.device())?;
            if !gradients {
                return Ok((Some(rows), None));
            }
            let var = Var::from_tensor(&rows)?;
            Ok((Some(var.as_tensor().clone()), Some(var)))
        };
        let [held, aggregated, initial] = [place(rows.held)?, place(rows.aggregated)?, place(rows.initial)?];
        let vars = [held.1, aggregated.1, initial.1];
        Ok(Self { held: held.0, aggregated: aggregated.0, initial: initial.0, vars, first: 0 })
    }

    fn rows(&self) -> NodeInputs<'_> {
        NodeInputs {
            held: self.held.as_ref(),
            aggregated: self.aggregated.as_ref(),
            initial: self.initial.as_ref(),
            first: self.first,
        }
    }
}

/// An error that says that the caller misuses a task.
fn bug(message: &str) -> Error {
    Error::from(candle_core::Error::Msg(message.to_owned()))
}
