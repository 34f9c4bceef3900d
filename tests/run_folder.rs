//! Two runs never write into one run folder at the same time.

use std::process::Stdio;

use crate::common::{TestDir, planted, summary, wait_for_epochs};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 100000\n";

#[test]
fn second_run_in_the_folder_of_a_running_one_is_refused() {
    for processes in ["1", "2"] {
        let place = TestDir::new();
        planted(&place, "p.toml", SETTINGS);
        let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes];
        let mut first = place.command(&args).stderr(Stdio::null()).spawn().unwrap();
        wait_for_epochs(&place, "run", 1, &mut first);
        for set in ["train.epochs=1", "train.seed=9"] {
            let words = ["the run folder run is in use by another run (process ", "--run-dir"];
            place.fail(&["run", "p.toml", "--run-dir", "run", "--set", set], 2, &words);
        }
        crate::common::kill(first.id());
        first.wait().unwrap();
        // The system released the lock of the killed process. Its children may need a moment to end.
        place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=1"]);
        assert_eq!(summary(&place, "run")["epochs"], 1);
    }
}
