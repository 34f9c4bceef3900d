//! `gnnflow check-device`, from outside: what it says where there is no GPU, and that the CPU passes.

mod common;

use common::Place;
use serde_json::Value;

#[test]
fn the_cpu_computes_what_plain_arithmetic_does() {
    let place = Place::new();
    let table = place.succeed(&["check-device", "--device", "cpu", "--out", "result.json"]);
    assert!(table.contains("edge-softmax") && table.trim_end().ends_with("all within what is allowed"), "{table}");
    let text = std::fs::read_to_string(place.path("result.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["passed"], Value::Bool(true));
    assert!(report["date"].as_str().is_some_and(|date| date.len() == "2030-01-31T23:59:59Z".len()), "{text}");
    assert!(report["comparisons"].as_array().is_some_and(|all| all.len() > 200));
}

/// Without a GPU, and in a build without CUDA, there is one line that says so; with one, there is a result.
#[test]
fn a_gpu_passes_or_one_line_says_why_it_cannot_be_used() {
    let place = Place::new();
    let ended = place.run(&["check-device", "--out", "result.json", "--quiet"]);
    if ended.code == 0 {
        assert!(place.path("result.json").is_file());
        return;
    }
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let reason = if cfg!(feature = "cuda") { "libcuda.so.1" } else { "build with `--features cuda`" };
    assert!(ended.stderr.starts_with("error: device \"cuda\": ") && ended.stderr.contains(reason), "{}", ended.stderr);
    assert!(!place.path("result.json").exists(), "nothing was checked");
}

#[test]
fn what_is_no_device_and_what_cannot_be_written_are_named() {
    let place = Place::new();
    let [line] = &place.fail(&["check-device", "--device", "tpu"], 4, &["tpu"])[..] else { panic!("one line") };
    assert!(line.contains("\"cpu\" and \"cuda\""), "{line}");
    place.fail(&["check-device", "--device", "cpu", "--out", "no/such/folder.json"], 4, &["no/such/folder.json"]);
}
