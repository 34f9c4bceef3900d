//! Members of a run across hosts, all on this machine: restarts and signals.

use std::time::{Duration, Instant};

use crate::common::member::{Member, TIME_LIMIT, start};
use crate::common::{TestDir, assert_same_results, hosts_on, kill, planted, summary, wait_for_epochs};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 60\nbatch = 32\nfanouts = [5, 3]\n\
                        checkpoint_every = 1\n";
/// Settings of a run that lasts until the test ends it.
const ENDLESS: [&str; 2] = ["--set", "train.epochs=100000"];
/// Writes a hosts file whose processes are all on one host. Returns its name.
fn hosts(place: &TestDir, size: usize) -> String {
    hosts_on(place, &vec![0; size])
}

fn start_all(place: &TestDir, size: usize, run: &str, args: &[&str]) -> Vec<Member> {
    let hosts = hosts(place, size);
    (0..size).map(|rank| start(place, &hosts, rank, run, args)).collect()
}

fn all_stderr(members: &[Member]) -> String {
    members.iter().enumerate().map(|(rank, member)| format!("rank {rank}:\n{}", member.stderr())).collect()
}

/// Waits until the first epoch is trained. No member may end before.
fn wait_for_first_epoch(place: &TestDir, run: &str, members: &mut [Member]) {
    let since = Instant::now();
    let metrics = place.path(run).join("metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|lines| lines.contains('\n')) {
        let ended = members.iter_mut().any(|member| member.child.try_wait().unwrap().is_some());
        assert!(!ended && since.elapsed() < TIME_LIMIT, "{run}: {}", all_stderr(members));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ready() -> TestDir {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    place
}

#[test]
fn parts_of_tables_are_on_the_hosts_of_their_partitions() {
    let place = ready();
    let args = ["--set", "train.epochs=1", "--set", "infer.parts=true"];
    for folders in [["first", "second"], ["shared", "shared"]] {
        let hosts = hosts_on(&place, &[0, 1]);
        let mut members: Vec<Member> = (0..2).map(|rank| start(&place, &hosts, rank, folders[rank], &args)).collect();
        let ends: Vec<i32> = members.iter_mut().map(Member::end).collect();
        assert_eq!(ends, [0, 0], "{}", all_stderr(&members));
    }
    let bytes = |folder: &str, name: &str| std::fs::read(place.path(folder).join(name)).unwrap();
    for table in ["predictions.parquet", "embeddings.parquet"] {
        for (folder, parts) in [("first", 0..2), ("second", 2..4), ("shared", 0..4)] {
            let name = |part: usize| format!("{table}/part-0000{part}.parquet");
            let entries = std::fs::read_dir(place.path(folder).join(table)).unwrap();
            assert_eq!(entries.count(), parts.len() + 1, "{folder}: the parts and _SUCCESS");
            assert!(parts.clone().all(|part| bytes(folder, &name(part)) == bytes("shared", &name(part))));
            assert!(bytes(folder, &format!("{table}/_SUCCESS")).is_empty());
        }
    }
    assert_eq!(summary(&place, "first")["predictions_sha256"], summary(&place, "shared")["predictions_sha256"]);
}

#[test]
fn features_are_fetched_from_other_hosts_only() {
    let place = ready();
    let bytes = |on: &[u32]| {
        let (run, hosts) = (format!("on-{}-hosts", on[1] + 1), hosts_on(&place, on));
        let args = ["--set", "train.epochs=2"];
        let mut members: Vec<Member> = (0..on.len()).map(|rank| start(&place, &hosts, rank, &run, &args)).collect();
        let ended: Vec<i32> = members.iter_mut().map(Member::end).collect();
        assert!(ended.iter().all(|&code| code == 0), "{}", all_stderr(&members));
        summary(&place, &run)["bytes_sent"].as_u64().unwrap()
    };
    let (one, two) = (bytes(&[0, 0]), bytes(&[0, 1]));
    assert_same_results(&place, "on-1-hosts", "on-2-hosts");
    assert!(one < two, "{one} bytes on one host, {two} on two");
    place.succeed(&["run", "p.toml", "--quiet", "--processes", "2", "--set", "train.epochs=2", "--run-dir", "local"]);
    assert_eq!(summary(&place, "local")["bytes_sent"], one, "`--processes` are on one host");
}

#[test]
fn killed_rank_is_restarted_and_the_model_has_the_same_bits() {
    let place = ready();
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "whole"]);
    for (victim, after) in [(1, 2), (0, 5)] {
        let run = format!("killed-{victim}");
        let mut members = start_all(&place, 2, &run, &["--set", "cluster.restarts=2"]);
        wait_for_epochs(&place, &run, after, &mut members[0].child);
        kill(members[victim].worker());
        for rank in 0..2 {
            assert_eq!(members[rank].end(), 0, "{}", all_stderr(&members));
            let stderr = members[rank].stderr();
            let reason = if rank == victim { "killed by SIGKILL" } else { "exit code 5 (a process was lost)" };
            let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("(restart ")).collect();
            assert!(lines.len() == 1 && lines[0].contains("(restart 1 of 2)"), "{stderr}");
            assert!(lines[0].contains(reason), "{stderr}");
        }
        assert!(members[0].stderr().contains("starting again from the last checkpoint"), "{}", members[0].stderr());
        assert_same_results(&place, "whole", &run);
    }
}

#[test]
fn rank_killed_before_the_others_join_starts_without_the_checkpoint_of_an_older_run() {
    let place = ready();
    let run = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=5"];
    place.succeed(&run);
    let older = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap();
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "whole", "--set", "train.epochs=5"]);
    let hosts = hosts(&place, 2);
    let args = ["--set", "cluster.restarts=2", "--set", "train.epochs=5"];
    let mut first = start(&place, &hosts, 0, "run", &args);
    kill(first.worker());
    first.wait_for("starting again from the beginning (restart 1 of 2)");
    let mut second = start(&place, &hosts, 1, "run", &args);
    assert_eq!((first.end(), second.end()), (0, 0), "{}", all_stderr(&[first, second]));
    assert_ne!(std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap(), older, "nothing was trained");
    assert_same_results(&place, "whole", "run");
}

#[test]
fn rank_0_decides_whether_a_run_resumes() {
    let place = ready();
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "whole"]);
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=20"]);
    // After a power cut, for example, rank 1 is started by hand without `--resume`.
    let hosts = hosts(&place, 2);
    let mut members = vec![start(&place, &hosts, 0, "run", &["--resume"]), start(&place, &hosts, 1, "run", &[])];
    for rank in 0..2 {
        assert_eq!(members[rank].end(), 0, "{}", all_stderr(&members));
    }
    assert_same_results(&place, "whole", "run");
    let mut members = start_all(&place, 2, "run", &[]);
    wait_for_epochs(&place, "run", 1, &mut members[0].child);
    for rank in 0..2 {
        assert_eq!(members[rank].end(), 0, "{}", all_stderr(&members));
    }
    assert_same_results(&place, "whole", "run");
}

#[test]
fn rank_without_restarts_left_ends_with_the_exit_code_of_its_worker() {
    let place = ready();
    let mut members = start_all(&place, 2, "run", &[&ENDLESS[..], &["--set", "cluster.restarts=1"]].concat());
    wait_for_epochs(&place, "run", 1, &mut members[0].child);
    kill(members[1].worker());
    members.iter_mut().for_each(|member| member.wait_for("(restart 1 of 1)"));
    // A rank killed before it joins would be reported only after `cluster.start_timeout`.
    let trained = std::fs::read_to_string(place.path("run/metrics.jsonl")).unwrap().lines().count();
    wait_for_epochs(&place, "run", trained + 2, &mut members[0].child);
    kill(members[1].worker());
    let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
    assert_eq!(codes, [5, 5], "{}", all_stderr(&members));
    assert!(members[0].stderr().contains("error: lost rank 1"), "{}", all_stderr(&members));
    assert!(members[1].stderr().contains("gnnflow: the process was killed by SIGKILL"), "{}", all_stderr(&members));
}

#[test]
fn permanent_failure_is_not_restarted() {
    let place = ready();
    let restarts = ["--set", "cluster.restarts=2"];
    let mut members = start_all(&place, 2, "nan", &[&restarts[..], &["--set", "train.optimizer.lr=1e30"]].concat());
    let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
    assert!(codes.contains(&3) && codes.iter().all(|code| [3, 5].contains(code)), "{}", all_stderr(&members));
    assert!(!all_stderr(&members).contains("restart "), "{}", all_stderr(&members));

    let hosts = hosts(&place, 2);
    let other = [&restarts[..], &["--set", "train.seed=9"]].concat();
    let mut members = [start(&place, &hosts, 0, "other-0", &restarts), start(&place, &hosts, 1, "other-1", &other)];
    let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
    assert_eq!(codes, [5, 5], "{}", all_stderr(&members));
    assert!(members.iter().all(|member| member.stderr().contains("another pipeline")), "{}", all_stderr(&members));
    assert!(!all_stderr(&members).contains("restart "), "{}", all_stderr(&members));
}

#[test]
fn hosts_that_share_a_folder_generate_and_prepare_once() {
    for _ in 0..10 {
        let place = ready();
        let mut members = start_all(&place, 4, "run", &["--set", "train.epochs=1"]);
        let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
        assert_eq!(codes, [0; 4], "{}", all_stderr(&members));
    }
}

#[test]
fn worker_of_a_killed_supervisor_ends() {
    let place = ready();
    let mut members = start_all(&place, 2, "run", &[&ENDLESS[..], &["--set", "cluster.restarts=2"]].concat());
    wait_for_epochs(&place, "run", 1, &mut members[0].child);
    let worker = members[1].worker();
    members[1].signal(rustix::process::Signal::KILL);
    assert_eq!(members[1].end(), -1);
    let since = Instant::now();
    // A killed process remains as a zombie until its new parent waits for it.
    let running = || std::fs::read_to_string(format!("/proc/{worker}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while running() {
        assert!(since.elapsed() < TIME_LIMIT);
        std::thread::sleep(Duration::from_millis(2));
    }
    members[0].wait_for("(restart 1 of 2)");
    members[0].signal(rustix::process::Signal::TERM);
    assert_eq!(members[0].end(), 130, "{}", all_stderr(&members));
}

/// Sends a signal to all members after the first epoch, `tries` times. All must exit with 130.
fn assert_interrupted(restarts: &str, tries: usize) {
    let place = ready();
    for attempt in 0..tries {
        let run = format!("run-{attempt}");
        let mut members = start_all(&place, 3, &run, &[&ENDLESS[..], &["--set", restarts]].concat());
        wait_for_first_epoch(&place, &run, &mut members);
        let signal = if attempt % 2 == 0 { rustix::process::Signal::TERM } else { rustix::process::Signal::INT };
        members.iter().for_each(|member| member.signal(signal));
        let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
        assert_eq!(codes, [130, 130, 130], "try {attempt}: {}", all_stderr(&members));
    }
}

#[test]
fn signal_to_all_members_ends_all_as_interrupted() {
    assert_interrupted("cluster.restarts=0", 10);
}

#[test]
fn signal_to_all_supervisors_ends_all_as_interrupted() {
    assert_interrupted("cluster.restarts=2", 10);
}

#[test]
fn signal_to_all_supervisors_and_workers_ends_all_as_interrupted() {
    let place = ready();
    for attempt in 0..5 {
        let run = format!("run-{attempt}");
        let mut members = start_all(&place, 2, &run, &[&ENDLESS[..], &["--set", "cluster.restarts=2"]].concat());
        wait_for_first_epoch(&place, &run, &mut members);
        let workers: Vec<u32> = members.iter_mut().map(Member::worker).collect();
        for (member, &worker) in members.iter().zip(&workers) {
            let pid = rustix::process::Pid::from_raw(worker as i32).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            member.signal(rustix::process::Signal::TERM);
        }
        let codes: Vec<i32> = members.iter_mut().map(Member::end).collect();
        assert_eq!(codes, [130, 130], "try {attempt}: {}", all_stderr(&members));
    }
}
