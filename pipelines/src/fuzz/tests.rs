//! Short runs of the fuzz targets over their corpora.

use gnnflow_data::testing::corpus::{self, join};
use gnnflow_nn::optimizer;

use super::*;
use crate::checkpoint::Progress;
use crate::compute::Replica;
use crate::model_file::{Description, Provenance};

#[test]
fn pipelines_do_not_panic() {
    corpus::run("config", config, 60);
}

#[test]
fn checkpoints_do_not_panic() {
    corpus::run("checkpoint", checkpoint, 100);
}

#[test]
fn models_do_not_panic() {
    corpus::run("model", model, 100);
}

#[test]
fn files_of_runs_do_not_panic() {
    corpus::run("run_files", run_files, 100);
    corpus::run("payload", payload, 1000);
}

/// Writes the corpora anew, after a change of a format: `cargo test --release -p gnnflow-pipelines write_corpora -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_corpora() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["quickstart", "planted-gat-full-graph", "planted-gcn-tensor-parallel", "planted-link-prediction"] {
        let text = std::fs::read_to_string(root.join(name).with_extension("toml")).unwrap();
        let keys: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        corpus::write("config", &format!("valid-{name}"), keys.join("\n").as_bytes());
    }
    corpus::write("config", "valid-tables", PIPELINE.as_bytes());

    let place = folder();
    let read = |name: &str| std::fs::read(place.path().join(name)).unwrap();
    let params = params();
    let flat: Vec<f32> = params.iter().flat_map(|param| param.values.clone()).collect();
    let replica = |trained: usize| Replica {
        params: flat.clone(),
        optimizer: optimizer::State { steps: 7, vectors: vec![("m".into(), vec![0.25; trained])] },
    };
    for (file, trained, embedding, best) in
        [("valid-last", flat.len(), None, false), ("valid-best", flat.len() - 3, Some(16), true)]
    {
        let progress = Progress {
            epochs: 3,
            best: best.then_some((2, (0.5, -1.0))),
            seconds: vec![0.5; 3],
            ..Progress::default()
        };
        let best = best.then(|| replica(trained));
        let checkpoint = Checkpoint { progress, last: replica(trained), best, embedding };
        checkpoint.write(&place.path().join("c"), "model").unwrap();
        corpus::write("checkpoint", file, &read("c"));
    }
    for task in [Task::NodeClassification, Task::LinkPrediction] {
        let pipeline = parse(PIPELINE).unwrap();
        let network = pipeline.model.unwrap().describe(3, 3, 0, 0);
        let description = Description {
            task,
            model: network,
            dataset: &DATASET,
            provenance: Provenance::default(),
            learned_rows: false,
        };
        crate::model_file::write(&params, description, place.path()).unwrap();
        corpus::write("model", &format!("valid-{task}"), &read(MODEL));
    }
    let mut epochs = Vec::new();
    for epoch in 1..3 {
        let record = EpochRecord { epoch, loss: 0.5, val: Some(Default::default()), ..EpochRecord::default() };
        epochs.extend([serde_json::to_vec(&record).unwrap(), b"\n".to_vec()].concat());
    }
    let table = serde_json::to_vec(&TraceTable::default()).unwrap();
    let state = br#"{"schema":1,"model":"m","dataset":"d","after":null,"stored":"b","edge_cut":0.5}"#;
    let summary = Summary { schema: crate::summary::SCHEMA, ..Summary::default() };
    let parts = [summary.to_json().into_bytes(), epochs, table, state.to_vec(), b"a\nb\n".to_vec()];
    corpus::write("run_files", "valid", &join(&parts));
    for (file, words) in [
        ("valid-pair", (vec![1u32, 2, 3], "four".to_owned()).to_words()),
        ("valid-option", Some((7u64, vec![1u8, 2, 3])).to_words()),
        ("valid-json", Json(vec![(1u64, Some("a".to_owned()))]).to_words()),
    ] {
        corpus::write("payload", file, bytemuck::cast_slice(&words));
    }
}
