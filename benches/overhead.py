#!/usr/bin/env python3
"""What an epoch costs with `train.trace`, with checkpoints, under a supervisor and with metrics, beside one without any of them.

    benches/overhead.py DATA [--graphs NAME…] [--schedules NAME…] [--rounds 7] [--epochs 40] [--out FILE]

Graphs and models are those of schedules.py: 2 processes of one thread, a 2-layer GCN. The value of a case is that of a run of 1 + EPOCHS
epochs less that of a run of one epoch, so that what happens once does not count: wall time, and CPU time of all processes, which varies less.
Cases take turns; the first round warms up and is left out. A cost is the median over rounds of the quotient to the plain run of the same
round, less 1. "plain" is a second plain run: its cost is what cannot be measured. A thread reads the metrics every second. The result is
written to benches/runs/<date>-overhead.json.
"""
import argparse, json, pathlib, resource, socket, statistics, subprocess, sys, tempfile, threading, time, urllib.request

from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of
from simulate import SCHEDULES

# By case: settings, and whether metrics are read.
CASES = {
    "reference": [],
    "plain": [],
    "trace": ["train.trace=true"],
    "checkpoint after each epoch": ["train.checkpoint_every=1"],
    "supervisor": ["cluster.restarts=3"],
    "metrics": ["cluster.metrics=127.0.0.1:{port}"],
}


def cpu_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def read_metrics(port, done):
    """Reads the page every second. Returns how often it was there."""
    found = 0
    while not done.wait(1):
        try:
            found += b"gnnflow_" in urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1).read()
        except OSError:
            pass
    return found


def run(binary, pipeline, work, settings, epochs):
    """Returns wall time and CPU time of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [*settings, f"train.epochs={epochs}", f"partition.out={work / 'ds'}"]
    settings = ["train.evaluate_every=0", "train.checkpoint_every=0", *(setting.format(port=port) for setting in settings)]
    command = [binary, "run", pipeline, "--quiet", "--processes", "2", "--run-dir", work / "run", *sets(settings)]
    done, before, begin = threading.Event(), cpu_of_children(), time.perf_counter()
    reads = any("metrics" in setting for setting in settings)
    reader = threading.Thread(target=read_metrics, args=(port, done))
    if reads:
        reader.start()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    done.set()
    if reads:
        reader.join()
    return time.perf_counter() - begin, cpu_of_children() - before


def epoch(binary, pipeline, work, settings, epochs):
    """Returns wall time and CPU time of an epoch."""
    long, short = run(binary, pipeline, work, settings, 1 + epochs), run(binary, pipeline, work, settings, 1)
    return [(a - b) / epochs for a, b in zip(long, short)]


def cost(values, reference):
    """Returns the median cost, and its quartiles."""
    ratios = sorted(value / other - 1 for value, other in zip(values, reference))
    return round(statistics.median(ratios), 4), [round(ratios[len(ratios) * i // 4], 4) for i in (1, 3)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm"], choices=GRAPHS)
    parser.add_argument("--schedules", nargs="*", default=["mini-batch", "full-graph"], choices=SCHEDULES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            pipeline = pipeline_of(name, work, options.data, 2)
            for schedule in options.schedules:
                found = {case: [] for case in CASES}
                for number in range(options.rounds + 1):
                    for case in list(CASES)[:: -1 if number % 2 else 1]:
                        found[case].append(epoch(binary, pipeline, work, SCHEDULES[schedule] + CASES[case], options.epochs))
                wall, cpu = ({case: [value[which] for value in values[1:]] for case, values in found.items()} for which in (0, 1))
                for case in list(CASES)[1:]:
                    (of_wall, wall_quartiles), (of_cpu, cpu_quartiles) = (cost(of[case], of["reference"]) for of in (wall, cpu))
                    row = {"graph": name, "schedule": schedule, "case": case, "epoch_seconds": round(statistics.median(wall[case]), 5),
                           "cost": of_wall, "quartiles": wall_quartiles, "cpu_cost": of_cpu, "cpu_quartiles": cpu_quartiles}
                    print(row, file=sys.stderr, flush=True)
                    rows.append(row)
    print(write({**about("overhead"), "rounds": options.rounds, "epochs": options.epochs, "results": rows}, "overhead", options.out))


if __name__ == "__main__":
    main()
