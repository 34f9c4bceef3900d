"""What the machine allows (`cargo bench --bench limits`), and the least seconds of an epoch at these rates."""
import json, os, pathlib, subprocess, tempfile

from program import ROOT

# Seconds of the bench, with its build.
TIME_LIMIT = 3600


def measure(graph, threads):
    """Runs the bench on a folder with a graph. Returns its rates, by case, threads and pages, and the counts of the graph."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "limits.json"
        command = ["cargo", "bench", "--quiet", "--bench", "limits", "--", "--threads", ",".join(map(str, sorted({1, *threads}))), "--out", out]
        environment = os.environ | {"GNNFLOW_BENCH_GRAPH": str(graph)}
        subprocess.run([*map(str, command)], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=TIME_LIMIT)
        found = json.loads(out.read_text())
    rates = {}
    for row in found["results"]:
        rates.setdefault(row["case"], {}).setdefault(row["threads"], {})[row.get("pages", "")] = row["rate"]
    return rates, {name: found[name] for name in ("epoch_nodes", "epoch_edges", "train_nodes", "train_edges", "nodes", "edges")}


def rate(rates, case, threads):
    """Returns a rate, in large pages if the system has them."""
    found = rates[case][threads]
    return found.get("") or found.get("large") or found["small"]


def of_batches(rates, counts, widths, threads):
    """Returns, by stage, the least seconds of an epoch of mini-batch GraphSAGE with layers of `widths` columns.

    Sampling reads, on one thread, two lines for each edge and one for the bounds of each node. The forward pass multiplies rows of nodes and of
    means, and reads each row of features once. The backward pass multiplies twice as much, but not for gradients of features. Other
    passes over rows of a batch stay in caches and count as nothing.
    """
    # From the seeds outwards in the lists of nodes; from the features on in the layers.
    nodes, edges = counts["epoch_nodes"], counts["epoch_edges"]
    layers = [(nodes[-2 - layer], 2 * widths[layer] * widths[layer + 1]) for layer in range(len(edges))]
    forward = sum(rows * parameters for rows, parameters in layers)
    backward = 2 * forward - layers[0][0] * layers[0][1]
    features = nodes[-1] * 4 * widths[0] / rate(rates, "rows", threads)
    multiply = rate(rates, "multiply", threads)
    lines = 2 * sum(edges) + sum(nodes[:-1])
    return {"sample": lines * 64 / rate(rates, "lines", 1), "forward": forward / multiply + features, "backward": backward / multiply}


def of_epoch(stages, threads):
    """Returns the least seconds of an epoch whose stages keep all threads busy."""
    return stages["forward"] + stages["backward"] + stages["sample"] / threads


def of_full_graph(rates, counts, model, widths, threads):
    """Returns the least seconds of an epoch of full-graph training with two layers of `widths` columns.

    Rows of neighbors are read, and results written, at the rate of a copy: for GCN in both directions, for GAT in the three passes of
    attention. The second layer is computed for training nodes only. Rows are multiplied before they are summed. Rows that are still in a cache
    take less time than this.
    """
    multiplied, moved = 0, 0
    of_all, of_training = (counts["edges"], counts["nodes"]), (counts["train_edges"], counts["train_nodes"])
    for layer, ((edges, nodes), columns) in enumerate([(of_all, widths[1]), (of_training, widths[2])]):
        # One pass writes rows of destinations; the others write gradients of all sources.
        passes = 3 if model == "gat" else 2
        moved += passes * edges * (4 * columns + 4) + (nodes + (passes - 1) * counts["nodes"]) * 4 * columns
        # The result, the gradient of the weight, and, but for features, the gradient of rows.
        multiplied += (2 + layer) * counts["nodes"] * widths[layer] * columns
    return moved / rate(rates, "copy", threads) + multiplied / rate(rates, "multiply", threads)
