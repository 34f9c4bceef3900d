//! Tests of GATv2's aggregation and its gradients.

use std::ops::Range;

use gnnflow_data::rng::{Key, Purpose};
use half::bf16;

use super::attention::{close, doubles, finite_differences};
use super::{Graph, graphs, intervals, normal, on_threads};
use crate::aggregate::Sources;
use crate::aggregate::attention::EdgeDropout;
use crate::aggregate::dynamic_attention::{DynamicAttention, SOFTMAX_STATE};
use crate::aggregate::dynamic_attention_backward::DynamicAttentionBackward;
use crate::aggregate::transpose::Transpose;
use crate::dense::elementwise::Dropout;
use crate::simd::element::{Element, Real};

const SLOPE: f64 = 0.2;

/// Inputs: rows, destination terms, vectors, a gradient and masks.
struct Problem<T: Element> {
    graph: Graph,
    inverse: Transpose,
    heads: usize,
    width: usize,
    x: Vec<T>,
    right: Vec<T::Acc>,
    vectors: Vec<T::Acc>,
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
        let (n, columns) = (graph.nodes(), heads * width);
        let wide = |numbers: Vec<f32>| numbers.into_iter().map(|x| T::Acc::from_f64(x.into())).collect::<Vec<_>>();
        Self {
            inverse: graph.inverse(),
            heads,
            width,
            x: normal(n * columns, 1).into_iter().map(narrow).collect(),
            right: wide(normal(n * columns, 2)),
            vectors: wide(normal(columns, 3)),
            gradient: wide(normal(n * columns, 4)),
            dropout: (share > 0.0).then(|| Dropout::new(share, Key::new(5, Purpose::Dropout))),
            ids: (0..n as u32).map(|v| 3 * v + 5).collect(),
            graph: graph.clone(),
        }
    }

    fn dropout(&self, rows: Range<usize>) -> Option<EdgeDropout<'_>> {
        let (heads, neighbors) = (self.heads, &self.ids[..]);
        self.dropout.map(|dropout| EdgeDropout { dropout, rows: &neighbors[rows], neighbors, heads, first_head: 0 })
    }

    /// Runs both passes over `intervals`.
    fn run(&self, intervals: &[Range<usize>]) -> Results<T::Acc> {
        let (n, heads, width, vectors) = (self.graph.nodes(), self.heads, self.width, &self.vectors[..]);
        let (columns, state) = (heads * width, heads * width + SOFTMAX_STATE * heads);
        let zeros = |count: usize| vec![T::Acc::ZERO; count];
        let mut results = Results {
            out: zeros(n * columns),
            dx: zeros(n * columns),
            d_left: zeros(n * columns),
            d_right: zeros(n * columns),
        };
        let mut states = zeros(n * state);
        for (state, right) in states.chunks_exact_mut(state).zip(self.right.chunks_exact(columns)) {
            state[..columns].copy_from_slice(right);
        }
        let part = |rows: &Range<usize>, each: usize| rows.start * each..rows.end * each;
        let job = |rows: &Range<usize>| DynamicAttention {
            indptr: &self.graph.indptr[rows.start..=rows.end],
            indices: &self.graph.indices,
            x: Sources::new(&self.x, columns),
            vectors,
            heads,
            width,
            slope: SLOPE,
            dropout: self.dropout(rows.clone()),
        };
        for rows in intervals {
            job(rows).forward(&mut states[part(rows, state)], &mut results.out[part(rows, columns)]);
        }
        for rows in intervals {
            let (gradient, d_right) = (&self.gradient[part(rows, columns)], &mut results.d_right[part(rows, columns)]);
            job(rows).backward_right(gradient, &mut states[part(rows, state)], d_right);
        }
        for rows in intervals {
            let job = DynamicAttentionBackward {
                indptr: &self.inverse.indptr[rows.start..=rows.end],
                indices: &self.inverse.indices,
                gradient: Sources::new(&self.gradient, columns),
                states: Sources::new(&states, state),
                x: &self.x[part(rows, columns)],
                vectors,
                heads,
                width,
                slope: SLOPE,
                dropout: self.dropout(rows.clone()),
            };
            job.run(&mut results.dx[part(rows, columns)], &mut results.d_left[part(rows, columns)]);
        }
        results
    }

    /// Aggregates by the definition, with source rows and both terms as independent inputs.
    fn naive(&self, x: &[f64], left: &[f64], right: &[f64]) -> Vec<f64> {
        let (heads, width, columns) = (self.heads, self.width, self.heads * self.width);
        let mut out = vec![0.0; self.graph.nodes() * columns];
        for r in 0..self.graph.nodes() {
            for h in 0..heads {
                let logit = |e: usize| -> f64 {
                    let source = self.graph.indices[e] as usize;
                    let of_column = |c: usize| {
                        let sum = left[source * columns + c] + right[r * columns + c];
                        self.vectors[c].to_f64().signum() * if sum > 0.0 { sum } else { SLOPE * sum }
                    };
                    (h * width..(h + 1) * width).map(of_column).sum()
                };
                let largest = self.graph.edges(r).map(logit).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = self.graph.edges(r).map(|e| (logit(e) - largest).exp()).sum();
                for e in self.graph.edges(r) {
                    let source = self.graph.indices[e] as usize;
                    let mask = self.dropout.map_or(1.0, |dropout| {
                        let place = u64::from(self.ids[source]) * heads as u64 + h as u64;
                        dropout.under(self.ids[r].into()).factor(place)
                    });
                    let attention = (logit(e) - largest).exp() / total * mask;
                    for c in h * width..(h + 1) * width {
                        out[r * columns + c] += attention * x[source * columns + c];
                    }
                }
            }
        }
        out
    }

    /// Source rows and both terms.
    fn inputs(&self) -> [Vec<f64>; 3] {
        let (x, vectors) = (doubles(&self.x), doubles(&self.vectors));
        let left = x.iter().zip(vectors.iter().cycle()).map(|(x, a)| a.abs() * x).collect();
        [x, left, doubles(&self.right)]
    }
}

#[test]
fn dynamic_attention_equals_its_definition_for_all_threads_and_intervals() {
    for graph in graphs() {
        for (heads, width, share) in [(1, 5, 0.0), (4, 16, 0.4), (3, 7, 0.4), (8, 40, 0.0)] {
            let problem = Problem::new(&graph, heads, width, share, |x| x);
            let n = graph.nodes();
            let [x, left, right] = problem.inputs();
            let wanted = problem.naive(&x, &left, &right);
            let whole = on_threads(|| problem.run(&intervals(n)[0]));
            close(graph.name, &doubles(&whole.out), &wanted, 2e-5);
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
            let inputs = problem.inputs();
            let found = [&results.dx[..], &results.d_left, &results.d_right];
            finite_differences(graph.name, 1e-6, &inputs, found, |inputs| {
                let out = problem.naive(&inputs[0], &inputs[1], &inputs[2]);
                out.iter().zip(&problem.gradient).map(|(a, b)| a * b).sum()
            });
        }
    }
}

#[test]
fn dynamic_attention_of_f16_equals_that_of_widened_rows() {
    let graph = &graphs()[5];
    let half = Problem::new(graph, 4, 16, 0.2, bf16::from_f32);
    let wide = Problem::new(graph, 4, 16, 0.2, |x| bf16::from_f32(x).widen());
    let intervals = &intervals(graph.nodes())[0];
    assert!(half.run(intervals) == wide.run(intervals));
}
