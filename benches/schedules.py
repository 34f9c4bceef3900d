#!/usr/bin/env python3
"""The schedules side by side: seconds per epoch, epochs and seconds to the same validation accuracy, memory, bytes and value.

    benches/schedules.py DATA [--graphs NAME…] [--rounds 5] [--seeds 3] [--processes 2] [--price 0.04] [--choices-for RESULT] [--out FILE]

DATA contains a folder of nodes.parquet and edges.parquet for each graph of GRAPHS that is not generated. The model is a 2-layer GCN of 64
columns. Each graph has one partition per process, and each process has one thread.

First every schedule trains until its number of epochs, with several seeds, and is evaluated as it goes (batches after each epoch, the full
graph after every five, `async` after every ten, because epochs overlap only between evaluations). The target is one percentage point below
the worse of the best validation accuracies of "mini-batch" and "full-graph, pipe", which are medians of the seeds. The epochs to the target
are the median of the seeds, in which a seed that does not reach it is worse than any other. Then epochs are timed without evaluation; schedules take turns, in both
orders, and the first round warms up and is left out. Seconds to the target are epochs × seconds per epoch. Value is 1 / (seconds × cost)
of reaching the target, with --price dollars per hour and process (Dorylus, section 7).

"auto" is what `train.schedule = "auto"` chooses, with default rates and with those of `gnnflow calibrate`, and its regret: the seconds to
the target of its choice over those of the best schedule that it may choose, minus 1. `--choices-for RESULT` measures nothing: it takes times and rates from an
earlier result, and asks again what "auto" chooses. The result is written to benches/runs/<date>-schedules.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from program import about, build, sets, write

PIPELINE = """
name = "schedules"
[graph]
{graph}
undirected = true
duplicates = "drop"
[partition]
parts = {processes}
halo = "features"
features = "partitioned"
[model]
kind = "gcn"
layers = 2
hidden = 64
dropout = 0.5
[train]
checkpoint_every = 0
threads = 1
optimizer = {{ kind = "adam", lr = 0.01 }}
[infer]
predictions = false
"""
FILES = 'nodes = "{data}/{name}/nodes.parquet"\nedges = "{data}/{name}/edges.parquet"\n{more}'
LABELED = 'nodes = "{work}/nodes.parquet"\nedges = "{data}/{name}/edges.parquet"\nsplit_fractions = [0.3, 0.1, 0.6]'
SKEWED = """generate = {{ kind = "planted", nodes = 100_000, edges = 2_000_000, features = 128, classes = 20, degree_exponent = 2.1,
    homophily = 0.3, signal = 0.5, split = [0.5, 0.1, 0.4], out = "{work}/graph" }}"""
ROW = 'normalize_features = "row"'
DRAWN = "split_fractions = [0.6, 0.2, 0.2]"
# Text of the graph, epochs of full-graph schedules, epochs of batches.
GRAPHS = {
    "pubmed": (FILES, ROW, 100, 60),
    "facebook-large": (FILES, f"{ROW}\n{DRAWN}", 100, 30),
    "debian-bookworm": (FILES, "", 200, 25),
    "twitch-de": (FILES, ROW, 100, 30),
    "amazon0601": (LABELED, "", 40, 6),
    "skewed": (SKEWED, "", 60, 12),
}
FULL = "train.schedule.kind=full-graph"
TENSOR = "train.schedule.kind=tensor-parallel"
# Settings of a schedule, and the epochs between evaluations.
SCHEDULES = {
    "mini-batch": (["train.schedule.kind=mini-batch"], 1),
    "mini-batch, replicated": (["train.schedule.kind=mini-batch", "partition.topology=replicated"], 1),
    "partition-parallel": (["train.schedule.kind=partition-parallel"], 1),
    "full-graph, pipe": ([FULL], 5),
    "full-graph, async 0": ([FULL, "train.schedule.mode=async"], 10),
    "full-graph, async 1": ([FULL, "train.schedule.mode=async", "train.schedule.staleness=1"], 10),
    "tensor-parallel": ([TENSOR, "model.decoupled=false"], 5),
    "tensor-parallel, decoupled": ([TENSOR, "model.decoupled=true"], 5),
}
# What `auto` may choose, and the schedules that it means.
CHOICES = {"mini-batch": "mini-batch", "partition-parallel": "partition-parallel", "full-graph": "full-graph, pipe",
           "tensor-parallel": "tensor-parallel"}


def plant(folder, work, classes=16, features=64, seed=1):
    """Writes nodes for a graph without labels: classes that spread along edges from random nodes, and noisy features of them."""
    import numpy, pyarrow, pyarrow.parquet

    draw = numpy.random.default_rng(seed)
    ids = pyarrow.parquet.read_table(folder / "nodes.parquet", columns=["node_id"])["node_id"].to_numpy()
    edges = pyarrow.parquet.read_table(folder / "edges.parquet", columns=["src", "dst"])
    order = numpy.argsort(ids)
    src, dst = (order[numpy.searchsorted(ids, edges[end].to_numpy(), sorter=order)] for end in ("src", "dst"))
    labels = draw.integers(classes, size=len(ids))
    for _ in range(10):
        votes = numpy.bincount(numpy.concatenate([dst, src]) * classes + labels[numpy.concatenate([src, dst])], minlength=len(ids) * classes)
        votes = votes.reshape(-1, classes) + 0.5 * (numpy.arange(classes) == labels[:, None])
        labels = votes.argmax(1)
    rows = draw.normal(size=(classes, features))[labels] * 0.3 + draw.normal(size=(len(ids), features))
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.astype("f4").ravel()), features)
    pyarrow.parquet.write_table(pyarrow.table({"node_id": ids, "features": rows, "label": labels}), work / "nodes.parquet")


def run(binary, pipeline, settings, processes, folder):
    """Trains; returns the summary, and validation accuracies by epoch."""
    command = [binary, "run", pipeline, "--quiet", "--json", "--processes", str(processes), "--run-dir", folder, *sets(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{settings}: {done.stderr}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return json.loads(done.stdout), {line["epoch"]: line["val"]["accuracy"] for line in lines if "val" in line}


def median(numbers):
    """The median, in which None, a target that is not reached, is larger than any number."""
    order = sorted(numbers, key=lambda number: float("inf") if number is None else number)
    middle = [order[(len(order) - 1) // 2], order[len(order) // 2]]
    return None if None in middle else round(sum(middle) / 2, 3)


def best(curves):
    """The best accuracy of a schedule: the median of the seeds."""
    return statistics.median(max(curve.values()) for curve in curves)


def row(name, curves, target, summary, seconds, options):
    """The figures of a schedule."""
    reached = [next((epoch for epoch, accuracy in curve.items() if accuracy >= target), None) for curve in curves]
    epochs = median(reached)
    epoch = statistics.median(seconds)
    total = epochs and epochs * epoch
    cost = total and total * options.processes * options.price / 3600
    return {
        "schedule": name, "epoch_seconds": round(epoch, 4), "rounds": [round(second, 4) for second in seconds],
        "spread": round(max(seconds) / min(seconds), 3), "best_accuracy": round(best(curves), 4), "epochs_to_target": epochs,
        "epochs_of_seeds": reached,
        "seconds_to_target": total and round(total, 3), "value": total and round(1 / (total * cost)),
        "peak_mib": round(max(summary["peak_rss_bytes"]) / 2**20), "bytes_per_epoch": summary["bytes_sent"] // summary["epochs"],
        "rounds_per_step": summary["rounds_per_step"],
    }


def auto(binary, pipeline, out, rates, rows, options):
    """What `auto` chooses, what it expects of an epoch, and its regret."""
    file = pipeline.with_name("auto.toml")
    file.write_text(pipeline.read_text() + "[train.schedule]\nkind = \"auto\"\n" + rates)
    command = [binary, "run", file, "--dry-run", "--json", "--processes", str(options.processes), "--set", f"partition.out={out}"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["auto_schedule"]
    seconds = {row["schedule"]: row["seconds_to_target"] for row in rows}
    chosen, possible = seconds[CHOICES[found["chosen"]]], [seconds[choice] for choice in CHOICES.values() if seconds[choice]]
    expected = {row["schedule"]: round(row["compute"] + row["moving"], 4) for row in found["candidates"] if "refused" not in row}
    return {"chosen": found["chosen"], "regret": chosen and round(chosen / min(possible) - 1, 3), "expected_epoch_seconds": expected}


def pipeline_of(name, work, data, processes):
    """Writes the pipeline file of a graph to the folder `work`, with one partition per process."""
    graph, more, _, _ = GRAPHS[name]
    data = pathlib.Path(data).resolve()
    if graph == LABELED:
        plant(data / name, work)
    pipeline = work / "p.toml"
    text = graph.format(data=data, name=name, work=work, more=more)
    pipeline.write_text(PIPELINE.format(graph=text, processes=processes))
    return pipeline


def measure(binary, name, work, rates, options):
    """All schedules on a graph."""
    _, _, full_epochs, batch_epochs = GRAPHS[name]
    pipeline = pipeline_of(name, work, options.data, options.processes)
    cases, curves = {}, {}
    for schedule, (settings, every) in SCHEDULES.items():
        epochs = batch_epochs if every == 1 else full_epochs
        # The replicated topology is another dataset. All datasets have the features of halo nodes, for partition-parallel.
        kind = "replicated" if "replicated" in schedule else "partitioned"
        cases[schedule] = [*settings, f"partition.out={work / kind}"]
        trained = [*cases[schedule], f"train.epochs={epochs}", f"train.evaluate_every={every}"]
        curves[schedule] = [run(binary, pipeline, [*trained, f"train.seed={seed}"], options.processes, work / "run")[1]
                            for seed in range(1, options.seeds + 1)]
    target = min(best(curves[schedule]) for schedule in ("mini-batch", "full-graph, pipe")) - 0.01
    seconds, last = {case: [] for case in cases}, {}
    for number in range(options.rounds + 1):
        for schedule, settings in list(cases.items())[:: 1 if number % 2 else -1]:
            timed = [*settings, "train.epochs=6", "train.evaluate_every=0"]
            last[schedule], _ = run(binary, pipeline, timed, options.processes, work / "run")
            if number:
                seconds[schedule].append(statistics.median(last[schedule]["seconds"]["per_epoch"][1:]))
    quality = json.loads((work / "partitioned" / "partition.json").read_text())
    rows = [row(schedule, curves[schedule], target, last[schedule], seconds[schedule], options) for schedule in cases]
    result = {"graph": name, "target": round(target, 4), "replication_factor": round(quality["replication_factor"], 3)}
    result |= {"edge_balance": round(quality["balance"]["edges"], 3), "edge_cut": round(quality["edge_cut"], 3), "schedules": rows}
    result["auto"] = choices(binary, pipeline, work / "partitioned", rates, rows, options)
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def choices(binary, pipeline, out, rates, rows, options):
    """What `auto` chooses with default rates and with measured ones."""
    tables = {"default rates": "", "measured rates": rates}
    return {kind: auto(binary, pipeline, out, table, rows, options) for kind, table in tables.items()}


def choose_again(binary, measured, options):
    """An earlier result, with the choices of this program."""
    rates = "\n".join(["[train.schedule.rates]", *measured["measured_rates"], ""])
    for row in measured["results"]:
        with tempfile.TemporaryDirectory() as scratch:
            work = pathlib.Path(scratch)
            pipeline, out = pipeline_of(row["graph"], work, options.data, options.processes), work / "partitioned"
            subprocess.run([binary, "prepare", pipeline, "--quiet", "--set", f"partition.out={out}"], check=True, stdout=subprocess.DEVNULL)
            row["auto"] = choices(binary, pipeline, out, rates, row["schedules"], options)
    return measured | {"measured_at_commit": measured.get("measured_at_commit", measured["commit"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="training runs of each schedule, for the epochs to the target")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--price", type=float, default=0.04, help="dollars per hour and process")
    parser.add_argument("--out")
    parser.add_argument("--choices-for", metavar="RESULT", type=pathlib.Path, help="an earlier result, whose times are taken")
    options = parser.parse_args()
    if min(options.rounds, options.seeds, options.processes) < 1:
        parser.error("--rounds, --seeds and --processes must be at least 1")
    binary, results = build(), []
    if options.choices_for:
        measured = json.loads(options.choices_for.read_text())
        options.rounds, options.seeds, options.processes = (measured[key] for key in ("rounds", "seeds", "processes"))
        measured = choose_again(binary, measured, options)
        print(write(measured | about("schedules") | {"median_regret": median_regret(measured["results"])}, "schedules", options.out))
        return
    calibrate = [binary, "calibrate", "--processes", str(options.processes), "--threads", "1", "--quiet"]
    rates = subprocess.run(calibrate, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(measure(binary, name, pathlib.Path(scratch), rates, options))
        # After every graph, so that a run that is cut off leaves those before.
        file = finish(results, rates, options)
    print(file)


def median_regret(results):
    """The medians of the graphs, by kind of rates."""
    return {kind: median(row["auto"][kind]["regret"] for row in results) for kind in results[0]["auto"]}


def finish(results, rates, options):
    """Writes the result of some graphs, and returns its path."""
    given = {"rounds": options.rounds, "seeds": options.seeds, "processes": options.processes, "dollars_per_hour_and_process": options.price}
    given["median_regret"] = median_regret(results)
    given["measured_rates"] = [line for line in rates.splitlines() if "=" in line]
    return write(about("schedules") | given | {"results": results}, "schedules", options.out)


if __name__ == "__main__":
    main()
