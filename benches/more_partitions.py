#!/usr/bin/env python3
"""More partitions than processes: training under a memory limit smaller than the data (SDT-GNN, Fig. 11).

    benches/more_partitions.py DATA [--schedules NAME…] [--memory 256MiB] [--features 64] [--epochs 3] [--rounds 5] [--deadline 60] [--out FILE]

amazon0601 with planted labels and features, 16 partitions, one process of 2 threads, 2-layer GraphSAGE of 64, on partitions by SPRING and
multilevel. Schedules: partition-parallel (a plain average of parameters after each epoch; with the momentum of the average; with batches of
ClusterGCN and GraphSAINT) and mini-batch (gradients of all partitions are averaged in each step). The kernel enforces the limit, which
includes the page cache; it is emptied before each run. Runs without a limit must have equal bits. Cases take turns; medians over the epochs
of all rounds, without the first epoch of each run. A run that reaches the deadline is recorded with the epochs that it trained. Needs root,
numpy and pyarrow. The result is written to benches/runs/<date>-more-partitions.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile, time

from memory_group import Group, size
from program import about, build, sets, write
from schedules import plant

PIPELINE = """
name = "more-partitions"
[graph]
nodes = "{work}/nodes.parquet"
edges = "{data}/amazon0601/edges.parquet"
split_fractions = [0.1, 0.02, 0.88]
undirected = true
duplicates = "drop"
[partition]
parts = 16
halo = "features"
[model]
kind = "sage"
layers = 2
hidden = 64
[train]
epochs = {epochs}
threads = 2
checkpoint_every = 0
evaluate_every = {epochs}
optimizer = {{ kind = "adam", lr = 0.01 }}
[infer]
predictions = false
"""
PARTITION_PARALLEL = ["train.schedule.kind=partition-parallel"]
SAMPLED = ["train.batch=500", "train.fanouts=[10, 5]"]
SCHEDULES = {
    "partition-parallel, plain average": [*PARTITION_PARALLEL, *SAMPLED],
    "partition-parallel, momentum 0.5": [*PARTITION_PARALLEL, *SAMPLED, "train.schedule.average_momentum=0.5"],
    "partition-parallel, ClusterGCN": [*PARTITION_PARALLEL, "train.sampler=cluster"],
    "partition-parallel, GraphSAINT": [*PARTITION_PARALLEL, "train.sampler=saint-node", "train.batch=2000"],
    "mini-batch": ["train.schedule.kind=mini-batch", *SAMPLED],
}
METHODS = ["spring", "multilevel"]


class Bench:
    def __init__(self, binary, work, options):
        self.binary, self.work, self.options = binary, work, options
        self.data_bytes = {}
        plant(pathlib.Path(options.data) / "amazon0601", work, features=options.features)
        self.pipeline = work / "p.toml"
        self.pipeline.write_text(PIPELINE.format(work=work, data=pathlib.Path(options.data).resolve(), epochs=options.epochs))
        for method in METHODS:
            settings = [f"partition.method={method}", f"partition.out={work / method}"]
            subprocess.run([binary, "prepare", self.pipeline, "--quiet", *sets(settings)], check=True, stdout=subprocess.DEVNULL)
            self.data_bytes[method] = sum(file.stat().st_size for file in (work / method).glob("part-*/*.arrow"))

    def run(self, schedule, method, limited):
        """Trains. Returns the epochs of the metrics, peak bytes under the limit, and the hash of the model, if the run ended."""
        subprocess.run(["sync"], check=True)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        folder = self.work / "run"
        subprocess.run(["rm", "-rf", folder], check=True)
        settings = [f"partition.method={method}", f"partition.out={self.work / method}", *SCHEDULES[schedule]]
        command = [self.binary, "run", self.pipeline, "--quiet", "--run-dir", folder, *sets(settings)]
        peak, begin = None, time.monotonic()
        if limited:
            ended = lambda: (folder / "summary.json").exists()
            _, peak = Group(size(self.options.memory)).until(command, ended, self.options.deadline)
        else:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(f"{schedule}, {method}, {self.options.memory if limited else 'no limit'}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        summary = folder / "summary.json"
        model = json.loads(summary.read_text())["model_sha256"] if summary.exists() else None
        return [json.loads(line) for line in lines], peak, model

    def row(self, schedule, method, runs, free):
        """The figures of a case, from its runs under the limit and one without."""
        epochs = [line["seconds"] for lines, _, _ in runs for line in lines[1:]]
        evaluated = [line["val"]["accuracy"] for line in free[0] if "val" in line]
        models = {model for _, _, model in runs if model}
        if not models <= {free[2]}:
            sys.exit(f"error: {schedule}, {method}: other bits under the limit")
        return {"schedule": schedule, "method": method, "data_bytes": self.data_bytes[method], "peak_bytes": max(peak for _, peak, _ in runs),
                "epoch_seconds": round(statistics.median(epochs), 3) if epochs else None,
                "rounds": [round(statistics.median(line["seconds"] for line in lines[1:]), 3) if len(lines) > 1 else None for lines, _, _ in runs],
                "epochs_trained": [len(lines) for lines, _, _ in runs],
                "epoch_seconds_without_limit": round(statistics.median(line["seconds"] for line in free[0][1:]), 3),
                "validation_accuracy": evaluated[-1], "same_bits_as_without_limit": bool(models) or None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deadline", type=float, default=60, help="seconds that a run may take")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(binary, pathlib.Path(work), options)
        cases = [(schedule, method) for schedule in options.schedules for method in METHODS]
        free = {case: bench.run(*case, False) for case in cases}
        runs = {case: [] for case in cases}
        for number in range(options.rounds):
            for case in cases[:: -1 if number % 2 else 1]:
                runs[case].append(bench.run(*case, True))
            # After each round: the rest takes minutes.
            rows = [bench.row(*case, runs[case], free[case]) for case in cases]
            result = {**about("more-partitions"), "memory": options.memory, "features": options.features, "epochs": options.epochs,
                      "deadline_seconds": options.deadline, "rows": rows}
            path = write(result, "more-partitions", options.out)
    for row in rows:
        print(row, file=sys.stderr)
    print(path)


if __name__ == "__main__":
    main()
