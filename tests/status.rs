//! `status.json` and `gnnflow top`: what a running job does.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::FromRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::member::{Member, start};
use crate::common::{TestDir, children, hosts_on, kill, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\nbatch = 32\nfanouts = [5, 3]\n";
/// Settings of a run that lasts until the test ends it.
const ENDLESS: [&str; 2] = ["--set", "train.epochs=1000000"];
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn ready() -> TestDir {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    place
}

fn status(place: &TestDir) -> Option<Value> {
    // The file is replaced as a whole, so it is always complete.
    let text = std::fs::read_to_string(place.path("run/status.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Waits for a status with a property.
fn wait_for(place: &TestDir, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let now = status(place);
        if let Some(found) = now.as_ref().filter(|status| holds(status)) {
            return found.clone();
        }
        assert!(begin.elapsed() < TIME_LIMIT, "{what}: {now:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until all of `processes` have trained some steps, and checks the numbers.
fn check_running(place: &TestDir, processes: usize) {
    let is_training = |status: &Value| {
        let of = status["statuses"].as_array().unwrap();
        of.len() == processes && of.iter().all(|process| process["rates"]["steps"].as_f64().unwrap() > 0.0)
    };
    let running = wait_for(place, "steps of all processes", is_training);
    assert_eq!((running["state"].as_str(), running["processes"].as_u64()), (Some("running"), Some(processes as u64)));
    assert!(["training", "evaluating"].contains(&running["stage"]["name"].as_str().unwrap()), "{running}");
    assert_eq!(running["epochs"], 1_000_000);
    assert!(running["last_epoch"]["loss"].is_f64() && running["remaining_seconds"].is_f64(), "{running}");
    for (rank, of) in running["statuses"].as_array().unwrap().iter().enumerate() {
        let number = |name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"));
        assert_eq!(number("rank"), rank as f64);
        assert!(number("memory") > 1e6 && number("memory_peak") >= number("memory") / 2.0, "{of}");
        assert!(number("cpu_seconds") > 0.0 && number("threads") >= 1.0 && number("completed") > 0.0, "{of}");
        let process = std::fs::read_link(format!("/proc/{}/exe", number("pid"))).unwrap();
        assert_eq!(process, std::path::Path::new(env!("CARGO_BIN_EXE_gnnflow")).canonicalize().unwrap());
        for name in ["bytes_sent", "bytes_received", "messages_sent"] {
            assert_eq!(number(name) > 0.0, processes > 1, "{name}: {of}");
        }
    }
    let text = place.succeed(&["top", "run", "--once"]);
    assert!(text.contains(": training, epoch ") || text.contains(": evaluating, epoch "), "{text}");
    assert!(text.contains("of 1000000; for ") && text.contains("loss ") && text.contains("cache hits"), "{text}");
    assert_eq!(text.lines().skip_while(|line| !line.starts_with('─')).count(), 1 + processes, "{text}");
    let json: Value = serde_json::from_str(&place.succeed(&["top", "run", "--json"])).unwrap();
    assert_eq!(json["statuses"].as_array().unwrap().len(), processes);
}

fn spawn(place: &TestDir, args: &[&str]) -> Child {
    let all = [&["run", "p.toml", "--quiet", "--run-dir", "run"], args].concat();
    place.command(&all).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn status_of_one_process_is_renewed_until_it_is_killed() {
    let place = ready();
    let mut run = spawn(&place, &ENDLESS);
    check_running(&place, 1);
    let updated = status(&place).unwrap()["updated"].as_f64().unwrap();
    wait_for(&place, "a newer status", |status| status["updated"].as_f64().unwrap() > updated);
    run.kill().unwrap();
    run.wait().unwrap();
    // As if it had been killed earlier.
    let mut killed = status(&place).unwrap();
    killed["updated"] = Value::from(killed["updated"].as_f64().unwrap() - 60.0);
    place.write("run/status.json", killed.to_string());
    let text = place.succeed(&["top", "run"]);
    assert!(text.contains("no news for 1 min"), "{text}");
}

#[test]
fn rank_0_writes_the_status_of_all_processes() {
    let place = ready();
    let mut run = spawn(&place, &[&ENDLESS[..], &["--processes", "2"]].concat());
    check_running(&place, 2);
    // The parent completes the status of a process that was killed.
    let mut ranks = children(run.id());
    ranks.sort_unstable();
    kill(ranks[0]);
    assert!(!run.wait().unwrap().success());
    let failed = status(&place).unwrap();
    assert_eq!(failed["state"], "failed", "{failed}");
    let text = place.succeed(&["top", "run"]);
    assert!(text.contains(": failed after ") && text.contains("error: "), "{text}");
}

#[test]
fn status_of_hosts_names_the_lost_one() {
    let place = ready();
    let hosts = hosts_on(&place, &[0, 1]);
    let mut members: Vec<Member> = (0..2).map(|rank| start(&place, &hosts, rank, "run", &ENDLESS)).collect();
    check_running(&place, 2);
    kill(members[1].child.id());
    assert_eq!(members[0].end(), 5);
    let failed = status(&place).unwrap();
    assert_eq!(failed["state"], "failed", "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("lost rank 1"), "{failed}");
}

#[test]
fn finished_run_has_its_last_status() {
    let place = ready();
    for processes in ["1", "2"] {
        place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes]);
        let finished = status(&place).unwrap();
        assert_eq!((&finished["state"], &finished["last_epoch"]["epoch"]), (&"finished".into(), &2.into()));
        assert!(finished["remaining_seconds"].is_null() && finished["error"].is_null(), "{finished}");
        let text = place.succeed(&["top", "run"]);
        assert!(text.contains(": finished after ") && text.contains("epoch 2: loss "), "{text}");
    }
    // A refused run does not replace it.
    let before = status(&place);
    place.fail(&["run", "p.toml", "--run-dir", "run", "--set", "train.memory=1MB"], 2, &["train.memory"]);
    assert_eq!(status(&place), before);
}

#[test]
fn cache_of_features_is_in_the_status() {
    let place = ready();
    let cache = ["--set", "train.schedule.cache=1MB", "--set", "partition.features=partitioned"];
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", "2"];
    place.succeed(&[&args[..], &cache].concat());
    let cached = &status(&place).unwrap()["statuses"][0]["cache"];
    let of_summary = &summary(&place, "run")["cache"];
    assert!(cached["hits"].as_u64().unwrap() > 0 && cached["misses"].as_u64().unwrap() > 0, "{cached} {of_summary}");
}

#[test]
fn folder_without_a_status_is_an_error() {
    let place = TestDir::new();
    place.fail(&["top", "runs/none"], 2, &["runs/none/status.json", "no run writes there"]);
    place.write("run/status.json", "{}");
    place.fail(&["top", "run"], 3, &["run/status.json: not a status of a run"]);
}

/// Returns the answer to an HTTP request.
fn request(address: &str, text: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the values of a metric by rank.
fn values(text: &str, metric: &str) -> Vec<f64> {
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix(metric)?.strip_prefix('{')?.rsplit_once("} ")?;
        let rank = labels.strip_prefix("rank=\"")?.split('"').next()?;
        assert!(labels.contains("host=\""), "{line}");
        Some((rank.parse::<usize>().unwrap(), value.parse::<f64>().unwrap()))
    };
    let mut found: Vec<(usize, f64)> = text.lines().filter_map(of).collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, value)| value).collect()
}

#[test]
fn prometheus_reads_the_numbers_of_all_processes() {
    let place = ready();
    // A port that was free a moment ago, of an address that no other test uses.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let key = format!("cluster.metrics={address}");
    let mut run = spawn(&place, &[&ENDLESS[..], &["--processes", "2", "--set", &key]].concat());
    wait_for(&place, "both processes", |status| {
        status["statuses"].as_array().unwrap().iter().filter(|of| of["steps"].as_u64() > Some(0)).count() == 2
    });
    let answer = request(&address, "GET /metrics HTTP/1.1\r\nhost: gnnflow\r\n\r\n");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/openmetrics-text"), "{head}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    for metric in
        ["gnnflow_memory_bytes", "gnnflow_cpu_seconds_total", "gnnflow_sent_bytes_total", "gnnflow_steps_total"]
    {
        let values = values(text, metric);
        assert!(values.len() == 2 && values.iter().all(|value| *value > 0.0), "{metric}: {values:?} in {text}");
    }
    assert!(
        text.contains("gnnflow_processes{run=\"p\"} 2.0\n") && text.contains("\ngnnflow_loss{run=\"p\"} "),
        "{text}"
    );
    for (wrong, code) in [("GET / HTTP/1.1", 404), ("POST /metrics HTTP/1.1", 405), ("hello", 400)] {
        let answer = request(&address, &format!("{wrong}\r\nhost: gnnflow\r\n\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{wrong}: {answer}");
    }
    let headers = "x: y\r\n".repeat(20_000);
    let mut socket = TcpStream::connect(&address).unwrap();
    // The server may close the connection before it has read all.
    let _ = socket.write_all(format!("GET /metrics HTTP/1.1\r\n{headers}").as_bytes());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn metrics_do_not_change_results_and_need_a_free_address() {
    let place = ready();
    let model = |run: &str| summary(&place, run)["model_sha256"].clone();
    let run = |name: &str, more: &[&str]| {
        place.succeed(&[&["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", name], more].concat());
    };
    run("plain", &[]);
    run("served", &["--set", "cluster.metrics=127.0.0.1:0"]);
    assert_eq!(model("plain"), model("served"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let key = format!("cluster.metrics={}", taken.local_addr().unwrap());
    place.fail(&["run", "p.toml", "--run-dir", "run", "--set", &key], 4, &["cluster.metrics", "in use"]);
    place.fail(&["run", "p.toml", "--run-dir", "run", "--set", "cluster.metrics=9464"], 2, &["cluster.metrics"]);
}

/// Makes a terminal of this size: the end that shows it, and the end of the program.
fn terminal(rows: u16, columns: u16) -> (File, File) {
    let (mut ours, mut theirs) = (-1, -1);
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are valid or null, and the descriptors are open and owned by nothing else.
    unsafe {
        assert_eq!(libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size), 0);
        (File::from_raw_fd(ours), File::from_raw_fd(theirs))
    }
}

#[test]
fn screen_is_refreshed_until_the_user_ends_it() {
    let place = ready();
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    let (mut ours, theirs) = terminal(20, 160);
    // Without the terminal of the tests.
    let mut command = Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_gnnflow"), "top", "run"]).current_dir(place.path(""));
    let (stdin, stdout) = (theirs.try_clone().unwrap(), theirs.try_clone().unwrap());
    let mut top = command.stdin(stdin).stdout(stdout).stderr(theirs).spawn().unwrap();
    drop(command);
    let (sender, shown) = channel();
    let mut reader = ours.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // It fails when the program has ended.
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            let _ = sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
        }
    });
    let wait_for = |word: &str| {
        let (begin, mut text) = (Instant::now(), String::new());
        while !text.contains(word) {
            assert!(begin.elapsed() < TIME_LIMIT, "no {word:?} in {text:?}");
            text += &shown.recv_timeout(TIME_LIMIT).unwrap_or_else(|_| panic!("no {word:?} in {text:?}"));
        }
    };
    wait_for("finished");
    let mut status = status(&place).unwrap();
    status["error"] = "something".into();
    place.write("run/status.json", status.to_string());
    wait_for("something");
    ours.write_all(b"q").unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
}
