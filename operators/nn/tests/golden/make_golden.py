"""Creates golden.safetensors: results of PyTorch, PyG and DGL on small fixed inputs.

Run with torch 2.2.1, torch_geometric 2.6.1 and dgl 2.1.0 (CPU):  python make_golden.py golden.safetensors
Layers and losses are computed in float64 from inputs that are exact in float32, optimizers in float32 as users run them.
Names are `case/array`; gradients are of sum(output * probe), under `case/grad.*`.
"""

import json
import struct
import sys

import dgl
import torch
import torch.nn.functional as F
from dgl.nn import SAGEConv as DglSage
from torch_geometric.nn import (APPNP, GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, JumpingKnowledge, RGCNConv, SAGEConv,
                                SGConv)

torch.manual_seed(20240601)
arrays = {}


def keep(case, **values):
    for name, value in values.items():
        arrays[f"{case}/{name.replace('__', '.')}"] = value.detach().clone()


def normal(*shape):
    return torch.randn(*shape).double()  # float32 values, held in float64


def random_block(num_dst, num_src, max_degree):
    """CSC by destination; distinct sources, no self-loops, some destinations without any."""
    indptr, indices = [0], []
    for i in range(num_dst):
        degree = 0 if i % 7 == 3 else int(torch.randint(1, max_degree + 1, (1,)))
        others = [j for j in torch.randperm(num_src).tolist() if j != i]
        indices += sorted(others[:degree])
        indptr.append(len(indices))
    return torch.tensor(indptr), torch.tensor(indices)


def edge_index(indptr, indices):
    return torch.stack([indices, torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())])


def run(case, x, parameters, forward, **more):
    """Keeps inputs, parameters, output and gradients."""
    x = x.clone().requires_grad_()
    out = forward(x)
    probe = normal(*out.shape)
    (out * probe).sum().backward()
    keep(case, x=x, out=out, probe=probe, grad__x=x.grad, **more)
    for name, parameter in parameters.items():
        keep(case, **{name: parameter, "grad__" + name: parameter.grad})


def layer(module):
    for parameter in module.parameters():
        parameter.data = normal(*parameter.shape) * 0.5
    return module.double()


# Bipartite: destinations are the first sources.
indptr, indices = random_block(20, 45, 6)
arrays["block/indptr"], arrays["block/indices"] = indptr, indices
edges = edge_index(indptr, indices)
block = dgl.create_block(("csc", (indptr, indices, torch.tensor([]))), num_src_nodes=45, num_dst_nodes=20)
# Square: every node is a destination.
square_indptr, square_indices = random_block(24, 24, 5)
arrays["square/indptr"], arrays["square/indices"] = square_indptr, square_indices
square = edge_index(square_indptr, square_indices)

for name, dims in [("narrowing", (9, 5)), ("widening", (5, 8))]:
    conv = layer(SAGEConv(dims[0], dims[1], aggr="mean"))
    run(f"sage-mean-{name}", normal(45, dims[0]),
        {"neighbor.weight": conv.lin_l.weight, "self.weight": conv.lin_r.weight, "bias": conv.lin_l.bias},
        lambda x: conv((x, x[:20]), edges))
    conv = layer(DglSage(*dims, "gcn"))
    run(f"sage-gcn-{name}", normal(45, dims[0]), {"neighbor.weight": conv.fc_neigh.weight, "bias": conv.bias},
        lambda x: conv(block, x))
    conv = layer(DglSage(*dims, "pool"))
    run(f"sage-pool-{name}", normal(45, dims[0]),
        {"neighbor.weight": conv.fc_neigh.weight, "self.weight": conv.fc_self.weight, "bias": conv.fc_self.bias,
         "pool.weight": conv.fc_pool.weight, "pool.bias": conv.fc_pool.bias},
        lambda x: conv(block, x))
    conv = layer(GCNConv(*dims))
    run(f"gcn-{name}", normal(24, dims[0]), {"weight": conv.lin.weight, "bias": conv.bias}, lambda x: conv(x, square))

for name, concat in [("concat", True), ("mean", False)]:
    conv = layer(GATConv(7, 4, heads=3, concat=concat))
    lin = conv.lin_src if getattr(conv, "lin", None) is None else conv.lin
    run(f"gat-{name}", normal(24, 7),
        {"weight": lin.weight, "source": conv.att_src, "destination": conv.att_dst, "bias": conv.bias},
        lambda x: conv(x, square))
    conv = layer(GATConv((7, 7), 4, heads=3, concat=concat))
    conv.lin_dst = conv.lin_src  # one map for both ends, as in gnnflow
    run(f"gat-{name}-bipartite", normal(45, 7),
        {"weight": conv.lin_src.weight, "source": conv.att_src, "destination": conv.att_dst, "bias": conv.bias},
        lambda x: conv((x, x[:20]), edges))

# A model of two layers over two blocks of one batch, with its loss.
outer_indptr, outer_indices = random_block(45, 80, 4)
arrays["outer/indptr"], arrays["outer/indices"] = outer_indptr, outer_indices
first, second = layer(SAGEConv(9, 6)), layer(SAGEConv(6, 4))
x = normal(80, 9)
labels = torch.randint(0, 4, (20,))
h = first((x, x[:45]), edge_index(outer_indptr, outer_indices)).relu()
logits = second((h, h[:20]), edges)
loss = F.cross_entropy(logits, labels, reduction="sum")
loss.backward()
keep("model", x=x, labels=labels, logits=logits, loss=loss)
for i, conv in enumerate([first, second]):
    for name, parameter in [("neighbor.weight", conv.lin_l.weight), ("self.weight", conv.lin_r.weight),
                            ("bias", conv.lin_l.bias)]:
        keep("model", **{f"layers.{i}.{name}": parameter, f"grad__layers.{i}.{name}": parameter.grad})

logits = (normal(33, 7) * 4).requires_grad_()
labels = torch.randint(0, 7, (33,))
loss = F.cross_entropy(logits, labels, reduction="sum")
loss.backward()
keep("cross-entropy", logits=logits, labels=labels, loss=loss, grad=logits.grad)
logits = (normal(33, 7) * 4).requires_grad_()
targets = (normal(33, 7) > 0).double()
loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
loss.backward()
keep("binary-cross-entropy", logits=logits, targets=targets, loss=loss, grad=logits.grad)
x = (normal(11, 7) * 4).requires_grad_()
probe = normal(11, 7)
out = F.log_softmax(x, dim=1)
(out * probe).sum().backward()
keep("log-softmax", x=x, out=out, probe=probe, grad=x.grad)

optimizers = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=5e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
}
start, gradients = torch.randn(50), torch.randn(20, 50)
keep("optimizers", start=start, gradients=gradients)
for name, make in optimizers.items():
    p = torch.nn.Parameter(start.clone())
    optimizer = make([p])
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    keep("optimizers", **{name: p})

# Added later, so that the cases above keep their random numbers.
for name, concat in [("concat", True), ("mean", False)]:
    for suffix, graph, sources in [("", square, 24), ("-bipartite", edges, 45)]:
        conv = layer(GATv2Conv(7, 4, heads=3, concat=concat, add_self_loops=False))
        targets = 24 if sources == 24 else 20
        loops = torch.arange(targets).repeat(2, 1)
        graph = torch.cat([graph, loops], 1)
        run(f"gatv2-{name}{suffix}", normal(sources, 7),
            {"source.weight": conv.lin_l.weight, "source.bias": conv.lin_l.bias,
             "destination.weight": conv.lin_r.weight, "destination.bias": conv.lin_r.bias,
             "attention": conv.att, "bias": conv.bias},
            lambda x: conv((x, x[:targets]), graph))

for name, train_eps in [("learnt", True), ("fixed", False)]:
    maps = [torch.nn.Linear(9, 6), torch.nn.Linear(6, 5)]
    conv = layer(GINConv(torch.nn.Sequential(maps[0], torch.nn.ReLU(), maps[1]), eps=0.3, train_eps=train_eps))
    named = {f"mlp.{i}.{part}": getattr(m, part) for i, m in enumerate(maps) for part in ["weight", "bias"]}
    run(f"gin-{name}", normal(45, 9), {**named, **({"epsilon": conv.eps} if train_eps else {})},
        lambda x: conv((x, x[:20]), edges))

conv = layer(SGConv(9, 5, K=3))
run("sgc", normal(24, 9), {"layers.2.weight": conv.lin.weight, "layers.2.bias": conv.lin.bias}, lambda x: conv(x, square))

maps = [layer(torch.nn.Linear(9, 6)), layer(torch.nn.Linear(6, 5))]
named = {f"mlp.{i}.{part}": getattr(m, part) for i, m in enumerate(maps) for part in ["weight", "bias"]}
run("appnp", normal(24, 9), named, lambda x: APPNP(3, 0.2)(maps[1](maps[0](x).relu()), square))

types = torch.randint(0, 4, (len(indices),))
types[types == 2] = 3  # a relation without edges
arrays["block/types"] = types
for name, bases in [("each", None), ("bases", 3)]:
    conv = layer(RGCNConv((9, 9), 6, num_relations=5, num_bases=bases))
    x = normal(45, 9).requires_grad_()
    out, probe = conv((x, x[:20]), edges, types), None
    probe = normal(*out.shape)
    (out * probe).sum().backward()
    keep(f"rgcn-{name}", x=x, out=out, probe=probe, grad__x=x.grad)
    # PyG stores matrices as input × output, gnnflow as output × input.
    matrices = "weight" if bases is None else "bases"
    for key, value in [(matrices, conv.weight), ("root.weight", conv.root)]:
        keep(f"rgcn-{name}", **{key: value.mT, "grad__" + key: value.grad.mT})
    keep(f"rgcn-{name}", bias=conv.bias, grad__bias=conv.bias.grad)
    if bases:
        keep(f"rgcn-{name}", coefficients=conv.comp, grad__coefficients=conv.comp.grad)

for name, module in [("batch", torch.nn.BatchNorm1d(7)), ("layer", torch.nn.LayerNorm(7))]:
    module = layer(module)
    run(f"{name}-norm", normal(33, 7) * 3 + 5, {"weight": module.weight, "bias": module.bias}, module)
    if name == "batch":
        keep("batch-norm", running_mean=module.running_mean, running_var=module.running_var)

for name in ["relu", "elu", "leaky_relu", "tanh", "gelu"]:
    function = (lambda x: F.gelu(x, approximate="tanh")) if name == "gelu" else getattr(torch, name, getattr(F, name, None))
    run(f"activation-{name}", normal(20, 7) * 3, {}, function)

# Models of two layers over two blocks, in training, with residuals, norms and jumping knowledge.
for how in ["cat", "max", "mean"]:
    layers_of = [layer(SAGEConv(9, 6)), layer(SAGEConv(6, 6))]
    norms = [layer(torch.nn.BatchNorm1d(6)), layer(torch.nn.BatchNorm1d(6))]
    projection = layer(torch.nn.Linear(9, 6, bias=False))
    readout = layer(torch.nn.Linear(12 if how == "cat" else 6, 4))
    x, labels = normal(80, 9), torch.randint(0, 4, (20,))
    h = layers_of[0]((x, x[:45]), edge_index(outer_indptr, outer_indices)) + projection(x[:45])
    first = norms[0](h).relu()
    second = norms[1](layers_of[1]((first, first[:20]), edges) + first[:20]).relu()
    results = [first[:20], second]
    joined = sum(results) / 2 if how == "mean" else JumpingKnowledge(how)(results)
    logits = readout(joined)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    loss.backward()
    keep(f"jumping-{how}", x=x, labels=labels, logits=logits, loss=loss)
    named = {"layers.0.residual.weight": projection.weight, "readout.weight": readout.weight, "readout.bias": readout.bias}
    for i, (conv, norm) in enumerate(zip(layers_of, norms)):
        named |= {f"layers.{i}.neighbor.weight": conv.lin_l.weight, f"layers.{i}.self.weight": conv.lin_r.weight,
                  f"layers.{i}.bias": conv.lin_l.bias, f"layers.{i}.norm.weight": norm.weight,
                  f"layers.{i}.norm.bias": norm.bias}
        keep(f"jumping-{how}", **{f"layers.{i}.norm.running_mean": norm.running_mean,
                                  f"layers.{i}.norm.running_var": norm.running_var})
    for name, parameter in named.items():
        keep(f"jumping-{how}", **{name: parameter, "grad__" + name: parameter.grad})

# Edges with features: 3 numbers each. Self-loops get the mean of the edges into their node, as PyG gives them.
edge_rows = {"block": normal(len(indices), 3), "square": normal(len(square_indices), 3)}
for name, rows in edge_rows.items():
    arrays[f"{name}/edges"] = rows
for name, concat in [("concat", True), ("mean", False)]:
    for suffix, graph, sources, rows in [("", square, 24, "square"), ("-bipartite", edges, 45, "block")]:
        conv = layer(GATv2Conv(7, 4, heads=3, concat=concat, edge_dim=3))
        targets = 24 if sources == 24 else 20
        run(f"gatv2-edges-{name}{suffix}", normal(sources, 7),
            {"source.weight": conv.lin_l.weight, "source.bias": conv.lin_l.bias,
             "destination.weight": conv.lin_r.weight, "destination.bias": conv.lin_r.bias,
             "edge.weight": conv.lin_edge.weight, "attention": conv.att, "bias": conv.bias},
            lambda x: conv((x, x[:targets]), graph, edge_rows[rows]))

for name, train_eps in [("learnt", True), ("fixed", False)]:
    maps = [torch.nn.Linear(9, 6), torch.nn.Linear(6, 5)]
    nn = torch.nn.Sequential(maps[0], torch.nn.ReLU(), maps[1])
    conv = layer(GINEConv(nn, eps=0.3, train_eps=train_eps, edge_dim=3))
    named = {f"mlp.{i}.{part}": getattr(m, part) for i, m in enumerate(maps) for part in ["weight", "bias"]}
    named |= {"edge.weight": conv.lin.weight, "edge.bias": conv.lin.bias}
    run(f"gine-{name}", normal(45, 9), {**named, **({"epsilon": conv.eps} if train_eps else {})},
        lambda x: conv((x, x[:20]), edges, edge_rows["block"]))

header, data = {}, b""
for name, value in sorted(arrays.items()):
    value = value.contiguous()
    if not value.is_floating_point():
        value, kind = value.int(), "I32"
    elif value.dtype == torch.float64:
        # Inputs are exact in float32; outputs are rounded far below the tolerance of 1e-5.
        value, kind = value.float(), "F32"
    else:
        kind = "F32"
    raw = value.numpy().tobytes()
    header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
versions = f"torch {torch.__version__}, dgl {dgl.__version__}, torch_geometric {__import__('torch_geometric').__version__}"
header["__metadata__"] = {"made_by": "operators/nn/tests/golden/make_golden.py", "versions": versions}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
print(len(arrays), "arrays,", len(text) + len(data), "bytes;", versions)
