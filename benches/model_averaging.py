#!/usr/bin/env python3
"""Averaging weights (`partition-parallel`, SDT-GNN) compared with averaging gradients (`mini-batch`): accuracy, traffic, bits.

    benches/model_averaging.py [--seeds 3] [--graphs debian-bookworm,fb100-cornell5,planted] [--data FOLDER]

4 partitions by multilevel, and the same model; SETTINGS contains the differences. Local models diverge between two averages, less with
fewer steps. So weight averaging has larger batches, larger learning rates, and more epochs where needed. These settings were
tuned on seed 1; those of gradient averaging were tuned less. The accuracy is that of the test nodes at the best validation
epoch. Seed 1 also runs with 2 and 4 processes, which must give equal bits. Graphs are read from `--data` (GNNFLOW_TEST_DATA, or
../shared/data); the planted one is generated. The result is written to benches/runs/<date>-model-averaging.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

from program import ROOT, about, build, sets, write

PLANTED = """
name = "planted"
[graph]
generate = {{ kind = "planted", nodes = 40_000, edges = 400_000, features = 64, classes = 10, split = [0.5, 0.2, 0.3], out = "{scratch}/graph" }}
undirected = true
[model]
kind = "sage"
hidden = 64
dropout = 0.2
input_dropout = 0.2
[train]
epochs = 20
batch = 500
fanouts = [10, 10]
optimizer = {{ kind = "adam", lr = 0.01 }}
"""

# By graph: settings of both schedules, and additional or different settings of one of them.
SETTINGS = {
    "debian-bookworm": {
        "both": ["train.epochs=100", "train.evaluate_every=5"],
        "partition-parallel": ["train.batch=1000", "train.optimizer.lr=0.01", "train.schedule.average_momentum=0.5", "train.epochs=300"],
    },
    "fb100-cornell5": {"both": ["train.epochs=30", "train.evaluate_every=2"]},
    "planted": {
        "both": ["train.epochs=40", "train.evaluate_every=2"],
        "partition-parallel": ["train.batch=1000", "train.schedule.average_momentum=0.5", "train.epochs=80"],
    },
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--graphs", default="debian-bookworm,fb100-cornell5,planted")
    parser.add_argument("--data", default=os.environ.get("GNNFLOW_TEST_DATA", str(ROOT.parent / "shared" / "data")))
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()
    rows = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        for graph in options.graphs.split(","):
            file = pathlib.Path(scratch) / f"{graph}.toml"
            if graph == "planted":
                file.write_text(PLANTED.format(scratch=scratch))
            else:
                text = (ROOT / "docs" / "book" / "src" / "accuracy" / f"{graph}.toml").read_text()
                text = "".join(line for line in text.splitlines(True) if not line.startswith("early_stop"))
                file.write_text(text.replace('"data/', f'"{pathlib.Path(options.data).resolve()}/'))
            # The seeds per step of all partitions together equal those of the pipeline.
            batch = next(int(line.split("=")[1]) for line in file.read_text().splitlines() if line.startswith("batch")) // 4

            def run(schedule, seed, processes=1):
                settings = [f"train.schedule={schedule}", f"train.seed={seed}", "partition.method=multilevel", "partition.parts=4", f"train.batch={batch}",
                            f"partition.out={scratch}/{graph}-{schedule}", "train.hash_blocks=true", *SETTINGS[graph]["both"], *SETTINGS[graph].get(schedule, [])]
                command = [binary, "run", file, "--quiet", "--json", "--run-dir", f"{scratch}/run", "--processes", processes]
                command += sets(settings)
                done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
                summary = json.loads(done.stdout)
                lines = (pathlib.Path(scratch) / "run" / "metrics.jsonl").read_text().splitlines()
                summary["curve"] = [record["val"]["accuracy"] for record in map(json.loads, lines) if record.get("val")]
                print(f"{graph}, {schedule}, seed {seed}, {processes} processes: {summary['test']['accuracy']:.4f}", file=sys.stderr, flush=True)
                return summary

            row = {"graph": graph, "settings": SETTINGS[graph]}
            for schedule in ["mini-batch", "partition-parallel"]:
                runs = [run(schedule, seed) for seed in range(1, options.seeds + 1)]
                others = [run(schedule, 1, processes) for processes in (2, 4)]
                bits = lambda summary: [summary[key] for key in ("model_sha256", "blocks_sha256")]
                if any(bits(other) != bits(runs[0]) for other in others):
                    sys.exit(f"error: {graph}, {schedule}: other bits from other numbers of processes")
                accuracies = [summary["test"]["accuracy"] for summary in runs]
                row[schedule] = {
                    "test_accuracy": round(statistics.mean(accuracies), 4),
                    "deviation": round(statistics.stdev(accuracies), 4) if len(accuracies) > 1 else None,
                    "best_epochs": [summary["best_epoch"] for summary in runs], "epochs": runs[0]["epochs"],
                    "train_seconds": round(statistics.median(summary["seconds"]["train"] for summary in runs), 2),
                    "bytes_per_step_at_4_processes": round(others[1]["bytes_per_step"]),
                    "validation_accuracy_by_evaluation": [round(value, 4) for value in runs[0]["curve"]],
                    "same_bits_at_1_2_4_processes": True,
                }
            row["difference"] = round(row["partition-parallel"]["test_accuracy"] - row["mini-batch"]["test_accuracy"], 4)
            rows.append(row)
    for row in rows:
        print(f"{row['graph']}: weights {row['partition-parallel']['test_accuracy']:.4f}, gradients {row['mini-batch']['test_accuracy']:.4f}, difference {row['difference']:+.4f}")
    result = about("averaging weights beside averaging gradients")
    result |= {"seeds": options.seeds, "partitions": 4, "results": rows}
    write(result, "model-averaging", options.out)


if __name__ == "__main__":
    main()
