#!/usr/bin/env python3
"""A training epoch of 3-layer GraphSAGE in gnnflow and its peers, in turn, with the time of each stage.

    GNNFLOW_PEERS=<folder of the peers' bench_sage.py> GNNFLOW_PEERS_PYTHON=<python with dgl, torch, pyg> \\
    GNNFLOW_BENCH_GRAPH=<folder of nodes.parquet, edges.parquet and the peers' .npy> \\
    benches/peers/epoch.py [--rounds 3] [--threads 1,2] [--batches 20] [--backends dgl,graphbolt,…] [--out FILE]

Every run is bound to as many cores as threads. Mean aggregation, hidden 256, fanouts 15,10,5, batches of 1000, Adam, no dropout, one
partition in one process. For gnnflow, the complete second epoch of `gnnflow run` is measured. For a peer, the median of its batches is
multiplied by the batches of an epoch, which excludes the start of its data loader. The limits of the machine are measured first (limits.py);
the share of a limit is the least seconds of a stage, or of the epoch, over the measured ones. The result is written to
benches/runs/<date>-epoch-beside-peers.json.
"""
import argparse, json, math, os, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import limits
from contest import beside, bound, graph_and_python, in_turn, medians, peer
from program import about, build, write

BACKENDS = "dgl,graphbolt,pyg_bipartite"
HIDDEN = [256, 256]
STAGES = ["sample", "fetch", "forward", "backward", "reduce", "step"]
PIPELINE = """
name = "epoch"
[graph]
nodes = "{graph}/nodes.parquet"
edges = "{graph}/edges.parquet"
undirected = true
[partition]
method = "range"
parts = 1
out = "dataset"
[model]
kind = "sage"
layers = 3
hidden = 256
dropout = 0.0
[train]
epochs = 2
batch = 1000
fanouts = [15, 10, 5]
evaluate_every = 0
optimizer = {{ kind = "adam", lr = 0.003 }}
"""


def ours(binary, work, threads):
    """Returns the seconds of the second epoch, and of the stages of both epochs."""
    run = work / "run"
    command = [binary, "run", work / "p.toml", "--run-dir", run, "--quiet", "--json", "--set", f"train.threads={threads}"]
    done = subprocess.run([*bound(threads), *map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    summary = json.loads(done.stdout)
    seconds = summary["seconds"]
    return seconds["per_epoch"][1], {stage: seconds[stage] / 2 for stage in STAGES}, max(summary["peak_rss_bytes"])


def rows(seconds, stages, peak, rates, counts, widths):
    """The rows of the result, by threads."""
    found = []
    for threads in sorted({key[0] for key in seconds}):
        median = medians(seconds, threads)
        mine = median.pop("gnnflow")
        row = {"threads": threads, "gnnflow_seconds": round(mine, 2), "peers_seconds": {who: round(s, 2) for who, s in median.items()}}
        spent = {s: statistics.median(p[s] for p in stages[threads, "gnnflow"]) for s in STAGES}
        row["gnnflow_stages"] = {s: round(seconds, 2) for s, seconds in spent.items()}
        least = limits.of_batches(rates, counts, widths, threads)
        row["limits"] = {s: {"least_seconds": round(least[s], 2), "share": round(least[s] / spent[s], 2)} for s in least if spent[s]}
        row["limit"], row["share_of_limit"] = "products and reads", round(limits.of_epoch(least, threads) / mine, 2)
        row["gnnflow_peak_rss_bytes"] = peak[threads, "gnnflow"]
        row["rounds"] = {who: values for (t, who), values in seconds.items() if t == threads}
        found.append(row | beside(median, mine))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--backends", default=BACKENDS)
    parser.add_argument("--out")
    options = parser.parse_args()
    graph, python = graph_and_python()
    binary = build()
    rates, counts = limits.measure(graph, map(int, options.threads.split(",")))
    seconds, stages, why, peak, results = {}, {}, {}, {}, []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        (work / "p.toml").write_text(PIPELINE.format(graph=graph))
        subprocess.run([binary, "prepare", work / "p.toml", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        manifest = json.loads((work / "dataset" / "manifest.json").read_text())
        steps = math.ceil(manifest["splits"]["train"] / 1000)
        widths = [manifest["features"]["dim"], *HIDDEN, manifest["labels"]["classes"]]
        for number in range(options.rounds):
            for threads in map(int, options.threads.split(",")):
                for backend in in_turn(number, options.backends):
                    key = (threads, backend or "gnnflow")
                    if backend is None:
                        epoch, parts, peak[key] = ours(binary, work, threads)
                        stages.setdefault(key, []).append(parts)
                    else:
                        row, reason = peer("bench_sage.py", threads, python, "--graph", graph, "--backend", backend, "--batches", options.batches, "--warmup", 3)
                        if row is None:
                            why[f"{backend} {threads}"] = reason
                            continue
                        epoch = row["s_per_epoch_est"]
                        stages.setdefault(key, []).append(row.get("split_ms", {}))
                    seconds.setdefault(key, []).append(epoch)
                    print(f"round {number + 1}, {threads} threads, {key[1]}: {epoch:.1f} s an epoch", file=sys.stderr, flush=True)
            # After each round: the rest takes minutes.
            results = rows(seconds, stages, peak, rates, counts, widths)
            result = about("SAGE epoch beside peers") | {"steps": steps, "nodes": manifest["nodes"], "edges": manifest["edges"]}
            write(result | {"rates": rates, "counts": counts, "results": results, "failures": why}, "epoch-beside-peers", options.out)
    for row in results:
        print(f"{row['threads']} threads: {row['gnnflow_seconds']:.1f} s an epoch = {row.get('ratio_to_best_peer', '?')} × as fast as {row.get('best_peer')}; "
              f"peers {row['peers_seconds']}; stages {row['gnnflow_stages']}")


if __name__ == "__main__":
    main()
