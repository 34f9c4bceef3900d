//! `infer.parts`: tables as folders with a file for each partition.

use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::common::changes::{Changes, Counts, update};
use crate::common::{TestDir, kill, planted, read, summary};

const PARTS: [&str; 2] = ["--set", "infer.parts=true"];

/// Trains in the run folder `run`.
fn train(place: &TestDir, more: &[&str]) {
    planted(place, "p.toml", "[model]\n[train]\nepochs = 2\n");
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], more].concat());
}

fn files(place: &TestDir, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(folder)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Reads a table in four parts. Its folder must have no other files.
fn rows(place: &TestDir, table: &str) -> RecordBatch {
    let names = files(place, table);
    let parts: Vec<String> = (0..4).map(|part| format!("part-0000{part}.parquet")).collect();
    assert_eq!(names, [&["_SUCCESS".to_owned()], &parts[..]].concat(), "{table}");
    let parts: Vec<RecordBatch> = parts.iter().map(|name| read(place, &format!("{table}/{name}"))).collect();
    concat_batches(&parts[0].schema(), &parts).unwrap()
}

#[test]
fn rows_are_those_of_one_file_for_1_2_4_processes() {
    for task in ["node-classification", "link-prediction"] {
        let place = TestDir::new();
        train(&place, &["--set", &format!("train.task={task}")]);
        let mut found = Vec::new();
        for processes in ["1", "2", "4"] {
            let out = format!("out-{processes}");
            place
                .succeed(&[&["infer", "run", "--out", &out, "--processes", processes, "--quiet"], &PARTS[..]].concat());
            for table in ["predictions.parquet", "embeddings.parquet"] {
                let table = |folder: &str| format!("{folder}/{table}");
                assert!(rows(&place, &table(&out)) == read(&place, &table("run")), "{task}, {processes} processes");
            }
            let hidden = files(&place, &out).into_iter().filter(|name| name.ends_with(".new")).count();
            assert_eq!(hidden, 0, "{task}, {processes} processes");
            let part = std::fs::read(place.path(&out).join("predictions.parquet/part-00002.parquet")).unwrap();
            found.push((part, summary(&place, &out)["predictions_sha256"].clone()));
        }
        assert!(found[0] == found[1] && found[0] == found[2], "{task}");
    }
}

#[test]
fn files_and_parts_replace_each_other() {
    let place = TestDir::new();
    train(&place, &[]);
    // A killed process has left parts of another dataset.
    let left = place.write("out/.predictions.parquet.new/part-00009.parquet", "");
    place.write("out/.predictions.parquet.new/.worker-0", "");
    let infer = |more: &[&str]| place.succeed(&[&["infer", "run", "--out", "out", "--quiet"], more].concat());
    for _ in 0..2 {
        infer(&[&PARTS[..], &["--processes", "2"]].concat());
        assert!(rows(&place, "out/predictions.parquet") == read(&place, "run/predictions.parquet"));
        assert!(!left.exists());
        infer(&[]);
        assert!(read(&place, "out/predictions.parquet") == read(&place, "run/predictions.parquet"));
    }
    infer(&PARTS);
    // A process was killed while it replaced a table where the file system cannot exchange names.
    let table = place.path("out/predictions.parquet");
    let former = place.path("out/.predictions.parquet.old");
    std::fs::rename(&table, &former).unwrap();
    infer(&[]);
    assert!(table.is_file() && !former.exists());
    infer(&PARTS);
    infer(&["--set", "infer.predictions=false"]);
    assert!(!place.path("out/predictions.parquet").exists());
    // A run keeps the tables of an earlier one, and a resumed run replaces its own.
    let run = |folder: &str, more: &[&str]| {
        place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", folder], more].concat());
    };
    run("whole", &["--set", "train.epochs=3"]);
    run("run", &PARTS);
    run("run", &[&PARTS[..], &["--resume", "--set", "train.epochs=3"]].concat());
    assert!(rows(&place, "run/predictions.parquet") == read(&place, "whole/predictions.parquet"));
    run("run", &[]);
    assert!(rows(&place, "run/earlier/2/predictions.parquet") == read(&place, "whole/predictions.parquet"));
}

#[test]
fn killed_writers_leave_the_former_table() {
    let place = TestDir::new();
    train(&place, &[]);
    let infer = |more: &[&'static str]| [&["infer", "run", "--out", "out", "--quiet"], &PARTS[..], more].concat();
    place.succeed(&infer(&[]));
    let scores = ["--set", "infer.scores=true"];
    place.succeed(&[&["infer", "run", "--out", "full", "--quiet"], &scores[..]].concat());
    let [former, new] = ["run", "full"].map(|folder| read(&place, &format!("{folder}/predictions.parquet")));
    let (mut replaced, mut unfinished) = (false, 0);
    let written = place.path("out/.predictions.parquet.new");
    for round in 0..12 {
        let mut child = place.command(&infer(&scores)).spawn().unwrap();
        // When it begins to write, and some time later.
        while !written.exists() && child.try_wait().unwrap().is_none() {}
        std::thread::sleep(Duration::from_micros(300 * round));
        kill(child.id());
        child.wait().unwrap();
        let found = rows(&place, "out/predictions.parquet");
        replaced |= found == new;
        assert!(&found == if replaced { &new } else { &former }, "round {round}");
        unfinished += u32::from(!replaced);
        // The next process would remove it, but only after it has computed.
        let _ = std::fs::remove_dir_all(&written);
    }
    assert!(unfinished > 0, "all were killed too late");
    place.succeed(&infer(&scores));
    assert!(rows(&place, "out/predictions.parquet") == new);
}

#[test]
fn row_groups_have_at_most_the_given_number_of_rows() {
    let place = TestDir::new();
    train(&place, &[]);
    let small = ["--set", "infer.row_group_size=100"];
    place.succeed(&[&["infer", "run", "--out", "file", "--quiet"], &small[..]].concat());
    place.succeed(&[&["infer", "run", "--out", "parts", "--quiet"], &small[..], &PARTS].concat());
    let groups = |file: &str| -> Vec<i64> {
        let file = std::fs::File::open(place.path(file)).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect()
    };
    assert_eq!(groups("file/predictions.parquet"), [100; 15]);
    assert_eq!(groups("file/embeddings.parquet"), [100; 15]);
    // Learned rows have one file.
    let learned = [
        "--set",
        "graph.generate.features=0",
        "--set",
        "graph.generate.out=bare",
        "--set",
        "model.embedding.dim=8",
        "--set",
        "partition.out=other",
    ];
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "learned"], &small[..], &learned].concat());
    assert_eq!(groups("learned/node_embeddings.parquet"), [100; 15]);
    let first = groups("parts/predictions.parquet/part-00000.parquet");
    assert!(first.len() >= 3 && first[..first.len() - 1].iter().all(|&rows| rows == 100), "{first:?}");
    for bad in ["0", "-1", "'many'"] {
        let set = format!("infer.row_group_size={bad}");
        place.fail(&["infer", "run", "--out", "bad", "--quiet", "--set", &set], 2, &["infer.row_group_size"]);
    }
    place.fail(&["infer", "run", "--out", "bad", "--quiet", "--set", "infer.parts=4"], 2, &["infer.parts", "4"]);
}

#[test]
fn changes_of_a_refresh_have_parts() {
    let place = TestDir::new();
    train(&place, &[]);
    place.succeed(&["prepare", "p.toml", "--out", "second", "--quiet"]);
    let counts = Counts { removed_edges: 2, added_edges: 4, new_nodes: 2, new_values: 0, removed_nodes: 2 };
    Changes::new(&place, 4).write(&place, "changes", counts);
    for (dataset, out, more) in [("dataset", "file", &[][..]), ("second", "parts", &PARTS)] {
        let args = ["refresh", "run", "--dataset", dataset, "--out", out, "--processes", "2", "--quiet"];
        place.succeed(&[&args[..], more].concat());
        update(&place, dataset, "changes", &[]);
        place.succeed(&[&args[..], more].concat());
    }
    for table in ["changes.parquet", "predictions.parquet", "embeddings.parquet"] {
        assert!(rows(&place, &format!("parts/{table}")) == read(&place, &format!("file/{table}")), "{table}");
    }
}
