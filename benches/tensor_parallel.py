#!/usr/bin/env python3
"""Node-parallel and column-parallel full-graph training (NeutronTP, Fig. 10 to 14, and Tables 3 and 4).

    benches/tensor_parallel.py [--only layers,features,hidden,row_dtype,workers,chunks,pipelining,rgcn,link,cap] [--rounds 5] [--set graph.generate.nodes=262144 …]

layers      2, 4 and 8 layers
features    features of 128, 256, 512 and 1024 columns
hidden      hidden rows of 128, 256, 512 and 1024 columns
row_dtype   hidden rows of 128 and 512 columns, in f32 and in bf16
workers     2, 4, 8 and 16 workers: what `gnnflow simulate` predicts for as many hosts of one core, with a link of 25 Gbit/s and 0.05 ms, from a traced
            run of as many processes on this machine
chunks      `decoupled` and `naive` with rows of 512 columns: peak memory and seconds for several values of `train.schedule.chunk_memory`
pipelining  `decoupled` with and without sending chunks during computation
rgcn        R-GCN of two relations, an edge and its reverse
link        link prediction on 16,384 nodes
cap         `decoupled` and `naive` on a graph whose rows exceed a memory limit that the kernel enforces; needs root
            (with `--set graph.generate.features=512 --set graph.generate.classes=256 --processes 4` rows take 1.25 GiB)

GCN of 2 layers on a skewed graph (R-MAT), with one process of one thread for each partition. `node-parallel` is schedule "full-graph" on
partitions with equal numbers of nodes and in-edges. `skewed` is the same on partitions with equal numbers of nodes only. `naive` is
"tensor-parallel" with an exchange at every layer, and `decoupled` with one exchange; both have equally many nodes per process. Each row has
the bytes that each process sends per epoch and its edges × columns. Cases run in turns, in both orders. Epoch seconds are medians over
rounds of the median without the first epoch. The result is written to benches/runs/<date>-tensor-parallel.json, with SVGs.
"""
import argparse, hashlib, json, os, pathlib, statistics, subprocess, sys, tempfile

from memory_group import Group, size
from program import about, build, sets, write

PIPELINE = """
name = "tensor-parallel"
[graph]
generate = {{ kind = "rmat", nodes = 131_072, edge_factor = 16, features = 128, classes = 64, split = [0.6, 0.2, 0.2] }}
undirected = true
[partition]
parts = {parts}
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
PARTITIONS = {
    "balanced": ["partition.method=multilevel"],
    "skewed": ["partition.method=multilevel", "partition.balance.edges=none", "partition.balance.train=none"],
    "equal": ["partition.method=range"],
}
WAYS = {
    "node-parallel": ("balanced", ["train.schedule=full-graph"]),
    "skewed": ("skewed", ["train.schedule=full-graph"]),
    "naive": ("equal", ["train.schedule=tensor-parallel", "model.decoupled=false"]),
    "decoupled": ("equal", ["train.schedule=tensor-parallel", "model.decoupled=true"]),
    # For models without a decoupled variant.
    "column-parallel": ("equal", ["train.schedule=tensor-parallel"]),
}
VARIED = ("node-parallel", "skewed", "naive", "decoupled")
COLORS = {"node-parallel": "#444", "skewed": "#999", "naive": "#1b6ca8", "decoupled": "#d1495b"}
PARTS = ("layers", "features", "hidden", "row_dtype", "workers", "chunks", "pipelining", "rgcn", "link", "cap")
LINK = ["--bandwidth", "3125MB", "--latency", "0.05"]
# Settings of the parts with other graphs.
RELATIONS = ["graph.undirected=false", "graph.reverse_edges=true", "model.kind=rgcn"]
LINKS = ["graph.generate.nodes=16384", "train.task=link-prediction", "train.batch=65536"]


def spread(values):
    """Returns the ratio of the largest to the smallest value."""
    return round(max(values) / max(min(values), 1), 4)


def numbers(text):
    """Reads numbers with commas between them, for argparse."""
    return [int(number) for number in text.split(",")]


class Bench:
    def __init__(self, binary, pipeline, work, options):
        self.binary, self.pipeline, self.work, self.options = binary, pipeline, work, options
        self.rows, self.prepared = [], set()

    def save(self):
        """Writes the rows so far, and returns the path."""
        options = self.options
        result = about("tensor parallel") | {"processes": options.processes, "rounds": options.rounds, "set": options.set, "results": self.rows}
        return write(result, "tensor-parallel", options.out)

    def settings(self, way, more=()):
        """Returns all settings of a case. Prepares its dataset the first time; cases with equal graphs and partitions share it."""
        partitions, keys = WAYS[way]
        graph = [*self.options.set, *(key for key in more if key.startswith(("graph.", "partition.")))]
        number = hashlib.sha256(" ".join([partitions, *graph]).encode()).hexdigest()[:12]
        keys = [*self.options.set, *PARTITIONS[partitions], *keys, *more, f"partition.out={self.work}/{number}"]
        if number not in self.prepared:
            subprocess.run([*map(str, [self.binary, "prepare", self.pipeline, "--quiet", *sets(keys)])], check=True, stdout=subprocess.DEVNULL)
            self.prepared.add(number)
        return keys

    def arguments(self, settings):
        return [self.binary, "run", self.pipeline, "--run-dir", self.work / "run", "--quiet", "--json", "--processes", self.options.processes,
                *sets(settings)]

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
        """Runs all cases in turn, once per round, and adds a row for each. `cases` has a way and more settings by name."""
        cases = {name: (way, more, self.settings(way, more)) for name, (way, more) in cases.items()}
        found = {name: [] for name in cases}
        for number in range(self.options.rounds):
            for name in sorted(cases, reverse=number % 2 == 1):
                summary, why = self.run(cases[name][2])
                if summary is None:
                    print(f"{part}, {name}: {why}", file=sys.stderr, flush=True)
                found[name].append(why if summary is None else summary)
        for name, runs in found.items():
            way, more, _ = cases[name]
            row = {"part": part, "case": name, "way": way, "settings": list(more)}
            if isinstance(runs[0], str):
                self.rows.append(row | {"refused": runs[0]})
                continue
            workers = runs[0]["workers"]
            sent, added = [round(worker["bytes_per_step"]) for worker in workers], [worker["edge_numbers"] for worker in workers]
            seconds = [statistics.median(run["seconds"]["per_epoch"][1:]) for run in runs]
            row |= {"bytes": sent, "edge_numbers": added, "table_bytes": [worker["table_bytes"] for worker in workers],
                    "bytes_most_over_least": spread(sent), "edge_numbers_most_over_least": spread(added),
                    "bytes_per_epoch": runs[0]["bytes_per_step"], "rounds_per_epoch": runs[0]["rounds_per_step"],
                    "epoch_seconds": round(statistics.median(seconds), 4), "seconds_by_round": [round(s, 4) for s in seconds],
                    "peak_rss_bytes": max(max(run["peak_rss_bytes"]) for run in runs)}
            self.rows.append(row)
            print(f"{part:10} {name:18} {row['bytes_per_epoch'] / 2**20:9.1f} MiB an epoch (most over least {row['bytes_most_over_least']}), "
                  f"edges × columns {row['edge_numbers_most_over_least']}, {row['rounds_per_epoch']:.0f} rounds, {row['epoch_seconds']:.3f} s "
                  f"({min(seconds):.3f} to {max(seconds):.3f}), peak {row['peak_rss_bytes'] / 2**20:.0f} MiB", flush=True)
        self.save()

    def workers(self, numbers):
        """Predicts the epochs of hosts, from traced runs in turn."""
        cases = [(way, number) for number in numbers for way in VARIED]
        settings = {(way, number): self.settings(way, [f"partition.parts={number}"]) for way, number in cases}
        predictions = {case: [] for case in cases}
        for turn in range(self.options.rounds):
            for way, number in cases[:: -1 if turn % 2 else 1]:
                run = [self.binary, "run", self.pipeline, "--run-dir", self.work / "traced", "--quiet", "--processes", number,
                       *sets([*settings[way, number], "train.trace=true"])]
                subprocess.run([*map(str, run)], check=True, stdout=subprocess.DEVNULL)
                simulate = [self.binary, "simulate", self.work / "traced", "--json", "--quiet", "--hosts", number, "--cores", 1, "--threads", 1, *LINK]
                printed = subprocess.run([*map(str, simulate)], check=True, stdout=subprocess.PIPE, text=True).stdout
                predictions[way, number].append(json.loads(printed)["predictions"][0])
        for (way, number), found in predictions.items():
            seconds = [prediction["epoch_seconds"] for prediction in found]
            path = {part["name"]: round(part["seconds"] / seconds[-1], 2) for part in found[-1]["critical_path"][:3]}
            row = {"part": "workers", "case": f"{way} {number}", "way": way, "hosts": number, "predicted_epoch_seconds": round(statistics.median(seconds), 4),
                   "seconds_by_round": [round(second, 4) for second in seconds], "critical_path": path}
            self.rows.append(row)
            print(f"workers    {row['case']:18} {row['predicted_epoch_seconds']:.3f} s ({min(seconds):.3f} to {max(seconds):.3f}) {path}", flush=True)
        self.save()

    def cap(self):
        """Trains under a memory limit that is smaller than the rows of all processes together."""
        cap, more = self.options.cap, ["train.epochs=2"]
        for way in ("naive", "decoupled"):
            free = self.settings(way, [*more, *self.options.cap_settings])
            settings = [*free, f"train.memory={size(cap) // self.options.processes}B"]
            rows = sum(process["memory"]["tables"] for process in self.plan(free)["processes"])
            row = {"part": "cap", "case": way, "way": way, "settings": [*more, *self.options.cap_settings], "cap_bytes": size(cap), "table_bytes": rows}
            seconds, peak = Group(size(cap)).run([word for word in self.arguments(settings) if word != "--json"])
            summary = json.loads((self.work / "run" / "summary.json").read_text())
            row |= {"seconds": round(seconds, 1), "cgroup_peak_bytes": peak, "epoch_seconds": summary["seconds"]["per_epoch"]}
            self.rows.append(row)
            print(f"cap        {way:18} {rows / 2**20:9.1f} MiB of rows under {cap}: peak {peak / 2**20:.0f} MiB, {row['epoch_seconds']} s", flush=True)


def picture(rows, part, title):
    """Plots the seconds of an epoch over the varied value as SVG."""
    lines = {}
    for row in rows:
        if row["part"] == part and "refused" not in row:
            lines.setdefault(row["way"], []).append((int(row["case"].rsplit(" ", 1)[1]), row["epoch_seconds"]))
    places = sorted({value for line in lines.values() for value, _ in line})
    if not places:
        return None
    top = max(y for line in lines.values() for _, y in line) or 1
    x = lambda value: 60 + 440 * places.index(value) / max(len(places) - 1, 1)
    y = lambda value: 260 - 220 * value / top
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="620" height="300" font-family="sans-serif" font-size="12">',
             '<rect width="620" height="300" fill="white"/>', f'<text x="60" y="20">{title}</text>', '<path d="M60 30V260H510" fill="none" stroke="#999"/>']
    parts += [f'<text x="{x(place) - 10:.0f}" y="278">{place}</text>' for place in places]
    parts += [f'<text x="8" y="{y(value) + 4:.0f}">{value:.2f}</text>' for value in (0, top / 2, top)]
    for way, line in lines.items():
        points = " ".join(f"{x(value):.1f},{y(mib):.1f}" for value, mib in sorted(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[way]}" stroke-width="1.5"/>')
        parts.append(f'<text x="520" y="{y(sorted(line)[-1][1]) + 4:.0f}" fill="{COLORS[way]}">{way}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--layers", default="2,4,8")
    parser.add_argument("--features", default="128,256,512,1024")
    parser.add_argument("--hidden", default="128,256,512,1024")
    parser.add_argument("--workers", type=numbers, default="2,4,8,16")
    parser.add_argument("--chunks", default="8MiB,32MiB,128MiB,512MiB")
    parser.add_argument("--cap", default="1GiB", help="of all processes together, page cache included; train.memory is each one's share")
    parser.add_argument("--cap-settings", nargs="*", default=["model.hidden=512", "train.schedule.intervals=16", "train.schedule.chunk_memory=16MiB"])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error("--rounds: must be at least 1")
    binary = build()
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        pipeline = work / "p.toml"
        pipeline.write_text(PIPELINE.format(parts=options.processes))
        bench = Bench(binary, pipeline, work, options)
        for part, key in [("layers", "model.layers"), ("features", "graph.generate.features"), ("hidden", "model.hidden")]:
            if part in only:
                values = getattr(options, part).split(",")
                bench.compare(part, {f"{way} {value}": (way, [f"{key}={value}"]) for way in VARIED for value in values})
        if "row_dtype" in only:
            keys = lambda hidden, kind: [f"model.hidden={hidden}", f"train.schedule.row_dtype={kind}"]
            bench.compare("row_dtype", {f"{way}, {hidden} columns, {kind}": (way, keys(hidden, kind))
                                     for way in ("node-parallel", "naive", "decoupled") for hidden in (128, 512) for kind in ("f32", "bf16")})
        if "workers" in only:
            bench.workers(options.workers)
        if "chunks" in only:
            keys = lambda chunk: ["model.hidden=512", f"train.schedule.chunk_memory={chunk}"]
            bench.compare("chunks", {f"{way} {chunk}": (way, keys(chunk)) for way in ("naive", "decoupled") for chunk in options.chunks.split(",")})
        if "pipelining" in only:
            keys = lambda pipelined: ["train.schedule.chunk_memory=32MiB", f"train.schedule.pipelined={pipelined}"]
            bench.compare("pipelining", {f"decoupled, pipelined {value}": ("decoupled", keys(value)) for value in ("true", "false")})
        for part, keys, columns in [("rgcn", RELATIONS, "column-parallel"), ("link", LINKS, "naive")]:
            if part in only:
                bench.compare(part, {way: (way, keys) for way in ("node-parallel", "skewed", columns)})
        if "cap" in only:
            bench.cap()
        rows = bench.rows
    path = bench.save()
    for part, title in [("layers", "Seconds of an epoch, by layers"), ("features", "Seconds of an epoch, by columns of features"), ("hidden", "Seconds of an epoch, by hidden columns")]:
        drawn = picture(rows, part, title)
        if drawn:
            path.with_name(f"{path.stem}-{part}.svg").write_text(drawn)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
