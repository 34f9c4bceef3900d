//! `gnnflow launch`, with a script in place of ssh: each host name has a home folder of its own on this machine.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::member::{Member, TIME_LIMIT};
use crate::common::{Ended, TestDir, assert_same_results, children, epochs, hosts_on, kill, planted, summary};

const SETTINGS: &str = "[model]\nkind = 'sage'\nhidden = 16\n[train]\nepochs = 3\nbatch = 64\nfanouts = [5, 3]\n";
const SECRET: &str = "the shared secret of these tests";
/// A section for the end of a pipeline file. Processes may stand still for a while.
const ELASTIC: &str = "[cluster]\nrestarts = 5\nelastic = true\nelastic_wait = '1s'\nheartbeat_timeout = '60s'\n";

/// Gives the command to the shell of the host, as ssh does. Options are ignored, and the environment is that of a login. The file `down` has a host that cannot be
/// reached.
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
if [ "$host" = "$(cat "$(dirname "$0")/down" 2>/dev/null)" ]; then
    echo try >> "$(dirname "$0")/tries"
    echo "ssh: connect to host $host port 22: No route to host" >&2
    exit 255
fi
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

/// An elastic run with its launcher.
struct Elastic<'a> {
    hosts: &'a Hosts,
    /// The host names of the ranks.
    names: Vec<String>,
    run: &'a str,
    launcher: Member,
}

impl<'a> Elastic<'a> {
    /// Launches `run p.toml`, with more arguments, on that many hosts. Waits until it trains.
    fn start(hosts: &'a Hosts, count: u32, run: &'a str, more: &[&str]) -> Self {
        let file = hosts_on(&hosts.place, &(0..count).collect::<Vec<_>>());
        let command = ["run", "p.toml", "--quiet", "--run-dir", run];
        let mut command = hosts.launch(&file, &[&command[..], more].concat());
        let launcher = Member::new(command.stdout(Stdio::null()), hosts.place.path(&format!("stderr-{run}")));
        let mut launched = Self { hosts, names: hosts.names(&file), run, launcher };
        launched.train_more(2);
        launched
    }

    /// Returns the number of epochs so far.
    fn trained(&self) -> usize {
        epochs(&self.hosts.place.path(&self.hosts.at(&self.names[0], self.run))).len()
    }

    /// Waits until `more` epochs have been trained from now on.
    fn train_more(&mut self, more: usize) {
        let (since, before) = (Instant::now(), self.trained());
        while self.trained() < before + more {
            let ended = self.launcher.child.try_wait().unwrap();
            assert!(ended.is_none() && since.elapsed() < TIME_LIMIT, "{ended:?}: {}", self.launcher.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the supervisor of a rank and the process that trains, if both run.
    fn processes(&self, rank: usize) -> Option<[u32; 2]> {
        let is_of_rank =
            |arguments: &[String]| arguments.windows(2).any(|pair| pair[0] == "--rank" && pair[1] == rank.to_string());
        let found = processes_with(self.run).into_iter().filter(|(_, arguments)| is_of_rank(arguments));
        let found: Vec<u32> = found.map(|(pid, _)| pid).collect();
        found.iter().find_map(|&pid| Some([pid, children(pid).into_iter().find(|child| found.contains(child))?]))
    }

    /// Waits for the supervisor of a rank and the process that trains.
    fn wait_for_processes(&self, rank: usize) -> [u32; 2] {
        let mut found = None;
        wait_until("the processes of a rank", || {
            found = self.processes(rank);
            found.is_some()
        });
        found.unwrap()
    }

    /// Makes a host unreachable, or reachable with `None`.
    fn set_down(&self, host: Option<&str>) {
        let file = self.hosts.place.path("all hosts/down");
        match host {
            Some(host) => std::fs::write(file, host).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
    }

    /// Returns how often a connection with a host that is down was tried.
    fn tries(&self) -> usize {
        std::fs::read_to_string(self.hosts.place.path("all hosts/tries")).map_or(0, |text| text.lines().count())
    }

    /// Returns the number of lines of the launcher and of rank 0 on stderr that contain `words`.
    fn lines(&self, words: &str) -> usize {
        let text = self.launcher.stderr();
        text.lines().filter(|line| !line.starts_with('[') && line.contains(words)).count()
    }

    /// Waits for the end of the launcher, and then of all processes. Returns the exit code.
    fn end(&mut self) -> i32 {
        let code = self.launcher.end();
        let place = self.hosts.place.path("");
        let all = || [processes_with(self.run), processes_with(place.to_str().unwrap())].concat();
        let since = Instant::now();
        while !all().is_empty() {
            assert!(since.elapsed() < TIME_LIMIT, "{:?}: {}", all(), self.launcher.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        code
    }
}

/// Returns the parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns whether a process runs.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
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
    signal(launcher.id(), rustix::process::Signal::TERM);
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
fn lost_host_of_an_elastic_run_is_started_again_when_it_answers() {
    let hosts = Hosts::new(SETTINGS);
    let text = std::fs::read_to_string(hosts.place.path("p.toml")).unwrap();
    hosts.place.write("p.toml", text + ELASTIC);
    let sets = ["train.epochs=200", "train.batch=32", "train.checkpoint_every=1"].map(|set| ["--set", set]).concat();
    hosts.place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "elastic-1"], &sets[..]].concat());
    let mut run = Elastic::start(&hosts, 3, "elastic-1", &sets);
    // Connection, supervisor and process.
    run.set_down(Some(&run.names[1]));
    kill(parent(run.wait_for_processes(1)[0]));
    run.launcher.wait_for("the run goes on with 2 of 3 processes, without rank 1 ");
    run.train_more(1);
    // Rank 0 stands still, so that the lost process comes back long before the last epoch.
    let [_, first] = run.wait_for_processes(0);
    signal(first, rustix::process::Signal::STOP);
    assert!(run.trained() < 190, "the run is too short for this test");
    wait_until("two tries", || run.tries() >= 2);
    run.set_down(None);
    run.wait_for_processes(1);
    std::thread::sleep(Duration::from_secs(1));
    signal(first, rustix::process::Signal::CONT);
    run.launcher.wait_for("a lost process has returned; starting again from the last checkpoint");
    assert_eq!(run.end(), 0, "{}", run.launcher.stderr());
    let host = &run.names[1];
    let ended = format!("to {host} was killed by SIGKILL (signal 9)");
    let lost = format!("cannot connect with {host} by ");
    let here = format!("gnnflow: rank 1: connected with {host} again");
    for words in [&ended, "; starting the process again", &lost, "No route to host", &here] {
        assert_eq!(run.lines(words), 1, "{words}: {}", run.launcher.stderr());
    }
    let there = hosts.at(&run.names[0], "elastic-1");
    assert_eq!(summary(&hosts.place, &there)["processes"], 3);
    assert_same_results(&hosts.place, "elastic-1", &there);
}

#[test]
fn signal_ends_processes_that_were_started_again() {
    let hosts = Hosts::new(SETTINGS);
    // The end of this ssh leaves the processes on the host, until their standard input ends.
    let apart =
        SSH.replace("exec env", "exec 3<&0\nenv").replace("\"$*\"\n", "\"$*\" <&3 3<&- &\nexec 3<&-\nwait $!\n");
    hosts.place.write("all hosts/ssh", apart);
    let sets = ["cluster.restarts=5", "cluster.elastic=true", "cluster.elastic_wait=1s", "train.epochs=100000"];
    let mut run = Elastic::start(&hosts, 2, "elastic-2", &sets.map(|set| ["--set", set]).concat());
    let before = run.wait_for_processes(1);
    kill(parent(parent(before[0])));
    run.launcher.wait_for("; starting the process again");
    wait_until("the end of the lost process", || !before.iter().any(|&pid| is_alive(pid)));
    let [_, second] = run.wait_for_processes(1);
    run.train_more(5);
    assert!(run.launcher.child.try_wait().unwrap().is_none(), "{}", run.launcher.stderr());
    assert!(is_alive(second) || run.processes(1).is_some(), "{}", run.launcher.stderr());
    run.launcher.signal(rustix::process::Signal::TERM);
    assert_eq!(run.end(), 130, "{}", run.launcher.stderr());

    // Without a launcher, nothing is left to start processes again.
    let mut run = Elastic::start(&hosts, 2, "elastic-4", &sets.map(|set| ["--set", set]).concat());
    kill(run.launcher.child.id());
    assert_eq!(run.end(), -1, "{}", run.launcher.stderr());
}

#[test]
fn elastic_run_ends_with_rank_0_and_with_failures_before_its_begin() {
    let hosts = Hosts::new(SETTINGS);
    let sets = ["cluster.restarts=5", "cluster.elastic=true", "train.epochs=100000"].map(|set| ["--set", set]).concat();
    let mut run = Elastic::start(&hosts, 3, "elastic-3", &sets);
    run.set_down(Some(&run.names[2]));
    kill(parent(run.wait_for_processes(2)[0]));
    run.launcher.wait_for("No route to host; trying again while rank 0 runs");
    kill(parent(run.wait_for_processes(0)[0]));
    assert_eq!(run.end(), 5, "{}", run.launcher.stderr());
    let words = format!("to {} was killed by SIGKILL (signal 9)", run.names[0]);
    assert!(run.launcher.stderr().contains(&words), "{}", run.launcher.stderr());
    run.set_down(None);
    // A wrong address remains an error: there is nothing to go on with.
    let file = hosts_on(&hosts.place, &[0, 1]);
    let addresses = std::fs::read_to_string(hosts.place.path(&file)).unwrap();
    let _other = std::net::TcpListener::bind(addresses.lines().nth(1).unwrap()).unwrap();
    let sets = ["cluster.restarts=1", "cluster.elastic=true"].map(|set| ["--set", set]).concat();
    let ended = hosts.run(&file, &[&["run", "p.toml", "--quiet"], &sets[..]].concat());
    assert!(ended.code == 4 && ended.stderr.contains("another program"), "{ended:#?}");
    assert!(!ended.stderr.contains("starting the process again"), "{ended:#?}");
    let refused = hosts.run(&file, &["run", "p.toml", "--set", "cluster.elastic=true"]);
    assert!(refused.code == 2 && refused.stderr.contains("set `cluster.restarts` to 1 or more"), "{refused:#?}");
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
