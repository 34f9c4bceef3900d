#!/usr/bin/env python3
"""Measures recommendations of 20 nodes to each node, beside the same lists by PyTorch.

    GNNFLOW_PEERS_PYTHON=<python with torch and pyarrow> benches/peers/recommend.py [--rounds 5] [--threads 2] [--out FILE]

Link prediction on an R-MAT graph of 65,536 nodes and 1 million drawn edges, each in both directions, rows of 64 numbers. gnnflow's time is that of `gnnflow infer` with
recommendations without that of `gnnflow infer` for the same rows alone, so that computing the rows is not part of it; finding the known edges and writing
recommendations.parquet are. PyTorch has the rows and the known edges in memory. It multiplies blocks of 2,048 sources with all nodes, sets the scores of known
edges and of the sources themselves to minus infinity, and takes the 20 largest. Its lists are compared with gnnflow's. The limit is the time of as many
multiplications by PyTorch, in products of 1,024 rows by 1,024, which stay in the cache. Both are bound to as many cores as threads and take turns. The result is written to benches/runs/<date>-recommend-beside-peers.json.
"""
import argparse, json, pathlib, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from contest import beside_torch, bound, need, run_python
from program import about, build, sets, write

PIPELINE = """
name = "recommend"
[graph]
generate = {{ kind = "rmat", scale = 16, edges = 1_000_000, features = 16, out = "{folder}/graph" }}
undirected = true
duplicates = "drop"
[partition]
parts = 1
out = "{folder}/dataset"
[model]
kind = "sage"
layers = 1
hidden = 64
[train]
task = "link-prediction"
epochs = 1
batch = 10_000
fanouts = [5]
evaluate_every = 0
threads = {threads}
[train.link]
num_negative_edges = 4
[infer]
predictions = false
embeddings = true
"""
LENGTH = 20

PEER = """
import json, sys, time
import numpy, pyarrow.parquet as parquet, torch
folder, dataset, threads, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
table = parquet.read_table(folder + "/embeddings.parquet")
rows = numpy.concatenate([chunk.flatten().to_numpy() for chunk in table["embedding"].chunks]).reshape(len(table), -1)
ids = table["node_id"].to_numpy()
order = numpy.argsort(ids)
place = lambda nodes: order[numpy.searchsorted(ids, nodes, sorter=order)]
edges = parquet.read_table(dataset)
src, dst = [place(edges[name].to_numpy()) for name in ("src", "dst")]
src, dst = numpy.concatenate([src, dst]), numpy.concatenate([dst, src])
by_source = numpy.argsort(src, kind="stable")
src, dst = torch.from_numpy(src[by_source]), torch.from_numpy(dst[by_source])
rows = torch.from_numpy(rows.copy())
columns, nodes, block = rows.T.contiguous(), len(rows), 2048
bounds = torch.searchsorted(src, torch.arange(0, nodes + block, block))

def products(block=1024):
    out, left, right = torch.empty(block, block), rows[:block], columns[:, :block].contiguous()
    begin = time.perf_counter()
    for _ in range((nodes // block) ** 2):
        torch.mm(left, right, out=out)
    return time.perf_counter() - begin

def run():
    begin, found = time.perf_counter(), []
    for number, first in enumerate(range(0, nodes, block)):
        scores = rows[first:first + block] @ columns
        known = slice(bounds[number], bounds[number + 1])
        scores[src[known] - first, dst[known]] = -float("inf")
        own = torch.arange(len(scores))
        scores[own, own + first] = -float("inf")
        found.append(scores.topk(length)[1])
    return time.perf_counter() - begin, found

run()
seconds, found = run()
table = parquet.read_table(folder + "/recommendations.parquet", columns=["src", "dst"])
ours = torch.from_numpy(place(table["dst"].to_numpy())[numpy.argsort(place(table["src"].to_numpy()), kind="stable")]).reshape(nodes, length)
theirs = torch.cat(found)
equal = (ours.sort(1)[0] == theirs.sort(1)[0]).all(1).float().mean()
print(json.dumps({"nodes": nodes, "edges": len(src), "seconds": seconds, "products_seconds": products(), "equal_lists": float(equal)}))
"""


def infer(program, folder, threads, more):
    """Computes results. Returns the seconds of inference with its files."""
    out = f"{folder}/{'with' if more else 'without'}"
    command = [str(program), "infer", f"{folder}/run", "--quiet", "--json", "--out", out, *sets([f"train.threads={threads}", *more])]
    done = subprocess.run([*bound(threads), *command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["seconds"]["infer"], out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    python = need("GNNFLOW_PEERS_PYTHON")
    program = build()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "p.toml").write_text(PIPELINE.format(folder=folder, threads=args.threads))
        subprocess.run([program, "run", f"{folder}/p.toml", "--quiet", "--run-dir", f"{folder}/run"], check=True, stdout=subprocess.DEVNULL)

        def measure():
            seconds, out = infer(program, folder, args.threads, [f"infer.recommendations={LENGTH}"])
            seconds -= infer(program, folder, args.threads, [])[0]
            peer = run_python(PEER, args.threads, python, out, f"{folder}/graph/edges.parquet", args.threads, LENGTH)
            if peer["equal_lists"] < 0.99:
                sys.exit(f"error: only {peer['equal_lists']:.1%} of the lists are equal")
            return seconds, peer

        peer, row = beside_torch(args.rounds, args.threads, measure)
    of_lists = {key: peer[key] for key in ("nodes", "edges", "equal_lists")} | {"length": LENGTH}
    result = about("recommend-beside-peers") | {"rounds": args.rounds, "results": [of_lists | row]}
    print(json.dumps(result, indent=1))
    print(write(result, "recommend-beside-peers", args.out))


if __name__ == "__main__":
    main()
