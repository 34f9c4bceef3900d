"""The layers of gnnflow at inference, over all in-edges of all nodes. Arrays are those of numpy or PyTorch.

A layer maps rows ``h``, ``[nodes, in]``, to rows ``[nodes, out]``. ``p`` has its parameters by name. Options that
follow from the parameters (heads, aggregator, bases) are not read from the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .error import Error
from .graph import Graph
from .ops import Edges

Params = Mapping[str, Any]
Activation = Callable[[Any], Any]

#: The slope of leaky ReLU below 0 in attention.
SLOPE = 0.2


def activation(xp: Any, name: str) -> Activation:
    """Returns the function called ``name`` in the pipeline."""
    functions: dict[str, Activation] = {
        "none": lambda x: x,
        "relu": lambda x: x.clip(0),
        "elu": lambda x: xp.where(x > 0, x, xp.expm1(x.clip(max=0))),
        "leaky_relu": lambda x: leaky(xp, x, 0.01),
        "tanh": xp.tanh,
        "gelu": lambda x: 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
    }
    if name not in functions:
        raise Error(f"model.activation: `{name}` is unknown to this version of the package; use the version of the run")
    return functions[name]


def leaky(xp: Any, x: Any, slope: float) -> Any:
    return xp.where(x > 0, x, slope * x)


def linear(x: Any, weight: Any, bias: Any = 0) -> Any:
    """``[rows, in]`` → ``[rows, out]``; the weight is ``[out, in]``."""
    return x @ weight.T + bias


def perceptron(p: Params, x: Any, act: Activation) -> Any:
    """Linear maps ``mlp.0``, ``mlp.1``, … with ``act`` between them."""
    count = sum(name.startswith("mlp.") and name.endswith(".weight") for name in p)
    for k in range(count):
        x = linear(x if k == 0 else act(x), p[f"mlp.{k}.weight"], p.get(f"mlp.{k}.bias", 0))
    return x


def sage(p: Params, h: Any, graph: Graph) -> Any:
    if "self.weight" not in p:
        return linear(graph.with_self_loops.mean(h), p["neighbor.weight"], p["bias"])
    if "pool.weight" in p:
        sent = linear(h, p["pool.weight"], p["pool.bias"]).clip(0)
        aggregated = graph.map(lambda edges: graph.ops.max(sent[edges.src], edges))
    else:
        aggregated = graph.mean(h)
    return linear(h, p["self.weight"], p["bias"]) + linear(aggregated, p["neighbor.weight"])


def propagate(h: Any, graph: Graph) -> Any:
    """``Σ_j h_j / √((d_i + 1)(d_j + 1))`` over the neighbors and the node itself; degrees d count no self-loops."""
    graph = graph.with_self_loops
    scale = graph.ops.rows(1.0 / np.sqrt(graph.degrees))[:, None]
    return graph.sum(h * scale) * scale


def gcn(p: Params, h: Any, graph: Graph) -> Any:
    return linear(propagate(h, graph), p["weight"], p["bias"])


def softmax(ops: Any, logits: Any, edges: Edges) -> Any:
    """The softmax over the in-edges of each node: ``[edges, heads]`` → ``[edges, heads]``."""
    powers = ops.xp.exp(logits - ops.max(logits, edges)[edges.segment])
    return powers / ops.sum(powers, edges)[edges.segment]


def head_dot(rows: Any, vectors: Any) -> Any:
    """``[rows, heads · width]`` and ``[heads, width]`` → ``[rows, heads]``"""
    return (rows.reshape(len(rows), *vectors.shape) * vectors).sum(2)


def attend(sent: Any, graph: Graph, heads: int, logits: Callable[[Edges], Any]) -> Any:
    """For each head, the sum of the sent rows weighted by the softmax of ``logits``, ``[edges, heads]``.

    It is over the neighbors and the node itself.
    """
    graph, (nodes, columns) = graph.with_self_loops, sent.shape

    def reduce(edges: Edges) -> Any:
        weights = softmax(graph.ops, logits(edges), edges)
        rows = sent.reshape(nodes, heads, columns // heads)[edges.src] * weights[:, :, None]
        return graph.ops.sum(rows, edges).reshape(edges.nodes, columns)

    return graph.map(reduce)


def join_heads(rows: Any, heads: int, bias: Any) -> Any:
    """Adds the bias to the concatenated heads, or to their mean if it is as wide as one head."""
    if bias.shape[0] != rows.shape[1]:
        rows = rows.reshape(len(rows), heads, bias.shape[0]).mean(1)
    return rows + bias


def gat(p: Params, h: Any, graph: Graph) -> Any:
    sent, heads = linear(h, p["weight"]), p["source"].shape[0]
    logits = additive_logits(sent, p["source"], p["destination"], graph)
    return join_heads(attend(sent, graph, heads, logits), heads, p["bias"])


def additive_logits(rows: Any, source: Any, destination: Any, graph: Graph) -> Callable[[Edges], Any]:
    """GAT's logits: leaky ReLU of a score of the source and one of the destination."""
    left, right = head_dot(rows, source), head_dot(rows, destination)
    return lambda edges: leaky(graph.ops.xp, left[edges.src] + right[edges.dst], SLOPE)


def gatv2(p: Params, h: Any, graph: Graph) -> Any:
    left = linear(h, p["source.weight"], p["source.bias"])
    right = linear(h, p["destination.weight"], p["destination.bias"])
    if "edge.weight" in p:
        needs("edge_features", graph.features, p["edge.weight"].shape[1])

    def logits(edges: Edges) -> Any:
        rows = left[edges.src] + right[edges.dst]
        if "edge.weight" in p:
            rows = rows + linear(edges.features, p["edge.weight"])
        return head_dot(leaky(graph.ops.xp, rows, SLOPE), p["attention"])

    heads = p["attention"].shape[0]
    return join_heads(attend(left, graph, heads, logits), heads, p["bias"])


def gin(p: Params, h: Any, graph: Graph, eps: float, act: Activation) -> Any:
    return perceptron(p, (1 + p.get("epsilon", eps)) * h + graph.sum(h), act)


def gine(p: Params, h: Any, graph: Graph, eps: float, act: Activation) -> Any:
    needs("edge_features", graph.features, p["edge.weight"].shape[1])

    def reduce(edges: Edges) -> Any:
        messages = h[edges.src] + linear(edges.features, p["edge.weight"], p["edge.bias"])
        return graph.ops.sum(messages.clip(0), edges)

    return perceptron(p, (1 + p.get("epsilon", eps)) * h + graph.map(reduce), act)


def rgcn(p: Params, h: Any, graph: Graph) -> Any:
    if "bases" in p:
        bases = p["bases"]
        mixed = p["coefficients"] @ bases.reshape(bases.shape[0], -1)
        weights = mixed.reshape(mixed.shape[0], *bases.shape[1:])
    else:
        weights = p["weight"]
    types = needs("edge_types", graph.types)
    if types.size and not 0 <= types.min() <= types.max() < len(weights):
        raise Error(f"`edge_types` must be at least 0 and less than {len(weights)}, the number of types of the model")
    result = linear(h, p["root.weight"], p["bias"])
    for edge_type in np.unique(types):
        result = result + linear(graph.of_type(edge_type).mean(h), weights[edge_type])
    return result


def mlp(p: Params, h: Any, graph: Graph) -> Any:
    return linear(h, p["weight"], p["bias"])


def sgc(p: Params, h: Any, graph: Graph) -> Any:
    h = propagate(h, graph)
    return linear(h, p["weight"], p["bias"]) if "weight" in p else h


def needs(name: str, values: np.ndarray | None, columns: int | None = None) -> np.ndarray:
    """Returns the argument ``name``. Raises ``Error`` unless it is given, with ``columns`` columns."""
    if values is None:
        raise Error(f"the model reads `{name}`; pass them with one row for each edge")
    if columns is not None and values.shape[1:] != (columns,):
        raise Error(f"`{name}` has the shape {values.shape}; the model reads {columns} columns")
    return values
