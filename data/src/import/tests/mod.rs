//! Imports end to end: the resulting dumps, and the errors for invalid inputs.

mod metis;
mod npz;
mod ogb;
mod text;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;
use crate::error::Fault;
use crate::progress::Silent;

/// A temporary folder of one test.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, compressed as its extension says.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => gzip(text),
            Some("zst") => zstd::encode_all(text.as_bytes(), 1).unwrap(),
            _ => text.into(),
        };
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn import(&self, name: &str) -> Import {
        Import::new([self.path(name)], self.path("out"))
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Runs an import that must succeed.
fn good(import: &Import) -> Imported {
    let imported = import.run(&Silent).unwrap();
    assert!(imported.nodes_path.exists() && imported.edges_path.exists() && imported.pipeline_path.exists());
    let left: Vec<_> = std::fs::read_dir(&import.out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
    imported
}

/// Runs an import that must fail with an input error of one line that contains `words`. No output may remain.
fn bad(import: &Import, words: &str) {
    let error = import.run(&Silent).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.fault(), Fault::Input, "{text}");
    assert!(text.contains(words), "{text:?} does not say {words:?}");
    assert!(!text.contains('\n'), "{text}");
    assert!(!import.out.exists(), "{text}: something is left");
}

/// Returns a column of a table as text, one string per row.
fn column(table: &Path, name: &str) -> Vec<String> {
    let mut files = vec![table.to_owned()];
    if table.is_dir() {
        files = std::fs::read_dir(table).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
    }
    let batches = |file| ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap();
    let batches: Vec<RecordBatch> = files.into_iter().flat_map(batches).map(Result::unwrap).collect();
    batches.iter().flat_map(|batch| values(&batch[name])).collect()
}

fn values(array: &dyn Array) -> Vec<String> {
    match array.data_type() {
        DataType::Int64 => array.as_primitive::<Int64Type>().values().iter().map(i64::to_string).collect(),
        DataType::Float32 => {
            let numbers = array.as_primitive::<Float32Type>().iter();
            numbers.map(|number| number.map_or("null".into(), |number| number.to_string())).collect()
        }
        DataType::Utf8 => array.as_string::<i32>().iter().map(|text| text.unwrap_or("null").to_string()).collect(),
        DataType::Boolean => array.as_boolean().values().iter().map(|flag| u8::from(flag).to_string()).collect(),
        DataType::FixedSizeList(..) => {
            array.as_fixed_size_list().iter().map(|row| values(&*row.unwrap()).join(" ")).collect()
        }
        other => panic!("a column of {other}"),
    }
}

/// Returns all edges as `src dst more…`.
fn edges(out: &Path, more: &[&str]) -> Vec<String> {
    rows(&out.join(EDGES), &[&["src", "dst"], more].concat())
}

/// Returns all nodes as `node_id more…`.
fn nodes(out: &Path, more: &[&str]) -> Vec<String> {
    rows(&out.join(NODES), &[&["node_id"], more].concat())
}

fn rows(table: &Path, names: &[&str]) -> Vec<String> {
    let columns: Vec<_> = names.iter().map(|name| column(table, name)).collect();
    (0..columns[0].len())
        .map(|row| columns.iter().map(|column| column[row].as_str()).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn kind_is_guessed_from_the_path_or_set() {
    let place = TestDir::new();
    std::fs::create_dir_all(place.path("arxiv/raw")).unwrap();
    for (name, kind) in [
        ("arxiv", Some(Kind::Ogb)),
        ("a.npz", Some(Kind::Npz)),
        ("4elt.graph", Some(Kind::Metis)),
        ("ca-AstroPh.txt.gz", Some(Kind::Text)),
        ("edges.CSV.zst", Some(Kind::Text)),
        ("out.ego-facebook", Some(Kind::Text)),
        ("facebook", None),
    ] {
        assert_eq!(Kind::guess(&place.path(name)), kind, "{name}");
    }
    assert_eq!("snap".parse(), Ok(Kind::Text));
    assert!("npy".parse::<Kind>().unwrap_err().ends_with("did you mean npz?"));
    place.write("facebook", "1 2\n");
    bad(&place.import("facebook"), "its name does not show its format");
    bad(&place.import("nothing.csv"), "nothing.csv: there is no such file or folder");
    good(&Import { kind: Some(Kind::Text), ..place.import("facebook") });
}

#[test]
fn settings_of_another_kind_are_refused() {
    let place = TestDir::new();
    place.write("e.txt", "1 2\n");
    let arrays = NodeArrays { features: Some("x.npy".into()), ..NodeArrays::default() };
    let error = Import { arrays, ..place.import("e.txt") }.run(&Silent).unwrap_err();
    assert_eq!(
        (error.fault(), error.to_string().as_str()),
        (Fault::Usage, "--features-from: is for npz and metis (text has --features) only")
    );
    let several = Import { kind: Some(Kind::Metis), paths: vec![place.path("e.txt"); 2], ..place.import("e.txt") };
    assert_eq!(several.run(&Silent).unwrap_err().fault(), Fault::Usage);
}

#[test]
fn changed_pipeline_file_is_kept_under_another_name() {
    let place = TestDir::new();
    place.write("e.txt", "1 2\n");
    assert!(good(&place.import("e.txt")).notes.len() == 1);
    std::fs::write(place.path("out/pipeline.toml"), "mine").unwrap();
    let notes = good(&place.import("e.txt")).notes;
    assert!(notes[1].contains("pipeline.toml.old"), "{notes:?}");
    assert_eq!(std::fs::read_to_string(place.path("out/pipeline.toml.old")).unwrap(), "mine");
}

#[test]
fn large_table_is_split_into_row_groups_and_files() {
    let place = TestDir::new();
    let text: String = (0..1_200_000).map(|i| format!("{} {}\n", i % 1000, i % 777)).collect();
    place.write("e.txt.zst", &text);
    let one = good(&place.import("e.txt.zst"));
    let all = edges(&place.path("out"), &[]);
    assert_eq!((one.edges, all.len()), (1_200_000, 1_200_000));
    assert!(all.iter().zip(text.lines()).all(|(found, wanted)| found == wanted));
    let many = good(&Import { file_rows: Some(1 << 19), out: place.path("many"), ..place.import("e.txt.zst") });
    assert_eq!(std::fs::read_dir(&many.edges_path).unwrap().count(), 3);
    assert!(edges(&place.path("many"), &[]) == all);
    // Another number of threads gives the same bytes.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    threads.install(|| good(&Import { out: place.path("again"), ..place.import("e.txt.zst") }));
    assert!(
        std::fs::read(place.path("out/edges.parquet")).unwrap()
            == std::fs::read(place.path("again/edges.parquet")).unwrap()
    );
}
