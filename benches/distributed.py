#!/usr/bin/env python3
"""Cost and gain of several processes. Each case changes one property, and cases run in turn.

    benches/distributed.py [--only scaling,traffic,methods,fastsample,link] [--rounds 3] [--deadline 900] [--set graph.generate.nodes=400000 …]

scaling     two processes of one thread compared with one process of two threads, on the same work; features of the other process
            are shared (mapped files) or fetched by messages
traffic     bytes, messages and rounds per step with partitioned or replicated topology, with and without a feature cache
methods     the same for partitions by random, spring, multilevel and metis (DistDGL, Fig. 10), at 4 processes
fastsample  partitioned and unfused, replicated and unfused, replicated and fused (FastSample, Fig. 5 and 6), at 2 and 4 processes
link        scaling and traffic with processes in network namespaces, over a link of 1 Gbit/s and 1 ms; needs root, and the
            kernel's netem for the delay (the result contains the link that was available)

All but `scaling` fetch features as between hosts (partition.features = "partitioned").

3-layer SAGE, hidden 128, fanouts 15,10,5, 4 partitions, 250 seeds each. The second epoch is measured. Each process is bound to
separate cores if there are enough. The result is written to benches/runs/<date>-distributed.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

from network import namespaces, run_on_hosts
from program import CORES, about, build, sets, write

PIPELINE = """
name = "distributed"
[graph]
generate = {{ kind = "planted", nodes = 400_000, edges = 8_000_000, features = 100, classes = 40, split = [0.1, 0.02, 0.02], out = "{scratch}/graph" }}
undirected = true
[partition]
method = "multilevel"
parts = 4
[model]
kind = "sage"
layers = 3
hidden = 128
[train]
epochs = 2
batch = 250
fanouts = [15, 10, 5]
evaluate_every = 0
[infer]
# Inference is not measured. A large batch avoids fetching the same rows repeatedly over a narrow link.
batch = 100_000
predictions = false
"""
STAGES = ["sample", "fetch", "forward", "backward", "reduce", "step"]


class Bench:
    def __init__(self, options, binary, work):
        self.options, self.binary, self.work = options, binary, work

    def command(self, settings, *more):
        return [str(self.binary), "run", str(self.work / "p.toml"), "--quiet", "--json", *more, *sets(self.options.set), *sets(settings)]

    def method(self, method):
        """Prepares a dataset by a partition method once. Returns its settings."""
        settings = [f"partition.method={method}", f"partition.out={self.work}/{method}"]
        if not (self.work / method).exists():
            command = [str(self.binary), "prepare", str(self.work / "p.toml"), "--quiet", *sets(self.options.set), *sets(settings)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return settings

    def read(self, out):
        summary = json.loads(out)
        seconds = summary["seconds"]
        row = {
            "epoch_seconds": seconds["per_epoch"][1], "bytes_per_step": round(summary["bytes_per_step"]),
            "messages_per_step": round(summary["messages_per_step"], 1), "rounds_per_step": summary["rounds_per_step"],
            "stages": {stage: round(seconds[stage] / 2, 3) for stage in STAGES}, "model": summary["model_sha256"],
        }
        if summary.get("cache"):
            row["cache_hit_rate"] = summary["cache"]["hit_rate"]
        return row

    def run(self, processes, threads, settings):
        """Runs `processes` processes on this machine."""
        cores = ",".join(map(str, range(min(CORES, processes * threads))))
        run = self.work / "run"
        command = self.command([f"train.threads={threads}", *settings], "--processes", str(processes), "--run-dir", str(run))
        done = subprocess.run(["taskset", "-c", cores, *command], check=True, stdout=subprocess.PIPE, text=True, timeout=self.options.deadline)
        return self.read(done.stdout)

    def run_apart(self, spaces, threads, settings):
        """Runs one process in each network namespace."""
        command = self.command([f"train.threads={threads}", *settings], "--run-dir", str(self.work / "apart"))
        cores = [",".join(str((rank * threads + i) % CORES) for i in range(threads)) for rank in range(len(spaces))]
        out = run_on_hosts(spaces, command, self.work, self.options.deadline, [["taskset", "-c", each] for each in cores])
        return self.read(out)

    def take_turns(self, cases):
        """Runs every case, a pair of name and function, once per round. Returns the rows of the median epochs."""
        rows = {name: [] for name, _ in cases}
        for number in range(self.options.rounds):
            turn = number % len(cases)
            for name, case in cases[turn:] + cases[:turn]:
                row = case()
                rows[name].append(row)
                print(f"round {number + 1}, {name}: {row['epoch_seconds']:.2f} s, {row['bytes_per_step'] / 1e6:.2f} MB a step", file=sys.stderr, flush=True)
        result = []
        for name, runs in rows.items():
            median = statistics.median(run["epoch_seconds"] for run in runs)
            middle = min(runs, key=lambda run: abs(run["epoch_seconds"] - median))
            result.append({"case": name, **middle, "epoch_seconds": round(median, 3), "rounds": [round(run["epoch_seconds"], 3) for run in runs]})
        return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="scaling,traffic,methods,fastsample,link")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=900, help="seconds that a run may take")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    options = parser.parse_args()
    binary = build()
    results = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        (work / "p.toml").write_text(PIPELINE.format(scratch=scratch))
        bench = Bench(options, binary, work)
        multilevel = bench.method("multilevel")
        manifest = json.loads((work / "multilevel" / "manifest.json").read_text())
        bench.steps = -(-manifest["splits"]["train"] // 4 // 250)
        replicated, unfused = ["partition.topology=replicated"], ["debug.fused_sampling=false"]
        cache, fetched = ["train.schedule.cache=16MiB"], ["partition.features=partitioned"]

        def case(processes, threads, *settings, by=multilevel):
            return lambda: bench.run(processes, threads, [*by, *[s for more in settings for s in more]])

        traffic = [
            ("partitioned", []), ("partitioned, cache of 16 MiB", cache), ("replicated", replicated),
            ("replicated, cache of 16 MiB", replicated + cache),
        ]
        for what in options.only.split(","):
            if what == "scaling":
                cases = [("1 process of 2 threads", case(1, 2))]
                for name, settings in [("", []), (", replicated", replicated)]:
                    cases += [(f"2 processes of 1 thread{name}", case(2, 1, settings)), (f"2 processes of 1 thread{name}, fetched", case(2, 1, settings, fetched))]
                rows = bench.take_turns(cases)
                for row in rows:
                    row["throughput_beside_one_process"] = round(rows[0]["epoch_seconds"] / row["epoch_seconds"], 3)
                results[what] = rows
            elif what == "traffic":
                results[what] = bench.take_turns([(name, case(2, 1, settings, fetched)) for name, settings in traffic])
            elif what == "methods":
                cases = [(method, case(4, 1, fetched, by=bench.method(method))) for method in ["random", "spring", "multilevel", "metis"]]
                results[what] = bench.take_turns(cases)
            elif what == "fastsample":
                results[what] = []
                for processes in [2, 4]:
                    cases = [
                        (f"{processes} processes, partitioned, unfused", case(processes, 1, fetched, unfused)),
                        (f"{processes} processes, replicated, unfused", case(processes, 1, fetched, replicated, unfused)),
                        (f"{processes} processes, replicated, fused", case(processes, 1, fetched, replicated)),
                    ]
                    results[what] += bench.take_turns(cases)
            elif what == "link":
                spaces, shaped, undo = namespaces(2)
                if spaces is None:
                    continue
                try:
                    apart = lambda settings: lambda: bench.run_apart(spaces, 1, [*multilevel, *settings])
                    rows = bench.take_turns([("1 process of 2 threads", case(1, 2))] + [(name, apart(settings)) for name, settings in traffic])
                    for row in rows:
                        row["throughput_beside_one_process"] = round(rows[0]["epoch_seconds"] / row["epoch_seconds"], 3)
                    results[what] = {"link": shaped, "rows": rows}
                finally:
                    undo()
            else:
                sys.exit(f"error: --only {what}: see --help")
    graph = {key: manifest[key] for key in ("nodes", "edges")}
    result = about("what several processes cost and save")
    result |= {"settings": options.set, "graph": graph, "steps": bench.steps, "results": results}
    write(result, "distributed", options.out)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
