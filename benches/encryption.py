#!/usr/bin/env python3
"""The cost of encrypted connections: the same work with `cluster.encrypt` on and off.

    benches/encryption.py DATA [--graphs NAME...] [--rounds 5] [--out FILE]

Cases: rows fetched from another process over loopback (the bench `fetch`); epochs of two processes over loopback, and over a network of
1 Gbit/s (namespaces, see network.py; needs root). Partitions are random and features are fetched by messages, so that as many bytes travel
as possible. Encrypted and plain runs take turns; the first round warms up and is left out. The result is written to
benches/runs/<date>-encryption.json.
"""
import argparse, json, os, pathlib, statistics, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
from compare import build as build_bench
from network import namespaces, run_on_hosts
from program import about, build, sets, write
from schedules import GRAPHS, pipeline_of

# Name and settings of the epochs.
EPOCHS = {
    "mini-batch": ["train.schedule=mini-batch", "train.fanouts=[10, 5]", "train.batch=1000"],
    "full-graph": ["train.schedule=full-graph"],
    "tensor-parallel": ["train.schedule=tensor-parallel"],
}
BOTH = {"plain": False, "encrypted": True}


def fetch(executable, encrypt):
    """Fetches rows over loopback. Returns the seconds, and the rates of this and of raw TCP."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "result.json"
        command = [executable, "--bench", "--loopback", "--repeats", "5", "--out", out, *["--encrypt"][: int(encrypt)]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = {row["case"]: row for row in json.loads(out.read_text())["results"]}
    row = rows["fetch_rows, loopback"]
    return {"seconds": row["seconds"]["median"], "bytes_per_second": row["rate"], "raw_tcp_bytes_per_second": rows["raw TCP"]["rate"]}


def epoch(binary, pipeline, work, settings, encrypt, spaces):
    """Trains four epochs in two processes. Returns the seconds of an epoch, and the model."""
    settings = [*settings, f"cluster.encrypt={str(encrypt).lower()}", "partition.method=random", f"partition.out={work / 'dataset'}",
                "partition.halo=ids", "partition.features=partitioned", "train.epochs=4", "train.evaluate_every=0"]
    command = [binary, "run", pipeline, "--quiet", "--json", "--run-dir", work / "run", *sets(settings)]
    if spaces:
        out = run_on_hosts(spaces, command, work, 600)
    else:
        out = subprocess.run([*command, "--processes", "2"], check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
    summary = json.loads(out)
    return {"seconds": statistics.median(summary["seconds"]["per_epoch"][1:]), "model": summary["model_sha256"],
            "bytes_per_step": round(summary["bytes_per_step"])}


def compare(case, rounds, measure):
    """Calls `measure(encrypt)` in turns. Returns a row of the result."""
    runs = {name: [] for name in BOTH}
    for number in range(rounds + 1):
        for name in list(BOTH)[:: -1 if number % 2 else 1]:
            runs[name].append(measure(BOTH[name]))
    assert len({run.get("model") for both in runs.values() for run in both}) == 1, "encryption changes the model"
    seconds = {name: [run["seconds"] for run in both[1:]] for name, both in runs.items()}
    ratios = sorted(plain / encrypted for plain, encrypted in zip(seconds["plain"], seconds["encrypted"]))
    row = {"case": case, "throughput": round(statistics.median(ratios), 3), "least": round(ratios[0], 3), "most": round(ratios[-1], 3)}
    for name in BOTH:
        row[name] = {"seconds": round(statistics.median(seconds[name]), 4), "rounds": [round(second, 4) for second in seconds[name]]}
        row[name] |= {key: value for key, value in runs[name][-1].items() if key not in ("seconds", "model")}
    print(f"{case}: plain {row['plain']['seconds']:.3f} s, encrypted {row['encrypted']['seconds']:.3f} s: {row['throughput']:.2f} "
          f"({row['least']:.2f} to {row['most']:.2f}) of the throughput", file=sys.stderr, flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm"], choices=GRAPHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, executable = build(), build_bench("fetch")
    rows = [compare("rows fetched over loopback", options.rounds, lambda encrypt: fetch(executable, encrypt))]
    spaces, shaped, undo = namespaces(2)
    try:
        for name in options.graphs:
            with tempfile.TemporaryDirectory() as folder:
                work = pathlib.Path(folder)
                pipeline = pipeline_of(name, work, options.data, processes=2)
                for schedule, settings in EPOCHS.items():
                    for link, hosts in {"loopback": None, **({shaped: spaces} if spaces else {})}.items():
                        measure = lambda encrypt: epoch(binary, pipeline, work, settings, encrypt, hosts)
                        rows.append(compare(f"an epoch of {name}, {schedule}, {link}", options.rounds, measure))
                        path = write({**about("encryption"), "rounds": options.rounds, "results": rows}, "encryption", options.out)
    finally:
        undo()
    print(path)


if __name__ == "__main__":
    main()
