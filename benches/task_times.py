#!/usr/bin/env python3
"""Time by kind of task in full-graph training (Dorylus, Fig. 10), from traces.

    benches/task_times.py DATA [--graphs NAME…] [--models gcn gat] [--rounds 5] [--out FILE]

Graphs and models are those of schedules.py: 2 processes of one thread, 2 layers. Each round trains a traced run of every graph and model;
the first one warms up and is left out. A value is the CPU time of an epoch in all processes without evaluation, as median over the rounds, with
the smallest and the largest; the first epoch of a run does not count. The kinds are those of the paper: GA gathers the rows of neighbors (with
attention: also AE, the softmax of each edge), AV computes node tasks, SC stores, copies and sends rows; ∇ are their backward twins. ∇SC of the
loss and with attention contains a part of ∇AE: gradients of edges at their receivers. The loss and its gradient are part of one node task. WU
updates the weights. The result is written to benches/runs/<date>-task-times.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of

EPOCHS = 10
KINDS = ["GA", "AV", "SC", "loss", "∇GA", "∇AV", "∇SC", "WU"]
COPIES = ["paced scatter: cut", "paced scatter: put"]


def kinds(jobs):
    """Returns CPU seconds by kind of the jobs of one training epoch in one process."""
    seconds = dict.fromkeys(KINDS, 0.0)
    # Evaluations have later steps than the update of the weights.
    last = max(job["step"] for job in jobs if job["name"] == "apply")
    loss = min(job["step"] for job in jobs if job["name"] == "loss: gather")
    for job in jobs:
        if job["step"] > last:
            continue
        stage, _, part = job["name"].partition(": ")
        back = "∇" if job["step"] > loss or job["step"] == loss and part == "scatter" else ""
        if job["name"] in COPIES:
            key = "∇SC" if job["step"] >= loss else "SC"
        elif job["name"] in ("apply", "loss"):
            key = {"apply": "WU", "loss": "loss"}[job["name"]]
        else:
            key = back + {"": "AV", "gather": "GA", "scatter": "SC"}[part]
        seconds[key] += job["cpu_seconds"]
    return seconds


def run(binary, pipeline, work, model):
    """Trains a traced run. Returns CPU seconds of an epoch by kind, and the seconds of an epoch."""
    settings = ["train.schedule.kind=full-graph", f"model.kind={model}", f"train.epochs={EPOCHS}", "train.evaluate_every=0", "train.trace=true",
                "train.threads=1", f"partition.out={work / 'ds'}"]
    command = [binary, "run", pipeline, "--quiet", "--processes", "2", "--run-dir", work / "run", *sets(settings)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    seconds = dict.fromkeys(KINDS, 0.0)
    for rank in range(2):
        jobs = json.loads((work / f"run/trace/worker-{rank}-work.json").read_text())["jobs"]
        for epoch in range(1, EPOCHS):
            for key, spent in kinds([job for job in jobs if job["epoch"] == epoch]).items():
                seconds[key] += spent / (EPOCHS - 1)
    lines = (work / "run" / "metrics.jsonl").read_text().splitlines()
    return seconds | {"epoch": statistics.median(json.loads(line)["seconds"] for line in lines[1:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "facebook-large", "pubmed"], choices=GRAPHS)
    parser.add_argument("--models", nargs="*", default=["gcn", "gat"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for name in options.graphs:
            work = pathlib.Path(folder) / name
            work.mkdir()
            pipeline = pipeline_of(name, work, options.data, 2)
            cases += [(name, work, pipeline, model, []) for model in options.models]
        for _ in range(options.rounds + 1):
            for _, work, pipeline, model, measured in cases:
                measured.append(run(binary, pipeline, work, model))
    for name, _, _, model, measured in cases:
        row = {"graph": name, "model": model}
        for key in [*KINDS, "epoch"]:
            values = [seconds[key] for seconds in measured[1:]]
            row[key] = {"median": round(statistics.median(values), 5), "range": [round(min(values), 5), round(max(values), 5)]}
        all_tasks = sum(row[key]["median"] for key in KINDS)
        row["shares"] = {key: round(row[key]["median"] / all_tasks, 3) for key in KINDS}
        print(name, model, row["epoch"]["median"], row["shares"], file=sys.stderr)
        rows.append(row)
    print(write({**about("task-times"), "rounds": options.rounds, "results": rows}, "task-times", options.out))


if __name__ == "__main__":
    main()
