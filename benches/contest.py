"""Common code of the benches that compare gnnflow with peers: paths, equal cores, and one line of JSON per run."""
import json, os, pathlib, statistics, subprocess, sys


def need(name):
    """Returns an environment variable, or exits if it is not set."""
    return os.environ.get(name) or sys.exit(f"error: set {name}; see --help")


def bound(threads):
    """Binds a command to as many cores as threads, because a system may start additional threads."""
    return ["taskset", "-c", f"0-{threads - 1}"]


def graph_and_python():
    """Returns the folder of the graph and the Python interpreter of the peers."""
    return pathlib.Path(need("GNNFLOW_BENCH_GRAPH")).resolve(), os.environ.get("GNNFLOW_PEERS_PYTHON", sys.executable)


def peer(script, threads, python, *options):
    """Runs a peer's script. Returns its last line of JSON and None, or None and the reason."""
    command = [python, pathlib.Path(need("GNNFLOW_PEERS")) / script, "--threads", threads, *options]
    done = subprocess.run([*bound(threads), *map(str, command)], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if rows and "failed" not in rows[-1]:
        return rows[-1], None
    return None, str(rows[-1].get("why") or rows[-1]["failed"]).strip().splitlines()[-1] if rows else "it printed nothing"


def in_turn(number, backends):
    """Returns gnnflow (None) and the peers, rotated by the number of the round."""
    contests = [None, *backends.split(",")]
    turn = number % len(contests)
    return contests[turn:] + contests[:turn]


def beside(median, mine):
    """Returns the best peer by median, and its time relative to gnnflow's."""
    if not median:
        return {}
    best = min(median, key=median.get)
    return {"best_peer": best, "ratio_to_best_peer": round(median[best] / mine, 2)}


def medians(seconds, which):
    """Returns the median of each system for the keys that start with `which`."""
    return {who: statistics.median(values) for (key, who), values in seconds.items() if key == which}


def beside_torch(rounds, threads, measure):
    """Calls `measure`, which returns gnnflow's seconds and the result of a PyTorch script, in `rounds` rounds after one that warms up. Returns the script's last
    result, and the seconds of a row of results; the limit is the time of as many multiplications in PyTorch's products."""
    ours, theirs, products = [], [], []
    for number in range(rounds + 1):
        seconds, peer = measure()
        if number > 0:
            ours.append(seconds)
            theirs.append(peer["seconds"])
            products.append(peer["products_seconds"])
    mine, torch = statistics.median(ours), statistics.median(theirs)
    return peer, {"threads": threads, "gnnflow_seconds": mine, "peers_seconds": {"torch": torch}, **beside({"torch": torch}, mine),
                  "share_of_limit": round(statistics.median(products) / mine, 2),
                  "all_seconds": {"gnnflow": ours, "torch": theirs, "torch, products alone": products}}


def run_python(script, threads, python, *arguments):
    """Runs the text of a Python script on as many cores as threads. Returns its JSON."""
    command = [*bound(threads), python, "-c", script, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
