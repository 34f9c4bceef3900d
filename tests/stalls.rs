//! Runs that can make no progress end within `cluster.stall_timeout`, whichever thread is stuck.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::member::start_with_relay;
use crate::common::{TestDir, children, planted, summary, wait_for_epochs};

/// A stuck run must have ended after this time; the timeouts below are two seconds or less.
const LIMIT: Duration = Duration::from_secs(40);

/// One thread of another process, stopped by ptrace. The other threads of that process go on.
struct FrozenThread(libc::pid_t);

impl FrozenThread {
    /// Returns the number of the first thread of `process` whose name begins with `name`.
    fn find(process: u32, name: &str) -> Option<libc::pid_t> {
        let mut tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten().map(|task| task.path());
        let is_named =
            |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        tasks.find(is_named)?.file_name()?.to_str()?.parse().ok()
    }

    /// Stops the thread that [`FrozenThread::find`] returns.
    fn stop(process: u32, name: &str) -> Self {
        let thread = Self::find(process, name).unwrap_or_else(|| panic!("process {process} has no {name}"));
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: these requests read and write no memory of this process.
            let result = unsafe { libc::ptrace(request, thread, 0, 0) };
            assert_eq!(result, 0, "ptrace request {request}: {}", std::io::Error::last_os_error());
        }
        Self(thread)
    }

    /// Lets the system remove the thread when its process has ended; otherwise the process would stay.
    fn reap(&self) {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result.
        unsafe { libc::waitpid(self.0, &mut status, libc::__WALL | libc::WNOHANG) };
    }
}

/// Starts a run that would take minutes, with `threads` threads in each process.
fn start(place: &TestDir, schedule: &str, processes: &str, threads: u32) -> Child {
    let settings = format!("[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 100000\nschedule = '{schedule}'\n");
    planted(place, "p.toml", &settings);
    let timeouts = ["--set", "cluster.stall_timeout=2s", "--set", "cluster.heartbeat_timeout=2s"];
    let threads = format!("train.threads={threads}");
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--processes", processes, "--set", &threads];
    let mut run = place.command(&[&args[..], &timeouts].concat()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_epochs(place, "run", 2, &mut run);
    run
}

/// Waits for the end of a run with a stopped thread. Returns its exit code and stderr.
fn end(mut run: Child, frozen: &FrozenThread) -> (i32, String) {
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        frozen.reap();
        if begin.elapsed() > LIMIT {
            run.kill().unwrap();
            panic!("still running after {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut stderr = String::new();
    run.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (status.code().unwrap_or(-1), stderr)
}

#[test]
fn run_of_one_process_with_a_stuck_compute_thread_ends() {
    // With one thread: otherwise others may do the work of the stopped one.
    for schedule in ["mini-batch", "full-graph", "partition-parallel"] {
        let place = TestDir::new();
        let run = start(&place, schedule, "1", 1);
        let frozen = FrozenThread::stop(run.id(), "compute_thread");
        let (code, stderr) = end(run, &frozen);
        assert_eq!(code, 70, "{schedule}: {stderr}");
        assert!(stderr.contains("no process has completed any work for 2 s (cluster.stall_timeout)"), "{stderr}");
        // An operator waits for the thread, which may have been stopped between two jobs. Or the worker waits for it in a call.
        let waits = |line: &str| {
            line.starts_with("warning: rank 0: ")
                && (line.ends_with("for another thread of this process")
                    || line.contains("the loop of its worker stands still"))
        };
        assert!(stderr.lines().any(waits), "{stderr}");
    }
}

#[test]
fn stuck_sampling_thread_is_named_by_its_operator() {
    let place = TestDir::new();
    let run = start(&place, "mini-batch", "1", 2);
    let frozen = FrozenThread::stop(run.id(), "sample-0");
    let (code, stderr) = end(run, &frozen);
    assert_eq!(code, 70, "{stderr}");
    let waits = |line: &str| {
        line.contains("sample_batch: ")
            && line.contains(" at time (")
            && line.ends_with("for another thread of this process")
    };
    assert!(stderr.lines().any(waits), "{stderr}");
}

#[test]
fn end_of_a_run_does_not_wait_for_a_stuck_status_thread() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 300\n");
    let mut run = place.command(&["run", "p.toml", "--run-dir", "run"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_epochs(&place, "run", 1, &mut run);
    let frozen = FrozenThread::stop(run.id(), "status");
    let (code, stderr) = end(run, &frozen);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("the last status is not written"), "{stderr}");
    assert!(place.path("run/predictions.parquet").exists());
}

#[test]
fn run_of_two_processes_with_any_stuck_thread_ends() {
    for (schedule, thread) in [
        ("mini-batch", "compute_thread"),
        ("mini-batch", "timely:recv"),
        ("mini-batch", "timely:send"),
        ("partition-parallel", "compute_thread"),
        ("full-graph", "timely:recv"),
        ("tensor-parallel", "compute_thread"),
    ] {
        let place = TestDir::new();
        let run = start(&place, schedule, "2", 1);
        let mut ranks = children(run.id());
        ranks.sort_unstable();
        let frozen = FrozenThread::stop(ranks[1], thread);
        let (code, stderr) = end(run, &frozen);
        // A worker that waits inside a call to its stuck compute thread is named as the lost rank.
        let lost = code == 5 && stderr.contains("lost rank 1") && stderr.contains("stall_timeout");
        let stalled = code == 70 && stderr.contains("cluster.stall_timeout");
        assert!(lost || stalled, "{schedule}, {thread}: exit code {code}: {stderr}");
        if stalled {
            // Each process says at which time it waits. Operators name what they wait for; if only messages about progress are missing, none does.
            for rank in [0, 1] {
                assert!(stderr.contains(&format!("warning: rank {rank}: ")), "{schedule}, {thread}: {stderr}");
            }
            let named = ["for rank 1", "for another thread", "contribution", "the end of time ("];
            assert!(named.iter().any(|words| stderr.contains(words)), "{schedule}, {thread}: {stderr}");
        }
    }
}

#[test]
fn run_of_two_hosts_whose_messages_are_lost_ends() {
    for schedule in ["mini-batch", "partition-parallel", "full-graph", "tensor-parallel"] {
        let place = TestDir::new();
        let settings =
            format!("[model]\nkind = 'sage'\nhidden = 32\n[train]\nepochs = 100000\nschedule = '{schedule}'\n");
        planted(&place, "p.toml", &settings);
        let args = ["--set", "cluster.encrypt=false", "--set", "cluster.stall_timeout=2s"];
        let (relay, [mut first, mut second]) = start_with_relay(&place, "run", [&args; 2]);
        wait_for_epochs(&place, "run", 2, &mut first.child);
        relay.lose_data();
        let codes = [first.end(), second.end()];
        let stderr = [first.stderr(), second.stderr()];
        // The process that is the second to notice may first hear that the other one has ended.
        assert!(
            codes.contains(&70) && codes.iter().all(|code| [5, 70].contains(code)),
            "{schedule}: {codes:?} {stderr:#?}"
        );
        let words = "no process has completed any work for 2 s (cluster.stall_timeout)";
        assert!(stderr.iter().any(|stderr| stderr.contains(words)), "{schedule}: {stderr:#?}");
        assert!(stderr[0].contains("warning: rank 0: "), "{schedule}: {stderr:#?}");
    }
}

#[test]
fn inference_and_refresh_with_a_stuck_thread_end() {
    let place = TestDir::new();
    let graph = "kind = 'planted', nodes = 60_000, edges = 1_200_000, features = 64, classes = 8, out = 'graph'";
    let settings = "[partition]\nparts = 4\nout = 'dataset'\n[model]\nkind = 'sage'\n[train]\nepochs = 1\n";
    place.write("p.toml", format!("[graph]\ngenerate = {{ {graph} }}\n{settings}"));
    place.succeed(&["run", "p.toml", "--quiet", "--run-dir", "run"]);
    for (command, thread) in [("infer", "compute_thread"), ("infer", "timely:work"), ("refresh", "timely:work")] {
        let args = [
            command,
            "run",
            "--out",
            command,
            "--quiet",
            "--set",
            "train.threads=1",
            "--set",
            "cluster.stall_timeout=2s",
        ];
        let mut process = place.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // It begins to compute when this thread exists.
        while FrozenThread::find(process.id(), "compute_thread").is_none() {
            assert!(process.try_wait().unwrap().is_none(), "{command} has ended without computing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let frozen = FrozenThread::stop(process.id(), thread);
        let (code, stderr) = end(process, &frozen);
        assert_eq!(code, 70, "{command}, {thread}: {stderr}");
        let words = "no process has completed any work for 2 s (cluster.stall_timeout)";
        assert!(stderr.contains(words), "{command}, {thread}: {stderr}");
    }
}

#[test]
fn follow_with_a_stuck_worker_ends() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\nkind = 'sage'\n[train]\nepochs = 1\n");
    let run = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "cluster.stall_timeout=2s"];
    place.succeed(&run);
    std::fs::create_dir(place.path("incoming")).unwrap();
    let args = ["follow", "run", "--changes", "incoming", "--out", "followed", "--quiet"];
    let follow = place.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It has computed the first results and waits for batches.
    std::thread::sleep(Duration::from_secs(4));
    let frozen = FrozenThread::stop(follow.id(), "timely:work");
    let (code, stderr) = end(follow, &frozen);
    assert_eq!(code, 70, "{stderr}");
    assert!(stderr.contains("no process has completed any work for 2 s (cluster.stall_timeout)"), "{stderr}");
}

/// Replaces a file by a named pipe without a writer: opening it blocks forever.
fn block(path: &Path) {
    let _ = std::fs::remove_file(path);
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn preparation_that_is_stuck_ends() {
    let place = TestDir::new();
    place.write(
        "p.toml",
        "[graph]\nnodes = 'nodes.parquet'\nedges = 'edges.parquet'\n[partition]\nparts = 2\n[model]\n[train]\n",
    );
    for name in ["nodes.parquet", "edges.parquet"] {
        block(&place.path(name));
    }
    std::thread::scope(|scope| {
        for (command, processes) in [("prepare", "1"), ("prepare", "2"), ("run", "1"), ("run", "2")] {
            let place = &place;
            scope.spawn(move || {
                let begin = Instant::now();
                let folder = format!("{command}-{processes}");
                let (out, run_dir) = (format!("partition.out={folder}.dataset"), format!("{folder}.run"));
                let args = [command, "p.toml", "--processes", processes, "--set", "cluster.stall_timeout=300ms", "--set", &out];
                let run_dir = if command == "run" { vec!["--run-dir", &run_dir] } else { vec![] };
                let words = "\"preparing the dataset\" has read, written and computed nothing for 3 s (10 times cluster.stall_timeout)";
                place.fail(&[&args, &run_dir[..]].concat(), 4, &[words]);
                assert!(begin.elapsed() < LIMIT, "{folder}: {:?}", begin.elapsed());
            });
        }
    });
}

#[test]
fn run_that_is_stuck_in_local_work_ends() {
    let place = TestDir::new();
    planted(&place, "prepare.toml", "[model]\n[train]\nepochs = 1\n");
    place.succeed(&["prepare", "prepare.toml", "--quiet"]);
    let text = std::fs::read_to_string(place.path("prepare.toml")).unwrap();
    let (_, rest) = text.split_once("[model]").unwrap();
    place.write("p.toml", format!("[graph]\ndataset = 'dataset'\n[model]{rest}"));
    block(&place.path("dataset/part-00003/features.arrow"));
    for processes in ["1", "2"] {
        let args = ["run", "p.toml", "--processes", processes, "--set", "cluster.stall_timeout=300ms"];
        let words = ["\"opening the dataset\" has read, written and computed nothing for 3 s"];
        place.fail(&args, 4, &words);
    }
}

/// Locks a file as another process would, and rewrites it every 200 ms for `alive`. Returns the file, which stays locked.
fn hold(path: &Path, alive: Duration) -> std::fs::File {
    let mut file = std::fs::File::create(path).unwrap();
    file.try_lock().unwrap();
    let begin = Instant::now();
    while begin.elapsed() < alive {
        file.set_len(0).unwrap();
        file.rewind().unwrap();
        writeln!(file, "process 17 on a host, {}", begin.elapsed().as_millis()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    file
}

#[test]
fn preparation_waits_only_for_a_process_that_is_alive() {
    for (lock, generates) in [("dataset.lock", false), ("graph/.generate.lock", true)] {
        let place = TestDir::new();
        planted(&place, "p.toml", "[model]\n[train]\nepochs = 1\n");
        if !generates {
            place.succeed(&["prepare", "p.toml", "--quiet", "--set", "partition.out=other"]);
        }
        std::fs::create_dir_all(place.path("graph")).unwrap();
        let path = place.path(lock);
        let run = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "cluster.stall_timeout=300ms"];
        let held = hold(&path, Duration::ZERO);
        place.fail(&run, 5, &[lock, "another process holds this lock, but has given no sign of life for 3 s"]);
        drop(held);
        std::fs::remove_file(&path).unwrap();

        let owner = std::thread::spawn(move || {
            let held = hold(&path, Duration::from_secs(5));
            std::fs::remove_file(&path).unwrap();
            drop(held);
        });
        std::thread::sleep(Duration::from_millis(100));
        place.succeed(&run);
        owner.join().unwrap();
        assert_eq!(summary(&place, "run")["epochs"], 1);
    }
}

#[test]
fn run_that_was_stopped_for_longer_than_the_timeout_goes_on() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\nepochs = 100\n");
    let args = ["run", "p.toml", "--quiet", "--run-dir", "run", "--set", "cluster.stall_timeout=1s"];
    let mut run = place.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_epochs(&place, "run", 2, &mut run);
    let send = |signal: i32| {
        // SAFETY: the process is a child of this one that has not been waited for.
        assert_eq!(unsafe { libc::kill(run.id() as i32, signal) }, 0);
    };
    send(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(3));
    send(libc::SIGCONT);
    let ended = run.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
