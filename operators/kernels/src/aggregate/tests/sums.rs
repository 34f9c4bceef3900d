//! Tests of weighted sums of source rows.

use half::{bf16, f16};

use super::{Graph, graphs, intervals, normal, on_threads};
use crate::aggregate::{Coefficient, Onto, Own, Propagate, Scale, Sources, Weights};
use crate::simd::element::{Element, Real};

/// All fused factors of one graph.
struct Fused {
    by_source: Vec<f32>,
    by_row: Vec<f32>,
    coefficients: Vec<f32>,
}

impl Fused {
    fn new(graph: &Graph) -> Self {
        Self {
            by_source: normal(graph.sources, 11),
            by_row: normal(graph.nodes(), 12),
            coefficients: normal(graph.nodes(), 13),
        }
    }
}

/// `own + scale · (before + Σ weight · x)` in double precision, rounded once.
fn naive<T: Element>(graph: &Graph, fused: &Fused, x: &[T], width: usize, before: &[f32]) -> Vec<f32> {
    let number = |v: usize, c: usize| x[v * width + c].widen().to_f64();
    let cell = |r: usize, c: usize| {
        let edges = graph.edges(r).map(|e| graph.indices[e] as usize);
        let sum: f64 = edges.map(|s| f64::from(fused.by_source[s]) * number(s, c)).sum();
        f64::from(fused.coefficients[r]) * number(r, c)
            + f64::from(fused.by_row[r]) * (sum + f64::from(before[r * width + c]))
    };
    (0..graph.nodes()).flat_map(|r| (0..width).map(move |c| cell(r, c) as f32)).collect()
}

fn close(name: &str, got: &[f32], wanted: &[f32], tolerance: f32) {
    assert_eq!(got.len(), wanted.len(), "{name}");
    for (k, (&g, &w)) in got.iter().zip(wanted).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{name}: number {k} is {g}, not {w}");
    }
}

/// Runs the fused kernel over `intervals` of rows.
fn run<T: Element<Acc = f32>>(
    graph: &Graph,
    fused: &Fused,
    sources: Sources<'_, T>,
    own: &[T],
    width: usize,
    intervals: &[std::ops::Range<usize>],
    before: &[f32],
) -> Vec<f32> {
    let mut out = before.to_vec();
    for rows in intervals {
        let coefficient = Coefficient::ByRow(&fused.coefficients[rows.clone()]);
        let job = Propagate {
            weights: Weights::BySource(&fused.by_source),
            scale: Scale::ByRow(&fused.by_row[rows.clone()]),
            own: Some(Own { rows: &own[rows.start * width..], stride: width, coefficient }),
            onto: Onto::Sum,
            ..Propagate::sum(&graph.indptr[rows.start..=rows.end], &graph.indices, sources, width)
        };
        job.run(&mut out[rows.start * width..rows.end * width]);
    }
    out
}

fn check_fused_sums<T: Element<Acc = f32>>(narrow: impl Fn(f32) -> T) {
    for graph in graphs() {
        let fused = Fused::new(&graph);
        for width in [1, 7, 16, 100, 130, 300] {
            let x: Vec<T> = normal(graph.sources * width, 21).into_iter().map(&narrow).collect();
            let before = normal(graph.nodes() * width, 22);
            let wanted = naive(&graph, &fused, &x, width, &before);
            let whole = Sources::new(&x, width);
            let mut bits: Option<Vec<f32>> = None;
            for intervals in intervals(graph.nodes()) {
                let got = on_threads(|| run(&graph, &fused, whole, &x, width, &intervals, &before));
                close(graph.name, &got, &wanted, 2e-4);
                assert!(bits.get_or_insert_with(|| got.clone()) == &got, "{}: intervals change the bits", graph.name);
            }
        }
    }
}

#[test]
fn fused_sums_equal_a_plain_loop_for_all_threads_and_intervals() {
    check_fused_sums(|x| x);
    check_fused_sums(bf16::from_f32);
}

#[test]
fn sums_of_f16_equal_those_of_widened_rows() {
    let graph = &graphs()[5];
    let width = 33;
    let x: Vec<f16> = normal(graph.sources * width, 1).into_iter().map(f16::from_f32).collect();
    let wide: Vec<f32> = x.iter().map(|x| x.widen()).collect();
    let double: Vec<f64> = wide.iter().map(|&x| x.into()).collect();
    let (mut a, mut b) = (vec![0f32; graph.nodes() * width], vec![0f32; graph.nodes() * width]);
    let mut c = vec![0f64; a.len()];
    Propagate::sum(&graph.indptr, &graph.indices, Sources::new(&x, width), width).run(&mut a);
    Propagate::sum(&graph.indptr, &graph.indices, Sources::new(&wide, width), width).run(&mut b);
    Propagate::sum(&graph.indptr, &graph.indices, Sources::new(&double, width), width).run(&mut c);
    assert_eq!(a, b);
    close("f64", &a, &c.iter().map(|&x| x as f32).collect::<Vec<_>>(), 1e-4);
}

#[test]
fn sums_in_two_calls_have_the_bits_of_one_call() {
    for graph in graphs() {
        let width = 20;
        let x = normal(graph.sources * width, 5);
        let sources = Sources::new(&x, width);
        let mut whole = vec![f32::NAN; graph.nodes() * width];
        Propagate::sum(&graph.indptr, &graph.indices, sources, width).run(&mut whole);
        // One graph with the first edges of every row, another with the rest.
        let half = |second: bool| {
            let rows: Vec<Vec<u32>> = (0..graph.nodes())
                .map(|r| {
                    let row = &graph.indices[graph.edges(r)];
                    let (a, b) = row.split_at(row.len() / 3);
                    if second { b.to_vec() } else { a.to_vec() }
                })
                .collect();
            Graph { sources: graph.sources, ..Graph::new("half", &rows) }
        };
        let mut parts = vec![f32::NAN; whole.len()];
        for (graph, onto) in [(half(false), Onto::Nothing), (half(true), Onto::Sum)] {
            Propagate { onto, ..Propagate::sum(&graph.indptr, &graph.indices, sources, width) }.run(&mut parts);
        }
        assert_eq!(parts, whole, "{}", graph.name);
        Propagate { onto: Onto::Result, ..Propagate::sum(&graph.indptr, &graph.indices, sources, width) }
            .run(&mut parts);
        assert!(parts.iter().zip(&whole).all(|(&twice, &once)| twice == once + once), "{}", graph.name);
    }
}

#[test]
fn sums_with_strides_leave_columns_in_between_unchanged() {
    let graph = &graphs()[5];
    let (width, stride, out_stride) = (5, 8, 9);
    let x = normal(graph.sources * stride, 6);
    let packed: Vec<f32> = x.chunks(stride).flat_map(|row| row[2..2 + width].to_vec()).collect();
    let mut wanted = vec![0f32; graph.nodes() * width];
    Propagate::sum(&graph.indptr, &graph.indices, Sources::new(&packed, width), width).run(&mut wanted);
    let mut out = vec![7f32; graph.nodes() * out_stride];
    let sources = Sources::new(&x[2..], stride);
    Propagate { out_stride, ..Propagate::sum(&graph.indptr, &graph.indices, sources, width) }.run(&mut out[3..]);
    for (out, wanted) in out.chunks(out_stride).zip(wanted.chunks(width)) {
        assert_eq!((&out[..3], &out[3..8], out[8]), (&[7.; 3][..], wanted, 7.));
    }
}

#[test]
fn gradient_of_a_sum_is_the_sum_over_inverse_edges_with_scales_swapped() {
    for graph in graphs() {
        let (fused, width) = (Fused::new(&graph), 9);
        let (x, g) = (normal(graph.sources * width, 7), normal(graph.nodes() * width, 8));
        let mut out = vec![0f32; g.len()];
        let forward = Propagate::sum(&graph.indptr, &graph.indices, Sources::new(&x, width), width);
        let weights = Weights::BySource(&fused.by_source);
        Propagate { weights, scale: Scale::ByRow(&fused.by_row), ..forward }.run(&mut out);
        let inverse = graph.inverse();
        let mut dx = vec![0f32; x.len()];
        let backward = Propagate::sum(&inverse.indptr, &inverse.indices, Sources::new(&g, width), width);
        let weights = Weights::BySource(&fused.by_row);
        Propagate { weights, scale: Scale::ByRow(&fused.by_source), ..backward }.run(&mut dx);
        // The sum is linear: ⟨g, A·x⟩ = ⟨Aᵀ·g, x⟩.
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let (left, right) = (dot(&g, &out), dot(&dx, &x));
        let size: f64 = g.iter().zip(&out).map(|(&a, &b)| f64::from(a * b).abs()).sum();
        assert!((left - right).abs() <= 1e-5 * (1.0 + size), "{}: {left} and {right}", graph.name);
    }
}

#[test]
fn edge_weights_of_an_interval_give_the_same_sums() {
    let graph = &graphs()[6];
    let (heads, width) = (3, 6);
    let x = normal(graph.sources * heads * width, 9);
    let values = normal(graph.indices.len() * heads, 10);
    let sources = Sources::new(&x, heads * width);
    let job = |rows: std::ops::Range<usize>, values, first| Propagate {
        heads,
        weights: Weights::ByEdge { values, first, edges: None },
        out_stride: heads * width,
        ..Propagate::sum(&graph.indptr[rows.start..=rows.end], &graph.indices, sources, width)
    };
    let mut wanted = vec![0f32; graph.nodes() * heads * width];
    job(0..graph.nodes(), &values, 0).run(&mut wanted);
    let mut out = vec![0f32; wanted.len()];
    for rows in &intervals(graph.nodes())[2] {
        let edges = graph.edges(rows.start).start..graph.edges(rows.end - 1).end;
        let values = &values[edges.start * heads..edges.end * heads];
        let columns = heads * width;
        job(rows.clone(), values, edges.start).run(&mut out[rows.start * columns..rows.end * columns]);
    }
    assert_eq!(out, wanted);
}

#[test]
fn mean_divides_by_the_degree() {
    let mut out = [9f32; 2];
    let job = Propagate::sum(&[0u32, 2, 2], &[0, 1], Sources::new(&[1f32, 4.], 1), 1);
    Propagate { scale: Scale::InverseDegree, ..job }.run(&mut out);
    assert_eq!(out, [2.5, 0.]);
}

#[test]
#[should_panic(expected = "past the last row")]
fn sum_with_an_index_past_the_last_row_panics() {
    Propagate::sum(&[0u32, 1], &[2], Sources::new(&[1f32, 4.], 1), 1).run(&mut [0.]);
}
