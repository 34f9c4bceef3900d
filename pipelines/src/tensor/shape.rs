//! What the result of a task must look like, whoever says that it is one; and which tasks may come in halves.

use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::{Hop, split_row};

use crate::runtime::tensor_task::{TensorResult, TensorTask, Work};

/// Columns of what node tasks make, by task.
#[derive(Clone, Debug)]
pub(crate) struct ResultShapes {
    tasks: Vec<Columns>,
    /// Whether a task may be done in halves: in evaluation, and in training.
    by_row: Vec<[bool; 2]>,
    params: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    held: usize,
    sent: Option<usize>,
    terms: Option<usize>,
}

impl ResultShapes {
    /// For a model with these hops, `results` columns in its result and `params` parameters; `by_row` says which tasks may be done in halves.
    pub(crate) fn new(hops: &[Hop], by_row: Vec<[bool; 2]>, results: usize, params: usize) -> Self {
        let of =
            |hop: &Hop| Columns { held: hop.held, sent: Some(hop.width), terms: hop.attends().then(|| hop.terms()) };
        let last = Columns { held: results, ..Columns::default() };
        Self { tasks: hops.iter().map(of).chain([last]).collect(), by_row, params }
    }

    /// How many rows the first half of a task has, where it goes forwards and comes to the same bits in halves.
    pub(crate) fn half(&self, task: &TensorTask) -> Option<usize> {
        let may = self.by_row.get(task.index).is_some_and(|may| may[usize::from(task.key.is_some())]);
        split_row(task.count).filter(|_| may && task.is_forward())
    }

    /// Whether `result` can be what `task` comes to; else in words, why not.
    pub(crate) fn check(&self, task: &TensorTask, result: &TensorResult) -> Result<(), String> {
        let same = |what: &str, found: Option<usize>, wanted: Option<usize>| match (found, wanted) {
            _ if found == wanted => Ok(()),
            (found, wanted) => {
                let words = |number: Option<usize>| number.map_or("none".to_owned(), |number| number.to_string());
                Err(format!("sent {} numbers of {what} where {} were asked for", words(found), words(wanted)))
            }
        };
        match (&task.work, result) {
            (Work::Forward, TensorResult::Outputs(outputs)) => {
                let Columns { held, sent, terms: wanted } = self.tasks.get(task.index).copied().unwrap_or_default();
                let len = |columns: usize| task.count * columns;
                same("what is held", Some(outputs.held.elem_count()), Some(len(held)))?;
                same("what is sent", outputs.sent.as_ref().map(|sent| sent.elem_count()), sent.map(len))?;
                let [left, right] = match &outputs.terms {
                    Some(terms) => terms.each_ref().map(|term| Some(term.elem_count())),
                    None => [None; 2],
                };
                same("attention", left, wanted.map(len))?;
                same("attention", right, wanted.map(len))
            }
            (Work::Backward { of_rows: true, .. } | Work::Loss(_), TensorResult::Back(back)) => {
                let len = |matrix: &Option<Matrix>| matrix.as_ref().map(|matrix| task.count * matrix.dim);
                let found = |values: &Option<Vec<f32>>| values.as_ref().map(Vec::len);
                same("the gradient of what was held", found(&back.held), len(&task.rows.held))?;
                same("the gradient of what arrived", found(&back.aggregated), len(&task.rows.aggregated))?;
                same("the gradient of what was first", found(&back.initial), len(&task.rows.initial))?;
                same("the gradient of the parameters", Some(back.flat.len()), Some(self.params))
            }
            (Work::Backward { .. }, TensorResult::Back(back)) => {
                same("the gradient of the parameters", Some(back.flat.len()), Some(self.params))
            }
            _ => Err("answered another question than was asked".to_owned()),
        }
    }
}
