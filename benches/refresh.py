#!/usr/bin/env python3
"""Refreshes the results of a model after changes of one edge, 0.01 %, 0.1 % and 1 % of the edges, beside inference of all nodes.

    [GNNFLOW_PEERS_PYTHON=<python with dgl, torch and pyarrow>] benches/refresh.py [--graph FOLDER] [--layers 2] [--hidden 256] [--rounds 5] [--parts 8] [--threads 2] [--only-infer] [--other PROGRAM]

FOLDER has nodes.parquet and edges.parquet (src, dst), read as undirected; without it, a planted graph of 2 million nodes and 30 million
edges is generated (100 features, 47 classes). Half of a change removes edges, half adds edges between random nodes: of all nodes, or of
2,000 nodes, as changes of real graphs are seldom spread evenly. In each round, every change is applied to the dataset in place by
`gnnflow update`; then `gnnflow refresh` computes what has changed, and `gnnflow infer` all nodes of the last dataset; DGL computes all
nodes of the first graph in memory (benches/peers/inference.py, SAGE only). Predictions of both must have equal bytes. `refresh` is the time of finding the changes and
computing rows; `all` is that with metrics, with writing the predictions of all nodes, of `infer` as well, and until changed rows are on disk; `wall` is that of the process,
with opening and verifying the dataset. `reached` has the changed rows of each change and their seconds. Medians and ranges over the rounds. The result is written to benches/runs/<date>-refresh.json.
With --only-infer, nothing changes, nothing is refreshed, and DGL's data loader is left out; the result is <date>-infer.json. --other names another build of gnnflow, which infers in each round, too.
"""
import argparse, json, os, pathlib, random, statistics, subprocess, sys, tempfile

from program import ROOT, about, build, timed, write

# Name, share of the edges, and the nodes between which edges change; all nodes without a number.
CHANGES = [("one edge", 0.0, None), ("0.01 %", 0.0001, None), ("0.1 %", 0.001, None), ("1 %", 0.01, None),
           ("0.01 % among 2,000 nodes", 0.0001, 2000), ("0.1 % among 2,000 nodes", 0.001, 2000)]


def spread(values):
    """Returns the median and the range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def of_rounds(measured, full, others, peers, about_run):
    """The result of all finished rounds."""
    rows = []
    for name, runs in measured.items():
        rows.append({
            "change": name, **{key: spread([run[key] for run in runs]) for key in ["seconds", "all", "wall"]},
            "computed_share": spread([run["computed_rows"] / run["all_rows"] for run in runs]),
            "changed_nodes": spread([run["changed_nodes"] for run in runs]),
            "of_full": spread([run["all"] / whole["all"] for run, whole in zip(runs, full)]),
            "reached": [[run["computed_rows"], round(run["seconds"], 4)] for run in runs],
        })
    result = about("refresh" if rows else "infer") | about_run | {"rounds": len(full), "full": {key: spread([run[key] for run in full]) for key in ["all", "wall"]}}
    if rows:
        result["refresh"] = rows
    if others:
        result["other_build"] = {key: spread([run[key] for run in others]) for key in ["all", "wall"]}
    if peers:
        once = {"loader": peers[0]["loader"]} if "loader" in peers[0] else {}
        result["dgl"] = {"version": peers[0]["dgl"], "whole": spread([run["whole"] for run in peers])} | {f"{name}_once": value for name, value in once.items()}
        ours, whole = result["full"]["all"]["median"], result["dgl"]["whole"]["median"]
        of_graph = {key: about_run[key] for key in ["graph", "nodes", "edges", "layers", "threads"]}
        result["results"] = [of_graph | {"gnnflow_seconds": ours, "best_peer": "dgl", "ratio_to_best_peer": whole / ours,
                                         "peers_seconds": {"dgl": whole} | {f"dgl_{name}": value for name, value in once.items()}}]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=pathlib.Path)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--method", default="multilevel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-infer", action="store_true")
    parser.add_argument("--other", type=pathlib.Path)
    parser.add_argument("--out")
    options = parser.parse_args()
    if min(options.rounds, options.layers, options.parts, options.threads) < 1:
        sys.exit("error: --rounds, --layers, --parts and --threads must be at least 1")
    if options.other and not options.other.is_file():
        sys.exit(f"error: --other {options.other}: there is no such program")
    binary = build()

    def gnnflow(*arguments):
        return timed(binary, *arguments)

    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        graph = options.graph.resolve() if options.graph else work / "dump"
        if not options.graph:
            sizes = ["--nodes", 2_000_000, "--edges", 30_000_000, "--features", 100, "--classes", 47, "--seed", 7]
            gnnflow("generate", "planted", "--out", graph, *sizes, "--quiet")
        (work / "p.toml").write_text(
            f'[graph]\nnodes = "{graph}/nodes.parquet"\nedges = "{graph}/edges.parquet"\nundirected = true\nduplicates = "drop"\n'
            f'[partition]\nparts = {options.parts}\nmethod = "{options.method}"\nout = "{work}/dataset"\n'
            f'[model]\nkind = "{options.model}"\nlayers = {options.layers}\nhidden = {options.hidden}\n'
            f"[train]\nepochs = 1\nevaluate_every = 0\nthreads = {options.threads}\nseed = 1\nfanouts = {[5] * options.layers}\n[infer]\npredictions = true\n"
        )
        gnnflow("run", work / "p.toml", "--run-dir", work / "run", "--quiet")
        described = json.loads((work / "dataset" / "manifest.json").read_text())
        nodes, edges = described["nodes"], described["edges"] // 2

        def refresh():
            wall, printed = gnnflow("refresh", work / "run", "--dataset", work / "dataset", "--out", work / "new", "--json", "--quiet")
            summary = json.loads(printed)
            return {"wall": wall, "all": summary["seconds"]["infer"], **summary["refreshed"]}

        def infer(program=binary):
            wall, printed = timed(program, "infer", work / "run", "--dataset", work / "dataset", "--out", work / "full", "--json", "--quiet")
            return {"wall": wall, "all": json.loads(printed)["seconds"]["infer"]}

        def pairs(name, drawn):
            """Writes a Parquet file of edges and returns its path."""
            (work / f"{name}.txt").write_text("".join(f"{a} {b}\n" for a, b in drawn))
            gnnflow("import", "text", work / f"{name}.txt", "--header", "no", "--directed", "--out", work / name, "--quiet")
            return work / name / "edges.parquet"

        peer = None
        if (python := os.environ.get("GNNFLOW_PEERS_PYTHON")) and options.model == "sage":
            command = [python, ROOT / "benches" / "peers" / "inference.py", graph, "--layers", options.layers, "--hidden", options.hidden, "--threads", options.threads]
            command += ["--no-loader"] * options.only_infer
            threads = {name: str(options.threads) for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]}
            environment = os.environ | threads | {"DGLBACKEND": "pytorch", "PYTHONWARNINGS": "ignore", "OMP_WAIT_POLICY": "passive"}
            peer = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

        def dgl():
            print(file=peer.stdin, flush=True)
            line = peer.stdout.readline()
            if not line:
                sys.exit("error: benches/peers/inference.py has ended")
            return json.loads(line)

        about_refresh = {} if options.only_infer else {"first_refresh": refresh()}
        infer()  # warm-up
        if options.other:
            infer(options.other.resolve())
        if peer:
            dgl()
        draw = random.Random(3)
        hot = draw.sample(range(nodes), 2000)
        added, full, others, peers = {None: [], 2000: []}, [], [], []
        changes = [] if options.only_infer else CHANGES
        measured = {name: [] for name, _, _ in changes}
        for turn in range(options.rounds):
            for at, (name, share, among) in enumerate(changes):
                count = max(1, int(edges * share / 2))
                ends = hot if among else range(nodes)
                come = [(draw.choice(ends), draw.choice(ends)) for _ in range(count)]
                # Only edges that an earlier change has added are known to exist.
                known = added[among]
                gone = [known.pop(draw.randrange(len(known))) for _ in range(min(count, len(known)))] if share else []
                known.extend(edge for edge in come if edge[0] != edge[1])
                change = ["--edges", pairs(f"come-{turn}-{at}", come)]
                if gone:
                    change += ["--remove", pairs(f"gone-{turn}-{at}", gone)]
                gnnflow("update", work / "dataset", *change, "--missing", "ignore", "--quiet")
                measured[name].append(refresh())
            # The two builds take turns in being the first.
            builds = [(full, binary)] + ([(others, options.other.resolve())] if options.other else [])
            written = [(work / "new" / "predictions.parquet").read_bytes()] if changes else []
            for times, program in builds[:: 1 if turn % 2 else -1]:
                times.append(infer(program))
                written.append((work / "full" / "predictions.parquet").read_bytes())
            if any(one != written[0] for one in written):
                sys.exit("error: the predictions of refresh, infer and the other build differ")
            if peer:
                peers.append(dgl())
            # After each round: the rest takes minutes.
            result = of_rounds(measured, full, others, peers, {
                "graph": options.graph.name if options.graph else "planted", "nodes": nodes, "edges": 2 * edges, "model": options.model,
                "layers": options.layers, "hidden": options.hidden, "parts": options.parts, "threads": options.threads,
            } | about_refresh)
            path = write(result, "infer" if options.only_infer else "refresh", options.out)
            print(f"round {turn + 1} of {options.rounds} done", flush=True)
    print(f"inference of all nodes: {result['full']['all']['median']:.1f} s")
    for row in result.get("refresh", []):
        print(f"{row['change']}: {row['seconds']['median']:.3f} s; with writing {row['all']['median']:.2f} s, {100 * row['of_full']['median']:.1f} % of full inference, "
              f"{100 * row['computed_share']['median']:.2f} % of the rows")
    print(path)


if __name__ == "__main__":
    main()
