"""Models of finished runs."""

from __future__ import annotations

import json
import os
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .error import Error
from .forward import check, forward
from .graph import Graph
from .ops import NumpyOps

if TYPE_CHECKING:
    import torch

#: The version of the description in `model.safetensors` that this package reads.
SCHEMA = 4


def load(run: str | os.PathLike[str]) -> Model:
    """Loads the model of a finished run, from `model.safetensors` and `pipeline.toml` in its folder.

    >>> model = gnnflow.load("runs/papers")
    >>> model(features, indptr, indices).argmax(1)      # the class of every node
    """
    folder = Path(run)
    path = folder / "model.safetensors"
    params, metadata = read_tensors(path)
    try:
        trained_on = json.loads(metadata["gnnflow"])
        pipeline = tomllib.loads((folder / "pipeline.toml").read_text(encoding="utf-8"))
    except (KeyError, ValueError):
        raise Error(
            f"{path}: it does not describe its model, or pipeline.toml is damaged; use a run folder of this version"
        ) from None
    except OSError as error:
        raise Error(f"{folder / 'pipeline.toml'}: {error.strerror}; it belongs to the model") from None
    if trained_on.get("schema") != SCHEMA:
        raise Error(
            f"{path}: its version is {trained_on.get('schema')}, and this package reads {SCHEMA}; use that of the run"
        )
    check(pipeline)
    config = pipeline["model"]
    layers = [int(name.split(".")[1]) + 1 for name in params if name.startswith("layers.")]
    if layers and max(layers) != config["layers"]:
        raise Error(
            f"{path}: it has {max(layers)} layers, and `model.layers` is {config['layers']}; use files of the same run"
        )
    return Model(config, params, trained_on["model"]["in_dim"], trained_on["data"]["encoding"])


class Model:
    """A trained model, as a forward pass over all nodes of a graph. It has no dropout.

    ``config`` is the section `[model]` of the pipeline; ``params`` are the parameters by name; ``in_dim`` is the number
    of features; ``encoding`` says how the dataset of the run stores its tables. Batch norm uses running statistics.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        params: Mapping[str, np.ndarray],
        in_dim: int,
        encoding: Mapping[str, Any] | None = None,
    ):
        self.config, self.params, self.in_dim, self.encoding = config, params, in_dim, encoding or {}

    def __repr__(self) -> str:
        size = sum(value.size for value in self.params.values())
        return f"<gnnflow.Model {self.config['kind']}, {self.config['layers']} layers, {size} parameters>"

    @property
    def columns(self) -> list[str]:
        """The names of the feature columns in the tables, one for each of the ``in_dim`` features; a list column gives several.
        With a table for each type, a name begins with the type: ``user.age``.

        >>> model.columns
        ['age', 'income', 'text', 'text']
        """
        columns = self.encoding.get("features", {}).get("columns", [])
        names = [".".join(filter(None, [column.get("row_type"), column["name"]])) for column in columns]
        return [name for name, column in zip(names, columns) for _ in range(column["values"])]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the results' columns; their numbers if they have no names; empty for values."""
        labels = self.encoding.get("labels") or {"kind": "value"}
        return [] if labels["kind"] == "value" else labels["names"] or [str(place) for place in range(labels["count"])]

    def scale(self, features: Any) -> np.ndarray:
        """Returns features of the tables, ``[nodes, in_dim]``, scaled as in the dataset of the run. Not for tables by type.

        >>> model(model.scale(table), indptr, indices)
        """
        values, how = np.asarray(features, np.float32), self.encoding.get("normalize", "none")
        if values.ndim != 2 or values.shape[1] != self.in_dim:
            raise Error(f"`features` has the shape {list(values.shape)}, and the model reads [nodes, {self.in_dim}]")
        if how == "standard" and any("row_type" in column for column in self.encoding["features"].get("columns", [])):
            raise Error("each type of nodes has its own features; use those of the dataset, which are scaled")
        if how == "row":
            return values / np.maximum(np.abs(values).sum(1, dtype=np.float64), 1).astype(np.float32)[:, None]
        if how != "standard":
            return values
        scales = self.encoding.get("scales", [])
        if len(scales) != self.in_dim:
            raise Error("the model does not have the means of its features: its dataset is of an older version")
        numbers = np.array([[scale["mean"], scale["factor"]] for scale in scales], np.uint64).view(np.float64)
        return ((values.astype(np.float64) - numbers[:, 0]) * numbers[:, 1]).astype(np.float32)

    def __call__(
        self, features: Any, indptr: Any, indices: Any, *, edge_types: Any = None, edge_features: Any = None
    ) -> np.ndarray:
        """Returns the results of all nodes, ``[nodes, classes]``: logits of classes or labels, or predicted values.

        ``features`` are ``[nodes, in_dim]``, scaled as in the dataset of the run; for a model with learned rows, these
        rows. The in-edges of node i come from the nodes ``indices[indptr[i]:indptr[i + 1]]``. ``edge_types``,
        ``[edges]``, and ``edge_features``, ``[edges, dim]``, have the order of ``indices``.

        >>> model(np.zeros((3, 16)), [0, 1, 3, 3], [1, 0, 2]).shape      # edges 1→0, 0→1, 2→1
        (3, 5)
        """
        return self._run(features, indptr, indices, edge_types, edge_features)[1]

    def embed(
        self, features: Any, indptr: Any, indices: Any, *, edge_types: Any = None, edge_features: Any = None
    ) -> np.ndarray:
        """Returns the embeddings of all nodes, ``[nodes, columns]``, as in `embeddings.parquet`."""
        return self._run(features, indptr, indices, edge_types, edge_features)[0]

    def _run(self, features: Any, *edges: Any) -> tuple[np.ndarray, np.ndarray]:
        ops = NumpyOps()
        return run_on(self.config, self.in_dim, self.params, ops.rows(features), Graph(ops, *edges))

    def torch(self) -> torch.nn.Module:
        """Returns a module of PyTorch with the same parameters and forward pass, which can be trained further.

        >>> module = model.torch().to("cuda")
        >>> logits = module(features, indptr, indices)
        """
        try:
            from .module import Module
        except ImportError:
            raise Error("PyTorch is not installed; install the package `torch`") from None
        return Module(self)


def run_on(
    config: Mapping[str, Any], in_dim: int, params: Mapping[str, Any], features: Any, graph: Graph
) -> tuple[Any, Any]:
    """Checks the inputs and runs the forward pass. Returns the embeddings and the results."""
    if tuple(features.shape[1:]) != (in_dim,):
        raise Error(f"`features` has the shape {tuple(features.shape)}; the model reads {in_dim} columns")
    graph.check(len(features))
    try:
        return forward(config, params, features, graph)
    except KeyError as error:
        raise Error(
            f"the model has no parameter {error}; model.safetensors and pipeline.toml must be of the same run"
        ) from None


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the tensors and the metadata of a safetensors file. Verifies gnnflow's checksum, if there is one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Error(f"{path}: {error.strerror}; the folder of a finished run has this file") from None
    try:
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        metadata = header.pop("__metadata__", {})
        if checksum := metadata.get("gnnflow.crc32"):
            key = b'"gnnflow.crc32":"'
            before, after = content[:start].split(key, 1)
            crc = zlib.crc32(content[start:], zlib.crc32(before + key + b"00000000" + after[8:]))
            if f"{crc:08x}" != checksum:
                raise ValueError("its checksum does not match its content")
        return {name: _tensor(name, info, memoryview(content)[start:]) for name, info in header.items()}, metadata
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Error(f"{path}: damaged: {error}; restore it from a copy, or run the pipeline again") from None


def _tensor(name: str, info: dict[str, Any], data: memoryview) -> np.ndarray:
    first, last = info["data_offsets"]
    if info["dtype"] != "F32" or not 0 <= first <= last <= len(data):
        raise ValueError(f"tensor `{name}` is not of 32-bit floats, or extends beyond the end of the file")
    return np.frombuffer(data[first:last], "<f4").reshape(info["shape"])
