//! Short runs of the fuzz targets over their corpora.

use gnnflow_data::testing::corpus::{self, join};

use super::*;
use crate::cluster::fuzz::claim;

#[test]
fn handshakes_do_not_panic() {
    corpus::run("handshake", handshake, 100);
    corpus::run("noise", noise, 100);
}

#[test]
fn control_messages_and_hosts_files_do_not_panic() {
    corpus::run("control", control, 100);
    corpus::run("hosts", hosts, 1000);
}

#[test]
#[cfg(feature = "tensor-workers")]
fn messages_of_tensor_workers_do_not_panic() {
    corpus::run("tensor_messages", tensor_messages, 200);
}

#[test]
fn run_folders_do_not_panic() {
    corpus::run("run_folder", run_folder, 100);
}

/// Writes the corpora anew, after a change of a format: `cargo test --release -p gnnflow --lib write_corpora -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_corpora() {
    let (magic, hello) = (b"gnnflow\x03", [3, 0, 0, 0, 1]);
    let opening = [&magic[..], &1u32.to_le_bytes()].concat();
    let with_mode = |mode: u8, content: Vec<u8>| [vec![mode], content].concat();
    let dialer = join(&[opening.clone(), hello.to_vec(), claim(1), vec![1]]);
    corpus::write("handshake", "valid-dialer", &with_mode(2, dialer));
    corpus::write("handshake", "valid-listener", &with_mode(3, join(&[magic.to_vec(), hello.to_vec(), claim(0)])));
    let message = [&[48, 0, 0, 0][..], &[7; 48]].concat();
    corpus::write("handshake", "dialing-stranger", &with_mode(0, [&opening[..], &message].concat()));
    corpus::write("handshake", "listening-stranger", &with_mode(1, [&magic[..], &message].concat()));
    corpus::write("noise", "valid", &join(&[&[0, 1, 9][..], &b"some bytes ".repeat(9), b""]));
    corpus::write("noise", "more", &join(&[&[200][..], b"some bytes", &[100, 0, 1, 2]]));

    let mut frames = Vec::new();
    let status = serde_json::to_value(crate::status::ProcessStatus::default()).unwrap();
    for frame in [
        serde_json::json!({ "Heartbeat": { "turns": 7, "completed": 3, "phase": "Running", "label": "step" } }),
        serde_json::json!({ "Agree": { "what": "dataset", "value": "0123" } }),
        serde_json::json!({ "Status": status }),
        serde_json::json!({ "Failing": { "kind": "Failed", "culprit": 1, "address": "host1:1", "code": 3, "message": "why" } }),
        serde_json::json!("Goodbye"),
    ] {
        let text = frame.to_string().into_bytes();
        frames.extend([&(text.len() as u32).to_le_bytes()[..], &text].concat());
    }
    corpus::write("control", "valid", &frames);
    corpus::write("hosts", "valid", b"# hosts\nnode1:7000\n[::1]:7001 # second\nnode2:7000\n");

    let layers = gnnflow_nn::ModelSpec::new("sage", 2, 3, 4, 2);
    let call = |asks: serde_json::Value, half: Option<usize>, rows: usize, late: usize| {
        let task = serde_json::json!({ "count": 2, "half": half, "key": 5, "rows": rows, "late": late });
        let call = serde_json::json!({ "model": layers, "run": "r", "version": 1, "encrypt": null, "servers": ["a:1"], "index": 0, "asks": asks, "tasks": [task] });
        call.to_string().into_bytes()
    };
    let matrix = |name: &str, rows: usize, dim: usize| {
        let header = serde_json::json!({ "name": name, "rows": rows, "dim": dim, "number": "F32" });
        [header.to_string().into_bytes(), vec![7; 4 * rows * dim]]
    };
    let forward = call(serde_json::json!({ "Forward": { "held": true } }), Some(1), 1, 0);
    let [first, second] = [matrix("Held", 1, 3), matrix("Held", 1, 3)];
    corpus::write(
        "tensor_messages",
        "valid-forward",
        &join(&[vec![forward], first.to_vec(), second.to_vec()].concat()),
    );
    let loss = call(serde_json::json!("Classes"), None, 1, 1);
    let [rows, targets] = [matrix("Aggregated", 2, 3), matrix("Targets", 2, 1)];
    corpus::write("tensor_messages", "valid-loss", &join(&[vec![loss], rows.to_vec(), targets.to_vec()].concat()));
    let end = br#"{"loss":[4607182418800017408,2]}"#.to_vec();
    corpus::write(
        "tensor_messages",
        "valid-response",
        &join(&[vec![Vec::new()], matrix("Flat", 3, 1).to_vec(), vec![end]].concat()),
    );
    corpus::write("tensor_messages", "valid-registration", br#"{"listens":"127.0.0.1:7000"}"#);

    let run = crate::status::RunStatus {
        schema: 1,
        name: "p".into(),
        last_epoch: Some(EpochRecord { epoch: 3, loss: 0.5, ..EpochRecord::default() }),
        processes: 2,
        statuses: vec![Default::default(), Default::default()],
        ..Default::default()
    };
    let summary = Summary { schema: gnnflow_pipelines::summary::SCHEMA, epochs: 3, ..Summary::default() };
    let epochs: Vec<Vec<u8>> = (1..4)
        .map(|epoch| {
            let record = EpochRecord { epoch, loss: 0.5, val: Some(Default::default()), ..EpochRecord::default() };
            [serde_json::to_vec(&record).unwrap(), b"\n".to_vec()].concat()
        })
        .collect();
    corpus::write(
        "run_folder",
        "valid",
        &join(&[serde_json::to_vec(&run).unwrap(), serde_json::to_vec(&summary).unwrap(), epochs.concat()]),
    );
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let fuzz = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let mut programs: Vec<&str> =
        manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next()).collect();
    programs.sort_unstable();
    let names = |folder: &str| {
        let mut names: Vec<String> = std::fs::read_dir(fuzz.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names("fuzz_targets"), programs);
    assert_eq!(names("corpus"), programs);
}
