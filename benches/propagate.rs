//! Propagation over the full graph: sums and means of neighbors' rows, GCN propagation, and attention. The sums equal
//! those of the peers' `bench_propagate.py`.
//!
//! Rows are read at random from a matrix far larger than the caches, so memory bounds the speed. For comparison, a
//! plain copy on the same threads and the same sum from small pages are measured. `--attention 0` omits attention.

mod common;
#[path = "common/graph.rs"]
mod graph;

use std::path::Path;

use bytemuck::Pod;
use common::{Seconds, Session};
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_dataflow::storage::{Array, Place};
use gnnflow_kernels::aggregate::attention::{Attention, STATE};
use gnnflow_kernels::aggregate::attention_backward::AttentionBackward;
use gnnflow_kernels::aggregate::{Coefficient, Own, Propagate, Scale, Sources, Weights};
use gnnflow_kernels::pages::{line_stride, prefer_large};
use gnnflow_kernels::simd::element::Element;
use graph::{FOLDER, Graph, read_npy, repeat};
use half::bf16;
use rayon::prelude::*;
use serde_json::json;

/// Heads and columns per head of the attention, as in the peers' GAT.
const HEADS: (usize, usize) = (4, 16);

fn main() {
    let mut session = Session::new("propagate");
    let graph = Graph::load(&mut session);
    let (features, width) = features(&session, graph.num_nodes());
    session.about("width", width as u64);
    let mut bench = Bench::new(session, graph, width);
    for threads in bench.session.numbers("threads", &[1, 2]) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be created");
        pool.install(|| bench.run(&features, threads));
    }
    bench.session.finish();
}

struct Bench {
    session: Session,
    graph: Graph,
    width: usize,
    repeats: usize,
}

impl Bench {
    fn new(session: Session, graph: Graph, width: usize) -> Self {
        let repeats = session.repeats(5);
        Self { session, graph, width, repeats }
    }

    fn run(&mut self, features: &[f32], threads: usize) {
        let (width, nodes, mut out) = (self.width, self.graph.num_nodes(), large(features.len(), 0f32));
        let rows = large_from(features);
        self.copy(threads, &rows, &mut out);
        self.sum(threads, "sum, f32, rows across lines", Sources::new(&rows, width), &mut out);
        drop(rows);
        let rows = at_lines(features, width, |v| v);
        let sources = Sources::new(&rows, line_stride::<f32>(width));
        self.sum(threads, "sum, f32", sources, &mut out);
        let error = largest_error(&self.graph, features, width, &out);
        assert!(error < 1e-5, "the relative error of the sum is {error}");
        self.sum(threads, "sum, f32, small pages", Sources::new(features, width), &mut out);
        let half = at_lines(features, width, bf16::from_f32);
        self.sum(threads, "sum, bf16 rows", Sources::new(&half, line_stride::<bf16>(width)), &mut out);
        drop(half);

        let graph = &self.graph;
        let plain = Propagate::sum(&graph.indptr, &graph.indices, sources, width);
        let mean = Propagate { scale: Scale::InverseDegree, ..plain };
        let seconds = repeat(self.repeats, || mean.run(&mut out));
        let mut norm = large(nodes, 0f32);
        norm.iter_mut().zip(graph.indptr.windows(2)).for_each(|(n, w)| *n = ((w[1] - w[0] + 1) as f32).sqrt().recip());
        let squares: Vec<f32> = norm.iter().map(|n| n * n).collect();
        let own = Own { rows: &rows, stride: line_stride::<f32>(width), coefficient: Coefficient::ByRow(&squares) };
        let weights = Weights::BySource(&norm);
        let gcn = Propagate { weights, scale: Scale::ByRow(&norm), own: Some(own), ..plain };
        let gcn_seconds = repeat(self.repeats, || gcn.run(&mut out));
        self.report("mean, f32", threads, width, 4, &seconds);
        self.report("gcn, f32", threads, width, 4, &gcn_seconds);
        drop((out, rows));
        if self.session.numbers("attention", &[1]) != [0] {
            self.attention(threads, features);
        }
    }

    /// Measures a plain copy, in bytes read and written.
    fn copy(&mut self, threads: usize, from: &[f32], to: &mut [f32]) {
        const PIECE: usize = 1 << 18;
        let seconds = repeat(self.repeats, || {
            to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE)).for_each(|(to, from)| to.copy_from_slice(from));
        });
        self.session.result("copy", json!({ "threads": threads }), &seconds, 2.0 * size_of_val(from) as f64, "B");
    }

    fn sum<T: Element<Acc = f32>>(&mut self, threads: usize, case: &str, sources: Sources<T>, out: &mut [f32]) {
        let (graph, width) = (&self.graph, self.width);
        let job = Propagate::sum(&graph.indptr, &graph.indices, sources, width);
        let seconds = repeat(self.repeats, || job.run(out));
        self.report(case, threads, width, size_of::<T>(), &seconds);
    }

    /// Measures the three passes of GAT. The graph is symmetric, so it is its own transpose.
    fn attention(&mut self, threads: usize, rows: &[f32]) {
        let ((heads, width), nodes, graph) = (HEADS, self.graph.num_nodes(), &self.graph);
        let columns = heads * width;
        let normal = |len: usize, k: u64| {
            let key = Key::new(k, Purpose::GenerateNodes);
            array((0..len as u64).map(|i| key.unit(i) as f32 - 0.5), len)
        };
        let x = if self.width >= columns {
            array(rows.chunks(self.width).flat_map(|row| row[..columns].iter().copied()), nodes * columns)
        } else {
            normal(nodes * columns, 3)
        };
        let (left, gradient) = (normal(nodes * heads, 4), normal(nodes * columns, 5));
        let mut states = normal(nodes * STATE * heads, 6);
        let (indptr, indices, slope) = (&graph.indptr[..], &graph.indices[..], 0.2);
        let (sources, lefts) = (Sources::new(&x, columns), Sources::new(&left, heads));
        let job = Attention { indptr, indices, x: sources, left: lefts, heads, width, slope, dropout: None };
        let (mut out, mut d) = (large(x.len(), 0f32), large(left.len(), 0f32));
        let forward = repeat(self.repeats, || job.forward(&mut states, &mut out));
        let by_destination = repeat(self.repeats, || job.backward_right(&gradient, &mut states, &mut d));
        let gradients = Sources::new(&gradient, columns);
        let job = AttentionBackward {
            indptr,
            indices,
            gradient: gradients,
            states: Sources::new(&states, STATE * heads),
            x: &x,
            left: &left,
            heads,
            width,
            slope,
            dropout: None,
        };
        let by_source = repeat(self.repeats, || job.run(&mut out, &mut d));
        self.report("attention, f32, forward", threads, columns, 4, &forward);
        self.report("attention, f32, gradient by destination", threads, columns, 4, &by_destination);
        self.report("attention, f32, gradient by source", threads, columns, 4, &by_source);
    }

    /// Reports a result with the bytes that it has to move: the row and index of every edge, and every output row.
    fn report(&mut self, case: &str, threads: usize, columns: usize, size: usize, seconds: &Seconds) {
        let (edges, nodes) = (self.graph.indices.len(), self.graph.num_nodes());
        let bytes = (edges * (columns * size + 4) + nodes * (columns * 4 + 8)) as f64;
        let details = json!({ "threads": threads, "gb_per_s": (bytes / seconds.median() / 1e8).round() / 10.0 });
        self.session.result(case, details, seconds, edges as f64, "edges");
    }
}

/// Returns `len` values in large pages.
fn large<T: Copy>(len: usize, number: T) -> Vec<T> {
    let mut numbers = Vec::with_capacity(len);
    prefer_large(numbers.spare_capacity_mut());
    numbers.resize(len, number);
    numbers
}

/// Copies values into large pages.
fn large_from<T: Copy>(numbers: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(numbers.len());
    prefer_large(copy.spare_capacity_mut());
    copy.extend_from_slice(numbers);
    copy
}

/// Copies `len` values into an array aligned to cache lines, as are the tables of full-graph training.
fn array(numbers: impl Iterator<Item = f32>, len: usize) -> Array<f32> {
    let mut out = Array::zeros(len, &Place::Memory).expect("enough memory");
    out.iter_mut().zip(numbers).for_each(|(out, v)| *out = v);
    out
}

/// Converts rows of `width` values and aligns each row to a cache line.
fn at_lines<T: Pod>(rows: &[f32], width: usize, convert: impl Fn(f32) -> T) -> Array<T> {
    let stride = line_stride::<T>(width);
    let mut out = Array::zeros(rows.len() / width * stride, &Place::Memory).expect("enough memory");
    for (out, row) in out.chunks_exact_mut(stride).zip(rows.chunks_exact(width)) {
        out.iter_mut().zip(row).for_each(|(out, &v)| *out = convert(v));
    }
    out
}

/// Reads the peers' `feat.npy`, or generates 100 values per node.
fn features(session: &Session, nodes: usize) -> (Vec<f32>, usize) {
    let mut x = Vec::new();
    match std::env::var_os(FOLDER) {
        Some(folder) if !session.smoke => {
            read_npy(&Path::new(&folder).join("feat.npy"), "<f4", |bytes| x.push(f32::from_le_bytes(bytes)));
        }
        _ => {
            let key = Key::new(1, Purpose::GenerateNodes);
            x.extend((0..nodes as u64 * 100).map(|i| key.unit(i) as f32 - 0.5));
        }
    }
    let width = x.len() / nodes;
    assert_eq!(x.len(), width * nodes, "feat.npy has a row for each node");
    (x, width)
}

/// The largest relative error of 200 rows compared with a plain loop in double precision.
fn largest_error(graph: &Graph, x: &[f32], width: usize, out: &[f32]) -> f64 {
    let key = Key::new(2, Purpose::Sample);
    let error_at = |i: u64| {
        let node = key.below(i, graph.num_nodes() as u64) as usize;
        let row = &graph.indices[graph.indptr[node] as usize..graph.indptr[node + 1] as usize];
        let numbers = |c: usize| row.iter().map(move |&v| f64::from(x[v as usize * width + c]));
        let error = |c: usize| {
            let (sum, size) = (numbers(c).sum::<f64>(), numbers(c).map(f64::abs).sum::<f64>());
            (sum - f64::from(out[node * width + c])).abs() / (1.0 + size)
        };
        (0..width).map(error).fold(0.0, f64::max)
    };
    (0..200).map(error_at).fold(0.0, f64::max)
}
