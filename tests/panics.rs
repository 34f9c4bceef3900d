//! A user's own parts that fail: a panic ends the program with exit code 70 and one line, on any thread; an operator that loses
//! batches ends it with code 2 instead of waiting for them.
//!
//! This test is its own program: with `ROLE` in the environment it is a gnnflow with such parts.

mod common;

use std::process::{Command, ExitCode, Output, Stdio};

use common::{Place, planted};
use gnnflow::prelude::{MiniBatch, OperatorContext, StreamVec};
use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use gnnflow_data::rng::Key;
use gnnflow_kernels::sample::Sampler;
use timely::dataflow::operators::vec::Filter;

const ROLE: &str = "GNNFLOW_TEST_PANICS";

/// Panics on the thread that it is called on.
struct Here;

impl Partitioner for Here {
    fn name(&self) -> &str {
        "here"
    }
    fn assign(&self, _: &dyn GraphStream, _: &Goal) -> gnnflow_data::Result<Assignment> {
        panic!("a partitioner's\npanic");
    }
}

/// Panics on a thread of its own.
struct Elsewhere;

impl Partitioner for Elsewhere {
    fn name(&self) -> &str {
        "elsewhere"
    }
    fn assign(&self, _: &dyn GraphStream, _: &Goal) -> gnnflow_data::Result<Assignment> {
        std::thread::scope(|scope| {
            scope.spawn(|| panic!("a thread's panic"));
        });
        Ok(Assignment::computed(|_| 0))
    }
}

/// Panics on a sampling thread.
struct Falling;

impl Sampler for Falling {
    fn name(&self) -> &str {
        "falling"
    }
    fn sample(&self, _: u32, _: &[u32], _: u64, _: i64, _: Key, _: &mut Vec<u32>) {
        panic!("a sampler's panic");
    }
}

/// Returns no batch of the second step.
fn lossy<'scope>(batches: StreamVec<'scope, u64, MiniBatch>, _: &OperatorContext) -> StreamVec<'scope, u64, MiniBatch> {
    batches.filter(|batch: &MiniBatch| batch.key.step != 1)
}

/// Runs `p.toml` with the operator that loses batches.
fn loses_batches(place: &Place, schedule: &str, processes: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let schedule = format!("train.schedule={schedule}");
    let args = ["run", "p.toml", "--quiet", "--run-dir", "lossy", "--processes", processes];
    command.args(args).args(["--set", "train.operators=[\"lossy\"]", "--set", &schedule]).current_dir(place.path(""));
    let Output { status, stderr, .. } = command.stdin(Stdio::null()).env(ROLE, "1").output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{schedule}, {processes}: {stderr}");
    assert!(stderr.contains("operator \"lossy\" returned "), "{schedule}, {processes}: {stderr}");
    println!("{schedule}, {processes}: {}", stderr.lines().next().unwrap());
}

/// Runs this program with `args`; it must end with code 70, and say `words` in one line.
fn falls(place: &Place, args: &[&str], words: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.current_dir(place.path("")).args(args).stdin(Stdio::null()).env(ROLE, "1").env_remove("RUST_BACKTRACE");
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(70), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.contains("error: ")).collect();
    // Other processes name the one that fell.
    let own: Vec<&&str> = errors.iter().filter(|line| line.contains("error: internal error: ")).collect();
    assert!(!own.is_empty() && own.iter().all(|line| line.contains(words)), "{args:?}: {stderr}");
    assert!(
        own.iter()
            .all(|line| line.contains("tests/panics.rs:")
                && line.ends_with("; this is a bug in gnnflow, please report it")),
        "{stderr}"
    );
    let several = args.contains(&"--processes");
    assert!(several || errors.len() == 1, "{args:?}: {stderr}");
    println!("{args:?}: {}", errors[0]);
}

fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some() {
        let app =
            gnnflow::App::new().partitioner(Here).partitioner(Elsewhere).sampler(Falling).operator("lossy", lossy);
        return app.layer("falling", |_, _| panic!("a layer's panic")).main();
    }
    let place = Place::new();
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'sage'\nhidden = 8\n[train]\nepochs = 2\nbatch = 100\nfanouts = [3, 3]\n",
    );
    for (method, words) in [("here", "a partitioner's panic (thread "), ("elsewhere", "a thread's panic (thread ")] {
        let method = format!("partition.method={method}");
        let set = ["--quiet", "--set", &method, "--set", "partition.out=fallen"];
        falls(&place, &[&["run", "p.toml"], &set[..]].concat(), words);
        for processes in [&[][..], &["--processes", "2"]] {
            falls(&place, &[&["prepare", "p.toml"], &set[..], processes].concat(), words);
        }
    }
    for (set, words) in [("train.sampler=falling", "a sampler's panic"), ("model.kind=falling", "a layer's panic")] {
        for processes in [&[][..], &["--processes", "2"]] {
            falls(
                &place,
                &[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", set], processes].concat(),
                words,
            );
        }
    }
    for schedule in ["mini-batch", "partition-parallel"] {
        for processes in ["1", "2"] {
            loses_batches(&place, schedule, processes);
        }
    }
    ExitCode::SUCCESS
}
