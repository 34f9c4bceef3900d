#!/usr/bin/env python3
"""Predicted seconds of an epoch on 1 to 16 hosts, by `gnnflow simulate`.

    benches/scaling.py DATA [--graphs NAME…] [--processes 16] [--out FILE]

Graphs and models are those of schedules.py. Each schedule is recorded once, on this machine, with --processes processes of one thread and
one partition each, and then simulated on hosts of one process, with the links of LINKS. The partitions stay the same: fewer hosts have
several of them each. simulate.py tells how far predictions are off. The result is written to benches/runs/<date>-scaling.json.
"""
import argparse, json, pathlib, subprocess, sys, tempfile

from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of
from simulate import SCHEDULES

SCHEDULES = {**SCHEDULES, "tensor-parallel, decoupled": ["train.schedule.kind=tensor-parallel", "model.decoupled=true"]}
LINKS = {"1 Gbit/s, 0.2 ms": ["--bandwidth", "118MB", "--latency", "0.2"], "25 Gbit/s, 0.05 ms": ["--bandwidth", "3GB", "--latency", "0.05"]}


def rows(binary, name, work, options):
    """Records all schedules on a graph, and simulates them."""
    pipeline = pipeline_of(name, work, options.data, options.processes)
    hosts = [str(2**power) for power in range(options.processes.bit_length()) if 2**power <= options.processes]
    for schedule, settings in SCHEDULES.items():
        folder = work / schedule
        settings = [*settings, "train.epochs=4", "train.evaluate_every=0", "train.trace=true", f"partition.out={work / 'ds'}"]
        command = [binary, "run", pipeline, "--quiet", "--processes", str(options.processes), "--run-dir", folder, *sets(settings)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for link, words in LINKS.items():
            command = [binary, "simulate", folder, "--json", "--quiet", "--hosts", ",".join(hosts), "--cores", "4", *words]
            printed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for row in printed["predictions"]:
                path = {part["name"]: round(part["seconds"] / row["epoch_seconds"], 2) for part in row["critical_path"][:3]}
                print(f"{name}, {schedule}, {link}, {row['hosts']} hosts: {row['epoch_seconds']:.4f} s {path}", file=sys.stderr, flush=True)
                yield {"graph": name, "schedule": schedule, "link": link, "hosts": row["hosts"],
                       "predicted": round(row["epoch_seconds"], 4), "critical_path": path}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "amazon0601", "skewed"], choices=GRAPHS)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, found = build(), []
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as work:
            found += rows(binary, name, pathlib.Path(work), options)
    print(write({**about("scaling"), "processes": options.processes, "rows": found}, "scaling", options.out))


if __name__ == "__main__":
    main()
