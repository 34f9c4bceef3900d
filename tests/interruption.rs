//! Runs that a signal ends with a checkpoint, and checkpoints within an epoch.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::member::{Member, TIME_LIMIT, start};
use crate::common::{TestDir, assert_same_results, children, hosts_on, kill, planted, wait_for_epochs};

/// One epoch has 23 steps in one partition, and 4 partitions have 6 steps each.
const MODEL: &str = "[model]\nkind = 'sage'\nhidden = 32\nnorm = 'batch'\n[train]\n";
const BATCHES: &str = "batch = 20\nfanouts = [5, 3]\n";
const SCHEDULES: [(&str, &str); 4] = [
    ("mini-batch", BATCHES),
    ("partition-parallel", BATCHES),
    ("full-graph", "schedule.intervals = 2\n"),
    ("tensor-parallel", ""),
];

fn ready(schedule: &str, settings: &str, epochs: usize) -> TestDir {
    let place = TestDir::new();
    // Batch norm needs the statistics of a batch.
    let model = if schedule == "mini-batch" { MODEL.to_owned() } else { MODEL.replace("norm = 'batch'\n", "") };
    let schedule = format!("schedule.kind = '{schedule}'\nepochs = {epochs}\n{settings}");
    planted(&place, "p.toml", &format!("{model}{schedule}"));
    place
}

fn succeed(place: &TestDir, args: &[&str]) {
    let ended = place.run(&[&["run", "p.toml", "--quiet"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
}

/// Starts a run, whose stderr goes to the file `stderr`. A shell may have started the tests in the background, where SIGINT is ignored.
fn spawn(place: &TestDir, args: &[&str]) -> Child {
    let stderr = File::create(place.path("stderr")).unwrap();
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(env!("CARGO_BIN_EXE_gnnflow")).args(["run", "p.toml"]);
    command.args(args).current_dir(place.path("")).stdin(Stdio::null()).stderr(stderr).spawn().unwrap()
}

fn signal(process: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(process as i32).unwrap(), signal);
}

fn stderr(place: &TestDir) -> String {
    std::fs::read_to_string(place.path("stderr")).unwrap()
}

/// Returns whether the checkpoint of `run` is within an epoch.
fn is_within_epoch(place: &TestDir, run: &str) -> bool {
    let bytes = std::fs::read(place.path(run).join("checkpoints/last.safetensors")).unwrap_or_default();
    let header = String::from_utf8_lossy(&bytes[..bytes.len().min(1 << 16)]).into_owned();
    header.contains(r#"\"part\":{"#)
}

#[test]
fn a_signal_leaves_a_checkpoint_from_which_the_run_has_equal_results() {
    for (schedule, settings) in SCHEDULES {
        let place = ready(schedule, settings, 60);
        succeed(&place, &["--run-dir", "whole", "--set", "train.checkpoint_every=0"]);
        for (processes, resumed, sent) in [("1", "2", Signal::TERM), ("2", "4", Signal::INT), ("4", "1", Signal::TERM)]
        {
            let run = format!("run-{processes}");
            let on_signal = ["--set", "train.checkpoint_every=0", "--set", "train.checkpoint_on_signal=true"];
            let args = [&["--run-dir", &run, "--processes", processes], &on_signal[..]].concat();
            let mut child = spawn(&place, &args);
            wait_for_epochs(&place, &run, 2, &mut child);
            signal(child.id(), sent);
            let code = child.wait().unwrap().code();
            let stderr = stderr(&place);
            assert_eq!(code, Some(130), "{schedule}, {processes} processes: {stderr}");
            assert!(stderr.contains("error: stopped by a signal after"), "{schedule}: {stderr}");
            assert!(stderr.contains("continue with --resume"), "{schedule}: {stderr}");
            assert!(!place.path(&run).join("summary.json").exists());
            succeed(&place, &["--run-dir", &run, "--resume", "--processes", resumed]);
            assert_same_results(&place, "whole", &run);
        }
    }
}

#[test]
fn a_signal_to_one_host_stops_all_hosts() {
    let place = ready("mini-batch", BATCHES, 60);
    succeed(&place, &["--run-dir", "whole"]);
    let hosts = hosts_on(&place, &[0, 1]);
    let args = ["--set", "train.checkpoint_on_signal=true", "--set", "train.checkpoint_every=0"];
    let mut members: Vec<Member> = (0..2).map(|rank| start(&place, &hosts, rank, "run", &args)).collect();
    wait_for_epochs(&place, "run", 1, &mut members[0].child);
    members[1].signal(Signal::TERM);
    let ends: Vec<i32> = members.iter_mut().map(Member::end).collect();
    let all: Vec<String> = members.iter().map(Member::stderr).collect();
    assert_eq!(ends, [130, 130], "{all:#?}");
    for stderr in &all {
        assert!(stderr.contains("stopped by a signal after") && stderr.contains("continue with --resume"), "{all:#?}");
    }
    succeed(&place, &["--run-dir", "run", "--resume"]);
    assert_same_results(&place, "whole", "run");
}

#[test]
fn a_second_signal_ends_the_run_at_once() {
    // A round that lasts long.
    let settings = "batch = 1\nfanouts = [-1, -1]\nschedule.average_every = 1000\n";
    let place = ready("partition-parallel", settings, 5000);
    for processes in ["1", "2"] {
        let run = format!("run-{processes}");
        let mut child =
            spawn(&place, &["--run-dir", &run, "--set", "train.checkpoint_on_signal=true", "--processes", processes]);
        // The folder is made just before training begins.
        let begin = Instant::now();
        while !place.path(&run).join("checkpoints").exists() {
            assert!(child.try_wait().unwrap().is_none() && begin.elapsed() < TIME_LIMIT, "{}", stderr(&place));
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        signal(child.id(), Signal::TERM);
        std::thread::sleep(Duration::from_millis(1200));
        let waits = child.try_wait().unwrap().is_none();
        assert!(waits && stderr(&place).contains("another SIGTERM ends it at once"), "{}", stderr(&place));
        let begin = Instant::now();
        signal(child.id(), Signal::TERM);
        assert!(!child.wait().unwrap().success());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }
}

#[test]
fn checkpoints_within_an_epoch_have_equal_results() {
    let place = ready("mini-batch", BATCHES, 6);
    let embedding = "[model.embedding]\ndim = 8\n";
    let learned = TestDir::new();
    let no_features: &[&str] = &["--set", "graph.generate.features=0"];
    let model = format!("{MODEL}epochs = 6\n{BATCHES}").replace("[train]", &format!("{embedding}[train]"));
    planted(&learned, "p.toml", &model);
    for (place, features) in [(&place, &[][..]), (&learned, no_features)] {
        let args = |own: &[&'static str]| [own, features].concat();
        succeed(place, &args(&["--run-dir", "whole", "--set", "train.checkpoint_every=0"]));
        succeed(place, &args(&["--run-dir", "often", "--processes", "2", "--set", "train.checkpoint_every=2 steps"]));
        assert_same_results(place, "whole", "often");
        for (processes, resumed) in [("1", "4"), ("2", "1")] {
            let run = format!("killed-{processes}");
            let every_step = ["--run-dir", &run, "--processes", processes, "--set", "train.checkpoint_every=1 step"];
            let mut child = spawn(place, &[&every_step, features].concat());
            let begin = Instant::now();
            while !is_within_epoch(place, &run) {
                assert!(child.try_wait().unwrap().is_none() && begin.elapsed() < TIME_LIMIT, "{}", stderr(place));
            }
            // A stopped process writes no later checkpoint.
            let mut all = children(child.id());
            all.push(child.id());
            all.iter().for_each(|&process| signal(process, Signal::STOP));
            let within = is_within_epoch(place, &run);
            all.into_iter().for_each(kill);
            child.wait().unwrap();
            let resume = place
                .run(&[&["run", "p.toml", "--run-dir", &run, "--resume", "--processes", resumed], features].concat());
            assert_eq!(resume.code, 0, "{}", resume.stderr);
            assert_eq!(resume.stderr.contains("note: the run continues after"), within, "{}", resume.stderr);
            assert_same_results(place, "whole", &run);
        }
    }
}

#[test]
fn checkpoints_by_time_are_written_within_epochs() {
    let place = ready("mini-batch", BATCHES, 12);
    succeed(&place, &["--run-dir", "whole"]);
    for (processes, window) in [("1", "train.window=1"), ("2", "train.window=2")] {
        let run = format!("run-{processes}");
        let args =
            ["--run-dir", &run, "--processes", processes, "--set", window, "--set", "train.checkpoint_every=1ms"];
        let mut child = spawn(&place, &args);
        let begin = Instant::now();
        while !is_within_epoch(&place, &run) {
            assert!(child.try_wait().unwrap().is_none() && begin.elapsed() < TIME_LIMIT, "{}", stderr(&place));
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut all = children(child.id());
        all.push(child.id());
        all.into_iter().for_each(kill);
        child.wait().unwrap();
        succeed(&place, &[&args[..], &["--resume"]].concat());
        assert_same_results(&place, "whole", &run);
    }
    for (schedule, settings) in SCHEDULES {
        let place = ready(schedule, settings, 2);
        succeed(&place, &["--run-dir", "whole"]);
        for every in ["1ms", "5 steps"] {
            succeed(&place, &["--run-dir", "run", "--set", &format!("train.checkpoint_every={every}")]);
            assert_same_results(&place, "whole", "run");
        }
    }
    let ended = place.run(&["run", "p.toml", "--dry-run", "--set", "train.checkpoint_every=5 epochs"]);
    assert!(ended.code == 2 && ended.stderr.contains("500 steps"), "{}", ended.stderr);
}

#[test]
fn a_checkpoint_within_an_epoch_needs_that_epoch() {
    let place = ready("mini-batch", BATCHES, 150);
    let mut child = spawn(&place, &["--run-dir", "run", "--set", "train.checkpoint_on_signal=true"]);
    wait_for_epochs(&place, "run", 3, &mut child);
    signal(child.id(), Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{}", stderr(&place));
    if is_within_epoch(&place, "run") {
        let ended = place.run(&["run", "p.toml", "--run-dir", "run", "--resume", "--set", "train.epochs=2"]);
        assert!(ended.code == 2 && ended.stderr.contains("set train.epochs to"), "{}", ended.stderr);
    }
    // A new run in the folder keeps the files of the interrupted one.
    succeed(&place, &["--run-dir", "run", "--set", "train.epochs=1"]);
    assert!(place.path("run/earlier/1/checkpoints/last.safetensors").exists());
}

#[test]
fn processes_with_different_checkpoints_are_refused() {
    let place = ready("mini-batch", BATCHES, 3);
    let hosts = hosts_on(&place, &[0, 1]);
    let mut first = start(&place, &hosts, 0, "run", &["--set", "train.checkpoint_every=10min"]);
    let mut second = start(&place, &hosts, 1, "run", &[]);
    for member in [&mut first, &mut second] {
        assert_eq!(member.end(), 5, "{}", member.stderr());
        assert!(member.stderr().contains("checkpoint_every 10min"), "{}", member.stderr());
    }
}
