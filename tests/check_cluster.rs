//! `gnnflow check-cluster`: several processes on this machine.

use std::process::{Child, Command, Stdio};

use crate::common::relay::Relay;
use crate::common::{Ended, TestDir, hosts_on};

/// Makes the command of one process.
fn command(place: &TestDir, hosts: &str, rank: usize, args: &[&str]) -> Command {
    let mut command = place.command(&["check-cluster", hosts, "--rank", &rank.to_string(), "--seconds", "0.2"]);
    command.args(args).env("GNNFLOW_SECRET", "a secret for the tests");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(place: &TestDir, hosts: &str, rank: usize, args: &[&str]) -> Child {
    command(place, hosts, rank, args).spawn().unwrap()
}

fn end(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs all processes of a hosts file.
fn check(place: &TestDir, hosts: &str, size: usize, args: &[&str]) -> Vec<Ended> {
    let children: Vec<Child> = (0..size).map(|rank| start(place, hosts, rank, args)).collect();
    children.into_iter().map(end).collect()
}

fn json(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn all_links_and_hosts_are_measured() {
    let place = TestDir::new();
    for encrypt in ["false", "true"] {
        // Links of one host are not compared, so other work on this machine does not matter.
        let hosts = hosts_on(&place, &[0, 0, 0]);
        let ended = check(&place, &hosts, 3, &["--json", "--encrypt", encrypt]);
        assert!(ended.iter().all(|ended| ended.code == 0), "{ended:#?}");
        assert!(ended[1].stdout.is_empty() && ended[2].stdout.is_empty(), "{ended:#?}");
        let report = json(&ended[0]);
        assert_eq!(report["encrypted"].to_string(), encrypt);
        assert!(report["build"].as_str().unwrap().starts_with(env!("CARGO_PKG_VERSION")));
        assert_eq!(report["findings"], serde_json::json!([]));
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let links = report["links"].as_array().unwrap();
        let ends: Vec<(u64, u64)> =
            links.iter().map(|link| (link["from"].as_u64().unwrap(), link["to"].as_u64().unwrap())).collect();
        assert_eq!(ends, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
        for link in links {
            let (trip, rate) = (number(&link["round_trip_seconds"]), number(&link["bytes_per_second"]));
            assert!(trip > 1e-7 && trip < 1.0 && rate > 1e5 && rate < 1e12, "{link}");
        }
        for (rank, host) in report["hosts"].as_array().unwrap().iter().enumerate() {
            assert_eq!(host["rank"], rank);
            assert!(host["cores"].as_u64().unwrap() > 0 && host["available_memory_bytes"].as_u64().unwrap() > 0);
            assert_eq!(
                host["current_folder"]["path"].as_str().unwrap(),
                place.path("").to_str().unwrap().trim_end_matches('/')
            );
            assert!(number(&host["clock_seconds"]).abs() < 1.0, "{host}");
        }
    }
}

#[test]
fn table_shows_what_a_run_would_suffer_from() {
    let place = TestDir::new();
    let hosts = hosts_on(&place, &[0, 0]);
    let first = command(&place, &hosts, 0, &[]).env("TMPDIR", "/nonexistent").spawn().unwrap();
    let limited = command(&place, &hosts, 1, &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 256; exec \"$@\"", "sh"]).arg(limited.get_program()).args(limited.get_args());
    shell.current_dir(place.path("")).env("GNNFLOW_SECRET", "a secret for the tests");
    let second = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ended = [end(first), end(second)];
    assert_eq!([ended[0].code, ended[1].code], [5, 5], "{ended:#?}");
    assert!(ended[1].stdout.is_empty(), "{ended:#?}");
    let lines: Vec<&str> = ended[0].stdout.lines().filter(|line| line.starts_with("problem: ")).collect();
    assert_eq!(lines.len(), 2, "{ended:#?}");
    assert!(lines[0].contains("rank 0") && lines[0].contains("/nonexistent (TMPDIR)"), "{lines:?}");
    assert!(lines[1].contains("rank 1") && lines[1].contains("only 256 open files; raise the limit"), "{lines:?}");
    for words in ["0 → 1", "1 → 0", "MB/s", " ms", "2 processes"] {
        assert!(ended[0].stdout.contains(words), "{words}: {}", ended[0].stdout);
    }
    assert!(!ended[0].stdout.contains("no problem"), "{ended:#?}");
    assert!(ended[0].stderr.contains("measuring the links between 2 processes"), "{ended:#?}");
}

#[test]
fn slow_link_is_named() {
    let place = TestDir::new();
    let hosts = hosts_on(&place, &[0, 1]);
    let lines = std::fs::read_to_string(place.path(&hosts)).unwrap();
    let (first, second) = lines.trim().split_once('\n').unwrap();
    let relay = Relay::to(first);
    relay.limit_to(4_000_000);
    let through = format!("{hosts}-relay");
    place.write(&through, format!("{}\n{second}\n", relay.address));
    let (one, two) = (start(&place, &hosts, 0, &[]), start(&place, &through, 1, &[]));
    let ended = [end(one), end(two)];
    assert_eq!([ended[0].code, ended[1].code], [5, 5], "{ended:#?}");
    for words in [format!("problem: rank 0 ({first}) to rank 1 ({second}): "), "check cables, switch".to_owned()] {
        assert!(ended[0].stdout.contains(&words), "{words}: {}", ended[0].stdout);
    }
}

#[test]
fn members_that_cannot_join_are_named_with_advice() {
    let place = TestDir::new();
    let pair = |args: [&[&str]; 2]| {
        let hosts = hosts_on(&place, &[0, 0]);
        let children = [start(&place, &hosts, 0, args[0]), start(&place, &hosts, 1, args[1])];
        let ended = children.map(end);
        assert_eq!([ended[0].code, ended[1].code], [5, 5], "{ended:#?}");
        assert!(ended.iter().all(|ended| ended.stdout.is_empty()), "{ended:#?}");
        ended.map(|ended| ended.stderr)
    };
    for stderr in pair([&[], &["--encrypt", "true"]]) {
        assert!(stderr.contains("another cluster.encrypt") && stderr.contains("use the same value"), "{stderr}");
    }
    // The last of equal options would be an error, so this is in the environment of the first one only.
    let hosts = hosts_on(&place, &[0, 0]);
    let first = command(&place, &hosts, 0, &["--wait", "2"]).spawn().unwrap();
    let other = command(&place, &hosts, 1, &[]).env("GNNFLOW_SECRET", "another secret of the tests").spawn().unwrap();
    let [first, other] = [end(first), end(other)];
    assert_eq!((first.code, other.code), (5, 5), "{first:#?} {other:#?}");
    assert!(other.stderr.contains("another shared secret than this process; use the same one"), "{other:#?}");
    assert!(first.stderr.contains("rank 1, but showed a wrong secret"), "{first:#?}");
    assert!(first.stderr.contains("check hosts file, ranks, secret and firewalls"), "{first:#?}");

    let hosts = hosts_on(&place, &[0, 0]);
    let run = place.command(&["run", "p.toml", "--hosts", &hosts, "--rank", "1"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2), "without a pipeline file");
    let alone = end(start(&place, &hosts, 0, &["--wait", "1"]));
    assert_eq!(alone.code, 5, "{alone:#?}");
    assert!(alone.stderr.contains("lost rank 1") && alone.stderr.contains("did not join within 1 s"), "{alone:#?}");
}

#[test]
fn check_and_run_do_not_meet() {
    let place = TestDir::new();
    crate::common::planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
    let hosts = hosts_on(&place, &[0, 0]);
    let mut run = place.command(&["run", "p.toml", "--quiet", "--hosts", &hosts, "--rank", "1"]);
    run.env("GNNFLOW_SECRET", "a secret for the tests").stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    let ended = [end(start(&place, &hosts, 0, &[])), end(run)];
    for ended in &ended {
        assert_eq!(ended.code, 5, "{ended:#?}");
        let words = ["another pipeline", "check-cluster --seconds 0.2", "start the same command on all hosts"];
        assert!(words.iter().all(|words| ended.stderr.contains(words)), "{ended:#?}");
    }
}

#[test]
fn unusable_options_are_usage_errors() {
    let place = TestDir::new();
    let hosts = hosts_on(&place, &[0, 0]);
    let refused = |args: &[&str], words: &[&str]| place.fail(&[&["check-cluster", &hosts], args].concat(), 2, words);
    refused(&["--rank", "2"], &["rank 2", "does not exist among 2 processes"]);
    refused(&[], &["--rank"]);
    refused(&["--rank", "0", "--seconds", "0"], &["from 0.1 to 60"]);
    refused(&["--rank", "0", "--encrypt", "true"], &["needs a shared secret"]);
    place.fail(&["check-cluster", "nowhere.txt"], 2, &["nowhere.txt", "cannot read the hosts file"]);
    place.write("one", "localhost:7000\n");
    let alone = place.succeed(&["check-cluster", "one", "--rank", "0"]);
    assert!(alone.contains("1 process") && !alone.contains("MB/s"), "{alone}");
}

#[test]
fn rank_may_be_the_index_of_a_kubernetes_job() {
    let place = TestDir::new();
    let hosts = hosts_on(&place, &[0, 0]);
    let start = |index: &str| {
        let mut command = place.command(&["check-cluster", &hosts, "--seconds", "0.1", "--json"]);
        command.env("JOB_COMPLETION_INDEX", index).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ended = [start("0"), start("1")].map(end);
    assert!(ended.iter().all(|ended| ended.code == 0), "{ended:#?}");
    assert_eq!(json(&ended[0])["links"].as_array().unwrap().len(), 2);
}
