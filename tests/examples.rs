//! The programs in `examples/` run and print their results.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{TestDir, planted, summary};

/// Returns the path of an example, which cargo builds with the tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

#[test]
fn custom_operator_composes_its_own_dataflow() {
    let output = Command::new(example("custom_operator")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains(" nodes per seed, "), "{text}");
    assert!(text.contains("worker 1 sent"), "{text}");
}

#[test]
fn registered_parts_have_equal_bits_for_1_2_processes() {
    let place = TestDir::new();
    let settings = "[model]\nkind = 'graphconv'\nhidden = 16\nnorm = 'batch'\nresidual = true\n[train]\nepochs = 2\nfanouts = [4, 4]\nsampler = 'nearest'\noperators = ['mask']\n";
    planted(&place, "p.toml", settings);
    for processes in ["1", "2"] {
        let run = format!("run{processes}");
        let args = ["run", "p.toml", "--quiet", "--set", "partition.method=stripes", "--processes", processes];
        let output = Command::new(example("own_parts"))
            .args(args)
            .args(["--run-dir", &run])
            .current_dir(place.path("."))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for key in ["model_sha256", "blocks_sha256", "predictions_sha256"] {
        assert_eq!(summary(&place, "run1")[key], summary(&place, "run2")[key], "{key}");
    }
    let shown = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/own_parts.toml")).unwrap();
    place.write("own_parts.toml", shown);
    let mut program = Command::new(example("own_parts"));
    let output = program.args(["run", "own_parts.toml", "--quiet"]).current_dir(place.path(".")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ended = place.run(&["run", "p.toml", "--quiet", "--run-dir", "refused"]);
    assert!(ended.code == 2 && ended.stderr.contains("graphconv"), "{}", ended.stderr);
}

#[test]
fn registered_layer_trains_with_full_graph_schedules() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'graphconv'\nhidden = 16\n[train]\nepochs = 3\n");
    // `auto` cannot estimate the layer there.
    let mut program = Command::new(example("own_parts"));
    program.args(["run", "p.toml", "--dry-run", "--set", "train.schedule=auto"]).current_dir(place.path("."));
    let plan = String::from_utf8(program.output().unwrap().stdout).unwrap();
    assert!(plan.contains("schedule    \"mini-batch\": "), "{plan}");
    for schedule in ["full-graph", "tensor-parallel"] {
        let why = format!("not \"{schedule}\": the costs of the registered layer \"graphconv\" are not known");
        assert!(plan.contains(&why), "{plan}");
    }
    for schedule in ["full-graph", "tensor-parallel"] {
        let set = format!("train.schedule={schedule}");
        let runs = ["1", "2"].map(|processes| {
            let run = format!("{schedule}-{processes}");
            let args = ["run", "p.toml", "--quiet", "--set", &set];
            let mut program = Command::new(example("own_parts"));
            program.args(args).args(["--processes", processes, "--run-dir", &run]).current_dir(place.path("."));
            let output = program.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            summary(&place, &run)
        });
        assert_eq!(runs[0]["model_sha256"], runs[1]["model_sha256"], "{schedule}");
    }
}

/// The layer in models.md equals that of the example line by line.
#[test]
fn layer_in_the_documentation_equals_the_example() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (page, program) = (read("docs/book/src/models.md"), read("examples/own_parts.rs"));
    let (_, code) = page.split_once("```rust\n").expect("models.md shows a layer");
    let (code, _) = code.split_once("```").expect("models.md ends the listing");
    assert!(program.contains(code), "docs/book/src/models.md and examples/own_parts.rs differ");
}

/// Reads `name: value` lines of YAML, also as items of a list.
fn values<'a>(yaml: &'a str, name: &str) -> Vec<&'a str> {
    let value = |line: &'a str| line.trim().trim_start_matches("- ").strip_prefix(name)?.strip_prefix(": ");
    yaml.lines().filter_map(value).collect()
}

/// Reads a text of a ConfigMap.
fn text_of(yaml: &str, name: &str) -> String {
    let lines = yaml.lines().skip_while(|line| line.trim() != format!("{name}: |")).skip(1);
    let block = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    block.map(|line| format!("{}\n", line.trim_start_matches("    "))).collect()
}

#[test]
fn kubernetes_job_fits_its_hosts_file_service_and_pipeline() {
    let yaml = include_str!("../examples/kubernetes/job.yaml");
    let place = TestDir::new();
    let hosts = text_of(yaml, "hosts.txt");
    let one = |name: &str| match values(yaml, name)[..] {
        [value] => value.to_owned(),
        ref other => panic!("{name}: {other:?}"),
    };
    let (job, service, port) = (one("job-name"), one("subdomain"), one("port"));
    let expected: String = (0..hosts.lines().count()).map(|rank| format!("{job}-{rank}.{service}:{port}\n")).collect();
    assert_eq!(hosts, expected);
    let count = hosts.lines().count().to_string();
    assert_eq!([one("completions"), one("parallelism"), one("containerPort")], [&*count, &*count, &*port]);
    // The Service, the ConfigMap with its volume, the Job and its container, and the Secret.
    let documents: Vec<&str> = yaml.split("\n---\n").collect();
    for (document, kind, name) in [(0, "Service", &service), (1, "ConfigMap", &service), (2, "Job", &job)] {
        assert_eq!(values(documents[document], "kind"), [kind]);
        assert_eq!(values(documents[document], "name")[0], name);
    }
    assert_eq!([one("clusterIP"), one("completionMode")], ["None", "Indexed"]);
    let arguments: Vec<&str> = documents[2].lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
    let hosts_at = arguments.iter().position(|&argument| argument == "--hosts").unwrap();
    assert_eq!(arguments[hosts_at + 1], format!("{}/hosts.txt", values(yaml, "mountPath")[0]));
    place.write("pipeline.toml", text_of(yaml, "pipeline.toml"));
    place.write("hosts.txt", &hosts);
    let plan = place.succeed(&["run", "pipeline.toml", "--dry-run", "--hosts", "hosts.txt"]);
    assert!(plan.contains("partitions  4 by") && plan.contains("process 1   partitions 2 to 3"), "{plan}");
}
