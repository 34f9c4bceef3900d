#!/usr/bin/env python3
"""Full-graph training with and without tensor workers (Dorylus, sections 6 and 7).

    benches/tensor_workers.py [--data FOLDER] [--nodes 40000] [--epochs 20] [--intervals 16] [--rounds 5] [--workers 1,2] [--out FILE]

GCN, GAT and GraphSAGE of 2 layers, narrow and wide, on a planted graph or on FOLDER/{nodes,edges}.parquet. One process and each tensor worker
have one thread.

none        the process alone
two threads the process alone, with two threads
all tasks   1, 2 … workers compute all node tasks, as in the paper
shared      1, 2 … workers, and the process computes tasks when it is idle
autotuned   as `shared`, with as many workers as the autotuner chooses of the largest number, 0 included
killed      2 workers that compute all tasks, and are killed after the first epochs: the lost time
async       `none` and 1 worker, shared, with `train.schedule.mode = "async"`
bf16        `none` and 1 worker, shared, with rows in bf16 (GCN and GraphSAGE only)
bits        exits with 1 if the models of all runs with the same rows are not equal; those of `async` depend on timing

The ways take turns. Each row has epoch seconds, cost (dollars of an epoch), calls, seconds of calls, value (1 / (time × cost) of an epoch), and the ratios
to `none` in the same round.
Prices are those of the paper: an hour of a graph worker 0.432, a million calls 0.20, an hour of a tensor worker 0.01125. The result is written
to benches/runs/<date>-tensor-workers.json.
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
GRAPH_WORKER_HOUR, TENSOR_CALL, TENSOR_SECOND = 0.432, 2e-7, 0.01125 / 3600
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
dropout = 0.5
input_dropout = 0.5
[train]
schedule = {{ kind = "full-graph", intervals = {intervals} }}
epochs = {epochs}
evaluate_every = 0
checkpoint_every = 0
threads = 1
[price]
graph_worker_hour = {GRAPH_WORKER_HOUR}
tensor_call = {TENSOR_CALL}
tensor_second = {TENSOR_SECOND}
"""


MODELS = {
    "gcn 128": ["model.hidden=128"],
    "gcn 512": ["model.hidden=512"],
    "gat 4 × 32": ["model.kind=gat", "model.hidden=128", "model.heads=4"],
    "gat 4 × 128": ["model.kind=gat", "model.hidden=512", "model.heads=4"],
    "sage 512": ["model.kind=sage", "model.hidden=512"],
}


def of_workers(**keys):
    """Returns settings of tensor workers."""
    return [f"train.tensor_workers.{key}={value}" for key, value in keys.items()]


# Settings of ways that train other models.
OTHER = {"async": ["train.schedule.mode=async"], "bf16": ["train.schedule.row_dtype=bf16"]}


def ways(numbers, model):
    """Returns the settings of each way, and how many of its workers are killed."""
    found = {"none": ([], 0), "two threads": (["train.threads=2"], 0)}
    for number in numbers:
        workers = of_workers(workers=number, autotune="false")
        found[f"{number}, all tasks"] = ([*workers, *of_workers(local_tasks="false")], 0)
        found[f"{number}, shared"] = (workers, 0)
    found["autotuned"] = (of_workers(workers=max(numbers)), 0)
    found["2, all tasks, killed"] = (of_workers(workers=2, autotune="false", local_tasks="false"), 2)
    for other, keys in OTHER.items():
        if other == "bf16" and model.startswith("gat"):
            continue
        found[f"none, {other}"] = (keys, 0)
        found[f"1, shared, {other}"] = ([*keys, *of_workers(workers=1, autotune="false")], 0)
    return found


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


def cost(run, seconds):
    """Returns the dollars of an epoch that takes `seconds`, with its share of the run's calls."""
    tensor, epochs = run.get("tensor") or {"calls": 0, "seconds": 0}, len(run["seconds"]["per_epoch"])
    return seconds * GRAPH_WORKER_HOUR / 3600 + (tensor["calls"] * TENSOR_CALL + tensor["seconds"] * TENSOR_SECOND) / epochs


def value(run, seconds):
    """Returns 1 / (time × cost) of an epoch that takes `seconds`."""
    return 1 / (seconds * cost(run, seconds))


def row(model, way, runs, alone):
    """Combines the runs of one case, one per round. `alone` are those of the process alone."""
    # The first epochs launch and connect the workers.
    epochs = lambda runs: [statistics.median(run["seconds"]["per_epoch"][2:]) for run in runs]
    seconds, last = epochs(runs), runs[-1]
    speeds = [before / now for before, now in zip(epochs(alone), seconds)]
    values = [value(run, now) / value(before, then) for run, now, before, then in zip(runs, seconds, alone, epochs(alone))]
    spread = lambda ratios: [round(statistics.median(ratios), 3), round(min(ratios), 3), round(max(ratios), 3)]
    return {
        "model": model, "way": way, "epoch_seconds": statistics.median(seconds), "min": min(seconds), "max": max(seconds),
        "speed_beside_none": spread(speeds), "value_beside_none": spread(values),
        "all_epochs_seconds": statistics.median(sum(run["seconds"]["per_epoch"]) for run in runs), "tensor": last.get("tensor"),
        "chosen": [run["tensor"]["workers"] for run in runs] if way == "autotuned" else None,
        "cost": statistics.median(map(cost, runs, seconds)), "value": statistics.median(map(value, runs, seconds)), "model_sha256": sorted({run["model_sha256"] for run in runs}),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=40000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--intervals", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.epochs < 4:
        parser.error("--epochs: two are over when workers are killed, and one at least must follow: give 4 or more")
    if options.rounds < 1:
        parser.error("--rounds: must be at least 1")
    if unknown := set(options.models.split(",")) - set(MODELS):
        parser.error(f"--models: {', '.join(sorted(unknown))}: the models are {', '.join(MODELS)}")
    binary, rows = build(), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        values = {"nodes": options.nodes, "edges": 12 * options.nodes, "scratch": work, "data": options.data and options.data.resolve()}
        graph = (FILES if options.data else PLANTED).format(**values)
        pipeline = work / "tensor-workers.toml"
        pipeline.write_text(PIPELINE.format(**globals(), graph=graph, scratch=work, epochs=options.epochs, intervals=options.intervals))
        for model in options.models.split(","):
            train(binary, pipeline, work / "warm", MODELS[model])
            found = ways([int(number) for number in options.workers.split(",")], model)
            runs = {way: [] for way in found}
            for number in range(options.rounds):
                for way in list(found)[:: -1 if number % 2 else 1]:
                    keys, kill = found[way]
                    runs[way].append(train(binary, pipeline, work / "run", [*MODELS[model], *keys], kill))
            for way in found:
                rows.append(row(model, way, runs[way], runs["none"]))
                show(rows[-1])
    groups = {}
    for line in rows:
        other = next((other for other in OTHER if line["way"].endswith(other)), None)
        if other != "async":
            groups.setdefault((line["model"], other), set()).update(line["model_sha256"])
    same = all(len(hashes) == 1 for hashes in groups.values())
    settings = vars(options) | {"data": options.data and str(options.data)}
    print(write(about("tensor_workers") | {"settings": settings, "results": rows, "same_bits": same}, "tensor-workers", options.out))
    if not same:
        sys.exit("error: the models differ")


def show(line):
    tensor = line["tensor"] or {"tasks": 0, "local": 0, "calls": 0}
    speed, value = (f"{middle:.2f} ({least:.2f} to {most:.2f})" for middle, least, most in (line["speed_beside_none"], line["value_beside_none"]))
    print(f"{line['model']:12} {line['way']:22} {line['epoch_seconds']:.4f} s an epoch ({line['min']:.4f} to {line['max']:.4f}), speed {speed}, value {value}, "
          f"{tensor['tasks']} tasks, {tensor['local']} local, {tensor['calls']} calls{', chose ' + str(line['chosen']) if line['chosen'] else ''}", flush=True)


if __name__ == "__main__":
    main()
