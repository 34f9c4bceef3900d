//! Mean of the neighbours' rows over the whole graph, forward only: the peers' `bench_propagate.py`.
//!
//! Rows are gathered at random from a matrix far larger than the caches: this measures memory, not arithmetic.

mod common;
#[path = "common/graph.rs"]
mod graph;

use std::path::Path;

use common::Session;
use gnnflow_data::rng::{Key, Purpose};
use gnnflow_operators::kernel::segment;
use graph::{FOLDER, Graph, read_npy, repeat};
use serde_json::json;

fn main() {
    let mut session = Session::new("segment_mean");
    let graph = Graph::load(&mut session);
    let (x, width) = features(&session, graph.num_nodes());
    session.about("width", width as u64);
    let mut out = vec![0f32; x.len()];
    for threads in session.numbers("threads", &[1, 2]) {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be made");
        let seconds = repeat(session.repeats(7), || {
            pool.install(|| segment::mean(&graph.indptr, &graph.indices, &x, width, &mut out));
        });
        let error = largest_error(&graph, &x, width, &out);
        assert!(error < 1e-5, "the mean is wrong by {error}");
        let details = json!({ "threads": threads, "largest_error": error });
        session.result("mean, f32", details, &seconds, graph.indices.len() as f64, "edges");

        let half: Vec<half::bf16> = x.iter().map(|&v| half::bf16::from_f32(v)).collect();
        let seconds = repeat(session.repeats(7), || {
            pool.install(|| segment::mean(&graph.indptr, &graph.indices, &half, width, &mut out));
        });
        session.result("mean, bf16 rows", json!({ "threads": threads }), &seconds, graph.indices.len() as f64, "edges");
    }
    session.finish();
}

/// The peers' `feat.npy`, or 100 numbers a node.
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

/// Against a plain loop in double precision, on 200 rows.
fn largest_error(graph: &Graph, x: &[f32], width: usize, out: &[f32]) -> f64 {
    let key = Key::new(2, Purpose::Sample);
    let error_at = |i: u64| {
        let node = key.below(i, graph.num_nodes() as u64) as usize;
        let row = &graph.indices[graph.indptr[node] as usize..graph.indptr[node + 1] as usize];
        let column =
            |c: usize| row.iter().map(|&v| f64::from(x[v as usize * width + c])).sum::<f64>() / row.len().max(1) as f64;
        (0..width).map(|c| (column(c) - f64::from(out[node * width + c])).abs()).fold(0.0, f64::max)
    };
    (0..200).map(error_at).fold(0.0, f64::max)
}
