#!/usr/bin/env python3
"""Partitioners and ways to read other hosts' features, over a network of 1 Gbit/s (DistDGL, Fig. 10; FastSample, Fig. 5).

    benches/link.py DATA [--graphs NAME…] [--folder NAME=FOLDER] [--models NAME…] [--rounds 5] [--out FILE]

Two processes of one thread, each in a network namespace, joined by a link (see network.py); mini-batches on graphs with locality. Cases:
random, METIS and multilevel partitions; with multilevel partitions also a replicated topology, a cache of a quarter of the features, and
both. One row more is two processes of the same machine that share features, for comparison. `--folder` adds a graph of
FOLDER/{nodes,edges}.parquet, of which 1 % of the nodes are for training. Cases take turns; the first round warms up and is left out; medians of
the second and third epoch. Needs root. The result is written to benches/runs/<date>-link.json.
"""
import argparse, json, pathlib, statistics, subprocess, sys, tempfile

from network import namespaces, run_on_hosts
from program import about, build, sets, write
from schedules import GRAPHS, PIPELINE, pipeline_of

OTHER = 'nodes = "{folder}/nodes.parquet"\nedges = "{folder}/edges.parquet"\nsplit_fractions = [0.01, 0.01, 0.98]'
MODELS = {
    "light: SAGE, 2 layers of 32": ["model.kind=sage", "model.hidden=32", "train.fanouts=[10, 5]"],
    "heavy: SAGE, 3 layers of 256": ["model.kind=sage", "model.layers=3", "model.hidden=256", "train.fanouts=[10, 10, 5]"],
}
REPLICATED = ["partition.topology=replicated"]
# Name, partition method, settings, whether the processes are two hosts.
CASES = [
    ("random", "random", [], True),
    ("METIS", "metis", [], True),
    ("multilevel", "multilevel", [], True),
    ("multilevel, replicated", "multilevel", REPLICATED, True),
    ("multilevel, cache", "multilevel", ["cache"], True),
    ("multilevel, replicated, cache", "multilevel", [*REPLICATED, "cache"], True),
    ("multilevel, one host", "multilevel", [], False),
]


class Graph:
    """A graph, prepared by all methods."""

    def __init__(self, binary, name, work, options, spaces):
        self.binary, self.work, self.spaces = binary, work, spaces
        other, _, folder = (options.folder or "").partition("=")
        if name == other:
            self.pipeline = work / "p.toml"
            self.pipeline.write_text(PIPELINE.format(graph=OTHER.format(folder=pathlib.Path(folder).resolve()), processes=2))
        else:
            self.pipeline = pipeline_of(name, work, options.data, processes=2)
        self.feature_bytes = 0
        for method in sorted({method for _, method, _, _ in CASES}):
            command = [binary, "prepare", self.pipeline, "--quiet", *sets(self.dataset(method))]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for file in (work / "random").glob("part-*/features.arrow"):
            self.feature_bytes += file.stat().st_size

    def dataset(self, method):
        # The features of the halo are not stored with a partition.
        return [f"partition.method={method}", f"partition.out={self.work / method}", "partition.halo=ids"]

    def run(self, model, method, settings, apart):
        """Trains three epochs. Returns the seconds of an epoch, and bytes and rounds of a step."""
        cache = f"train.schedule.cache={self.feature_bytes // 4}"
        settings = [*self.dataset(method), *MODELS[model], *(cache if setting == "cache" else setting for setting in settings),
                    "train.epochs=3", "train.evaluate_every=0", "train.batch=1000"]
        settings += [] if apart else ["partition.features=shared"]
        command = [self.binary, "run", self.pipeline, "--quiet", "--json", "--run-dir", self.work / "run", *sets(settings)]
        if not apart:
            out = subprocess.run([*command, "--processes", "2"], check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
        else:
            out = run_on_hosts(self.spaces, command, self.work, 600)
        summary = json.loads(out)
        return {"epoch_seconds": statistics.median(summary["seconds"]["per_epoch"][1:]), "model": summary["model_sha256"],
                "bytes_per_step": round(summary["bytes_per_step"]), "rounds_per_step": summary["rounds_per_step"],
                "cache_hit_rate": (summary.get("cache") or {}).get("hit_rate")}


def rows(graph, name, model, rounds):
    """The rows of a graph and a model."""
    runs = {case[0]: [] for case in CASES}
    for number in range(rounds + 1):
        for case, *words in CASES[:: -1 if number % 2 else 1]:
            runs[case].append(graph.run(model, *words))
    random = statistics.median(run["epoch_seconds"] for run in runs["random"][1:])
    for case, method, _, _ in CASES:
        seconds = [run["epoch_seconds"] for run in runs[case][1:]]
        row = {"graph": name, "model": model, "case": case, "epoch_seconds": round(statistics.median(seconds), 4),
               "rounds": [round(second, 4) for second in seconds], "speed_beside_random": round(random / statistics.median(seconds), 3)}
        row |= {key: runs[case][-1][key] for key in ("bytes_per_step", "rounds_per_step", "cache_hit_rate")}
        print(f"{name}, {model}, {case}: {row['epoch_seconds']:.3f} s ({min(seconds):.3f} to {max(seconds):.3f}), "
              f"{row['bytes_per_step'] / 1e6:.2f} MB a step, {row['speed_beside_random']:.2f} x random", file=sys.stderr, flush=True)
        yield row
    same = {run["model"] for case, method, _, _ in CASES if method == "multilevel" for run in runs[case]}
    assert len(same) == 1, "cases with the same partitions have different models"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "amazon0601"], choices=GRAPHS)
    parser.add_argument("--folder", metavar="NAME=FOLDER")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.folder is not None and not all(options.folder.partition("=")):
        parser.error("--folder: must be NAME=FOLDER")
    binary, found = build(), []
    spaces, shaped, undo = namespaces(2)
    if spaces is None:
        sys.exit("error: this benchmark needs network namespaces (root)")
    try:
        for name in [*options.graphs, *([options.folder.partition("=")[0]] if options.folder else [])]:
            with tempfile.TemporaryDirectory() as work:
                graph = Graph(binary, name, pathlib.Path(work), options, spaces)
                for model in options.models:
                    found += rows(graph, name, model, options.rounds)
                    # After each model: the rest takes minutes.
                    path = write({**about("link"), "rounds": options.rounds, "link": shaped, "rows": found}, "link", options.out)
    finally:
        undo()
    print(path)


if __name__ == "__main__":
    main()
