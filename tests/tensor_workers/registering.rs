//! Tensor workers that register with a run.

use super::fake::{self, Misbehavior};
use super::started::{Worker, free_address, kill, launched_workers, start_and_wait_for_epoch, wait_for_end};
use super::{SECRET, hashes, sets, settings, succeed};
use crate::common::{TestDir, planted, summary};

#[test]
fn registered_workers_may_join_late_and_leave() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    let epochs = ["train.epochs=300", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    for processes in ["--processes=1", "--processes=2"] {
        let at = free_address();
        let accept = format!("train.tensor_workers.accept={at}");
        let run = start_and_wait_for_epoch(&place, &[&epochs[..], &[&accept, processes]].concat(), Some(SECRET));
        // A worker with a wrong secret is refused, and the run continues.
        let stranger = Worker::with_args(&place, Some("another secret altogether"), &["--connect", &at]);
        let (code, output) = stranger.finish();
        assert_eq!(code, Some(5), "{output}");
        assert!(output.contains("wrong secret") && output.contains(&at) && output.lines().count() == 1, "{output}");
        let mut workers = [(); 3].map(|()| Worker::with_args(&place, Some(SECRET), &["--connect", &at]));
        for worker in &mut workers {
            let line = worker.next_line();
            assert!(line.starts_with(&format!("registered with the run at {at}, of ")), "{line}");
        }
        // One worker is killed.
        let [gone, one, two] = workers;
        drop(gone);
        let (code, output) = wait_for_end(run);
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("has registered") && output.contains(&one.address), "{output}");
        let some = summary(&place, "run");
        assert_eq!(hashes(&some), hashes(&alone), "{processes}");
        assert!(some["tensor"]["tasks"].as_u64() > Some(0), "{processes}: {}", some["tensor"]);
        for worker in [one, two] {
            let (code, output) = worker.finish();
            assert_eq!(code, Some(0), "{output}");
            assert!(output.contains(&format!("the run at {at} is over")), "{output}");
        }
    }
}

#[test]
fn registered_worker_replaces_a_killed_launched_one() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    let epochs = ["train.epochs=300", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    let accept = format!("train.tensor_workers.accept={}", free_address());
    let at = accept.rsplit_once('=').unwrap().1;
    // A worker may start before the run.
    let mut early = Worker::with_args(&place, None, &["--connect", at]);
    assert!(early.next_line().contains("cannot be reached"));
    let more = [
        "train.tensor_workers.workers=1",
        "train.tensor_workers.relaunch=0",
        "train.tensor_workers.when_gone=fail",
        &accept,
    ];
    let run = start_and_wait_for_epoch(&place, &[&epochs[..], &more].concat(), None);
    assert!(early.next_line().contains("registered"));
    kill(launched_workers(run.id())[0]);
    let (code, output) = wait_for_end(run);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
    let (code, output) = early.finish();
    assert!(code == Some(0) && !output.contains("did 0 tasks"), "{output}");
}

#[test]
fn worker_that_cannot_register_reports_it_and_exits() {
    let place = TestDir::new();
    let at = free_address();
    let (code, output) = Worker::with_args(&place, None, &["--connect", &at, "--wait", "1"]).finish();
    assert_eq!(code, Some(5), "{output}");
    assert!(output.contains("error: ") && output.contains(&at) && output.contains("cannot be reached"), "{output}");
    // A run of another version.
    let (code, output) = Worker::with_args(&place, None, &["--connect", &fake::serve(Misbehavior::Version)]).finish();
    assert_eq!(code, Some(5), "{output}");
    assert!(output.contains("9.9.9") && output.lines().count() == 1, "{output}");
    place.fail(&["tensor-worker", "--connect", "nowhere"], 2, &["--connect", "HOST:PORT"]);
    let mut far = place.command(&["tensor-worker", "--connect", "192.0.2.1:7100"]);
    let far = far.env_remove("GNNFLOW_SECRET").output().unwrap();
    let output = String::from_utf8(far.stderr).unwrap();
    assert!(
        far.status.code() == Some(2) && output.contains("--connect 192.0.2.1:7100") && output.contains("secret"),
        "{output}"
    );
    // A port in use.
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let accept = format!("train.tensor_workers.accept={}", taken.local_addr().unwrap());
    place.fail(&sets(&[&accept]), 4, &["train.tensor_workers.accept", "cannot listen"]);
}
