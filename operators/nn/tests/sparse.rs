//! Sparse optimizer steps equal dense ones on the rows that they touch.

use std::collections::BTreeMap;

use gnnflow_data::rng::{Key, Purpose};

use gnnflow_kernels::sparse::*;
use gnnflow_nn::optimizer;
use gnnflow_nn::optimizer::{AdamOptions, Optimizer, SgdOptions};

const ADAM: SparseOptimizer = SparseOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const ALL: [SparseOptimizer; 3] = [SparseOptimizer::Sgd, SparseOptimizer::Adagrad { epsilon: 1e-10 }, ADAM];

fn normals(key: Key, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| key.normal(i) as f32).collect()
}

/// A table with the state of any optimizer.
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

/// The naive update of one number, by the formulas of the papers, in `f64`.
fn naive(optimizer: SparseOptimizer, rate: f64, table: &mut [f64], state: &mut [(f64, f64, i32)], at: usize, g: f64) {
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
fn sparse_step_equals_formulas_and_keeps_other_rows() {
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
            let error = table.values.iter().zip(&values).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
            assert!(error < 2e-5, "{optimizer:?}, {dim} wide: {error}");
        }
    }
}

/// Three steps by hand: gradients 2, −1, 0.5 on a row that starts at 1, with rate 0.1.
#[test]
fn sparse_steps_equal_hand_computed_values() {
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
    // torch.optim.Adam(lr=0.1): the first step has length lr for any gradient.
    near(after(ADAM, &[2.0]), 0.9);
    let mean = (0.9 * 0.2 - 0.1) / (1.0 - 0.81);
    let square: f64 = (0.999 * 0.004 + 0.001) / (1.0 - 0.999f64.powi(2));
    near(after(ADAM, &[2.0, -1.0]), 0.9 - 0.1 * mean / (square.sqrt() + 1e-8));
}

#[test]
fn sparse_step_on_all_rows_equals_dense_step() {
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
fn sparse_sgd_equals_dense_sgd_with_zero_gradients() {
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
fn sparse_steps_have_equal_bits_for_any_thread_count() {
    let (rows, dim) = (3000, 9);
    let key = Key::new(6, Purpose::Shuffle);
    let lists: Vec<Vec<u32>> = (0..3).map(|l| (0..2000).map(|i| key.fold(l).below(i, rows) as u32).collect()).collect();
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
fn touched_groups_equal_naive_grouping() {
    let key = Key::new(2, Purpose::Shuffle);
    let lists: Vec<Vec<u32>> = (0..5).map(|l| (0..l * 40).map(|i| key.fold(l).below(i, 60) as u32).collect()).collect();
    let touched = Touched::group(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    lists.iter().flatten().zip(0..).for_each(|(&id, place)| wanted.entry(id).or_default().push(place));
    assert_eq!(touched.rows(), wanted.keys().copied().collect::<Vec<_>>());
    (0..touched.rows().len()).for_each(|i| assert_eq!(touched.positions(i), wanted[&touched.rows()[i]]));
    let some = touched.within(10..20);
    assert!(touched.rows()[some].iter().all(|row| (10..20).contains(row)));
    assert!(Touched::group(&[]).rows().is_empty());
    assert_eq!(Touched::group(&[&[], &[]]).within(0..9), 0..0);
}
