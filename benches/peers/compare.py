#!/usr/bin/env python3
"""Runs a gnnflow bench and those of its peers in turn, and prints the ratios.

    GNNFLOW_PEERS=<folder of the peers' bench_*.py> GNNFLOW_PEERS_PYTHON=<python with dgl, torch, pyg> \\
    GNNFLOW_BENCH_GRAPH=<folder of indptr.npy, indices.npy, train.npy, feat.npy> \\
    benches/peers/compare.py sampling|propagate [--rounds 3] [--threads 1,2] [--repeats 7] [--out FILE]

The peers' scripts and packages are not part of this project. Every round runs each system once, in a different order, so that other
load on the machine affects all systems equally. Medians over rounds are compared. `share_of_limit` is our rate over what the machine
allows, measured in the same process: for sampling, the same reads of memory alone, of known
addresses; for propagation, the bytes of a plain copy.
The result is written to benches/runs/<date>-<bench>-beside-peers.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from contest import bound, graph_and_python, peer
from program import ROOT, about, write

# Variants of the bench's cases that have peers.
OURS = {"sum, f32": "sum", "sum, f32, rows across lines": "sum, rows across lines", "sum, f32, small pages": "sum, small pages",
        "sum, bf16 rows": "sum, bf16 rows", "mean, f32": "mean"}

# By bench: the peers' script, its variants, options and backends, and how results are read.
BENCHES = {
    "sampling": {
        "script": "bench_sample.py",
        "variants": {
            "15,10,5": ["--fanout", "15,10,5", "--batch", "1000", "--batches", "20"],
            "25,10": ["--fanout", "25,10", "--batch", "1000", "--batches", "30"],
        },
        "backends": ["dgl", "dgl_unfused", "graphbolt", "graphbolt32", "pyg_lib", "pyg_loader", "torch_sparse"],
        "ours": lambda row: (row["fanouts"], row["rate"]) if row["case"] == "fused" else None,
        "peer": lambda row: row["edges_per_s"],
        "unit": "edges/s",
        "limit": ("reads alone", lambda row: row["rate"]),
    },
    "propagate": {
        "script": "bench_propagate.py",
        "variants": {"sum": ["--reps", "3"], "mean": ["--reps", "3"]},
        "options": ["--attention", "0"],  # no peer measures the passes of attention separately
        "backends": {"sum": ["dgl_sum", "dgl32_sum"], "mean": ["dgl_mean", "dgl32_mean", "torch_sparse_mean"]},
        "ours": lambda row: (OURS[row["case"]], row["rate"]) if row["case"] in OURS else None,
        "peer": lambda row: row["edges_per_s"],
        "unit": "edges/s",
        "limit": ("copy", lambda row: 1e9 * row["gb_per_s"]),
        # No peer sums bf16 rows, so these cases are compared with the peers' sum of f32 rows.
        "beside": {"sum, bf16 rows": "sum", "sum, rows across lines": "sum", "sum, small pages": "sum"},
    },
}


def build(bench):
    """Builds the gnnflow bench and returns its executable."""
    command = ["cargo", "bench", "--bench", bench, "--no-run", "--message-format=json"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    found = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == bench]
    return found[-1] if found else sys.exit(f"error: cargo named no executable for {bench}")


def run_ours(executable, bench, threads, repeats):
    """Runs the gnnflow bench. Returns {(variant, threads): (rate, share of the limit)}, and the other fields of its result."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "result.json")
        command = [executable, "--bench", "--threads", str(threads), "--repeats", str(repeats), "--out", out]
        command += BENCHES[bench].get("options", [])
        subprocess.run([*bound(threads), *command], check=True, stdout=subprocess.DEVNULL)
        result = json.load(open(out))
    rows = [row for row in result.pop("results") if row["threads"] == threads]
    case, demand = BENCHES[bench]["limit"]
    limits = {row.get("fanouts"): row["rate"] for row in rows if row["case"] == case}
    found = {}
    for row in rows:
        if ours := BENCHES[bench]["ours"](row):
            variant, rate = ours
            found[variant, threads] = (rate, demand(row) / limits[row.get("fanouts")])
    return found, result


def run_peer(bench, variant, backend, threads, graph, python):
    """Runs a peer. Returns its rate and None, or None and the reason."""
    options = [*BENCHES[bench]["variants"][variant], "--graph", graph, "--backend", backend]
    row, why = peer(BENCHES[bench]["script"], threads, python, *options)
    return (BENCHES[bench]["peer"](row), None) if row else (None, why)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=7, help="of ours, within a round")
    parser.add_argument("--backends", help="a comma list, in place of all")
    parser.add_argument("--out")
    options = parser.parse_args()
    bench, (graph, python) = options.bench, graph_and_python()
    everyone = BENCHES[bench]["backends"]
    wanted = options.backends and options.backends.split(",")
    of = {v: everyone[v] if isinstance(everyone, dict) else everyone for v in BENCHES[bench]["variants"]}
    thread_counts = [int(t) for t in options.threads.split(",")]
    executable = build(bench)

    rates, shares, failures, measured = {}, {}, {}, {}
    for number in range(options.rounds):
        for threads in thread_counts:
            contests = [(v, b) for v in of for b in of[v] if not wanted or b in wanted] + [None]
            turn = number * 3 % len(contests)
            for contest in contests[turn:] + contests[:turn]:
                if contest is None:
                    found, measured = run_ours(executable, bench, threads, options.repeats)
                    for key, (rate, share) in found.items():
                        rates.setdefault((*key, "gnnflow"), []).append(rate)
                        shares.setdefault(key, []).append(share)
                elif (*contest, threads) not in failures:
                    rate, why = run_peer(bench, *contest, threads, graph, python)
                    if rate is None:
                        failures[(*contest, threads)] = why
                        print(f"{contest[1]} {contest[0]} on {threads} threads: no number: {why}", file=sys.stderr)
                    else:
                        rates.setdefault((contest[0], threads, contest[1]), []).append(rate)
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)

    rows = []
    for variant, threads in sorted({key[:2] for key in rates}, key=str):
        beside = BENCHES[bench].get("beside", {}).get(variant, variant)
        of_peers = {who: r for (v, t, who), r in rates.items() if (v, t) == (beside, threads) and who != "gnnflow"}
        median = {who: statistics.median(r) for who, r in of_peers.items()}
        of_ours = rates.get((variant, threads, "gnnflow"))
        if not of_ours:
            continue
        ours = statistics.median(of_ours)
        best = max(median, key=median.get, default=None)
        row = {"variant": variant, "threads": threads, "unit": BENCHES[bench]["unit"], "gnnflow": ours, "peers": median}
        row |= {"rounds": {"gnnflow": of_ours, **of_peers}, "limit": BENCHES[bench]["limit"][0],
                "share_of_limit": round(statistics.median(shares[variant, threads]), 2)}
        if best:
            row |= {"best_peer": best, "ratio_to_best_peer": round(ours / median[best], 2)}
        rows.append(row)
        others = ", ".join(f"{who} {rate / 1e6:.1f}" for who, rate in sorted(median.items(), key=lambda item: -item[1]))
        print(f"{bench} {variant}, {threads} threads: gnnflow {ours / 1e6:.1f} M {BENCHES[bench]['unit']} = "
              f"{row.get('ratio_to_best_peer', '?')} × {best}  ({others})")

    measured = {name: measured.get(name) for name in ("cpu", "memory", "graph", "nodes", "edges", "seed")}
    failures = {" ".join(map(str, key)): why for key, why in failures.items()}
    result = about(f"{bench} beside peers") | measured | {"rounds": options.rounds, "results": rows, "failures": failures}
    print(f"wrote {write(result, f'{bench}-beside-peers', options.out)}")


if __name__ == "__main__":
    main()
