//! The command line: output streams, exit codes and errors.

use crate::common::TestDir;
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};

const PIPELINE: &str = r#"name = "small"
[graph]
generate = { kind = "planted", nodes = 300, edges = 1500, features = 8, classes = 3 }
[partition]
parts = 2
[model]
kind = "sage"
layers = 2
hidden = 16
[train]
epochs = 2
batch = 50
fanouts = [5, 5]
"#;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn options_that_are_keys_of_the_pipeline_lead_to_set() {
    let place = TestDir::new();
    for (option, keys) in [("--epochs", "`--set train.epochs=5`"), ("--batch-size", "`--set train.batch=5`")] {
        place.fail(&["run", "p.toml", option, "5"], 2, &[&format!("unexpected argument '{option}'"), keys]);
    }
    let ended = place.run(&["run", "p.toml", "--procesess", "2"]);
    assert!(ended.code == 2 && !ended.stderr.contains("key of the pipeline"), "{}", ended.stderr);
    assert!(ended.stderr.contains("'--processes'"), "{}", ended.stderr);
    // No value begins with `--`, so there is no advice to write an unknown option as a value.
    for args in [&["run", "p.toml", "--link"][..], &["import", "a.csv", "--link"], &["inspect", "a", "--procesess"]] {
        let ended = place.run(args);
        assert!(ended.stderr.starts_with("error: unexpected argument '--"), "{}", ended.stderr);
        assert!(
            ended.code == 2 && !ended.stderr.contains("tip:") && !ended.stderr.contains("-- -"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("try '--help'"), "{}", ended.stderr);
    }
}

#[test]
fn words_of_other_systems_are_understood() {
    let place = TestDir::new();
    for (line, instead, meant) in [
        ("kind = \"sage\"", "kind = \"GraphSAGE\"", "did you mean \"sage\"?"),
        ("batch = 50", "batch_size = 50", "did you mean \"batch\"?"),
        ("layers = 2", "num_layers = 2", "did you mean \"layers\"?"),
        ("hidden = 16", "hidden_channels = 16", "did you mean \"hidden\"?"),
    ] {
        place.write("p.toml", PIPELINE.replace(line, instead));
        place.fail(&["run", "p.toml"], 2, &[meant]);
    }
}

#[test]
fn config_errors_are_reported_with_line_and_key() {
    let place = TestDir::new();
    for (line, instead, expected) in [
        ("hidden = 16", "hiden = 16", "p.toml:9: model.hiden: unknown key; did you mean \"hidden\"?"),
        ("layers = 2", "layers = \"two\"", "p.toml:8: model.layers: expected an integer, found the string \"two\""),
        ("fanouts = [5, 5]", "fanouts = [5]", "p.toml:13: train.fanouts: 1 fanout for 2 layers; give one per layer"),
        (
            "kind = \"sage\"",
            "kind = \"gcn\"\nheads = 4",
            "p.toml:8: model.heads: unknown key of `gcn`; only `gat` and `gatv2` have it",
        ),
        ("epochs = 2", "epochs = 0", "p.toml:11: train.epochs: must be at least 1, but is 0"),
        ("epochs = 2", "schedule = \"fullgraph\"", "p.toml:11: train.schedule: expected one of \"mini-batch\""),
        (
            "parts = 2",
            "parts = 2\nmethod = \"multi-level\"",
            "p.toml:6: partition.method: expected one of \"random\", \"range\", \"spring\", \"dbh\", \"greedy\", \"hdrf\", \"2ps-l\", \"ldg\", \"fennel\", \"metis\", \"multilevel\", \"file\", or a registered name (this program registers no other), found \"multi-level\"; did you mean \"multilevel\"?",
        ),
        (
            "edges = 1500",
            "edges = 15",
            "p.toml:3: graph.generate.edges: 15 edges for 300 nodes: must be at least the number of nodes, because every node has an edge",
        ),
        ("[train]", "[train", "p.toml:10: "),
    ] {
        place.write("p.toml", PIPELINE.replace(line, instead));
        let errors = place.fail(&["run", "p.toml", "--quiet"], 2, &[]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].strip_prefix("error: ").unwrap().starts_with(expected), "{errors:?}");
        assert!(!place.path("runs").exists() && !place.path(".gnnflow").exists(), "{line}: work started");
    }
}

#[test]
fn one_column_for_both_ends_of_edges_is_refused() {
    let place = TestDir::new();
    let graph = "[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\n[graph.columns]\nsrc = 'a'\n";
    place.write("p.toml", format!("{graph}dst = 'a'\n"));
    place.fail(&["prepare", "p.toml"], 2, &["p.toml:6: graph.columns.dst: `src` names the same column"]);
    place.write("p.toml", graph.replace("'a'", "'dst'"));
    place.fail(&["prepare", "p.toml"], 2, &["graph.columns.dst: `src` names the same column"]);
}

#[test]
fn several_config_errors_are_all_reported() {
    let place = TestDir::new();
    place.write("p.toml", PIPELINE.replace("hidden", "hiden").replace("epochs = 2", "epochs = \"x\""));
    let errors = place.fail(&["run", "p.toml", "--set", "train.batch=0"], 2, &[]);
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(errors[2], "error: --set train.batch: must be at least 1, but is 0");
}

#[test]
fn more_processes_than_partitions_are_refused_before_any_starts() {
    let place = TestDir::new();
    place.write("p.toml", PIPELINE);
    place.fail(&["run", "p.toml", "--processes", "3"], 2, &["p.toml:5", "more processes (3) than partitions (2)"]);
    place.write("hosts", "a:1\nb:1\nc:1\n");
    place.fail(&["run", "p.toml", "--hosts", "hosts", "--rank", "0"], 2, &["more processes (3) than partitions (2)"]);
    place.write("hosts", "a:1\nb\n");
    place.fail(&["run", "p.toml", "--hosts", "hosts", "--rank", "0"], 2, &["hosts:2"]);
}

#[test]
fn missing_or_invalid_input_is_reported_with_its_file() {
    let place = TestDir::new();
    place.fail(&["run", "nope.toml"], 2, &["nope.toml"]);
    place.write("p.toml", "[graph]\nnodes = 'no-nodes.parquet'\nedges = 'e.parquet'\n");
    place.fail(&["run", "p.toml", "--dry-run"], 3, &["no-nodes.parquet"]);
    place.write("no-nodes.parquet", "this is not Parquet");
    place.fail(&["run", "p.toml", "--dry-run"], 3, &["no-nodes.parquet"]);
    place.write("p.toml", "[graph]\ndataset = 'prepared'\n");
    place.fail(&["run", "p.toml", "--dry-run"], 3, &["prepared"]);
    std::fs::create_dir(place.path("prepared")).unwrap();
    place.fail(&["run", "p.toml", "--dry-run"], 3, &["prepared", "manifest.json"]);
    place.write("prepared/manifest.json", r#"{ "format": "gnnflow-dataset", "schema": 999 }"#);
    place.fail(&["run", "p.toml", "--dry-run"], 3, &["prepared", "999"]);
}

#[test]
fn invalid_arguments_exit_with_2() {
    let place = TestDir::new();
    place.write("p.toml", PIPELINE);
    for args in [
        &["fly"][..],
        &["run"],
        &["run", "p.toml", "--processes", "0"],
        &["run", "p.toml", "--rank", "1"],
        &["run", "p.toml", "--processes", "2", "--hosts", "h"],
        &["generate", "cube", "--out", "d"],
        &["generate", "planted"],
        &["generate", "planted", "--out", "d", "--nodes", "10", "--scale", "3"],
        &["generate", "planted", "--out", "d", "--nodes", "10", "--edges", "3"],
    ] {
        place.fail(args, 2, &[]);
    }
    assert!(!place.path("d").exists());
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let place = TestDir::new();
    place.write("p.toml", PIPELINE);
    let text = place.succeed(&["run", "p.toml", "--dry-run", "--processes", "2"]);
    for words in [
        "300 nodes, at most 3,000 edges",
        "process 1   partition 1",
        "step        4 rounds",
        "generate (planted) → prepare → train",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let plan =
        json(&place.succeed(&["run", "p.toml", "--dry-run", "--json", "--set", "partition.topology=replicated"]));
    assert_eq!((plan["topology"].as_str(), plan["processes"].as_array().unwrap().len()), (Some("replicated"), 1));
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 1, "only p.toml is there");
}

#[test]
fn generated_graphs_can_be_inspected_in_text_and_json() {
    let place = TestDir::new();
    let args =
        ["generate", "planted", "--out", "d", "--nodes", "200", "--edges", "1000", "--features", "4", "--classes", "3"];
    let written = json(&place.succeed(&[&args[..], &["--json"]].concat()));
    assert_eq!((&written["nodes"], &written["edges"]), (&200.into(), &1000.into()));
    let found = json(&place.succeed(&["inspect", "d", "--json", "--quiet"]));
    assert_eq!(found["kind"], "dump");
    let text = place.succeed(&["inspect", "d"]);
    assert!(text.contains("nodes.parquet") && text.contains("200"), "{text}");

    let edges = place.path("d/edges.parquet");
    let before = std::fs::read(&edges).unwrap();
    place.succeed(&args);
    assert!(before == std::fs::read(&edges).unwrap(), "equal arguments give equal bytes");

    place.succeed(&["generate", "rmat", "--out", "r", "--scale", "6", "--edge-factor", "4", "--quiet"]);
    assert_eq!(json(&place.succeed(&["inspect", "r/edges.parquet", "--json"]))["tables"][0]["rows"], 256);
    place.fail(&["inspect", "nothing"], 3, &["nothing"]);
    place.fail(&["inspect", "."], 3, &[]);
}

#[test]
fn quiet_command_writes_nothing_to_stderr() {
    let place = TestDir::new();
    let args = ["generate", "planted", "--out", "d", "--nodes", "100", "--edges", "300"];
    let loud = place.run(&args);
    assert!(loud.stdout.contains("100 nodes") && !loud.stderr.is_empty(), "{loud:?}");
    let quiet = place.run(&[&args[..], &["--quiet"]].concat());
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
}

#[test]
fn reference_equals_the_page_in_the_book_and_has_a_schema() {
    let place = TestDir::new();
    let page = include_str!("../docs/book/src/reference.md");
    assert!(place.succeed(&["reference"]) == page);
    let schema = json(&place.succeed(&["reference", "--json"]));
    assert!(schema["properties"]["train"].is_object());
}

/// Returns the words in `code` that start the first column of a Markdown table's rows, between two headings.
fn first_column<'a>(page: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    let section = page.split_once(from).unwrap().1.split_once(to).unwrap().0;
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split(", `").map(|code| code.split([' ', '`']).next().unwrap())).collect()
}

#[test]
fn commands_page_lists_the_commands_and_the_options_of_run() {
    let (place, page) = (TestDir::new(), include_str!("../docs/book/src/commands.md"));
    let help = place.succeed(&["--help"]);
    let commands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !["", "help"].contains(name))
        .collect();
    assert_eq!(first_column(page, "## Commands", "A *stale* dataset"), commands);
    let help = place.succeed(&["run", "--help"]);
    let (_, help) = help.split_once("\nOptions:\n").unwrap();
    let options: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2).collect();
    let common = ["--quiet", "--json", "--help"];
    let own = options.into_iter().filter(|word| !common.contains(word));
    assert_eq!(first_column(page, "Options of `run`", "```sh"), own.collect::<Vec<_>>());
}

#[test]
fn closed_stdout_is_not_an_error() {
    let place = TestDir::new();
    let mut child = place.command(&["reference"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn interrupted_command_exits_with_130_and_leaves_no_output() {
    let place = TestDir::new();
    let args = ["generate", "rmat", "--out", "d", "--scale", "22", "--edge-factor", "64", "--features", "64"];
    // A program inherits ignored interrupts, as in a script behind `&`. `env` restores the default.
    let program = place.command(&args);
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program.get_program()).args(program.get_args());
    let mut child = command.current_dir(place.path("")).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert!(stderr.ends_with("error: interrupted\n"), "{stderr}");
    assert!(!place.path("d/nodes.parquet").exists() && !place.path("d/edges.parquet").exists());
}

#[test]
fn help_and_version_are_printed_to_stdout() {
    let place = TestDir::new();
    assert!(place.succeed(&["--version"]).starts_with("gnnflow "));
    assert!(place.succeed(&["run", "--help"]).contains("--dry-run"));
}

#[test]
fn long_help_begins_with_examples_and_short_help_with_one_sentence() {
    let place = TestDir::new();
    let help = place.succeed(&["--help"]);
    let commands = first_column(include_str!("../docs/book/src/commands.md"), "## Commands", "A *stale* dataset");
    assert!(help.starts_with("Examples:\n  gnnflow run"), "{help}");
    for command in commands {
        let long = place.succeed(&[command, "--help"]);
        assert!(long.starts_with(&format!("Examples:\n  gnnflow {command}")), "{long}");
        let short = place.succeed(&[command, "-h"]);
        let first = short.lines().next().unwrap();
        assert!(first.chars().count() <= 140 && !first.contains(". ") && !short.contains("Examples:"), "{short}");
    }
}

#[test]
fn release_archive_has_a_program_that_runs() {
    let place = TestDir::new();
    let binary = place.command(&[]).get_program().to_owned();
    let pack = |folder: &str| {
        let mut archive = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tools/release/archive"));
        let ended = archive.arg(&binary).arg(place.path(folder)).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap().trim().to_owned()
    };
    let [first, second] = ["a", "b"].map(pack);
    assert!(std::fs::read(&first).unwrap() == std::fs::read(second).unwrap(), "equal bytes");
    let run = |program: &str, args: &[&str]| {
        let ended = Command::new(program).args(args).current_dir(place.path("a")).output().unwrap();
        assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap()
    };
    assert!(run("sha256sum", &["--check", "SHA256SUMS"]).contains(": OK"));
    run("tar", &["--extract", "--file", &first]);
    let name = first.rsplit('/').next().unwrap().strip_suffix(".tar.gz").unwrap();
    let folder = place.path("a").join(name);
    let files =
        ["man/gnnflow-run.1", "completions/gnnflow.bash", "LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md"];
    assert!(files.iter().all(|file| folder.join(file).is_file()));
    let version = run(folder.join("gnnflow").to_str().unwrap(), &["--version"]);
    assert_eq!(version.trim(), concat!("gnnflow ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_and_manual_pages_have_all_commands() {
    let place = TestDir::new();
    let help = place.run(&["--help"]).stdout;
    let (_, commands) = help.split_once("Commands:").unwrap();
    let commands = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let commands: Vec<&str> = commands.take_while(|name| !name.starts_with('-')).collect();
    assert!(commands.len() >= 20, "{commands:?}");
    place.succeed(&["man", "--out", "pages"]);
    for shell in ["bash", "zsh", "fish"] {
        let text = place.run(&["completions", shell]).stdout;
        for command in &commands {
            assert!(text.contains(command), "{shell}: {command}");
        }
    }
    for command in commands {
        let page = std::fs::read_to_string(place.path(&format!("pages/gnnflow-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(command), "{command}");
    }
    place.fail(&["completions", "csh"], 2, &["csh", "bash"]);
}
