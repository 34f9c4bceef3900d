//! `gnnflow update`: equality with a preparation of the changed dump, and refused updates.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::TestDir;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Int64Type};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

const PIPELINE: &str = "[graph]\nnodes = 'dump/nodes.parquet'\nedges = 'dump/edges.parquet'\nundirected = true\n\
                        [partition]\nparts = 5\nmethod = 'ldg'\nhalo = 'features'\n";

fn read(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

fn write(path: &Path, batch: &RecordBatch) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

fn rows(batch: &RecordBatch, rows: impl IntoIterator<Item = usize>) -> RecordBatch {
    let rows: Int64Array = rows.into_iter().map(|row| row as i64).collect();
    take_record_batch(batch, &rows).unwrap()
}

/// Returns the ends of all edges as text.
fn ends(batch: &RecordBatch) -> Vec<(String, String)> {
    let column = |name: &str| cast(batch.column_by_name(name).unwrap(), &DataType::Utf8).unwrap();
    let (src, dst) = (column("src"), column("dst"));
    let (src, dst) = (src.as_string::<i32>(), dst.as_string::<i32>());
    (0..batch.num_rows()).map(|row| (src.value(row).to_string(), dst.value(row).to_string())).collect()
}

/// Prepares a dataset of 4,000 nodes and 60,000 edge rows in `dataset`, from `dump`.
fn place() -> TestDir {
    let place = TestDir::new();
    place.succeed(&[
        "generate",
        "planted",
        "--out",
        "dump",
        "--nodes",
        "4000",
        "--edges",
        "60000",
        "--features",
        "8",
        "--classes",
        "5",
        "--seed",
        "3",
        "--quiet",
    ]);
    place.write("p.toml", PIPELINE);
    place.succeed(&["prepare", "p.toml", "--out", "dataset", "--quiet"]);
    place
}

/// Reads all Arrow files of a dataset.
fn arrow_files(dataset: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for part in 0..5 {
        for name in ["topology.arrow", "nodes.arrow", "features.arrow", "halo.arrow"] {
            let path = Path::new(&format!("part-{part:05}")).join(name);
            found.insert(path.clone(), std::fs::read(dataset.join(&path)).unwrap());
        }
    }
    found
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn updates_of_one_edge_to_one_percent_equal_a_rebuild() {
    let place = place();
    let (nodes, edges) = (read(&place.path("dump/nodes.parquet")), read(&place.path("dump/edges.parquet")));
    let all = ends(&edges);
    let ids = nodes.column_by_name("node_id").unwrap().clone();
    let n = nodes.num_rows();
    for (name, changes) in [("one", 1usize), ("thousandth", 60), ("hundredth", 600)] {
        // Half of the changes remove edges, half add them. All updates but the single edge also add nodes.
        let removed_rows: Vec<usize> = (0..changes.div_ceil(2)).map(|i| (i * 97 + 5) % edges.num_rows()).collect();
        let new = if changes > 1 { changes / 20 } else { 0 };
        let ints = ids.data_type() == &DataType::Int64;
        let largest = if ints { ids.as_primitive::<Int64Type>().values().iter().copied().max().unwrap() } else { 0 };
        let new_ids: ArrayRef = match ints {
            true => Arc::new((1..=new as i64).map(|i| largest + i).collect::<Int64Array>()),
            false => {
                cast(&StringArray::from_iter_values((0..new).map(|i| format!("new-{i}"))), ids.data_type()).unwrap()
            }
        };
        let both = arrow::compute::concat(&[&ids, &new_ids]).unwrap();
        let end = |i: usize, by: usize| (if i < new { n + i } else { i * by + 11 }) % (n + new);
        let take = |by: usize| -> ArrayRef {
            let picked: Int64Array =
                (0..changes / 2).map(|i| end(if by == 31 { i } else { i + new }, by) as i64).collect();
            arrow::compute::take(&both, &picked, None).unwrap()
        };
        let added = RecordBatch::try_from_iter([("src", take(31)), ("dst", take(57))]).unwrap();
        let mut columns = rows(&nodes, (0..new).map(|i| i * 3)).columns().to_vec();
        columns[nodes.schema().index_of("node_id").unwrap()] = new_ids;
        let added_nodes = RecordBatch::try_new(nodes.schema(), columns).unwrap();
        let removed = rows(&edges, removed_rows.iter().copied());
        write(&place.path(&format!("{name}/remove.parquet")), &removed);
        let mut args: Vec<String> = vec!["update".into(), "dataset".into(), "--json".into(), "--quiet".into()];
        args.extend(["--out".into(), format!("{name}/dataset")]);
        args.extend(["--remove".into(), format!("{name}/remove.parquet")]);
        if added.num_rows() > 0 {
            write(&place.path(&format!("{name}/edges.parquet")), &added);
            args.extend(["--edges".into(), format!("{name}/edges.parquet")]);
        }
        if new > 0 {
            write(&place.path(&format!("{name}/nodes.parquet")), &added_nodes);
            args.extend(["--nodes".into(), format!("{name}/nodes.parquet")]);
        }
        let report = json(&place.succeed(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(report["counts"]["nodes_added"], new, "{name}");

        // The changed dump, with every node in its partition of the updated dataset.
        let names: Vec<(String, String)> = ends(&removed);
        let same = |edge: &(String, String)| {
            names.iter().any(|(a, b)| (a, b) == (&edge.0, &edge.1) || (b, a) == (&edge.0, &edge.1))
        };
        let remaining = rows(&edges, (0..all.len()).filter(|&row| !same(&all[row])));
        let remaining = RecordBatch::try_from_iter(
            ["src", "dst"].map(|name| (name, remaining.column_by_name(name).unwrap().clone())),
        )
        .unwrap();
        let cast_to = |batch: &RecordBatch| {
            let column = |name: &str| cast(batch.column_by_name(name).unwrap(), ids.data_type()).unwrap();
            RecordBatch::try_from_iter(["src", "dst"].map(|name| (name, column(name)))).unwrap()
        };
        let (remaining, added) = (cast_to(&remaining), cast_to(&added));
        write(
            &place.path("changed/edges.parquet"),
            &concat_batches(&remaining.schema(), &[remaining.clone(), added]).unwrap(),
        );
        write(
            &place.path("changed/nodes.parquet"),
            &concat_batches(&nodes.schema(), &[nodes.clone(), added_nodes]).unwrap(),
        );
        let export = format!("{name}/export");
        place.succeed(&["export", &format!("{name}/dataset"), "--out", &export, "--quiet"]);
        place.write(
            "rebuild.toml",
            PIPELINE.replace("dump/", "changed/").replace(
                "method = 'ldg'",
                &format!("method = 'file'\nfile = '{export}/nodes.parquet'\nfile_columns = {{ part = 'partition' }}"),
            ),
        );
        let rebuilt = format!("{name}/rebuilt");
        place.succeed(&["prepare", "rebuild.toml", "--out", &rebuilt, "--quiet"]);
        for ((file, found), expected) in
            arrow_files(&place.path(&format!("{name}/dataset"))).iter().zip(arrow_files(&place.path(&rebuilt)).values())
        {
            assert!(found == expected, "{name}: {}", file.display());
        }
        // The report counts the affected nodes. A single edge affects few nodes.
        let affected = read(&place.path(&format!("{name}/dataset/affected.parquet")));
        assert_eq!(report["affected"], affected.num_rows());
        assert!(
            affected.num_rows() > 0 && (changes > 1 || affected.num_rows() < 1000),
            "{name}: {}",
            affected.num_rows()
        );
    }
}

#[test]
fn dataset_updated_in_place_in_batches_can_be_trained_on() {
    let place = place();
    let edges = read(&place.path("dump/edges.parquet"));
    write(&place.path("changes/1/remove.parquet"), &rows(&edges, [7]));
    write(&place.path("changes/2/edges.parquet"), &rows(&edges, [7]));
    write(&place.path("changes/3/remove.parquet"), &rows(&edges, [8]));
    let before = json(&place.succeed(&["inspect", "dataset", "--json"]));
    let report = place.succeed(&["update", "dataset", "--batches", "changes"]);
    assert!(report.contains("4000 nodes (+0 −0)") && report.contains("affected.parquet"), "{report}");
    let after = json(&place.succeed(&["inspect", "dataset", "--json"]));
    assert_ne!(before.to_string(), after.to_string());
    let manifest = json(&std::fs::read_to_string(place.path("dataset/manifest.json")).unwrap());
    assert_eq!(manifest["updates"][0]["batches"].as_array().unwrap().len(), 3);
    assert!(place.path("dataset/partition.html").exists());
    // The edge has already been removed.
    let errors = place.fail(
        &["update", "dataset", "--remove", "changes/3/remove.parquet"],
        3,
        &["changes/3/remove.parquet, column \"src\", row 0", "there is no edge", "--missing ignore"],
    );
    assert_eq!(errors.len(), 1);
    place.succeed(&["update", "dataset", "--remove", "changes/3/remove.parquet", "--missing", "ignore", "--quiet"]);
    // The changes are not in the files of the pipeline.
    place.write("p.toml", PIPELINE.replace("[partition]\n", "[partition]\nout = 'dataset'\n"));
    let before = std::fs::read(place.path("dataset/manifest.json")).unwrap();
    for command in [&["prepare", "p.toml"][..], &["run", "p.toml"], &["run", "p.toml", "--dry-run"]] {
        for more in [&[][..], &["--set", "partition.parts=3"]] {
            let words = ["dataset: the dataset was updated after it was prepared", "graph.dataset", "partition.out"];
            place.fail(&[command, more].concat(), 3, &words);
        }
    }
    assert!(std::fs::read(place.path("dataset/manifest.json")).unwrap() == before);
    // Not even if its manifest cannot be read.
    place.write("dataset/manifest.json", &before[..before.len() - 9]);
    place.fail(&["prepare", "p.toml"], 3, &["dataset: the dataset was updated"]);
    place.write("dataset/manifest.json", &before);
    place.write("t.toml", "[graph]\ndataset = 'dataset'\n[model]\nkind = 'sage'\nlayers = 2\nhidden = 8\n[train]\nepochs = 1\nfanouts = [4, 4]\n");
    let ended = place.run(&["run", "t.toml", "--quiet", "--run-dir", "run"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn invalid_updates_are_reported_in_one_line() {
    let place = place();
    let nodes = read(&place.path("dump/nodes.parquet"));
    write(&place.path("again.parquet"), &rows(&nodes, [0]));
    let errors = place.fail(&["update", "dataset", "--nodes", "again.parquet"], 3, &["is already in the dataset"]);
    assert_eq!(errors.len(), 1);
    place.fail(&["update", "dataset", "--edges", "no.parquet"], 3, &["no.parquet: there is no such file", "--edges"]);
    place.fail(&["update", "dataset", "--values", "no.parquet"], 3, &["no.parquet: there is no such file", "--values"]);
    let no_file = &["no.parquet: there is no such file", "--remove-nodes"];
    place.fail(&["update", "dataset", "--remove-nodes", "no.parquet"], 3, no_file);
    place.fail(&["update", "dump", "--nodes", "again.parquet"], 3, &["manifest.json"]);
    place.fail(
        &["update", "dataset", "--nodes", "again.parquet", "--out", "dump"],
        3,
        &["is not a prepared dataset; choose another folder"],
    );
    place.fail(&["update", "dataset", "--batches", "none"], 4, &["none"]);
    // Nothing is read.
    place.fail(&["update", "dataset"], 2, &["error: nothing to do; give --edges"]);
    std::fs::create_dir_all(place.path("batches/1")).unwrap();
    place.fail(&["update", "dataset", "--batches", "batches"], 3, &["batches/1: the batch has none of nodes.parquet"]);
    std::fs::copy(place.path("again.parquet"), place.path("batches/1/node.parquet")).unwrap();
    place.fail(&["update", "dataset", "--batches", "batches"], 3, &["batches/1/node.parquet: a batch has the files"]);
    place.fail(&["update", "dataset", "--batches", "batches/1"], 3, &["node.parquet: a batch is a folder"]);
}
