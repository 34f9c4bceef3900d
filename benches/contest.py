"""What benches beside other systems share: where those are, equal cores for all, and one line of JSON from each."""
import json, os, pathlib, statistics, subprocess, sys


def need(name):
    """What the environment says; nothing goes on without it."""
    return os.environ.get(name) or sys.exit(f"error: set {name}; see --help")


def bound(threads):
    """Equal threads are equal cores: whatever threads a system starts beside those asked for, it has no more cores."""
    return ["taskset", "-c", f"0-{threads - 1}"]


def graph_and_python():
    """The folder of the graph, and the peers' Python."""
    return pathlib.Path(need("GNNFLOW_BENCH_GRAPH")).resolve(), os.environ.get("GNNFLOW_PEERS_PYTHON", sys.executable)


def peer(script, threads, python, *options):
    """One run of one peer's script: its last line of JSON, or why there is none."""
    command = [python, pathlib.Path(need("GNNFLOW_PEERS")) / script, "--threads", threads, *options]
    done = subprocess.run([*bound(threads), *map(str, command)], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if rows and "failed" not in rows[-1]:
        return rows[-1], None
    return None, str(rows[-1].get("why") or rows[-1]["failed"]).strip().splitlines()[-1] if rows else "it printed nothing"


def in_turn(number, backends):
    """Ours (None) and the peers', another one first in every round."""
    contests = [None, *backends.split(",")]
    turn = number % len(contests)
    return contests[turn:] + contests[:turn]


def beside(median, mine):
    """How much faster than the best peer ours is, by the peers' medians."""
    if not median:
        return {}
    best = min(median, key=median.get)
    return {"best_peer": best, "ratio_to_best_peer": round(median[best] / mine, 2)}


def medians(seconds, which):
    """By system, the median of its rounds where the first part of the key is `which`."""
    return {who: statistics.median(values) for (key, who), values in seconds.items() if key == which}
