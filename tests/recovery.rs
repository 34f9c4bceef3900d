//! An interrupted run ends with the same model as an uninterrupted one.

use std::time::{Duration, Instant};

use crate::common::{TestDir, assert_same_results, children, kill, planted, run_with_kill, summary, wait_for_epochs};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 8\nbatch = 32\nfanouts = [5, 3]\n\
                        checkpoint_every = 1\n";

fn succeed(place: &TestDir, args: &[&str]) {
    let ended = place.run(&[&["run", "p.toml", "--quiet"], args].concat());
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
}

#[test]
fn run_resumed_with_another_number_of_processes_has_equal_results() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "whole"]);
    succeed(&place, &["--run-dir", "parts", "--processes", "2", "--set", "train.epochs=3"]);
    succeed(&place, &["--run-dir", "parts", "--processes", "4", "--resume", "--set", "train.epochs=5"]);
    succeed(&place, &["--run-dir", "parts", "--resume"]);
    assert_same_results(&place, "whole", "parts");
}

#[test]
fn resumed_run_restores_running_statistics() {
    let place = TestDir::new();
    let settings = "[model]\nkind = 'gin'\nhidden = 16\nnorm = 'batch'\njumping_knowledge = 'mean'\n\
                    [train]\nepochs = 4\nbatch = 100\nfanouts = [4, 4]\n";
    planted(&place, "p.toml", settings);
    succeed(&place, &["--run-dir", "whole"]);
    succeed(&place, &["--run-dir", "parts", "--set", "train.epochs=2"]);
    succeed(&place, &["--run-dir", "parts", "--resume", "--processes", "2"]);
    assert_same_results(&place, "whole", "parts");
}

#[test]
fn resume_without_a_checkpoint_starts_from_the_beginning() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "run", "--resume", "--set", "train.epochs=1"]);
    assert_eq!(summary(&place, "run")["epochs"], 1);
}

#[test]
fn checkpoint_of_another_pipeline_is_refused() {
    let place = TestDir::new();
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
fn run_with_a_killed_process_is_restarted_and_has_equal_results() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    succeed(&place, &["--run-dir", "whole"]);
    for (victim, after) in [(1, 1), (0, 4)] {
        let run = format!("killed-{victim}");
        run_with_kill(&place, &run, &[], victim, after);
        assert_same_results(&place, "whole", &run);
    }
}

#[test]
fn killed_process_without_restarts_ends_the_run_and_is_named() {
    let place = TestDir::new();
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
