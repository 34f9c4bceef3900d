//! Workers that come by themselves.

use super::fake::{self, Lie};
use super::started::{Worker, ended, free, kill, launched, under_way};
use super::{SECRET, hashes, sets, settings, succeed};
use crate::common::{Place, planted, summary};

#[test]
fn those_that_enlist_may_come_late_and_go() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
    let epochs = ["train.epochs=300", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    for processes in ["--processes=1", "--processes=2"] {
        let at = free();
        let enlist = format!("train.tensor_workers.accept={at}");
        let run = under_way(&place, &[&epochs[..], &[&enlist, processes]].concat(), Some(SECRET));
        // Whoever does not know the secret is told so, and the run goes on.
        let stranger = Worker::with(&place, Some("another secret altogether"), &["--connect", &at]);
        let (code, said) = stranger.ended();
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("wrong secret") && said.contains(&at) && said.lines().count() == 1, "{said}");
        let mut workers = [(); 3].map(|()| Worker::with(&place, Some(SECRET), &["--connect", &at]));
        for worker in &mut workers {
            let line = worker.line();
            assert!(line.starts_with(&format!("registered with the run at {at}, of ")), "{line}");
        }
        // One goes, without a word.
        let [gone, one, two] = workers;
        drop(gone);
        let (code, said) = ended(run);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("has registered") && said.contains(&one.address), "{said}");
        let some = summary(&place, "run");
        assert_eq!(hashes(&some), hashes(&alone), "{processes}");
        assert!(some["tensor"]["tasks"].as_u64() > Some(0), "{processes}: {}", some["tensor"]);
        for worker in [one, two] {
            let (code, said) = worker.ended();
            assert_eq!(code, Some(0), "{said}");
            assert!(said.contains(&format!("the run at {at} is over")), "{said}");
        }
    }
}

#[test]
fn who_enlists_helps_those_that_were_launched() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
    let epochs = ["train.epochs=300", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    let enlist = format!("train.tensor_workers.accept={}", free());
    let at = enlist.rsplit_once('=').unwrap().1;
    // It may be there before the run is.
    let mut early = Worker::with(&place, None, &["--connect", at]);
    assert!(early.line().contains("cannot be reached"));
    let more = [
        "train.tensor_workers.workers=1",
        "train.tensor_workers.relaunch=0",
        "train.tensor_workers.when_gone=fail",
        &enlist,
    ];
    let run = under_way(&place, &[&epochs[..], &more].concat(), None);
    assert!(early.line().contains("registered"));
    kill(launched(run.id())[0]);
    let (code, said) = ended(run);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
    let (code, said) = early.ended();
    assert!(code == Some(0) && !said.contains("did 0 tasks"), "{said}");
}

#[test]
fn who_enlists_nowhere_says_so_and_ends() {
    let place = Place::new();
    let at = free();
    let (code, said) = Worker::with(&place, None, &["--connect", &at, "--wait", "1"]).ended();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("error: ") && said.contains(&at) && said.contains("cannot be reached"), "{said}");
    // Of another version.
    let (code, said) = Worker::with(&place, None, &["--connect", &fake::serve(Lie::Version)]).ended();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("9.9.9") && said.lines().count() == 1, "{said}");
    place.fail(&["tensor-worker", "--connect", "nowhere"], 2, &["--connect", "HOST:PORT"]);
    let mut far = place.command(&["tensor-worker", "--connect", "192.0.2.1:7100"]);
    let far = far.env_remove("GNNFLOW_SECRET").output().unwrap();
    let said = String::from_utf8(far.stderr).unwrap();
    assert!(
        far.status.code() == Some(2) && said.contains("--connect 192.0.2.1:7100") && said.contains("secret"),
        "{said}"
    );
    // A port that somebody else has.
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let enlist = format!("train.tensor_workers.accept={}", taken.local_addr().unwrap());
    place.fail(&sets(&[&enlist]), 4, &["train.tensor_workers.accept", "cannot listen"]);
}
