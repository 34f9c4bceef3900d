//! Registered parts that fail: a panic on any thread ends the program with exit code 70 and one line. An operator that
//! loses batches ends it with code 2, and so does a sampler that returns nodes without an edge. A part that never returns
//! ends it with code 70 after `cluster.stall_timeout`.
//!
//! With `ROLE` in the environment, this test program is a gnnflow with such parts.

mod common;

use std::process::{Command, ExitCode, Output, Stdio};

use common::{TestDir, planted};
use gnnflow::prelude::{MiniBatch, OperatorContext, StreamVec};
use gnnflow_data::partitioner::{Assignment, Goal, GraphStream, Partitioner};
use gnnflow_data::rng::Key;
use gnnflow_dataflow::time::MessageTime;
use gnnflow_kernels::sample::Sampler;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::Filter;

const ROLE: &str = "GNNFLOW_TEST_FAULTY_PARTS";

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

/// Returns a node that does not exist.
struct StrangeSampler;

impl Sampler for StrangeSampler {
    fn name(&self) -> &str {
        "strange"
    }
    fn sample(&self, _: u32, neighbors: &[u32], _: u64, _: i64, _: Key, out: &mut Vec<u32>) {
        out.extend_from_slice(neighbors);
        out.push(4_000_000);
    }
}

/// Waits forever for a message.
struct WaitingSampler;

impl Sampler for WaitingSampler {
    fn name(&self) -> &str {
        "waiting"
    }
    fn sample(&self, _: u32, _: &[u32], _: u64, _: i64, _: Key, _: &mut Vec<u32>) {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        let _ = receiver.recv();
    }
}

/// Keeps the batches of the second step, and their time.
fn keeping<'scope>(
    batches: StreamVec<'scope, u64, MiniBatch>,
    _: &OperatorContext,
) -> StreamVec<'scope, u64, MiniBatch> {
    type Builder = CapacityContainerBuilder<Vec<MiniBatch>>;
    batches.unary::<Builder, _, _, _>(Pipeline, "keeping", |initial, _| {
        drop(initial);
        let mut kept = Vec::new();
        move |input, output| {
            input.for_each(|time, batches| {
                if batches.iter().any(|batch| batch.key.step == 1) {
                    kept.push((time.retain(output.output_index()), std::mem::take(batches)));
                } else {
                    output.session(&time).give_container(batches);
                }
            });
        }
    })
}

/// Drops the batches of the second step.
fn lossy<'scope>(batches: StreamVec<'scope, u64, MiniBatch>, _: &OperatorContext) -> StreamVec<'scope, u64, MiniBatch> {
    batches.filter(|batch: &MiniBatch| batch.key.step != 1)
}

/// Runs `p.toml` with a registered part that breaks its contract. The run must exit with 2 and `words`.
fn assert_fault_is_reported(place: &TestDir, part: &str, schedule: &str, processes: &str, words: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let schedule = format!("train.schedule={schedule}");
    let args = ["run", "p.toml", "--quiet", "--run-dir", "faulty", "--processes", processes];
    command.args(args).args(["--set", part, "--set", &schedule]).current_dir(place.path(""));
    let Output { status, stderr, .. } =
        command.stdin(Stdio::null()).env(ROLE, "1").env_remove("RUST_BACKTRACE").output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{part}, {schedule}, {processes}: {stderr}");
    assert!(stderr.contains(words) && !stderr.contains("bug in gnnflow"), "{part}, {schedule}, {processes}: {stderr}");
    println!("{part}, {schedule}, {processes}: {}", stderr.lines().next().unwrap());
}

/// Runs `p.toml` with a registered part that never returns. The run must exit with 70, and `waiting` must be in its warnings.
fn assert_stall_is_reported(place: &TestDir, part: &str, schedule: &str, processes: &str, waiting: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let schedule = format!("train.schedule={schedule}");
    let args = ["run", "p.toml", "--quiet", "--run-dir", "stuck", "--processes", processes];
    let sets = ["--set", part, "--set", &schedule, "--set", "cluster.stall_timeout=2s"];
    command.args(args).args(sets).current_dir(place.path("")).stdin(Stdio::null()).env(ROLE, "1");
    let Output { status, stderr, .. } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(70), "{part}, {schedule}, {processes}: {stderr}");
    for words in [&["no process has completed any work for 2 s (cluster.stall_timeout)"], waiting].concat() {
        assert!(stderr.contains(words), "{part}, {schedule}, {processes}: {words:?} is not in {stderr}");
    }
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
        own.iter().all(|line| line.contains("tests/faulty_parts.rs:")
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
            .sampler(StrangeSampler)
            .sampler(WaitingSampler)
            .operator("lossy", lossy)
            .operator("keeping", keeping);
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
            let operator = "train.operators=[\"lossy\"]";
            assert_fault_is_reported(&place, operator, schedule, processes, "operator \"lossy\" returned ");
            let words = "sampler `strange` returned node 4000000 for node ";
            assert_fault_is_reported(&place, "train.sampler=strange", schedule, processes, words);
            let keeping = ["operator \"keeping\": ", " at time (0, 1) wait", " for this registered operator"];
            assert_stall_is_reported(&place, "train.operators=[\"keeping\"]", schedule, processes, &keeping);
        }
        // With two processes, the sampler runs on the worker's own thread.
        let waiting = ["for another thread of this process"];
        assert_stall_is_reported(&place, "train.sampler=waiting", schedule, "1", &waiting);
    }
    ExitCode::SUCCESS
}
