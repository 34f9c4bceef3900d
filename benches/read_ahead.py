#!/usr/bin/env python3
"""Training on features larger than memory, with and without reading ahead, under a memory limit that the kernel enforces.

    benches/read_ahead.py [--nodes 600000] [--features 256] [--memory 400MiB] [--rounds 1] [--deadline 150]

2-layer SAGE, hidden 64, fanouts 10,5, 30 batches of 200 per epoch, one process. The page cache is emptied before every run and counts
toward the limit. A run ends after two epochs of training, or at the deadline. Cases run in turn. Needs root. The result is written to
benches/runs/<date>-read-ahead.json.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile

from memory_group import Group, size
from program import about, build, write

PIPELINE = """
name = "read-ahead"
[graph]
generate = {{ kind = "planted", nodes = {nodes}, edges = {edges}, features = {features}, classes = 10, split = [0.01, 0.001, 0.001], out = "{scratch}/graph" }}
[partition]
method = "random"
parts = 1
out = "{scratch}/dataset"
[model]
kind = "sage"
hidden = 64
[train]
epochs = 2
batch = 200
fanouts = [10, 5]
evaluate_every = 0
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=600_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--memory", default="400MiB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=150, help="seconds that a run may take")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()
    rows = {"with": [], "without": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        file = pathlib.Path(scratch) / "p.toml"
        file.write_text(PIPELINE.format(scratch=scratch, nodes=options.nodes, edges=5 * options.nodes, features=options.features))
        subprocess.run([binary, "prepare", file, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        for number in range(options.rounds):
            for name in sorted(rows, reverse=number % 2 == 1):
                subprocess.run(["sync"], check=True)
                pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
                run = pathlib.Path(scratch) / f"run-{number}-{name}"
                command = [binary, "run", file, "--quiet", "--run-dir", run, "--set", f"train.read_ahead={'true' if name == 'with' else 'false'}"]
                lines = lambda: (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
                seconds, peak = Group(size(options.memory)).until(command, lambda: len(lines()) >= 2, options.deadline)
                epochs = [json.loads(line) for line in lines()]
                row = {"seconds": round(seconds, 1), "cgroup_peak_bytes": peak, "epoch_seconds": [round(epoch["seconds"], 2) for epoch in epochs]}
                rows[name].append(row | {"losses": [epoch["loss"] for epoch in epochs]})
                print(f"round {number + 1}, {name}: {row}", file=sys.stderr, flush=True)
    result = about("features larger than memory, read ahead and not: two epochs of training, as far as the deadline let them come")
    result |= {"nodes": options.nodes, "feature_bytes": 4 * options.features * options.nodes, "memory": options.memory,
               "deadline_seconds": options.deadline, "results": rows}
    write(result, "read-ahead", options.out)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
