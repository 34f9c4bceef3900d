//! R-GCN over typed edges: equal bits for any number of processes, and equal losses in every schedule.

use std::sync::Arc;

use crate::common::{TestDir, losses, summary};
use arrow::array::{Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use gnnflow_data::rng::{Key, Purpose};
use serde_json::Value;

const NODES: u64 = 400;
const EDGES: u64 = 3000;

/// Writes a dump with three classes of nodes and four types of edges. One type is rare, and some nodes lack a type.
fn dump(place: &TestDir) {
    let key = Key::new(11, Purpose::GenerateNodes);
    let class = |v: u64| key.fold(7).below(v, 3);
    let row =
        |v: u64| Some((0..8).map(move |i| Some(key.fold(v).normal(i) as f32 + if i == class(v) { 1.0 } else { 0.0 })));
    let split = |v: u64| ["train", "val", "test"][key.below(v, 3) as usize];
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values(0..NODES as i64))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>((0..NODES).map(row)))),
            ("label", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| class(v) as i64)))),
            ("split", Arc::new(StringArray::from_iter_values((0..NODES).map(split)))),
        ],
    );
    let key = Key::new(11, Purpose::GenerateEdges);
    let end = |side: u64| (0..EDGES).map(move |e| key.fold(side).below(e, NODES) as i64);
    let kind =
        |e: u64| ["cites", "writes", "cites", "knows", "writes", "meets"][key.fold(3).below(e, 6).min(5) as usize];
    place.parquet(
        "edges.parquet",
        vec![
            ("src", Arc::new(Int64Array::from_iter_values(end(0)))),
            ("dst", Arc::new(Int64Array::from_iter_values(end(1)))),
            ("kind", Arc::new(StringArray::from_iter_values((0..EDGES).map(kind)))),
            ("weight", Arc::new(Float32Array::from_iter_values((0..EDGES).map(|e| e as f32)))),
        ],
    );
}

fn pipeline(place: &TestDir, model: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\ncolumns = {{ edge_type = 'kind' }}\n\
         [partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n[model]\nkind = 'rgcn'\nhidden = 12\n{model}\n\
         [train]\nepochs = 3\nseed = 5\n[infer]\npredictions = true\nembeddings = true\n"
    );
    place.write("p.toml", text);
}

/// Schedules, and the relative tolerance of their losses to those of the first.
const SCHEDULES: [(&[&str], f64); 5] = [
    (&["train.schedule=mini-batch", "train.fanouts=[-1, -1]", "train.batch=1000"], 0.0),
    (&["train.schedule.kind=full-graph", "train.schedule.intervals=3"], 2e-5),
    (&["train.schedule.kind=tensor-parallel", "train.schedule.chunk_memory=20KiB"], 2e-5),
    // bf16 has 8 significant bits.
    (&["train.schedule.kind=full-graph", "train.schedule.intervals=3", "train.schedule.row_dtype=bf16"], 0.02),
    (
        &["train.schedule.kind=tensor-parallel", "train.schedule.chunk_memory=20KiB", "train.schedule.row_dtype=bf16"],
        0.02,
    ),
];

fn train(place: &TestDir, processes: &str, sets: &[&str]) -> Value {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes];
    let ended = place.run(&[&args[..], &sets].concat());
    assert_eq!(ended.code, 0, "{sets:?}: {}", ended.stderr);
    summary(place, "run")
}

#[test]
fn rgcn_has_equal_bits_for_1_2_4_processes_and_equal_losses_in_every_schedule() {
    let place = TestDir::new();
    dump(&place);
    for model in [
        "dropout = 0.0",
        "dropout = 0.0\nnum_bases = 2",
        "dropout = 0.0\nnum_bases = 3\nresidual = true\nnorm = 'layer'",
    ] {
        for (which, graph) in ["graph.undirected=false", "graph.undirected=true"].into_iter().enumerate() {
            pipeline(&place, model);
            let mut expected: Option<Vec<f64>> = None;
            for (index, (schedule, within)) in SCHEDULES.into_iter().enumerate() {
                let sets = [&[graph][..], schedule].concat();
                let hashes = |found: &Value| ["model_sha256", "predictions_sha256"].map(|key| found[key].to_string());
                let one = train(&place, "1", &sets);
                let found = losses(&place);
                let wanted = expected.get_or_insert_with(|| found.clone());
                for (epoch, (found, wanted)) in found.iter().zip(&*wanted).enumerate() {
                    let close = (found - wanted).abs() <= within * wanted.abs();
                    assert!(close, "{model}, {sets:?}: epoch {epoch} has loss {found}, not {wanted}");
                }
                // Each schedule runs with 2 processes on one graph, and with 4 on the other.
                let processes = ["2", "4"][(index + which) % 2];
                let some = train(&place, processes, &sets);
                assert_eq!(hashes(&some), hashes(&one), "{model}, {sets:?}: {processes} processes");
            }
        }
    }
}
