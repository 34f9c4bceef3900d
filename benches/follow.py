#!/usr/bin/env python3
"""Applies thousands of batches of changes with `gnnflow follow`: seconds of a batch, memory, equal results, also after kills.

    benches/follow.py [--nodes 20000] [--edges 100000] [--batches 10000] [--changes 1000] [--check-every 500] [--kills 50] [--processes 1]

Needs pyarrow. A planted graph is generated, and a model is trained. A batch has 1 to CHANGES changed edges (small numbers are as frequent as large ones), half of them
removed, a new node with its edge in every tenth batch, new features of a node in every seventh, and a removed node in every twentieth. All batches are there at the beginning, so a batch never waits. Every CHECK_EVERY batches, the dataset is
updated; then its Arrow files and predictions must have the bytes of `gnnflow update` with each of the batches and `gnnflow infer`. With kills, a second process, which
stores after every 20th batch, is killed (SIGKILL) and started again so many times, at random moments; the results of all batches must then have the bytes of the first process, which is never
killed, and whose seconds and memory are reported. `killed_after` has the number of complete batches at each kill. The result is written to benches/runs/<date>-follow.json.
"""
import argparse, json, os, pathlib, random, shutil, signal, subprocess, sys, tempfile, time

from program import about, build, timed, write

try:
    import pyarrow as arrow
    import pyarrow.parquet as parquet
except ImportError:
    sys.exit("error: benches/follow.py needs pyarrow; run it with a Python that has it")


def percentiles(values):
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    return {"batches": len(values), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": values[-1]}


def resident(process):
    """Returns the resident anonymous memory of a process in MiB: without pages of mapped files, which the system may take back."""
    try:
        lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), None)


class Batches:
    """Draws batches of changes."""

    def __init__(self, dump, folder, most):
        table = parquet.read_table(dump / "edges.parquet", columns=["src", "dst"])
        pairs = zip(table["src"].to_pylist(), table["dst"].to_pylist())
        # A list for drawing, and the places in it.
        self.edges = sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})
        self.nodes_table = parquet.read_table(dump / "nodes.parquet")
        self.nodes = list(range(self.nodes_table.num_rows))
        self.next = len(self.nodes)
        self.present, self.folder, self.most, self.draw, self.count = set(self.edges), folder, most, random.Random(11), 0

    def write_node(self, path, node, names):
        """Writes columns of a node, with the values of a random one of the first graph."""
        of = self.nodes_table.slice(self.draw.randrange(self.nodes_table.num_rows), 1)
        columns = {name: arrow.array([node], arrow.int64()) if name == "node_id" else of[name] for name in names}
        parquet.write_table(arrow.table(columns, schema=arrow.schema([self.nodes_table.schema.field(name) for name in names])), path)

    def write(self):
        """Writes a batch. Returns its name and its number of changes."""
        self.count += 1
        name = f"{self.count:06}"
        folder = self.folder / name
        folder.mkdir(parents=True)
        changes = int(self.most ** self.draw.random())
        gone, come = [], []
        for _ in range(changes // 2):
            at = self.draw.randrange(len(self.edges))
            self.edges[at], self.edges[-1] = self.edges[-1], self.edges[at]
            gone.append(self.edges.pop())
        self.present.difference_update(gone)
        if self.count % 20 == 5:
            node = self.nodes.pop(self.draw.randrange(len(self.nodes)))
            parquet.write_table(arrow.table({"node_id": arrow.array([node], arrow.int64())}), folder / "remove_nodes.parquet")
            self.edges = [edge for edge in self.edges if node not in edge]
            self.present = set(self.edges)
        if self.count % 7 == 0:
            self.write_node(folder / "values.parquet", self.draw.choice(self.nodes), ["node_id", "features"])
        if self.count % 10 == 0:
            self.write_node(folder / "nodes.parquet", self.next, self.nodes_table.column_names)
            come.append((self.draw.choice(self.nodes), self.next))
            self.nodes.append(self.next)
            self.next += 1
        while len(come) < changes - len(gone):
            pair = self.draw.choice(self.nodes), self.draw.choice(self.nodes)
            come.append((min(pair), max(pair)))
        for edge in come:
            if edge[0] != edge[1] and edge not in self.present:
                self.present.add(edge)
                self.edges.append(edge)
        for file, pairs in [("remove", gone), ("edges", come)]:
            if pairs:
                src, dst = zip(*pairs)
                parquet.write_table(arrow.table({"src": arrow.array(src, arrow.int64()), "dst": arrow.array(dst, arrow.int64())}), folder / f"{file}.parquet")
        (folder / "_SUCCESS").touch()
        return name, changes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--check-every", type=int, default=500)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    if min(options.batches, options.changes, options.check_every, options.processes, options.parts) < 1:
        sys.exit("error: --batches, --changes, --check-every, --processes and --parts must be at least 1")
    binary = build()
    gnnflow = lambda *arguments: timed(binary, *arguments)

    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        dump, incoming = work / "dump", work / "incoming"
        sizes = ["--nodes", options.nodes, "--edges", options.edges, "--features", options.features, "--classes", 8, "--seed", 7]
        gnnflow("generate", "planted", "--out", dump, *sizes, "--quiet")
        (work / "p.toml").write_text(
            f'[graph]\nnodes = "{dump}/nodes.parquet"\nedges = "{dump}/edges.parquet"\nundirected = true\nduplicates = "drop"\n'
            f'[partition]\nparts = {options.parts}\nmethod = "multilevel"\nout = "{work}/plain"\n'
            f'[model]\nkind = "{options.model}"\nlayers = 2\nhidden = {options.hidden}\n'
            f"[train]\nepochs = 1\nevaluate_every = 0\nthreads = {options.threads}\nseed = 1\n[infer]\npredictions = true\n"
        )
        gnnflow("run", work / "p.toml", "--run-dir", work / "run", "--quiet")
        shutil.copytree(work / "plain", work / "whole" / "dataset")
        shutil.copytree(work / "plain", work / "killed" / "dataset")
        batches = Batches(dump, incoming, options.changes)
        changes = dict(batches.write() for _ in range(options.batches))
        print(f"{options.batches} batches written", flush=True)

        def follow(place, every):
            command = [binary, "follow", work / "run", "--changes", incoming, "--dataset", work / place / "dataset", "--out", work / place / "out", "--once", "--quiet",
                       "--store-every", every, "--processes", options.processes]
            return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def done(place):
            """Returns the number of batches whose results are complete."""
            try:
                return (work / place / "out" / "applied.txt").read_text().count("\n")
            except FileNotFoundError:
                return 0

        begin, memory, process = time.perf_counter(), [], follow("whole", options.check_every)
        while process.poll() is None:
            time.sleep(0.25)
            if (size := resident(process)) is not None:
                memory.append([done("whole"), round(size, 1)])
        if process.returncode:
            sys.exit(f"error: gnnflow follow: exit code {process.returncode}: {process.stderr.read()}")
        seconds = time.perf_counter() - begin
        manifests = {path.parent.name: json.loads(path.read_text()) for path in (work / "whole" / "out" / "batches").glob("*/manifest.json")}
        if sorted(manifests) != sorted(changes):
            sys.exit("error: some batches have no results")
        print(f"{seconds:.1f} s for {options.batches} batches", flush=True)

        killed_after = []
        if options.kills:
            draw = random.Random(12)
            # Each life adds about as many batches, so that the last kill is near the end.
            pause = 1.5 * seconds / (options.kills + 1)
            while True:
                process = follow("killed", 20)
                try:
                    process.wait(0.2 + draw.uniform(0.5, 1.5) * pause if len(killed_after) < options.kills else None)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    killed_after.append(done("killed"))
                    continue
                if process.returncode:
                    sys.exit(f"error: gnnflow follow: exit code {process.returncode}: {process.stderr.read()}")
                break
            for name in changes:
                files = [work / place / "out" / "batches" / name / "changes.parquet" for place in ["whole", "killed"]]
                if files[0].read_bytes() != files[1].read_bytes():
                    sys.exit(f"error: batch {name} has other results after {len(killed_after)} kills")
            print(f"killed after {killed_after} batches, equal results of all", flush=True)

        # The states of each store, from plain updates. The results of a batch are the last ones of its nodes.
        gnnflow("infer", work / "run", "--dataset", work / "plain", "--out", work / "full", "--quiet")
        checks, predictions = 0, table(work / "full" / "predictions.parquet", "prediction")
        for number, name in enumerate(changes, 1):
            batch = incoming / name
            files = [(f"--{name.replace('_', '-')}", batch / f"{name}.parquet") for name in ["nodes", "values", "remove", "remove_nodes", "edges"]]
            gnnflow("update", work / "plain", *[word for option, file in files if file.exists() for word in (option, file)], "--hops", 0, "--quiet")
            if number % options.check_every and number < options.batches:
                continue
            gnnflow("infer", work / "run", "--dataset", work / "plain", "--out", work / "full", "--quiet")
            now = table(work / "full" / "predictions.parquet", "prediction")
            then = dict(predictions)
            for earlier in list(changes)[checks * options.check_every:number]:
                then |= table(work / "whole" / "out" / "batches" / earlier / "changes.parquet", "prediction")
            # Removed nodes have no prediction.
            if {node: prediction for node, prediction in then.items() if prediction is not None} != now:
                sys.exit(f"error: the results of the batches up to {name} are not those of inference of all nodes")
            predictions, checks = now, checks + 1
            print(f"batch {name}: equal", flush=True)
        for place in ["whole", "killed"] if options.kills else ["whole"]:
            for file in [*sorted(path.relative_to(work / "plain") for path in (work / "plain").glob("part-*/*.arrow"))]:
                if (work / "plain" / file).read_bytes() != (work / place / "dataset" / file).read_bytes():
                    sys.exit(f"error: {file} differs")
            if (work / "full" / "predictions.parquet").read_bytes() != (work / place / "out" / "predictions.parquet").read_bytes():
                sys.exit("error: predictions differ")

        groups = {f"{low} to {high}": (low, high) for low, high in [(1, 9), (10, 99), (100, 999), (1000, 10**9)]}
        latencies = {}
        for group, (low, high) in groups.items():
            if values := [manifests[name]["seconds"] for name, count in changes.items() if low <= count <= high]:
                latencies[group] = percentiles(values)
                print(f"{group} changes: {latencies[group]}")
        steady = [size for batch, size in memory if batch > options.batches // 10]
        result = about("follow") | {
            "nodes": options.nodes, "edges": 2 * options.edges, "batches": options.batches, "changes": sum(changes.values()), "check_every": options.check_every,
            "checks": checks, "killed_after": killed_after, "processes": options.processes, "threads": options.threads, "model": options.model, "hidden": options.hidden,
            "parts": options.parts, "seconds": seconds, "seconds_of_batches": sum(one["seconds"] for one in manifests.values()), "latency": latencies,
            "changed_nodes": percentiles([one["changed_nodes"] for one in manifests.values()]),
            "memory_mib": {"first_tenth": max((size for batch, size in memory if batch <= options.batches // 10), default=None), "rest": max(steady, default=None),
                           "samples": memory[:: max(1, len(memory) // 100)]},
        }
        print(write(result, "follow", options.out))


def table(path, column):
    """Returns a column of a table of results, by node."""
    read = parquet.read_table(path, columns=["node_id", column])
    return dict(zip(read["node_id"].to_pylist(), read[column].to_pylist()))


if __name__ == "__main__":
    main()
