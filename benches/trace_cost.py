#!/usr/bin/env python3
"""The cost of `train.trace`: seconds of an epoch with and without it.

    benches/trace_cost.py DATA [--graphs NAME…] [--schedules NAME…] [--rounds 9] [--out FILE]

Graphs and models are those of schedules.py: 2 processes of one thread, a 2-layer GCN. Runs with and without a trace take turns; the first
round warms up and is left out. A run's value is the median of its epochs after the first, and the cost is the median over rounds of the
quotient of the two runs of a round. The result is written to benches/runs/<date>-trace-cost.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of
from simulate import SCHEDULES


def run(binary, pipeline, work, settings, trace):
    """Trains 12 epochs. Returns the median seconds of an epoch."""
    settings = [*settings, "train.epochs=12", "train.evaluate_every=0", f"train.trace={str(trace).lower()}", f"partition.out={work / 'ds'}"]
    command = [binary, "run", pipeline, "--quiet", "--processes", "2", "--run-dir", work / "run", *sets(settings)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    lines = (work / "run" / "metrics.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "pubmed"], choices=GRAPHS)
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            pipeline = pipeline_of(name, work, options.data, 2)
            for schedule in options.schedules:
                seconds = {False: [], True: []}
                for number in range(options.rounds + 1):
                    for trace in (False, True)[:: -1 if number % 2 else 1]:
                        seconds[trace].append(run(binary, pipeline, work, SCHEDULES[schedule], trace))
                without, traced = seconds[False][1:], seconds[True][1:]
                ratios = sorted(b / a for a, b in zip(without, traced))
                row = {"graph": name, "schedule": schedule, "without": round(statistics.median(without), 5), "with": round(statistics.median(traced), 5),
                       "cost": round(statistics.median(ratios) - 1, 4), "quartiles": [round(ratios[len(ratios) * i // 4] - 1, 4) for i in (1, 3)],
                       "spread_without": round(max(without) / min(without) - 1, 4)}
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
    print(write({**about("trace-cost"), "rounds": options.rounds, "rows": rows}, "trace-cost", options.out))


if __name__ == "__main__":
    main()
