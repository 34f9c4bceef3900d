#!/usr/bin/env python3
"""Accuracy of a 2-layer GCN of 64 columns with rows in `f32` and `bf16`, by `full-graph` and `tensor-parallel`.

    benches/row_dtype.py DATA [--graphs cora,pubmed] [--seeds 8] [--out FILE]

DATA contains a folder of nodes.parquet and edges.parquet for each graph. 4 partitions in one process. The test accuracy is that of the
best validation epoch; every 10th epoch is evaluated, and the number of epochs is that of benches/staleness.py. benches/peers/full_graph.py
measures time and memory. The result is written to benches/runs/<date>-row-dtype.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from program import about, build, sets, write
from staleness import GRAPHS, MODELS, PIPELINE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--graphs", default="cora,pubmed")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        for graph in options.graphs.split(","):
            epochs, features = GRAPHS[graph]
            data = (options.data / graph).resolve()
            text = PIPELINE.format(data=data, features=features, scratch=scratch, graph=graph, model=MODELS["gcn"], epochs=epochs)
            (work / "p.toml").write_text(text)
            for schedule in ("full-graph", "tensor-parallel"):
                for dtype in ("f32", "bf16"):
                    found = []
                    for seed in range(1, options.seeds + 1):
                        keys = [f"train.schedule={schedule}", f"train.schedule.row_dtype={dtype}", f"train.seed={seed}"]
                        command = [binary, "run", work / "p.toml", "--run-dir", work / "run", "--quiet", "--json", *sets(keys)]
                        done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
                        found.append(json.loads(done.stdout)["test"]["accuracy"])
                    mean, deviation = statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0
                    rows.append({"graph": graph, "schedule": schedule, "row_dtype": dtype, "test_accuracy": found,
                                 "test_mean": round(mean, 4), "test_deviation": round(deviation, 4)})
                    print(f"{graph}, {schedule}, {dtype}: {100 * mean:.2f} ± {100 * deviation:.2f}", file=sys.stderr, flush=True)
    print(f"wrote {write(about('row dtype') | {'results': rows}, 'row-dtype', options.out)}")


if __name__ == "__main__":
    main()
