#!/usr/bin/env python3
"""Times inference of all nodes with DGL, layer by layer from all neighbors, once for each line of stdin; prints one line of JSON each time.

    <python with dgl, torch and pyarrow> benches/peers/inference.py GRAPH [--layers 2] [--hidden 256] [--threads 2] [--no-loader]

GRAPH is a folder of nodes.parquet (node_id 0, 1, …, features, label) and edges.parquet (src, dst), read as undirected. The model is
GraphSAGE (mean) with random weights. `whole` propagates each layer over the whole graph at once. `loader` computes batches of 4,096 nodes
with DGL's data loader, as DGL's examples do; it takes minutes, so it is measured once, with the second line, or not at all (--no-loader).
Features and all rows are in memory; nothing is read or written.
"""
import argparse, json, pathlib, sys, time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-loader", action="store_true")
    options = parser.parse_args()
    import dgl, dgl.nn, numpy as np, pyarrow.parquet as pq, torch

    torch.set_num_threads(options.threads)
    dgl.utils.set_num_threads(options.threads)
    torch.manual_seed(1)
    nodes = pq.read_table(options.graph / "nodes.parquet", columns=["features", "label"])
    features = nodes["features"].combine_chunks()
    x = torch.from_numpy(np.asarray(features.flatten(), dtype=np.float32).reshape(len(features), -1))
    classes = int(np.asarray(nodes["label"].drop_null()).max()) + 1
    edges = pq.read_table(options.graph / "edges.parquet")
    src, dst = (torch.from_numpy(np.array(edges[name])) for name in ["src", "dst"])
    del nodes, edges
    graph = dgl.graph((torch.cat([src, dst]), torch.cat([dst, src])), num_nodes=len(x)).formats("csc")
    del src, dst
    sizes = [x.shape[1], *[options.hidden] * (options.layers - 1), classes]
    layers = torch.nn.ModuleList(dgl.nn.SAGEConv(width, out, "mean") for width, out in zip(sizes, sizes[1:]))

    def activated(layer, rows):
        return rows if layer is layers[-1] else rows.relu_()

    def by_loader():
        rows = x
        sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
        for layer, width in zip(layers, sizes[1:]):
            out = torch.empty(len(x), width)
            loader = dgl.dataloading.DataLoader(graph, torch.arange(len(x)), sampler, batch_size=4096, shuffle=False, drop_last=False, num_workers=0)
            for inputs, outputs, (block,) in loader:
                out[outputs] = activated(layer, layer(block, rows[inputs]))
            rows = out
        return rows

    def by_whole_graph():
        rows = x
        for layer in layers:
            rows = activated(layer, layer(graph, rows))
        return rows

    with torch.no_grad():
        for turn, _ in enumerate(sys.stdin):
            measured = {}
            for name, infer in [("whole", by_whole_graph)] + [("loader", by_loader)] * (turn == 1 and not options.no_loader):
                begin = time.perf_counter()
                classes_of_nodes = infer().argmax(1)
                measured[name] = time.perf_counter() - begin
                del classes_of_nodes
            print(json.dumps(measured | {"dgl": dgl.__version__}), flush=True)


if __name__ == "__main__":
    main()
