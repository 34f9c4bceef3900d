//! Invalid input data: exit code 3, one error line with the cause, and no dataset.

use crate::common::TestDir;
use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;
use std::sync::Arc;

fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn words(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn rows(values: &[&[f32]]) -> ArrayRef {
    let rows = values.iter().map(|row| Some(row.iter().map(|&x| Some(x))));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

/// The columns of a valid node file: six nodes, two classes, all splits.
fn good_nodes() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("node_id", ints(&[10, 11, 12, 13, 14, 15])),
        ("features", rows(&[&[1.0, 0.0], &[0.0, 1.0], &[1.0, 1.0], &[0.5, 0.5], &[0.0, 0.0], &[2.0, 1.0]])),
        ("label", ints(&[0, 1, 0, 1, 0, 1])),
        ("split", words(&["train", "train", "val", "val", "test", "test"])),
    ]
}

fn good_edges() -> Vec<(&'static str, ArrayRef)> {
    vec![("src", ints(&[10, 11, 12, 13, 14])), ("dst", ints(&[11, 12, 13, 14, 15]))]
}

/// Replaces the column `name`, or removes it if `array` is `None`.
fn replace(
    mut columns: Vec<(&'static str, ArrayRef)>,
    name: &str,
    array: Option<ArrayRef>,
) -> Vec<(&'static str, ArrayRef)> {
    let at = columns.iter().position(|(column, _)| *column == name).unwrap();
    match array {
        Some(array) => columns[at].1 = array,
        None => drop(columns.remove(at)),
    }
    columns
}

const GRAPH: &str =
    "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nundirected = true\n[partition]\nparts = 2\n";

/// Writes a graph with these columns to a new folder.
fn graph(nodes: Vec<(&str, ArrayRef)>, edges: Vec<(&str, ArrayRef)>) -> TestDir {
    let place = TestDir::new();
    place.parquet("nodes.parquet", nodes);
    place.parquet("edges.parquet", edges);
    place.write("p.toml", GRAPH);
    place
}

/// Asserts that `prepare` exits with 3 and one error line with `words`, and writes no dataset.
fn refused(place: &TestDir, words: &[&str]) {
    let errors = place.fail(&["prepare", "p.toml", "--out", "prepared", "--quiet"], 3, words);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(!place.path("prepared").exists(), "{words:?}: a dataset was written");
}

#[test]
fn valid_graph_is_prepared() {
    let place = graph(good_nodes(), good_edges());
    place.succeed(&["prepare", "p.toml", "--out", "prepared"]);
    assert!(place.path("prepared/manifest.json").is_file());
    let quality: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("prepared/partition.json")).unwrap()).unwrap();
    for key in ["method", "parts", "edge_cut", "replication_factor", "balance", "seconds", "peak_rss_bytes"] {
        assert!(!quality[key].is_null(), "{key}: {quality}");
    }
    let found: serde_json::Value = serde_json::from_str(&place.succeed(&["inspect", "prepared", "--json"])).unwrap();
    assert_eq!((&found["kind"], &found["manifest"]["nodes"]), (&"dataset".into(), &6.into()), "{found}");
}

#[test]
fn missing_or_truncated_files_are_refused() {
    let place = graph(good_nodes(), good_edges());
    std::fs::remove_file(place.path("edges.parquet")).unwrap();
    refused(&place, &["edges.parquet"]);
    place.parquet("edges.parquet", good_edges());
    for file in ["nodes.parquet", "edges.parquet"] {
        let whole = std::fs::read(place.path(file)).unwrap();
        for length in [0, 3, whole.len() / 2, whole.len() - 1] {
            place.write(file, &whole[..length]);
            refused(&place, &[file]);
        }
        place.write(file, &whole);
    }
    place.succeed(&["prepare", "p.toml", "--out", "prepared"]);
}

#[test]
fn text_instead_of_parquet_is_refused_with_the_command_that_converts_it() {
    let place = graph(good_nodes(), good_edges());
    let text = "node_id,label\n10,0\n";
    for (key, name, content, edges) in [
        ("edges", "edges.csv", text.as_bytes(), ""),
        ("edges", "links.tsv.gz", &[0x1f, 0x8b, 8, 0], ""),
        ("edges", "edges", text.as_bytes(), ""),
        ("nodes", "people.txt", text.as_bytes(), "EDGES --nodes "),
    ] {
        let path = place.write(name, content);
        place.write("p.toml", GRAPH.replace(&format!("{key}.parquet"), name));
        let command = format!("gnnflow import {edges}{} --out DIR", path.display());
        refused(&place, &[&format!("{name} is not a Parquet file, but looks like text; convert it with `{command}`")]);
    }
    // A damaged Parquet file is not called text, whatever its name.
    let damaged = std::fs::read(place.path("edges.parquet")).unwrap();
    place.write("edges.csv", &damaged[..damaged.len() / 2]);
    place.write("p.toml", GRAPH.replace("edges.parquet", "edges.csv"));
    refused(&place, &["edges.csv: not a complete Parquet file"]);
}

#[test]
fn columns_missing_or_of_another_type_are_refused() {
    for (column, key) in [("node_id", "id"), ("features", "features"), ("label", "label"), ("split", "split")] {
        let place = graph(good_nodes(), good_edges());
        place.write("p.toml", GRAPH.replace("undirected", &format!("columns = {{ {key} = '{column}x' }}\nundirected")));
        refused(&place, &["nodes.parquet", &format!("{column}x"), &format!("did you mean \"{column}\"")]);
    }
    refused(&graph(good_nodes(), replace(good_edges(), "dst", None)), &["edges.parquet", "dst"]);
    refused(&graph(replace(good_nodes(), "features", Some(words(&["a"; 6]))), good_edges()), &["features"]);
    let halves: ArrayRef = Arc::new(Float32Array::from(vec![0.5; 6]));
    refused(&graph(replace(good_nodes(), "node_id", Some(halves)), good_edges()), &["node_id"]);
    refused(&graph(good_nodes(), replace(good_edges(), "src", Some(words(&["10"; 5])))), &["src"]);
}

#[test]
fn nulls_and_nan_are_refused() {
    let null: ArrayRef = Arc::new(Int64Array::from(vec![Some(10), Some(11), None, Some(13), Some(14), Some(15)]));
    refused(&graph(replace(good_nodes(), "node_id", Some(null)), good_edges()), &["node_id", "row 2"]);
    let null: ArrayRef = Arc::new(Int64Array::from(vec![Some(10), Some(11), Some(12), None, Some(14)]));
    refused(&graph(good_nodes(), replace(good_edges(), "src", Some(null))), &["edges.parquet", "src", "row 3"]);
    let nan = rows(&[&[1.0, 0.0], &[0.0, f32::NAN], &[1.0, 1.0], &[0.5, 0.5], &[0.0, 0.0], &[2.0, 1.0]]);
    refused(&graph(replace(good_nodes(), "features", Some(nan)), good_edges()), &["features", "row 1"]);
    let null = ListArray::from_iter_primitive::<Float32Type, _, _>(
        (0..6).map(|i| (i != 4).then_some(vec![Some(1.0), Some(2.0)])),
    );
    refused(&graph(replace(good_nodes(), "features", Some(Arc::new(null))), good_edges()), &["features", "row 4"]);
}

#[test]
fn null_label_is_no_label() {
    let classes = Int64Array::from(vec![Some(0), Some(1), None, Some(1), Some(-1), Some(1)]);
    let names = StringArray::from(vec![Some("ant"), Some("zebra"), None, Some("ant"), None, Some("ant")]);
    let values = Float32Array::from(vec![Some(0.5), Some(1.0), None, Some(-2.0), None, Some(0.0)]);
    let labels: [ArrayRef; 3] = [Arc::new(classes), Arc::new(names), Arc::new(values)];
    for label in labels {
        let place = graph(replace(good_nodes(), "label", Some(label.clone())), good_edges());
        place.succeed(&["prepare", "p.toml", "--out", "prepared", "--quiet"]);
        let found = place.succeed(&["inspect", "prepared", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["manifest"]["labels"]["labelled"], 4, "{found}");
        // Splits are drawn among the labeled nodes.
        place.write("p.toml", GRAPH.replace("undirected", "split_fractions = [0.5, 0.25, 0.25]\nundirected"));
        place.parquet("nodes.parquet", replace(replace(good_nodes(), "split", None), "label", Some(label.clone())));
        place.succeed(&["prepare", "p.toml", "--out", "drawn", "--quiet"]);
        let found = place.succeed(&["inspect", "drawn", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        let splits = &found["manifest"]["splits"];
        let counts = ["train", "val", "test"].map(|split| splits[split].as_u64());
        assert_eq!(counts, [Some(2), Some(1), Some(1)], "{splits}");
        // A new node of an update.
        place.parquet(
            "new.parquet",
            vec![("node_id", ints(&[20])), ("features", rows(&[&[1.0, 0.0]])), ("label", label.slice(2, 1))],
        );
        place.succeed(&["update", "drawn", "--nodes", "new.parquet", "--quiet"]);
        let found = place.succeed(&["inspect", "drawn", "--json"]);
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(
            (&found["manifest"]["nodes"], &found["manifest"]["labels"]["labelled"]),
            (&7.into(), &4.into()),
            "{found}"
        );
    }
    let lists = ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(
        (0..6).map(|i| (i != 4).then_some(vec![Some(1), Some(0)])),
    );
    refused(
        &graph(replace(good_nodes(), "label", Some(Arc::new(lists))), good_edges()),
        &["label", "row 4", "use an empty list (or only 0)"],
    );
}

#[test]
fn inconsistent_nodes_and_edges_are_refused() {
    refused(
        &graph(good_nodes(), replace(good_edges(), "dst", Some(ints(&[11, 12, 99, 14, 15])))),
        &["edges.parquet", "99", "row 2"],
    );
    refused(
        &graph(replace(good_nodes(), "node_id", Some(ints(&[10, 11, 12, 13, 14, 10]))), good_edges()),
        &["10", "row 5"],
    );
    let place = graph(good_nodes(), good_edges());
    place.write("p.toml", GRAPH.replace("undirected", "self_loops = 'fail'\nundirected"));
    place.parquet("edges.parquet", replace(good_edges(), "dst", Some(ints(&[11, 12, 13, 13, 15]))));
    refused(&place, &["13", "row 3"]);
    place.write("p.toml", GRAPH.replace("undirected", "duplicates = 'fail'\nundirected"));
    place.parquet(
        "edges.parquet",
        replace(
            replace(good_edges(), "src", Some(ints(&[10, 11, 12, 12, 14]))),
            "dst",
            Some(ints(&[11, 12, 13, 13, 15])),
        ),
    );
    refused(&place, &["12", "13"]);
}

#[test]
fn labels_and_splits_out_of_range_are_refused() {
    let place = graph(good_nodes(), good_edges());
    place.write("p.toml", GRAPH.replace("undirected", "num_classes = 2\nundirected"));
    place.parquet("nodes.parquet", replace(good_nodes(), "label", Some(ints(&[0, 1, 0, 7, 0, 1]))));
    refused(&place, &["label", "7", "row 3"]);
    refused(&graph(replace(good_nodes(), "label", Some(ints(&[0, 1, -5, 1, 0, 1]))), good_edges()), &["label", "-5"]);
    let odd = words(&["train", "train", "val", "val", "test", "tset"]);
    refused(&graph(replace(good_nodes(), "split", Some(odd)), good_edges()), &["split", "tset", "row 5"]);
}

#[test]
fn features_of_varying_width_are_refused() {
    let odd = rows(&[&[1.0, 0.0], &[0.0, 1.0], &[1.0, 1.0, 3.0], &[0.5, 0.5], &[0.0, 0.0], &[2.0, 1.0]]);
    refused(&graph(replace(good_nodes(), "features", Some(odd)), good_edges()), &["features", "row 2"]);
    // Two files of one folder with different widths.
    let place = graph(good_nodes(), good_edges());
    std::fs::remove_file(place.path("nodes.parquet")).unwrap();
    let more = replace(
        replace(good_nodes(), "features", Some(rows(&[&[1.0, 0.0, 3.0][..]; 6]))),
        "node_id",
        Some(ints(&[20, 21, 22, 23, 24, 25])),
    );
    place.parquet("nodes.parquet/a.parquet", good_nodes());
    place.parquet("nodes.parquet/b.parquet", more);
    refused(&place, &["b.parquet", "features"]);
}

#[test]
fn dataset_of_another_version_or_input_is_refused_or_prepared_again() {
    let place = graph(good_nodes(), good_edges());
    place.succeed(&["prepare", "p.toml", "--out", "prepared", "--quiet"]);
    let manifest = std::fs::read_to_string(place.path("prepared/manifest.json")).unwrap();
    place.write("q.toml", "[graph]\ndataset = 'prepared'\n");
    place.succeed(&["run", "q.toml", "--dry-run"]);

    // `run` refuses a dataset of another version; `prepare` replaces it.
    let other = manifest.replacen("\"schema\": 1", "\"schema\": 7", 1);
    assert_ne!(other, manifest);
    place.write("prepared/manifest.json", other);
    place.fail(&["run", "q.toml", "--dry-run"], 3, &["prepared", "version 7"]);
    place.succeed(&["prepare", "p.toml", "--out", "prepared", "--quiet"]);
    assert_eq!(std::fs::read_to_string(place.path("prepared/manifest.json")).unwrap(), manifest);

    // The graph has changed since the dataset was prepared.
    place.parquet("edges.parquet", replace(good_edges(), "dst", Some(ints(&[12, 12, 13, 14, 15]))));
    place.succeed(&["prepare", "p.toml", "--out", "prepared", "--quiet"]);
    assert_ne!(std::fs::read_to_string(place.path("prepared/manifest.json")).unwrap(), manifest);

    // `prepare` does not write into a folder with other files.
    place.write("mine/letter.txt", "dear");
    place.fail(&["prepare", "p.toml", "--out", "mine"], 3, &["mine"]);
    assert_eq!(std::fs::read_dir(place.path("mine")).unwrap().count(), 1);
}

/// Asserts that training exits with 3 and one error line with `words`, and writes no results.
fn untrainable(place: &TestDir, words: &[&str]) {
    place.write("p.toml", format!("{GRAPH}[model]\nhidden = 4\n[train]\nepochs = 1\n"));
    let errors = place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], 3, words);
    assert_eq!(errors.len(), 1, "{errors:?}");
    for name in ["summary.json", "model.safetensors", "predictions.parquet"] {
        assert!(!place.path("run").join(name).exists(), "{words:?}: {name} was written");
    }
}

#[test]
fn graphs_without_training_data_are_refused() {
    let empty = words(&["val", "val", "val", "val", "test", "test"]);
    untrainable(&graph(replace(good_nodes(), "split", Some(empty)), good_edges()), &["train split", "split_fractions"]);
    let unlabeled = ints(&[0, -1, 0, 1, 0, 1]);
    untrainable(&graph(replace(good_nodes(), "label", Some(unlabeled)), good_edges()), &["node 11", "train", "label"]);
    untrainable(&graph(replace(good_nodes(), "features", None), good_edges()), &["features"]);
    untrainable(&graph(replace(good_nodes(), "label", None), good_edges()), &["labels"]);
    let place = graph(good_nodes(), good_edges());
    place.write("p.toml", format!("{GRAPH}[model]\nkind = 'rgcn'\nhidden = 4\n[train]\nepochs = 1\n"));
    place.fail(&["run", "p.toml", "--run-dir", "run", "--quiet"], 3, &["rgcn", "graph.columns.edge_type"]);
}
