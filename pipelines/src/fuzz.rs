//! Fuzz targets: the decoders of this crate, with checks of what they accept. `fuzz/` has the programs for `cargo fuzz`; the tests
//! of this module run the same functions without it.
//!
//! Each function returns whether the bytes were accepted.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::LazyLock;

use gnnflow_data::dataset::Manifest;
use gnnflow_data::prepare::{PrepareSettings, prepare};
use gnnflow_data::progress::Silent;
use gnnflow_data::testing::corpus::parts;
use gnnflow_data::testing::{IdStyle, Modulo, TestGraph};
use gnnflow_nn::params::Param;

use crate::checkpoint::Checkpoint;
use crate::collectives::{Json, List, Payload};
use crate::config::{Config, Registered, Task};
use crate::error::{Error, Fault};
use crate::follow::state::{BatchResults, State, read_applied};
use crate::model_file::{FittingModel, ModelDescription, WarmStart};
use crate::outputs::run_folder::{MODEL, NODE_EMBEDDINGS};
use crate::outputs::trace_table::TraceTable;
use crate::runtime::records::EpochRecord;
use crate::summary::Summary;

/// Returns a result that is not an error. An error must have this fault, and be one line.
fn accepted<T>(result: Result<T, Error>, fault: Fault) -> Option<T> {
    let refused = |error: &Error| {
        let text = error.to_string();
        assert!(error.fault() == Some(fault), "another fault: {text}");
        assert!(fault == Fault::Usage || !text.contains('\n'), "not one line: {text}");
    };
    result.inspect_err(refused).ok()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder can be created")
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a file can be written");
}

fn parse(text: &str) -> Result<Config, Error> {
    Config::parse(text, Path::new("/graphs/p.toml"), &[], &Registered::default())
}

/// A pipeline file.
pub fn config(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some(config) = accepted(parse(text), Fault::Usage) else { return false };
    let resolved = config.resolved_toml();
    let again =
        parse(&resolved).unwrap_or_else(|error| panic!("the resolved pipeline is refused: {error}\n{resolved}"));
    assert_eq!(
        (again.fingerprint(), again.dataset_hash()),
        (config.fingerprint(), config.dataset_hash()),
        "{resolved}"
    );
    assert_eq!(again.resolved_toml(), resolved);
    let _ = (config.hash(), config.model_fingerprint());
    true
}

/// Returns a safetensors file with a right checksum, if it has a place for one.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (key, mut bytes) = (b"\"gnnflow.crc32\":\"", bytes.to_vec());
    let at = bytes.windows(key.len()).position(|window| window == key).map(|at| at + key.len());
    if let Some(at) = at.filter(|at| at + 8 <= bytes.len()) {
        bytes[at..at + 8].fill(b'0');
        let digits = format!("{:08x}", crc32fast::hash(&bytes));
        bytes[at..at + 8].copy_from_slice(digits.as_bytes());
    }
    bytes
}

/// Parameters of the models and checkpoints in the corpora.
fn params() -> Vec<Param> {
    let param = |name: &str, shape: &[usize]| Param {
        name: name.into(),
        shape: shape.to_vec(),
        values: vec![0.5; shape.iter().product()],
    };
    vec![param("layers.0.weight", &[3, 2]), param("layers.1.weight", &[2, 3]), param("layers.1.bias", &[3])]
}

/// A checkpoint, as it is and with a right checksum.
pub fn checkpoint(bytes: &[u8]) -> bool {
    let place = folder();
    let path = place.path().join("last.safetensors");
    let len = params().iter().map(|param| param.values.len()).sum();
    let mut found = false;
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        write(&path, &bytes);
        for (trained, embedding) in [(len, None), (len - 3, Some(16))] {
            let read = || Checkpoint::read(&path, "model", len, trained, embedding);
            let Some(checkpoint) = accepted(read(), Fault::Input) else { continue };
            assert_eq!(checkpoint.last.params.len(), len);
            assert!(checkpoint.last.optimizer.vectors.iter().all(|(_, vector)| vector.len() == trained));
            let _ = checkpoint.progress.position().to_string();
            checkpoint.write(&path, "model").expect("a checkpoint can be written");
            let again = accepted(read(), Fault::Input).expect("a written checkpoint can be read");
            // Numbers that are not numbers differ from themselves.
            assert_eq!(format!("{again:?}"), format!("{checkpoint:?}"));
            write(&path, &bytes);
            found = true;
        }
    }
    found
}

/// The manifest of a small dataset, to which the models in the corpus belong.
static DATASET: LazyLock<Manifest> = LazyLock::new(|| {
    let place = folder();
    let graph = TestGraph { name: "small", nodes: 9, edges: vec![(0, 1), (1, 2), (2, 0)] };
    let source = graph.dump(place.path(), IdStyle::Dense).expect("a dump can be written");
    let dataset = place.path().join("dataset");
    prepare(&source, &Modulo, &PrepareSettings::new(&dataset, 2), &Silent).expect("the graph can be prepared");
    Manifest::read(&dataset).expect("the manifest is written")
});

/// The pipeline whose training starts from these models.
const PIPELINE: &str = "[graph]\nnodes = 'n'\nedges = 'e'\n[partition]\nparts = 2\n[model]\nkind = 'sage'\nlayers = 2\nhidden = 2\n[train]\n";

/// A model, as it is and with a right checksum.
pub fn model(bytes: &[u8]) -> bool {
    let place = folder();
    let run = place.path();
    let config = parse(PIPELINE).expect("the pipeline is right");
    let (Some(model), Some(train)) = (&config.model, &config.train) else { return false };
    let mut found = false;
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        write(&run.join(MODEL), &bytes);
        write(&run.join(NODE_EMBEDDINGS), b"rows");
        accepted(crate::verify_tensors(&run.join(MODEL)), Fault::Input);
        let Some(description) = accepted(ModelDescription::read(run), Fault::Input) else { continue };
        let _ = (description.to_string(), serde_json::to_string(&description).expect("a description is JSON"));
        for task in [Task::NodeClassification, Task::EdgeClassification] {
            let fitting = FittingModel::open(run, task, &DATASET);
            if let Some(fitting) = accepted(fitting, Fault::Input) {
                let mut params = params();
                found |= accepted(fitting.read(&mut params), Fault::Input).is_some();
            }
        }
        if let Some(start) = accepted(WarmStart::open(run, (model, train), &DATASET), Fault::Input) {
            let mut params = params();
            let wider: Vec<Vec<usize>> = params.iter().map(|param| param.shape.clone()).collect();
            found |= accepted(start.read(&mut params, &wider), Fault::Input).is_some();
        }
    }
    found
}

/// The files of a run and of `gnnflow follow`: summary, epochs, times of a trace, state, names of batches, results of a batch.
pub fn run_files(bytes: &[u8]) -> bool {
    let place = folder();
    let dir = place.path();
    std::fs::create_dir(dir.join("trace")).expect("a folder can be created");
    let names =
        [Summary::FILE, EpochRecord::FILE, "trace/worker-0-times.json", "follow.json", "applied.txt", "manifest.json"];
    let parts = parts(bytes);
    parts.iter().zip(names).for_each(|(part, name)| write(&dir.join(name), part));
    let mut found = false;
    let mut count = |accepted: bool| found |= accepted;
    if let Some(summary) = accepted(Summary::read(dir), Fault::Input) {
        let text = summary.to_json();
        write(&dir.join(Summary::FILE), text.as_bytes());
        let again = accepted(Summary::read(dir), Fault::Input).expect("a written summary can be read");
        assert_eq!(again.to_json(), text);
        count(true);
    }
    if dir.join(EpochRecord::FILE).exists() {
        count(accepted(EpochRecord::read_all(dir), Fault::Input).is_some_and(|epochs| !epochs.is_empty()));
    }
    count(accepted(TraceTable::read_all(dir), Fault::Input).is_some_and(|tables| !tables.is_empty()));
    count(accepted(State::read(dir), Fault::Input).flatten().is_some());
    count(accepted(BatchResults::read(dir), Fault::Input).flatten().is_some());
    count(accepted(read_applied(dir), Fault::Input).is_some_and(|names| !names.is_empty()));
    found
}

/// The words of values that workers send each other.
pub fn payload(bytes: &[u8]) -> bool {
    let words: Vec<u64> = bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .collect();
    fn read<T: Payload>(words: &[u64]) -> bool {
        let Ok(value) = T::from_words(words) else { return false };
        let written = value.to_words();
        let again = T::from_words(&written).unwrap_or_else(|error| panic!("a written value is refused: {error}"));
        assert_eq!(again.to_words(), written);
        true
    }
    let numbers =
        read::<Vec<u32>>(&words) | read::<Vec<u8>>(&words) | read::<Vec<[f64; 2]>>(&words) | read::<[u8; 32]>(&words);
    let pairs = read::<(Vec<u32>, String)>(&words) | read::<Option<(u64, Vec<u8>)>>(&words);
    let lists = read::<List<u64>>(&words) | read::<List<(Vec<u64>, Vec<[f64; 2]>)>>(&words);
    numbers | pairs | lists | read::<String>(&words) | read::<Json<Vec<(u64, Option<String>)>>>(&words)
}
