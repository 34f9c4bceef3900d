"""A dataset as `Data` and `HeteroData` of PyTorch Geometric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .error import Error

if TYPE_CHECKING:
    import torch
    import torch_geometric.data

    from .datasets import Dataset

#: Columns of nodes or edges, by the names that they have in PyTorch Geometric.
Columns = dict[str, np.ndarray]


def to_data(dataset: Dataset) -> torch_geometric.data.Data:
    """Returns the graph as `Data`; see :meth:`gnnflow.Dataset.pyg`."""
    torch, module = _libraries()
    nodes, edges = columns(dataset)
    return module.Data(num_nodes=dataset.nodes, **_tensors(torch, nodes | edges))


def to_hetero_data(dataset: Dataset) -> torch_geometric.data.HeteroData:
    """Returns the graph as `HeteroData`; see :meth:`gnnflow.Dataset.hetero`."""
    torch, module = _libraries()
    nodes, edges = by_type(dataset)
    graph = module.HeteroData()
    for name, store in nodes.items():
        graph[name].num_nodes = len(store["global_id"])
    for key, store in (nodes | edges).items():
        graph[key].update(_tensors(torch, store))
    return graph


def columns(dataset: Dataset) -> tuple[Columns, Columns]:
    """Returns copies of the columns of all nodes, and of all edges with ``edge_index`` as ``[2, edges]``."""
    csr, labels = dataset.csr(), dataset.manifest["labels"]
    targets = np.repeat(np.arange(dataset.nodes), np.diff(csr.indptr))
    nodes = {
        "x": (dataset.join("features"), np.float32),
        "y": (dataset.join("labels"), np.int64 if labels and labels["kind"] == "class" else np.float32),
        "node_id": (dataset.join("ids") if dataset.manifest["ids"] == "int" else None, np.int64),
        "node_type": (dataset.join("node_types"), np.int64),
        "time": (dataset.join("times"), np.int64),
        **_masks("", dataset.join("split")),
    }
    edges = {
        "edge_index": (np.stack([csr.indices, targets]), np.int64),
        "edge_type": (csr.edge_types, np.int64),
        "edge_weight": (csr.edge_weights, np.float32),
        "edge_attr": (csr.edge_features, np.float32),
        "edge_time": (dataset.join("edge_times"), np.int64),
        "edge_label": (dataset.join("edge_labels"), np.int64),
        **_masks("edge_", dataset.join("edge_split")),
    }
    return tuple(
        {name: values.astype(dtype) for name, (values, dtype) in given.items() if values is not None}
        for given in (nodes, edges)
    )


def by_type(dataset: Dataset) -> tuple[dict[str, Columns], dict[tuple[str, str, str], Columns]]:
    """Returns the columns of each node type, and of each edge type between two node types."""
    manifest = dataset.manifest
    nodes, edges = columns(dataset)
    node_types = nodes.pop("node_type", np.zeros(dataset.nodes, np.int64))
    src, dst = edges.pop("edge_index")
    edge_types = edges.pop("edge_type", np.zeros(len(src), np.int64))
    node_names = _names(manifest["node_types"], "node")
    edge_names = _names(manifest["edge_columns"]["edge_type"], "to")
    reverses = manifest["settings"]["graph"].get("reverse_edges", False)
    kind = manifest["labels"] and manifest["labels"]["kind"]

    local, of_nodes = np.empty(dataset.nodes, np.int64), {}
    for which, rows in _groups(node_types):
        local[rows], name = np.arange(len(rows)), node_names[which]
        store = {"global_id": rows} | {column: values[rows] for column, values in nodes.items()}
        _keep_own(store, "x", manifest["features"].get("columns", []), {name})
        of_nodes[name] = _without_unused(store, "y", kind)

    of_edges, shape = {}, (len(edge_names), len(node_names), len(node_names))
    for which, rows in _groups(np.ravel_multi_index((edge_types, node_types[src], node_types[dst]), shape)):
        edge, source, target = np.unravel_index(which, shape)
        name = edge_names[edge]
        store = {"edge_index": local[np.stack([src[rows], dst[rows]])]}
        store |= {column: values[rows] for column, values in edges.items()}
        # A reverse edge has the features of its edge.
        own = {name, name.removeprefix("rev_")} if reverses else {name}
        _keep_own(store, "edge_attr", manifest["edge_columns"].get("feature_columns", []), own)
        of_edges[node_names[source], name, node_names[target]] = _without_unused(store, "edge_label", "class")
    return of_nodes, of_edges


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import torch_geometric.data
    except ImportError:
        raise Error("PyTorch Geometric is not installed; install the packages `torch` and `torch_geometric`") from None
    return torch, torch_geometric.data


def _tensors(torch: Any, given: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in given.items()}


def _masks(prefix: str, split: np.ndarray | None) -> dict[str, tuple[np.ndarray, type]]:
    if split is None:
        return {}
    return {f"{prefix}{name}_mask": (split == which, bool) for which, name in enumerate(("train", "val", "test"), 1)}


def _names(types: Mapping[str, Any] | None, untyped: str) -> list[str]:
    """Returns the names of types; their numbers if they have none."""
    return [untyped] if types is None else types["names"] or [str(number) for number in range(types["count"])]


def _groups(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each value, ascending, and the places that have it, ascending."""
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    return zip(found.tolist(), np.split(order, first[1:]))


def _keep_own(store: Columns, features: str, described: list[dict[str, Any]], own: set[str]) -> None:
    """Keeps the features of the types ``own``, if each type has a table, whose features are a block of every row."""
    if features not in store or not any("row_type" in column for column in described):
        return
    kept = [column["row_type"] in own for column in described]
    store[features] = store[features][:, np.repeat(kept, [column["values"] for column in described])]
    if store[features].shape[1] == 0:
        del store[features]


def _without_unused(store: Columns, label: str, kind: str | None) -> Columns:
    """Returns columns without labels and masks if no row has a label or is in a split."""
    masks = [name for name in store if name.endswith("_mask")]
    used = any(store[name].any() for name in masks)
    if label in store and not used:
        values = store[label]
        used = (~np.isnan(values) if kind == "value" else values > (-1 if kind == "class" else 0)).any()
    return store if used else {name: values for name, values in store.items() if name not in (label, *masks)}
