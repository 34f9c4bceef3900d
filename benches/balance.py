#!/usr/bin/env python3
"""What balanced partitions gain (DistDGL, Fig. 10): epochs of two processes on partitions with and without bounds on in-edges.

    benches/balance.py NAME=FOLDER… [--rounds 5] [--out FILE]

A folder contains edges.parquet and nodes.parquet with labels and features. The name "rmat" without a folder is a generated R-MAT graph.
Each graph is cut into two partitions, one for each process of one thread: at random, by `multilevel` with a bound on nodes only, and by
`multilevel` and METIS with the default bounds. An epoch of GCN over the whole graph and of sampled GraphSAGE is measured, without evaluation. Cases
take turns; the first round warms up and is left out. The result is written to benches/runs/<date>-balance.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from program import about, build, sets, write

RMAT = 'generate = {{ kind = "rmat", scale = 19, edge_factor = 16, features = 64, classes = 16, split = [0.3, 0.1, 0.1], out = "{work}/rmat" }}'
GRAPH = 'nodes = "{folder}/nodes.parquet"\nedges = "{folder}/edges.parquet"\nsplit_fractions = [0.3, 0.1, 0.1]'
PIPELINE = """
name = "balance"
[graph]
{graph}
undirected = true
[partition]
parts = 2
[model]
kind = "{kind}"
hidden = 64
[train]
epochs = 8
threads = 1
evaluate_every = 0
{train}
[infer]
predictions = false
"""
MODELS = {"gcn, full-graph": ("gcn", 'schedule = "full-graph"'), "sage, mini-batch": ("sage", "fanouts = [10, 10]\nbatch = 500")}
METHODS = {
    "random": ["partition.method=random"],
    "multilevel, nodes": ["partition.balance.edges=none", "partition.balance.train=none"],
    "multilevel": [],
    "metis": ["partition.method=metis"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        for graph in options.graphs:
            name, _, folder = graph.partition("=")
            cases = {}
            for model, (kind, train) in MODELS.items():
                text = (GRAPH if folder else RMAT).format(folder=pathlib.Path(folder).resolve(), work=work)
                pipeline = work / f"{kind}.toml"
                pipeline.write_text(PIPELINE.format(graph=text, kind=kind, train=train))
                for method, settings in METHODS.items():
                    out = work / f"{name}-{method}"
                    settings = [*settings, f"partition.out={out}"]
                    subprocess.run([binary, "prepare", pipeline, "-q", *sets(settings)], check=True)
                    cases[model, method] = (pipeline, settings, json.loads((out / "partition.json").read_text()))
            seconds = {case: [] for case in cases}
            for number in range(options.rounds + 1):
                for case, (pipeline, settings, _) in list(cases.items())[:: 1 if number % 2 else -1]:
                    command = [binary, "run", pipeline, "-q", "--json", "--processes", "2", "--run-dir", work / "run", *sets(settings)]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    summary = json.loads(done.stdout)
                    if number:
                        seconds[case].append(statistics.median(summary["seconds"]["per_epoch"][1:]))
                    cases[case][2]["bytes_per_epoch"] = summary["bytes_sent"] // summary["epochs"]
            for (model, method), (_, _, quality) in cases.items():
                found = seconds[model, method]
                row = {"graph": name, "model": model, "method": method, "epoch_seconds": round(statistics.median(found), 4)}
                row |= {"rounds": [round(second, 4) for second in found], "spread": round(max(found) / min(found), 3)}
                row |= {key: round(quality["balance"][key], 3) for key in ("nodes", "edges", "train")}
                row |= {"replication_factor": round(quality["replication_factor"], 3), "bytes_per_epoch": quality["bytes_per_epoch"]}
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    print(write(about("balanced partitions") | {"rounds": options.rounds, "results": rows}, "balance", options.out))


if __name__ == "__main__":
    main()
