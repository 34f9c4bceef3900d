//! Failures of one member: all members end within a time limit and name the failed one.

use std::time::{Duration, Instant};

use super::harness::{Ended, Process, Run, SLACK, end_all};

/// Waits until all have ended, at most `limit` plus `SLACK` after `from`.
fn end_within(processes: Vec<Process>, from: Instant, limit: Duration) -> Vec<Ended> {
    let ended = end_all(processes);
    assert!(from.elapsed() < limit + SLACK, "took {:?}: {ended:#?}", from.elapsed());
    ended
}

/// Asserts that all other ranks exit with 5 and name the failed rank with the reason `why`.
fn assert_all_name(run: &Run, ended: &[Ended], failed_rank: usize, why: &str) {
    for (_, end) in ended.iter().enumerate().filter(|(rank, _)| *rank != failed_rank) {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&run.name(failed_rank)) && error.contains(why), "{error}");
    }
    for end in ended {
        println!("{:?} after {:?}: {}", end.status, end.elapsed, end.stderr.lines().last().unwrap_or_default());
    }
}

#[test]
fn rank_killed_during_start_up_ends_the_others_before_the_deadline() {
    // Rank 2 never starts, so the start-up does not complete.
    let run = Run::new(3).set("START_MS", 30000);
    let (first, second) = (run.start(0), run.start(1));
    first.wait_for("waits for 1 of 3");
    let killed = Instant::now();
    second.signal(libc::SIGKILL);
    let ended = end_within(vec![first, second], killed, Duration::ZERO);
    assert_all_name(&run, &ended, 1, "closed without a goodbye");
}

#[test]
fn rank_that_exits_before_joining_is_reported_at_the_deadline() {
    let run = Run::new(2).set("START_MS", 2000).event(1, "vanish");
    let ended = end_all(run.start_all());
    assert_all_name(&run, &ended, 1, "did not join");
}

#[test]
fn killed_rank_is_reported_by_all() {
    let run = Run::new(4).event(2, "kill");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    assert_eq!(ended[2].code(), None);
    assert_all_name(&run, &ended, 2, "closed without a goodbye");
}

#[test]
fn aborted_rank_is_reported_as_lost() {
    let run = Run::new(2).event(0, "abort");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    assert_all_name(&run, &ended, 0, "closed without a goodbye");
}

#[test]
fn stopped_rank_is_reported_as_lost_and_ends_when_continued() {
    let run = Run::new(3).event(1, "stop");
    let mut members = run.start_all();
    let second = members.remove(1);
    let ended = end_within(members, Instant::now(), Duration::from_secs(4));
    for end in &ended {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&format!("lost {}: silent for", run.name(1))), "{error}");
        println!("{:?}: {error}", end.elapsed);
    }
    second.signal(libc::SIGCONT);
    let second = end_within(vec![second], Instant::now(), Duration::ZERO).remove(0);
    assert_eq!(second.code(), Some(5), "{second:#?}");
    println!("{}", second.error());
    assert!(second.error().contains("went on without this one"), "{second:#?}");
}

#[test]
fn rank_stopped_for_less_than_the_timeout_is_not_lost() {
    let run = Run::new(2).set("HEARTBEAT_MS", 6000).set("EPOCHS", 100).set("PAUSE_MS", 20);
    let members = run.start_all();
    members[1].wait_for("joined");
    members[1].signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(2));
    members[1].signal(libc::SIGCONT);
    let ended = end_all(members);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
}

#[test]
fn panicked_rank_exits_with_70_and_the_others_with_5() {
    for (event, words) in [("panic", "a bug of the worker"), ("panic elsewhere", "thread compute")] {
        let run = Run::new(3).event(1, event);
        let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
        assert_eq!(ended[1].code(), Some(70), "{:#?}", ended[1]);
        let error = ended[1].error();
        assert!(error.contains("tests/cluster/member.rs:") && error.contains("please report"), "{error}");
        assert!(!ended[0].stderr.contains("MergeQueue"), "consequential errors: {:#?}", ended[0]);
        assert_all_name(&run, &ended, 1, words);
    }
}

#[test]
fn input_error_of_one_rank_is_reported_by_all() {
    for failed_rank in [0, 2] {
        let run = Run::new(3).event(failed_rank, "fail");
        let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
        assert_eq!(ended[failed_rank].code(), Some(3), "{:#?}", ended[failed_rank]);
        assert_eq!(ended[failed_rank].error(), "error: nodes.parquet: row 7: label 9 is out of range");
        assert_all_name(&run, &ended, failed_rank, "failed: nodes.parquet: row 7: label 9 is out of range");
    }
}

#[test]
fn errors_of_a_single_process_keep_their_exit_code() {
    for (event, code) in [("fail", 3), ("panic", 70), ("panic elsewhere", 70), ("fail early", 4)] {
        let end = Run::new(1).event(0, event).start(0).end();
        assert_eq!(end.code(), Some(code), "{event}: {end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn failure_before_the_dataflow_is_reported_by_all() {
    let run = Run::new(3).event(0, "fail early");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    assert_eq!(ended[0].code(), Some(4), "{:#?}", ended[0]);
    assert_all_name(&run, &ended, 0, "no space left");
}

#[test]
fn blocked_process_is_ended_by_its_monitor() {
    let run = Run::new(2).event(1, "hang early").set("EPOCHS", 1000);
    let members = run.start_all();
    members[1].wait_for("joined");
    members[0].signal(libc::SIGKILL);
    let ended = end_within(members, Instant::now(), Duration::from_secs(4));
    assert_all_name(&run, &ended, 0, "closed without a goodbye");
}

#[test]
fn stalled_worker_is_lost_unless_it_is_marked_busy() {
    let run = Run::new(3).set("STALL_MS", 1500).event(1, "sleep");
    let mut members = run.start_all();
    let second = members.remove(1);
    let ended = end_within(members, Instant::now(), Duration::from_secs(3));
    for end in &ended {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        assert!(end.error().contains(&format!("lost {}: its worker stands still", run.name(1))), "{end:#?}");
        println!("{}", end.error());
    }
    let second = end_within(vec![second], Instant::now(), Duration::ZERO).remove(0);
    assert_eq!(second.code(), Some(5), "ended by the other ranks: {second:#?}");

    let busy = end_all(Run::new(3).set("STALL_MS", 1500).event(1, "busy").start_all());
    assert!(busy.iter().all(|end| end.code() == Some(0)), "{busy:#?}");
}

#[test]
fn deadlocked_run_ends_after_the_stall_timeout() {
    let run = Run::new(3).set("STALL_MS", 1500).event(1, "wait for ever");
    for end in end_within(run.start_all(), Instant::now(), Duration::from_secs(3)) {
        assert_eq!(end.code(), Some(70), "{end:#?}");
        assert!(end.error().contains("no process has completed any work for 1.5 s"), "{end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn ranks_that_finish_at_different_times_succeed() {
    let run = Run::new(3).set("STALL_MS", 1000).event(1, "finish late");
    let ended = end_all(run.start_all());
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
}

#[test]
fn interrupt_of_one_rank_is_reported_by_all() {
    let run = Run::new(2).set("EPOCHS", 100000);
    let members = run.start_all();
    members[1].wait_for("joined");
    std::thread::sleep(Duration::from_millis(200));
    members[1].signal(libc::SIGTERM);
    let ended = end_within(members, Instant::now(), Duration::ZERO);
    assert_eq!(ended[1].code(), Some(130), "{:#?}", ended[1]);
    assert_all_name(&run, &ended, 1, "interrupted by SIGTERM");

    let alone = Run::new(1).set("EPOCHS", 100000).start(0);
    alone.wait_for("joined");
    std::thread::sleep(Duration::from_millis(200));
    alone.signal(libc::SIGINT);
    let alone = alone.end();
    assert_eq!(alone.code(), Some(130), "{alone:#?}");
}
