//! The shapes of node tasks' results: the check of results from tensor workers, and which tasks may be split.

use gnnflow_kernels::matrix::Matrix;
use gnnflow_nn::model::{Hop, split_row};
use gnnflow_nn::node_task::{NodeResult, NodeTask, Work};

/// The columns of all node tasks' outputs.
#[derive(Clone, Debug)]
pub(super) struct ResultShapes {
    tasks: Vec<Columns>,
    /// By task: whether it may be split, in evaluation and in training.
    splittable: Vec<[bool; 2]>,
    flat_len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    held: usize,
    sent: Option<usize>,
    terms: Option<usize>,
}

impl ResultShapes {
    /// Makes the shapes for a model with these hops, `results` output columns and `flat_len` parameters.
    pub(super) fn new(hops: &[Hop], splittable: Vec<[bool; 2]>, results: usize, flat_len: usize) -> Self {
        let of =
            |hop: &Hop| Columns { held: hop.held, sent: Some(hop.width), terms: hop.attends().then(|| hop.terms()) };
        let last = Columns { held: results, ..Columns::default() };
        Self { tasks: hops.iter().map(of).chain([last]).collect(), splittable, flat_len }
    }

    /// Returns the number of rows in a task's first half, if it is a forward task whose two halves have the bits of the whole.
    pub(super) fn split(&self, task: &NodeTask) -> Option<usize> {
        let may = self.splittable.get(task.index).is_some_and(|may| may[usize::from(task.key.is_some())]);
        split_row(task.count).filter(|_| may && task.is_forward())
    }

    /// Checks that `result` has the shape of `task`'s result.
    ///
    /// # Errors
    /// If the shapes differ; the text names the difference.
    pub(super) fn check(&self, task: &NodeTask, result: &NodeResult) -> Result<(), String> {
        let same = |what: &str, found: Option<usize>, wanted: Option<usize>| match (found, wanted) {
            _ if found == wanted => Ok(()),
            (found, wanted) => {
                let words = |number: Option<usize>| number.map_or("none".to_owned(), |number| number.to_string());
                Err(format!("sent {} numbers of {what} instead of {}", words(found), words(wanted)))
            }
        };
        match (&task.work, result) {
            (Work::Forward { held: requested }, NodeResult::Outputs(outputs)) => {
                let Columns { held, sent, terms: wanted } = self.tasks.get(task.index).copied().unwrap_or_default();
                let len = |columns: usize| task.count * columns;
                let found = outputs.held.as_ref().map(|held| held.elem_count());
                same("the held rows", found, requested.then(|| len(held)))?;
                same("the sent rows", outputs.sent.as_ref().map(|sent| sent.elem_count()), sent.map(len))?;
                let [source, destination] = match &outputs.terms {
                    Some(terms) => terms.each_ref().map(|term| Some(term.elem_count())),
                    None => [None; 2],
                };
                same("the source scores", source, wanted.map(len))?;
                same("the destination scores", destination, wanted.map(len))
            }
            (Work::Backward { of_rows: true, .. } | Work::Loss(_), NodeResult::Back(back)) => {
                let len = |matrix: &Option<Matrix>| matrix.as_ref().map(|matrix| task.count * matrix.dim);
                let found = |values: &Option<Vec<f32>>| values.as_ref().map(Vec::len);
                same("the gradient of the held rows", found(&back.held), len(&task.rows.held))?;
                same("the gradient of the aggregated rows", found(&back.aggregated), len(&task.rows.aggregated))?;
                same("the gradient of the initial rows", found(&back.initial), len(&task.rows.initial))?;
                same("the gradient of the parameters", Some(back.flat.len()), Some(self.flat_len))
            }
            (Work::Backward { .. }, NodeResult::Back(back)) => {
                same("the gradient of the parameters", Some(back.flat.len()), Some(self.flat_len))
            }
            _ => Err("sent a result of another kind of task".to_owned()),
        }
    }
}
