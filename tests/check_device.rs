//! `gnnflow check-device`, from outside: what it says where there is no GPU, and that the CPU passes.

use crate::common::Place;
use serde_json::Value;

#[test]
fn the_cpu_computes_what_plain_arithmetic_does() {
    let place = Place::new();
    let table = place.succeed(&["check-device", "--device", "cpu", "--out", "result.json"]);
    assert!(table.contains("edge-softmax") && table.trim_end().ends_with("all within tolerance"), "{table}");
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

/// The kernels' own source, run by one CPU thread, launched by the code that launches them on a GPU.
#[cfg(feature = "cuda")]
#[test]
fn kernels_compute_what_the_cpu_s_do_on_an_emulated_gpu() {
    let place = Place::new();
    let libraries = place.path("libraries");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/cuda/emulator/build.sh");
    match std::process::Command::new(build).arg(&libraries).output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => return println!("skipped: {build} cannot be run: {error}"),
    }
    let mut command = place.command(&["check-device", "--json", "--out", "result.json"]);
    let output = command.env("GNNFLOW_CUDA_LIB_DIR", &libraries).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("there is no NVIDIA driver") {
        return println!("skipped: this binary was linked against an installed toolkit, not with tools/cuda/env.sh");
    }
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["description"].as_str().is_some_and(|it| it.contains("emulator")), "{}", report["description"]);
    // Where one thread or half-warp has a whole sum, bits are the CPU's.
    let same_order =
        ["segment-sum", "segment-mean", "segment-max", "weighted-sum", "edge-add", "edge-sum", "head-dot", "head-mean"];
    for comparison in report["comparisons"].as_array().unwrap() {
        if same_order.contains(&comparison["operation"].as_str().unwrap()) {
            assert_eq!(comparison["same_bits"], comparison["numbers"], "{comparison}");
        }
    }
}
