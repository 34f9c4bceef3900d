//! `status.json` and `gnnflow top`: what a running job does.

use std::process::{Child, Stdio};
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
