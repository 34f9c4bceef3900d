//! A run that was interrupted, however, ends with the model of one that was not.

use std::time::{Duration, Instant};

use crate::common::{Place, children, kill, killed, planted, same_results, summary, wait_for_epochs};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 8\nbatch = 32\nfanouts = [5, 3]\n\
                        checkpoint_every = 1\n";

fn succeed(place: &Place, args: &[&str]) {
    let ended = place.run(&[&["run", "p.toml", "--quiet"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
}

#[test]
fn a_run_goes_on_with_another_number_of_processes_as_if_it_had_never_stopped() {
    let place = Place::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "whole"]);
    succeed(&place, &["--run-dir", "parts", "--processes", "2", "--set", "train.epochs=3"]);
    succeed(&place, &["--run-dir", "parts", "--processes", "4", "--resume", "--set", "train.epochs=5"]);
    succeed(&place, &["--run-dir", "parts", "--resume"]);
    same_results(&place, "whole", "parts");
}

#[test]
fn running_statistics_are_taken_up_where_they_were_left() {
    let place = Place::new();
    let settings = "[model]\nkind = 'gin'\nhidden = 16\nnorm = 'batch'\njumping_knowledge = 'mean'\n\
                    [train]\nepochs = 4\nbatch = 100\nfanouts = [4, 4]\n";
    planted(&place, "p.toml", settings);
    succeed(&place, &["--run-dir", "whole"]);
    succeed(&place, &["--run-dir", "parts", "--set", "train.epochs=2"]);
    succeed(&place, &["--run-dir", "parts", "--resume", "--processes", "2"]);
    same_results(&place, "whole", "parts");
}

#[test]
fn resuming_without_a_checkpoint_starts_anew() {
    let place = Place::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "run", "--resume", "--set", "train.epochs=1"]);
    assert_eq!(summary(&place, "run")["epochs"], 1);
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let place = Place::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "run", "--set", "train.epochs=1"]);
    for set in ["model.hidden=16", "train.batch=33", "train.seed=4"] {
        let ended = place.run(&["run", "p.toml", "--quiet", "--run-dir", "run", "--resume", "--set", set]);
        assert_eq!(ended.code, 3, "{set}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("last.safetensors") && ended.stderr.contains("another pipeline"),
            "{}",
            ended.stderr
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    let path = place.path("run/checkpoints/last.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let ended = place.run(&["run", "p.toml", "--quiet", "--run-dir", "run", "--resume"]);
    assert!(ended.code == 3 && ended.stderr.contains("damaged"), "{}", ended.stderr);
}

#[test]
fn a_killed_process_is_restarted_with_the_others_and_the_model_is_the_same() {
    let place = Place::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "whole"]);
    for (victim, after) in [(1, 1), (0, 4)] {
        let run = format!("killed-{victim}");
        killed(&place, &run, &[], victim, after);
        same_results(&place, "whole", &run);
    }
}

#[test]
fn without_restarts_a_killed_process_ends_the_run_and_is_named() {
    let place = Place::new();
    planted(&place, "p.toml", &SETTINGS.replace("epochs = 8", "epochs = 10000"));
    let stderr = std::fs::File::create(place.path("stderr")).unwrap();
    let args = ["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", "run"];
    let mut parent = place.command(&args).stderr(stderr).spawn().unwrap();
    wait_for_epochs(&place, "run", 1, &mut parent);
    let mut ranks = children(parent.id());
    ranks.sort_unstable();
    kill(ranks[1]);
    let begin = Instant::now();
    assert_eq!(parent.wait().unwrap().code(), Some(5));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let stderr = std::fs::read_to_string(place.path("stderr")).unwrap();
    assert!(stderr.contains("lost rank 1"), "{stderr}");
    assert!(!place.path("run").join("summary.json").exists());
}
