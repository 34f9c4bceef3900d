//! One member fails; all end, soon, and all name it.

use std::time::{Duration, Instant};

use super::harness::{Ended, Process, Run, SLACK, end_all};

/// Ends all, at most `limit` (and the machine's slack) after `from`.
fn end_within(processes: Vec<Process>, from: Instant, limit: Duration) -> Vec<Ended> {
    let ended = end_all(processes);
    assert!(from.elapsed() < limit + SLACK, "took {:?}: {ended:#?}", from.elapsed());
    ended
}

/// All but the culprit exit with 5 and name it with `why`.
fn all_name(run: &Run, ended: &[Ended], culprit: usize, why: &str) {
    for (_, end) in ended.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&run.name(culprit)) && error.contains(why), "{error}");
    }
    for end in ended {
        println!("{:?} after {:?}: {}", end.status, end.after, end.said.lines().last().unwrap_or_default());
    }
}

#[test]
fn a_kill_during_start_up_ends_the_others_before_the_deadline() {
    // Rank 2 never comes, so that the start-up lasts.
    let run = Run::new(3).set("START_MS", 30000);
    let (first, second) = (run.start(0), run.start(1));
    first.hear("waits for 1 of 3");
    let killed = Instant::now();
    second.signal(libc::SIGKILL);
    let ended = end_within(vec![first, second], killed, Duration::ZERO);
    all_name(&run, &ended, 1, "closed without a goodbye");
}

#[test]
fn a_peer_that_ends_before_it_joins_is_missed_at_the_deadline() {
    let run = Run::new(2).set("START_MS", 2000).event(1, "vanish");
    let ended = end_all(run.start_all());
    all_name(&run, &ended, 1, "did not join");
}

#[test]
fn kill_at_work() {
    let run = Run::new(4).event(2, "kill");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    assert_eq!(ended[2].code(), None);
    all_name(&run, &ended, 2, "closed without a goodbye");
}

#[test]
fn an_abort_is_a_lost_peer() {
    let run = Run::new(2).event(0, "abort");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    all_name(&run, &ended, 0, "closed without a goodbye");
}

#[test]
fn a_stopped_peer_is_given_up_and_learns_of_it() {
    let run = Run::new(3).event(1, "stop");
    let mut members = run.start_all();
    let second = members.remove(1);
    let ended = end_within(members, Instant::now(), Duration::from_secs(4));
    for end in &ended {
        assert_eq!(end.code(), Some(5), "{end:#?}");
        let error = end.error();
        assert!(error.contains(&format!("lost {}: silent for", run.name(1))), "{error}");
        println!("{:?}: {error}", end.after);
    }
    second.signal(libc::SIGCONT);
    let second = end_within(vec![second], Instant::now(), Duration::ZERO).remove(0);
    assert_eq!(second.code(), Some(5), "{second:#?}");
    println!("{}", second.error());
    assert!(second.error().contains("went on without this one"), "{second:#?}");
}

#[test]
fn a_short_stop_is_no_loss() {
    let run = Run::new(2).set("HEARTBEAT_MS", 6000).set("EPOCHS", 100).set("PAUSE_MS", 20);
    let members = run.start_all();
    members[1].hear("joined");
    members[1].signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(2));
    members[1].signal(libc::SIGCONT);
    let ended = end_all(members);
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
}

#[test]
fn a_panic_is_our_bug_where_it_happens_and_a_failed_peer_elsewhere() {
    for (event, words) in [("panic", "a bug of the worker"), ("panic elsewhere", "thread compute")] {
        let run = Run::new(3).event(1, event);
        let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
        assert_eq!(ended[1].code(), Some(70), "{:#?}", ended[1]);
        let error = ended[1].error();
        assert!(error.contains("tests/cluster/member.rs:") && error.contains("please report"), "{error}");
        assert!(!ended[0].said.contains("MergeQueue"), "no cascades: {:#?}", ended[0]);
        all_name(&run, &ended, 1, words);
    }
}

#[test]
fn an_input_error_on_one_rank_ends_all_with_it() {
    for culprit in [0, 2] {
        let run = Run::new(3).event(culprit, "fail");
        let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
        assert_eq!(ended[culprit].code(), Some(3), "{:#?}", ended[culprit]);
        assert_eq!(ended[culprit].error(), "error: nodes.parquet: row 7: label 9 is out of range");
        all_name(&run, &ended, culprit, "failed: nodes.parquet: row 7: label 9 is out of range");
    }
}

#[test]
fn errors_of_one_process_keep_their_code() {
    for (event, code) in [("fail", 3), ("panic", 70), ("panic elsewhere", 70), ("fail early", 4)] {
        let end = Run::new(1).event(0, event).start(0).end();
        assert_eq!(end.code(), Some(code), "{event}: {end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn failures_between_the_start_and_the_dataflow_reach_everybody() {
    let run = Run::new(3).event(0, "fail early");
    let ended = end_within(run.start_all(), Instant::now(), Duration::from_secs(2));
    assert_eq!(ended[0].code(), Some(4), "{:#?}", ended[0]);
    all_name(&run, &ended, 0, "no space left");
}

#[test]
fn a_process_that_listens_to_nobody_is_ended_by_its_monitor() {
    let run = Run::new(2).event(1, "hang early").set("EPOCHS", 1000);
    let members = run.start_all();
    members[1].hear("joined");
    members[0].signal(libc::SIGKILL);
    let ended = end_within(members, Instant::now(), Duration::from_secs(4));
    all_name(&run, &ended, 0, "closed without a goodbye");
}

#[test]
fn a_worker_that_stands_still_is_lost_unless_it_is_busy() {
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
    assert_eq!(second.code(), Some(5), "told by the others: {second:#?}");

    let busy = end_all(Run::new(3).set("STALL_MS", 1500).event(1, "busy").start_all());
    assert!(busy.iter().all(|end| end.code() == Some(0)), "{busy:#?}");
}

#[test]
fn a_run_in_which_all_wait_for_each_other_ends() {
    let run = Run::new(3).set("STALL_MS", 1500).event(1, "wait for ever");
    for end in end_within(run.start_all(), Instant::now(), Duration::from_secs(3)) {
        assert_eq!(end.code(), Some(70), "{end:#?}");
        assert!(end.error().contains("no process has completed any work for 1.5 s"), "{end:#?}");
        println!("{}", end.error());
    }
}

#[test]
fn finishing_at_different_times_is_no_failure() {
    let run = Run::new(3).set("STALL_MS", 1000).event(1, "finish late");
    let ended = end_all(run.start_all());
    assert!(ended.iter().all(|end| end.code() == Some(0)), "{ended:#?}");
}

#[test]
fn an_interrupt_is_told() {
    let run = Run::new(2).set("EPOCHS", 100000);
    let members = run.start_all();
    members[1].hear("joined");
    std::thread::sleep(Duration::from_millis(200));
    members[1].signal(libc::SIGTERM);
    let ended = end_within(members, Instant::now(), Duration::ZERO);
    assert_eq!(ended[1].code(), Some(130), "{:#?}", ended[1]);
    all_name(&run, &ended, 1, "interrupted by SIGTERM");

    let alone = Run::new(1).set("EPOCHS", 100000).start(0);
    alone.hear("joined");
    std::thread::sleep(Duration::from_millis(200));
    alone.signal(libc::SIGINT);
    let alone = alone.end();
    assert_eq!(alone.code(), Some(130), "{alone:#?}");
}
