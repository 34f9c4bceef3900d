//! Tensor workers: equal bits with and without them, lost and misbehaving workers, and refused settings.

mod fake;
mod registering;
mod started;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::relay::Relay;
use crate::common::{TestDir, planted, summary};
use fake::Misbehavior;
use serde_json::Value;
use started::{Worker, kill, launched_workers, start_and_wait_for_epoch, wait_for_end};

const SECRET: &str = "a secret of the test's own";

fn settings(model: &str, train: &str) -> String {
    format!(
        "[model]\n{model}\nhidden = 16\n[train]\nschedule.kind = 'full-graph'\nepochs = 3\nschedule.intervals = 3\n{train}"
    )
}

/// Returns the arguments of a run with these settings. Tensor workers compute all tasks, unless the settings say otherwise.
fn sets<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", "p.toml", "--run-dir", "run"];
    let of_workers = |key: &str| sets.iter().any(|set| set.starts_with(&format!("train.tensor_workers.{key}")));
    let more: &[&str] = match of_workers("") && !of_workers("local_tasks") {
        true => &["--set", "train.tensor_workers.local_tasks=false"],
        false => &[],
    };
    run.into_iter()
        .chain(more.iter().copied())
        .chain(sets.iter().flat_map(|set| if set.starts_with("--") { vec![*set] } else { vec!["--set", *set] }))
        .collect()
}

fn succeed(place: &TestDir, args: &[&str]) -> Value {
    let ended = place.run(&sets(args));
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    summary(place, "run")
}

fn hashes(summary: &Value) -> [String; 2] {
    ["model_sha256", "predictions_sha256"].map(|key| summary[key].as_str().unwrap().to_owned())
}

#[test]
fn model_with_tensor_workers_has_equal_bits() {
    let place = TestDir::new();
    for model in
        ["kind = 'gcn'", "kind = 'gat'\nheads = 4", "kind = 'sage'\nnorm = 'batch'\nresidual = true", "kind = 'appnp'"]
    {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), ""));
        let alone = succeed(&place, &[]);
        assert!(alone.get("tensor").is_none());
        for workers in [1, 2, 4] {
            let some = succeed(&place, &[&format!("train.tensor_workers.workers={workers}")]);
            assert_eq!(hashes(&some), hashes(&alone), "{model}: {workers} tensor workers");
            let tensor = &some["tensor"];
            assert!(tensor["tasks"].as_u64() > Some(3 * 3 * 4), "{model}: {tensor}");
            assert!(tensor["calls"].as_u64() > Some(0) && tensor["calls"].as_u64() <= tensor["tasks"].as_u64());
            assert_eq!(tensor["lost"], 0, "{model}: {tensor}");
        }
        let two = succeed(&place, &["train.tensor_workers.workers=2", "--processes=2"]);
        assert_eq!(hashes(&two), hashes(&alone), "{model}: two processes");
        assert_eq!(two["tensor"]["lost"], 0);
        for processes in ["--processes=1", "--processes=2"] {
            let local = ["train.tensor_workers.workers=1", "train.tensor_workers.local_tasks=true", processes];
            let shared = succeed(&place, &local);
            assert_eq!(hashes(&shared), hashes(&alone), "{model}: {processes} computes tasks, too");
            assert!(shared["tensor"]["local"].as_u64() > Some(0), "{}", shared["tensor"]);
        }
    }
}

#[test]
fn autotuner_uses_no_worker_if_calls_are_too_expensive() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let epochs = ["train.epochs=40", "train.evaluate_every=10"];
    let alone = succeed(&place, &epochs);
    let prices = ["price.graph_worker_hour=0.001", "price.tensor_call=1.0"];
    let workers = ["train.tensor_workers.workers=2", "train.tensor_workers.local_tasks=true"];
    let tuned = succeed(&place, &[&epochs[..], &prices, &workers].concat());
    assert_eq!(hashes(&tuned), hashes(&alone));
    assert_eq!(tuned["tensor"]["workers"], 0, "{}", tuned["tensor"]);
    let fixed = succeed(&place, &[&epochs[..], &prices, &workers, &["train.tensor_workers.autotune=false"]].concat());
    assert_eq!((hashes(&fixed), &fixed["tensor"]["workers"]), (hashes(&alone), &2.into()), "{}", fixed["tensor"]);
    let calls = |summary: &Value| summary["tensor"]["calls"].as_u64().unwrap();
    assert!(calls(&tuned) < calls(&fixed), "{} {}", tuned["tensor"], fixed["tensor"]);
    // Epochs overlap, so tasks of the next one may wait for a worker when the autotuner chooses none. The run must end.
    let stale = ["train.schedule.mode=async", "train.schedule.staleness=1", "train.evaluate_every=0", "--processes=2"];
    succeed(&place, &[&epochs[..1], &prices, &workers, &stale].concat());
}

#[test]
fn other_full_graph_modes_with_tensor_workers_have_equal_results() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    for more in
        [&["train.schedule.kind=tensor-parallel"][..], &["train.schedule.mode=sync"], &["graph.undirected=true"]]
    {
        let alone = succeed(&place, more);
        let some = succeed(&place, &[more, &["train.tensor_workers.workers=2"]].concat());
        assert_eq!(hashes(&some), hashes(&alone), "{more:?}");
        assert!(some["tensor"]["calls"].as_u64() > Some(0));
    }
    // One interval has no stale neighbors.
    let one = ["partition.parts=1", "train.schedule.intervals=1", "train.schedule.mode=async"];
    let alone = succeed(&place, &one);
    assert_eq!(hashes(&succeed(&place, &[&one[..], &["train.tensor_workers.workers=2"]].concat())), hashes(&alone));
    for (kind, staleness, epochs) in [("gcn", 0u64, 40), ("gcn", 1, 40), ("gat", 1, 60)] {
        let [kind, set, epochs] = [
            format!("model.kind={kind}"),
            format!("train.schedule.staleness={staleness}"),
            format!("train.epochs={epochs}"),
        ];
        let more = [
            "train.schedule.mode=async",
            &kind,
            &set,
            &epochs,
            "train.tensor_workers.workers=2",
            "train.evaluate_every=0",
            "--processes=2",
        ];
        let stale = succeed(&place, &more);
        assert!(stale["staleness_max"].as_u64() <= Some(staleness), "{stale}");
        assert!(stale["test"]["accuracy"].as_f64() > Some(0.6), "{kind}: {}", stale["test"]);
    }
}

#[test]
fn small_tasks_that_share_calls_have_equal_bits() {
    let place = TestDir::new();
    for model in ["kind = 'gcn'", "kind = 'gat'\nheads = 4", "kind = 'gatv2'\nheads = 4"] {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), ""));
        let small = "train.schedule.intervals=40";
        let alone = succeed(&place, &[small]);
        for (workers, mode) in [(1, "pipe"), (2, "pipe"), (4, "sync")] {
            let workers = format!("train.tensor_workers.workers={workers}");
            let mode = format!("train.schedule.mode={mode}");
            let some = succeed(&place, &[small, &workers, &mode]);
            assert_eq!(hashes(&some), hashes(&alone), "{model}: {workers} {mode}");
            let tensor = &some["tensor"];
            let number = |key: &str| tensor[key].as_f64().unwrap();
            assert!(number("tasks") > 2.0 * number("calls"), "{model}: {workers}: {tensor}");
            assert_eq!(number("lost"), 0.0, "{tensor}");
        }
    }
}

#[test]
fn long_tasks_that_are_split_have_equal_bits() {
    let place = TestDir::new();
    // One interval of 1,500 nodes is split into 1,024 rows and the rest.
    for model in [
        "kind = 'gcn'",
        "kind = 'gat'\nheads = 4",
        "kind = 'gin'\nnorm = 'layer'",
        "kind = 'sage'\nnorm = 'batch'\nresidual = true",
        "kind = 'appnp'",
    ] {
        planted(&place, "p.toml", &settings(&format!("{model}\ninput_dropout = 0.3"), ""));
        let whole = ["partition.parts=1", "train.schedule.intervals=1"];
        let alone = succeed(&place, &whole);
        let some = succeed(&place, &[&whole[..], &["train.tensor_workers.workers=2"]].concat());
        assert_eq!(hashes(&some), hashes(&alone), "{model}");
        assert_eq!(some["tensor"]["lost"], 0, "{}", some["tensor"]);
    }
}

#[test]
fn killed_launched_worker_is_restarted() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    let epochs = ["train.epochs=80", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    // The only worker is restarted, so `when_gone` has no effect.
    let only = ["train.tensor_workers.workers=1", "train.tensor_workers.when_gone=fail"];
    let run = start_and_wait_for_epoch(&place, &[&epochs[..], &only].concat(), None);
    let children = launched_workers(run.id());
    assert_eq!(children.len(), 1);
    kill(children[0]);
    let (code, stderr) = wait_for_end(run);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("it is started again in 0.2 s"), "{stderr}");
    let killed = summary(&place, "run");
    assert_eq!(hashes(&killed), hashes(&alone));
    assert_eq!((&killed["tensor"]["lost"], &killed["tensor"]["relaunched"]), (&1.into(), &1.into()));
    // Without restarts, `when_gone` decides.
    for (when, code) in [("local", 0), ("fail", 4)] {
        let when = format!("train.tensor_workers.when_gone={when}");
        let never = ["train.tensor_workers.workers=1", "train.tensor_workers.relaunch=0", &when];
        let run = start_and_wait_for_epoch(&place, &[&epochs[..], &never].concat(), None);
        kill(launched_workers(run.id())[0]);
        let (found, stderr) = wait_for_end(run);
        assert_eq!(found, Some(code), "{when}: {stderr}");
        assert!(stderr.contains("all tensor workers are gone"), "{when}: {stderr}");
        if code == 0 {
            assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
            assert_eq!(summary(&place, "run")["tensor"]["relaunched"], 0);
        }
    }
}

#[test]
fn plan_bounds_the_rows_of_calls_in_flight() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    for more in
        [&["train.schedule.intervals=1"][..], &["train.schedule.intervals=40"], &["model.kind=gat", "model.heads=4"]]
    {
        for workers in ["train.tensor_workers.workers=1", "train.tensor_workers.workers=4"] {
            let args = [more, &[workers]].concat();
            let dry = place.succeed(&sets(&[&args[..], &["--dry-run", "--json"]].concat()));
            let plan: Value = serde_json::from_str(&dry).unwrap();
            let planned = plan["processes"][0]["memory"]["tensor_rows"].as_u64().unwrap();
            assert!(plan["tensor_worker_bytes"].as_u64() > Some(64 << 20), "{plan}");
            let measured = succeed(&place, &args)["tensor"]["row_bytes_max"].as_u64().unwrap();
            assert!(0 < measured && measured <= planned, "{args:?}: {measured} of {planned}");
        }
    }
    let dry = place.succeed(&sets(&["train.tensor_workers.workers=1", "--dry-run"]));
    assert!(dry.contains("rows of tasks with tensor workers") && dry.contains("for each tensor worker"), "{dry}");
    let dry = place.succeed(&sets(&["--dry-run"]));
    assert!(!dry.contains("tensor worker"), "{dry}");
}

#[test]
fn run_with_two_killed_workers_has_equal_bits() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ninput_dropout = 0.3", ""));
    let more = ["train.epochs=60", "train.evaluate_every=0", "train.tensor_workers.autotune=false"];
    let alone = succeed(&place, &more[..2]);
    let metrics = place.path("run/metrics.jsonl");
    std::fs::remove_file(&metrics).unwrap();
    let mut run =
        place.command(&sets(&[&more[..], &["train.tensor_workers.workers=4", "--quiet"]].concat())).spawn().unwrap();
    let begin = Instant::now();
    let epochs = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count();
    while !(1..50).contains(&epochs()) {
        assert!(begin.elapsed() < Duration::from_secs(120) && epochs() < 50, "no epoch in which to kill");
        std::thread::sleep(Duration::from_millis(2));
    }
    let children = launched_workers(run.id());
    assert!(children.len() >= 2, "{children:?}");
    for child in &children[..2] {
        kill(*child);
    }
    assert!(run.wait().unwrap().success());
    let killed = summary(&place, "run");
    assert_eq!(hashes(&killed), hashes(&alone));
    assert_eq!(killed["tensor"]["lost"], 2, "{}", killed["tensor"]);
    assert_eq!(killed["tensor"]["relaunched"], 2, "{}", killed["tensor"]);
}

#[test]
fn run_with_listening_workers_has_equal_bits_when_some_are_gone() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let alone = succeed(&place, &[]);
    let (one, two) = (Worker::start(&place, Some(SECRET)), Worker::start(&place, Some(SECRET)));
    let hosts = format!("train.tensor_workers.hosts=['{}', '{}']", one.address, two.address);
    let run = |more: &[&str], secret: &str| {
        let mut command = place.command(&sets(&[&[&hosts[..]], more].concat()));
        let output = command.env("GNNFLOW_SECRET", secret).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for processes in ["--processes=1", "--processes=2"] {
        let (code, stderr) = run(&[processes], SECRET);
        assert_eq!(code, Some(0), "{stderr}");
        let some = summary(&place, "run");
        assert_eq!(hashes(&some), hashes(&alone));
        assert_eq!(some["tensor"]["lost"], 0, "{stderr}");
    }
    // Workers with another secret are rejected and reported.
    let (code, stderr) = run(&[], "another secret altogether");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("wrong secret") && stderr.contains(&one.address) && stderr.contains("this process computes"),
        "{stderr}"
    );
    assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
    let (code, stderr) = run(&["train.tensor_workers.when_gone=fail"], "another secret altogether");
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("all tensor workers are gone"), "{stderr}");
    // One worker is left, then none.
    drop(one);
    let (code, stderr) = run(&[], SECRET);
    assert_eq!((code, hashes(&summary(&place, "run"))), (Some(0), hashes(&alone)), "{stderr}");
    drop(two);
    let (code, stderr) = run(&["train.tensor_workers.when_gone=fail"], SECRET);
    assert_eq!(code, Some(4), "{stderr}");
}

/// Rounding errors depend on the device, so all workers of a run compute on the same kind.
#[test]
fn workers_on_another_kind_of_device_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let worker = Worker::start(&place, None);
    let on_gpu = ["train.tensor_workers.device=cuda", "train.tensor_workers.when_gone=fail"];
    let hosts = format!("train.tensor_workers.hosts=['{}']", worker.address);
    let ended = place.run(&sets(&[&on_gpu[..], &[&hosts]].concat()));
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(
        ended.stderr.contains(&worker.address) && ended.stderr.contains("start it with --device cuda"),
        "{}",
        ended.stderr
    );
    // One that registers ends with the reason. The run goes on for as long as it waits for a host that does not answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = format!("train.tensor_workers.hosts=['{}']", silent.local_addr().unwrap());
    let at = started::free_address();
    let accept = format!("train.tensor_workers.accept={at}");
    let early = Worker::with_args(&place, None, &["--connect", &at]);
    let ended = place.run(&sets(&[&on_gpu[..], &[&hosts, &accept]].concat()));
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    let (code, output) = early.finish();
    assert!(code == Some(5) && output.contains("start it with --device cuda"), "{output}");
    place.fail(&["tensor-worker", "--listen", "127.0.0.1:0", "--device", "cuda:rank"], 2, &["--device", "cuda:1"]);
    place.fail(&["tensor-worker", "--listen", "127.0.0.1:0", "--device", "cuda:77"], 4, &["device \"cuda:77\""]);
}

#[test]
fn others_see_rows_of_tasks_only_without_encryption() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let alone = succeed(&place, &[]);
    let worker = Worker::start(&place, Some(SECRET));
    let run = |relay: &Relay, encrypt: bool| {
        let (hosts, encrypt) = (format!("['{}']", relay.address), format!("cluster.encrypt={encrypt}"));
        let mut command = place.command(&sets(&[&format!("train.tensor_workers.hosts={hosts}"), &encrypt]));
        let output = command.env("GNNFLOW_SECRET", SECRET).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        summary(&place, "run")
    };
    for encrypt in [false, true] {
        let relay = Relay::to(&worker.address);
        let some = run(&relay, encrypt);
        assert_eq!(hashes(&some), hashes(&alone));
        assert_eq!((some["tensor"]["lost"].as_u64(), some["tensor"]["tasks"].as_u64() > Some(0)), (Some(0), true));
        assert_eq!(relay.has_seen(r#""number":"F32""#), !encrypt);
    }
    // A changed byte breaks the connection; the process computes the tasks itself.
    let relay = Relay::to(&worker.address);
    relay.change_after(50_000);
    let some = run(&relay, true);
    assert_eq!(hashes(&some), hashes(&alone));
    assert!(some["tensor"]["lost"].as_u64() > Some(0), "{}", some["tensor"]);
    // Keys follow from a secret.
    let args = sets(&["train.tensor_workers.hosts=['127.0.0.1:1']", "cluster.encrypt=true"]);
    let ended = place.run(&args);
    assert!(ended.code == 2 && ended.stderr.contains("cluster.encrypt needs a shared secret"), "{}", ended.stderr);
}

#[test]
fn strangers_do_not_keep_members_from_a_worker() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let alone = succeed(&place, &[]);
    let worker = Worker::start(&place, None);
    let mut silent: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(&worker.address).unwrap()).collect();
    // The first ones are closed long before the time limit of a handshake.
    silent[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    let mut garbage = TcpStream::connect(&worker.address).unwrap();
    let _ = garbage.write_all(&vec![0xa5; 1 << 20]);
    let mut http2 = TcpStream::connect(&worker.address).unwrap();
    http2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let some = succeed(&place, &[&format!("train.tensor_workers.hosts=['{}']", worker.address)]);
    assert_eq!(hashes(&some), hashes(&alone));
    assert_eq!(some["tensor"]["lost"], 0, "{}", some["tensor"]);
    drop(silent);
}

#[test]
fn misbehaving_worker_is_reported_and_bits_are_equal() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let alone = succeed(&place, &[]);
    let honest = Worker::start(&place, None);
    for (misbehavior, word) in [
        (Misbehavior::Version, "9.9.9"),
        (Misbehavior::Shape, "numbers"),
        (Misbehavior::Garbage, "malformed message"),
        (Misbehavior::Nothing, "sent no result"),
        (Misbehavior::Silence, "has not answered"),
        (Misbehavior::NoFlight, "tensor worker"),
    ] {
        let address = fake::serve(misbehavior);
        for honest in [Some(&honest), None] {
            let hosts = [Some(&address), honest.map(|honest| &honest.address)];
            let hosts: Vec<String> = hosts.into_iter().flatten().map(|host| format!("'{host}'")).collect();
            let hosts = format!("train.tensor_workers.hosts=[{}]", hosts.join(", "));
            let ended = place.run(&sets(&[&hosts, "train.tensor_workers.timeout=2s"]));
            assert_eq!(ended.code, 0, "{misbehavior:?}: {}", ended.stderr);
            // If another worker repeats the late tasks, a silent worker is not reported.
            let reported = ended.stderr.contains(word) && ended.stderr.contains(&address);
            assert!(
                reported || misbehavior == Misbehavior::Silence && hosts.contains(','),
                "{misbehavior:?}: {}",
                ended.stderr
            );
            assert_eq!(hashes(&summary(&place, "run")), hashes(&alone), "{misbehavior:?}");
        }
    }
}

#[test]
fn prices_give_the_value_of_a_run() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let priced = [
        "price.graph_worker_hour=2.0",
        "price.tensor_call=0.001",
        "price.tensor_second=0.01",
        "train.tensor_workers.workers=1",
    ];
    let summary = succeed(&place, &priced);
    let number = |key: &str| summary["value"][key].as_f64().unwrap();
    let calls = summary["tensor"]["calls"].as_f64().unwrap();
    assert!((number("tensor_calls") - 0.001 * calls).abs() < 1e-9);
    assert!((number("graph_workers") - 2.0 / 3600.0 * number("seconds")).abs() < 1e-9);
    assert!((number("value") * number("seconds") * number("cost") - 1.0).abs() < 1e-9);
    assert!(place.run(&sets(&priced)).stdout.contains("value"));
    assert!(succeed(&place, &[]).get("value").is_none());
}

#[test]
fn invalid_settings_are_refused() {
    let place = TestDir::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let refused = |more: &[&str], words: &[&str]| {
        place.fail(&sets(more), 2, words);
    };
    refused(&["train.tensor_workers.workers=0"], &["train.tensor_workers.workers"]);
    refused(&["train.tensor_workers.threads=2"], &["train.tensor_workers", "`workers`", "`hosts`"]);
    refused(
        &["train.tensor_workers.workers=2", "train.tensor_workers.hosts=['a:1']"],
        &["train.tensor_workers.hosts", "remove one of them"],
    );
    refused(&["train.tensor_workers.hosts=['nowhere']"], &["train.tensor_workers.hosts", "HOST:PORT"]);
    refused(
        &["train.tensor_workers.hosts=['127.0.0.1:1']", "train.tensor_workers.threads=2"],
        &["train.tensor_workers.threads"],
    );
    refused(&["train.tensor_workers.workers=2", "train.tensor_workers.late=0.5"], &["train.tensor_workers.late"]);
    refused(&["train.tensor_workers.accept=nowhere"], &["train.tensor_workers.accept", "HOST:PORT"]);
    refused(&["train.tensor_workers.accept=0.0.0.0:7100"], &["train.tensor_workers.accept", "cannot reach"]);
    refused(
        &["train.tensor_workers.accept=127.0.0.1:7100", "train.tensor_workers.when_gone=fail"],
        &["train.tensor_workers.when_gone", "local"],
    );
    refused(
        &["train.tensor_workers.accept=127.0.0.1:7100", "train.tensor_workers.threads=2"],
        &["train.tensor_workers.threads"],
    );
    refused(
        &["train.tensor_workers.hosts=['127.0.0.1:1']", "train.tensor_workers.relaunch=1"],
        &["train.tensor_workers.relaunch", "workers"],
    );
    refused(
        &["train.tensor_workers.workers=1", "train.tensor_workers.relaunch=-1"],
        &["train.tensor_workers.relaunch"],
    );
    refused(
        &["train.tensor_workers.workers=2", "train.tensor_workers.when_gone=wait"],
        &["train.tensor_workers.when_gone", "local"],
    );
    // Without the last two, results would depend on who computes a task.
    for on_gpu in ["train.tensor_workers.device=cuda", "train.tensor_workers.device='cpu'\ntrain.device=cuda"] {
        let mut mixed = vec!["train.tensor_workers.workers=2"];
        mixed.extend(on_gpu.lines());
        refused(
            &[&mixed[..], &["train.tensor_workers.when_gone=fail", "train.tensor_workers.local_tasks=true"]].concat(),
            &["train.tensor_workers.local_tasks", "other rounding errors"],
        );
        refused(&mixed, &["train.tensor_workers.when_gone", "use `fail`"]);
    }
    refused(&["price.tensor_call=-1.0"], &["price.tensor_call"]);
    let batches = ["train.tensor_workers.workers=2", "train.schedule=mini-batch"];
    refused(&batches, &["train.tensor_workers", "full-graph"]);
    place.fail(&["tensor-worker", "--listen", "nowhere"], 2, &["--listen", "HOST:PORT"]);
    let mut open = place.command(&["tensor-worker", "--listen", "0.0.0.0:0"]);
    let open = open.env_remove("GNNFLOW_SECRET").output().unwrap();
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8(open.stderr).unwrap().contains("secret"));
}
