//! `gnnflow infer` with models that predict edges: the results of their run, and results on other datasets, where splits come only from a column.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::Float32Type;

use crate::common::linked::{self, Row};
use crate::common::{TestDir, column, embeddings, read, summary, train};

fn bytes(place: &TestDir, path: &str) -> Vec<u8> {
    std::fs::read(place.path(path)).unwrap()
}

#[test]
fn held_out_edges_have_the_results_of_the_run() {
    // Numbers as edge types, with reverses.
    let place = TestDir::new();
    let pairs: Vec<(i64, i64)> =
        (0..240).flat_map(|node| [(node, (node * 7 + 1) % 240), (node, (node + 2) % 240)]).collect();
    let ints = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as _;
    place.parquet("nodes.parquet", vec![("node_id", ints((0..240).collect()))]);
    let of = |value: fn(&(i64, i64)) -> i64| ints(pairs.iter().map(value).collect());
    let edges =
        vec![("src", of(|pair| pair.0)), ("dst", of(|pair| pair.1)), ("kind", of(|pair| (pair.0 + pair.1) % 2))];
    place.parquet("edges.parquet", edges);
    for (schedule, target) in [("mini-batch", "target_etype = ['0']"), ("mini-batch", ""), ("full-graph", "")] {
        place.write("p.toml", format!(
            "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nreverse_edges = true\ncolumns = {{ edge_type = 'kind' }}\n\
             [partition]\nmethod = 'random'\nparts = 4\n[model]\nkind = 'rgcn'\nhidden = 8\nembedding = {{ dim = 8 }}\n\
             [train]\nschedule = '{schedule}'\ntask = 'link-prediction'\n[train.link]\ndecoder = 'distmult'\n{target}\n\
             [infer]\nembeddings = true\n"
        ));
        train(&place, &[]);
        for processes in ["1", "2", "4"] {
            place.succeed(&["infer", "run", "--out", "out", "--processes", processes, "--quiet"]);
            for file in ["predictions.parquet", "embeddings.parquet"] {
                assert!(
                    bytes(&place, &format!("run/{file}")) == bytes(&place, &format!("out/{file}")),
                    "{schedule} {target}: {file}"
                );
            }
            assert_eq!(summary(&place, "out")["test"], summary(&place, "run")["test"]);
        }
        std::fs::remove_dir_all(place.path("run")).unwrap();
    }
}

/// Writes a pipeline of link prediction over the tables of `linked`, with lines of `[graph]` and of `[model]`.
fn links(place: &TestDir, name: &str, graph: &str, model: &str) {
    let text = format!(
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n{graph}\n[partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n\
         [model]\nkind = 'sage'\nhidden = 16\nlayers = 2\n{model}\n[train]\ntask = 'link-prediction'\nbatch = 64\nfanouts = [5, 4]\n\
         [infer]\nembeddings = true\n"
    );
    place.write(name, text);
}

/// The ends of edges that an update adds.
const ADDED: [[i64; 4]; 2] = [[1000, 1001, 1100, 1239], [1200, 1201, 1202, 1203]];

/// Writes the edges of [`ADDED`] to `added.parquet`.
fn added(place: &TestDir) {
    let [src, dst] = ADDED.map(|ends| Arc::new(Int64Array::from(ends.to_vec())) as ArrayRef);
    place.parquet("added.parquet", vec![("src", src), ("dst", dst)]);
}

#[test]
fn links_of_an_updated_graph_are_recommended_from_all_its_edges() {
    let place = TestDir::new();
    let edges: Vec<Row> = linked::dump(&place, true);
    links(&place, "p.toml", "", "");
    train(&place, &[]);
    added(&place);
    place.succeed(&["update", "dataset", "--edges", "added.parquet", "--out", "tuesday", "--quiet"]);
    for processes in ["1", "2", "4"] {
        let args = ["infer", "run", "--dataset", "tuesday", "--set", "infer.recommendations=6", "--quiet", "--out"];
        place.succeed(&[&args, &[processes, "--processes", processes][..]].concat());
        for file in ["embeddings.parquet", "recommendations.parquet"] {
            assert!(bytes(&place, &format!("1/{file}")) == bytes(&place, &format!("{processes}/{file}")), "{file}");
        }
        assert!(!place.path(&format!("{processes}/predictions.parquet")).exists());
    }
    let summary = summary(&place, "1");
    assert!(summary["val"].is_null() && summary["test"].is_null(), "{summary}");
    let notes = summary["notes"].to_string();
    assert!(notes.contains("no edge is held out, and there are no predictions and metrics"), "{notes}");
    assert!(!notes.contains("drawn nodes"), "{notes}");
    // The lists of a plain program: no known edge of either day.
    let known = edges.iter().map(|edge| (edge.0, edge.1)).chain(ADDED[0].into_iter().zip(ADDED[1]));
    let known: BTreeSet<(i64, i64)> = known.collect();
    let (rows, table) = (embeddings(&place, "1"), read(&place, "1/recommendations.parquet"));
    let score = |a: i64, b: i64| rows[&a].iter().zip(&rows[&b]).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let [src, dst]: [&Int64Array; 2] = ["src", "dst"].map(|name| column(&table, name));
    let mut lists = BTreeMap::<i64, Vec<i64>>::new();
    src.values().iter().zip(dst.values()).for_each(|(&src, &dst)| lists.entry(src).or_default().push(dst));
    assert_eq!(lists.len(), rows.len());
    for (&source, list) in &lists {
        let candidates = rows.keys().filter(|node| **node != source && !known.contains(&(source, **node)));
        let mut scores: Vec<f64> = candidates.map(|&node| score(source, node)).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        assert!(list.iter().all(|&node| node != source && !known.contains(&(source, node))), "{source}: {list:?}");
        for (&node, wanted) in list.iter().zip(&scores) {
            assert!((score(source, node) - wanted).abs() < 1e-4, "{source}: {node}");
        }
        assert_eq!(list.len(), 6.min(scores.len()));
    }
}

#[test]
fn edges_of_another_dataset_are_held_out_only_by_a_column() {
    let place = TestDir::new();
    linked::dump(&place, true);
    links(&place, "p.toml", "", "");
    train(&place, &[]);
    // The same edges, in another order of nodes: without a column, all for training, and with held-out ones.
    links(&place, "split.toml", "columns = { edge_split = 'part' }", "");
    let prepare = |pipeline: &str, out: &str| {
        place.succeed(&["prepare", pipeline, "--out", out, "--quiet", "--set", "partition.method=range"]);
    };
    prepare("p.toml", "plain");
    prepare("split.toml", "held-out");
    linked::dump(&place, false);
    prepare("split.toml", "visible");
    let infer = |dataset: &str, processes: &str| {
        let out = format!("{dataset}-{processes}");
        let args = ["infer", "run", "--dataset", dataset, "--out", &out, "--processes", processes, "--quiet"];
        place.succeed(&args);
        bytes(&place, &format!("{out}/embeddings.parquet"))
    };
    for processes in ["1", "2", "4"] {
        assert!(infer("plain", processes) == infer("visible", "1"), "{processes}");
    }
    assert!(infer("held-out", "1") != infer("plain", "1"));
    assert!(embeddings(&place, "plain-1") != embeddings(&place, "run"));
    infer("held-out", "4");
    let predictions = |out: &str| bytes(&place, &format!("{out}/predictions.parquet"));
    assert!(predictions("held-out-1") == predictions("held-out-4"));
    let table = read(&place, "held-out-1/predictions.parquet");
    let splits: BTreeSet<&str> = table.column_by_name("split").unwrap().as_string::<i32>().iter().flatten().collect();
    assert_eq!(splits, ["test", "val"].into());
    for out in ["held-out-1", "held-out-4"] {
        let summary = summary(&place, out);
        assert_eq!(summary["test"], crate::common::summary(&place, "held-out-1")["test"]);
        assert!(summary["test"]["mrr"].as_f64().unwrap() > 0.0 && !summary["val"].is_null(), "{summary}");
    }
    // Where nothing is held out, there are no predictions.
    for processes in ["1", "2"] {
        let args = ["infer", "run", "--dataset", "plain", "--out", "x", "--processes", processes, "--quiet"];
        let lines = place.fail(
            &[&args[..], &["--set", "infer.embeddings=false"]].concat(),
            2,
            &["no edge is held out", "graph.columns.edge_split", "--set infer.embeddings=true"],
        );
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
    place.fail(&["refresh", "run", "--out", "x"], 2, &["the model predicts edges", "`gnnflow infer`"]);
}

#[test]
fn learned_rows_of_links_need_a_policy_for_new_nodes() {
    let place = TestDir::new();
    linked::dump(&place, true);
    links(&place, "p.toml", "columns = { features = '' }", "embedding = { dim = 8 }");
    train(&place, &[]);
    place.parquet("more.parquet", vec![("node_id", Arc::new(Int64Array::from(vec![5000])) as _)]);
    let ids = |ids: [i64; 2]| Arc::new(Int64Array::from(ids.to_vec())) as _;
    place.parquet("edges-of-it.parquet", vec![("src", ids([1000, 1007])), ("dst", ids([5000, 5000]))]);
    let update = ["update", "dataset", "--nodes", "more.parquet", "--edges", "edges-of-it.parquet"];
    place.succeed(&[&update[..], &["--out", "grown", "--quiet"]].concat());
    let args = ["infer", "run", "--dataset", "grown", "--out", "out", "--quiet"];
    place.fail(&args, 3, &["has no learned row for 1 node of the dataset, such as 5000", "--unseen mean"]);
    let with = |policy: &str, processes: &str| {
        place.succeed(&[&args[..], &["--unseen", policy, "--processes", processes]].concat());
        bytes(&place, "out/embeddings.parquet")
    };
    let mean = with("mean", "1");
    assert!(mean == with("mean", "2") && mean == with("mean", "4") && mean != with("zero", "1"));
}

/// Writes tables of 200 nodes and 1,500 edges between them, and a pipeline file for them. The class of an edge depends on the sum of its ends; `label` decides which
/// edges have it. With `column`, edges have a column of splits.
fn ratings(place: &TestDir, folder: &str, label: impl Fn(&str) -> bool, column: bool) {
    let node =
        |node: i64| Some((0..4).map(move |at| Some(f32::from(u8::from(node % 4 == at)) + (node % 7) as f32 * 0.05)));
    let features = arrow::array::ListArray::from_iter_primitive::<Float32Type, _, _>((0..200).map(node));
    let ids = Arc::new((0..200).collect::<Int64Array>());
    place.parquet(&format!("{folder}/nodes.parquet"), vec![("node_id", ids as _), ("features", Arc::new(features))]);
    let ends = |edge: i64| (edge * 7 % 200, (edge * 31 + edge / 200) % 200);
    let edges = || (0..1500).map(ends);
    let class = |(src, dst): (i64, i64)| {
        Some(["bad", "fair", "good"][((src + dst) % 4).min(2) as usize]).filter(|name| label(name))
    };
    let splits = (0..1500).map(|edge| Some(["train", "train", "val", "test"][edge / 5 % 4]));
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("src", Arc::new(edges().map(|edge| edge.0).collect::<Int64Array>())),
        ("dst", Arc::new(edges().map(|edge| edge.1).collect::<Int64Array>())),
        ("rating", Arc::new(edges().map(class).collect::<StringArray>())),
    ];
    if column {
        columns.push(("part", Arc::new(splits.collect::<StringArray>())));
    }
    place.parquet(&format!("{folder}/edges.parquet"), columns);
    let split = if column { ", edge_split = 'part'" } else { "" };
    let text = format!(
        "[graph]\nnodes = '{folder}/nodes.parquet'\nedges = '{folder}/edges.parquet'\ncolumns = {{ edge_label = 'rating'{split} }}\n\
         [partition]\nparts = 4\nmethod = 'random'\nout = '{folder}/dataset'\n"
    );
    place.write(&format!("{folder}.toml"), text);
}

/// Trains a model for the ratings of Monday.
fn trained(place: &TestDir) {
    ratings(place, "monday", |_| true, true);
    let text = std::fs::read_to_string(place.path("monday.toml")).unwrap();
    let model = "[model]\nkind = 'sage'\nhidden = 16\nlayers = 2\ndropout = 0.0\n[train]\ntask = 'edge-classification'\nbatch = 64\nfanouts = [5, 4]\noptimizer = { lr = 0.02 }\n\
                 [infer]\nscores = true\n";
    place.write("p.toml", text + model);
    train(place, &["--set", "train.epochs=30"]);
}

/// The scores of each edge, by its ends and the order of equal ones.
fn scores(place: &TestDir, out: &str) -> BTreeMap<(i64, i64), Vec<f32>> {
    let table = read(place, &format!("{out}/predictions.parquet"));
    let [src, dst]: [&Int64Array; 2] = ["src", "dst"].map(|name| column(&table, name));
    let rows = table.column_by_name("scores").unwrap().as_fixed_size_list();
    let row = |at: usize| rows.value(at).as_primitive::<Float32Type>().values().to_vec();
    (0..table.num_rows()).map(|at| ((src.value(at), dst.value(at)), row(at))).collect()
}

#[test]
fn classes_of_edges_are_those_of_the_run_in_other_partitions() {
    let place = TestDir::new();
    trained(&place);
    place.succeed(&["prepare", "monday.toml", "--out", "other", "--quiet", "--set", "partition.method=range"]);
    for processes in ["1", "2", "4"] {
        let args = ["infer", "run", "--dataset", "other", "--out", processes, "--processes", processes, "--quiet"];
        place.succeed(&args);
        assert!(bytes(&place, "1/predictions.parquet") == bytes(&place, &format!("{processes}/predictions.parquet")));
    }
    let (own, other) = (scores(&place, "run"), scores(&place, "1"));
    assert_eq!(own.len(), other.len());
    for (ends, row) in &own {
        let near = row.iter().zip(&other[ends]).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(near, "{ends:?}: {row:?} and {:?}", other[ends]);
    }
    let accuracy = |out: &str| summary(&place, out)["test"]["accuracy"].as_f64().unwrap();
    let (own, other) = (accuracy("run"), accuracy("1"));
    assert!((own - other).abs() < 0.02 && own > 0.6, "{own} {other}");
}

#[test]
fn classes_of_new_tables_are_encoded_like_those_of_the_run() {
    let place = TestDir::new();
    trained(&place);
    ratings(&place, "tuesday", |name| name == "good", false);
    let infer = |out: &str, more: &[&str]| place.succeed(&[&["infer", "run", "--quiet", "--out", out], more].concat());
    for processes in ["1", "2", "4"] {
        infer(processes, &["--pipeline", "tuesday.toml", "--processes", processes]);
        assert!(bytes(&place, "1/predictions.parquet") == bytes(&place, &format!("{processes}/predictions.parquet")));
    }
    let table = read(&place, "1/predictions.parquet");
    let [prediction, label, split]: [&StringArray; 3] =
        ["prediction", "label", "split"].map(|name| column(&table, name));
    assert_eq!(table.num_rows(), 1500);
    assert!(split.iter().all(|split| split == Some("none")) && label.iter().flatten().all(|label| label == "good"));
    assert!(label.null_count() > 500 && label.null_count() < 1500);
    let predicted: BTreeSet<&str> = prediction.iter().flatten().collect();
    assert_eq!(predicted, ["bad", "fair", "good"].into());
    // All edges are read, so results differ from those of Monday. Most labeled edges have the right class.
    let right = prediction.iter().zip(label).filter(|(prediction, label)| prediction == label).count();
    assert!(right as f64 > 0.5 * (1500 - label.null_count()) as f64, "{right}");
    let summary = summary(&place, "1");
    assert!(summary["train"].is_null() && summary["test"].is_null(), "{summary}");
    assert!(summary["notes"].to_string().contains("no edge is held out, and there are no metrics"), "{summary}");
    // With a column of splits, held-out edges have metrics.
    ratings(&place, "wednesday", |name| name != "fair", true);
    infer("wednesday-out", &["--pipeline", "wednesday.toml"]);
    let summary = crate::common::summary(&place, "wednesday-out");
    let classes = summary["by_class"]["test"]["classes"].as_array().unwrap();
    let count = |at: usize| (classes[at]["class"].as_str().unwrap(), classes[at]["nodes"].as_u64().unwrap() > 0);
    assert_eq!([0, 1, 2].map(count), [("bad", true), ("fair", false), ("good", true)]);
    // With their own classes, the tables do not fit.
    place.succeed(&["prepare", "wednesday.toml", "--out", "own", "--quiet"]);
    let words = "edges with the classes bad, fair, good, and the dataset has the classes bad, good";
    place.fail(&["infer", "run", "--dataset", "own", "--out", "x"], 3, &["run/model.safetensors", words]);
    ratings(&place, "other", |_| true, false);
    let table = read(&place, "other/edges.parquet");
    let ends = ["src", "dst"].map(|name| (name, table.column_by_name(name).unwrap().clone()));
    let ugly = ("rating", Arc::new(StringArray::from(vec!["ugly"; 1500])) as ArrayRef);
    place.parquet("other/edges.parquet", ends.into_iter().chain([ugly]).collect());
    let words = ["graph.encode_like", "the classes bad, fair, good, and the edge label \"ugly\" is none of them"];
    place.fail(&["infer", "run", "--pipeline", "other.toml", "--out", "x"], 2, &words);
}

#[test]
fn dataset_that_was_updated_in_place_holds_out_no_edge() {
    let place = TestDir::new();
    let edges: Vec<Row> = linked::dump(&place, true);
    let of_type = "[train.link]\ndecoder = 'distmult'\ntarget_etype = ['likes']\n";
    links(&place, "p.toml", "columns = { edge_type = 'kind' }", "");
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    place.write("p.toml", text.replace("[infer]", &format!("{of_type}[infer]")));
    train(&place, &[]);
    assert!(place.path("run/predictions.parquet").exists());
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    let kinds = Arc::new(StringArray::from(vec!["likes", "knows"]));
    place.parquet("added.parquet", vec![("src", ids(&[1000, 1000])), ("dst", ids(&[1101, 1102])), ("kind", kinds)]);
    place.succeed(&["update", "dataset", "--edges", "added.parquet", "--quiet"]);
    place.parquet("some.parquet", vec![("node_id", ids(&[1000, 1005]))]);
    let infer = |out: &str, more: &[&str]| {
        let args = ["infer", "run", "--out", out, "--quiet", "--set", "infer.recommendations=300"];
        place.succeed(&[&args, more].concat());
        bytes(&place, &format!("{out}/recommendations.parquet"))
    };
    let all = infer("all", &[]);
    assert!(all == infer("all-4", &["--processes", "4"]));
    for processes in ["1", "2"] {
        infer("some", &["--nodes", "some.parquet", "--processes", processes]);
        // Each list has all nodes but the source and its neighbors by this type.
        let table = read(&place, "some/recommendations.parquet");
        let [src, dst]: [&Int64Array; 2] = ["src", "dst"].map(|name| column(&table, name));
        for source in [1000, 1005] {
            let listed: BTreeSet<i64> =
                src.values().iter().zip(dst.values()).filter(|(src, _)| **src == source).map(|(_, dst)| *dst).collect();
            let liked = edges.iter().filter(|edge| edge.0 == source && edge.2 == "likes").map(|edge| edge.1);
            let known: BTreeSet<i64> = liked.chain((source == 1000).then_some(1101)).chain([source]).collect();
            let wanted: BTreeSet<i64> = (1000..1240).filter(|node| !known.contains(node)).collect();
            assert_eq!(listed, wanted, "{source}");
        }
    }
    assert!(!place.path("some/predictions.parquet").exists() && !place.path("all/predictions.parquet").exists());
}

#[test]
fn candidates_of_the_run_are_not_used_for_other_edges() {
    let place = TestDir::new();
    let edges: Vec<Row> = linked::dump(&place, true);
    links(&place, "p.toml", "columns = { edge_split = 'part' }", "");
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    let link = "[train.link]\neval_negative_dstnode = 'candidates.parquet'\n";
    place.write("p.toml", text.replace("[infer]", &format!("{link}[infer]")));
    let held_out = edges.iter().filter(|edge| edge.3 != "train");
    let rows: Vec<(i64, i64)> =
        held_out.flat_map(|edge| (0..3).map(|at| (edge.0, 1000 + (edge.1 + 17 * at) % 240))).collect();
    let ids = |of: fn(&(i64, i64)) -> i64| Arc::new(rows.iter().map(of).collect::<Int64Array>()) as ArrayRef;
    place.parquet("candidates.parquet", vec![("src", ids(|row| row.0)), ("candidate", ids(|row| row.1))]);
    train(&place, &[]);
    assert!(read(&place, "run/predictions.parquet").column_by_name("src_rank").is_none());
    // Half of the nodes, with edges that the table does not name.
    let half = |name: &str, keep: &dyn Fn(usize) -> bool| {
        let table = read(&place, name);
        let rows: arrow::array::BooleanArray = (0..table.num_rows()).map(|row| Some(keep(row))).collect();
        let table = arrow::compute::filter_record_batch(&table, &rows).unwrap();
        let columns = table.schema_ref().fields().iter().zip(table.columns());
        let columns = columns.map(|(field, column)| (field.name().as_str(), column.clone())).collect();
        place.parquet(&format!("half/{name}"), columns);
    };
    half("nodes.parquet", &|row| row < 120);
    half("edges.parquet", &|row| edges[row].0 < 1120 && edges[row].1 < 1120);
    let text = "[graph]\nnodes = 'half/nodes.parquet'\nedges = 'half/edges.parquet'\ncolumns = { edge_split = 'part' }\n\
                [partition]\nmethod = 'random'\nparts = 2\nout = 'half/dataset'\n";
    place.write("half.toml", text);
    for processes in ["1", "2"] {
        let args = ["infer", "run", "--pipeline", "half.toml", "--out", processes, "--processes", processes, "--quiet"];
        place.succeed(&args);
        assert!(read(&place, &format!("{processes}/predictions.parquet")).column_by_name("src_rank").is_some());
        assert!(summary(&place, processes)["notes"].to_string().contains("drawn nodes"));
    }
    assert!(bytes(&place, "1/predictions.parquet") == bytes(&place, "2/predictions.parquet"));
}
