#!/usr/bin/env python3
"""Compares losses and weights of five epochs of full-graph training with PyTorch and PyG.

    GNNFLOW_PEERS_PYTHON=<python with torch, torch_geometric, pandas, pyarrow> benches/peers/exact.py GRAPH [--out FILE]

GRAPH is a folder of nodes.parquet (node_id, features, label, split) and edges.parquet (src, dst). GCN, GAT and GATv2 (2 layers, hidden
16, 4 heads, no dropout) train from equal weights, written by gnnflow, on the same nodes. gnnflow trains by `full-graph` with one and two
processes, and by `tensor-parallel` with the original layers and with a decoupled GCN and GAT (a perceptron, then propagations). Prints
the largest relative difference of losses and the largest difference of weights, and exits with 1 above 1e-5. Runs with SGD and with
Adam. With Adam weights are not compared, because a gradient of rounding errors changes them as much as any other.
"""
import argparse, json, os, pathlib, struct, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import about, build, sets, write

EPOCHS, HIDDEN, HEADS, BOUND = 5, 16, 4, 1e-5
RATES = {"sgd": 0.5, "adam": 0.01}
PIPELINE = """
name = "exact"
[graph]
nodes = "{graph}/nodes.parquet"
edges = "{graph}/edges.parquet"
undirected = true
duplicates = "drop"
self_loops = "drop"
columns = {{ id = "node_id", features = "features", label = "label", split = "split", src = "src", dst = "dst" }}
[partition]
method = "random"
parts = 4
out = "dataset"
[model]
kind = "gcn"
layers = 2
hidden = 16
dropout = 0.0
[train]
schedule = "full-graph"
epochs = 5
evaluate_every = 0
optimizer = {{ kind = "{optimizer}", lr = {lr} }}
seed = 3
"""


def weights(path):
    """Reads a safetensors file. Returns shape and bytes by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in about["data_offsets"])
            found[name] = (about["shape"], data[begin:end])
    return found


def ours(binary, work, settings, processes=1):
    run = work / "run"
    command = [binary, "run", work / "p.toml", "--run-dir", run, "--quiet", "--processes", str(processes)]
    subprocess.run([*map(str, command), *sets(settings)], check=True)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines], weights(run / "model.safetensors")


def reference(graph, start, kind, rule):
    """Trains with PyTorch and PyG from the weights `start`. Returns losses and weights."""
    import numpy as np, pandas as pd, torch
    from torch_geometric.nn import GATConv, GATv2Conv
    from torch_geometric.utils import coalesce, remove_self_loops, softmax, to_undirected

    nodes, edges = pd.read_parquet(graph / "nodes.parquet"), pd.read_parquet(graph / "edges.parquet")
    index = {node: row for row, node in enumerate(nodes["node_id"])}
    pairs = np.stack([edges["src"].map(index).to_numpy(), edges["dst"].map(index).to_numpy()])
    edge_index = remove_self_loops(coalesce(to_undirected(torch.from_numpy(pairs))))[0]
    x = torch.from_numpy(np.stack(nodes["features"].to_numpy()).astype(np.float32))
    names = sorted(nodes["label"].dropna().unique())
    y = torch.tensor([names.index(label) if label == label else -1 for label in nodes["label"]])
    train = torch.from_numpy((nodes["split"] == "train").to_numpy().nonzero()[0])
    tensor = lambda name: torch.frombuffer(bytearray(start[name][1]), dtype=torch.float32).reshape(start[name][0]).clone()
    params = {name: torch.nn.Parameter(tensor(name)) for name in start}
    degree = torch.bincount(edge_index[1], minlength=len(nodes)).float() + 1
    loops = torch.arange(len(nodes))
    source, target = torch.cat([edge_index[0], loops]), torch.cat([edge_index[1], loops])
    weight = (degree[source] * degree[target]).rsqrt()
    adjacency = torch.sparse_coo_tensor(torch.stack([target, source]), weight, (len(nodes), len(nodes))).coalesce()
    linear = torch.nn.functional.linear

    def forward():
        if kind == "gcn":
            h = adjacency @ linear(x, params["layers.0.weight"]) + params["layers.0.bias"]
            return adjacency @ linear(h.relu(), params["layers.1.weight"]) + params["layers.1.bias"]
        if kind == "decoupled":
            first, second = (sorted(name for name in params if name.endswith(end)) for end in ("weight", "bias"))
            h = linear(linear(x, params[first[0]], params[second[0]]).relu(), params[first[1]], params[second[1]])
            return adjacency @ (adjacency @ h)
        if kind == "decoupled-gat":
            z = linear(torch.nn.functional.elu(linear(x, params["mlp.0.weight"], params["mlp.0.bias"])), params["mlp.1.weight"])
            z = z.view(len(nodes), HEADS, -1)
            left, right = ((z * params[f"layers.0.{name}"]).sum(-1) for name in ("source", "destination"))
            logits = torch.nn.functional.leaky_relu(left[source] + right[target], 0.2)
            attention = softmax(logits, target, num_nodes=len(nodes))
            for _ in range(2):  # the same attention twice
                z = torch.zeros_like(z).index_add(0, target, attention[..., None] * z[source])
            return z.mean(1) + params["layers.1.bias"]
        h = x
        for layer, heads in enumerate((HEADS, 1)):
            of = lambda name: params[f"layers.{layer}.{name}"]
            if kind == "gatv2":
                conv = GATv2Conv(h.shape[1], of("attention").shape[1], heads, concat=layer == 0)
                del conv.att
                conv.att, conv.bias = of("attention")[None], of("bias")
                for own, name in ((conv.lin_l, "source"), (conv.lin_r, "destination")):
                    own.weight, own.bias = of(f"{name}.weight"), of(f"{name}.bias")
                h = torch.nn.functional.elu(conv(h, edge_index)) if layer == 0 else conv(h, edge_index)
                continue
            width = of("weight").shape[0] // heads
            conv = GATConv(h.shape[1], width, heads, concat=layer == 0, bias=False)
            del conv.lin.weight, conv.att_src, conv.att_dst
            conv.lin.weight, conv.att_src, conv.att_dst = of("weight"), of("source")[None], of("destination")[None]
            h = conv(h, edge_index) + of("bias")
            h = torch.nn.functional.elu(h) if layer == 0 else h
        return h

    optimizer, losses = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule](params.values(), lr=RATES[rule]), []
    for _ in range(EPOCHS):
        loss = torch.nn.functional.cross_entropy(forward()[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: param.detach() for name, param in params.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=pathlib.Path)
    parser.add_argument("--out")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:  # in the peers' Python: compares a folder of weights
        import torch

        folder, (kind, rule) = pathlib.Path(options.inside), os.environ["KIND"].split()
        losses, params = reference(options.graph, weights(folder / "start"), kind, rule)
        found = weights(folder / "end")
        read = lambda name: torch.frombuffer(bytearray(found[name][1]), dtype=torch.float32).reshape(found[name][0])
        print(json.dumps({"losses": losses, "weights": max((read(name) - params[name]).abs().max().item() for name in params)}))
        return
    binary, python, rows = build(), os.environ.get("GNNFLOW_PEERS_PYTHON", sys.executable), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("GNNFLOW_BENCH_SCRATCH")) as scratch:
        work = pathlib.Path(scratch)
        columns = "train.schedule=tensor-parallel"
        contests = [
            ("gcn", [], 1), ("gcn", ["train.schedule.mode=sync"], 2), ("gcn", [columns, "model.decoupled=false"], 2), ("decoupled", [columns], 2),
            ("gat", ["model.kind=gat", f"model.heads={HEADS}"], 1), ("gat", ["model.kind=gat", f"model.heads={HEADS}", "train.schedule.intervals=2"], 2),
            ("gat", ["model.kind=gat", f"model.heads={HEADS}", columns], 2),
            ("gatv2", ["model.kind=gatv2", f"model.heads={HEADS}", "train.schedule.intervals=2"], 2),
            ("gatv2", ["model.kind=gatv2", f"model.heads={HEADS}", columns], 2),
            ("decoupled-gat", ["model.kind=gat", f"model.output_heads={HEADS}", "model.decoupled=true", columns], 2),
        ]
        for rule, (kind, settings, processes) in [(rule, contest) for rule in RATES for contest in contests]:
            (work / "p.toml").write_text(PIPELINE.format(graph=options.graph.resolve(), optimizer=rule, lr=RATES[rule]))
            # With a learning rate of almost 0, the result is the initial weights.
            ours(binary, work, [*settings, "train.epochs=1", "train.optimizer.lr=1e-30"])
            (work / "start").write_bytes((work / "run" / "model.safetensors").read_bytes())
            losses, _ = ours(binary, work, settings, processes)
            (work / "end").write_bytes((work / "run" / "model.safetensors").read_bytes())
            command = [python, __file__, options.graph, "--inside", work]
            printed = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | {"KIND": f"{kind} {rule}"})
            theirs = json.loads(printed.stdout.splitlines()[-1])
            loss = max(abs(a / b - 1) for a, b in zip(losses, theirs["losses"], strict=True))
            row = {"optimizer": rule, "model": kind, "settings": settings, "processes": processes, "loss_relative": loss, "weights": theirs["weights"]}
            rows.append(row)
            print(f"{rule:4} {kind:13} {processes} processes {' '.join(settings)}: losses within {loss:.1e}, weights within {row['weights']:.1e}", flush=True)
    if options.out:
        write(about("exact beside PyG") | {"epochs": EPOCHS, "results": rows}, "exact-beside-pyg", options.out)
    sys.exit(any(row["loss_relative"] > BOUND or row["optimizer"] == "sgd" and row["weights"] > BOUND for row in rows))


if __name__ == "__main__":
    main()
