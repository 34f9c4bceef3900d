//! Two runs never write into one run folder at the same time, and a run never overwrites an earlier one.

use std::process::Stdio;

use crate::common::{TestDir, epochs, planted, summary, wait_for_epochs};

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
            let words = ["the folder run is in use by another run (process ", "--run-dir"];
            place.fail(&["run", "p.toml", "--run-dir", "run", "--set", set], 2, &words);
        }
        crate::common::kill(first.id());
        first.wait().unwrap();
        // The system released the lock of the killed process. Its children may need a moment to end.
        place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "train.epochs=1"]);
        assert_eq!(summary(&place, "run")["epochs"], 1);
    }
}

/// Returns the names in a folder, hidden ones too.
fn names(place: &TestDir, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path(folder)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn refused_run_leaves_nothing() {
    for processes in ["1", "2"] {
        let place = TestDir::new();
        let run = |set: &str, code: i32, word: &str| {
            place.fail(&["run", "p.toml", "--processes", processes, "--set", set], code, &[word]);
        };
        // Bad data.
        place.write("n.parquet", "id,x\n");
        place.write("e.parquet", "src,dst\n");
        place.write(
            "p.toml",
            format!("[graph]\nnodes = 'n.parquet'\nedges = 'e.parquet'\n[partition]\nparts = 2\n{SETTINGS}"),
        );
        run("train.seed=1", 3, "n.parquet is not a Parquet file");
        assert_eq!(names(&place, "."), ["e.parquet", "n.parquet", "p.toml"]);
        planted(&place, "p.toml", SETTINGS);
        place.succeed(&["prepare", "p.toml", "--quiet"]);
        let before = names(&place, ".");
        // A wrong value, a value that the data does not allow, and a plan over the memory.
        for (set, code, word) in [
            ("train.epochs=0", 2, "train.epochs"),
            ("train.classes.weights=[1.0, 2.0]", 2, "train.classes.weights"),
            ("train.memory=1MB", 2, "train.memory"),
        ] {
            run(set, code, word);
            assert_eq!(names(&place, "."), before, "{set}");
        }
        // The user's folder and files remain.
        place.write("runs/p/notes.txt", "of the user");
        run("train.memory=1MB", 2, "train.memory");
        assert_eq!(names(&place, "runs/p"), ["notes.txt"]);
        // So do the files of a run.
        place.succeed(&["run", "p.toml", "--quiet", "--processes", processes, "--set", "train.epochs=1"]);
        let files = names(&place, "runs/p");
        assert!(files.contains(&"summary.json".to_owned()) && !files.contains(&".lock".to_owned()), "{files:?}");
        run("train.memory=1MB", 2, "train.memory");
        assert_eq!(names(&place, "runs/p"), files);
    }
}

#[test]
fn earlier_runs_are_kept() {
    for processes in ["1", "2"] {
        let place = TestDir::new();
        planted(&place, "p.toml", SETTINGS);
        let run = |more: &[&str]| {
            let args = ["run", "p.toml", "--run-dir", "run", "--processes", processes, "--set", "train.epochs=2"];
            let ended = place.run(&[&args[..], more].concat());
            assert_eq!(ended.code, 0, "{}", ended.stderr);
            (summary(&place, "run"), ended.stderr)
        };
        let (first, said) = run(&[]);
        assert!(!said.contains("earlier") && !place.path("run/earlier").exists(), "{said}");
        place.write("run/notes.txt", "of the user");
        let (second, said) = run(&["--set", "train.seed=9"]);
        assert!(said.contains("run has an earlier run; its files are now in run/earlier/1\n"), "{said}");
        assert_ne!(first["model_sha256"], second["model_sha256"]);
        assert_eq!(summary(&place, "run/earlier/1"), first);
        assert_eq!(epochs(&place.path("run/earlier/1")).len(), 2);
        assert_eq!(epochs(&place.path("run")).len(), 2);
        for name in ["report.html", "pipeline.toml", "predictions.parquet", "checkpoints/last.safetensors"] {
            assert!(place.path("run/earlier/1").join(name).exists(), "{name}");
        }
        assert!(place.path("run/notes.txt").exists());
        // A resumed run continues in place.
        let (_, said) = run(&["--set", "train.seed=9", "--resume", "--set", "train.epochs=3"]);
        assert!(!said.contains("earlier run"), "{said}");
        assert_eq!(epochs(&place.path("run")).len(), 3);
        let (_, said) = run(&["--set", "train.seed=9", "--resume"]);
        assert!(said.contains("run has a checkpoint of epoch 3, and train.epochs is 2: no epoch is trained"), "{said}");
        let args =
            ["run", "p.toml", "--run-dir", "new", "--processes", processes, "--set", "train.epochs=1", "--resume"];
        let said = place.run(&args).stderr;
        assert!(said.contains("note: new has no checkpoint; the run begins with epoch 1"), "{said}");
        let (_, said) = run(&[]);
        assert!(said.contains("run/earlier/2"), "{said}");
        assert_eq!(summary(&place, "run/earlier/2")["epochs"], 3);
    }
}

#[test]
fn temporary_files_of_a_killed_run_are_removed_by_the_next_one() {
    let place = TestDir::new();
    planted(&place, "p.toml", SETTINGS);
    let run = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", "2", "--set", "train.epochs=1"];
    place.succeed(&run);
    let left = [".gnnflow-a1B2c3.tmp", "checkpoints/.gnnflow-a1B2c3.tmp"];
    let resumed = [&run[..], &["--set", "train.epochs=2", "--resume"]].concat();
    for args in [&resumed[..], &run] {
        for name in left {
            place.write(&format!("run/{name}"), "half of a file");
        }
        place.write("run/.notes.tmp", "of the user");
        place.succeed(args);
        for name in left {
            assert!(!place.path("run").join(name).exists(), "{args:?}: {name}");
        }
        assert!(place.path("run/.notes.tmp").exists());
    }
}
