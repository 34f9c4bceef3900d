"""The page of the book that puts the schedules side by side, from the newest result of schedules.py."""
import json

from program import ROOT

RUNS = ROOT / "benches" / "runs"
PAGE = ROOT / "docs" / "book" / "src" / "schedules-compared.md"
ABOUT = """# The schedules side by side

Every schedule trains the same model on the same graph until the same validation accuracy: a GCN of two layers and 64 columns, Adam with a learning
rate of 0.01, {processes} processes of one thread on {cores} cores of one machine, messages over loopback, one partition per process, default batches and fanouts.
The target of a graph is one percentage point below the worse of the best accuracies of `mini-batch` and `full-graph`.

- *Seconds per epoch* are medians of {rounds} rounds without evaluation, in which the schedules took turns; after them are the fastest and the slowest round.
- *Epochs* are those until the target; full-graph schedules were evaluated after every five epochs, asynchronous ones after every ten. They are
  medians of {seeds} seeds, with the fewest and the most; so is the best accuracy. Asynchronous runs differ from run to run.
- *Seconds* to the target are epochs × seconds per epoch. *Value* is 1 / (seconds × cost) at {price} dollars per hour and process, as in Dorylus.
- amazon0601 has no labels: its classes spread along edges from random nodes, and features are noisy means of classes. "skewed" is a generated graph with a power law
  of exponent 2.1. The others are public graphs with their own labels.

[Choosing a schedule](choosing-a-schedule.md#which-schedule-for-which-graph) draws the conclusions. `benches/schedules.py` measures, and `benches/table.py` writes this page
from `benches/runs/{file}`.

"""
AUTO = """## What auto chooses

*Regret* is the time of the choice over that of the best schedule that `auto` may choose, minus 1.
{commits}
| graph | default rates | regret | rates of `gnnflow calibrate` | regret |
|---|---|---|---|---|
"""


def seconds(number):
    return f"{1e3 * number:.1f} ms" if number < 0.1 else f"{number:.2f} s" if number < 10 else f"{number:.1f} s"


def percent(regret):
    return "target not reached" if regret is None else f"{100 * regret:.0f} %"


def epochs(row):
    """The epochs to the target: the median of the seeds, and the range if they differ."""
    found = [seed for seed in row["epochs_of_seeds"] if seed is not None]
    missing = len(row["epochs_of_seeds"]) - len(found)
    if not found:
        return "not reached"
    if not missing and min(found) == max(found):
        return f"{found[0]}"
    text = "not reached" if row["epochs_to_target"] is None else f"{row['epochs_to_target']:g}"
    return f"{text} ({min(found)} to {'not reached' if missing else max(found)})"


def schedule(row):
    """A line of a graph's table."""
    low, high = min(row["rounds"]), max(row["rounds"])
    epoch = f"{seconds(row['epoch_seconds'])} ({seconds(low)} to {seconds(high)})"
    reached = row["epochs_to_target"]
    target = f"{epochs(row)} | {seconds(row['seconds_to_target'])} | {row['value']:,}" if reached else f"{epochs(row)} | | "
    sent = f"{row['bytes_per_epoch'] / 1e6:.1f} MB"
    return f"| {row['schedule']} | {epoch} | {target} | {100 * row['best_accuracy']:.1f} % | {row['peak_mib']} MiB | {sent} |\n"


def graph(result):
    """The section of a graph."""
    facts = f"Target {100 * result['target']:.1f} %. Replication factor {result['replication_factor']:.2f}, edge cut {100 * result['edge_cut']:.1f} %."
    head = "| schedule | per epoch | epochs | seconds | value | best accuracy | peak memory | sent per epoch |\n|---|---|---|---|---|---|---|---|\n"
    return f"## {result['graph']}\n\n{facts}\n\n{head}{''.join(map(schedule, result['schedules']))}\n"


def page():
    """The page, or nothing without a result."""
    files = sorted(RUNS.glob("*-schedules.json"), reverse=True)
    if not files:
        return None
    result = json.loads(files[0].read_text())
    about = ABOUT.format(processes=result["processes"], cores=result["machine"]["cores"], rounds=result["rounds"], seeds=result["seeds"],
                         price=result["dollars_per_hour_and_process"], file=files[0].name)
    lines = []
    for row in result["results"]:
        default, measured = row["auto"]["default rates"], row["auto"]["measured rates"]
        lines.append(f"| {row['graph']} | {default['chosen']} | {percent(default['regret'])} | {measured['chosen']} | {percent(measured['regret'])} |\n")
    medians = [percent(result["median_regret"][kind]) for kind in ("default rates", "measured rates")]
    lines.append(f"| median | | {medians[0]} | | {medians[1]} |\n")
    commits = ""
    if measured_at := result.get("measured_at_commit"):
        commits = f"The choices are those of commit {result['commit'][:7]}, and the times those of {measured_at[:7]}.\n"
    return about + "".join(map(graph, result["results"])) + AUTO.format(commits=commits) + "".join(lines)
