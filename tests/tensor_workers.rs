//! Tensor workers: the same bits as without them, however many there are and whoever dies; and who is not listened to.

mod enlisting;
mod fake;
mod started;

use std::time::{Duration, Instant};

use crate::common::{Place, planted, summary};
use fake::Lie;
use serde_json::Value;
use started::{Worker, ended, kill, launched, under_way};

const SECRET: &str = "a secret of the test's own";

fn settings(model: &str, train: &str) -> String {
    format!(
        "[model]\n{model}\nhidden = 16\n[train]\nschedule.kind = 'full-graph'\nepochs = 3\nschedule.intervals = 3\n{train}"
    )
}

fn sets<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", "p.toml", "--run-dir", "run"];
    run.into_iter()
        .chain(sets.iter().flat_map(|set| if set.starts_with("--") { vec![*set] } else { vec!["--set", *set] }))
        .collect()
}

fn succeed(place: &Place, args: &[&str]) -> Value {
    let ended = place.run(&sets(args));
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.stderr);
    summary(place, "run")
}

fn hashes(summary: &Value) -> [String; 2] {
    ["model_sha256", "predictions_sha256"].map(|key| summary[key].as_str().unwrap().to_owned())
}

#[test]
fn the_bits_are_those_of_no_tensor_workers() {
    let place = Place::new();
    for model in
        ["kind = 'gcn'", "kind = 'gat'\nheads = 4", "kind = 'sage'\nnorm = 'batch'\nresidual = true", "kind = 'appnp'"]
    {
        planted(&place, "p.toml", &settings(&format!("{model}\ndropout = 0.3"), ""));
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
    }
}

#[test]
fn other_ways_of_training_over_whole_graphs_have_them_too() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
    for more in
        [&["train.schedule.kind=tensor-parallel"][..], &["train.schedule.mode=sync"], &["graph.undirected=true"]]
    {
        let alone = succeed(&place, more);
        let some = succeed(&place, &[more, &["train.tensor_workers.workers=2"]].concat());
        assert_eq!(hashes(&some), hashes(&alone), "{more:?}");
        assert!(some["tensor"]["calls"].as_u64() > Some(0));
    }
    // One interval has no neighbors that could be behind.
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
fn small_tasks_share_calls_and_change_nothing() {
    let place = Place::new();
    for model in ["kind = 'gcn'", "kind = 'gat'\nheads = 4", "kind = 'gatv2'\nheads = 4"] {
        planted(&place, "p.toml", &settings(&format!("{model}\ndropout = 0.3"), ""));
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
fn long_tasks_come_in_halves_and_change_nothing() {
    let place = Place::new();
    // One partition of 1,500 nodes in one interval: 1,024 rows, and then the others.
    for model in [
        "kind = 'gcn'",
        "kind = 'gat'\nheads = 4",
        "kind = 'gin'\nnorm = 'layer'",
        "kind = 'sage'\nnorm = 'batch'\nresidual = true",
        "kind = 'appnp'",
    ] {
        planted(&place, "p.toml", &settings(&format!("{model}\ndropout = 0.3"), ""));
        let whole = ["partition.parts=1", "train.schedule.intervals=1"];
        let alone = succeed(&place, &whole);
        let some = succeed(&place, &[&whole[..], &["train.tensor_workers.workers=2"]].concat());
        assert_eq!(hashes(&some), hashes(&alone), "{model}");
        assert_eq!(some["tensor"]["lost"], 0, "{}", some["tensor"]);
    }
}

#[test]
fn those_that_are_launched_are_started_again() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
    let epochs = ["train.epochs=150", "train.evaluate_every=0"];
    let alone = succeed(&place, &epochs);
    // The only one: nobody else could do its tasks, and nobody else has to.
    let only = ["train.tensor_workers.workers=1", "train.tensor_workers.when_gone=fail"];
    let run = under_way(&place, &[&epochs[..], &only].concat(), None);
    let children = launched(run.id());
    assert_eq!(children.len(), 1);
    kill(children[0]);
    let (code, said) = ended(run);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("it is started again in 0.2 s"), "{said}");
    let killed = summary(&place, "run");
    assert_eq!(hashes(&killed), hashes(&alone));
    assert_eq!((&killed["tensor"]["lost"], &killed["tensor"]["relaunched"]), (&1.into(), &1.into()));
    // Never: then it is as `when_gone` says.
    for (when, code) in [("local", 0), ("fail", 4)] {
        let when = format!("train.tensor_workers.when_gone={when}");
        let never = ["train.tensor_workers.workers=1", "train.tensor_workers.relaunch=0", &when];
        let run = under_way(&place, &[&epochs[..], &never].concat(), None);
        kill(launched(run.id())[0]);
        let (found, said) = ended(run);
        assert_eq!(found, Some(code), "{when}: {said}");
        assert!(said.contains("all tensor workers are gone"), "{when}: {said}");
        if code == 0 {
            assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
            assert_eq!(summary(&place, "run")["tensor"]["relaunched"], 0);
        }
    }
}

#[test]
fn the_plan_counts_rows_of_calls_under_way() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
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
fn two_that_are_killed_change_nothing() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'\ndropout = 0.3", ""));
    let more = ["train.epochs=60", "train.evaluate_every=0", "train.tensor_workers.autotune=false"];
    let alone = succeed(&place, &more[..2]);
    let metrics = place.path("run/metrics.jsonl");
    std::fs::remove_file(&metrics).unwrap();
    let mut run =
        place.command(&sets(&[&more[..], &["train.tensor_workers.workers=4", "--quiet"]].concat())).spawn().unwrap();
    let begin = Instant::now();
    let epochs = || std::fs::read_to_string(&metrics).unwrap_or_default().lines().count();
    while !(1..50).contains(&epochs()) {
        assert!(begin.elapsed() < Duration::from_secs(120) && epochs() < 50, "no epoch to kill in");
        std::thread::sleep(Duration::from_millis(2));
    }
    let children = launched(run.id());
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
fn those_that_listen_elsewhere_may_go() {
    let place = Place::new();
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
        let (code, said) = run(&[processes], SECRET);
        assert_eq!(code, Some(0), "{said}");
        let some = summary(&place, "run");
        assert_eq!(hashes(&some), hashes(&alone));
        assert_eq!(some["tensor"]["lost"], 0, "{said}");
    }
    // Of another secret: nobody is listened to, and that is said.
    let (code, said) = run(&[], "another secret altogether");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("wrong secret") && said.contains(&one.address) && said.contains("this process computes"),
        "{said}"
    );
    assert_eq!(hashes(&summary(&place, "run")), hashes(&alone));
    let (code, said) = run(&["train.tensor_workers.when_gone=fail"], "another secret altogether");
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("all tensor workers are gone"), "{said}");
    // One is left, and then none.
    drop(one);
    let (code, said) = run(&[], SECRET);
    assert_eq!((code, hashes(&summary(&place, "run"))), (Some(0), hashes(&alone)), "{said}");
    drop(two);
    let (code, said) = run(&["train.tensor_workers.when_gone=fail"], SECRET);
    assert_eq!(code, Some(4), "{said}");
}

#[test]
fn who_lies_is_not_listened_to() {
    let place = Place::new();
    planted(&place, "p.toml", &settings("kind = 'gcn'", ""));
    let alone = succeed(&place, &[]);
    let honest = Worker::start(&place, None);
    for (lie, word) in [
        (Lie::Version, "9.9.9"),
        (Lie::Shape, "numbers"),
        (Lie::Garbage, "malformed message"),
        (Lie::Nothing, "sent no result"),
        (Lie::Silence, "has not answered"),
        (Lie::NoFlight, "tensor worker"),
    ] {
        let liar = fake::serve(lie);
        for honest in [Some(&honest), None] {
            let hosts = [Some(&liar), honest.map(|honest| &honest.address)];
            let hosts: Vec<String> = hosts.into_iter().flatten().map(|host| format!("'{host}'")).collect();
            let hosts = format!("train.tensor_workers.hosts=[{}]", hosts.join(", "));
            let ended = place.run(&sets(&[&hosts, "train.tensor_workers.timeout=2s"]));
            assert_eq!(ended.code, 0, "{lie:?}: {}", ended.stderr);
            // Where somebody else does what is late, nobody waits for who is silent.
            let said = ended.stderr.contains(word) && ended.stderr.contains(&liar);
            assert!(said || lie == Lie::Silence && hosts.contains(','), "{lie:?}: {}", ended.stderr);
            assert_eq!(hashes(&summary(&place, "run")), hashes(&alone), "{lie:?}");
        }
    }
}

#[test]
fn prices_make_a_value() {
    let place = Place::new();
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
fn what_has_no_meaning_is_refused() {
    let place = Place::new();
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
    refused(&["train.tensor_workers.workers=2", "train.device=cuda"], &["train.device", "cpu"]);
    refused(&["price.tensor_call=-1.0"], &["price.tensor_call"]);
    let batches = ["train.tensor_workers.workers=2", "train.schedule=mini-batch"];
    refused(&batches, &["train.tensor_workers", "full-graph"]);
    place.fail(&["tensor-worker", "--listen", "nowhere"], 2, &["--listen", "HOST:PORT"]);
    let mut open = place.command(&["tensor-worker", "--listen", "0.0.0.0:0"]);
    let open = open.env_remove("GNNFLOW_SECRET").output().unwrap();
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8(open.stderr).unwrap().contains("secret"));
}
