#!/usr/bin/env python3
"""How evenly intervals of equal numbers of nodes share the edges of a partition (Dorylus, section 4).

    benches/intervals.py DATA [--graphs NAME…] [--intervals 8 32] [--out FILE]

Graphs are those of schedules.py, in 2 partitions of `multilevel`. The paper asks for similar numbers of inter-interval edges: in-edges from
nodes outside of the interval. A value is the largest of a partition's intervals divided by their mean. Needs numpy and pyarrow. The result
is written to benches/runs/<date>-intervals.json.
"""
import argparse, pathlib, subprocess, sys, tempfile

from program import about, build, write
from schedules import GRAPHS, pipeline_of


def largest_to_mean(dataset, count):
    """Returns, by partition, the largest number to the mean over its intervals: of in-edges, and of in-edges from other intervals."""
    import numpy, pyarrow

    first, values = 0, []
    for part in sorted(dataset.glob("part-*")):
        neighbors = pyarrow.ipc.open_file(pyarrow.memory_map(str(part / "topology.arrow"))).read_all().column("neighbors").combine_chunks()
        sources, ends = numpy.asarray(neighbors.values).astype(numpy.int64), numpy.asarray(neighbors.offsets).astype(numpy.int64)
        nodes = len(neighbors)
        # Numbers of nodes count over all partitions.
        starts = first + numpy.array([k * (nodes // count) + min(k, nodes % count) for k in range(count + 1)])
        interval = numpy.searchsorted(starts, numpy.repeat(numpy.arange(first, first + nodes), numpy.diff(ends)), side="right") - 1
        outside = (sources < starts[interval]) | (sources >= starts[interval + 1])
        edges = [numpy.bincount(of, minlength=count) for of in (interval, interval[outside])]
        values.append([round(float(numbers.max() / numbers.mean()), 3) for numbers in edges])
        first += nodes
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--intervals", nargs="*", type=int, default=[8, 32])
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, rows = build(), []
    for name in options.graphs:
        with tempfile.TemporaryDirectory() as folder:
            work = pathlib.Path(folder)
            pipeline = pipeline_of(name, work, options.data, 2)
            subprocess.run([binary, "prepare", pipeline, "--quiet", "--set", f"partition.out={work / 'ds'}"], check=True, stdout=subprocess.DEVNULL)
            for count in options.intervals:
                edges, between = map(list, zip(*largest_to_mean(work / "ds", count)))
                rows.append({"graph": name, "intervals": count, "in_edges": edges, "inter_interval_edges": between})
                print(f"{name}, {count} intervals: in-edges {edges}, from other intervals {between}", file=sys.stderr, flush=True)
    print(write({**about("intervals"), "results": rows}, "intervals", options.out))


if __name__ == "__main__":
    main()
