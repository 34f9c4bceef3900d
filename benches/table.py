#!/usr/bin/env python3
"""Writes docs/book/src/benchmarks.md from the newest comparisons with peers in benches/runs, and schedules-compared.md from the newest
comparison of schedules. `--check` only compares the pages.

    benches/table.py [--check]
"""
import argparse, json, pathlib, sys

import schedules_page
from program import ROOT

RUNS = ROOT / "benches" / "runs"
PAGE = ROOT / "docs" / "book" / "src" / "benchmarks.md"
ABOUT = """# Benchmarks

gnnflow beside DGL, GraphBolt and PyG: each row is one run in which the systems take turns on the same two cores (AMD EPYC or Intel Xeon, 24 GB of memory, a
virtual machine whose host has other guests). The memory bandwidth of these hosts differs by a factor of two, and so do the figures; compare ratios,
not rows of different days.

- The graph is an R-MAT graph of the size of ogbn-products (2,449,029 nodes, 123.7 million directed edges, 100 features), unless a row names another.
- In full-graph training, the other systems compute the last layer of all nodes. gnnflow computes it for nodes with a loss only, 8 per cent here.
- Where our rows are in bf16, those of the other systems are in f32.
- *Of the limit* is gnnflow's rate over what the machine allows. For ranking and recommendations, that is PyTorch's product of matrices that stay in the cache. For sampling it is the same reads of memory alone, of known addresses; for propagation the bytes of a plain
  copy, both in the same process. Sampling requests memory ahead of time and the plain reads do not, so its share may exceed 1. For epochs, it is the least time of the work (`benches/peers/limits.py`): multiplications in
  registers of all threads, rows of features at the rate of random reads, and, on the full graph, rows of neighbors at the rate of a copy (of which caches may save some). Exponentials of attention count as nothing. Empty: not measured.
- Ratios depend on the host. Before layers were fused, an epoch of SAGE had 2.63 × on a fast host (`2026-11-22`: 34.5 s, dgl 90.5 s) and 1.84 × on a slow one (`2026-11-22`, `slow-memory`). With fused layers it had 1.5 × on a
  slower one (`2026-11-26`, `slow-memory`, one round: 107 s, graphbolt 160 s, dgl 163 s), and 2.03 × on another (`2026-11-27`: 67.9 s, dgl 137.9 s). Since `2026-11-28`, the features of neighbors are summed where they lie, without
  a copy: on one host, an epoch took 64.5 and 67.1 s before, in two rounds with 14 s of copying, and 47.5 to 50.7 s after (`2026-11-28`: 2.31 ×). It needs features in memory, in one process.
- Sampling and propagation wait for memory, so their ratios depend on it, and vary between rounds where other guests use it: the rows below are of a host with fast memory. There, sums and means of rows in f32 move as many bytes as
  a plain copy. On another fast host, sampling had 10.06 × and 8.97 × (15,10,5; 1 and 2 threads) and 6.39 × and 7.91 × (25,10) (`2026-11-22`); on a slow one 3.81 × and 3.85 ×, 3.91 × and 4.70 × (`2026-11-27`, `slow-memory`). Propagation
  had 2.22 × (sum) and 2.82 × (mean) on a host where DGL reached 31 and 22 M edges/s (`2026-11-22`). A result of 2026-11-29 (2.6 to 4.6 ×) is removed: its bench was compiled without the optimization that the program has.

`benches/README.md` says how to run each benchmark, and lists those beside a plain loop, raw TCP or METIS. Accuracies are on [their own page](accuracy.md).
`python3 benches/table.py` writes this page from the newest results in `benches/runs`. Numbers are medians over rounds.

| what | threads | gnnflow | best of the others | ratio | of the limit | the rest | result |
|---|---|---|---|---|---|---|---|
"""


def rate(number):
    return f"{number / 1e6:.1f} M edges/s"


def seconds(number):
    return f"{number:.2f} s" if number < 10 else f"{number:.1f} s"


def gib(number):
    return f"{number / 2**30:.2f} GiB"


def rates(what):
    """Formats rows of `compare.py`, in edges per second."""
    return lambda row, _: (f"{what} {row['variant']}", row["gnnflow"], row["peers"], rate)


def epoch(row, _):
    return "epoch of 3-layer SAGE, hidden 256, fanouts 15,10,5, batches of 1000", row["gnnflow_seconds"], row["peers_seconds"], seconds


def full_graph(row, graph):
    where = ", 169,343 nodes and 2.3 million edges" if graph == "small" else ""
    where += f", {row['rows']}" if "rows" in row else ""
    return f"epoch of 2-layer {row['model'].upper()} on the full graph{where}", row["gnnflow_seconds"], row["peers_seconds"], seconds


def ranking(row, _):
    what = f"ranking {row['edges']:,} held-out edges, both ends among {row['among']:,} nodes, rows of 64 numbers; ours scores an end of several edges once"
    return what, row["gnnflow_seconds"], row["peers_seconds"], seconds


def recommend(row, _):
    what = f"lists of {row['length']} recommendations to each of {row['nodes']:,} nodes without known edges ({row['edges']:,} directed ones, some of them repeated), rows of 64 numbers; ours with finding known edges and writing a file"
    return what, row["gnnflow_seconds"], row["peers_seconds"], seconds


def inference(row, _):
    graph = "an R-MAT graph" if row.get("graph") == "products" else "a planted graph"
    what = f"inference of all nodes of {graph} ({row['nodes']:,} nodes, {row['edges']:,} directed edges) with {row.get('layers', 2)}-layer SAGE; ours from files to files"
    return what, row["gnnflow_seconds"], row["peers_seconds"], seconds


def rounded(row):
    """Yields the same case with bf16 rows, if it was measured."""
    if half := row.get("bf16"):
        ratio = row["peers_seconds"][row["best_peer"]] / half["seconds"] if row["peers_seconds"] else None
        row = {key: value for key, value in row.items() if key != "share_of_limit"}
        yield row | {"rows": "our rows in bf16", "gnnflow_seconds": half["seconds"], "gnnflow_peak_rss_bytes": half["peak_rss_bytes"],
                     "ratio_to_best_peer": ratio}


# Formatters of rows by the names of result files, without date and graph.
KINDS = {
    ("sampling-beside-peers",): rates("multi-hop sampling, fanouts"),
    ("propagate-beside-peers",): rates("propagation:"),
    ("epoch-beside-peers",): epoch,
    ("full-graph-beside-peers",): full_graph,
    ("ranking-beside-peers",): ranking,
    ("recommend-beside-peers",): recommend,
    ("infer", "refresh"): inference,
}


def at_kind(file, kinds):
    """Returns the position of a result's kind."""
    return next(at for at, kind in enumerate(kinds) if file.name[11:].startswith(kind))


def rows():
    """Yields a line for every case with a peer, from the newest file that contains it."""
    for kinds, describe in KINDS.items():
        seen = set()
        files = {file for kind in kinds for file in RUNS.glob(f"????-??-??-{kind}*.json") if "slow-memory" not in file.name}
        # A file about one thing is before those of the same day about several.
        for file in sorted(files, key=lambda file: (file.name[:10], -at_kind(file, kinds), file.name), reverse=True):
            result = json.loads(file.read_text())
            for row in [one for row in result.get("results", []) for one in (row, *rounded(row))]:
                what, ours, peers, show = describe(row, "small" if file.stem.endswith("-small") else None)
                case = (what, row["threads"])
                if not peers or case in seen:
                    continue
                seen.add(case)
                best = row["best_peer"]
                rest = ", ".join(f"{who} {show(number)}" for who, number in peers.items() if who != best)
                mine, other = show(ours), f"{best} {show(peers[best])}"
                if "peers_peak_rss_bytes" in row:
                    mine += f", {gib(row['gnnflow_peak_rss_bytes'])}"
                    other += f", {gib(row['peers_peak_rss_bytes'][best])}"
                date, commit = file.name[:10], str(result.get("commit", ""))[:7]
                cpu = " ".join(str(result.get("machine", {}).get("cpu") or "AMD EPYC").replace("(R)", "").split()[:2])
                link = f"`{file.name}`, {commit}, {cpu}"
                limit = f"{row['share_of_limit']:.2f} ({row.get('limit', 'matrix product')})" if "share_of_limit" in row else ""
                yield f"| {what} | {row['threads']} | {mine} | {other} | {row['ratio_to_best_peer']:.2f} × | {limit} | {rest} | {link} |\n"


LIMITS = """
## The limits of the machine

What this machine allows, measured in the run of the epoch of SAGE (`{file}`, {commit}; `benches/limits.rs`), on {threads} threads. Other guests of its host use
the same memory, so that rates of memory differ by a factor of almost two within minutes.

| what | rate |
|---|---|
{rates}
The least time of each stage at these rates, beside the measured one. Sampling runs on one thread, beside the other stages. The least time counts neither passes over rows of a batch, which
are partly in caches, nor the sums of rows of the second and third layer.

| stage of an epoch of SAGE | seconds | least | share |
|---|---|---|---|
{stages}"""
RATES = [
    ("multiply", "", "multiplications in registers"), ("product", "", "multiplications of a product, 4,096 × 256 by 256 × 256"),
    ("copy", "large", "copy, large pages, bytes read and written"), ("copy", "small", "the same, small pages"),
    ("lines", "large", "reads of 64 bytes at random positions, large pages"), ("lines", "small", "the same, small pages"),
    ("rows", "large", "reads of 448 bytes at random positions, large pages"), ("rows", "small", "the same, small pages"),
]


def limits():
    """Returns the section about the limits that were measured in the newest epoch of SAGE."""
    file = max(file for file in RUNS.glob("*-epoch-beside-peers.json"))
    result = json.loads(file.read_text())
    row = result["results"][-1]
    measured = [(what, result["rates"][case][str(row["threads"])].get(pages), "B" if pages else "") for case, pages, what in RATES]
    # Without large pages, all pages are small.
    rates = "".join(f"| {what} | {rate / 1e9:.1f} G{unit}/s |\n" for what, rate, unit in measured if rate)
    spent = row["gnnflow_stages"]
    stages = "".join(f"| {stage} | {seconds(spent[stage])} | {seconds(found['least_seconds'])} | {found['share']:.2f} |\n" for stage, found in row["limits"].items())
    return LIMITS.format(file=file.name, commit=result["commit"], threads=row["threads"], rates=rates, stages=stages)


SCALE = """
## A graph of {nodes:.0f} million nodes on two cores

A graph with the shape of half of ogbn-papers100M: {nodes:.0f} million nodes, {edges:.0f} million directed edges, 128 features in bf16, planted classes.
{parts} partitions by `{method}`, one epoch of 3-layer GraphSAGE over 1.1 % of the nodes, then exact inference with embeddings of all nodes, in one
process. The kernel bounds the process and its page cache to {memory}. Another run with a tenth of the nodes and edges tells what to expect: ten times its
time. One round (`{file}`, {commit}; `benches/scale.py`).

- The smaller graph fits into the page cache under the limit. The larger one does not: for every new page the system drops another one, and reads
  it again later. The epoch and inference take twice as long as expected. The forward pass, which reads no files, takes {forward:.0f} s instead of
  {forward_expected:.0f} s: new pages are slow at the limit, and batches may have more distinct nodes (not measured).
- `--dry-run` says {heap:.1f} GiB for the epoch without pages of files, a bound for the largest possible batches, and {scratch:.0f} GB of scratch files for inference.
- The test accuracy after this epoch is {accuracy:.3f}.

| stage | time | expected | memory without pages of files | disk of the file system |
|---|---|---|---|---|
"""


def scale():
    """Returns the section about the newest run of scale.py."""
    file = max(RUNS.glob("*-scale.json"))
    result = json.loads(file.read_text())
    large = result["rows"][-1]
    about = {"nodes": large["nodes"] / 1e6, "edges": 2 * large["edge_rows"] / 1e6, "file": file.name, "commit": result["commit"]}
    memory = large["planned"]["processes"][0]["memory"]
    about["heap"] = sum(memory[key] for key in ("batches", "activations", "parameters", "program")) / 2**30
    small, forward = result["rows"][0], [row["summary_seconds"]["seconds"]["forward"] for row in result["rows"]]
    about |= {"forward_expected": forward[0] * large["nodes"] / small["nodes"], "forward": forward[1]}
    about |= {"scratch": memory.get("layers", memory["scratch"]) / 1e9, "accuracy": large["test"]["accuracy"]}
    text = SCALE.format(**about, **{key: result[key] for key in ("parts", "method", "memory")})
    for stage, found in large["stages"].items():
        memory, disk = found["anonymous_bytes"] / 2**30, found["disk_bytes"] / 1e9
        text += f"| {stage} | {found['seconds']:.0f} s | {result['expected_seconds'][stage]:.0f} s | {memory:.1f} GiB | {disk:.0f} GB |\n"
    return text


ENCRYPTION = """
## Encryption

Two processes of one thread on the same two cores, with encrypted and with plain connections in turn (`cluster.encrypt`; `{file}`, {commit};
`benches/encryption.py`). Partitions are random and features are sent in messages, so that as many bytes travel as possible. *Throughput* is the median of the rounds'
ratios of encrypted to plain, with the least and the most. The models have equal bits. Over 1 Gbit/s, the link is slower than the encryption. The first row only moves bytes, by
processes that share the cores with each other; the aim is 0.6 there.

| what | bytes | plain | encrypted | throughput |
|---|---|---|---|---|
"""


def encryption():
    """Returns the section about the newest run of encryption.py."""
    file = max(RUNS.glob("*-encryption.json"))
    result = json.loads(file.read_text())
    text = ENCRYPTION.format(file=file.name, commit=result["commit"])
    for row in result["results"]:
        plain, encrypted = row["plain"], row["encrypted"]
        rate = plain.get("bytes_per_second")
        what = f"{rate / 1e9:.2f} GB/s" if rate else f"{plain['bytes_per_step'] / 1e6:.1f} MB a step"
        spread = f"{row['throughput']:.2f} × ({row['least']:.2f} to {row['most']:.2f})"
        text += f"| {row['case']} | {what} | {seconds(plain['seconds'])} | {seconds(encrypted['seconds'])} | {spread} |\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for file, page in [(PAGE, ABOUT + "".join(rows()) + limits() + scale() + encryption()), (schedules_page.PAGE, schedules_page.page())]:
        if page and not check:
            file.write_text(page)
        elif page and (not file.is_file() or file.read_text() != page):
            sys.exit(f"error: {file.relative_to(ROOT)} is not what the results say; run python3 benches/table.py")


if __name__ == "__main__":
    main()
