#!/usr/bin/env python3
"""Runs a graph with the shape of half of ogbn-papers100M on one machine, from Parquet to embeddings of all nodes, under a memory limit.

    benches/scale.py [--nodes 55000000] [--edges 400000000] [--parts 16] [--memory 20GiB] [--smaller 10] [--scratch DIR]

Planted classes, 128 features, stored as bf16. Stages: write the Parquet files, prepare, one mini-batch epoch of 3-layer GraphSAGE over 1.1 %
of the nodes, and exact inference with embeddings of all nodes. For each: seconds, the most memory of the process, the most disk of the work folder.
First, the same runs with a graph `--smaller` times smaller. Its times, multiplied, are the expected times; the expected memory is that of
`run --dry-run` for the large graph. The Parquet files are deleted when the dataset is ready.

Needs root, and 1.2 kB of disk per node (66 GB). The limit is a memory control group, which includes the page cache. One round: a run takes about
an hour on two cores. The result is written to benches/runs/<date>-scale.json.
"""
import argparse, json, pathlib, shutil, subprocess, sys, tempfile, threading, time

from memory_group import Group, size
from program import about, build, write

GRAPH = '[graph]\n{graph}\nfeature_dtype = "bf16"\nsplit_fractions = [0.011, 0.001, 0.002]\n'
PLANTED = 'generate = {{ kind = "planted", nodes = {nodes}, edges = {edges}, features = 128, classes = 32, homophily = 0.8, out = "{dump}" }}\nundirected = true'
PARTITION = '[partition]\nmethod = "{method}"\nparts = {parts}\nmemory = "8GiB"\nout = "{out}"\n'
TRAINING = """[model]
kind = "sage"
layers = 3
hidden = 64
dropout = 0.0
[train]
schedule = "mini-batch"
epochs = 1
batch = 1000
fanouts = [15, 10, 5]
evaluate_every = 0
[infer]
predictions = true
embeddings = true
"""


class Watch(threading.Thread):
    """Notes, every half second, the disk that a folder takes, the memory of a group without its page cache, and the stage."""

    def __init__(self, folder, group, stage):
        super().__init__(daemon=True)
        self.folder, self.group, self.stage = folder, group, stage
        self.begin, self.ends, self.most, self.over = time.perf_counter(), {}, {}, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            stage = self.stage()
            self.ends[stage] = time.perf_counter() - self.begin
            most = self.most.setdefault(stage, {"disk_bytes": 0, "anonymous_bytes": 0})
            most["disk_bytes"] = max(most["disk_bytes"], disk(self.folder))
            most["anonymous_bytes"] = max(most["anonymous_bytes"], anonymous(self.group))
            self.over.wait(0.5)

    def stages(self):
        """Ends. Returns, by stage, its seconds and maxima."""
        self.over.set()
        self.join()
        self.ends[self.stage()] = time.perf_counter() - self.begin
        last, stages = 0.0, {}
        for stage, end in self.ends.items():
            stages[stage] = {"seconds": round(end - last, 1)} | self.most.get(stage, {})
            last = end
        return stages


def disk(folder):
    """Returns the bytes of the blocks of all files, also of deleted ones that a process has open: the use of the file system."""
    found = subprocess.run(["df", "--output=used", "-B1", folder], stdout=subprocess.PIPE, text=True, check=True)
    return int(found.stdout.split()[1])


def anonymous(group):
    """Returns the bytes of a group that are not pages of files."""
    try:
        lines = dict(line.split() for line in (group.path / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(lines.get("anon", lines.get("total_rss", 0)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=55_000_000)
    parser.add_argument("--edges", type=int, default=400_000_000)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--method", default="spring")
    parser.add_argument("--memory", default="20GiB")
    parser.add_argument("--smaller", type=int, default=10)
    parser.add_argument("--scratch")
    parser.add_argument("--out")
    options = parser.parse_args()
    if not 2 <= options.smaller <= options.nodes:
        parser.error("--smaller: must be at least 2, and at most the number of nodes")
    binary, rows = build(), []
    for divisor in (options.smaller, 1):
        with tempfile.TemporaryDirectory(dir=options.scratch) as work:
            rows.append(run(binary, pathlib.Path(work), options, divisor))
            print(json.dumps(rows[-1], indent=1), flush=True)
    small, large = rows
    expected = {stage: round(options.smaller * found["seconds"], 1) for stage, found in small["stages"].items()}
    result = about("half of papers100M on one machine")
    result |= {"method": options.method, "parts": options.parts, "memory": options.memory, "rows": rows, "expected_seconds": expected}
    print(write(result, "scale", options.out))
    for stage, found in large["stages"].items():
        print(f"{stage:10} {found['seconds']:8.1f} s, expected {expected[stage]:8.1f} s, disk {found['disk_bytes'] / 1e9:5.1f} GB, memory {found['anonymous_bytes'] / 1e9:5.1f} GB")


def run(binary, work, options, divisor):
    """Runs all stages of one size."""
    nodes, edges, dump, out = options.nodes // divisor, options.edges // divisor, work / "dump", work / "dataset"
    partition = PARTITION.format(method=options.method, parts=options.parts, out=out)
    generated, prepared = work / "generate.toml", work / "train.toml"
    generated.write_text(GRAPH.format(graph=PLANTED.format(nodes=nodes, edges=edges, dump=dump)) + partition + TRAINING)
    prepared.write_text(f'[graph]\ndataset = "{out}"\n' + TRAINING)
    plan = json.loads(output([binary, "run", generated, "--dry-run", "--json"]))
    before = disk(work)
    row = {"nodes": nodes, "edge_rows": edges, "planned": {key: plan[key] for key in ("graph", "processes", "training", "window", "jobs")}}

    def watched(command, stage):
        """Runs a command under the limit with an empty page cache. Returns, by stage, its seconds and maxima."""
        subprocess.run(["sync"], check=True)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        group = Group(size(options.memory))
        watch = Watch(work, group, stage)
        seconds, peak = group.run(command)
        stages = watch.stages()
        for found in stages.values():
            found["disk_bytes"] -= before
            found["group_peak_bytes"] = peak
        return stages

    generate = [binary, "generate", "planted", "--out", dump, "--nodes", nodes, "--edges", edges, "--features", 128, "--classes", 32, "--homophily", 0.8]
    row["stages"] = watched([*generate, "--quiet"], lambda: "generate")
    row["dump_bytes"] = folder_bytes(dump)
    tables = f'nodes = "{dump}/nodes.parquet"\nedges = "{dump}/edges.parquet"\nundirected = true'
    tables_file = work / "prepare.toml"
    tables_file.write_text(GRAPH.format(graph=tables) + partition)
    row["stages"] |= watched([binary, "prepare", tables_file, "--quiet"], lambda: "prepare")
    report = json.loads((out / "partition.json").read_text())
    row["partition"] = {key: report[key] for key in ("peak_rss_bytes", "partition_seconds", "replication_factor", "edge_cut", "balance")}
    row["dataset_bytes"] = folder_bytes(out)
    shutil.rmtree(dump)
    metrics = work / "run" / "metrics.jsonl"
    stage = lambda: "inference" if metrics.exists() and metrics.stat().st_size else "epoch"
    row["stages"] |= watched([binary, "run", prepared, "--run-dir", work / "run", "--quiet"], stage)
    summary = json.loads((work / "run" / "summary.json").read_text())
    row["peak_rss_bytes"] = summary["peak_rss_bytes"]
    row["test"] = summary.get("test")
    row["outputs_bytes"] = folder_bytes(work / "run")
    row["summary_seconds"] = {key: value for key, value in summary.items() if key.endswith("seconds")}
    return row


def folder_bytes(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def output(command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
