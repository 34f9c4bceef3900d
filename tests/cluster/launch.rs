//! Several processes on one machine, started by a launcher.

use std::time::{Duration, Instant};

use super::harness::{Process, Run, SLACK, TIME_LIMIT, end_all, send};

fn launch(run: &Run, processes: usize) -> Process {
    Process::start(run.clone().set("PROCESSES", processes).command("launch"))
}

/// Returns the ids of all processes with the entry `word` in their environment, which only this test sets.
fn processes_with(word: &str) -> Vec<i32> {
    let here = std::process::id() as i32;
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|id| *id != here)
        .filter(|id| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == word.as_bytes())
        })
        .collect()
}

#[test]
fn child_processes_finish_and_only_rank_0_prints() {
    let end = launch(&Run::new(1), 4).end();
    assert_eq!(end.code(), Some(0), "{end:#?}");
    assert_eq!(end.stdout.lines().filter(|line| line.starts_with("sum ")).count(), 1, "{end:#?}");
    for rank in 1..4 {
        assert!(end.stderr.contains(&format!("[rank {rank}] finished rank {rank}")), "{end:#?}");
    }
    assert!(end.stderr.lines().any(|line| line.starts_with("finished rank 0")), "{end:#?}");
    println!("{:?}\n{}", end.elapsed, end.stderr);
}

#[test]
fn launcher_exits_with_the_code_of_the_failed_rank() {
    for (event, code, words) in [
        ("kill", 5, "was killed by SIGKILL (signal 9)"),
        ("fail", 3, "[rank 2] error: nodes.parquet: row 7"),
        ("panic", 70, "[rank 2] error: internal error: a bug of the worker"),
        ("fail early", 4, "[rank 2] error: no space left"),
    ] {
        let end = launch(&Run::new(1).event(2, event), 3).end();
        assert_eq!(end.code(), Some(code), "{event}: {end:#?}");
        assert!(end.stderr.contains(words), "{event}: {end:#?}");
        assert!(end.stderr.contains("\nerror: ") && end.stderr.contains("rank 2 ("), "rank 0 names rank 2: {end:#?}");
        assert!(end.elapsed < Duration::from_secs(4) + SLACK, "{end:#?}");
        println!("{event} after {:?}:\n{}", end.elapsed, end.stderr);
    }
}

#[test]
fn stopped_child_is_killed() {
    let word = format!("MEMBER_MARK=stopped-{}", std::process::id());
    let mark = word.split_once('=').unwrap().1;
    let end = launch(&Run::new(1).event(1, "stop").set("MARK", mark), 2).end();
    assert_eq!(end.code(), Some(5), "{end:#?}");
    assert!(end.stderr.contains("error: lost rank 1") && end.stderr.contains("silent for"), "{end:#?}");
    assert!(processes_with(&word).is_empty());
}

#[test]
fn run_is_restarted_after_a_lost_process_and_not_after_an_error() {
    let end = launch(&Run::new(1).event(1, "kill").set("RESTARTS", 2), 2).end();
    assert_eq!(end.code(), Some(0), "{end:#?}");
    assert!(end.stderr.contains("(restart 1 of 2)") && !end.stderr.contains("(restart 2 of 2)"), "{end:#?}");
    assert!(
        end.stderr.contains("\nresuming as rank 0") && end.stderr.contains("[rank 1] resuming as rank 1"),
        "{end:#?}"
    );
    assert_eq!(end.stdout.lines().filter(|line| line.starts_with("sum ")).count(), 1, "{end:#?}");
    println!("{}", end.stderr);
    for (event, code) in [("panic", 70), ("fail", 3)] {
        let end = launch(&Run::new(1).event(1, event).set("RESTARTS", 2), 2).end();
        assert_eq!(end.code(), Some(code), "{end:#?}");
        assert!(!end.stderr.contains("restart"), "{end:#?}");
    }
}

#[test]
fn interrupted_launcher_ends_all_children() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let parent = launch(&Run::new(1).set("EPOCHS", 100000), 3);
        parent.wait_for("[rank 2] joined");
        std::thread::sleep(Duration::from_millis(200));
        let since = Instant::now();
        parent.signal(signal);
        let end = parent.end();
        assert_eq!(end.code(), Some(130), "{end:#?}");
        assert!(since.elapsed() < Duration::from_secs(3) + SLACK, "{end:#?}");
        println!("{:?}: {}", since.elapsed(), end.stderr);
    }
}

#[test]
fn children_of_a_killed_launcher_end() {
    let word = format!("MEMBER_MARK=orphans-{}", std::process::id());
    let mark = word.split_once('=').unwrap().1;
    let mut parent = launch(&Run::new(1).set("EPOCHS", 100000).set("MARK", mark), 3);
    parent.wait_for("[rank 2] joined");
    assert_eq!(processes_with(&word).len(), 4);
    assert!(parent.is_running());
    send(parent.id(), libc::SIGKILL);
    let since = Instant::now();
    drop(parent);
    while !processes_with(&word).is_empty() {
        assert!(since.elapsed() < TIME_LIMIT, "{:?}", processes_with(&word));
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("gone after {:?}", since.elapsed());
}

#[test]
fn ranks_of_a_hosts_file_are_restarted_by_their_supervisors() {
    let run = Run::new(3).set("RESTARTS", 2).event(1, "kill");
    let ended = end_all((0..3).map(|rank| run.start_as("supervised", rank)).collect());
    for (rank, end) in ended.iter().enumerate() {
        assert_eq!(end.code(), Some(0), "{ended:#?}");
        assert!(end.stderr.contains("(restart 1 of 2)") && !end.stderr.contains("(restart 2 of 2)"), "{end:#?}");
        assert!(end.stderr.contains(&format!("resuming as rank {rank}")), "{end:#?}");
        println!("{}", end.stderr);
    }
}

#[test]
fn supervisors_do_not_restart_after_permanent_errors() {
    for (event, code) in [("fail", 3), ("panic", 70)] {
        let run = Run::new(3).set("RESTARTS", 2).event(2, event);
        let ended = end_all((0..3).map(|rank| run.start_as("supervised", rank)).collect());
        for (rank, end) in ended.iter().enumerate() {
            assert_eq!(end.code(), Some(if rank == 2 { code } else { 5 }), "{ended:#?}");
            assert!(!end.stderr.contains("restart"), "{end:#?}");
        }
    }
}
