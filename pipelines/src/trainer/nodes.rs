//! Node tasks: what the model does with nodes alone, between two aggregations over the whole graph.
//!
//! Forwards and backwards, they are functions of rows and parameters. The backward one runs forwards again: nothing but its rows
//! is kept from one to the other (Dorylus, section 6: rematerialisation).

use std::time::Instant;

use candle_core::{Tensor, Var};
use gnnflow_data::rng::Key;
use gnnflow_operators::compute::Model;
use gnnflow_operators::compute::model::{NodeInputs, NodeOutputs};
use gnnflow_operators::compute::ops::seeded;
use gnnflow_operators::fetch::matrix::{Matrix, Values};

use super::Trainer;
use super::tensors::{read, tensor};
use crate::Error;
use crate::task::{Examples, Loss, Objective};
use crate::whole_graph::Shape;

/// The rows of a task's nodes.
#[derive(Default)]
pub(crate) struct NodeRows {
    pub(crate) held: Option<Matrix>,
    pub(crate) aggregated: Option<Matrix>,
    pub(crate) initial: Option<Matrix>,
}

/// Gradients of what a task makes, as far as anybody reads it.
#[derive(Default)]
pub(crate) struct NodeGradient {
    pub(crate) held: Option<Matrix>,
    pub(crate) sent: Option<Matrix>,
    pub(crate) terms: Option<[Matrix; 2]>,
}

/// Gradients of a task's rows, those that it has and of which a gradient is wanted; and of the parameters.
#[derive(Default)]
pub(crate) struct NodeBack {
    pub(crate) held: Option<Vec<f32>>,
    pub(crate) aggregated: Option<Vec<f32>>,
    pub(crate) initial: Option<Vec<f32>>,
    /// By the parameters; behind it what the rows add to the buffers.
    pub(crate) flat: Vec<f32>,
}

/// Rows on the model's device: the variables are those that want a gradient.
struct Inputs {
    held: Option<Tensor>,
    aggregated: Option<Tensor>,
    initial: Option<Tensor>,
    vars: [Option<Var>; 3],
}

/// Numbers as a matrix.
pub(crate) fn matrix(values: Vec<f32>, dim: usize) -> Matrix {
    Matrix { dim, values: Values::F32(values) }
}

impl Trainer {
    /// What training over the whole graph must know of the model.
    ///
    /// # Errors
    /// When it cannot be run in pieces of nodes.
    pub(crate) fn shape(&mut self) -> Result<Shape, Error> {
        Ok(Shape {
            hops: self.model.hops()?,
            first_learns: self.model.first_task_learns(),
            first_is_constant: self.model.first_task_is_constant(),
            reads_initial: (0..=self.model.num_layers()).map(|index| self.model.task_reads_initial(index)).collect(),
            by_column: (0..=self.model.num_layers()).map(|index| self.model.task_by_column(index)).collect(),
            pipelined: true,
            overlaps: false,
            pairs: None,
            seed: self.seed,
        })
    }

    fn node_inputs(&self, count: usize, rows: NodeRows, gradients: bool) -> Result<Inputs, Error> {
        let [mut held, mut aggregated, mut initial] = [(None, None), (None, None), (None, None)];
        for (matrix, (place, var)) in
            [(rows.held, &mut held), (rows.aggregated, &mut aggregated), (rows.initial, &mut initial)]
        {
            let Some(matrix) = matrix else { continue };
            let rows = tensor(matrix, count, &self.model)?;
            if gradients {
                let made = Var::from_tensor(&rows).map_err(gnnflow_operators::compute::Error::from)?;
                *place = Some(made.as_tensor().clone());
                *var = Some(made);
            } else {
                *place = Some(rows);
            }
        }
        Ok(Inputs {
            held: held.0,
            aggregated: aggregated.0,
            initial: initial.0,
            vars: [held.1, aggregated.1, initial.1],
        })
    }

    /// Runs node task `index` over `count` nodes, with a key in training; `take` sees what it makes.
    pub(crate) fn node_forward(
        &mut self,
        index: usize,
        count: usize,
        rows: NodeRows,
        key: Option<Key>,
        take: impl FnOnce(&NodeOutputs) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let inputs = self.node_inputs(count, rows, false)?;
        let Self { pool, model, .. } = self;
        let result = pool.install(|| {
            let inputs = NodeInputs {
                held: inputs.held.as_ref(),
                aggregated: inputs.aggregated.as_ref(),
                initial: inputs.initial.as_ref(),
            };
            // The way back tells the running statistics; here the batch's are only used.
            let mut untold = vec![0.0; model.params().flat_len() - model.params().trained_len()];
            let sums = key.is_some().then_some(&mut untold[..]);
            take(&model.node_task(index, inputs, key, sums)?)
        });
        self.spent.forward += start.elapsed();
        result
    }

    /// The gradients of node task `index`, when what it makes has `gradient`; of its rows only where `of_rows`.
    pub(crate) fn node_backward(
        &mut self,
        index: usize,
        count: usize,
        rows: NodeRows,
        key: Key,
        gradient: NodeGradient,
        of_rows: bool,
    ) -> Result<NodeBack, Error> {
        let start = Instant::now();
        let inputs = self.node_inputs(count, rows, of_rows)?;
        let back = self.backward_of(index, &inputs, key, |model, _, outputs| {
            let mut ends = Vec::new();
            let mut seed = |result: &Tensor, gradient: Matrix| -> Result<(), Error> {
                let gradient = tensor(gradient, count, model)?;
                ends.push(seeded(result, &gradient).map_err(gnnflow_operators::compute::Error::from)?);
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
            let sum = |sum: Tensor, end: &Tensor| sum + end;
            let (first, rest) = ends.split_first().ok_or_else(|| Error::Bug("a task without gradients".into()))?;
            let total = rest.iter().try_fold(first.clone(), sum);
            Ok((total.map_err(gnnflow_operators::compute::Error::from)?, 0))
        })?;
        self.spent.backward += start.elapsed();
        Ok(back.0)
    }

    /// The last task and the loss of its nodes `seeds`, forwards and backwards at once (Dorylus, section 6: task fusion); with the
    /// loss and how many examples it is of.
    pub(crate) fn node_loss(&mut self, seeds: &[u32], rows: NodeRows, key: Key) -> Result<(NodeBack, f64, u64), Error> {
        let start = Instant::now();
        let inputs = self.node_inputs(seeds.len(), rows, true)?;
        let (index, mut value) = (self.model.num_layers(), 0.0);
        let (back, examples) = self.backward_of(index, &inputs, key, |_, objective, outputs| {
            let examples = Examples { seeds, pairs: None, relations: None, head: None };
            let Loss { sum, examples } = objective.loss(&examples, &outputs.held)?;
            value = sum.to_scalar::<f64>().map_err(gnnflow_operators::compute::Error::from)?;
            Ok((sum, examples))
        })?;
        self.spent.backward += start.elapsed();
        Ok((back, value, examples))
    }

    fn backward_of(
        &self,
        index: usize,
        inputs: &Inputs,
        key: Key,
        end: impl FnOnce(&Model, &dyn Objective, &NodeOutputs) -> Result<(Tensor, u64), Error> + Send,
    ) -> Result<(NodeBack, u64), Error> {
        let Self { pool, model, objective, .. } = self;
        pool.install(|| {
            let mut flat = vec![0.0; model.params().flat_len()];
            let trained = model.params().trained_len();
            let mut sums = vec![0.0; flat.len() - trained];
            let nodes = NodeInputs {
                held: inputs.held.as_ref(),
                aggregated: inputs.aggregated.as_ref(),
                initial: inputs.initial.as_ref(),
            };
            let outputs = model.node_task(index, nodes, Some(key), Some(&mut sums))?;
            let (end, examples) = end(model, &**objective, &outputs)?;
            let gradients = end.backward().map_err(gnnflow_operators::compute::Error::from)?;
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
            let back = NodeBack { held: of(held)?, aggregated: of(aggregated)?, initial: of(initial)?, flat };
            Ok((back, examples))
        })
    }
}
