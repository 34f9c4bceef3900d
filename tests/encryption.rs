//! Encrypted connections: what others see between two hosts, and what happens if they change it.

use crate::common::member::{Member, start_with_relay};
use crate::common::{TestDir, assert_same_results, planted};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\nbatch = 64\nfanouts = [5, 3]\n";
const ENCRYPT: [&str; 2] = ["--set", "cluster.encrypt=true"];

fn ready() -> TestDir {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    place
}

#[test]
fn others_see_messages_only_without_encryption() {
    let place = ready();
    place.succeed(&["run", "p.toml", "--run-dir", "alone"]);
    for (run, args) in [("plain", &[][..]), ("encrypted", &ENCRYPT[..])] {
        let (relay, mut members) = start_with_relay(&place, run, [args; 2]);
        for member in &mut members {
            assert_eq!(member.end(), 0, "{run}: {}", member.stderr());
        }
        assert_eq!(relay.has_seen("Heartbeat"), run == "plain");
        // The first bytes are plain.
        assert!(relay.has_seen("gnnflow"));
        assert_same_results(&place, "alone", run);
    }
    place.succeed(&["run", "p.toml", "--run-dir", "launched", "--processes", "2", "--set", "cluster.encrypt=true"]);
    assert_same_results(&place, "alone", "launched");
}

#[test]
fn a_changed_byte_ends_the_run() {
    let place = ready();
    for bytes in [20_000, 200_000] {
        let endless = ["--set", "train.epochs=100000", ENCRYPT[0], ENCRYPT[1]];
        let (relay, mut members) = start_with_relay(&place, &format!("changed-{bytes}"), [&endless; 2]);
        relay.change_after(bytes);
        let ends = members.each_mut().map(Member::end);
        let errors = members.each_ref().map(Member::stderr);
        assert_eq!(ends, [5, 5], "{errors:#?}");
        let words = "the data connection with rank 1 received bytes that the other side has not sent";
        assert!(errors[0].contains(words), "{errors:#?}");
        assert!(errors.iter().all(|stderr| stderr.lines().count() == 1), "{errors:#?}");
    }
}

#[test]
fn processes_with_different_choices_are_refused() {
    let place = ready();
    let (_relay, mut members) = start_with_relay(&place, "run", [&ENCRYPT, &["--set", "cluster.encrypt=false"]]);
    for (member, words) in members.iter_mut().zip(["cluster.encrypt", "cluster.encrypt"]) {
        assert_eq!(member.end(), 5, "{}", member.stderr());
        assert!(member.stderr().contains(words), "{}", member.stderr());
    }
}
