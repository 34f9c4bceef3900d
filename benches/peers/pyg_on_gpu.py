#!/usr/bin/env python3
"""Epochs with PyTorch Geometric on a GPU, for benches/gpu.py.

    benches/peers/pyg_on_gpu.py GRAPH --model gcn|gat|sage --hidden N --heads N --layers N [--format csr|coo] [--epochs 10]
    benches/peers/pyg_on_gpu.py GRAPH --model sage|gat --hidden N --fanouts 15,10,5 --batch 1000 [--loaders 8] [--epochs 10]

GRAPH is a folder with nodes.parquet (features, label, split) and edges.parquet (src, dst), as `generate` writes them. Edges get both directions.
Features and labels are on the GPU before the first epoch. The first form trains with the full graph, which is on the GPU, too; GCN's weights are
computed once. An epoch is forward pass, loss of the training nodes, backward pass and a step of Adam. The second form trains with batches:
NeighborLoader samples in --loaders processes, which stay between epochs, and needs pyg-lib or torch-sparse. Every layer computes all nodes of the
sampled subgraph, as in PyTorch Geometric's examples; gnnflow's layers compute the nodes that later layers read. Prints one line of JSON.
"""
import argparse, json, pathlib, statistics, time

import numpy, pyarrow.parquet, torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import add_remaining_self_loops, coalesce, degree


def column(table, name):
    return numpy.concatenate([numpy.asarray(chunk) for chunk in table.column(name).chunks])


def load(folder, device):
    """Returns edges (sources, destinations), features, labels and training nodes."""
    edges = pyarrow.parquet.read_table(folder / "edges.parquet")
    ends = torch.from_numpy(numpy.stack([column(edges, name).astype(numpy.int64) for name in ("src", "dst")])).to(device)
    nodes = pyarrow.parquet.read_table(folder / "nodes.parquet")
    rows = nodes.column("features").combine_chunks()
    features = numpy.asarray(rows.flatten(), dtype=numpy.float32).reshape(len(rows), -1)
    labels = torch.from_numpy(column(nodes, "label").astype(numpy.int64)).to(device)
    train = torch.from_numpy(numpy.asarray(nodes.column("split").to_pylist()) == "train").to(device)
    edges = coalesce(torch.cat([ends, ends.flip(0)], 1), num_nodes=len(rows))
    return edges, torch.from_numpy(features).to(device), labels, train.nonzero().flatten()


class Net(torch.nn.Module):
    def __init__(self, options, columns, classes):
        super().__init__()
        widths = [columns, *[options.hidden] * (options.layers - 1), classes]
        if options.model == "gcn":
            layers = [GCNConv(before, after, normalize=False, add_self_loops=False) for before, after in zip(widths, widths[1:])]
        elif options.model == "sage":
            layers = [SAGEConv(before, after) for before, after in zip(widths, widths[1:])]
        else:
            last = [False] * (options.layers - 1) + [True]
            layers = [GATConv(before, after if is_last else after // options.heads, 1 if is_last else options.heads, add_self_loops=options.fanouts is not None)
                      for before, after, is_last in zip(widths, widths[1:], last)]
        self.layers, self.activation = torch.nn.ModuleList(layers), F.elu if options.model == "gat" else F.relu

    def forward(self, x, *graph):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x, *graph))
        return self.layers[-1](x, *graph)


def full_graph(options, net, optimizer, edges, features, labels, train):
    """Returns a function that trains an epoch and returns its loss."""
    nodes = len(features)
    edges, _ = add_remaining_self_loops(edges, num_nodes=nodes)
    # Rows are destinations, in order.
    edges = edges[:, (edges[1] * nodes + edges[0]).argsort()]
    graph = (edges,)
    if options.model == "gcn":
        norms = degree(edges[1], nodes).pow(-0.5)
        weights = norms[edges[0]] * norms[edges[1]]
        if options.format == "csr":
            offsets = torch.cat([edges.new_zeros(1), torch.bincount(edges[1], minlength=nodes).cumsum(0)])
            graph = (torch.sparse_csr_tensor(offsets, edges[0], weights, (nodes, nodes)),)
        else:
            graph = (edges, weights)

    def epoch():
        loss = F.cross_entropy(net(features, *graph)[train], labels[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return epoch


def batches(options, net, optimizer, edges, features, labels, train):
    """Returns the same for batches. Features and labels are gathered on the GPU."""
    loader = NeighborLoader(Data(edge_index=edges.cpu(), num_nodes=len(features)), options.fanouts, input_nodes=train.cpu(), batch_size=options.batch,
                            shuffle=True, num_workers=options.loaders, persistent_workers=options.loaders > 0)

    def epoch():
        total = 0.0
        for batch in loader:
            nodes, edges = (part.to(features.device, non_blocking=True) for part in (batch.n_id, batch.edge_index))
            seeds = nodes[: batch.batch_size]
            loss = F.cross_entropy(net(features[nodes], edges)[: batch.batch_size], labels[seeds])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(seeds)
        return total / len(train)

    return epoch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=pathlib.Path)
    parser.add_argument("--model", choices=["gcn", "gat", "sage"], default="gcn")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--format", choices=["csr", "coo"], default="csr")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--fanouts", type=lambda text: [int(fanout) for fanout in text.split(",")])
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--loaders", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device(options.device)
    edges, features, labels, train = load(options.graph, device)
    net = Net(options, features.shape[1], int(labels.max()) + 1).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    epoch = (batches if options.fanouts else full_graph)(options, net, optimizer, edges, features, labels, train)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds, losses = [], []
    for _ in range(options.epochs + 2):
        wait()
        begin = time.perf_counter()
        loss = epoch()
        wait()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss)
    print(json.dumps({"edges": edges.shape[1], "epoch_seconds": statistics.median(seconds[2:]), "seconds": seconds, "losses": losses,
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
