//! Elastic runs across hosts: they go on without lost processes, take them back, and have the results of an undisturbed run.

use std::time::{Duration, Instant};

use crate::common::member::{Member, TIME_LIMIT, start};
use crate::common::{TestDir, assert_same_results, epochs, hosts_on, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 400\nbatch = 32\nfanouts = [5, 3]\n\
                        checkpoint_every = 1\n[cluster]\nrestarts = 3\nelastic = true\nelastic_wait = '3s'\n";

fn ready() -> TestDir {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    // `planted` adds keys of [train] at the end.
    let text = std::fs::read_to_string(place.path("p.toml")).unwrap();
    let (cluster, rest) = text.split_once("[cluster]\n").unwrap().1.split_once("hash_blocks").unwrap();
    let (head, _) = text.split_once("[cluster]\n").unwrap();
    place.write("p.toml", format!("{head}hash_blocks{rest}\n[cluster]\n{cluster}"));
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    place
}

fn all_stderr(members: &[Member]) -> String {
    members.iter().enumerate().map(|(rank, member)| format!("rank {rank}:\n{}", member.stderr())).collect()
}

/// Waits until `more` epochs have been trained from now on.
fn wait_for_more_epochs(place: &TestDir, run: &str, more: usize, members: &[Member]) {
    let done = || std::fs::read_to_string(place.path(run).join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    let (since, before) = (Instant::now(), done());
    while done() < before + more {
        assert!(since.elapsed() < TIME_LIMIT, "{run}: {}", all_stderr(members));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end_all(members: &mut [Member]) -> Vec<i32> {
    members.iter_mut().map(Member::end).collect()
}

/// Stops a process for a moment, or lets it go on.
fn signal(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn lost_process_is_replaced_by_the_others_and_taken_back() {
    let place = ready();
    let sets = ["--set", "train.epochs=200"];
    place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "alone"], &sets[..]].concat());
    let hosts = hosts_on(&place, &[0, 1, 2]);
    let mut members: Vec<Member> = (0..3).map(|rank| start(&place, &hosts, rank, "run", &sets)).collect();
    wait_for_more_epochs(&place, "run", 2, &members);
    // The supervisor and its process, as if the host was lost.
    members[1].kill();
    members[0].wait_for("the run goes on with 2 of 3 processes, without rank 1 ");
    // While rank 0 stands still, the lost process comes back. So it does so long before the last epoch.
    let first = members[0].worker();
    signal(first, rustix::process::Signal::STOP);
    assert!(epochs(&place.path("run")).len() < 190, "the run is too short for this test");
    members[1] = start(&place, &hosts, 1, "run", &sets);
    std::thread::sleep(Duration::from_secs(1));
    signal(first, rustix::process::Signal::CONT);
    members[0].wait_for("a lost process has returned; starting again from the last checkpoint");
    let codes = end_all(&mut members);
    assert_eq!(codes, [0, 0, 0], "{}", all_stderr(&members));
    let ended = members[1].stderr();
    assert!(ended.contains("the run goes on without it, and takes it back at the next checkpoint"), "{ended}");
    // Taking it back is no error.
    assert!(!ended.contains("error: ") && !all_stderr(&members).contains("error: a lost process"), "{ended}");
    assert_eq!(summary(&place, "run")["processes"], 3);
    assert_same_results(&place, "alone", "run");
}

#[test]
fn run_ends_with_the_processes_that_are_left() {
    let place = ready();
    let hosts = hosts_on(&place, &[0, 1]);
    // There is no checkpoint at which a process could be taken back.
    let sets = ["--set", "train.checkpoint_every=1000"];
    let mut members: Vec<Member> = (0..2).map(|rank| start(&place, &hosts, rank, "run", &sets)).collect();
    wait_for_more_epochs(&place, "run", 2, &members);
    members[1].kill();
    members[0].wait_for("the run goes on with 1 of 2 processes, without rank 1 ");
    members[1] = start(&place, &hosts, 1, "run", &sets);
    members[1].wait_for("rank 1 waits: the run goes on without it");
    let codes = end_all(&mut members);
    assert_eq!(codes, [0, 0], "{}", all_stderr(&members));
    let text = members[1].stderr();
    assert!(text.contains("gnnflow: the run has ended without this process") && !text.contains("error: "), "{text}");
    assert_eq!(summary(&place, "run")["processes"], 1);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "alone"]);
    assert_same_results(&place, "alone", "run");
}

#[test]
fn all_processes_must_be_there_at_the_first_start() {
    let place = ready();
    let hosts = hosts_on(&place, &[0, 1, 2]);
    let mut members: Vec<Member> = [0, 2]
        .map(|rank| {
            let sets = ["--set", "cluster.start_timeout=2s", "--set", "cluster.restarts=1"];
            start(&place, &hosts, rank, "run", &sets)
        })
        .into();
    let codes = end_all(&mut members);
    let text = all_stderr(&members);
    assert_eq!(codes, [5, 5], "{text}");
    assert!(members[0].stderr().contains("did not join within 2 s"), "{text}");
    assert!(!text.contains("the run goes on with"), "{text}");
}

#[test]
fn processes_that_cannot_take_part_end_and_are_not_restarted() {
    let place = ready();
    let hosts = hosts_on(&place, &[0, 1]);
    let mut first = start(&place, &hosts, 0, "run", &[]);
    let mut other = start(&place, &hosts, 1, "run", &["--set", "train.seed=9"]);
    assert_eq!((first.end(), other.end()), (5, 5), "{} {}", first.stderr(), other.stderr());
    for text in [first.stderr(), other.stderr()] {
        assert!(text.contains("pipeline") && !text.contains("starting again"), "{text}");
    }
    // Two processes with the same rank, on different hosts: the earlier one ends.
    let hosts = hosts_on(&place, &[0, 1, 2]);
    let text = std::fs::read_to_string(place.path(&hosts)).unwrap();
    let own: Vec<&str> = text.lines().collect();
    let (host, port) = own[1].rsplit_once(':').unwrap();
    let port: u32 = port.parse().unwrap();
    place.write("other-host", format!("{}\n{host}:{}\n{}\n", own[0], port + 7, own[2]));
    let both = [&hosts[..], "other-host"];
    let few = ["--set", "train.epochs=5"];
    let mut first = start(&place, &hosts, 0, "twice", &few);
    let mut same = [(0, "twice"), (1, "again")].map(|(at, run)| start(&place, both[at], 1, run, &few));
    let since = Instant::now();
    let ended = loop {
        let ended = same.each_mut().map(|member| member.child.try_wait().unwrap().is_some());
        assert!(since.elapsed() < TIME_LIMIT, "{}", all_stderr(&same));
        if let Some(ended) = ended.iter().position(|&ended| ended) {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(same[ended].end(), 5, "{}", all_stderr(&same));
    assert!(same[ended].stderr().contains("rank 1 is taken"), "{}", all_stderr(&same));
    let left = 1 - ended;
    let mut third = start(&place, both[left], 2, "twice", &few);
    assert_eq!([first.end(), same[left].end(), third.end()], [0, 0, 0], "{}", all_stderr(&same));
}

#[test]
fn settings_without_effect_are_refused_or_reported() {
    let place = ready();
    let run = |more: &[&str], words: &[&str]| place.fail(&[&["run", "p.toml", "--dry-run"], more].concat(), 2, words);
    run(&["--set", "cluster.restarts=0"], &["cluster.elastic", "cluster.restarts"]);
    run(&["--set", "train.checkpoint_every=0"], &["cluster.elastic", "train.checkpoint_every is 0"]);
    run(&["--set", "cluster.elastic_wait=10ms"], &["cluster.elastic_wait", "set 1 s or more"]);
    run(&["--unset", "cluster.elastic"], &["cluster.elastic_wait", "has no effect without `elastic`"]);
    let here = place.run(&["run", "p.toml", "--processes", "2", "--set", "train.epochs=1"]);
    assert_eq!(here.code, 0, "{here:#?}");
    assert_eq!(here.stderr.matches("warning: cluster.elastic has no effect without --hosts").count(), 1, "{here:#?}");
}
