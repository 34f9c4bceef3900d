#!/usr/bin/env python3
"""Load and traffic of each process in node-parallel and column-parallel training (NeutronTP, Fig. 10 to 14).

    benches/tensor_parallel.py [--only balance,layers,dimensions,chunks,pipelining,cap] [--rounds 3] [--set graph.generate.nodes=262144 …]

balance     bytes that each process sends per epoch, edges × columns that it sums, the ratio of largest to smallest, and epoch seconds
layers      the same with 2, 3 and 4 layers
dimensions  the same with rows of 128, 256, 512 and 1024 columns
chunks      `decoupled`: peak memory and seconds for several values of `train.schedule.chunk_memory`
pipelining  `decoupled` with and without ("sync") sending chunks during computation
cap         `decoupled` and `naive` on a graph whose rows exceed a memory limit that the kernel enforces; needs root
            (with `--set graph.generate.features=512 --set graph.generate.classes=256` rows take 1.25 GiB)

GCN on a skewed graph (R-MAT) in 4 partitions, with one process of one thread each. `node-parallel` is schedule "full-graph" on partitions by
--method. `naive` is "tensor-parallel" with an exchange at every layer, and `decoupled` with one exchange; both have equally many nodes per
process. Epoch seconds are the median without the first epoch. Cases run in turn. The result is written to
benches/runs/<date>-tensor-parallel.json, with SVGs of bytes by layers and by dimensions.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

from memory_group import Group, size
from program import about, build, sets, write

PIPELINE = """
name = "tensor-parallel"
[graph]
generate = {{ kind = "rmat", nodes = 131_072, edge_factor = 16, features = 128, classes = 64, split = [0.6, 0.2, 0.2], out = "{scratch}/graph" }}
undirected = true
[partition]
method = "{method}"
parts = {parts}
out = "{scratch}/dataset"
[model]
kind = "gcn"
layers = 2
hidden = 128
dropout = 0.0
[train]
schedule = "full-graph"
epochs = 4
evaluate_every = 0
checkpoint_every = 0
threads = 1
optimizer = {{ kind = "adam", lr = 0.01 }}
"""
# Column-parallel training depends only on the number of nodes of each process.
EQUAL = ["partition.method=range", "partition.out=dataset-range"]
WAYS = {
    "node-parallel": ["train.schedule=full-graph"],
    "naive": ["train.schedule=tensor-parallel", "model.decoupled=false", *EQUAL],
    "decoupled": ["train.schedule=tensor-parallel", "model.decoupled=true", *EQUAL],
}
COLORS = {"node-parallel": "#444", "naive": "#1b6ca8", "decoupled": "#d1495b"}


def spread(values):
    """Returns the ratio of the largest to the smallest value."""
    return round(max(values) / max(min(values), 1), 4)


class Bench:
    def __init__(self, binary, pipeline, work, options):
        self.binary, self.pipeline, self.work, self.options = binary, pipeline, work, options
        self.rows = []

    def arguments(self, settings):
        return [self.binary, "run", self.pipeline, "--run-dir", self.work / "run", "--quiet", "--json", "--processes", self.options.processes,
                *sets([*self.options.set, *settings])]

    def plan(self, settings):
        """Returns the plan of a run."""
        done = subprocess.run([*map(str, self.arguments(settings)), "--dry-run"], check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)

    def run(self, settings):
        """Returns the summary of a run and None, or None and the error."""
        done = subprocess.run([*map(str, self.arguments(settings))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return None, done.stderr.strip().splitlines()[-1]
        return json.loads(done.stdout), None

    def compare(self, part, cases):
        """Runs all cases in turn, once per round, and adds a row for each."""
        found = {name: [] for name in cases}
        for number in range(self.options.rounds):
            for name in sorted(cases, reverse=number % 2 == 1):
                summary, why = self.run(cases[name])
                if summary is None:
                    print(f"{part}, {name}: {why}", file=sys.stderr, flush=True)
                    found[name].append(why)
                else:
                    found[name].append(summary)
        for name, runs in found.items():
            row = {"part": part, "case": name, "settings": cases[name]}
            if isinstance(runs[0], str):
                self.rows.append(row | {"refused": runs[0]})
                continue
            workers = runs[0]["workers"]
            sent, added = [round(worker["bytes_per_step"]) for worker in workers], [worker["edge_numbers"] for worker in workers]
            row |= {"bytes": sent, "edge_numbers": added, "table_bytes": [worker["table_bytes"] for worker in workers],
                    "bytes_most_over_least": spread(sent), "edge_numbers_most_over_least": spread(added),
                    "bytes_per_epoch": runs[0]["bytes_per_step"], "rounds_per_epoch": runs[0]["rounds_per_step"],
                    "epoch_seconds": round(statistics.median(s for run in runs for s in run["seconds"]["per_epoch"][1:]), 4),
                    "peak_rss_bytes": max(max(run["peak_rss_bytes"]) for run in runs)}
            self.rows.append(row)
            print(f"{part:10} {name:18} {row['bytes_per_epoch'] / 2**20:9.1f} MiB an epoch (most over least {row['bytes_most_over_least']}), "
                  f"edges × columns {row['edge_numbers_most_over_least']}, {row['rounds_per_epoch']:.0f} rounds, {row['epoch_seconds']:.3f} s, "
                  f"peak {row['peak_rss_bytes'] / 2**20:.0f} MiB", flush=True)

    def cap(self):
        """Trains under a memory limit that is smaller than the rows of all processes together."""
        cap, more = self.options.cap, ["train.epochs=2"]
        for way in ("naive", "decoupled"):
            settings = [*WAYS[way], *more, *self.options.cap_settings, f"train.memory={size(cap) // self.options.processes}B"]
            rows = sum(process["memory"]["tables"] for process in self.plan([*WAYS[way], *more, *self.options.cap_settings])["processes"])
            row = {"part": "cap", "case": way, "settings": settings, "cap_bytes": size(cap), "table_bytes": rows}
            seconds, peak = Group(size(cap)).run([word for word in self.arguments(settings) if word != "--json"])
            summary = json.loads((self.work / "run" / "summary.json").read_text())
            row |= {"seconds": round(seconds, 1), "cgroup_peak_bytes": peak, "epoch_seconds": summary["seconds"]["per_epoch"]}
            self.rows.append(row)
            print(f"cap        {way:18} {rows / 2**20:9.1f} MiB of rows under {cap}: peak {peak / 2**20:.0f} MiB, {row['epoch_seconds']} s", flush=True)


def picture(rows, part, title):
    """Plots the bytes per epoch over the varied value as SVG."""
    lines = {}
    for row in rows:
        if row["part"] == part and "refused" not in row:
            way, value = row["case"].rsplit(" ", 1)
            lines.setdefault(way, []).append((int(value), row["bytes_per_epoch"] / 2**20))
    places = sorted({value for line in lines.values() for value, _ in line})
    if not places:
        return None
    top = max(y for line in lines.values() for _, y in line) or 1
    x = lambda value: 60 + 440 * places.index(value) / max(len(places) - 1, 1)
    y = lambda value: 260 - 220 * value / top
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="620" height="300" font-family="sans-serif" font-size="12">',
             '<rect width="620" height="300" fill="white"/>', f'<text x="60" y="20">{title}</text>', '<path d="M60 30V260H510" fill="none" stroke="#999"/>']
    parts += [f'<text x="{x(place) - 10:.0f}" y="278">{place}</text>' for place in places]
    parts += [f'<text x="8" y="{y(value) + 4:.0f}">{value:.0f}</text>' for value in (0, top / 2, top)]
    for way, line in lines.items():
        points = " ".join(f"{x(value):.1f},{y(mib):.1f}" for value, mib in sorted(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[way]}" stroke-width="1.5"/>')
        parts.append(f'<text x="520" y="{y(sorted(line)[-1][1]) + 4:.0f}" fill="{COLORS[way]}">{way}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="balance,layers,dimensions,chunks,pipelining,cap")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--method", default="multilevel")
    parser.add_argument("--layers", default="2,3,4")
    parser.add_argument("--dimensions", default="128,256,512,1024")
    parser.add_argument("--chunks", default="8MiB,32MiB,128MiB,512MiB")
    parser.add_argument("--pipelining", default="train.schedule.pipelined=true,train.schedule.pipelined=false", help="settings that are compared")
    parser.add_argument("--cap", default="1GiB", help="of all processes together, page cache included; train.memory is each one's share")
    parser.add_argument("--cap-settings", nargs="*", default=["model.hidden=512", "train.schedule.intervals=16", "train.schedule.chunk_memory=16MiB"])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, only = build(), options.only.split(",")
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        pipeline = work / "p.toml"
        pipeline.write_text(PIPELINE.format(scratch=work, method=options.method, parts=options.processes))
        for keys in ([], EQUAL):
            subprocess.run([*map(str, [binary, "prepare", pipeline, "--quiet", *sets([*options.set, *keys])])], check=True, stdout=subprocess.DEVNULL)
        bench = Bench(binary, pipeline, work, options)
        if "balance" in only:
            bench.compare("balance", WAYS)
        if "layers" in only:
            bench.compare("layers", {f"{way} {n}": [*keys, f"model.layers={n}"] for way, keys in WAYS.items() for n in options.layers.split(",")})
        if "dimensions" in only:
            wide = {f"{way} {n}": [*keys, f"model.hidden={n}"] for way, keys in WAYS.items() for n in options.dimensions.split(",")}
            bench.compare("dimensions", wide)
        if "chunks" in only:
            bench.compare("chunks", {f"decoupled {n}": [*WAYS["decoupled"], f"train.schedule.chunk_memory={n}"] for n in options.chunks.split(",")})
        if "pipelining" in only:
            bench.compare("pipelining", {key: [*WAYS["decoupled"], "train.schedule.chunk_memory=32MiB", key] for key in options.pipelining.split(",")})
        if "cap" in only:
            bench.cap()
        rows = bench.rows
    result = about("tensor parallel") | {"processes": options.processes, "method": options.method, "set": options.set, "results": rows}
    path = write(result, "tensor-parallel", options.out)
    for part, title in [("layers", "MiB moved in an epoch, by layers"), ("dimensions", "MiB moved in an epoch, by columns of a row")]:
        drawn = picture(rows, part, title)
        if drawn:
            path.with_name(f"{path.stem}-{part}.svg").write_text(drawn)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
