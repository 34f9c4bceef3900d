//! Sparse optimizer steps: a step updates only some rows of a table of embeddings.
//!
//! A row's gradients come from several batches. [`Touched`] groups the gradients by row. [`step`] sums a row's
//! gradients in order, scales the sum and updates the row once. A row's bits therefore depend only on the order of the
//! lists, not on threads. Other rows and their state are neither read nor changed.
//!
//! The rules are PyTorch's dense rules, applied to the touched rows. In Adam, each row counts its *own* steps for bias
//! correction, and its means do not decay in other steps, as in DGL's `SparseAdam`; PyTorch has one count per table. A
//! table whose rows are touched in every step gets the bits of the dense optimizer.

use std::ops::Range;

use rayon::prelude::*;

use super::parallel;
use super::prefetch::prefetch_row;
use super::simd::dispatch::multiversion;

/// The update rule of touched rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseOptimizer {
    /// `row −= lr · g`.
    Sgd,
    /// `sum += g²; row −= lr · g / (√sum + ε)` (Duchi, Hazan, Singer 2011).
    Adagrad {
        /// Added to the root.
        epsilon: f64,
    },
    /// Adam (Kingma, Ba 2015) with a step count per row.
    Adam {
        /// Decay of the mean of gradients.
        beta1: f64,
        /// Decay of the mean of squared gradients.
        beta2: f64,
        /// Added to the root of the latter.
        epsilon: f64,
    },
}

impl SparseOptimizer {
    /// Returns the numbers of optimizer state per number of a row.
    ///
    /// ```
    /// use gnnflow_kernels::sparse::SparseOptimizer;
    ///
    /// let adam = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    /// assert_eq!([SparseOptimizer::Sgd, adam].map(SparseOptimizer::state_per_number), [0, 2]);
    /// ```
    pub const fn state_per_number(self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Adagrad { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }

    /// Returns whether each row counts its steps.
    pub const fn counts_steps(self) -> bool {
        matches!(self, Self::Adam { .. })
    }
}

/// The rows that several lists of ids touch, and their positions in these lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    rows: Vec<u32>,
    starts: Vec<u32>,
    positions: Vec<u32>,
}

impl Touched {
    /// Groups lists of ids. Positions count through all lists, one after another; those of a row are ascending.
    ///
    /// ```
    /// use gnnflow_kernels::sparse::Touched;
    ///
    /// let touched = Touched::group(&[&[7, 3], &[3, 9]]);
    /// assert_eq!(touched.rows(), [3, 7, 9]);
    /// assert_eq!(touched.positions(0), [1, 2]);
    /// ```
    ///
    /// # Panics
    /// If there are 2³² positions or more.
    pub fn group(lists: &[&[u32]]) -> Self {
        let count = lists.iter().map(|list| list.len()).sum::<usize>();
        assert!(u32::try_from(count).is_ok(), "{count} gradients in one step");
        let ids = lists.iter().flat_map(|list| list.iter());
        // An id and its position in one word: sorting groups a row's positions in ascending order.
        let mut words: Vec<u64> = ids.zip(0u64..).map(|(&id, place)| u64::from(id) << 32 | place).collect();
        if rayon::current_thread_index().is_some() {
            words.par_sort_unstable()
        } else {
            words.sort_unstable()
        }
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        for (at, word) in words.iter().enumerate() {
            let id = (word >> 32) as u32;
            if rows.last() != Some(&id) {
                rows.push(id);
                starts.push(at as u32);
            }
        }
        starts.push(count as u32);
        Self { rows, starts, positions: words.into_iter().map(|word| word as u32).collect() }
    }

    /// Returns the distinct ids in ascending order.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Returns the positions of id number `i`.
    pub fn positions(&self, i: usize) -> &[u32] {
        &self.positions[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// Returns the range of [`Touched::rows`] within a range of ids.
    pub fn within(&self, ids: Range<u32>) -> Range<usize> {
        self.rows.partition_point(|&row| row < ids.start)..self.rows.partition_point(|&row| row < ids.end)
    }
}

/// Consecutive rows of a table with their state.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Id of the first row.
    pub first: u32,
    /// Numbers per row.
    pub dim: usize,
    /// The rows.
    pub values: &'a mut [f32],
    /// [`SparseOptimizer::state_per_number`] times the numbers of `values`; a row's state is contiguous.
    pub state: &'a mut [f32],
    /// A count per row if [`SparseOptimizer::counts_steps`], otherwise empty.
    pub steps: &'a mut [u32],
}

impl<'a> RowsMut<'a> {
    /// Splits into the rows before id `id`, and those from it on.
    fn split(self, id: u32, per_number: usize, counts: bool) -> (Self, Self) {
        let Self { first, dim, values, state, steps } = self;
        let rows = (id - first) as usize;
        let (left, right) = values.split_at_mut(rows * dim);
        let (left_state, right_state) = state.split_at_mut(rows * dim * per_number);
        let (left_steps, right_steps) = steps.split_at_mut(if counts { rows } else { 0 });
        (
            Self { first, dim, values: left, state: left_state, steps: left_steps },
            Self { first: id, dim, values: right, state: right_state, steps: right_steps },
        )
    }
}

/// Touched rows per task.
const PIECE: usize = 256;

/// Applies one step of `optimizer` to `which` of the `touched` rows. `gradients` has one row per position; a row's
/// gradients are summed in order and multiplied by `scale`.
///
/// On a thread of a pool, all threads of the pool take part; elsewhere the caller works alone. The bits are the same.
///
/// ```
/// use gnnflow_kernels::sparse::{RowsMut, SparseOptimizer, Touched, step};
///
/// let mut table = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
/// let rows = RowsMut { first: 10, dim: 2, values: &mut table, state: &mut [], steps: &mut [] };
/// let touched = Touched::group(&[&[12, 10], &[12]]);
/// let gradients: [&[f32]; 3] = [&[1.0, 0.0], &[4.0, 4.0], &[3.0, 2.0]];
/// step(SparseOptimizer::Sgd, 0.5, 0.5, rows, &touched, touched.within(10..13), &gradients);
/// assert_eq!(table, [0.0, 0.0, 2.0, 2.0, 2.0, 2.5]);
/// ```
///
/// # Panics
/// If a touched row is not one of `rows`, a gradient has another width, or state is missing.
pub fn step(
    optimizer: SparseOptimizer,
    learning_rate: f64,
    scale: f32,
    rows: RowsMut<'_>,
    touched: &Touched,
    which: Range<usize>,
    gradients: &[&[f32]],
) {
    let count = rows.values.len() / rows.dim.max(1);
    assert_eq!(rows.state.len(), rows.values.len() * optimizer.state_per_number(), "state for every row");
    assert!(!optimizer.counts_steps() || rows.steps.len() == count, "one step count per row");
    if let Some(&last) = touched.rows[which.clone()].last() {
        assert!(
            touched.rows[which.start] >= rows.first && ((last - rows.first) as usize) < count,
            "touched rows are rows of the table"
        );
    }
    let rate = learning_rate as f32;
    match optimizer {
        SparseOptimizer::Sgd => pieces(Sgd { rate }, optimizer, scale, rows, touched, which, gradients),
        SparseOptimizer::Adagrad { epsilon } => {
            let rule = Adagrad { rate, epsilon: epsilon as f32 };
            pieces(rule, optimizer, scale, rows, touched, which, gradients);
        }
        SparseOptimizer::Adam { beta1, beta2, epsilon } => {
            let rule = Adam { learning_rate, beta1, beta2, epsilon: epsilon as f32 };
            pieces(rule, optimizer, scale, rows, touched, which, gradients);
        }
    }
}

/// Divides the work into pieces of consecutive rows.
fn pieces<R: Rule>(
    rule: R,
    optimizer: SparseOptimizer,
    scale: f32,
    rows: RowsMut<'_>,
    touched: &Touched,
    which: Range<usize>,
    gradients: &[&[f32]],
) {
    if rayon::current_thread_index().is_none() || which.len() <= PIECE {
        return update_rows(rule, scale, rows, touched, which, gradients);
    }
    let (per_number, counts) = (optimizer.state_per_number(), optimizer.counts_steps());
    let (mut rest, mut tasks) = (rows, Vec::with_capacity(which.len().div_ceil(PIECE)));
    for begin in which.clone().step_by(PIECE) {
        let end = (begin + PIECE).min(which.end);
        let after = touched.rows[end - 1] + 1;
        let (piece, later) = rest.split(after, per_number, counts);
        tasks.push((piece, begin..end));
        rest = later;
    }
    parallel::each(tasks, &|(rows, which): (RowsMut<'_>, Range<usize>)| {
        update_rows(rule, scale, rows, touched, which, gradients);
    });
}

/// The update of one row.
trait Rule: Copy + Send + Sync {
    /// For `multiversion!`.
    const VECTORS: bool = true;
    /// Updates `row` by `gradient`; `steps` includes this step.
    fn update(self, steps: u32, gradient: &[f32], row: &mut [f32], state: &mut [f32]);
}

multiversion! {
    fn update_rows [R: Rule] (rule: R, scale: f32, rows: RowsMut<'_>, touched: &Touched, which: Range<usize>, gradients: &[&[f32]]) {
        let RowsMut { first, dim, values, state, steps } = rows;
        let state_width = state.len() / (values.len() / dim.max(1)).max(1);
        let mut sum = vec![0.0; dim];
        for i in which.clone() {
            if i + 1 < which.end {
                let next = gradients[touched.positions(i + 1)[0] as usize];
                prefetch_row(bytemuck::cast_slice(&next[..dim.min(64)]));
            }
            let (head, rest) = touched.positions(i).split_first().expect("a touched row has a position");
            sum.copy_from_slice(gradients[*head as usize]);
            for &place in rest {
                sum.iter_mut().zip(gradients[place as usize]).for_each(|(s, g)| *s += g);
            }
            sum.iter_mut().for_each(|s| *s *= scale);
            let at = (touched.rows[i] - first) as usize;
            let count = match steps.get_mut(at) {
                Some(count) => {
                    *count = count.saturating_add(1);
                    *count
                }
                None => 0,
            };
            rule.update(count, &sum, &mut values[at * dim..(at + 1) * dim], &mut state[at * state_width..(at + 1) * state_width]);
        }
    }
}

#[derive(Clone, Copy)]
struct Sgd {
    rate: f32,
}

impl Rule for Sgd {
    #[inline(always)]
    fn update(self, _steps: u32, gradient: &[f32], row: &mut [f32], _state: &mut [f32]) {
        row.iter_mut().zip(gradient).for_each(|(p, &g)| *p -= self.rate * g);
    }
}

#[derive(Clone, Copy)]
struct Adagrad {
    rate: f32,
    epsilon: f32,
}

impl Rule for Adagrad {
    #[inline(always)]
    fn update(self, _steps: u32, gradient: &[f32], row: &mut [f32], state: &mut [f32]) {
        for ((p, &g), sum) in row.iter_mut().zip(gradient).zip(state) {
            *sum += g * g;
            *p -= self.rate * g / (sum.sqrt() + self.epsilon);
        }
    }
}

#[derive(Clone, Copy)]
struct Adam {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f32,
}

impl Rule for Adam {
    #[inline(always)]
    fn update(self, steps: u32, gradient: &[f32], row: &mut [f32], state: &mut [f32]) {
        let t = i32::try_from(steps).unwrap_or(i32::MAX);
        let (correction1, correction2) = (1.0 - self.beta1.powi(t), 1.0 - self.beta2.powi(t));
        let (size, root) = ((self.learning_rate / correction1) as f32, correction2.sqrt() as f32);
        let [beta1, beta2] = [self.beta1 as f32, self.beta2 as f32];
        let [one_less_beta1, one_less_beta2] = [(1.0 - self.beta1) as f32, (1.0 - self.beta2) as f32];
        let (mean, square) = state.split_at_mut(row.len());
        for (((p, &g), m), v) in row.iter_mut().zip(gradient).zip(mean).zip(square) {
            *m = beta1 * *m + one_less_beta1 * g;
            *v = beta2 * *v + one_less_beta2 * g * g;
            *p -= size * *m / (v.sqrt() / root + self.epsilon);
        }
    }
}
