//! Test graphs and common helpers.

mod attention;
mod dynamic_attention;
mod maximum;
mod sums;

use gnnflow_data::rng::{Key, Purpose};

use crate::aggregate::transpose::{Transpose, transpose};
use gnnflow_data::testing::random_graph;

/// In-edges of `indptr.len() - 1` destinations from `sources` sources.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) name: &'static str,
    pub(crate) sources: usize,
    pub(crate) indptr: Vec<i64>,
    pub(crate) indices: Vec<u32>,
}

impl Graph {
    fn new(name: &'static str, in_neighbors: &[Vec<u32>]) -> Self {
        let mut indptr = vec![0];
        in_neighbors.iter().for_each(|row| indptr.push(indptr[indptr.len() - 1] + row.len() as i64));
        Self { name, sources: in_neighbors.len(), indptr, indices: in_neighbors.concat() }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    pub(crate) fn edges(&self, row: usize) -> std::ops::Range<usize> {
        self.indptr[row] as usize..self.indptr[row + 1] as usize
    }

    pub(crate) fn inverse(&self) -> Transpose {
        transpose(self.sources, &self.indptr, &self.indices)
    }
}

/// Graphs of many shapes, including edge cases.
pub(crate) fn graphs() -> Vec<Graph> {
    let star: Vec<Vec<u32>> = (0..300).map(|v| if v == 0 { (0..300).rev().collect() } else { vec![0] }).collect();
    let key = Key::new(3, Purpose::GenerateEdges);
    // In-degrees and out-degrees follow power laws.
    let skewed = |i: u64, n: u64| ((n as f64).powf(key.unit(i)) as u64 - 1) as u32;
    let power_law = (0..2000u64).map(|v| (0..4000 / (v + 1) + v % 3).map(|i| skewed(v << 20 | i, 2000)).collect());
    vec![
        Graph::new("empty", &[]),
        Graph::new("one node", &[vec![]]),
        Graph::new("self loop", &[vec![0]]),
        Graph::new("parallel edges and an isolated node", &[vec![1, 1, 0, 1], vec![], vec![2, 0, 0]]),
        Graph::new("star", &star),
        Graph::new("random with a hub", &random_graph(700, 40)),
        Graph::new("power law", &power_law.collect::<Vec<Vec<u32>>>()),
    ]
}

/// `n` normal numbers.
pub(crate) fn normal(n: usize, seed: u64) -> Vec<f32> {
    let key = Key::new(seed, Purpose::GenerateNodes);
    (0..n as u64).map(|i| key.normal(i) as f32).collect()
}

/// Returns the result of `work`, which must have the same bits on 1, 2 and 4 threads.
pub(crate) fn on_threads<A: PartialEq + Send>(work: impl Fn() -> A + Sync) -> A {
    let on = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(&work);
    let one = on(1);
    assert!(on(2) == one && on(4) == one, "threads change the result");
    one
}

/// Intervals of rows: all, halves, some single rows, uneven ones.
pub(crate) fn intervals(rows: usize) -> Vec<Vec<std::ops::Range<usize>>> {
    let by = |step: usize| (0..rows).step_by(step.max(1)).map(|a| a..(a + step.max(1)).min(rows)).collect();
    vec![by(rows), by(rows.div_ceil(2)), by(rows / 7 + 1), if rows < 1000 { by(1) } else { by(97) }]
}
