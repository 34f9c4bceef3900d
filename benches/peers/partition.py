#!/usr/bin/env python3
"""Compares all partition methods and pymetis, each in a separate process.

    GNNFLOW_PEERS_PYTHON=<python with pymetis, numpy, pyarrow> \\
    benches/peers/partition.py NAME=FOLDER… [--methods random,spring,…] [--parts 4,8,16] [--memory 2GiB] [--rounds 1] [--out FILE]

A folder contains edges.parquet (src, dst: integers) and optionally nodes.parquet (node_id). Edges are undirected; duplicates and self
loops are dropped; a random half of the nodes is for training. "metis" is pymetis on a CSR in memory, with its bound on nodes: its seconds
exclude loading, and its peak memory includes the CSR. "multilevel nodes" has no other bound either. "metis bounds" is the METIS library inside
gnnflow with the bounds of "multilevel" as its constraints: nodes, in-edges and training nodes. The quality of all methods is measured by
`gnnflow prepare`, for METIS with `method = "file"`. The rates of passes are compared with those of the disk and the memory, measured
first. With --rounds, the methods take turns in both orders, and seconds are medians; ratios of seconds have the range over the rounds. The
result is written to benches/runs/<date>-partition.json, and a table to stdout.
"""
import argparse, json, os, pathlib, shutil, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import about, build, write

METHODS = ["random", "dbh", "greedy", "hdrf", "2ps-l", "2ps-l held", "ldg", "fennel", "spring", "spring refined", "multilevel nodes", "multilevel", "metis bounds"]
FREE = 'balance = { edges = "none", train = "none" }'
KEYS = {
    "2ps-l held": 'method = "2ps-l"\nhold_balance = true',
    "spring refined": 'method = "spring"\nrefine = 5',
    "multilevel nodes": f'method = "multilevel"\n{FREE}',
    "metis bounds": 'method = "metis"',
}

# The script of the METIS process: builds the CSR, or partitions it.
METIS = r'''
import json, resource, sys, time
import numpy as np
step, folder, work = sys.argv[1:4]
if step == "build":
    import pyarrow.parquet as pq
    table = pq.read_table(f"{folder}/edges.parquet", columns=["src", "dst"])
    ids = pq.read_table(f"{folder}/nodes.parquet", columns=["node_id"])["node_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    index = lambda column: order[np.searchsorted(ids[order], table[column].to_numpy())]
    src, dst = index("src"), index("dst")
    keep = src != dst
    low, high = np.minimum(src, dst)[keep], np.maximum(src, dst)[keep]
    key = np.unique(low * len(ids) + high)
    low, high = key // len(ids), key % len(ids)
    ends = np.concatenate([low, high]); starts = np.concatenate([high, low])
    place = np.argsort(starts, kind="stable")
    indptr = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(np.bincount(starts, minlength=len(ids)), out=indptr[1:])
    np.save(f"{work}/indptr.npy", indptr); np.save(f"{work}/indices.npy", ends[place]); np.save(f"{work}/ids.npy", ids)
else:
    import pymetis
    parts = int(sys.argv[4])
    indptr, indices = np.load(f"{work}/indptr.npy"), np.load(f"{work}/indices.npy")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.perf_counter()
    _, part = pymetis.part_graph(parts, adjacency=pymetis.CSRAdjacency(adj_starts=indptr, adjacent=indices))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    import pyarrow as pa, pyarrow.parquet as pq
    pq.write_table(pa.table({"node_id": np.load(f"{work}/ids.npy"), "part": np.asarray(part, np.int32)}), f"{work}/parts.parquet")
    print(json.dumps({"partition_seconds": seconds, "peak_rss_bytes": peak, "before_bytes": before}))
'''

# The script that measures memory copies, random reads, and writes and reads of a file.
RATES = r'''
import json, os, sys, time
import numpy as np
def best(work, repeats=5):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter(); work(); times.append(time.perf_counter() - begin)
    return min(times)
a = np.ones(1 << 27, np.uint64); b = np.zeros_like(a)
copied = 2 * a.nbytes / best(lambda: np.copyto(b, a))
places = np.random.default_rng(1).integers(0, len(a), 1 << 23)
at_random = len(places) / best(lambda: a.take(places))
path = sys.argv[1] + "/rate"
def write():
    with open(path, "wb") as file:
        file.write(memoryview(b)); file.flush(); os.fsync(file.fileno())
written = b.nbytes / best(write, 1)
fd = os.open(path, os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
def read():
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24): pass
read_cold = b.nbytes / best(read, 1)
os.remove(path)
print(json.dumps({"memory_copy_bytes_per_second": copied, "random_reads_per_second_one_thread": at_random,
    "disk_write_bytes_per_second": written, "disk_read_bytes_per_second": read_cold}))
'''


def toml(folder, parts, keys, memory):
    return (
        f'[graph]\nnodes = "{folder}/nodes.parquet"\nedges = "{folder}/edges.parquet"\nundirected = true\n'
        f'duplicates = "drop"\nself_loops = "drop"\ncolumns = {{ id = "node_id", features = "", label = "" }}\n'
        f'split_fractions = [0.5, 0.25, 0.25]\n'
        f'[partition]\n{keys}\nparts = {parts}\nmemory = "{memory}"\n'
    )


def prepare(binary, work, text):
    """Prepares in a separate process. Returns partition.json and None, or None and the error."""
    pipeline, out = work / "p.toml", work / "out"
    shutil.rmtree(out, ignore_errors=True)
    pipeline.write_text(text)
    done = subprocess.run([binary, "prepare", pipeline, "--out", out, "--quiet"], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    return json.loads((out / "partition.json").read_text()), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--parts", default="4,8,16")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-metis", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, python, rows = build(), os.environ.get("GNNFLOW_PEERS_PYTHON", sys.executable), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        (work / "metis.py").write_text(METIS)
        rates = json.loads(subprocess.run([python, "-c", RATES, scratch], check=True, stdout=subprocess.PIPE, text=True).stdout)
        for graph in options.graphs:
            name, folder = graph.split("=", 1)
            # METIS needs a table of nodes. If there is none, ids are 0, 1, 2, …
            if not (pathlib.Path(folder) / "nodes.parquet").exists():
                linked = work / name
                linked.mkdir()
                (linked / "edges.parquet").symlink_to(pathlib.Path(folder).resolve() / "edges.parquet")
                script = (
                    "import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq\n"
                    "t = pq.read_table(sys.argv[1] + '/edges.parquet', columns=['src', 'dst'])\n"
                    "n = 1 + max(t['src'].to_numpy().max(), t['dst'].to_numpy().max())\n"
                    "pq.write_table(pa.table({'node_id': np.arange(n)}), sys.argv[1] + '/nodes.parquet')\n"
                )
                subprocess.run([python, "-c", script, linked], check=True)
                folder = str(linked)
            if not options.no_metis:
                subprocess.run([python, work / "metis.py", "build", folder, scratch], check=True)
            for parts in options.parts.split(","):
                contests = options.methods.split(",") + ([] if options.no_metis else ["metis"])
                measured = {}
                turns = [method for number in range(options.rounds) for method in contests[:: -1 if number % 2 else 1]]
                for method in turns:
                    keys, cost = KEYS.get(method, f'method = "{method}"'), {}
                    if method == "metis":
                        run = [python, work / "metis.py", "cut", folder, scratch, parts]
                        cost = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)
                        keys = f'method = "file"\nfile = "{scratch}/parts.parquet"'
                    found, why = prepare(binary, work, toml(folder, parts, keys, options.memory))
                    if found is None:
                        print(f"{name} {parts} {method}: no result: {why}", file=sys.stderr)
                        measured[method] = measured.get(method) or {"graph": name, "parts": int(parts), "method": method, "why": why}
                        continue
                    kept = ["edge_cut", "replication_factor", "balance", "seconds", "partition_seconds", "partition_bytes"]
                    row = {"graph": name, "parts": int(parts), "method": method} | {key: found[key] for key in kept}
                    row |= {"peak_rss_bytes": found["peak_rss_bytes"], "passes": found["passes"]} | cost
                    show(row)
                    seconds = [*measured.get(method, {}).get("rounds", []), row["partition_seconds"]]
                    measured[method] = row | {"partition_seconds": statistics.median(seconds), "rounds": seconds}
                rows += measured.values()
    summary = compare(rows) | {"passes of multilevel on the largest graph": passes(rows, rates)}
    rates = {name: round(rate) for name, rate in rates.items()}
    result = about("partition beside METIS") | {"memory": options.memory, "rates": rates, "summary": summary, "results": rows}
    write(result, "partition", options.out)
    print(json.dumps(summary, indent=1))


def show(row):
    balance = row["balance"]
    print(
        f"{row['graph']:16} {row['parts']:3} {row['method']:15} rf {row['replication_factor']:7.3f}  cut {row['edge_cut']:.3f}  "
        f"nodes {balance['nodes']:.3f} edges {balance['edges']:.3f} train {balance['train']:.3f}  {row['partition_seconds']:8.2f} s  peak {row['peak_rss_bytes'] / 2**20:7.0f} MiB  "
        f"method {row.get('partition_bytes', 0) / 2**20:6.0f} MiB",
        flush=True,
    )


def compare(rows):
    """Returns the ratios between methods."""
    by = {(r["graph"], r["parts"], r["method"]): r for r in rows if "why" not in r}
    cases = sorted({key[:2] for key in by})
    def ratios(method, other, what):
        pairs = [(by.get((*case, method)), by.get((*case, other))) for case in cases]
        found = {f"{c[0]} {c[1]}": round(a[what] / b[what], 4) for c, (a, b) in zip(cases, pairs) if a and b and b[what]}
        if not found:
            return None
        result = {"mean": round(sum(found.values()) / len(found), 4), "worst": max(found.values()), "cases": found}
        if what == "partition_seconds":
            by_round = {f"{c[0]} {c[1]}": [x / y for x, y in zip(a["rounds"], b["rounds"]) if y] for c, (a, b) in zip(cases, pairs) if a and b}
            result["ranges"] = {case: [round(min(found), 4), round(max(found), 4)] for case, found in by_round.items() if found}
        return result
    summary = {}
    for other in ["dbh", "greedy", "hdrf", "2ps-l"]:
        summary[f"spring over {other}"] = {w: ratios("spring", other, w) for w in ["replication_factor", "partition_seconds"]}
    for method, peer in [("multilevel nodes", "metis"), ("spring", "metis"), ("multilevel", "metis bounds")]:
        whats = ["replication_factor", "partition_seconds", "peak_rss_bytes"]
        summary[f"{method} over {peer}"] = {w: ratios(method, peer, w) for w in whats}
    balance = {f"{c[0]} {c[1]}": {m: by[(*c, m)]["balance"]["edges"] for m in ["multilevel", "metis bounds"] if (*c, m) in by} for c in cases}
    summary["edges of the largest part over the mean"] = balance
    state = {
        f"{c[0]} {c[1]}": round(by[(*c, "spring")]["partition_bytes"] / by[(*c, "metis")]["peak_rss_bytes"], 4)
        for c in cases if (*c, "spring") in by and (*c, "metis") in by
    }
    summary["spring's partitioner memory over metis's peak"] = state
    return summary


# Bytes per edge of a pass: a pair has 8, and a record of a bucket 8 per read or write.
BYTES = {"reading edges": 8, "sorting edges into buckets": 24, "writing edges": 12}


def passes(rows, rates):
    """Returns, for each pass, edges per second, and its rate in bytes relative to disk reads and memory copies."""
    found = [row for row in rows if row["method"] == "multilevel" and "why" not in row]
    if not found:
        return None
    largest = max(found, key=lambda row: max(p["items"] for p in row["passes"]))
    of = {}
    for each in largest["passes"]:
        if each["unit"] == "edges" and each["seconds"] > 0:
            rate = each["items"] / each["seconds"]
            bytes = rate * BYTES.get(each["name"], 8)
            of[each["name"]] = {
                "edges_per_second": round(rate),
                "of_disk_read": round(bytes / rates["disk_read_bytes_per_second"], 3),
                "of_memory_copy": round(bytes / rates["memory_copy_bytes_per_second"], 3),
            }
    return {"graph": largest["graph"], "parts": largest["parts"]} | of


if __name__ == "__main__":
    main()
