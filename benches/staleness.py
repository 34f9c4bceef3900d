#!/usr/bin/env python3
"""Cost and gain of asynchronous full-graph training (Dorylus, Fig. 5 and 6).

    benches/staleness.py DATA [--graphs cora,pubmed,facebook-large,debian-bookworm] [--model gcn] [--only accuracy,straggler] [--rounds 3]
                         [--out FILE]

DATA contains a folder of nodes.parquet and edges.parquet for each graph. 2-layer GCN of 64 columns, or GAT of 8 heads of 8, with
4 partitions of 2 intervals in 2 processes of one thread.

accuracy    test accuracy and validation curves of `sync`, `pipe`, `async` with staleness 0 and 1, and of a decoupled GCN by
            `tensor-parallel`. `async` has more epochs, by the factors of Dorylus (section 7.3: 1.08 with staleness 0, 1.41 with 1),
            and so has the decoupled model, which converges later (NeutronTP, Fig. 16). Includes the epochs until half a percentage
            point below the accuracy of `sync`, and an SVG of the curves
straggler   seconds per epoch and until that target, with one process stopped half of the time, for 20 to 200 ms each

Epochs overlap only between evaluations, which are 10 epochs apart. The result is written to benches/runs/<date>-staleness.json.
"""
import argparse, json, os, pathlib, random, signal, statistics, subprocess, sys, tempfile, threading, time

from program import about, build, sets, write

PIPELINE = """
name = "staleness"
[graph]
nodes = "{data}/nodes.parquet"
edges = "{data}/edges.parquet"
undirected = true
duplicates = "drop"
{features}
[partition]
method = "multilevel"
parts = 4
out = "{scratch}/{graph}"
[model]
{model}
layers = 2
hidden = 64
dropout = 0.5
input_dropout = 0.5
[train]
schedule = {{ kind = "full-graph", intervals = 2 }}
epochs = {epochs}
evaluate_every = 10
checkpoint_every = 0
optimizer = {{ kind = "adam", lr = 0.01, weight_decay = 5e-4 }}
threads = 1
"""
# Number of epochs, and settings of the graph.
GRAPHS = {
    "cora": (200, 'normalize_features = "row"'),
    "pubmed": (200, 'normalize_features = "row"'),
    "facebook-large": (100, 'normalize_features = "row"\nsplit_fractions = [0.6, 0.2, 0.2]'),
    "debian-bookworm": (300, 'normalize_features = "none"'),
}
MODELS = {"gcn": 'kind = "gcn"', "gat": 'kind = "gat"\nheads = 8'}
WAYS = {
    "sync": ["train.schedule.mode=sync"], "pipe": ["train.schedule.mode=pipe"], "async 0": ["train.schedule.mode=async"],
    "async 1": ["train.schedule.mode=async", "train.schedule.staleness=1"], "decoupled": ["train.schedule.kind=tensor-parallel"],
}

# Number of epochs relative to `sync`.
RATIO = {"async 0": 1.08, "async 1": 1.41, "decoupled": 1.41}


def children(parent):
    """Returns the ids of the child processes of `parent`."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return sorted(found)


def slow_down(pid, over, seed):
    """Stops a process half of the time, until `over` is set."""
    spell = random.Random(seed)
    while not over.is_set():
        length = spell.uniform(0.02, 0.2)
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(length)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        over.wait(length)


def train(binary, pipeline, run, settings, straggles=None):
    """Returns the summary of a run, and (epoch, validation accuracy, training seconds so far) of every evaluation."""
    command = [binary, "run", pipeline, "--run-dir", run, "--quiet", "--json", "--processes", "2", *sets(settings)]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    over = threading.Event()
    if straggles is not None:
        while len(found := children(process.pid)) < 1 and process.poll() is None:
            time.sleep(0.02)
        threading.Thread(target=slow_down, args=(found[-1], over, straggles), daemon=True).start()
    out = process.communicate()[0]
    over.set()
    if process.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} ended with {process.returncode}")
    curve, seconds = [], 0.0
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        seconds += line["seconds"]
        if line.get("val"):
            curve.append((line["epoch"], line["val"]["accuracy"], seconds))
    return json.loads(out), curve


def reached(curve, target):
    """Returns epoch and seconds of the first evaluation that reaches the target."""
    return next(((epoch, seconds) for epoch, accuracy, seconds in curve if accuracy >= target), (None, None))


def spread(values):
    """Returns the standard deviation, or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def picture(curves, graph):
    """Plots validation accuracy over epochs as SVG."""
    colors = ["#444", "#1b6ca8", "#d1495b", "#edae49", "#66a182"]
    last = max(epoch for curve in curves.values() for epoch, *_ in curve)
    low = min(accuracy for curve in curves.values() for epoch, accuracy, _ in curve if epoch > last / 10)
    high = max(accuracy for curve in curves.values() for _, accuracy, _ in curve)
    x, y = lambda epoch: 50 + 520 * epoch / last, lambda value: 260 - 230 * (max(value, low) - low) / max(high - low, 1e-9)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="600" height="300" font-family="sans-serif" font-size="12">',
             '<rect width="600" height="300" fill="white"/>', f'<text x="50" y="18">{graph}: validation accuracy by epoch</text>',
             '<path d="M50 30V260H570" fill="none" stroke="#999"/>']
    for value in (low, (low + high) / 2, high):
        parts.append(f'<text x="8" y="{y(value) + 4:.0f}">{100 * value:.1f}</text>')
    parts += [f'<text x="{x(epoch) - 8:.0f}" y="276">{epoch}</text>' for epoch in (last // 4, last // 2, last)]
    for place, (way, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(epoch):.1f},{y(accuracy):.1f}" for epoch, accuracy, _ in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colors[place]}" stroke-width="1.5"/>')
        parts.append(f'<text x="470" y="{180 + 16 * place}" fill="{colors[place]}">{way}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--model", choices=MODELS, default="gcn")
    parser.add_argument("--only", default="accuracy,straggler")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, only, rows = build(), options.only.split(","), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work, pictures = pathlib.Path(scratch), {}
        for graph in options.graphs.split(","):
            epochs, features = GRAPHS[graph]
            pipeline = work / f"{graph}.toml"
            pipeline.write_text(PIPELINE.format(data=(options.data / graph).resolve(), graph=graph, features=features, epochs=epochs, scratch=work,
                                                 model=MODELS[options.model]))
            subprocess.run([str(binary), "prepare", str(pipeline), "--quiet"], check=True, stdout=subprocess.DEVNULL)
            target = None
            for part in only:
                curves, found = {}, {}
                # A decoupled GAT is a different model.
                for way in WAYS if part == "accuracy" and options.model == "gcn" else ["sync", "pipe", "async 0", "async 1"]:
                    found[way] = []
                    for number in range(options.rounds):
                        # Evaluations are 10 epochs apart.
                        longer = -(-round(epochs * (RATIO.get(way, 1) if part == "accuracy" else 1)) // 10) * 10
                        settings = [*WAYS[way], f"train.seed={number + 1}", f"train.epochs={longer}"]
                        summary, curve = train(binary, pipeline, work / "run", settings, number if part == "straggler" else None)
                        found[way].append((summary, curve))
                        print(f"{graph} {part} {way}: test {summary['test']['accuracy']:.4f}", file=sys.stderr, flush=True)
                    curves[way] = [
                        (points[0][0], statistics.mean(p[1] for p in points), statistics.mean(p[2] for p in points))
                        for points in zip(*(curve for _, curve in found[way]))
                    ]
                target = target or max(accuracy for _, accuracy, _ in curves["sync"]) - 0.005
                for way, runs in found.items():
                    test = [summary["test"]["accuracy"] for summary, _ in runs]
                    epoch, seconds = reached(curves[way], target)
                    row = {"graph": graph, "part": part, "way": way, "test_accuracy": [round(value, 4) for value in test],
                           "test_mean": round(statistics.mean(test), 4), "test_deviation": round(spread(test), 4), "target": round(target, 4),
                           "epochs_to_target": epoch, "seconds_to_target": seconds and round(seconds, 3),
                           "epoch_seconds": round(statistics.median(s for summary, _ in runs for s in summary["seconds"]["per_epoch"][1:]), 5),
                           "staleness_max": max(summary.get("staleness_max", 0) for summary, _ in runs),
                           "curve": [[epoch, round(accuracy, 4)] for epoch, accuracy, _ in curves[way]]}
                    rows.append(row)
                    print(f"{graph:16} {part:9} {way:9} test {100 * statistics.mean(test):.1f} ± {100 * spread(test):.1f}  epochs to {100 * target:.1f}: {epoch}, "
                          f"seconds: {row['seconds_to_target']}, of an epoch {1000 * row['epoch_seconds']:.1f} ms, stale {row['staleness_max']}")
                if part == "accuracy":
                    pictures[graph] = picture(curves, graph)
    result = about("staleness") | {"model": options.model, "results": rows}
    path = write(result, "staleness", options.out)
    for graph, text in pictures.items():
        path.with_name(f"{path.stem}-{graph}.svg").write_text(text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
