#!/usr/bin/env python3
"""Epochs on 1 to all cores of one machine, by processes and by threads, beside what `gnnflow simulate` predicts for them and for hosts.

    benches/many_cores.py DATA [--graphs NAME…] [--schedules NAME…] [--cores N] [--parts N] [--rounds 5] [--predicted N]
                          [--seconds 3600] [--out FILE]

Graphs and models are those of schedules.py, with --parts partitions: by default one per core. Measured are 1, 2, 4, … processes of one thread, one process of
2, 4, … threads, and processes of several threads that use all cores. Predictions for processes of one thread come from a traced run of as
many processes; those for several threads come from runs of one thread, and a run of one process of 4 threads tells how well jobs use
threads. (It does not tell this of jobs that run at the same time on one thread each: seven tenths of them are assumed to be parallel.)
Hosts of one core, with the links of LINKS, are predicted from the same runs. (simulate.py compares two hosts with measurements.)
Runs take turns in both orders, the first round warms up and is left out, and values are medians. Predictions are made in the first --predicted
rounds after it (default: all), because traced runs take as long as the others. No round starts after --seconds. The result is written to
benches/runs/<date>-many-cores.json.
"""
import argparse, pathlib, statistics, sys, tempfile, time

from program import CORES, about, build, write
from schedules import GRAPHS
from simulate import SCHEDULES, Graph


def cases(cores):
    """Returns the measured clusters as (processes, threads), and for each of them the recorded cluster that predicts it."""
    powers = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    several = max((p for p in powers if p * p <= cores), default=1)
    predicted_from = {(processes, 1): (processes, 1) for processes in powers}
    predicted_from |= {(1, threads): (1, 1) for threads in powers[1:]}
    if several > 1:
        predicted_from[several, cores // several] = (several, 1)
    return predicted_from


LINKS = {"1 Gbit/s, 0.2 ms": ["--bandwidth", "118MB", "--latency", "0.2"], "25 Gbit/s, 0.05 ms": ["--bandwidth", "3GB", "--latency", "0.05"]}


def warm(rounds):
    """Returns the rounds after the first one, which warms up, if there are any."""
    return rounds[1:] or rounds


class Rounds:
    """Measured and predicted seconds of a graph and a schedule, by round."""

    def __init__(self, graph, name, schedule, cores):
        self.graph, self.name, self.schedule = graph, name, schedule
        self.predicted_from, self.scaling = cases(cores), (1, min(4, cores))
        self.measured = {cluster: [] for cluster in self.predicted_from}
        self.predicted = {cluster: [] for cluster in self.predicted_from}
        self.hosts = {(processes, link): [] for processes, threads in self.predicted_from if threads == 1 < processes for link in LINKS}

    def run(self, reverse, predict):
        traced = {*self.predicted_from.values(), self.scaling} if predict else set()
        turns = [(*cluster, True) for cluster in traced] + [(*cluster, False) for cluster in self.measured]
        for processes, threads, trace in sorted(turns, reverse=reverse):
            if trace:
                self.graph.run(self.schedule, processes, threads, trace=True)
            else:
                self.measured[processes, threads].append(self.graph.measure(self.schedule, (processes, threads), apart=False))
        if not predict:
            return
        for cluster, recorded in self.predicted_from.items():
            prediction = self.graph.predict(self.schedule, recorded, cluster, scaling=self.scaling)
            self.predicted[cluster].append(prediction["epoch_seconds"])
        for (processes, link), predictions in self.hosts.items():
            predictions.append(self.graph.predict(self.schedule, (processes, 1), (processes, 1), LINKS[link]))

    def rows(self):
        base = statistics.median(warm(self.measured[1, 1]))
        for (processes, threads), seconds in self.measured.items():
            rounds, predictions = warm(seconds), self.predicted[processes, threads]
            measured = statistics.median(rounds)
            row = {"graph": self.name, "schedule": self.schedule, "processes": processes, "threads": threads, "measured": round(measured, 4),
                   "speedup": round(base / measured, 2), "measured_rounds": [round(second, 4) for second in rounds]}
            if predictions:
                # The speed of a machine changes: predictions are compared with the measurements of their rounds.
                predicted, same = statistics.median(predictions), statistics.median(rounds[: len(predictions)])
                row |= {"predicted": round(predicted, 4), "error": round(predicted / same - 1, 3),
                        "predicted_rounds": [round(second, 4) for second in predictions]}
            yield row

    def host_rows(self):
        """The predictions for hosts, and what the longest parts of the critical path take of an epoch."""
        for (hosts, link), predictions in self.hosts.items():
            if not predictions:
                continue
            seconds = [prediction["epoch_seconds"] for prediction in predictions]
            path = {part["name"]: round(part["seconds"] / seconds[-1], 2) for part in predictions[-1]["critical_path"][:3]}
            yield {"graph": self.name, "schedule": self.schedule, "link": link, "hosts": hosts, "predicted": round(statistics.median(seconds), 4),
                   "rounds": [round(second, 4) for second in seconds], "critical_path": path}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--graphs", nargs="*", default=["debian-bookworm", "skewed"], choices=GRAPHS)
    parser.add_argument("--schedules", nargs="*", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--cores", type=int, default=CORES)
    parser.add_argument("--parts", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--predicted", type=int)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--out")
    options = parser.parse_args()
    binary, end = build(), time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as work:
        everything = []
        for name in options.graphs:
            folder = pathlib.Path(work) / name
            folder.mkdir()
            graph = Graph(binary, name, folder, options, spaces=None, parts=options.parts or options.cores)
            everything += [Rounds(graph, name, schedule, options.cores) for schedule in options.schedules]
        for number in range(options.rounds + 1):
            for rounds in everything:
                if time.monotonic() > end:
                    break
                rounds.run(reverse=number % 2 == 1, predict=0 < number <= (options.rounds if options.predicted is None else options.predicted))
                begun = [rounds for rounds in everything if rounds.measured[1, 1]]
                rows, hosts = [row for rounds in begun for row in rounds.rows()], [row for rounds in begun for row in rounds.host_rows()]
                # After each schedule: the rest takes minutes.
                path = write({**about("many-cores"), "parts": options.parts or options.cores, "results": rows, "hosts": hosts}, "many-cores", options.out)
    for row in rows:
        print(f"{row['graph']}, {row['schedule']}, {row['processes']} × {row['threads']}: {row['measured']:.4f} s, {row['speedup']} x, "
              + (f"predicted {row['predicted']:.4f} s, {100 * row['error']:+.1f} %" if "predicted" in row else "not predicted"), file=sys.stderr)
    for row in hosts:
        print(f"{row['graph']}, {row['schedule']}, {row['link']}, {row['hosts']} hosts: {row['predicted']:.4f} s {row['critical_path']}", file=sys.stderr)
    print(path)


if __name__ == "__main__":
    main()
