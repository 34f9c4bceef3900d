//! A dump with a table for each type of nodes and edges, each with its own columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Float32Type, Int32Type};
use gnnflow_data::rng::{Key, Purpose};

use crate::common::{TestDir, assert_same_results, column, read};

const ITEMS: u64 = 60;
const TAGS: u64 = 20;
const USERS: u64 = 100;

/// Ids of items begin with 0, of tags with 1000, of users with 2000.
const FIRST: [(u64, i64); 3] = [(ITEMS, 0), (TAGS, 1000), (USERS, 2000)];

fn value(node: u64, i: u64) -> f32 {
    Key::new(3, Purpose::GenerateNodes).fold(node).normal(i) as f32 + (node % 3) as f32
}

fn lists(rows: u64, width: u64, from: u64) -> ArrayRef {
    let rows = (0..rows).map(|v| Some((0..width).map(move |i| Some(value(v, from + i)))));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn ids(count: u64, first: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(first..first + count as i64))
}

fn words(words: impl Iterator<Item = Option<&'static str>>) -> ArrayRef {
    Arc::new(words.collect::<StringArray>())
}

fn classes() -> impl Iterator<Item = Option<&'static str>> {
    (0..USERS).map(|v| Some(["calm", "fast", "wild"][v as usize % 3]))
}

fn splits() -> impl Iterator<Item = Option<&'static str>> {
    (0..USERS).map(|v| Some(["train", "train", "val", "test"][v as usize / 3 % 4]))
}

/// Edges from users to items of their class, and from items to tags.
fn edges() -> [Vec<(i64, i64)>; 2] {
    let buys = (0..USERS).flat_map(|v| (0..5).map(move |i| (2000 + v as i64, ((v * 7 + i * 3) % ITEMS) as i64)));
    let tagged = (0..ITEMS).flat_map(|v| (0..2).map(move |i| (v as i64, 1000 + ((v + 9 * i) % TAGS) as i64)));
    [buys.collect(), tagged.collect()]
}

fn ends(edges: &[(i64, i64)]) -> Vec<(&'static str, ArrayRef)> {
    let (src, dst): (Vec<i64>, Vec<i64>) = edges.iter().copied().unzip();
    vec![("src", Arc::new(Int64Array::from(src))), ("dst", Arc::new(Int64Array::from(dst)))]
}

/// Writes a table for each type.
fn by_type(place: &TestDir) {
    place.parquet("items.parquet", vec![("node_id", ids(ITEMS, 0)), ("x", lists(ITEMS, 5, 0))]);
    place.parquet("tags.parquet", vec![("node_id", ids(TAGS, 1000))]);
    let ages: ArrayRef = Arc::new(Float32Array::from_iter_values((0..USERS).map(|v| value(v, 10))));
    place.parquet(
        "users.parquet",
        vec![
            ("node_id", ids(USERS, 2000)),
            ("taste", lists(USERS, 3, 11)),
            ("label", words(classes())),
            ("age", ages),
            ("split", words(splits())),
        ],
    );
    let [buys, tagged] = edges();
    place.parquet("buys.parquet", ends(&buys));
    place.parquet("tagged.parquet", ends(&tagged));
}

/// Writes the same graph as one table of nodes, with padded features, and one of edges.
fn padded(place: &TestDir) {
    let features = |v: u64| {
        let (v, values) = match v {
            v if v < ITEMS => (v, 0..5),
            v if v < ITEMS + TAGS => (v, 0..0),
            v => (v - ITEMS - TAGS, 10..14),
        };
        // Items have the values 0 to 4 of a row, users 5 to 8.
        let left = if values.start == 10 { 5 } else { 0 };
        let length = values.end - values.start;
        Some((0..9).map(move |i| {
            Some(if (left..left + length).contains(&i) { value(v, values.start + i - left) } else { 0.0 })
        }))
    };
    let rows = (0..ITEMS + TAGS + USERS).map(features);
    let unlabeled = || std::iter::repeat_n(None, (ITEMS + TAGS) as usize);
    let all_ids: Vec<i64> = FIRST.iter().flat_map(|&(count, first)| first..first + count as i64).collect();
    let kinds = FIRST.iter().zip(["item", "tag", "user"]);
    place.parquet(
        "nodes.parquet",
        vec![
            ("node_id", Arc::new(Int64Array::from(all_ids))),
            ("features", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))),
            ("label", words(unlabeled().chain(classes()))),
            ("split", words(unlabeled().chain(splits()))),
            ("kind", words(kinds.flat_map(|((count, _), kind)| std::iter::repeat_n(Some(kind), *count as usize)))),
        ],
    );
    let all = edges();
    let kinds = all.iter().zip(["buys", "tagged"]);
    let kinds = kinds.flat_map(|(edges, kind)| std::iter::repeat_n(Some(kind), edges.len()));
    let columns = ends(&all.concat()).into_iter().chain([("etype", words(kinds))]);
    place.parquet("edges.parquet", columns.collect());
}

const BY_TYPE: &str = "[graph]\nnodes = { user = 'users.parquet', item = 'items.parquet', tag = 'tags.parquet' }\n\
                       edges = { tagged = 'tagged.parquet', buys = 'buys.parquet' }\nreverse_edges = true\n\
                       columns = { features = ['x', 'age', 'taste'] }\n";
const PADDED: &str = "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\nreverse_edges = true\n\
                      columns = { node_type = 'kind', edge_type = 'etype' }\n";
const REST: &str = "[partition]\nparts = 2\nmethod = 'random'\n[model]\nkind = 'rgcn'\nhidden = 16\n[train]\nepochs = 4\nbatch = 20\n\
                    [infer]\npredictions = true\nembeddings = true\n";

#[test]
fn tables_by_type_give_the_bits_of_one_table_with_padded_features() {
    let place = TestDir::new();
    by_type(&place);
    padded(&place);
    place.write("by_type.toml", format!("{BY_TYPE}{REST}"));
    place.write("padded.toml", format!("{PADDED}{REST}"));
    for (file, run) in [("by_type.toml", "one"), ("padded.toml", "other")] {
        place.succeed(&["run", file, "--run-dir", run, "--quiet"]);
    }
    assert_same_results(&place, "one", "other");
    place.succeed(&["run", "by_type.toml", "--run-dir", "two", "--quiet", "--processes", "2"]);
    assert_same_results(&place, "one", "two");
    for schedule in ["full-graph", "tensor-parallel", "partition-parallel"] {
        let set = format!("train.schedule={schedule}");
        let runs = ["one", "other"].map(|run| format!("{schedule}-{run}"));
        for (file, run) in ["by_type.toml", "padded.toml"].into_iter().zip(&runs) {
            place.succeed(&["run", file, "--run-dir", run, "--quiet", "--unset", "train.batch", "--set", &set]);
        }
        assert_same_results(&place, &runs[0], &runs[1]);
    }
}

#[test]
fn nodes_of_any_type_are_removed() {
    let place = TestDir::new();
    by_type(&place);
    padded(&place);
    let gone: ArrayRef = Arc::new(Int64Array::from(vec![3, 1001, 2005, 2006]));
    place.parquet("gone.parquet", vec![("node_id", gone)]);
    for (name, graph) in [("one", BY_TYPE), ("other", PADDED)] {
        let file = format!("{name}.toml");
        place.write(&file, format!("{graph}{REST}").replace("reverse_edges = true\n", ""));
        place.succeed(&["run", &file, "--run-dir", name, "--quiet", "--set", &format!("partition.out={name}-dataset")]);
        let said = place.succeed(&["update", &format!("{name}-dataset"), "--remove-nodes", "gone.parquet"]);
        assert!(said.contains("176 nodes (+0 −4)"), "{said}");
        place.succeed(&["infer", name, "--out", &format!("{name}-results"), "--quiet"]);
    }
    assert_same_results(&place, "one-results", "other-results");
    assert_eq!(read(&place, "one-results/predictions.parquet").num_rows(), 176);
}

#[test]
fn features_are_standardized_over_the_nodes_of_their_type() {
    let place = TestDir::new();
    by_type(&place);
    place.write("p.toml", BY_TYPE.replace("[graph]\n", "[graph]\nnormalize_features = 'standard'\n"));
    place.succeed(&["prepare", "p.toml", "--out", "dataset", "--quiet"]);
    place.succeed(&["export", "dataset", "--out", "back", "--quiet"]);
    let nodes = read(&place, "back/nodes.parquet");
    let (ids, types) = (column::<Int64Array>(&nodes, "node_id"), nodes.column_by_name("node_type").unwrap());
    let types = arrow::compute::cast(types, &arrow::datatypes::DataType::Utf8).unwrap();
    let rows = nodes.column_by_name("features").unwrap();
    let row = |v: usize| -> Vec<f32> {
        let row = match rows.as_fixed_size_list_opt() {
            Some(rows) => rows.value(v),
            None => rows.as_list::<i32>().value(v),
        };
        row.as_primitive::<Float32Type>().values().to_vec()
    };
    let all: Vec<(&str, Vec<f32>)> = (0..ids.len()).map(|v| (types.as_string::<i32>().value(v), row(v))).collect();
    for (name, block) in [("item", 0..5), ("tag", 0..0), ("user", 5..9)] {
        let of_type: Vec<&Vec<f32>> = all.iter().filter(|(kind, _)| *kind == name).map(|(_, row)| row).collect();
        for i in 0..9 {
            let values: Vec<f32> = of_type.iter().map(|row| row[i]).collect();
            let count = values.len() as f32;
            let mean = values.iter().sum::<f32>() / count;
            let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
            let wanted = if block.contains(&i) { 1.0 } else { 0.0 };
            assert!(mean.abs() < 1e-5 && (variance - wanted).abs() < 1e-4, "{name} {i}: {mean} {variance}");
            assert!(block.contains(&i) || values.iter().all(|x| *x == 0.0), "{name} {i}");
        }
    }
}

#[test]
fn mistakes_in_tables_by_type_are_named() {
    let place = TestDir::new();
    by_type(&place);
    let refused = |from: &str, to: &str, code: i32, words: &[&str]| {
        assert!(BY_TYPE.contains(from));
        place.write("p.toml", BY_TYPE.replace(from, to));
        place.fail(&["prepare", "p.toml", "--out", "dataset"], code, words);
    };
    let columns = "features = ['x', 'age', 'taste']";
    refused(columns, "node_type = 'kind'", 2, &["graph.columns.node_type", "graph.nodes has a table for each type"]);
    refused(columns, "edge_type = 'kind'", 2, &["graph.columns.edge_type", "graph.edges has a table for each type"]);
    refused(columns, "features = ['x', 'height']", 3, &["items.parquet", "no column \"height\"", "\"x\""]);
    refused(columns, "label = 'class'", 3, &["items.parquet", "no column \"class\" (graph.columns.label)"]);
    refused("tag = 'tags.parquet'", "tag = 'users.parquet'", 3, &["users.parquet", "2000"]);
    let edges = "edges = { tagged = 'tagged.parquet', buys = 'buys.parquet' }";
    refused(edges, "edges = {}", 2, &["graph.edges: it is empty; give the files of at least one type"]);
    refused("tag = 'tags.parquet'", "tag = 3", 2, &["graph.nodes.tag", "expected a string or a list of strings"]);
    refused("tag = 'tags.parquet'", "tag = 'nothing.parquet'", 3, &["nothing.parquet", "no such file"]);
    // Nodes without a list of labels cannot be told from nodes with an empty one.
    let flags = (0..TAGS).map(|v| Some([Some(i32::from(v % 2 == 0)), Some(1)]));
    let flags = ListArray::from_iter_primitive::<Int32Type, _, _>(flags);
    place.parquet("tags.parquet", vec![("node_id", ids(TAGS, 1000)), ("flags", Arc::new(flags))]);
    let to = "columns = { features = ['x'], label = 'flags' }\nsplit_fractions = [0.5, 0.2, 0.2]";
    refused(
        "columns = { features = ['x', 'age', 'taste'] }",
        to,
        2,
        &["graph.split_fractions", "some types of nodes have no labels; add a split column"],
    );
    // All files of a type have the same columns.
    let lists = "item = ['items.parquet', 'tags.parquet']";
    refused("item = 'items.parquet', tag = 'tags.parquet'", lists, 3, &["tags.parquet", "no column \"x\""]);
}
