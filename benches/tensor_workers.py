#!/usr/bin/env python3
"""Full-graph training with 0, 1, 2 and 4 tensor workers (Dorylus, sections 6 and 7).

    benches/tensor_workers.py [--data FOLDER] [--nodes 20000] [--epochs 10] [--intervals 8] [--rounds 3] [--workers 0,1,2,4] [--out FILE]

2-layer GCN on a planted graph, or on FOLDER/{nodes,edges}.parquet. One process and each tensor worker have one thread.

workers     epoch seconds, tasks, calls, seconds of calls and value for each number of workers, without the autotuner; prices are those of
            the paper (an hour of a graph worker 0.432, a million calls 0.20, an hour of a tensor worker 0.01125)
autotuner   the choice of the autotuner among the same numbers of workers, compared with the best of them
killed      the largest number of workers, two of which are killed after the first epochs: the lost time
bits        exits with 1 if the models of all runs are not equal

The result is written to benches/runs/<date>-tensor-workers.json.
"""
import argparse, json, os, pathlib, signal, statistics, subprocess, sys, tempfile, time

from program import about, build, sets, write
from staleness import children

PLANTED = """generate = {{ kind = "planted", nodes = {nodes}, edges = {edges}, features = 64, classes = 8, out = "{scratch}/graph" }}"""
FILES = """nodes = "{data}/nodes.parquet"
edges = "{data}/edges.parquet"
undirected = true
duplicates = "drop"
"""
PIPELINE = """
name = "tensor-workers"
[graph]
{graph}
[partition]
method = "random"
parts = 1
out = "{scratch}/dataset"
[model]
kind = "gcn"
layers = 2
hidden = 128
dropout = 0.5
input_dropout = 0.5
[train]
schedule = {{ kind = "full-graph", intervals = {intervals} }}
epochs = {epochs}
evaluate_every = 0
checkpoint_every = 0
threads = 1
[price]
graph_worker_hour = 0.432
tensor_call = 2e-7
tensor_second = 3.125e-6
"""


def train(binary, pipeline, run, settings, kill=0):
    """Returns the summary of a run. Kills `kill` of its tensor workers after two epochs."""
    command = [binary, "run", pipeline, "--run-dir", run, "--quiet", "--json", *sets(settings)]
    metrics = run / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    if kill:
        while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < 2):
            time.sleep(0.005)
        for pid in children(process.pid)[:kill]:
            os.kill(pid, signal.SIGKILL)
    out = process.communicate()[0]
    if process.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} ended with {process.returncode}")
    return json.loads(out)


def row(way, summaries):
    """Combines several runs of one case."""
    # The first epoch launches the workers.
    epochs = [statistics.median(summary["seconds"]["per_epoch"][1:]) for summary in summaries]
    totals = [sum(summary["seconds"]["per_epoch"]) for summary in summaries]
    last = summaries[-1]
    return {
        "way": way, "epoch_seconds": statistics.median(epochs), "min": min(epochs), "max": max(epochs),
        "all_epochs_seconds": statistics.median(totals), "tensor": last.get("tensor"), "value": last.get("value"),
        "model_sha256": last["model_sha256"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--intervals", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="0,1,2,4")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.epochs < 4:
        parser.error("--epochs: two are over when workers are killed, and one at least must follow: give 4 or more")
    workers, binary, rows = [int(number) for number in options.workers.split(",")], build(), []
    most = max(workers)
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        values = {"nodes": options.nodes, "edges": 12 * options.nodes, "scratch": work, "data": options.data and options.data.resolve()}
        graph = (FILES if options.data else PLANTED).format(**values)
        pipeline = work / "tensor-workers.toml"
        pipeline.write_text(PIPELINE.format(graph=graph, scratch=work, epochs=options.epochs, intervals=options.intervals))
        settings = lambda number, tuned: [f"train.tensor_workers.workers={number}", f"train.tensor_workers.autotune={str(tuned).lower()}"]
        kinds = [(f"{number} workers", settings(number, False) if number else [], 0) for number in workers]
        if most:
            kinds.append(("autotuned", settings(most, True), 0))
        if most > 2:
            kinds.append((f"{most} workers, two killed", settings(most, False), 2))
        train(binary, pipeline, work / "warm", [])
        found = {way: [] for way, *_ in kinds}
        for _ in range(options.rounds):
            for way, keys, kill in kinds:
                found[way].append(train(binary, pipeline, work / "run", keys, kill))
        rows = [row(way, found[way]) for way, *_ in kinds]
    for line in rows:
        tasks, calls = (line["tensor"]["tasks"], line["tensor"]["calls"]) if line["tensor"] else (0, 0)
        print(f"{line['way']:>24}  {line['epoch_seconds']:8.4f} s an epoch  {tasks:>7} tasks {calls:>7} calls  value {line['value']['value']:.4g}")
    by_way = {line["way"]: line for line in rows}
    sweep = [by_way[f"{number} workers"] for number in workers if number]
    result = {"results": rows}
    if sweep:
        best, tuned = min(sweep, key=lambda line: line["epoch_seconds"]), by_way["autotuned"]
        result["autotuner"] = {
            "chose": tuned["tensor"]["workers"], "best_of_sweep": best["way"],
            "ratio": tuned["epoch_seconds"] / best["epoch_seconds"],
        }
    killed = by_way.get(f"{most} workers, two killed")
    if killed:
        result["seconds_lost"] = killed["all_epochs_seconds"] - by_way[f"{most} workers"]["all_epochs_seconds"]
        print(f"two killed: {result['seconds_lost']:.3f} s lost over {options.epochs} epochs")
    same = len({line["model_sha256"] for line in rows}) == 1
    result["same_bits"] = same
    settings = vars(options) | {"data": options.data and str(options.data)}
    print(write(about("tensor_workers") | {"settings": settings} | result, "tensor-workers", options.out))
    if not same:
        sys.exit("error: the models differ")


if __name__ == "__main__":
    main()
