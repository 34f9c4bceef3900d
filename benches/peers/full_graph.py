#!/usr/bin/env python3
"""An epoch over the whole graph, 2-layer GCN and GAT, ours and the peers' in turn, with peak memory.

    GNNFLOW_PEERS=<folder of the peers' bench_fullgraph.py> GNNFLOW_PEERS_PYTHON=<python with dgl, torch, pyg> \\
    GNNFLOW_BENCH_GRAPH=<folder of nodes.parquet, edges.parquet and the peers' .npy> \\
    benches/peers/full_graph.py [--rounds 3] [--threads 2] [--models gcn,gat] [--backends dgl32,dgl] [--out FILE]

Hidden 64 (GAT: 4 heads of 16), Adam, no dropout, one partition in one process, bound to as many cores as threads. An epoch is forward,
backward and a step; ours is the median of those behind the first, as reported by `gnnflow run`; the peers' likewise. Peers compute the
last layer of all nodes; ours, in training, only of those with a loss: `seconds_evaluate` is what all nodes' results take beside.
Ours is prepared beforehand. The result goes to benches/runs/<date>-full-graph-beside-peers.json.
"""
import argparse, datetime, json, os, pathlib, platform, statistics, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PIPELINE = """
name = "full-graph"
[graph]
nodes = "{graph}/nodes.parquet"
edges = "{graph}/edges.parquet"
undirected = true
[partition]
method = "range"
parts = 1
out = "dataset"
[model]
kind = "gcn"
layers = 2
hidden = 64
dropout = 0.0
[train]
schedule = "full-graph"
epochs = {epochs}
evaluate_every = {epochs}
optimizer = {{ kind = "adam", lr = 0.01 }}
"""


def need(name):
    return os.environ.get(name) or sys.exit(f"error: set {name}; see --help")


def bound(threads):
    """Equal threads are equal cores: whatever threads a system starts beside those asked for, it has no more cores."""
    return ["taskset", "-c", f"0-{threads - 1}"]


def ours(binary, work, threads, model):
    """Median seconds of the epochs behind the first; all of them; of evaluation; peak memory."""
    run = work / "run"
    sets = [f"train.threads={threads}", f"model.kind={model}"] + (["model.heads=4"] if model == "gat" else [])
    command = [binary, "run", work / "p.toml", "--run-dir", run, "--quiet", "--json"]
    command += [word for key in sets for word in ("--set", key)]
    done = subprocess.run([*bound(threads), *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    summary = json.loads(done.stdout)
    evaluated = [json.loads(line).get("evaluate_seconds") for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = summary["seconds"]["per_epoch"]
    return statistics.median(epochs[1:]), epochs, evaluated[-1], max(summary["peak_rss_bytes"])


def peer(backend, threads, graph, python, model, epochs):
    """One run of one peer: its line of JSON, or why there is none."""
    script = pathlib.Path(need("GNNFLOW_PEERS")) / "bench_fullgraph.py"
    command = [python, script, "--graph", graph, "--threads", threads, "--backend", backend, "--model", model]
    command += ["--hidden", 64, "--heads", 4, "--epochs", epochs, "--warmup", 1]
    done = subprocess.run([*bound(threads), *map(str, command)], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if rows and "failed" not in rows[-1]:
        return rows[-1], None
    return None, str(rows[-1].get("why") or rows[-1]["failed"]).strip().splitlines()[-1] if rows else "it printed nothing"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="gcn,gat")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--peer-epochs", type=int, default=2)
    parser.add_argument("--backends", default="dgl32,dgl")
    parser.add_argument("--out")
    options = parser.parse_args()
    graph, python = pathlib.Path(need("GNNFLOW_BENCH_GRAPH")).resolve(), os.environ.get("GNNFLOW_PEERS_PYTHON", sys.executable)
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    binary = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "gnnflow"
    seconds, peaks, evaluation, epochs, why = {}, {}, {}, {}, {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        (work / "p.toml").write_text(PIPELINE.format(graph=graph, epochs=options.epochs))
        subprocess.run([binary, "prepare", work / "p.toml", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        for number in range(options.rounds):
            for model in options.models.split(","):
                contests = [None, *options.backends.split(",")]
                turn = number % len(contests)
                for backend in contests[turn:] + contests[:turn]:
                    key = (model, backend or "gnnflow")
                    if backend is None:
                        median, all_epochs, evaluated, peak = ours(binary, work, options.threads, model)
                        epochs.setdefault(model, []).append(all_epochs)
                        evaluation.setdefault(model, []).append(evaluated)
                    else:
                        row, reason = peer(backend, options.threads, graph, python, model, options.peer_epochs)
                        if row is None:
                            why[f"{backend} {model}"] = reason
                            continue
                        median, peak = row["s_per_epoch"]["median"], row["peak_rss_gib"] * 2**30
                    seconds.setdefault(key, []).append(median)
                    peaks.setdefault(key, []).append(peak)
                    print(f"round {number + 1}, {model}, {key[1]}: {median:.2f} s an epoch", file=sys.stderr, flush=True)
    rows = []
    for model in options.models.split(","):
        median = {who: statistics.median(values) for (m, who), values in seconds.items() if m == model}
        mine = median.pop("gnnflow")
        row = {"model": model, "threads": options.threads, "gnnflow_seconds": round(mine, 3), "peers_seconds": median}
        row["gnnflow_epochs"], row["gnnflow_seconds_evaluate"] = epochs[model], statistics.median(evaluation[model])
        row["gnnflow_peak_rss_bytes"] = max(peaks[model, "gnnflow"])
        row["peers_peak_rss_bytes"] = {who: max(values) for (m, who), values in peaks.items() if m == model and who != "gnnflow"}
        row["rounds"] = {who: values for (m, who), values in seconds.items() if m == model}
        if median:
            best = min(median, key=median.get)
            row |= {"best_peer": best, "ratio_to_best_peer": round(median[best] / mine, 2)}
        rows.append(row)
        print(f"{model}: {mine:.2f} s an epoch = {row.get('ratio_to_best_peer', '?')} x as fast as {row.get('best_peer')}; peers {median}; "
              f"peak {row['gnnflow_peak_rss_bytes'] / 2**30:.2f} GiB, peers {row['peers_peak_rss_bytes']}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    date = datetime.date.today().isoformat()
    result = {
        "bench": "full graph beside peers", "date": date, "commit": commit,
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()}, "load_after": os.getloadavg()[0], "results": rows, "failures": why,
    }
    out = pathlib.Path(options.out or ROOT / "benches" / "runs" / f"{date}-full-graph-beside-peers.json")
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
