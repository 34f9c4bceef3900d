//! Tests of column-wise maxima.

use super::{Graph, graphs, intervals, normal, on_threads};
use crate::aggregate::Sources;
use crate::aggregate::maximum::{Maximum, MaximumBackward, NO_SOURCE};

/// Ids that differ from positions.
fn id(node: u32) -> u32 {
    3 * node + 5
}

/// Maxima and their sources.
fn naive(graph: &Graph, x: &[f32], width: usize) -> (Vec<f32>, Vec<u32>) {
    let cell = |r: usize, c: usize| {
        let number = |source: u32| x[source as usize * width + c];
        let (mut max, mut argmax) = (0.0, NO_SOURCE);
        for &source in &graph.indices[graph.edges(r)] {
            if argmax == NO_SOURCE || number(source) > max {
                (max, argmax) = (number(source), source);
            }
        }
        (max, argmax)
    };
    (0..graph.nodes()).flat_map(|r| (0..width).map(move |c| cell(r, c))).unzip()
}

#[test]
fn maximum_and_its_gradient_equal_the_naive_implementation() {
    for graph in graphs() {
        for width in [1, 7, 16, 33] {
            // Few distinct numbers, so that many are equal.
            let round = |x: f32| (x * 2.0).round() / 2.0;
            let x: Vec<f32> = normal(graph.sources * width, 1).into_iter().map(round).collect();
            let (wanted, argmax) = naive(&graph, &x, width);
            for rows in intervals(graph.nodes()) {
                let (found, largest) = on_threads(|| {
                    let (mut out, mut largest) = (vec![f32::NAN; wanted.len()], vec![7; wanted.len()]);
                    for rows in &rows {
                        let (indptr, place) =
                            (&graph.indptr[rows.start..=rows.end], rows.start * width..rows.end * width);
                        let sources = Sources::new(&x, width);
                        Maximum { indptr, indices: &graph.indices, x: sources, width }
                            .run(&mut out[place.clone()], &mut largest[place]);
                    }
                    (out, largest)
                });
                assert!(found == wanted && largest == argmax, "{}, {width} columns", graph.name);
            }
            let gradient = normal(graph.nodes() * width, 2);
            let mut wanted = vec![0f32; x.len()];
            for (place, (&source, &g)) in argmax.iter().zip(&gradient).enumerate() {
                if source != NO_SOURCE {
                    // In the order of destinations, like the kernel.
                    wanted[source as usize * width + place % width] += g;
                }
            }
            // After the gradients, as in tables of rows.
            let rows = gradient.chunks_exact(width).zip(argmax.chunks_exact(width));
            let id_bits = |&node: &u32| f32::from_bits(if node == NO_SOURCE { NO_SOURCE } else { id(node) });
            let table: Vec<f32> = rows
                .flat_map(|(g, argmax)| g.iter().copied().chain(argmax.iter().map(id_bits)).collect::<Vec<_>>())
                .collect();
            let inverse = graph.inverse();
            let ids: Vec<u32> = (0..graph.sources as u32).map(id).collect();
            let found = on_threads(|| {
                let mut dx = vec![f32::NAN; x.len()];
                if !table.is_empty() {
                    let (indptr, indices) = (&inverse.indptr, &inverse.indices);
                    let gradient = Sources::new(&table, 2 * width);
                    let largest = Sources::new(&table[width..], 2 * width);
                    MaximumBackward { indptr, indices, gradient, largest, ids: &ids, width }.run(&mut dx);
                }
                dx
            });
            assert!(found == wanted, "{}, {width} columns: gradient", graph.name);
        }
    }
}
