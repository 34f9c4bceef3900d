#!/usr/bin/env python3
"""Measures the ranking of held-out edges among drawn candidates, beside the same products of matrices in PyTorch.

    GNNFLOW_PEERS_PYTHON=<python with torch and pyarrow> benches/peers/ranking.py [--rounds 5] [--threads 2] [--out FILE]

Link prediction on an R-MAT graph: 359 thousand held-out edges, both ends among 1,000 nodes, rows of 64 numbers. gnnflow's time is that of an evaluation
among 1,000 nodes without that of an evaluation among 1 node, so that computing the rows is not part of it. PyTorch reads gnnflow's
rows and edges, multiplies blocks of queries and candidates, and counts the higher and the equal scores; it leaves out no known ends.
gnnflow scores a node that is an
end of several edges once, PyTorch once per edge. The limit is the time of PyTorch's products of all distinct ends, 1,024 at a time, with 1,000 candidates, which stay in
the cache. Both are bound to as many cores as threads and take turns.
The result is written to benches/runs/<date>-ranking-beside-peers.json.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from contest import beside_torch, bound, need, run_python
from program import about, build, sets, write

PIPELINE = """
name = "ranking"
[graph]
generate = {{ kind = "rmat", scale = 18, edges = 930_000, features = 16, out = "{folder}/graph" }}
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
batch = 100_000
fanouts = [2]
threads = {threads}
[train.link]
num_negative_edges = 1
[infer]
predictions = true
embeddings = true
"""
AMONG = 1000

PEER = """
import json, sys, time
import numpy, pyarrow.parquet as parquet, torch
folder, threads, among, lists = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 16
torch.set_num_threads(threads)
table = parquet.read_table(folder + "/embeddings.parquet")
rows = numpy.concatenate([chunk.flatten().to_numpy() for chunk in table["embedding"].chunks]).reshape(len(table), -1)
place = {node: i for i, node in enumerate(table["node_id"].to_pylist())}
edges = parquet.read_table(folder + "/predictions.parquet")
src, dst = [torch.tensor([place[node] for node in edges[name].to_pylist()]) for name in ("src", "dst")]
rows = torch.from_numpy(rows.copy())
queries, ends = torch.cat([src, dst]), torch.cat([dst, src])
order = torch.argsort(queries % lists)
queries, ends = queries[order], ends[order]
candidates = [rows[torch.randint(len(rows), (among,))].T.contiguous() for _ in range(lists)]

def products(block=1024):
    out, vectors = torch.empty(block, among), rows[queries[:block]]
    begin = time.perf_counter()
    for _ in range(len(queries.unique()) // block):
        torch.mm(vectors, candidates[0], out=out)
    return time.perf_counter() - begin

def run():
    begin, higher, equal = time.perf_counter(), 0, 0
    for number in range(lists):
        chosen = (queries % lists == number).nonzero().squeeze(1)
        for part in chosen.split(4096):
            vectors = rows[queries[part]]
            scores = vectors @ candidates[number]
            own = (vectors * rows[ends[part]]).sum(1, keepdim=True)
            higher += int((scores > own).sum(1).sum())
            equal += int((scores == own).sum(1).sum())
    return time.perf_counter() - begin

run()
print(json.dumps({"edges": len(src), "seconds": run(), "products_seconds": products()}))
"""


def evaluate(program, folder, threads, among):
    """Runs one epoch with an evaluation among `among` nodes. Returns its seconds."""
    command = [str(program), "run", f"{folder}/p.toml", "--quiet", "--run-dir", f"{folder}/run-{among}",
               *sets([f"train.link.num_negative_edges_eval={among}"])]
    subprocess.run([*bound(threads), *command], check=True, stdout=subprocess.DEVNULL)
    return json.loads(pathlib.Path(folder, f"run-{among}", "metrics.jsonl").read_text().splitlines()[0])["evaluate_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    python = need("GNNFLOW_PEERS_PYTHON")
    program = os.environ.get("GNNFLOW_BENCH_PROGRAM") or build()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "p.toml").write_text(PIPELINE.format(folder=folder, threads=args.threads))

        def measure():
            seconds = evaluate(program, folder, args.threads, AMONG) - evaluate(program, folder, args.threads, 1)
            return seconds, run_python(PEER, args.threads, python, f"{folder}/run-{AMONG}", args.threads, AMONG)

        peer, row = beside_torch(args.rounds, args.threads, measure)
    result = about("ranking-beside-peers") | {"rounds": args.rounds, "results": [{"edges": peer["edges"], "among": AMONG} | row]}
    print(json.dumps(result, indent=1))
    print(write(result, "ranking-beside-peers", args.out))


if __name__ == "__main__":
    main()
