//! `gnnflow check-device`: the CPU passes, and a missing GPU is reported.

use crate::common::TestDir;
use serde_json::Value;

#[test]
fn cpu_matches_plain_arithmetic() {
    let place = TestDir::new();
    let table = place.succeed(&["check-device", "--device", "cpu", "--out", "result.json"]);
    assert!(table.contains("edge-softmax") && table.trim_end().ends_with("all within tolerance"), "{table}");
    let text = std::fs::read_to_string(place.path("result.json")).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["passed"], Value::Bool(true));
    assert!(report["date"].as_str().is_some_and(|date| date.len() == "2030-01-31T23:59:59Z".len()), "{text}");
    assert!(report["comparisons"].as_array().is_some_and(|all| all.len() > 200));
}

/// With a GPU, the command writes a result. Without a GPU or without CUDA in the build, it prints one error line.
#[test]
fn gpu_passes_or_one_line_gives_the_reason() {
    let place = TestDir::new();
    let ended = place.run(&["check-device", "--out", "result.json", "--quiet"]);
    if ended.code == 0 {
        assert!(place.path("result.json").is_file());
        return;
    }
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    let reason = if cfg!(feature = "cuda") { "libcuda.so.1" } else { "build with `--features cuda`" };
    assert!(ended.stderr.starts_with("error: device \"cuda\": ") && ended.stderr.contains(reason), "{}", ended.stderr);
    assert!(!place.path("result.json").exists(), "a result was written without a check");
}

#[test]
fn unknown_device_and_unwritable_output_are_named() {
    let place = TestDir::new();
    let [line] = &place.fail(&["check-device", "--device", "tpu"], 4, &["tpu"])[..] else { panic!("one line") };
    assert!(line.contains("use \"cpu\", \"cuda\""), "{line}");
    place.fail(&["check-device", "--device", "cpu", "--out", "no/such/folder.json"], 4, &["no/such/folder.json"]);
}

/// Runs gnnflow with an emulated GPU, on one CPU thread, through the launch code of a GPU. `None` if this is impossible here.
#[cfg(feature = "cuda")]
fn emulated(place: &TestDir, arguments: &[&str]) -> Option<std::process::Output> {
    let output = with_emulator(place, arguments, &[])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

/// As [`emulated`], with settings of the emulator, and for commands that may fail.
#[cfg(feature = "cuda")]
fn with_emulator(place: &TestDir, arguments: &[&str], settings: &[(&str, &str)]) -> Option<std::process::Output> {
    let libraries = place.path("libraries");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/cuda/emulator/build.sh");
    match std::process::Command::new(build).arg(&libraries).output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => {
            println!("skipped: {build} cannot be run: {error}");
            return None;
        }
    }
    let mut command = place.command(arguments);
    let output = command.env("GNNFLOW_CUDA_LIB_DIR", &libraries).envs(settings.iter().copied()).output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("there is no NVIDIA driver") {
        println!("skipped: this binary was linked against an installed toolkit, not with tools/cuda/env.sh");
        return None;
    }
    Some(output)
}

/// A small planted graph, for one CPU thread.
#[cfg(feature = "cuda")]
fn small(model: &str, schedule: &str, parts: usize) -> String {
    format!(
        "[graph]\ngenerate = {{ kind = 'planted', nodes = 300, edges = 1500, features = 8, classes = 3, out = 'graph' }}\n\
         undirected = true\n[partition]\nparts = {parts}\nout = 'dataset'\n[model]\nkind = '{model}'\nhidden = 8\ndropout = 0.0\n\
         [train]\nschedule.kind = '{schedule}'\nepochs = 3\n"
    )
}

/// GPUs by number and by rank, and the reasons why one cannot be used.
#[cfg(feature = "cuda")]
#[test]
fn gpus_are_chosen_by_number_and_by_rank() {
    let place = TestDir::new();
    place.write("p.toml", small("sage", "mini-batch", 2));
    let run = |device: &str, processes: &str, settings: &[(&str, &str)]| {
        let device = format!("train.device={device}");
        let arguments = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", &device, "--processes", processes];
        let output = with_emulator(&place, &arguments, settings)?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Some((output.status.code(), stderr, crate::common::losses(&place)))
    };
    let two = [("EMULATED_GPUS", "2")];
    let Some((code, stderr, first)) = run("cuda", "2", &two) else { return };
    assert_eq!(code, Some(0), "{stderr}");
    let without_first = [("EMULATED_GPUS", "2"), ("EMULATED_BROKEN_GPU", "0")];
    for (device, processes, settings) in [("cuda:1", "1", &without_first[..]), ("cuda:rank", "2", &two)] {
        let Some((code, stderr, losses)) = run(device, processes, settings) else { return };
        assert_eq!((code, losses), (Some(0), first.clone()), "{device}: {stderr}");
    }
    for (device, settings, words) in [
        ("cuda:2", &two[..], "there is no GPU 2; this process sees 2 GPUs, cuda:0 to cuda:1"),
        ("cuda:rank", &[], "there is no GPU 1; this process sees one GPU, cuda:0"),
        (
            "cuda",
            &[("EMULATED_CAPABILITY", "75")],
            "compute capability 7.5, and the kernels need 8.0 (Ampere) or newer",
        ),
        ("cuda", &[("EMULATED_DRIVER", "12080")], "the NVIDIA driver is too old"),
    ] {
        let Some((code, stderr, _)) = run(device, "2", settings) else { return };
        assert_eq!(code, Some(4), "{stderr}");
        let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
        assert!(error.contains(words), "{stderr}");
    }
}

/// A run that cannot fit into the memory of a GPU ends before training, and one that fits reports its peak.
#[cfg(feature = "cuda")]
#[test]
fn memory_of_a_gpu_is_compared_with_what_a_run_needs() {
    let place = TestDir::new();
    // Features of 3 MB.
    place.write(
        "p.toml",
        small("gcn", "full-graph", 1)
            .replace("nodes = 300, edges = 1500", "nodes = 3000, edges = 6000")
            .replace("features = 8", "features = 256"),
    );
    let run = ["run", "p.toml", "--run-dir", "run", "--set", "train.device=cuda"];
    let with = |mebibytes: &str| with_emulator(&place, &run, &[("EMULATED_MEMORY_MIB", mebibytes)]);
    let Some(refused) = with("2") else { return };
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(4), "{stderr}");
    let error = stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    assert!(
        error.contains("and the features and edges of the graph take 3.0 MiB; use train.schedule = \"mini-batch\""),
        "{stderr}"
    );
    let Some(trained) = with("64") else { return };
    let stderr = String::from_utf8_lossy(&trained.stderr);
    assert!(trained.status.success() && !stderr.contains("warning: the GPU has"), "{stderr}");
    let summary: Value = serde_json::from_slice(&std::fs::read(place.path("run/summary.json")).unwrap()).unwrap();
    let peak = summary["workers"][0]["device_peak_bytes"].as_u64().unwrap();
    assert!((3_000_000..20_000_000).contains(&peak), "{peak}");
    let plan = place.succeed(&[&run[..], &["--dry-run"]].concat());
    assert!(plan.contains("  GPU ") && plan.contains(" features"), "{plan}");
}

/// Full-graph training with the graph on the device, batches whose features are there, all or some, chunks that are summed there, and node tasks of
/// tensor workers.
#[cfg(feature = "cuda")]
#[test]
fn training_on_an_emulated_gpu_has_the_losses_of_the_cpu() {
    let place = TestDir::new();
    let (workers, sampling) = ("train.tensor_workers.workers=2", "train.schedule.device_sampling=true");
    let cases: [(&str, &str, usize, &[&str]); 13] = [
        ("gcn", "full-graph", 1, &[]),
        ("sage", "full-graph", 1, &[]),
        ("gat", "full-graph", 1, &[]),
        ("sage", "mini-batch", 1, &[]),
        ("sage", "mini-batch", 2, &["train.schedule.device_cache=2KiB", "--processes=2"]),
        ("sage", "mini-batch", 2, &[sampling]),
        ("gat", "mini-batch", 2, &[sampling, "train.schedule.device_cache=2KiB"]),
        ("gin", "mini-batch", 2, &[sampling, "partition.topology=replicated", "--processes=2"]),
        ("gcn", "tensor-parallel", 2, &["train.schedule.chunk_memory=20KiB", "--processes=2"]),
        ("sage", "tensor-parallel", 2, &["--processes=2"]),
        ("gcn", "full-graph", 2, &[workers, "train.tensor_workers.local_tasks=false"]),
        ("gat", "full-graph", 2, &[workers]),
        // Without tensor workers, the graph would be on the GPU.
        ("gcn", "full-graph", 1, &[workers, "train.tensor_workers.local_tasks=false"]),
    ];
    for (model, schedule, parts, more) in cases {
        place.write("p.toml", small(model, schedule, parts));
        let run = ["run", "p.toml", "--quiet", "--run-dir", "run"];
        place.succeed(&run);
        let expected = crate::common::losses(&place);
        let more = more.iter().flat_map(|&set| if set.starts_with("--") { vec![set] } else { vec!["--set", set] });
        let on_gpu: Vec<&str> = run.into_iter().chain(["--set", "train.device=cuda"]).chain(more).collect();
        let Some(_) = emulated(&place, &on_gpu) else { return };
        let summary: Value = serde_json::from_slice(&std::fs::read(place.path("run/summary.json")).unwrap()).unwrap();
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        assert!(!on_gpu.contains(&workers) || number(&summary["tensor"]["tasks"]) > 0.0, "{model}: {summary}");
        assert!(schedule != "mini-batch" || number(&summary["device_cache"]["hits"]) > 0.0, "{model}: {summary}");
        assert!(schedule != "tensor-parallel" || number(&summary["seconds"]["device"]) > 0.0, "{model}: {summary}");
        for (found, expected) in crate::common::losses(&place).iter().zip(&expected) {
            assert!((found / expected - 1.0).abs() < 1e-4, "{model}, {schedule}: {found} instead of {expected}");
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
fn kernels_on_an_emulated_gpu_match_the_cpu() {
    let place = TestDir::new();
    let Some(output) = emulated(&place, &["check-device", "--json", "--out", "result.json"]) else { return };
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["description"].as_str().is_some_and(|it| it.contains("emulator")), "{}", report["description"]);
    // Operations in which one thread or half-warp computes a whole sum have the bits of the CPU.
    let same_order =
        ["segment-sum", "segment-mean", "segment-max", "weighted-sum", "edge-add", "edge-sum", "head-dot", "head-mean"];
    for comparison in report["comparisons"].as_array().unwrap() {
        if same_order.contains(&comparison["operation"].as_str().unwrap()) {
            assert_eq!(comparison["same_bits"], comparison["numbers"], "{comparison}");
        }
    }
}
