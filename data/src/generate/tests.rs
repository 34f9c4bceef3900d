//! Writes, reads and checks the graphs of both generators.

use std::fs::File;
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;
use crate::progress::Silent;

fn read(path: &Path) -> Vec<RecordBatch> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
    }
    let batches = |file| ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap();
    files.into_iter().flat_map(batches).map(|batch| batch.unwrap()).collect()
}

fn ints(batches: &[RecordBatch], column: &str) -> Vec<i64> {
    let column = |batch: &RecordBatch| batch[column].as_primitive::<Int64Type>().values().to_vec();
    batches.iter().flat_map(column).collect()
}

fn degrees(nodes: u64, edges: &[RecordBatch]) -> Vec<u64> {
    let mut degrees = vec![0; nodes as usize];
    ["src", "dst"].iter().for_each(|end| ints(edges, end).into_iter().for_each(|v| degrees[v as usize] += 1));
    degrees
}

fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn bytes_depend_on_the_seed_but_not_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    let planted = Planted { nodes: 40_000, edges: 600_000, features: 130, ..Planted::default() };
    let rmat = Rmat { scale: 15, edge_factor: 20, features: 130, classes: 3, ..Rmat::default() };
    let bytes = |out: &str| {
        let out = folder.path().join(out);
        ["nodes.parquet", "edges.parquet"].map(|name| std::fs::read(out.join(name)).unwrap())
    };
    for threads in [1, 2, 5] {
        on_threads(threads, || {
            planted.write(&folder.path().join(format!("p{threads}")), &Silent).unwrap();
            rmat.write(&folder.path().join(format!("r{threads}")), &Silent).unwrap();
        });
        assert!(bytes(&format!("p{threads}")) == bytes("p1"), "planted on {threads} threads");
        assert!(bytes(&format!("r{threads}")) == bytes("r1"), "rmat on {threads} threads");
    }
    Planted { seed: 2, ..planted }.write(&folder.path().join("p"), &Silent).unwrap();
    let (first, second) = (bytes("p1"), bytes("p"));
    assert!(first[0] != second[0] && first[1] != second[1]);
}

#[test]
fn rows_do_not_depend_on_the_number_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let (one, many) = (folder.path().join("one"), folder.path().join("many"));
    let graph = Planted { nodes: 5000, edges: 20_000, features: 3, ..Planted::default() };
    graph.write(&one, &Silent).unwrap();
    let split = Planted { files: 7, ..graph.clone() };
    let dump = split.write(&many, &Silent).unwrap();
    assert_eq!(std::fs::read_dir(&dump.edges_path).unwrap().count(), 7);
    for (name, columns) in [("nodes.parquet", &["node_id", "label"]), ("edges.parquet", &["src", "dst"])] {
        for column in columns {
            assert_eq!(ints(&read(&one.join(name)), column), ints(&read(&many.join(name)), column));
        }
    }
    assert!(split.is_written(&many) && !graph.is_written(&many) && !split.is_written(&one));
}

#[test]
fn planted_has_the_requested_counts_homophily_and_splits() {
    let folder = tempfile::tempdir().unwrap();
    let graph = Planted { nodes: 20_003, edges: 200_000, features: 5, homophily: 0.7, ..Planted::default() };
    let dump = graph.write(folder.path(), &Silent).unwrap();
    let (nodes, edges) = (read(&dump.nodes_path), read(&dump.edges_path));
    assert_eq!(ints(&nodes, "node_id"), (0..20_003).collect::<Vec<_>>());
    let labels = ints(&nodes, "label");
    for class in 0..10 {
        let size = labels.iter().filter(|&&label| label == class).count();
        assert!((2000..=2001).contains(&size), "class {class} has {size} nodes");
        let low = labels[..10_000].iter().filter(|&&label| label == class).count();
        assert!((870..1130).contains(&low), "class {class}: {low} of its nodes have small ids");
    }
    let (src, dst) = (ints(&edges, "src"), ints(&edges, "dst"));
    assert_eq!(src.len(), 200_000);
    assert!(src.iter().zip(&dst).all(|(a, b)| a != b), "self-loops");
    let same = src.iter().zip(&dst).filter(|&(&a, &b)| labels[a as usize] == labels[b as usize]).count() as f64;
    assert!((same / 2e5 - 0.7).abs() < 0.005, "homophily {}", same / 2e5);
    let distinct: std::collections::HashSet<_> = src.iter().zip(&dst).map(|(a, b)| (a.min(b), a.max(b))).collect();
    assert!(distinct.len() > 190_000, "{} distinct edges", distinct.len());

    let splits: Vec<String> =
        nodes.iter().flat_map(|b| b["split"].as_string::<i32>().iter().map(|s| s.unwrap().to_owned())).collect();
    for (name, want) in [("train", 2000), ("val", 2001), ("test", 16_002), ("none", 0)] {
        assert_eq!(splits.iter().filter(|split| *split == name).count(), want, "{name}");
    }
}

#[test]
fn planted_degrees_are_at_least_one_and_follow_the_power_law() {
    let folder = tempfile::tempdir().unwrap();
    for gamma in [2.3, 3.0] {
        let graph =
            Planted { nodes: 100_000, edges: 1_000_000, features: 0, degree_exponent: gamma, ..Planted::default() };
        let dump = graph.write(folder.path(), &Silent).unwrap();
        let mut degrees = degrees(graph.nodes, &read(&dump.edges_path));
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        assert!(degrees[degrees.len() - 1] >= 1, "isolated nodes");
        let cap = (2.0 * graph.edges as f64).sqrt();
        assert!((degrees[0] as f64) < 1.3 * cap, "the largest degree is {}", degrees[0]);
        // Share of nodes above x falls as x^(1 - gamma): compare two points inside the tail.
        let above = |x: u64| degrees.partition_point(|&degree| degree > x) as f64;
        let slope = (above(60) / above(180)).ln() / 3f64.ln() + 1.0;
        assert!((slope - gamma).abs() < 0.35, "expected an exponent of {gamma}, found {slope}");
    }
}

#[test]
fn planted_features_have_their_class_means() {
    let folder = tempfile::tempdir().unwrap();
    let graph = Planted { nodes: 20_000, edges: 20_000, features: 33, classes: 4, ..Planted::default() };
    let dump = graph.write(folder.path(), &Silent).unwrap();
    let (mut sums, mut squares, mut rows) = (vec![0f64; 4 * 33], 0f64, 0f64);
    for batch in read(&dump.nodes_path) {
        let labels = batch["label"].as_primitive::<Int64Type>();
        let lists = batch["features"].as_fixed_size_list();
        let values = lists.values().as_primitive::<Float32Type>().values();
        for (row, label) in labels.values().iter().enumerate() {
            for (j, &x) in values[row * 33..][..33].iter().enumerate() {
                sums[*label as usize * 33 + j] += f64::from(x);
                squares += f64::from(x).powi(2);
            }
            rows += 1.0;
        }
    }
    for class in 0..4 {
        let norm = sums[class * 33..][..33].iter().map(|sum| (sum / 5000.0).powi(2)).sum::<f64>().sqrt();
        assert!((norm - graph.signal).abs() < 0.06, "mean of class {class} is {norm} from the origin");
    }
    // E|x|^2 = features + signal^2.
    assert!((squares / rows - (33.0 + graph.signal.powi(2))).abs() < 0.3);
}

#[test]
fn rmat_has_skewed_degrees_and_permuted_ids() {
    let folder = tempfile::tempdir().unwrap();
    let dump = Rmat { scale: 14, ..Rmat::default() }.write(folder.path(), &Silent).unwrap();
    assert_eq!((dump.nodes, dump.edges), (1 << 14, 16 << 14));
    assert_eq!(read(&dump.nodes_path)[0].num_columns(), 1);
    let degrees = degrees(dump.nodes, &read(&dump.edges_path));
    let max = *degrees.iter().max().unwrap();
    assert!(max > 1000, "the largest degree is {max}, the mean 32");
    let low: u64 = degrees[..1 << 13].iter().sum();
    let share = low as f64 / (2.0 * dump.edges as f64);
    assert!((share - 0.5).abs() < 0.1, "the lower half of the ids has {share} of all ends");
}

#[test]
fn tiny_graphs_have_all_edges() {
    let folder = tempfile::tempdir().unwrap();
    for (nodes, edges, classes, homophily) in
        [(2, 2, 1, 1.0), (2, 3, 2, 1.0), (3, 3, 2, 0.0), (5, 9, 5, 1.0), (7, 7, 1, 0.0)]
    {
        let graph = Planted { nodes, edges, classes, homophily, files: 3, features: 1, ..Planted::default() };
        let dump = graph.write(folder.path(), &Silent).unwrap();
        let edges_read = read(&dump.edges_path);
        assert_eq!(ints(&edges_read, "src").len() as u64, edges);
        assert!(degrees(nodes, &edges_read).iter().all(|&degree| degree > 0));
        assert!(ints(&edges_read, "src").iter().zip(ints(&edges_read, "dst")).all(|(&a, b)| a != b));
    }
    Rmat { scale: 1, edges: Some(0), ..Rmat::default() }.write(folder.path(), &Silent).unwrap();
}

#[test]
fn new_dump_replaces_the_old_one_without_remains() {
    let folder = tempfile::tempdir().unwrap();
    for files in [1, 3, 1] {
        Planted { nodes: 100, edges: 200, files, ..Planted::default() }.write(folder.path(), &Silent).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["edges.parquet", "nodes.parquet"]);
    }
}

#[test]
fn setting_out_of_range_is_refused_by_name() {
    let default = Planted::default();
    for (key, graph) in [
        ("nodes", Planted { nodes: 1, ..default.clone() }),
        ("edges", Planted { edges: 9_999, ..default.clone() }),
        ("classes", Planted { classes: 0, ..default.clone() }),
        ("homophily", Planted { homophily: f64::NAN, ..default.clone() }),
        ("degree_exponent", Planted { degree_exponent: 2.0, ..default.clone() }),
        ("signal", Planted { signal: -1.0, ..default.clone() }),
        ("split", Planted { split: [0.5, 0.5, 0.5], ..default.clone() }),
        ("files", Planted { files: 0, ..default.clone() }),
    ] {
        let message = graph.check().unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
    for (key, graph) in [("scale", Rmat { scale: 32, ..Rmat::default() }), ("a", Rmat { a: 1.5, ..Rmat::default() })] {
        let message = graph.check().unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}

#[test]
fn failed_write_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let error = Planted { nodes: 100, edges: 200, ..Planted::default() }.write(&file, &Silent).unwrap_err();
    assert_eq!(error.fault(), crate::Fault::Machine);
    assert!(error.to_string().contains("file"), "{error}");
    let error = Planted { nodes: 100, edges: 20, ..Planted::default() }.write(&folder.path().join("out"), &Silent);
    assert_eq!(error.unwrap_err().fault(), crate::Fault::Usage);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
