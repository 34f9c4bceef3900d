//! `gnnflow launch`, with a script in place of ssh: each host name has a home folder of its own on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::member::TIME_LIMIT;
use crate::common::{Ended, TestDir, assert_same_results, hosts_on, kill, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 3\nbatch = 64\nfanouts = [5, 3]\n";
const SECRET: &str = "the shared secret of these tests";

/// Gives the command to the shell of the host, as ssh does. Options are ignored, and the environment is that of a login.
const SSH: &str = r#"#!/bin/sh
while true; do
    case "$1" in
        -o) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1
shift
case "$host" in
    broken*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
esac
home="$(dirname "$0")/$host"
mkdir -p "$home"
cd "$home"
exec env -i HOME="$home" PATH="$PATH" sh -c "$*"
"#;

/// A folder with the script, whose path has a space.
struct Hosts {
    place: TestDir,
    ssh: String,
}

impl Hosts {
    fn new(settings: &str) -> Self {
        let place = TestDir::new();
        planted(&place, "p.toml", settings);
        let script = place.write("all hosts/ssh", SSH);
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ssh = format!("'{}' -T -o 'User=a b'", script.display());
        Self { place, ssh }
    }

    /// Returns the command that launches `command` with the processes of a hosts file.
    fn launch(&self, hosts: &str, command: &[&str]) -> Command {
        let options = ["launch", "--hosts", hosts, "--ssh", &self.ssh, "--folder", "work folder", "--"];
        let mut launch = self.place.command(&[&options[..], command].concat());
        launch.env("GNNFLOW_SECRET", SECRET).stdout(Stdio::piped()).stderr(Stdio::piped());
        launch
    }

    fn run(&self, hosts: &str, command: &[&str]) -> Ended {
        end(self.launch(hosts, command).spawn().unwrap())
    }

    /// Returns the host names of a hosts file.
    fn names(&self, hosts: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.place.path(hosts)).unwrap();
        text.lines().map(|line| line.rsplit_once(':').unwrap().0.to_owned()).collect()
    }

    /// Returns a path in the working folder of a host, relative to the test's folder.
    fn at(&self, host: &str, name: &str) -> String {
        format!("all hosts/{host}/work folder/{name}")
    }
}

fn end(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Returns the arguments of all processes whose arguments contain `word`.
fn processes_with(word: &str) -> Vec<(u32, Vec<String>)> {
    let of = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).into_owned();
        let arguments: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
        arguments.iter().any(|argument| argument.contains(word)).then_some((pid, arguments))
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| of(entry.unwrap())).collect()
}

/// Waits until `is_so`.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < TIME_LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes of the ranks of an endless run in run folder `run`, when it trains.
fn training(hosts: &Hosts, host: &str, run: &str) -> Vec<u32> {
    let metrics = hosts.place.path(&hosts.at(host, &format!("{run}/metrics.jsonl")));
    wait_until("the first epoch", || std::fs::read_to_string(&metrics).is_ok_and(|lines| lines.contains('\n')));
    let mut ranks: Vec<(String, u32)> = processes_with(run)
        .into_iter()
        .filter(|(_, arguments)| arguments.len() > 2 && arguments[arguments.len() - 2] == "--rank")
        .map(|(pid, arguments)| (arguments.last().unwrap().clone(), pid))
        .collect();
    ranks.sort();
    ranks.into_iter().map(|(_, pid)| pid).collect()
}

#[test]
fn launched_run_has_the_bits_of_local_processes() {
    let hosts = Hosts::new(SETTINGS);
    let file = hosts_on(&hosts.place, &[0, 1]);
    let names = hosts.names(&file);
    // The arguments reach the program unchanged.
    let folder = "it's \"a\" $HOME `name`; \\ * run";
    let run = ["run", "p.toml", "--run-dir", folder, "--json"];
    let launched = hosts.run(&file, &run);
    assert_eq!(launched.code, 0, "{launched:#?}");
    hosts.place.succeed(&[&run[..4], &["--quiet", "--processes", "2"]].concat());
    let there = hosts.at(&names[0], folder);
    assert_same_results(&hosts.place, folder, &there);
    // Rank 0 prints the results, and nothing is added to them.
    let printed: serde_json::Value = serde_json::from_str(&launched.stdout).unwrap();
    assert_eq!(printed["model_sha256"], summary(&hosts.place, folder)["model_sha256"]);
    assert!(launched.stderr.lines().any(|line| line.starts_with("epoch ")), "{}", launched.stderr);
    assert!(!hosts.place.path(&hosts.at(&names[1], &format!("{folder}/summary.json"))).exists());
    // Each host has one copy of the program, and no unfinished one.
    for name in &names {
        let cache = hosts.place.path(&format!("all hosts/{name}/.cache/gnnflow"));
        let copies: Vec<PathBuf> = std::fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(copies.len(), 1);
        let files: Vec<_> = std::fs::read_dir(&copies[0]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["gnnflow"]);
    }
    // The copy is used again; a damaged one is reported.
    let program = hosts.place.path(&format!("all hosts/{}/.cache/gnnflow", names[1]));
    let program = std::fs::read_dir(program).unwrap().next().unwrap().unwrap().path().join("gnnflow");
    let before = std::fs::metadata(&program).unwrap().modified().unwrap();
    let again = hosts.run(&file, &["run", "p.toml", "--quiet", "--set", "train.epochs=1"]);
    assert_eq!(again.code, 0, "{again:#?}");
    assert_eq!(std::fs::metadata(&program).unwrap().modified().unwrap(), before);
    let mut bytes = std::fs::read(&program).unwrap();
    bytes.push(0);
    std::fs::write(&program, bytes).unwrap();
    let damaged = hosts.run(&file, &["run", "p.toml", "--quiet"]);
    assert_eq!(damaged.code, 5, "{damaged:#?}");
    let words = format!("[1 {}] error: the copy of gnnflow on this host is damaged", names[1]);
    assert!(damaged.stderr.contains(&words), "{damaged:#?}");
}

#[test]
fn check_of_a_launched_cluster_prints_the_tables() {
    let hosts = Hosts::new(SETTINGS);
    // Two processes on one host, whose links are not compared.
    let file = hosts_on(&hosts.place, &[0, 0]);
    let checked = hosts.run(&file, &["check-cluster", "--seconds", "0.1"]);
    assert_eq!(checked.code, 0, "{checked:#?}");
    assert!(checked.stdout.contains("0 → 1") && checked.stdout.contains("no problem was found"), "{checked:#?}");
}

#[test]
fn killed_rank_ends_all_processes_and_the_secret_is_in_no_arguments() {
    let hosts = Hosts::new(SETTINGS);
    let file = hosts_on(&hosts.place, &[0, 1]);
    let names = hosts.names(&file);
    let launcher = hosts.launch(&file, &["run", "p.toml", "--run-dir", "endless-1", "--set", "train.epochs=100000"]);
    let launcher = { launcher }.spawn().unwrap();
    let ranks = training(&hosts, &names[0], "endless-1");
    assert_eq!(ranks.len(), 2);
    assert!(processes_with(SECRET).is_empty(), "{:?}", processes_with(SECRET));
    kill(ranks[1]);
    let ended = end(launcher);
    assert_eq!(ended.code, 5, "{ended:#?}");
    let words = [
        format!("[1 {}] gnnflow: the process was killed by SIGKILL", names[1]),
        format!("error: lost rank 1 ({}", names[1]),
    ];
    assert!(words.iter().all(|words| ended.stderr.contains(words)), "{ended:#?}");
    wait_until("the end of all processes", || processes_with("endless-1").is_empty());
}

#[test]
fn signals_reach_all_processes_and_an_ended_launcher_ends_them() {
    let hosts = Hosts::new(SETTINGS);
    let file = hosts_on(&hosts.place, &[0, 1]);
    let names = hosts.names(&file);
    let endless = |run: &str| {
        let settings = ["--set", "train.epochs=100000", "--set", "train.checkpoint_on_signal=true"];
        hosts.launch(&file, &[&["run", "p.toml", "--run-dir", run], &settings[..]].concat()).spawn().unwrap()
    };
    let launcher = endless("endless-2");
    training(&hosts, &names[0], "endless-2");
    let pid = rustix::process::Pid::from_raw(launcher.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = end(launcher);
    assert_eq!(ended.code, 130, "{ended:#?}");
    assert!(hosts.place.path(&hosts.at(&names[0], "endless-2/checkpoints/last.safetensors")).exists(), "{ended:#?}");
    wait_until("the end of all processes", || processes_with("endless-2").is_empty());

    let launcher = endless("endless-3");
    training(&hosts, &names[0], "endless-3");
    kill(launcher.id());
    assert_eq!(end(launcher).code, -1);
    wait_until("the end of all processes", || processes_with("endless-3").is_empty());
}

#[test]
fn hosts_that_cannot_be_reached_are_named() {
    let hosts = Hosts::new(SETTINGS);
    hosts.place.write("hosts", "localhost:7100\nbroken-1:7100\nbroken-2:7100\n");
    let ended = hosts.run("hosts", &["run", "p.toml"]);
    assert_eq!(ended.code, 5, "{ended:#?}");
    for host in ["broken-1", "broken-2"] {
        let message = format!("ssh: connect to host {host} port 22: No route to host");
        let words = format!("error: cannot connect with {host} by ");
        assert!(ended.stderr.lines().any(|line| line.starts_with(&words) && line.ends_with(&message)), "{ended:#?}");
    }
    // ssh fails only after the program has been found.
    let flaky = SSH.replace("home=", "case \"$*\" in *remote-launch*) echo lost >&2; exit 255;; esac\nhome=");
    hosts.place.write("all hosts/ssh", flaky);
    let file = hosts_on(&hosts.place, &[0]);
    let ended = hosts.run(&file, &["run", "p.toml"]);
    assert_eq!(ended.code, 5, "{ended:#?}");
    let words = format!("to {} ended with exit code 255: lost", hosts.names(&file)[0]);
    assert!(ended.stderr.contains("gnnflow: rank 0: ") && ended.stderr.contains(&words), "{ended:#?}");
}

#[test]
fn own_error_of_a_process_decides_the_exit_code() {
    let hosts = Hosts::new(SETTINGS);
    let file = hosts_on(&hosts.place, &[0, 1]);
    let nan = hosts.run(&file, &["run", "p.toml", "--quiet", "--set", "train.optimizer.lr=1e30"]);
    assert_eq!(nan.code, 3, "{nan:#?}");
    // What can be checked here is checked before anything is started.
    let refused = |command: &[&str], words: &str| {
        let ended = hosts.run(&file, command);
        assert!(ended.code == 2 && ended.stderr.contains(words), "{ended:#?}");
    };
    refused(&["run", "p.toml", "--rank", "0"], "leave out --hosts and --rank");
    refused(&["run", "p.toml", "--processes", "2"], "--processes");
    refused(&["run", "p.toml", "--epochs", "2"], "--epochs");
    refused(&["inspect", "graph"], "does not run on several hosts");
    refused(&["run", "none.toml"], "none.toml");
    hosts.place.fail(
        &["launch", "--hosts", &file, "--env", "GNNFLOW_NOT_SET", "--", "run", "p.toml"],
        2,
        &["--env GNNFLOW_NOT_SET"],
    );
    hosts.place.fail(
        &["launch", "--hosts", &file, "--ssh", "/nonexistent/ssh", "--", "run", "p.toml"],
        4,
        &["/nonexistent/ssh"],
    );
    hosts.place.write("option", "-oProxyCommand=x:7000\n");
    hosts.place.fail(
        &["launch", "--hosts", "option", "--", "run", "p.toml"],
        2,
        &["ssh would take the host name for an option"],
    );
    hosts.place.fail(&["remote-launch"], 2, &["no order on standard input", "gnnflow launch"]);
}
