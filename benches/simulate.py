#!/usr/bin/env python3
"""How well `gnnflow simulate` predicts: predicted beside measured seconds of an epoch.

    benches/simulate.py DATA [--graphs NAME…] [--schedules NAME…] [--rounds 5] [--out FILE]

Graphs and models are those of schedules.py: 2 partitions, a 2-layer GCN. In each round, runs of one and of two processes of one thread, and
of one process of two threads, are traced, and the clusters of CASES are predicted from them. The latter tells how well jobs use threads,
except of jobs that run at the same time on one thread each: seven tenths of them are assumed to be parallel. In the same round
the clusters are measured, without a trace: on this machine, and between two network namespaces with 1 Gbit/s (see network.py). Runs take turns, the first round warms up and is left out, and both values are medians over the others. The result is
written to benches/runs/<date>-simulate.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from network import namespaces, run_on_hosts
from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of

SCHEDULES = {
    "mini-batch": ["train.schedule.kind=mini-batch"],
    "partition-parallel": ["train.schedule.kind=partition-parallel"],
    "full-graph": ["train.schedule.kind=full-graph"],
    "tensor-parallel": ["train.schedule.kind=tensor-parallel", "model.decoupled=false"],
}
# Name, processes and threads of the recorded run, processes and threads of the predicted one, and whether these are two hosts.
CASES = [
    ("1 process, 1 thread", (1, 1), (1, 1), False),
    ("1 process, 2 threads", (1, 1), (1, 2), False),
    ("2 processes, 1 thread", (2, 1), (2, 1), False),
    ("2 processes, 2 threads", (2, 1), (2, 2), False),
    ("2 hosts, 1 thread, 1 Gbit/s", (2, 1), (2, 1), True),
    ("from 2 processes: 1 process, 1 thread", (2, 1), (1, 1), False),
]
LINK = ["--bandwidth", "118MB", "--latency", "0.1"]


class Graph:
    """A prepared graph."""

    def __init__(self, binary, name, work, options, spaces, parts=2):
        self.binary, self.work, self.spaces = binary, work, spaces
        self.pipeline = pipeline_of(name, work, options.data, parts)
        subprocess.run([binary, "prepare", self.pipeline, "--quiet", "--set", f"partition.out={work / 'ds'}"], check=True)

    def command(self, schedule, threads, trace, folder):
        settings = SCHEDULES[schedule] + [f"train.epochs={5 if trace else 4}", "train.evaluate_every=0", f"train.threads={threads}",
                                          f"train.trace={str(trace).lower()}", f"partition.out={self.work / 'ds'}"]
        return [self.binary, "run", self.pipeline, "--quiet", "--run-dir", folder, *sets(settings)]

    def run(self, schedule, processes, threads, trace=False):
        """Runs on this machine. Returns the run folder."""
        folder = self.work / f"{schedule}-{processes}-{threads}-{trace}"
        command = self.command(schedule, threads, trace, folder)
        subprocess.run([*command, "--processes", str(processes)], check=True, stdout=subprocess.DEVNULL, timeout=300)
        return folder

    def run_apart(self, schedule):
        """Runs a process in each network namespace."""
        folder = self.work / f"{schedule}-apart"
        run_on_hosts(self.spaces, self.command(schedule, 1, False, folder), self.work, 300)
        return folder

    def measure(self, schedule, predicted, apart):
        folder = self.run_apart(schedule) if apart else self.run(schedule, *predicted)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return statistics.median(json.loads(line)["seconds"] for line in lines[1:])

    def predict(self, schedule, recorded, predicted, link=None, scaling=(1, 2)):
        folder, scaling = (self.work / f"{schedule}-{p}-{t}-True" for p, t in (recorded, scaling))
        options = ["--hosts", str(predicted[0]), "--cores", str(predicted[1]), *link] if link else ["--processes", str(predicted[0])]
        options += ["--scaling", scaling] if predicted[1] > 1 else []
        command = [self.binary, "simulate", folder, "--json", "--quiet", "--threads", str(predicted[1]), *options]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        return json.loads(printed)["predictions"][0]


def rows(graph, name, schedule, options):
    """The rows of a graph and a schedule."""
    cases = [case for case in CASES if graph.spaces or not case[3]]
    clusters = {(predicted, apart) for _, _, predicted, apart in cases}
    seconds = {cluster: [] for cluster in clusters}
    predictions = {case: [] for case in cases}
    for number in range(options.rounds + 1):
        traced = {(*recorded, True) for recorded in [(1, 1), (2, 1), (1, 2)]}
        # The speed of a machine changes: what is recorded and what is measured take turns.
        for cluster in sorted(traced | clusters, key=str, reverse=number % 2 == 1):
            if cluster in clusters:
                seconds[cluster].append(graph.measure(schedule, *cluster))
            else:
                graph.run(schedule, *cluster)
        for case in cases:
            _, recorded, predicted, apart = case
            predictions[case].append(graph.predict(schedule, recorded, predicted, LINK if apart else None))
    result = []
    for case in cases:
        rounds = seconds[case[2:]][1:]
        measured, predicted = statistics.median(rounds), statistics.median(row["epoch_seconds"] for row in predictions[case][1:])
        error = predicted / measured - 1
        print(f"{name}, {schedule}, {case[0]}: {predicted:.4f} s, measured {measured:.4f} s, {100 * error:+.1f} %", file=sys.stderr, flush=True)
        result.append({"graph": name, "schedule": schedule, "case": case[0], "predicted": round(predicted, 4), "measured": round(measured, 4),
                       "error": round(error, 3), "predicted_rounds": [round(row["epoch_seconds"], 4) for row in predictions[case][1:]],
                       "measured_rounds": [round(second, 4) for second in rounds],
                       "critical_path": {part["name"]: round(part["seconds"], 4) for part in predictions[case][-1]["critical_path"][:4]}})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "facebook-large", "pubmed"], choices=GRAPHS)
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, all_rows = build(), []
    spaces, shaped, undo = namespaces(2)
    try:
        for name in options.graphs:
            with tempfile.TemporaryDirectory() as work:
                graph = Graph(binary, name, pathlib.Path(work), options, spaces)
                for schedule in options.schedules:
                    all_rows += rows(graph, name, schedule, options)
                    errors = [abs(row["error"]) for row in all_rows]
                    within = f"{sum(error <= 0.15 for error in errors)} of {len(errors)}"
                    result = {**about("simulate"), "rounds": options.rounds, "link": shaped, "within_15_percent": within,
                              "median_error": round(statistics.median(errors), 3), "rows": all_rows}
                    # After each schedule: the rest takes minutes.
                    path = write(result, "simulate", options.out)
    finally:
        undo()
    print(path)


if __name__ == "__main__":
    main()
