#!/usr/bin/env python3
"""An epoch of full-graph training, 2-layer GCN and GAT, in gnnflow and its peers, in turn, with peak memory.

    GNNFLOW_PEERS=<folder of the peers' bench_fullgraph.py> GNNFLOW_PEERS_PYTHON=<python with dgl, torch, pyg> \\
    GNNFLOW_BENCH_GRAPH=<folder of nodes.parquet, edges.parquet and the peers' .npy> \\
    benches/peers/full_graph.py [--rounds 3] [--threads 2] [--models gcn,gat] [--backends dgl32,dgl] [--cuda] [--out FILE]

Hidden 64 (GAT: 4 heads of 16), Adam, no dropout, one partition in one process, bound to as many cores as threads. An epoch is forward,
backward and a step; the median without the first epoch is compared. Peers compute the last layer of all nodes. gnnflow computes it in
training only for nodes with a loss; `seconds_evaluate` is the additional time for all nodes. The GCN of gnnflow runs with rows in f32,
which is used for ratios, and with rows in bf16. With --cuda, all of them compute on the GPU (peers get the option too). Preparation is not
measured. The limits of the CPU are measured first (limits.py); the share of the limit is the least seconds of an epoch over the measured ones.
The result is written to benches/runs/<date>-full-graph-beside-peers.json, or <date>-gpu-full-graph.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import limits
from contest import beside, bound, graph_and_python, in_turn, peer
from program import about, build, write

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


BF16 = "gnnflow bf16"


def ours(binary, work, options, model, who):
    """Returns median epoch seconds without the first, all epoch seconds, seconds of evaluation, and peak bytes."""
    run = work / "run"
    sets = [f"train.threads={options.threads}", f"model.kind={model}"] + (["model.heads=4"] if model == "gat" else [])
    sets += ["train.device=cuda"] if options.cuda else []
    sets += ["train.schedule.row_dtype=bf16"] if who == BF16 else []
    command = [binary, "run", work / "p.toml", "--run-dir", run, "--quiet", "--json"]
    command += [word for key in sets for word in ("--set", key)]
    done = subprocess.run([*bound(options.threads), *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    summary = json.loads(done.stdout)
    evaluated = [json.loads(line).get("evaluate_seconds") for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = summary["seconds"]["per_epoch"]
    return statistics.median(epochs[1:]), epochs, evaluated[-1], max(summary["peak_rss_bytes"])


def rows(runs, options, least):
    """The rows of the result, from the runs of all finished rounds. `least` has, by model, the least seconds of an epoch, if they are known."""
    found = []
    for model in options.models.split(","):
        seconds, peaks, evaluation, epochs = ({who: values for (m, who), values in of.items() if m == model} for of in runs)
        median = {who: statistics.median(values) for who, values in seconds.items()}
        mine = median.pop("gnnflow")
        row = {"model": model, "threads": options.threads, "gnnflow_seconds": round(mine, 5), "peers_seconds": median}
        rounded = median.pop(BF16, None)
        row["gnnflow_epochs"], row["gnnflow_seconds_evaluate"] = epochs["gnnflow"], statistics.median(evaluation["gnnflow"])
        row["gnnflow_peak_rss_bytes"] = max(peaks["gnnflow"])
        if model in least:
            row |= {"limit": "products and copy", "least_seconds": round(least[model], 4), "share_of_limit": round(least[model] / mine, 2)}
        if rounded:
            row["bf16"] = {"seconds": round(rounded, 5), "epochs": epochs[BF16], "seconds_evaluate": statistics.median(evaluation[BF16]),
                           "peak_rss_bytes": max(peaks[BF16]), "ratio_to_f32": round(mine / rounded, 2)}
        row["peers_peak_rss_bytes"] = {who: max(values) for who, values in peaks.items() if not who.startswith("gnnflow")}
        row["rounds"] = seconds
        found.append(row | beside(median, mine))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", default="gcn,gat")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--peer-epochs", type=int, default=2)
    parser.add_argument("--backends", default="dgl32,dgl")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    graph, python = graph_and_python()
    binary = build(*["--features", "cuda"][: 2 * options.cuda])
    # The rates are those of the CPU.
    rates, counts = ({}, {}) if options.cuda else limits.measure(graph, [options.threads])
    seconds, peaks, evaluation, epochs, why = {}, {}, {}, {}, {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        (work / "p.toml").write_text(PIPELINE.format(graph=graph, epochs=options.epochs))
        subprocess.run([binary, "prepare", work / "p.toml", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        manifest = json.loads((work / "dataset" / "manifest.json").read_text())
        widths = [manifest["features"]["dim"], 64, manifest["labels"]["classes"]]
        least = {model: limits.of_full_graph(rates, counts, model, widths, options.threads) for model in options.models.split(",") if rates}
        for number in range(options.rounds):
            for model in options.models.split(","):
                for backend in in_turn(number, options.backends + ("" if model == "gat" else f",{BF16}")):
                    key = (model, backend or "gnnflow")
                    if backend in (None, BF16):
                        median, all_epochs, evaluated, peak = ours(binary, work, options, model, key[1])
                        epochs.setdefault(key, []).append(all_epochs)
                        evaluation.setdefault(key, []).append(evaluated)
                    else:
                        row, reason = peer("bench_fullgraph.py", options.threads, python, "--graph", graph, "--backend", backend, "--model", model,
                                           "--hidden", 64, "--heads", 4, "--epochs", options.peer_epochs, "--warmup", 1, *["--cuda"][: options.cuda])
                        if row is None:
                            why[f"{backend} {model}"] = reason
                            continue
                        median, peak = row["s_per_epoch"]["median"], row["peak_rss_gib"] * 2**30
                    seconds.setdefault(key, []).append(median)
                    peaks.setdefault(key, []).append(peak)
                    print(f"round {number + 1}, {model}, {key[1]}: {median:.4f} s an epoch", file=sys.stderr, flush=True)
            # After each round: the rest takes minutes.
            result = about("full graph beside peers") | {"rates": rates, "counts": counts, "failures": why}
            result["results"] = rows((seconds, peaks, evaluation, epochs), options, least)
            path = write(result, "gpu-full-graph" if options.cuda else "full-graph-beside-peers", options.out)
    for row in result["results"]:
        print(f"{row['model']}: {row['gnnflow_seconds']:.4f} s an epoch = {row.get('ratio_to_best_peer', '?')} x as fast as {row.get('best_peer')}; "
              f"peers {row['peers_seconds']}; in bf16 {row.get('bf16')}; "
              f"peak {row['gnnflow_peak_rss_bytes'] / 2**30:.2f} GiB, peers {row['peers_peak_rss_bytes']}")
    print(path)


if __name__ == "__main__":
    main()
