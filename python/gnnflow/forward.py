"""The forward pass of a whole model at inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import layers
from .error import Error
from .graph import Graph

#: Kinds with parameters in every layer.
LAYERED: dict[str, Any] = {
    "sage": layers.sage,
    "gcn": layers.gcn,
    "gat": layers.gat,
    "gatv2": layers.gatv2,
    "gin": layers.gin,
    "gine": layers.gine,
    "rgcn": layers.rgcn,
    "mlp": layers.mlp,
}
#: All keys of `[model]`. Of these, training alone reads dropout and the keys that follow from the parameters.
KEYS = frozenset(
    "kind layers hidden heads output_heads aggregator eps train_eps mlp_layers teleport num_bases edge_features "
    "decoupled activation residual norm jumping_knowledge dropout input_dropout attention_dropout embedding".split()
)


def check(pipeline: Mapping[str, Any]) -> None:
    """Raises ``Error`` for a pipeline whose model this package cannot compute."""
    model, task = pipeline.get("model", {}), pipeline.get("train", {}).get("task", "node-classification")
    advice = "use `gnnflow infer`, or the version of this package that belongs to the run"
    if model.get("kind") not in {*LAYERED, "sgc", "appnp"}:
        raise Error(f"model.kind: this package has no layer `{model.get('kind')}`; {advice}")
    if unknown := sorted(model.keys() - KEYS):
        raise Error(f"model.{unknown[0]}: this package does not know the key; {advice}")
    for key, known in (("norm", "none batch layer"), ("jumping_knowledge", "none cat max mean")):
        if model.get(key, "none") not in known.split():
            raise Error(f"model.{key}: this package does not know `{model[key]}`; {advice}")
    if task not in ("node-classification", "node-regression"):
        raise Error(f"train.task: this package computes results of nodes, not those of `{task}`; use `gnnflow infer`")


def forward(model: Mapping[str, Any], params: Mapping[str, Any], x: Any, graph: Graph) -> tuple[Any, Any]:
    """Returns the embeddings and the results of all nodes, ``[nodes, columns]`` and ``[nodes, classes]``.

    ``model`` is the section `[model]` of the pipeline, ``params`` are the parameters by name, ``x`` are the features.
    """
    kind, count, xp = model["kind"], model["layers"], graph.ops.xp
    # The name of a decoupled model's predictor has no layer. Only such a `gcn` or `gat` has one.
    predicts_first = "mlp.0.weight" in params
    default = "elu" if kind in ("gat", "gatv2") else "relu"
    act = layers.activation(xp, model.get("activation", default))
    if kind == "gat" and predicts_first:
        return _decoupled_gat(params, layers.perceptron(params, x, act), graph, count)
    if predicts_first:
        teleport = model.get("teleport", 0.1) if kind == "appnp" else 0.0
        h = initial = layers.perceptron(params, x, act)
        for _ in range(count):
            before, h = h, (1 - teleport) * layers.propagate(h, graph) + teleport * initial
        return before, h
    if kind == "sgc":
        h = x
        for index in range(count):
            before, h = h, layers.sgc(_of_layer(params, index), h, graph)
        return (before if count > 1 else h), h

    options = (model.get("eps", 0.0), act) if kind in ("gin", "gine") else ()
    jumps, results, h = model.get("jumping_knowledge", "none"), [], x
    for index in range(count):
        p, last = _of_layer(params, index), index + 1 == count and jumps == "none"
        z = LAYERED[kind](p, h, graph, *options)
        if model.get("residual", False):
            z = z + (layers.linear(h, p["residual.weight"]) if "residual.weight" in p else h)
        before, h = h, z if last else act(_norm(p, z, model.get("norm", "none"), xp))
        results.append(h)
    if jumps == "none":
        return (before if count > 1 else h), h
    if jumps == "cat":
        joined = xp.concatenate(results, 1)
    elif jumps == "max":
        joined = xp.amax(xp.stack(results), 0)
    else:
        joined = sum(results) / count
    return h, layers.linear(joined, params["readout.weight"], params["readout.bias"])


def _of_layer(params: Mapping[str, Any], index: int) -> dict[str, Any]:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


def _norm(p: Mapping[str, Any], z: Any, kind: str, xp: Any) -> Any:
    if kind == "none":
        return z
    if kind == "batch":
        mean, variance = p["norm.running_mean"], p["norm.running_var"]
    else:
        mean = z.mean(1)[:, None]
        variance = ((z - mean) ** 2).mean(1)[:, None]
    return (z - mean) / xp.sqrt(variance + 1e-5) * p["norm.weight"] + p["norm.bias"]


def _decoupled_gat(params: Mapping[str, Any], h: Any, graph: Graph, count: int) -> tuple[Any, Any]:
    """Propagations of the predictions ``h`` by attention, which is computed once from them."""
    p = _of_layer(params, 0)
    heads = p["source"].shape[0]
    logits = layers.additive_logits(h, p["source"], p["destination"], graph)
    for _ in range(count):
        before, h = h, layers.attend(h, graph, heads, logits)
    return before, layers.join_heads(h, heads, params[f"layers.{count - 1}.bias"])
