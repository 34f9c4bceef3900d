//! Registered parts that fail: a panic on any thread ends the program with exit code 70 and one line. An operator that
//! loses batches ends it with code 2.
//!
//! With `ROLE` in the environment, this test program is a gnnflow with such parts.

mod common;

use std::process::{Command, ExitCode, Output, Stdio};

use common::{TestDir, planted};
use gnnflow::prelude::{MiniBatch, OperatorContext, StreamVec};
use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use gnnflow_data::rng::Key;
use gnnflow_kernels::sample::Sampler;
use timely::dataflow::operators::vec::Filter;

const ROLE: &str = "GNNFLOW_TEST_PANICS";

/// Panics on the calling thread.
struct PanickingPartitioner;

impl Partitioner for PanickingPartitioner {
    fn name(&self) -> &str {
        "here"
    }
    fn assign(&self, _: &dyn GraphStream, _: &Goal) -> gnnflow_data::Result<Assignment> {
        panic!("a partitioner's\npanic");
    }
}

/// Panics on another thread.
struct PanickingThreadPartitioner;

impl Partitioner for PanickingThreadPartitioner {
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
struct PanickingSampler;

impl Sampler for PanickingSampler {
    fn name(&self) -> &str {
        "falling"
    }
    fn sample(&self, _: u32, _: &[u32], _: u64, _: i64, _: Key, _: &mut Vec<u32>) {
        panic!("a sampler's panic");
    }
}

/// Drops the batches of the second step.
fn lossy<'scope>(batches: StreamVec<'scope, u64, MiniBatch>, _: &OperatorContext) -> StreamVec<'scope, u64, MiniBatch> {
    batches.filter(|batch: &MiniBatch| batch.key.step != 1)
}

/// Runs `p.toml` with the operator that loses batches. The run must exit with 2.
fn assert_lost_batches_are_reported(place: &TestDir, schedule: &str, processes: &str) {
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

/// Runs this program with `args`. It must exit with 70 and with `words` in its error line.
fn assert_panics(place: &TestDir, args: &[&str], words: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.current_dir(place.path("")).args(args).stdin(Stdio::null()).env(ROLE, "1").env_remove("RUST_BACKTRACE");
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(70), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.contains("error: ")).collect();
    // Other processes name the one that panicked.
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
        let app = gnnflow::App::new()
            .partitioner(PanickingPartitioner)
            .partitioner(PanickingThreadPartitioner)
            .sampler(PanickingSampler)
            .operator("lossy", lossy);
        return app.layer("falling", |_, _| panic!("a layer's panic")).main();
    }
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'sage'\nhidden = 8\n[train]\nepochs = 2\nbatch = 100\nfanouts = [3, 3]\n",
    );
    for (method, words) in [("here", "a partitioner's panic (thread "), ("elsewhere", "a thread's panic (thread ")] {
        let method = format!("partition.method={method}");
        let set = ["--quiet", "--set", &method, "--set", "partition.out=fallen"];
        assert_panics(&place, &[&["run", "p.toml"], &set[..]].concat(), words);
        for processes in [&[][..], &["--processes", "2"]] {
            assert_panics(&place, &[&["prepare", "p.toml"], &set[..], processes].concat(), words);
        }
    }
    for (set, words) in [("train.sampler=falling", "a sampler's panic"), ("model.kind=falling", "a layer's panic")] {
        for processes in [&[][..], &["--processes", "2"]] {
            assert_panics(
                &place,
                &[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set", set], processes].concat(),
                words,
            );
        }
    }
    for schedule in ["mini-batch", "partition-parallel"] {
        for processes in ["1", "2"] {
            assert_lost_batches_are_reported(&place, schedule, processes);
        }
    }
    ExitCode::SUCCESS
}
