//! A temporary folder with the real binary, and helpers for black-box tests.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses some of it, as its own module")]

pub mod changes;
pub mod linked;
pub mod member;
pub mod relay;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader};
use arrow::datatypes::{Float32Type, Int64Type};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// A temporary folder in which the real binary runs.
pub struct TestDir {
    folder: tempfile::TempDir,
}

/// The exit code and output of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; -1 after a signal.
    pub code: i32,
    /// Results.
    pub stdout: String,
    /// Messages and errors.
    pub stderr: String,
}

impl TestDir {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn parquet(&self, name: &str, columns: Vec<(&str, ArrayRef)>) -> PathBuf {
        let columns = columns.into_iter().map(|(name, array)| (name, array, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let path = self.write(name, "");
        let mut writer = ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    }

    /// Returns a command that runs the binary in the folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gnnflow"));
        command.current_dir(self.folder.path()).args(args).stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, args: &[&str]) -> Ended {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ended = Ended { code: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) };
        for word in ["panicked", "backtrace", "RUST_BACKTRACE"] {
            assert!(!ended.stderr.contains(word), "{args:?}: {}", ended.stderr);
        }
        ended
    }

    /// Runs the binary, which must succeed, and returns its stdout.
    pub fn succeed(&self, args: &[&str]) -> String {
        let ended = self.run(args);
        assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
        ended.stdout
    }

    /// Runs the binary, which must exit with `code` and with `words` on stderr; returns the error lines.
    pub fn fail(&self, args: &[&str], code: i32, words: &[&str]) -> Vec<String> {
        let ended = self.run(args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        for word in words {
            assert!(ended.stderr.contains(word), "{args:?}: no {word:?} in {}", ended.stderr);
        }
        let errors: Vec<String> =
            ended.stderr.lines().filter(|line| line.starts_with("error: ")).map(String::from).collect();
        assert!(!errors.is_empty(), "{args:?}: {}", ended.stderr);
        errors
    }
}

/// Returns the folder of real graphs. Prints a line and returns `None` if it does not exist.
pub fn data() -> Option<PathBuf> {
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data"));
    let folder = std::env::var_os("GNNFLOW_TEST_DATA").map_or_else(default, PathBuf::from);
    if !folder.is_dir() {
        println!("skipped: no graphs in {}", folder.display());
        return None;
    }
    Some(folder)
}

/// Returns all pipeline files of `pipelines/`.
pub fn ready_made() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml") && !path.ends_with("Cargo.toml"))
        .collect();
    files.sort();
    files
}

/// Writes a pipeline over a small planted graph in four partitions, with the sections `settings`.
pub fn planted(place: &TestDir, name: &str, settings: &str) {
    let text = format!(
        "[graph]\n\
         generate = {{ kind = 'planted', nodes = 1500, edges = 9000, features = 24, classes = 5, \
         split = [0.3, 0.3, 0.4], out = 'graph' }}\n\
         [partition]\nmethod = 'random'\nparts = 4\nout = 'dataset'\n{settings}hash_blocks = true\nseed = 3\n\
         [infer]\npredictions = true\nembeddings = true\n"
    );
    place.write(name, text);
}

/// Returns `model`, lines of `[model]`, with a line that switches dropout off. The kind `sgc` has none by default.
pub fn without_dropout(model: &str) -> String {
    if model.contains("'sgc'") { model.to_owned() } else { format!("{model}\ndropout = 0.0") }
}

/// Reads the summary of a run.
pub fn summary(place: &TestDir, run: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(place.path(run).join("summary.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Runs `p.toml` in the run folder `run`, which must succeed; returns the summary.
pub fn succeed(place: &TestDir, args: &[&str]) -> serde_json::Value {
    let ended = place.run(&[&["run", "p.toml", "--quiet", "--run-dir", "run"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    summary(place, "run")
}

/// Reads the epochs of a run's `metrics.jsonl`, without times.
pub fn epochs(run: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).ok();
    let strip = |mut record: serde_json::Value| {
        let fields = record.as_object_mut().unwrap();
        fields.retain(|name, _| !name.contains("seconds"));
        record
    };
    text.lines().filter_map(parse).map(strip).collect()
}

/// Asserts that two runs have equal hashes and epochs.
pub fn assert_same_results(place: &TestDir, run: &str, other: &str) {
    let (run_summary, other_summary) = (summary(place, run), summary(place, other));
    for key in ["model_sha256", "predictions_sha256", "blocks_sha256", "best_epoch", "epochs", "test"] {
        assert_eq!(run_summary[key], other_summary[key], "{key}");
    }
    assert_eq!(epochs(&place.path(run)), epochs(&place.path(other)));
}

/// Returns the plan of `p.toml`.
pub fn plan(place: &TestDir) -> serde_json::Value {
    serde_json::from_str(&place.succeed(&["run", "p.toml", "--dry-run", "--json"])).unwrap()
}

/// Returns those hashes of blocks, model and predictions that the summary has.
pub fn hashes(summary: &serde_json::Value) -> Vec<String> {
    let keys = ["blocks_sha256", "model_sha256", "predictions_sha256"];
    let found: Vec<String> = keys.iter().filter_map(|key| Some(summary[key].as_str()?.to_owned())).collect();
    assert!(found.len() >= 2, "{summary}");
    found
}

/// Reads the training loss of every epoch of the run in `run`.
pub fn losses(place: &TestDir) -> Vec<f64> {
    let lines = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    let loss = |line| serde_json::from_str::<serde_json::Value>(line).unwrap()["loss"].as_f64().unwrap();
    lines.lines().map(loss).collect()
}

pub type Rows = Vec<Vec<f64>>;

/// Parameters by name: matrices, or vectors as one row.
pub type Weights = BTreeMap<String, Rows>;

/// Reads the parameters of a model.
pub fn weights(place: &TestDir, run: &str) -> Weights {
    let bytes = std::fs::read(place.path(&format!("{run}/model.safetensors"))).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
    let of = |(name, about): (&String, &serde_json::Value)| {
        let offsets: Vec<usize> = about["data_offsets"].as_array().unwrap().iter().map(number).collect();
        let columns = number(about["shape"].as_array().unwrap().last().unwrap());
        let values = bytes[8 + length..][offsets[0]..offsets[1]].chunks_exact(4);
        let values: Vec<f64> = values.map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap()))).collect();
        (name.clone(), values.chunks_exact(columns).map(<[f64]>::to_vec).collect())
    };
    header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(of).collect()
}

/// Reads a Parquet file as one batch.
pub fn read(place: &TestDir, name: &str) -> RecordBatch {
    let file = std::fs::File::open(place.path(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    arrow::compute::concat_batches(&schema, &batches).unwrap()
}

/// Returns a column of a batch.
pub fn column<'a, T: 'static>(batch: &'a RecordBatch, name: &str) -> &'a T {
    batch.column_by_name(name).unwrap().as_any().downcast_ref().unwrap()
}

/// Trains two epochs of `p.toml` in the run folder `run`.
pub fn train(place: &TestDir, more: &[&str]) {
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=2"];
    place.succeed(&[&args, more].concat());
}

/// Reads the learned rows of the run in `run` by node id.
pub fn learned_rows(place: &TestDir) -> BTreeMap<i64, Vec<f32>> {
    rows(place, "run/node_embeddings.parquet")
}

/// Reads the rows of `embeddings.parquet` in `out` by node id.
pub fn embeddings(place: &TestDir, out: &str) -> BTreeMap<i64, Vec<f32>> {
    rows(place, &format!("{out}/embeddings.parquet"))
}

fn rows(place: &TestDir, name: &str) -> BTreeMap<i64, Vec<f32>> {
    let file = std::fs::File::open(place.path(name)).unwrap();
    let mut all = BTreeMap::new();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
        let batch = batch.unwrap();
        let ids = batch.column_by_name("node_id").unwrap().as_primitive::<Int64Type>();
        let rows = batch.column_by_name("embedding").unwrap().as_fixed_size_list();
        for row in 0..batch.num_rows() {
            let values = rows.value(row).as_primitive::<Float32Type>().values().to_vec();
            assert!(all.insert(ids.value(row), values).is_none());
        }
    }
    all
}

/// Writes a hosts file of addresses that no other test uses, whose processes are `on` the hosts with these numbers. Returns its name.
pub fn hosts_on(place: &TestDir, on: &[u32]) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (file, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    let name = |host| format!("127.{}.{}.{}", 1 + process % 250, 1 + process / 250 % 250, 1 + (file + host) % 250);
    let line = |(rank, &host): (usize, &u32)| format!("{}:{}\n", name(host), 23000 + 100 * host as usize + rank);
    let lines: String = on.iter().enumerate().map(line).collect();
    let name = format!("hosts-{file}");
    place.write(&name, lines);
    name
}

/// Returns the process ids of the children of `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    let of = |entry: std::fs::DirEntry| -> Option<u32> {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        (fields.nth(1)?.parse() == Ok(parent)).then_some(pid)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.unwrap())).collect()
}

/// Kills a process. Does nothing if it has already ended.
pub fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Waits until the run in `run` has trained `count` epochs, or has ended.
pub fn wait_for_epochs(place: &TestDir, run: &str, count: usize, child: &mut Child) {
    let begin = Instant::now();
    let trained = || std::fs::read_to_string(place.path(run).join("metrics.jsonl")).unwrap_or_default();
    while trained().lines().count() < count && child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no {count} epochs in a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `p.toml` on two processes in the run folder `run`, and kills process `victim` after `after` epochs. The run
/// must restart its processes and succeed.
pub fn run_with_kill(place: &TestDir, run: &str, args: &[&str], victim: usize, after: usize) {
    let all = ["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", run, "--set", "cluster.restarts=2"];
    let mut parent = place.command(&[&all[..], args].concat()).spawn().unwrap();
    wait_for_epochs(place, run, after, &mut parent);
    let mut ranks = children(parent.id());
    ranks.sort_unstable();
    if let Some(&pid) = ranks.get(victim) {
        kill(pid);
    }
    assert!(parent.wait().unwrap().success(), "{run}: process {victim} killed after {after} epochs");
}
