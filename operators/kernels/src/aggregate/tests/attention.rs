//! Tests of GAT's aggregation and its gradients.

use std::ops::Range;

use gnnflow_data::rng::{Key, Purpose};
use half::bf16;

use super::{Graph, graphs, intervals, normal, on_threads};
use crate::aggregate::Sources;
use crate::aggregate::attention::{Attention, EdgeDropout, STATE};
use crate::aggregate::attention_backward::AttentionBackward;
use crate::aggregate::transpose::Transpose;
use crate::dense::elementwise::Dropout;
use crate::simd::element::{Element, Real};

const SLOPE: f64 = 0.2;

/// Inputs: rows, scores of both nodes, a gradient and masks.
struct Problem<T: Element> {
    graph: Graph,
    inverse: Transpose,
    heads: usize,
    width: usize,
    x: Vec<T>,
    left: Vec<T::Acc>,
    right: Vec<T::Acc>,
    gradient: Vec<T::Acc>,
    dropout: Option<Dropout>,
    /// Global ids; they differ from the indices of edges.
    ids: Vec<u32>,
}

/// Results of the kernels.
#[derive(Clone, Debug, PartialEq)]
struct Results<A> {
    out: Vec<A>,
    dx: Vec<A>,
    d_left: Vec<A>,
    d_right: Vec<A>,
}

impl<T: Element> Problem<T> {
    fn new(graph: &Graph, heads: usize, width: usize, share: f64, narrow: impl Fn(f32) -> T) -> Self {
        let n = graph.nodes();
        let wide = |numbers: Vec<f32>| numbers.into_iter().map(|x| T::Acc::from_f64(x.into())).collect::<Vec<_>>();
        let key = Key::new(5, Purpose::Dropout);
        Self {
            inverse: graph.inverse(),
            heads,
            width,
            x: normal(n * heads * width, 1).into_iter().map(narrow).collect(),
            left: wide(normal(n * heads, 2)),
            right: wide(normal(n * heads, 3)),
            gradient: wide(normal(n * heads * width, 4)),
            dropout: (share > 0.0).then(|| Dropout::new(share, key)),
            ids: (0..n as u32).map(|v| 3 * v + 5).collect(),
            graph: graph.clone(),
        }
    }

    fn dropout(&self, rows: Range<usize>) -> Option<EdgeDropout<'_>> {
        self.dropout.map(|dropout| EdgeDropout {
            dropout,
            rows: &self.ids[rows],
            neighbors: &self.ids,
            heads: self.heads,
            first_head: 0,
        })
    }

    fn job(&self, rows: Range<usize>) -> Attention<'_, i64, T> {
        let (heads, width) = (self.heads, self.width);
        Attention {
            indptr: &self.graph.indptr[rows.start..=rows.end],
            indices: &self.graph.indices,
            x: Sources::new(&self.x, heads * width),
            left: Sources::new(&self.left, heads),
            heads,
            width,
            slope: SLOPE,
            dropout: self.dropout(rows),
        }
    }

    /// Runs both passes over `intervals`.
    fn run(&self, intervals: &[Range<usize>]) -> Results<T::Acc> {
        let (n, heads, columns) = (self.graph.nodes(), self.heads, self.heads * self.width);
        let zeros = |count: usize| vec![T::Acc::ZERO; count];
        let mut results = Results {
            out: zeros(n * columns),
            dx: zeros(n * columns),
            d_left: zeros(n * heads),
            d_right: zeros(n * heads),
        };
        let mut states = zeros(n * STATE * heads);
        for (state, right) in states.chunks_exact_mut(STATE * heads).zip(self.right.chunks_exact(heads)) {
            state[..heads].copy_from_slice(right);
        }
        let part = |rows: &Range<usize>, each: usize| rows.start * each..rows.end * each;
        for rows in intervals {
            let job = self.job(rows.clone());
            job.forward(&mut states[part(rows, STATE * heads)], &mut results.out[part(rows, columns)]);
        }
        for rows in intervals {
            let job = self.job(rows.clone());
            let states = &mut states[part(rows, STATE * heads)];
            job.backward_right(&self.gradient[part(rows, columns)], states, &mut results.d_right[part(rows, heads)]);
        }
        for rows in intervals {
            let job = AttentionBackward {
                indptr: &self.inverse.indptr[rows.start..=rows.end],
                indices: &self.inverse.indices,
                gradient: Sources::new(&self.gradient, columns),
                states: Sources::new(&states, STATE * heads),
                x: &self.x[part(rows, columns)],
                left: &self.left[part(rows, heads)],
                heads,
                width: self.width,
                slope: SLOPE,
                dropout: self.dropout(rows.clone()),
            };
            job.run(&mut results.dx[part(rows, columns)], &mut results.d_left[part(rows, heads)]);
        }
        results
    }

    /// Attention by its definition, `[edges, heads]`.
    fn naive_attention(&self, left: &[f64], right: &[f64]) -> Vec<f64> {
        let heads = self.heads;
        let mut all = vec![0.0; self.graph.indices.len() * heads];
        for r in 0..self.graph.nodes() {
            for h in 0..heads {
                let logit = |e: usize| {
                    let sum = left[self.graph.indices[e] as usize * heads + h] + right[r * heads + h];
                    if sum > 0.0 { sum } else { SLOPE * sum }
                };
                let largest = self.graph.edges(r).map(logit).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = self.graph.edges(r).map(|e| (logit(e) - largest).exp()).sum();
                for e in self.graph.edges(r) {
                    let (source, to) = (self.ids[self.graph.indices[e] as usize], self.ids[r]);
                    let mask = self.dropout.map_or(1.0, |dropout| {
                        dropout.under(to.into()).factor(u64::from(source) * heads as u64 + h as u64)
                    });
                    all[e * heads + h] = (logit(e) - largest).exp() / total * mask;
                }
            }
        }
        all
    }

    fn naive(&self, x: &[f64], left: &[f64], right: &[f64]) -> Vec<f64> {
        let (heads, width) = (self.heads, self.width);
        let attention = self.naive_attention(left, right);
        let mut out = vec![0.0; self.graph.nodes() * heads * width];
        for r in 0..self.graph.nodes() {
            for e in self.graph.edges(r) {
                for c in 0..heads * width {
                    let source = self.graph.indices[e] as usize;
                    out[r * heads * width + c] += attention[e * heads + c / width] * x[source * heads * width + c];
                }
            }
        }
        out
    }
}

pub(crate) fn doubles<A: Element>(numbers: &[A]) -> Vec<f64> {
    numbers.iter().map(|x| x.widen().to_f64()).collect()
}

pub(crate) fn close(name: &str, got: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len(), "{name}");
    for (k, (&g, &w)) in got.iter().zip(wanted).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{name}: number {k} is {g}, not {w}");
    }
}

/// Compares the gradients of `inputs` with finite differences of `value` with step `step`.
pub(crate) fn finite_differences(
    name: &str,
    step: f64,
    inputs: &[Vec<f64>; 3],
    found: [&[f64]; 3],
    value: impl Fn(&[Vec<f64>; 3]) -> f64,
) {
    for (which, got) in found.into_iter().enumerate() {
        // All numbers of a small input, some of a large one.
        for k in (0..got.len()).step_by((got.len() / 20).max(1)) {
            let moved = |by: f64| {
                let mut inputs = inputs.clone();
                inputs[which][k] += by;
                value(&inputs)
            };
            let wanted = (moved(step) - moved(-step)) / (2.0 * step);
            let error = (got[k] - wanted).abs();
            let close = error <= 1e-5 * (1.0 + wanted.abs());
            assert!(close, "{name}: input {which}, number {k}: {} for {wanted}", got[k]);
        }
    }
}

#[test]
fn attention_equals_its_definition_for_all_threads_and_intervals() {
    for graph in graphs() {
        for (heads, width, share) in [(1, 5, 0.0), (4, 16, 0.4), (3, 7, 0.4), (8, 40, 0.0)] {
            let problem = Problem::new(&graph, heads, width, share, |x| x);
            let n = graph.nodes();
            let wanted = problem.naive(&doubles(&problem.x), &doubles(&problem.left), &doubles(&problem.right));
            let whole = on_threads(|| problem.run(&intervals(n)[0]));
            close(graph.name, &doubles(&whole.out), &wanted, 1e-5);
            for intervals in &intervals(n)[1..] {
                assert!(problem.run(intervals) == whole, "{}: intervals change the bits", graph.name);
            }
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    for graph in graphs().into_iter().filter(|graph| (1..800).contains(&graph.nodes())) {
        for share in [0.0, 0.3] {
            let (heads, width) = (2, 3);
            let problem = Problem::<f64>::new(&graph, heads, width, share, f64::from);
            let results = problem.run(&intervals(graph.nodes())[2]);
            let inputs = [problem.x.clone(), problem.left.clone(), problem.right.clone()];
            let found = [&results.dx[..], &results.d_left, &results.d_right];
            finite_differences(graph.name, 1e-5, &inputs, found, |inputs| {
                let out = problem.naive(&inputs[0], &inputs[1], &inputs[2]);
                out.iter().zip(&problem.gradient).map(|(a, b)| a * b).sum()
            });
        }
    }
}

#[test]
fn attention_of_f16_equals_that_of_widened_rows() {
    let graph = &graphs()[5];
    let half = Problem::new(graph, 4, 16, 0.2, bf16::from_f32);
    let wide = Problem::new(graph, 4, 16, 0.2, |x| bf16::from_f32(x).widen());
    let intervals = &intervals(graph.nodes())[0];
    assert!(half.run(intervals) == wide.run(intervals));
}
