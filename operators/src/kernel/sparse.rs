//! Optimiser steps on some of a table's rows: of a table of embeddings, a step touches few.
//!
//! A row's gradients come from several batches. [`Touched`] says which rows there are and which gradients belong to each;
//! [`step`] adds a row's gradients in their order, scales the sum and moves the row, once. So a row's bits depend on the order
//! of the lists alone, never on threads. Rows that no batch reached are not read: neither they nor their state change.
//!
//! The rules are PyTorch's dense ones, applied to the touched rows. A row of Adam counts *its own* steps for the correction of
//! its bias, and its means do not decay while it rests, as in DGL's `SparseAdam`; PyTorch's counts everybody's. A table whose
//! rows are touched in every step moves as the dense optimiser moves it, bit for bit.

use std::ops::Range;

use rayon::prelude::*;

use super::dispatch::multiversion;
use super::prefetch_row;

/// How touched rows move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparseOptimizer {
    /// `row −= lr · g`.
    Sgd,
    /// `sum += g²; row −= lr · g / (√sum + ε)` (Duchi, Hazan, Singer 2011).
    Adagrad {
        /// Added to the root.
        epsilon: f64,
    },
    /// Adam (Kingma, Ba 2015) with a count of steps for each row.
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
    /// Numbers of state beside each number of a row.
    ///
    /// ```
    /// use gnnflow_operators::kernel::sparse::SparseOptimizer;
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

    /// Whether each row counts its steps.
    pub const fn counts_steps(self) -> bool {
        matches!(self, Self::Adam { .. })
    }
}

/// Which rows several lists of ids touch, and the places in the lists where each stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    rows: Vec<u32>,
    starts: Vec<u32>,
    places: Vec<u32>,
}

impl Touched {
    /// Groups lists of ids. Places count through all lists, one after another; those of a row ascend.
    ///
    /// ```
    /// use gnnflow_operators::kernel::sparse::Touched;
    ///
    /// let touched = Touched::group(&[&[7, 3], &[3, 9]]);
    /// assert_eq!(touched.rows(), [3, 7, 9]);
    /// assert_eq!(touched.places(0), [1, 2]);
    /// ```
    ///
    /// # Panics
    /// When there are 2³² places or more.
    pub fn group(lists: &[&[u32]]) -> Self {
        let count = lists.iter().map(|list| list.len()).sum::<usize>();
        assert!(u32::try_from(count).is_ok(), "{count} gradients in one step");
        let ids = lists.iter().flat_map(|list| list.iter());
        // An id and its place in one word: sorted, a row's places stand together and ascend.
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
        Self { rows, starts, places: words.into_iter().map(|word| word as u32).collect() }
    }

    /// The ids, each once, ascending.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The places of the `i`-th id.
    pub fn places(&self, i: usize) -> &[u32] {
        &self.places[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// Which of [`Touched::rows`] lie in a range of ids.
    pub fn within(&self, ids: Range<u32>) -> Range<usize> {
        self.rows.partition_point(|&row| row < ids.start)..self.rows.partition_point(|&row| row < ids.end)
    }
}

/// A stretch of a table with the state of its rows.
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Id of the first row.
    pub first: u32,
    /// Numbers in a row.
    pub dim: usize,
    /// The rows.
    pub values: &'a mut [f32],
    /// [`SparseOptimizer::state_per_number`] times as many numbers: a row's beside one another.
    pub state: &'a mut [f32],
    /// A count for each row where [`SparseOptimizer::counts_steps`], else none.
    pub steps: &'a mut [u32],
}

impl<'a> RowsMut<'a> {
    /// Rows before id `id`, and those from it on.
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

/// Touched rows that one task moves.
const PIECE: usize = 256;

/// One step of `optimizer` on those `rows` that are among `which` of `touched`. `gradients` has a row for each place, added up in
/// order and multiplied by `scale`.
///
/// On a thread of a pool all of its threads take part; elsewhere the caller works alone. The bits are the same.
///
/// ```
/// use gnnflow_operators::kernel::sparse::{RowsMut, SparseOptimizer, Touched, step};
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
/// When a row is none of `rows`, a gradient is not as wide, or state is missing.
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
    assert_eq!(rows.state.len(), rows.values.len() * optimizer.state_per_number(), "state of every row");
    assert!(!optimizer.counts_steps() || rows.steps.len() == count, "a count for every row");
    if let Some(&last) = touched.rows[which.clone()].last() {
        assert!(touched.rows[which.start] >= rows.first && ((last - rows.first) as usize) < count, "rows of the table");
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

/// Cuts the work into pieces of neighbouring rows.
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
        return move_rows(rule, scale, rows, touched, which, gradients);
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
    tasks.into_par_iter().for_each(|(rows, which)| move_rows(rule, scale, rows, touched, which, gradients));
}

/// How one row moves.
trait Rule: Copy + Send + Sync {
    /// Moves `row` along `gradient`; `steps` counts this one.
    fn update(self, steps: u32, gradient: &[f32], row: &mut [f32], state: &mut [f32]);
}

multiversion! {
    fn move_rows [R: Rule] (rule: R, scale: f32, rows: RowsMut<'_>, touched: &Touched, which: Range<usize>, gradients: &[&[f32]]) {
        let RowsMut { first, dim, values, state, steps } = rows;
        let wide = state.len() / (values.len() / dim.max(1)).max(1);
        let mut sum = vec![0.0; dim];
        for i in which.clone() {
            if i + 1 < which.end {
                let next = gradients[touched.places(i + 1)[0] as usize];
                prefetch_row(bytemuck::cast_slice(&next[..dim.min(64)]));
            }
            let (head, rest) = touched.places(i).split_first().expect("a touched row stands somewhere");
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
            rule.update(count, &sum, &mut values[at * dim..(at + 1) * dim], &mut state[at * wide..(at + 1) * wide]);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gnnflow_data::rng::{Key, Purpose};

    use super::*;
    use crate::compute::optimizer::{self, AdamOptions, Optimizer, SgdOptions};

    const ADAM: SparseOptimizer = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    const ALL: [SparseOptimizer; 3] = [SparseOptimizer::Sgd, SparseOptimizer::Adagrad { epsilon: 1e-10 }, ADAM];

    fn normals(key: Key, len: usize) -> Vec<f32> {
        (0..len as u64).map(|i| key.normal(i) as f32).collect()
    }

    /// A table with the state of any rule.
    #[derive(Clone, Debug, PartialEq)]
    struct Owned {
        dim: usize,
        values: Vec<f32>,
        state: Vec<f32>,
        steps: Vec<u32>,
    }

    impl Owned {
        fn new(optimizer: SparseOptimizer, rows: usize, dim: usize) -> Self {
            let values = normals(Key::new(1, Purpose::Init), rows * dim);
            let state = vec![0.0; rows * dim * optimizer.state_per_number()];
            Self { dim, values, state, steps: vec![0; if optimizer.counts_steps() { rows } else { 0 }] }
        }

        fn step(&mut self, optimizer: SparseOptimizer, rate: f64, scale: f32, lists: &[Vec<u32>], gradients: &[f32]) {
            let touched = Touched::group(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let gradients: Vec<&[f32]> = gradients.chunks_exact(self.dim).collect();
            let dim = self.dim;
            let (values, state, steps) = (&mut self.values[..], &mut self.state[..], &mut self.steps[..]);
            let rows = RowsMut { first: 0, dim, values, state, steps };
            step(optimizer, rate, scale, rows, &touched, 0..touched.rows().len(), &gradients);
        }
    }

    /// The obvious program, one number at a time, by the formulas of the papers, in `f64`.
    fn naive(
        optimizer: SparseOptimizer,
        rate: f64,
        table: &mut [f64],
        state: &mut [(f64, f64, i32)],
        at: usize,
        g: f64,
    ) {
        let (a, b, t) = &mut state[at];
        *t += 1;
        table[at] -= match optimizer {
            SparseOptimizer::Sgd => rate * g,
            SparseOptimizer::Adagrad { epsilon } => {
                *a += g * g;
                rate * g / (a.sqrt() + epsilon)
            }
            SparseOptimizer::Adam { beta1, beta2, epsilon } => {
                *a = beta1 * *a + (1.0 - beta1) * g;
                *b = beta2 * *b + (1.0 - beta2) * g * g;
                let (mean, square) = (*a / (1.0 - beta1.powi(*t)), *b / (1.0 - beta2.powi(*t)));
                rate * mean / (square.sqrt() + epsilon)
            }
        };
    }

    #[test]
    fn rows_move_as_the_formulas_say_and_the_others_rest() {
        let (rows, key) = (40, Key::new(8, Purpose::Shuffle));
        for optimizer in ALL {
            for dim in [1, 5, 16, 37] {
                let mut table = Owned::new(optimizer, rows, dim);
                let mut values: Vec<f64> = table.values.iter().map(|&v| f64::from(v)).collect();
                let mut state = vec![(0.0, 0.0, 0); rows * dim];
                for round in 0..6u64 {
                    let key = key.fold(round);
                    // Three lists, with repetitions in and between them; some rows are in none.
                    let ids = |list: u64| -> Vec<u32> {
                        (0..9).map(|i| key.fold(list).below(i, rows as u64 / 2) as u32 * 2).collect()
                    };
                    let lists = [ids(0), ids(1), ids(2)];
                    let gradients = normals(key.fold(9), 27 * dim);
                    let before = table.clone();
                    table.step(optimizer, 0.1, 0.25, &lists, &gradients);
                    let mut sums: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
                    for (&id, gradient) in lists.iter().flatten().zip(gradients.chunks(dim)) {
                        let sum = sums.entry(id).or_insert_with(|| vec![0.0; dim]);
                        sum.iter_mut().zip(gradient).for_each(|(s, &g)| *s += f64::from(g));
                    }
                    for (&id, sum) in &sums {
                        for (column, g) in sum.iter().enumerate() {
                            let at = id as usize * dim + column;
                            naive(optimizer, 0.1, &mut values, &mut state, at, g * 0.25);
                        }
                    }
                    for row in (0..rows as u32).filter(|row| !sums.contains_key(row)) {
                        let row = row as usize;
                        assert_eq!(table.values[row * dim..][..dim], before.values[row * dim..][..dim]);
                        assert_eq!(table.steps.get(row), before.steps.get(row));
                    }
                }
                let far = table.values.iter().zip(&values).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
                assert!(far < 2e-5, "{optimizer:?}, {dim} wide: {far}");
            }
        }
    }

    /// Three steps by hand: gradients 2, −1, 0.5 on a row that starts at 1, rate 0.1, the second step without it for Adam's count.
    #[test]
    fn golden_values() {
        let after = |optimizer: SparseOptimizer, gradients: &[f32]| {
            let mut table = Owned { values: vec![1.0, 9.0], ..Owned::new(optimizer, 2, 1) };
            gradients.iter().for_each(|&g| table.step(optimizer, 0.1, 1.0, &[vec![0]], &[g]));
            assert_eq!(table.values[1], 9.0);
            f64::from(table.values[0])
        };
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
        near(after(SparseOptimizer::Sgd, &[2.0, -1.0, 0.5]), 1.0 - 0.1 * 1.5);
        let adagrad = 1.0 - 0.1 + 0.1 / 5f64.sqrt() - 0.05 / 5.25f64.sqrt();
        near(after(ALL[1], &[2.0, -1.0, 0.5]), adagrad);
        // torch.optim.Adam(lr=0.1): the first step is of length lr whatever the gradient.
        near(after(ADAM, &[2.0]), 0.9);
        let mean = (0.9 * 0.2 - 0.1) / (1.0 - 0.81);
        let square: f64 = (0.999 * 0.004 + 0.001) / (1.0 - 0.999f64.powi(2));
        near(after(ADAM, &[2.0, -1.0]), 0.9 - 0.1 * mean / (square.sqrt() + 1e-8));
    }

    #[test]
    fn where_every_row_is_touched_the_dense_optimizer_does_the_same() {
        let (rows, dim) = (30, 7);
        let ids: Vec<u32> = (0..rows as u32).rev().collect();
        let options = AdamOptions { learning_rate: 0.05, ..AdamOptions::default() };
        let dense: [(SparseOptimizer, Box<dyn Optimizer>); 2] = [
            (ADAM, Box::new(optimizer::Adam::new(rows * dim, options))),
            (
                SparseOptimizer::Sgd,
                Box::new(optimizer::Sgd::new(rows * dim, SgdOptions { learning_rate: 0.05, ..SgdOptions::default() })),
            ),
        ];
        for (sparse, mut dense) in dense {
            let mut table = Owned::new(sparse, rows, dim);
            let mut params = table.values.clone();
            for round in 0..5 {
                let gradients = normals(Key::new(round, Purpose::Dropout), rows * dim);
                table.step(sparse, 0.05, 1.0, std::slice::from_ref(&ids), &gradients);
                let in_order: Vec<f32> = gradients.chunks(dim).rev().flatten().copied().collect();
                dense.step(&mut params, &in_order);
                assert_eq!(table.values, params, "{sparse:?}");
            }
        }
    }

    #[test]
    fn a_dense_step_whose_gradient_is_mostly_zeros_is_the_sparse_step_of_plain_descent() {
        let (rows, dim) = (50, 6);
        let mut table = Owned::new(SparseOptimizer::Sgd, rows, dim);
        let mut params = table.values.clone();
        let mut dense = optimizer::Sgd::new(rows * dim, SgdOptions { learning_rate: 0.3, ..SgdOptions::default() });
        let ids = [vec![4, 9, 49], vec![9, 0]];
        let gradients = normals(Key::new(3, Purpose::Dropout), 5 * dim);
        let mut flat = vec![0.0; rows * dim];
        for (&id, gradient) in ids.iter().flatten().zip(gradients.chunks(dim)) {
            let row = &mut flat[id as usize * dim..][..dim];
            row.iter_mut().zip(gradient).for_each(|(f, g)| *f += g);
        }
        flat.iter_mut().for_each(|f| *f *= 0.125);
        dense.step(&mut params, &flat);
        table.step(SparseOptimizer::Sgd, 0.3, 0.125, &ids, &gradients);
        assert_eq!(table.values, params);
    }

    #[test]
    fn threads_change_nothing() {
        let (rows, dim) = (3000, 9);
        let key = Key::new(6, Purpose::Shuffle);
        let lists: Vec<Vec<u32>> =
            (0..3).map(|l| (0..2000).map(|i| key.fold(l).below(i, rows) as u32).collect()).collect();
        let gradients = normals(key, 6000 * dim);
        for optimizer in ALL {
            let mut alone = Owned::new(optimizer, rows as usize, dim);
            let mut together = alone.clone();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
            for _ in 0..3 {
                alone.step(optimizer, 0.1, 0.5, &lists, &gradients);
                pool.install(|| together.step(optimizer, 0.1, 0.5, &lists, &gradients));
            }
            assert_eq!(alone, together, "{optimizer:?}");
        }
    }

    #[test]
    fn groups_are_those_of_a_plain_loop() {
        let key = Key::new(2, Purpose::Shuffle);
        let lists: Vec<Vec<u32>> =
            (0..5).map(|l| (0..l * 40).map(|i| key.fold(l).below(i, 60) as u32).collect()).collect();
        let touched = Touched::group(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        lists.iter().flatten().zip(0..).for_each(|(&id, place)| wanted.entry(id).or_default().push(place));
        assert_eq!(touched.rows(), wanted.keys().copied().collect::<Vec<_>>());
        (0..touched.rows().len()).for_each(|i| assert_eq!(touched.places(i), wanted[&touched.rows()[i]]));
        let some = touched.within(10..20);
        assert!(touched.rows()[some].iter().all(|row| (10..20).contains(row)));
        assert!(Touched::group(&[]).rows().is_empty());
        assert_eq!(Touched::group(&[&[], &[]]).within(0..9), 0..0);
    }
}
