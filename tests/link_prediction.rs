//! Link prediction in mini-batches: equal bits for 1, 2 and 4 processes, ranks, and refused settings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::common::linked::{NODES, Row, dump};
use crate::common::{TestDir, column, embeddings, epochs, plan, read, summary, weights};
use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, StringArray};
use gnnflow_data::rng::{Key, Purpose};

/// Writes a pipeline over the dump: lines of `[graph]`, `[model]` and `[train]` (separated by `|`), and `[train.link]`.
fn pipeline(place: &TestDir, graph: &str, train: &str, link: &str) {
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
fn all_options_have_equal_bits_for_1_2_4_processes() {
    let place = TestDir::new();
    dump(&place, true);
    let typed = "columns = { edge_type = 'kind', edge_split = 'part' }";
    for (graph, train, link) in [
        ("", "kind = 'sage'", "loss = 'binary-cross-entropy'"),
        (typed, "kind = 'rgcn'", "decoder = 'distmult'\nloss = 'softmax-cross-entropy'\nnegative_sampler = 'joint'"),
        ("undirected = true", "kind = 'gcn'", "negative_sampler = 'in-batch'\nnum_negative_edges = 10"),
        (
            "reverse_edges = true\ncolumns = { edge_type = 'kind', node_type = 'kind' }",
            "kind = 'sage'|sampler = 'labor'",
            "target_etype = ['likes']\nloss = 'binary-cross-entropy'\nnegative_sampler = 'degree'\nnum_negative_edges = 4\nnum_negative_edges_eval = 30",
        ),
    ] {
        pipeline(&place, graph, train, link);
        let bound = plan(&place);
        assert!(bound["training"]["exact"] == false && bound["ranking"]["exact"] == false, "{bound}");
        let mut results = Vec::new();
        for (processes, topology) in
            [("1", "partitioned"), ("2", "partitioned"), ("4", "partitioned"), ("2", "replicated")]
        {
            let topology = format!("partition.topology={topology}");
            let args = ["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", processes, "--set", &topology];
            place.succeed(&args);
            let summary = summary(&place, "run");
            let bits = ["model_sha256", "predictions_sha256", "blocks_sha256"].map(|name| summary[name].clone());
            assert!(bits.iter().all(|bits| bits.is_string()), "{summary}");
            let plan = plan(&place);
            assert_eq!(plan["training"]["steps_per_epoch"], epochs(&place.path("run"))[0]["steps"], "{plan}");
            let held_out = ["val", "test"].map(|split| summary[split]["nodes"].as_u64().unwrap());
            assert_eq!(plan["ranking"]["edges"], held_out[0] + held_out[1], "{plan}");
            assert!(plan["training"]["exact"] == true && plan["ranking"]["exact"] == true, "{plan}");
            results.push((bits, summary["val"].clone(), summary["test"].clone()));
            std::fs::remove_dir_all(place.path("run")).unwrap();
        }
        assert!(results.iter().all(|run| *run == results[0]), "{link}: {results:#?}");
        let mrr = results[0].2["mrr"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&mrr) && results[0].2["nodes"].as_u64().unwrap() > 50, "{results:?}");
    }
}

#[test]
fn ranks_equal_a_comparison_with_all_nodes_and_improve_with_training() {
    let place = TestDir::new();
    let edges = dump(&place, true);
    let graph = "columns = { edge_split = 'part', edge_type = 'kind' }";
    pipeline(&place, graph, "kind = 'sage'|optimizer = { lr = 0.01 }", "num_negative_edges = 8");
    place.succeed(&["run", "p.toml", "--run-dir", "run", "--quiet", "--processes", "2", "--set", "train.epochs=30"]);
    let (predictions, rows) = (read(&place, "run/predictions.parquet"), embeddings(&place, "run"));
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
            // There are no self-loops, so a node is no candidate for itself.
            all.filter(|&(head, tail)| head != tail && !known.contains(&(head, tail, kind)))
                .map(|(h, t)| score(h, t))
                .collect()
        };
        for (side, others) in [candidates(&|tail| (head, tail)), candidates(&|head| (head, tail))].iter().enumerate() {
            let higher = others.iter().filter(|&&score| score > own).count() as f64;
            // Sums in f32 depend on their order, so nearly equal scores may compare either way.
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
    // A random rank is about 115. A model of the groups ranks three edges in four among the first 40.
    let test = &summary["test"];
    assert!(test["mean_rank"].as_f64().unwrap() < 80.0 && test["mrr"].as_f64().unwrap() > 0.05, "{test}");
    // Parameters of the decoder are saved with the model.
    pipeline(&place, graph, "kind = 'sage'", "decoder = 'distmult'");
    place.succeed(&["run", "p.toml", "--run-dir", "again", "--quiet", "--set", "train.epochs=1"]);
    let relations = &weights(&place, "again")["decoder.relations"];
    assert_eq!([relations.len(), relations[0].len()], [2, 16]);
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[test]
fn recall_and_ndcg_without_validation_edges_match_their_definitions() {
    const K: usize = 20;
    let place = TestDir::new();
    // All validation edges become test edges.
    let edges: Vec<Row> = dump(&place, true);
    let tested = |split: &'static str| if split == "val" { "test" } else { split };
    let batch = read(&place, "edges.parquet");
    let words = edges.iter().map(|edge| tested(edge.3));
    let mut columns: Vec<(&str, ArrayRef)> =
        ["src", "dst"].map(|name| (name, batch.column_by_name(name).unwrap().clone())).into();
    columns.push(("part", Arc::new(StringArray::from_iter_values(words))));
    place.parquet("edges.parquet", columns);
    let link = format!("top_k = {K}\nnegative_sampler = 'joint'");
    pipeline(&place, "columns = { edge_split = 'part' }", "kind = 'sage'", &link);
    let mut results = Vec::new();
    for processes in ["1", "2", "4"] {
        place.succeed(&["run", "p.toml", "--run-dir", processes, "--quiet", "--processes", processes]);
        let summary = summary(&place, processes);
        assert!(summary["val"].is_null() && summary.get("best_epoch").is_none(), "{summary}");
        results.push((summary["test"].clone(), summary["model_sha256"].clone()));
    }
    assert!(results.iter().all(|run| *run == results[0]), "{results:#?}");
    let rows = embeddings(&place, "1");
    let (mut train, mut test) = (HashMap::<i64, HashSet<i64>>::new(), HashMap::<i64, HashSet<i64>>::new());
    for &(head, tail, _, split) in &edges {
        let of = if split == "train" { &mut train } else { &mut test };
        of.entry(head).or_default().insert(tail);
    }
    let (mut recall, mut ndcg) = (0.0, 0.0);
    for (head, wanted) in &test {
        let known = train.get(head).cloned().unwrap_or_default();
        let others = rows.keys().copied().filter(|node| node != head && !known.contains(node));
        let mut list: Vec<i64> = others.collect();
        list.sort_by(|a, b| product(&rows[head], &rows[b]).total_cmp(&product(&rows[head], &rows[a])));
        let gain = |place: usize| 1.0 / (place as f64 + 2.0).log2();
        let hits: Vec<usize> = (0..K).filter(|&place| wanted.contains(&list[place])).collect();
        recall += hits.len() as f64 / wanted.len() as f64;
        let ideal: f64 = (0..K.min(wanted.len())).map(gain).sum();
        ndcg += hits.iter().map(|&place| gain(place)).sum::<f64>() / ideal;
    }
    let found = |name: &str| results[0].0[name].as_f64().unwrap();
    let sources = test.len() as f64;
    // Rounding may exchange entries at the end of a list.
    assert!((found("recall_at_20") - recall / sources).abs() < 2e-3, "{} {}", found("recall_at_20"), recall / sources);
    assert!((found("ndcg_at_20") - ndcg / sources).abs() < 2e-3, "{} {}", found("ndcg_at_20"), ndcg / sources);
    // Chance gives 20 of 230.
    assert!(found("recall_at_20") > 0.12, "{results:?}");
    // With validation edges, recall chooses the best epoch.
    let set = ["--set", "train.link.split_fractions=[0.8, 0.1, 0.1]", "--set", "graph.columns.edge_split=''"];
    let args = [&["run", "p.toml", "--run-dir", "val", "--quiet", "--set", "train.metric=recall"][..], &set].concat();
    place.succeed(&args);
    assert!(summary(&place, "val")["best_epoch"].is_u64());
}

#[test]
fn destinations_are_ranked_among_candidates_of_the_user() {
    let place = TestDir::new();
    let edges = dump(&place, true);
    let held_out: Vec<&Row> = edges.iter().filter(|edge| edge.3 != "train").collect();
    let candidate = |i: usize, j: u64| 1000 + Key::new(9, Purpose::Negative).fold(i as u64).below(j, NODES) as i64;
    // 30 candidates per edge, which may include its own destination.
    let of_edges: Vec<(i64, i64, i64)> = (0..held_out.len() * 30)
        .map(|i| (held_out[i / 30].0, held_out[i / 30].1, candidate(i / 30, (i % 30) as u64)))
        .collect();
    let of_sources: Vec<(i64, i64)> =
        (0..NODES as usize * 30).map(|i| (1000 + (i / 30) as i64, candidate(i / 30, (i % 30) as u64))).collect();
    let ids = |ids: Vec<i64>| Arc::new(Int64Array::from(ids)) as ArrayRef;
    let columns = vec![
        ("src", ids(of_edges.iter().map(|row| row.0).collect())),
        ("dst", ids(of_edges.iter().map(|row| row.1).collect())),
        ("candidate", ids(of_edges.iter().map(|row| row.2).collect())),
    ];
    place.parquet("edges_own.parquet", columns);
    let columns = vec![
        ("src", ids(of_sources.iter().map(|row| row.0).collect())),
        ("candidate", ids(of_sources.iter().map(|row| row.1).collect())),
    ];
    place.parquet("sources_own.parquet", columns);
    for file in ["edges_own.parquet", "sources_own.parquet"] {
        let link = format!("eval_negative_dstnode = '{file}'");
        pipeline(&place, "columns = { edge_split = 'part' }", "kind = 'sage'", &link);
        let mut results = Vec::new();
        for processes in ["1", "2"] {
            place.succeed(&["run", "p.toml", "--run-dir", processes, "--quiet", "--processes", processes]);
            let summary = summary(&place, processes);
            results.push((summary["test"].clone(), summary["predictions_sha256"].clone()));
        }
        assert_eq!(results[0], results[1]);
        let (table, rows) = (read(&place, "1/predictions.parquet"), embeddings(&place, "1"));
        assert!(table.column_by_name("src_rank").is_none());
        let [src, dst]: [&Int64Array; 2] = ["src", "dst"].map(|name| column(&table, name));
        let rank: &Float64Array = column(&table, "rank");
        assert_eq!(table.num_rows(), held_out.len());
        for i in 0..table.num_rows() {
            let (head, tail) = (src.value(i), dst.value(i));
            let own = product(&rows[&head], &rows[&tail]);
            let others: Vec<i64> = if file == "edges_own.parquet" {
                of_edges.iter().filter(|row| (row.0, row.1) == (head, tail)).map(|row| row.2).collect()
            } else {
                of_sources.iter().filter(|row| row.0 == head).map(|row| row.1).collect()
            };
            let scores = others.iter().filter(|&&node| node != tail).map(|node| product(&rows[&head], &rows[node]));
            let scores: Vec<f64> = scores.collect();
            let higher = scores.iter().filter(|&&score| score > own).count() as f64;
            let near = scores.iter().filter(|&&score| (score - own).abs() < 1e-3).count() as f64;
            assert!((rank.value(i) - 1.0 - higher).abs() <= near, "{head} {tail}: {} {higher} {near}", rank.value(i));
        }
    }
}

#[test]
fn resumed_run_equals_an_uninterrupted_one() {
    let place = TestDir::new();
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
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    dump(&place, false);
    let split = "columns = { edge_split = 'part' }";
    let refused = |graph: &str, train: &str, link: &str, code: i32, words: &[&str]| {
        pipeline(&place, graph, train, link);
        place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], code, words);
    };
    let sage = "kind = 'sage'";
    refused(
        split,
        "kind = 'sage'|early_stop = 2",
        "",
        2,
        &["train.early_stop", "no edge is left in the validation split"],
    );
    pipeline(&place, split, sage, "split_fractions = [0.8, 0.1, 0.1]");
    place.fail(&["run", "p.toml", "--dry-run"], 2, &["train.link.split_fractions", "remove this key"]);
    refused("", sage, "split_fractions = [0.8, 0.3, 0.1]", 2, &["train.link.split_fractions", "more than 1"]);
    refused("", sage, "split_fractions = [0.0, 0.5, 0.5]", 2, &["train.link.split_fractions", "no edges to train"]);
    refused("", "kind = 'sage'|metric = 'recall'", "", 2, &["train.metric", "train.link.top_k"]);
    let listed = "top_k = 20\nnum_negative_edges_eval = 100";
    refused("", sage, listed, 2, &["train.link.top_k", "num_negative_edges_eval"]);
    let both = "eval_negative_dstnode = 'c.parquet'\nnum_negative_edges_eval = 100";
    refused("", sage, both, 2, &["train.link.num_negative_edges_eval", "remove one of them"]);
    let own = "eval_negative_dstnode = 'c.parquet'";
    refused("", sage, own, 3, &["c.parquet", "train.link.eval_negative_dstnode"]);
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    place.parquet("c.parquet", vec![("src", ids(&[1000])), ("candidates", ids(&[1001]))]);
    refused("", sage, own, 3, &["c.parquet: no column \"candidate\"", "train.link.eval_negative_dstnode"]);
    place.parquet("c.parquet", vec![("src", ids(&[1000, 1001])), ("candidate", ids(&[1001, 7]))]);
    refused("", sage, own, 3, &["c.parquet", "row 1", "\"candidate\"", "7", "the id of a node"]);
    place.parquet("c.parquet", vec![("src", ids(&[1000])), ("candidate", ids(&[1001]))]);
    refused("", sage, own, 3, &["c.parquet: no row for the held-out edge from node 1"]);
    refused("", sage, "decoder = 'distmult'", 2, &["train.link.decoder", "graph.columns.edge_type", "\"dot\""]);
    refused("", sage, "decoder = 'transe'", 2, &["train.link.decoder", "transe", "distmult"]);
    refused("", sage, "target_etype = ['buys']", 2, &["train.link.target_etype[0]", "edges have no types"]);
    let typed = "columns = { edge_type = 'kind' }";
    let unknown = ["train.link.target_etype[0]", "did you mean \"likes\"?"];
    refused(typed, sage, "target_etype = ['like']", 2, &unknown);
    // The dataset is prepared now.
    place.fail(&["run", "p.toml", "--dry-run"], 2, &unknown);
    let fanouts = "train.fanouts=[{ likes = 3 }, { like = 2 }]";
    let known = ["run", "p.toml", "--dry-run", "--unset", "train.link.target_etype", "--set", fanouts];
    place.fail(&known, 2, &["train.fanouts[1]", "did you mean \"likes\"?"]);
    refused("", "kind = 'sage'|metric = 'accuracy'", "", 2, &["train.metric", "`mrr`"]);
    refused("", "kind = 'sage'|sampler = 'temporal'", "", 2, &["train.sampler", "temporal"]);
    refused("", "kind = 'sage'|schedule = 'partition-parallel'", "", 2, &["train.schedule", "mini-batch"]);
    refused("", "kind = 'sage'|schedule.seed_split = 'partition'", "", 2, &["train.schedule.seed_split"]);
    pipeline(&place, "", sage, "");
    place.fail(&["run", "p.toml", "--set", "infer.scores=true"], 2, &["infer.scores", "always written"]);
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
