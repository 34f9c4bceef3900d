//! Link prediction by the real program: the same bits from 1, 2 and 4 processes, ranks that a naive program finds too, and what
//! is refused.

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{
    Array, FixedSizeListArray, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::datatypes::Float32Type;
use common::{Place, summary};
use gnnflow_data::rng::{Key, Purpose};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const NODES: u64 = 240;
const EDGES: u64 = 2400;

fn read(place: &Place, name: &str) -> RecordBatch {
    let file = std::fs::File::open(place.path(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// An edge of the dump: ends, kind, split.
type Row = (i64, i64, &'static str, &'static str);

/// Distinct edges, three in four between nodes of one of six groups; ids are 1000, 1001, …
fn edges(held_out: bool) -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateEdges);
    let mut seen = HashSet::new();
    let edge = |e: u64| {
        let (key, head) = (key.fold(e), key.below(e, NODES));
        let tail = if key.below(0, 4) < 3 { key.below(1, NODES / 6) * 6 + head % 6 } else { key.below(1, NODES) };
        let kind = ["likes", "knows"][key.below(2, 2) as usize];
        let split =
            ["train", "train", "train", "train", "val", "test"][if held_out { key.below(3, 6) as usize } else { 0 }];
        (1000 + head as i64, 1000 + tail as i64, kind, split)
    };
    (0..EDGES).map(edge).filter(|&(head, tail, ..)| head != tail && seen.insert((head, tail))).collect()
}

/// A dump whose nodes have features that tell their groups, more or less.
fn dump(place: &Place, held_out: bool) -> Vec<Row> {
    let key = Key::new(5, Purpose::GenerateNodes);
    let value = |v: u64, i: u64| 0.3 * key.fold(v).normal(i) as f32 + f32::from(u8::from(v % 6 == i));
    let rows = (0..NODES).map(|v| Some((0..8).map(move |i| Some(value(v, i)))));
    let kinds = (0..NODES).map(|v| ["a", "b"][usize::from(v >= 100)]);
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from_iter_values((0..NODES).map(|v| 1000 + v as i64)))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("kind", Arc::new(StringArray::from_iter_values(kinds))),
        ],
    );
    let edges = edges(held_out);
    let words = |word: &dyn Fn(&Row) -> &'static str| Arc::new(StringArray::from_iter_values(edges.iter().map(word)));
    place.parquet(
        "edges.parquet",
        vec![
            ("src", Arc::new(Int64Array::from_iter_values(edges.iter().map(|edge| edge.0)))),
            ("dst", Arc::new(Int64Array::from_iter_values(edges.iter().map(|edge| edge.1)))),
            ("kind", words(&|edge| edge.2)),
            ("part", words(&|edge| edge.3)),
        ],
    );
    edges
}

/// A pipeline over the dump: lines of `[graph]`, of `[model]` and `[train]`, of `[train.link]`.
fn pipeline(place: &Place, graph: &str, train: &str, link: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n{graph}\n[partition]\nmethod = 'random'\nparts = 4\n\
         [model]\nhidden = 16\nlayers = 2\n{}\n[train]\ntask = 'link-prediction'\nepochs = 3\nbatch = 64\n\
         fanouts = [5, 4]\nhash_blocks = true\n{}\n[train.link]\n{link}\n[infer]\npredictions = true\nembeddings = true\n",
        train.split('|').next().unwrap(),
        train.split('|').nth(1).unwrap_or_default(),
    );
    place.write("p.toml", text);
}

#[test]
fn every_way_has_the_same_bits_however_many_work_on_it() {
    let place = Place::new();
    dump(&place, true);
    let typed = "columns = { edge_type = 'kind', edge_split = 'part' }";
    for (graph, train, link) in [
        ("", "kind = 'sage'", ""),
        (typed, "kind = 'rgcn'", "decoder = 'distmult'\nloss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'"),
        ("undirected = true", "kind = 'gcn'", "negative_sampler = 'in-batch'\nnum_negative_edges = 10"),
        (
            "reverse_edges = true\ncolumns = { edge_type = 'kind', node_type = 'kind' }",
            "kind = 'sage'|sampler = 'labor'",
            "target_etype = ['likes']\nnegative_sampler = 'degree'\nnum_negative_edges = 4\nnum_negative_edges_eval = 30",
        ),
    ] {
        pipeline(&place, graph, train, link);
        let mut seen = Vec::new();
        for (processes, topology) in
            [("1", "partitioned"), ("2", "partitioned"), ("4", "partitioned"), ("2", "replicated")]
        {
            let topology = format!("partition.topology={topology}");
            let args = ["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", processes, "--set", &topology];
            place.succeed(&args);
            let summary = summary(&place, "run");
            let bits = ["model_sha256", "predictions_sha256", "blocks_sha256"].map(|name| summary[name].clone());
            assert!(bits.iter().all(|bits| bits.is_string()), "{summary}");
            seen.push((bits, summary["val"].clone(), summary["test"].clone()));
            std::fs::remove_dir_all(place.path("run")).unwrap();
        }
        assert!(seen.iter().all(|run| *run == seen[0]), "{link}: {seen:#?}");
        let mrr = seen[0].2["mrr"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&mrr) && seen[0].2["nodes"].as_u64().unwrap() > 50, "{seen:?}");
    }
}

fn column<'a, T: 'static>(batch: &'a RecordBatch, name: &str) -> &'a T {
    batch.column_by_name(name).unwrap().as_any().downcast_ref().unwrap()
}

#[test]
fn ranks_are_those_of_comparing_every_node_and_training_makes_them_better() {
    let place = Place::new();
    let edges = dump(&place, true);
    let graph = "columns = { edge_split = 'part', edge_type = 'kind' }";
    pipeline(&place, graph, "kind = 'sage'|optimizer = { lr = 0.01 }", "num_negative_edges = 8");
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", "2", "--set", "train.epochs=30"]);
    let (predictions, embeddings) = (read(&place, "run/predictions.parquet"), read(&place, "run/embeddings.parquet"));
    let ids: &Int64Array = column(&embeddings, "node_id");
    let rows: &FixedSizeListArray = column(&embeddings, "embedding");
    let row = |i: usize| rows.value(i).as_any().downcast_ref::<Float32Array>().unwrap().values().to_vec();
    let rows: HashMap<i64, Vec<f32>> = (0..ids.len()).map(|i| (ids.value(i), row(i))).collect();
    let score = |head: i64, tail: i64| -> f64 {
        rows[&head].iter().zip(&rows[&tail]).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let known: HashSet<(i64, i64, &str)> = edges.iter().map(|edge| (edge.0, edge.1, edge.2)).collect();
    let (src, dst): (&Int64Array, &Int64Array) = (column(&predictions, "src"), column(&predictions, "dst"));
    let (kind, split): (&StringArray, &StringArray) = (column(&predictions, "type"), column(&predictions, "split"));
    let scores: &Float32Array = column(&predictions, "score");
    let ranks: [&Float64Array; 2] = ["rank", "src_rank"].map(|name| column(&predictions, name));
    let mut found: Vec<(i64, i64, &str, &str)> = Vec::new();
    let mut reciprocals = HashMap::<&str, Vec<f64>>::new();
    for i in 0..predictions.num_rows() {
        let (head, tail, kind) = (src.value(i), dst.value(i), kind.value(i));
        found.push((head, tail, kind, split.value(i)));
        let own = score(head, tail);
        assert!((f64::from(scores.value(i)) - own).abs() < 1e-3);
        let candidates = |of: &dyn Fn(i64) -> (i64, i64)| -> Vec<f64> {
            let all = (1000..1000 + NODES as i64).map(of);
            all.filter(|&(head, tail)| !known.contains(&(head, tail, kind))).map(|(h, t)| score(h, t)).collect()
        };
        for (side, others) in [candidates(&|tail| (head, tail)), candidates(&|head| (head, tail))].iter().enumerate() {
            let higher = others.iter().filter(|&&score| score > own).count() as f64;
            // Sums of 32-bit products in another order: those that are all but equal may fall either way.
            let near = others.iter().filter(|&&score| (score - own).abs() < 1e-3).count() as f64;
            let rank = ranks[side].value(i);
            assert!((rank - 1.0 - higher).abs() <= near, "{head} {tail} {side}: {rank}, {higher}, {near}");
            reciprocals.entry(split.value(i)).or_default().push(1.0 / rank);
        }
    }
    found.sort_unstable();
    let mut held_out: Vec<Row> = edges.into_iter().filter(|edge| edge.3 != "train").collect();
    held_out.sort_unstable();
    assert_eq!(found, held_out);
    let summary = summary(&place, "run");
    for split in ["val", "test"] {
        let mean = reciprocals[split].iter().sum::<f64>() / reciprocals[split].len() as f64;
        assert!((summary[split]["mrr"].as_f64().unwrap() - mean).abs() < 1e-9);
    }
    assert!(summary["train"].is_null());
    // By chance a rank is about 115; a model that knows the groups finds three edges in four among the first forty.
    let test = &summary["test"];
    assert!(test["mean_rank"].as_f64().unwrap() < 80.0 && test["mrr"].as_f64().unwrap() > 0.05, "{test}");
    // Parameters of the decoder are the model's.
    pipeline(&place, graph, "kind = 'sage'", "decoder = 'distmult'");
    place.succeed(&["run", "p.toml", "--run-dir", "again", "--quiet", "--set", "train.epochs=1"]);
    let weights = std::fs::read(place.path("again/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    assert_eq!(header["decoder.relations"]["shape"], serde_json::json!([2, 16]));
}

#[test]
fn a_run_goes_on_where_it_was_left() {
    let place = Place::new();
    dump(&place, true);
    pipeline(&place, "columns = { edge_type = 'kind' }", "kind = 'sage'", "decoder = 'distmult'");
    place.succeed(&["run", "p.toml", "--run-dir", "whole", "--quiet"]);
    let short = ["run", "p.toml", "--run-dir", "parts", "--quiet", "--set", "train.epochs=2"];
    place.succeed(&short);
    place.succeed(&["run", "p.toml", "--run-dir", "parts", "--quiet", "--resume", "--processes", "2"]);
    for hash in ["model_sha256", "predictions_sha256", "blocks_sha256"] {
        assert_eq!(summary(&place, "whole")[hash], summary(&place, "parts")[hash], "{hash}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::new();
    dump(&place, false);
    let split = "columns = { edge_split = 'part' }";
    let refused = |graph: &str, train: &str, link: &str, code: i32, words: &[&str]| {
        pipeline(&place, graph, train, link);
        place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], code, words);
    };
    let sage = "kind = 'sage'";
    refused(split, sage, "", 3, &["no edge is left in the validation split", "graph.columns.edge_split"]);
    refused(split, sage, "split_fractions = [0.8, 0.1, 0.1]", 2, &["train.link.split_fractions", "leave it out"]);
    refused("", sage, "split_fractions = [0.8, 0.3, 0.1]", 2, &["train.link.split_fractions", "more than 1"]);
    refused(
        "",
        sage,
        "split_fractions = [1.0, 0.0, 0.0]",
        2,
        &["train.link.split_fractions", "no edges to validation"],
    );
    refused("", sage, "decoder = 'distmult'", 2, &["train.link.decoder", "graph.columns.edge_type", "\"dot\""]);
    refused("", sage, "decoder = 'transe'", 2, &["train.link.decoder", "transe", "distmult"]);
    refused("", sage, "target_etype = ['buys']", 2, &["train.link.target_etype[0]", "edges have no types"]);
    let typed = "columns = { edge_type = 'kind' }";
    refused(typed, sage, "target_etype = ['like']", 2, &["train.link.target_etype[0]", "did you mean \"likes\"?"]);
    refused("", "kind = 'sage'|metric = 'accuracy'", "", 2, &["train.metric", "\"mrr\""]);
    refused("", "kind = 'sage'|sampler = 'temporal'", "", 2, &["train.sampler", "temporal"]);
    refused("", "kind = 'sage'|schedule = 'partition-parallel'", "", 2, &["train.schedule", "mini-batch"]);
    refused("", "kind = 'sage'|seed_split = 'partition'", "", 2, &["train.seed_split"]);
    let set = |train: &str| {
        let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
        place.write("p.toml", text.replace("task = 'link-prediction'", train));
    };
    pipeline(&place, "", sage, "num_negative_edges = 3");
    set("task = 'node-classification'");
    place.fail(&["run", "p.toml"], 2, &["train.link", "link-prediction"]);
    pipeline(&place, "", "kind = 'sage'|metric = 'mrr'", "");
    set("task = 'node-classification'");
    place.fail(&["run", "p.toml"], 2, &["train.metric", "ranked edges"]);
    pipeline(&place, "", sage, "negative_sampler = 'in-batch'");
    place.fail(&["run", "p.toml", "--set", "train.batch=1"], 2, &["train.link.negative_sampler", "train.batch"]);
}
