//! Too little address space for memory and threads: exit code 4, whichever allocation fails first.

use std::process::{Command, Output, Stdio};

use crate::common::{TestDir, planted};

/// Runs the program with an address space of `kib` KiB. Returns its exit code (-1 after a signal) and stderr.
fn limited(place: &TestDir, kib: u32, args: &[&str]) -> (i32, String) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\"")]).arg(env!("CARGO_BIN_EXE_gnnflow"));
    command.args(args).current_dir(place.path("")).stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    let Output { status, stderr, .. } = command.output().unwrap();
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&stderr).into_owned())
}

/// Returns the address space that the program needs to start, in KiB.
fn minimum(place: &TestDir) -> u32 {
    let starts = |kib: &u32| limited(place, *kib, &["--version"]).0 == 0;
    (10_000..1_000_000).step_by(5000).find(starts).unwrap()
}

/// Asserts that a command succeeds, or exits with 4 and an error, under each limit, and fails under at least one.
fn all_limits(place: &TestDir, args: &[&str], prepare: impl Fn()) {
    let (minimum, mut failed) = (minimum(place), 0);
    for more in [10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 400, 600, 1000, 2000, 4000] {
        prepare();
        let kib = minimum + more * 1000;
        let (code, stderr) = limited(place, kib, args);
        println!("{kib} KiB, {args:?}: {code} {}", stderr.lines().next().unwrap_or_default());
        assert!(code == 0 || code == 4, "{kib} KiB, {args:?}: {code}\n{stderr}");
        let errors = stderr.lines().filter(|line| line.contains("error: ")).count();
        assert!((errors > 0) == (code == 4), "{kib} KiB, {args:?}: {code}\n{stderr}");
        for word in ["panicked", "bug in gnnflow", "memory allocation of"] {
            assert!(!stderr.contains(word), "{kib} KiB, {args:?}: {stderr}");
        }
        failed += u32::from(code == 4);
    }
    assert!(failed > 0, "{args:?}: no limit was too low");
}

fn ready() -> TestDir {
    let place = TestDir::new();
    planted(
        &place,
        "p.toml",
        "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 2\nbatch = 100\nfanouts = [3, 3]\n",
    );
    place
}

#[test]
fn run_without_enough_memory_or_threads_exits_with_4() {
    let place = ready();
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    for processes in ["1", "2"] {
        all_limits(&place, &["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes], || ());
    }
}

#[test]
fn prepare_without_enough_memory_or_threads_exits_with_4() {
    let place = ready();
    place.succeed(&["prepare", "p.toml", "--quiet"]);
    for processes in ["1", "2"] {
        let args = ["prepare", "p.toml", "--quiet", "--processes", processes, "--out", "again"];
        all_limits(&place, &args, || drop(std::fs::remove_dir_all(place.path("again"))));
    }
}
