//! `train.trace`: a file of events and a table of times for each process, and a section of the report.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{TestDir, assert_same_results, planted, summary};

/// A traced run of two processes.
struct Traced {
    /// The events of each process.
    processes: Vec<Vec<Value>>,
    /// The table of each process.
    times: Vec<Value>,
    report: String,
    summary: Value,
}

/// Runs with and without a trace, on one thread unless `more` says otherwise, and compares the results.
fn traced(schedule: &str, more: &[&str]) -> Traced {
    let (one_thread, set_threads) = (["--set", "train.threads=1"], more.iter().any(|key| key.contains("threads")));
    let more = [if set_threads { &[] } else { &one_thread[..] }, more].concat();
    let place = TestDir::new();
    planted(&place, "p.toml", &format!("[model]\n[train]\nepochs = 3\nschedule = '{schedule}'\n"));
    let run = |folder: &str, trace: &str| {
        let args = ["run", "p.toml", "--quiet", "--processes", "2", "--run-dir", folder, "--set", trace];
        place.succeed(&[&args, &more[..]].concat());
    };
    run("traced", "train.trace=true");
    run("plain", "train.trace=false");
    assert_same_results(&place, "traced", "plain");
    assert!(!place.path("plain/trace").exists());
    let read = |rank: usize, end: &str| {
        let text = std::fs::read_to_string(place.path(&format!("traced/trace/worker-{rank}{end}.json"))).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let traced = Traced {
        processes: (0..2).map(|rank| read(rank, "").as_array().unwrap().clone()).collect(),
        times: (0..2).map(|rank| read(rank, "-times")).collect(),
        report: std::fs::read_to_string(place.path("traced/report.html")).unwrap(),
        summary: summary(&place, "traced"),
    };
    // An earlier trace is kept with its run.
    run("traced", "train.trace=false");
    assert!(place.path("traced/earlier/1/trace/worker-1.json").exists() && !place.path("traced/trace").exists());
    traced
}

/// Returns the names of the pieces of work of a thread.
fn names(events: &[Value], thread: u64) -> BTreeSet<&str> {
    let of_thread = |event: &&Value| event["ph"] == "X" && event["tid"] == thread;
    events.iter().filter(of_thread).filter_map(|event| event["name"].as_str()).collect()
}

/// Returns the rows of a thread's table.
fn rows<'a>(times: &'a Value, thread: &str) -> &'a [Value] {
    times[thread].as_array().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn batches_are_traced_by_operator_and_task() {
    let Traced { processes, report, .. } = traced("mini-batch", &[]);
    for (rank, events) in processes.iter().enumerate() {
        assert!(names(events, 0).contains("waiting"), "{:?}", names(events, 0));
        assert!(names(events, 1).contains("gradient"), "{:?}", names(events, 1));
        for event in events.iter().filter(|event| event["ph"] == "X") {
            assert!(event["pid"] == rank && event["dur"].as_f64().unwrap() >= 20.0, "{event}");
        }
        // The pieces of the compute thread follow one another.
        let ends: Vec<[f64; 2]> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == 1)
            .map(|event| [&event["ts"], &event["dur"]].map(|value| value.as_f64().unwrap()))
            .collect();
        assert!(ends.windows(2).all(|pair| pair[0][0] + pair[0][1] <= pair[1][0] + 1.0));
    }
    let waiting = ["waiting for the compute thread", "waiting for sampling threads", "waiting for messages"];
    for words in ["Threads", "gradient", "process 1", "CPU time", "page faults from disk"].iter().chain(&waiting) {
        assert!(report.contains(words), "{words}");
    }
}

#[test]
fn sampling_threads_have_lines_and_a_share_of_the_waiting() {
    let Traced { processes, times, report, .. } = traced("mini-batch", &["--set", "partition.topology=replicated"]);
    for (events, times) in processes.iter().zip(&times) {
        let name = |event: &&Value| event["name"] == "thread_name" && event["tid"] == 2;
        assert_eq!(events.iter().find(name).unwrap()["args"]["name"], "sampling 0");
        assert!(names(events, 2).contains("sample_batch"), "{:?}", names(events, 2));
        assert_eq!(times["sampling"][0]["name"], "sample_batch");
        let waiting = rows(times, "dataflow").iter().find(|row| row["name"] == "waiting").unwrap();
        let parts = number(&times["waiting_for_compute"]) + number(&times["waiting_for_sampling"]);
        let rest: f64 = rows(times, "waiting_for").iter().map(|row| number(&row["seconds"])).sum();
        assert!(parts + rest <= number(&waiting["seconds"]) + 1e-6, "{parts} and {rest} of {waiting}");
    }
    assert!(report.contains("<th>sampling threads (CPU time)</th>"));
}

#[test]
fn waiting_names_processes() {
    for schedule in ["mini-batch", "full-graph"] {
        let Traced { times, report, .. } = traced(schedule, &["--set", "train.epochs=10"]);
        let of = |rank: usize, cause: &str| -> f64 {
            let of_cause = |row: &&Value| row["cause"] == cause;
            rows(&times[rank], "waiting_for").iter().filter(of_cause).map(|row| number(&row["seconds"])).sum()
        };
        // The first process owns the sums of a small model.
        assert!(of(0, "process 1") > 0.0, "{schedule}: {times:?}");
        assert!(report.contains("<td>… of process 1</td>"), "{schedule}");
    }
}

#[test]
fn cpu_time_of_jobs_is_at_most_that_of_their_threads() {
    let of_threads =
        |threads| traced("mini-batch", &["--set", "partition.topology=replicated", "--set", threads]).times;
    let (one, several) = (of_threads("train.threads=1"), of_threads("train.threads=4"));
    for times in one.iter().chain(&several) {
        let threads = number(&times["compute_threads"]["threads"]);
        for (line, threads) in [("compute", threads), ("sampling", number(&times["sampling_threads"]["threads"]))] {
            for row in rows(times, line) {
                let (cpu, most) = (number(&row["cpu_seconds"]), threads * number(&row["seconds"]) + 0.05);
                assert!(cpu <= most, "{cpu} of {most}: {row}");
            }
            let sum: f64 = rows(times, line).iter().map(|row| number(&row["cpu_seconds"])).sum();
            let all = &times[format!("{line}_threads")];
            assert!(sum > 0.0 && sum <= number(&all["cpu_seconds"]) + 0.05, "{sum} of {all}");
            assert!(all["page_faults_from_disk"].is_u64(), "{all}");
        }
        let worker = number(&times["worker_thread"]["cpu_seconds"]);
        assert!(worker > 0.0 && worker <= number(&times["seconds"]) + 0.05, "{worker}");
        assert!(rows(times, "dataflow").iter().all(|row| row.get("cpu_seconds").is_none()));
    }
    // One thread runs its jobs itself. Several are the thread that has the jobs, and at least two that run them.
    let threads = |times: &Value| number(&times["compute_threads"]["threads"]);
    assert!(one.iter().all(|times| threads(times) == 1.0), "{one:?}");
    assert!(several.iter().all(|times| threads(times) >= 3.0), "{several:?}");
}

#[test]
fn jobs_that_run_at_the_same_time_have_lines_of_their_own() {
    // Each process has two partitions. After the first epoch of batches, a thread may go from computation to sampling.
    for (schedule, task) in [("mini-batch", "gradient"), ("full-graph", "forward 2"), ("tensor-parallel", "loss")] {
        let Traced { processes, times, .. } =
            traced(schedule, &["--set", "train.threads=2", "--set", "train.epochs=1"]);
        for (events, times) in processes.iter().zip(&times) {
            let of_jobs = |event: &&Value| {
                let name = event["args"]["name"].as_str().unwrap_or_default();
                event["name"] == "thread_name" && name.starts_with("job ")
            };
            let threads: Vec<u64> = events.iter().filter(of_jobs).map(|event| event["tid"].as_u64().unwrap()).collect();
            assert_eq!(threads.len(), 2, "{schedule}");
            assert!(threads.iter().any(|&thread| names(events, thread).contains(task)), "{schedule}");
            assert!(!names(events, 1).contains(task), "{schedule}: the compute thread passes them on");
            assert!(rows(times, "compute").iter().any(|row| row["name"] == task), "{schedule}");
        }
    }
}

#[test]
fn messages_by_destination_add_up_to_those_of_the_summary() {
    for schedule in ["mini-batch", "full-graph"] {
        let Traced { times, report, summary, .. } = traced(schedule, &[]);
        for key in ["messages", "bytes"] {
            let sent = |from: usize, to: usize| times[from]["sent"][to][key].as_u64().unwrap();
            assert_eq!((sent(0, 0), sent(1, 1)), (0, 0), "{schedule}");
            assert!(sent(0, 1) > 0 && sent(1, 0) > 0, "{schedule}");
            assert_eq!(sent(0, 1) + sent(1, 0), summary[format!("{key}_sent")], "{schedule}");
        }
        assert!(report.contains("<th>to process 1</th>"));
    }
}

#[test]
fn queues_are_counted() {
    for schedule in ["mini-batch", "full-graph"] {
        let Traced { processes, times, report, .. } = traced(schedule, &[]);
        for (name, key) in [("jobs waiting", "jobs_waiting"), ("permits in use", "permits_in_use")] {
            for (events, times) in processes.iter().zip(&times) {
                let counts = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
                let counts: Vec<u64> = counts.map(|event| event["args"]["count"].as_u64().unwrap()).collect();
                assert_eq!(counts.iter().max(), times[key]["max"].as_u64().as_ref(), "{schedule}: {name}");
                assert!(counts.windows(2).all(|pair| pair[0] != pair[1]), "{schedule}: {name}");
                assert!(number(&times[key]["mean"]) <= number(&times[key]["max"]), "{schedule}: {name}");
            }
        }
        assert!(report.contains("jobs waiting for the compute thread") && report.contains("permits in use"));
        // All permits come back.
        let last = |events: &Vec<Value>| events.iter().rfind(|event| event["name"] == "permits in use").cloned();
        assert!(processes.iter().all(|events| last(events).unwrap()["args"]["count"] == 0));
    }
}

#[test]
fn stages_of_whole_graph_schedules_are_traced_by_name() {
    // A larger graph, because a trace has no pieces of work below 20 µs.
    let graph = ["--set", "graph.generate.nodes=40000", "--set", "graph.generate.edges=120000"];
    let Traced { processes, times, report, .. } = traced("full-graph", &graph);
    for stage in ["forward 1", "forward 2: gather", "loss", "backward 2", "backward 2: scatter"] {
        assert!(processes.iter().all(|events| names(events, 1).contains(stage)), "{stage}");
        assert!(times.iter().all(|times| rows(times, "compute").iter().any(|row| row["name"] == stage)), "{stage}");
    }
    // The report has the longest ones only.
    assert!(report.contains(rows(&times[0], "compute")[0]["name"].as_str().unwrap()));
    let Traced { processes, .. } = traced("tensor-parallel", &graph);
    for stage in ["aggregate 1", "aggregate backward 2"] {
        assert!(processes.iter().all(|events| names(events, 1).contains(stage)), "{:?}", names(&processes[0], 1));
    }
}

#[test]
fn resumed_run_has_no_trace_of_the_run_before() {
    let place = TestDir::new();
    planted(&place, "p.toml", "[model]\n[train]\nepochs = 2\n");
    let run = |more: &[&str]| {
        place.succeed(&[&["run", "p.toml", "--quiet", "--run-dir", "run", "--set"], more].concat());
        std::fs::read_to_string(place.path("run/report.html")).unwrap().contains("Threads")
    };
    assert!(run(&["train.trace=true"]));
    assert!(!run(&["train.epochs=3", "--resume"]));
    assert!(!place.path("run/trace").exists());
}
