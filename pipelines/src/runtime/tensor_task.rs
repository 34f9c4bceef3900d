//! One task, and what comes of it.
//!
//! The backward one runs forwards again: nothing but its rows is kept from one to the other (Dorylus, section 6:
//! rematerialization). The last task, the loss and the way back through that task are one (task fusion).

use candle_core::{Tensor, Var};
use gnnflow_data::rng::Key;
use gnnflow_kernels::matrix::{Matrix, Values};
use gnnflow_nn::Model;
use gnnflow_nn::model::{NodeInputs, NodeOutputs};
use gnnflow_nn::ops::inject_gradient;

use crate::error::Error;
use gnnflow_nn::node_targets::NodeTargets;
use gnnflow_nn::tensors::{read, tensor};

/// The rows of a task's nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRows {
    /// What they held when they sent; for task 0, their features.
    pub held: Option<Matrix>,
    /// What has arrived.
    pub aggregated: Option<Matrix>,
    /// What they held before the first layer.
    pub initial: Option<Matrix>,
}

/// Gradients of what a task makes, as far as anybody reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeGradient {
    /// Of what nodes hold then.
    pub held: Option<Matrix>,
    /// Of what they send.
    pub sent: Option<Matrix>,
    /// Of attention's terms: of out-edges, of in-edges.
    pub terms: Option<[Matrix; 2]>,
}

/// What is asked of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// What it makes of its rows.
    Forward,
    /// The gradients when what it makes has these; of its rows only where `of_rows`.
    Backward {
        /// Of what it makes.
        gradient: NodeGradient,
        /// Whether gradients of its rows are wanted too.
        of_rows: bool,
    },
    /// The loss of what it makes, and the gradients of that.
    Loss(NodeTargets),
}

/// A task of some nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorTask {
    /// The node task, from 0 to the model's number of layers.
    pub index: usize,
    /// How many nodes it is for.
    pub count: usize,
    /// Their rows.
    pub rows: NodeRows,
    /// Of dropout's masks, in training.
    pub key: Option<Key>,
    /// What is asked.
    pub work: Work,
}

/// Gradients of a task's rows, those that it has and of which a gradient is wanted; and of the parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeBack {
    /// By what they held.
    pub held: Option<Vec<f32>>,
    /// By what had arrived.
    pub aggregated: Option<Vec<f32>>,
    /// By what they held before the first layer.
    pub initial: Option<Vec<f32>>,
    /// By the parameters; behind it what the rows add to the buffers.
    pub flat: Vec<f32>,
    /// The loss, where that was asked for.
    pub loss: f64,
    /// How many examples it is of.
    pub examples: u64,
}

/// What comes of a task.
#[derive(Clone, Debug)]
pub enum TensorResult {
    /// Of going forwards.
    Outputs(NodeOutputs),
    /// Of going back.
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

/// Rows on the model's device: the variables are those that want a gradient.
struct Inputs {
    held: Option<Tensor>,
    aggregated: Option<Tensor>,
    initial: Option<Tensor>,
    vars: [Option<Var>; 3],
    /// How many of the task's rows stand before these.
    first: usize,
}

/// Numbers as a matrix.
pub(crate) fn matrix(values: Vec<f32>, dim: usize) -> Matrix {
    Matrix { dim, values: Values::F32(values) }
}

impl TensorTask {
    /// Does the task by `model`, on the threads of the caller.
    ///
    /// # Errors
    /// When rows do not fit the model, or the device fails.
    pub fn run(self, model: &Model) -> Result<TensorResult, Error> {
        self.run_when(model, Ok)
    }

    /// Goes forwards with rows that stand behind `first` others of the same task, whose masks are those of the whole; what is made of the halves
    /// of a task ([`split_row`](gnnflow_nn::model::split_row)) is then what is made of the whole.
    ///
    /// # Errors
    /// As [`TensorTask::run`].
    pub fn run_from_row(self, model: &Model, first: usize) -> Result<TensorResult, Error> {
        let Self { index, count, rows, key, .. } = self;
        let inputs = Inputs { first, ..Inputs::new(count, rows, false, model)? };
        // The way back tells the running statistics; here the batch's are only used.
        let mut untold = vec![0.0; model.params().flat_len() - model.params().trained_len()];
        let sums = key.is_some().then_some(&mut untold[..]);
        Ok(TensorResult::Outputs(model.node_task(index, inputs.rows(), key, sums)?))
    }

    /// As [`TensorTask::run`], where what is to be compared with what it makes may come while it is made: `late` is called when it
    /// is wanted, with what the task says of it.
    ///
    /// # Errors
    /// As [`TensorTask::run`], and those of `late`.
    pub fn run_when(
        self,
        model: &Model,
        late: impl FnOnce(Work) -> Result<Work, Error>,
    ) -> Result<TensorResult, Error> {
        if self.is_forward() {
            return self.run_from_row(model, 0);
        }
        let Self { index, count, rows, key, work } = self;
        let of_rows = match &work {
            Work::Forward => false,
            Work::Backward { of_rows, .. } => *of_rows,
            Work::Loss(_) => true,
        };
        let inputs = Inputs::new(count, rows, of_rows, model)?;
        let (trained, all) = (model.params().trained_len(), model.params().flat_len());
        let (mut flat, mut sums) = (vec![0.0; all], vec![0.0; all - trained]);
        let outputs = model.node_task(index, inputs.rows(), key, Some(&mut sums))?;
        let (mut loss, mut examples) = (0.0, 0);
        let end = match late(work)? {
            Work::Loss(targets) => {
                let sum = targets.loss(&outputs.held)?;
                loss = sum.to_scalar::<f64>().map_err(gnnflow_nn::Error::from)?;
                examples = count as u64;
                sum
            }
            Work::Backward { gradient, .. } => end_of(count, &outputs, gradient, model)?,
            Work::Forward => return Err(Error::Bug("a way forwards has no end to go back from".into())),
        };
        let gradients = end.backward().map_err(gnnflow_nn::Error::from)?;
        model.params().gradients(&gradients, &mut flat)?;
        flat[trained..].copy_from_slice(&sums);
        let of = |var: &Option<Var>| -> Result<Option<Vec<f32>>, Error> {
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
        Ok(TensorResult::Back(NodeBack { held, aggregated, initial, flat, loss, examples }))
    }

    /// Bytes of its rows, and of what they are to be compared with.
    pub fn bytes(&self) -> usize {
        let more = match &self.work {
            Work::Forward => 0,
            Work::Backward { gradient, .. } => gradient.bytes(),
            Work::Loss(NodeTargets::Classes(classes)) => 4 * classes.len(),
            Work::Loss(NodeTargets::Flags(numbers) | NodeTargets::Numbers(numbers)) => 4 * numbers.len(),
        };
        self.rows.bytes() + more
    }

    /// Whether the same is asked of it as of `other`, only for other nodes.
    pub fn is_like(&self, other: &Self) -> bool {
        let asks = match (&self.work, &other.work) {
            (Work::Backward { of_rows, .. }, Work::Backward { of_rows: others, .. }) => of_rows == others,
            (Work::Loss(targets), Work::Loss(others)) => {
                std::mem::discriminant(targets) == std::mem::discriminant(others)
            }
            (work, other) => std::mem::discriminant(work) == std::mem::discriminant(other),
        };
        asks && self.index == other.index && self.key.is_some() == other.key.is_some()
    }

    /// Whether it only goes forwards.
    pub fn is_forward(&self) -> bool {
        matches!(self.work, Work::Forward)
    }
}

/// A number whose gradient by what a task has made is `gradient`.
fn end_of(count: usize, outputs: &NodeOutputs, gradient: NodeGradient, model: &Model) -> Result<Tensor, Error> {
    let mut ends = Vec::new();
    let mut seed = |result: &Tensor, gradient: Matrix| -> Result<(), Error> {
        let gradient = tensor(gradient, count, model)?;
        ends.push(inject_gradient(result, &gradient).map_err(gnnflow_nn::Error::from)?);
        Ok(())
    };
    if let Some(gradient) = gradient.held {
        seed(&outputs.held, gradient)?;
    }
    if let (Some(sent), Some(gradient)) = (&outputs.sent, gradient.sent) {
        seed(sent, gradient)?;
    }
    if let (Some(terms), Some(gradients)) = (&outputs.terms, gradient.terms) {
        for (term, gradient) in terms.iter().zip(gradients) {
            seed(term, gradient)?;
        }
    }
    let (first, rest) = ends.split_first().ok_or_else(|| Error::Bug("a task without gradients".into()))?;
    let total = rest.iter().try_fold(first.clone(), |sum: Tensor, end: &Tensor| sum + end);
    Ok(total.map_err(gnnflow_nn::Error::from)?)
}

impl Inputs {
    fn new(count: usize, rows: NodeRows, gradients: bool, model: &Model) -> Result<Self, Error> {
        let place = |matrix: Option<Matrix>| -> Result<(Option<Tensor>, Option<Var>), Error> {
            let Some(matrix) = matrix else { return Ok((None, None)) };
            let rows = tensor(matrix, count, model)?;
            if !gradients {
                return Ok((Some(rows), None));
            }
            let var = Var::from_tensor(&rows).map_err(gnnflow_nn::Error::from)?;
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
