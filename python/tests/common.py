"""A folder with two small dumps, and runs of the program in it."""

from __future__ import annotations

import contextlib
import io
import tempfile
import unittest
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

import gnnflow

NODES, EDGES, FEATURES, CLASSES, TYPES = 300, 2400, 8, 3, 3

#: A generated graph without types and features of edges.
PLANTED = {
    "graph": {"generate": {"kind": "planted", "nodes": 500, "edges": 3000, "features": 12, "classes": 4}},
    "partition": {"method": "random", "parts": 2, "out": "planted"},
}
#: The dump of :func:`write_dump`.
TYPED = {
    "graph": {
        "nodes": "nodes.parquet",
        "edges": "edges.parquet",
        "duplicates": "keep",
        "columns": {"edge_type": "kind", "edge_features": ["pair"], "weight": "weight"},
    },
    "partition": {"method": "random", "parts": 2, "out": "typed"},
}
TRAIN = {"epochs": 3, "batch": 64, "fanouts": [-1, -1], "optimizer": {"kind": "adam", "lr": 0.03}}
INFER = {"scores": True, "embeddings": True}


class FolderCase(unittest.TestCase):
    """Tests in a temporary folder, which is the current folder."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(contextlib.chdir(cls.enterClassContext(tempfile.TemporaryDirectory())))


def run(pipeline: Any, **options: Any) -> gnnflow.Run:
    """Runs a pipeline without its progress."""
    with contextlib.redirect_stderr(io.StringIO()):
        return gnnflow.run(pipeline, **options)


def write_dump() -> dict[str, np.ndarray]:
    """Writes a directed graph with self-loops, parallel edges and nodes without in-edges. Returns its columns."""
    random = np.random.default_rng(5)
    label = random.integers(CLASSES, size=NODES)
    columns = {
        "node_id": random.permutation(NODES) + 1000,
        "features": (random.normal(size=(NODES, FEATURES)) + label[:, None]).astype(np.float32),
        "label": label,
        "split": random.choice(["train", "val", "test"], NODES),
        "src": random.integers(NODES, size=EDGES),
        "dst": random.integers(NODES // 2, size=EDGES),
        "kind": random.integers(TYPES, size=EDGES),
        "pair": random.normal(size=(EDGES, 2)).astype(np.float32),
        "weight": random.random(EDGES, np.float32),
    }
    columns["src"][:20] = columns["dst"][:20]
    columns["src"], columns["dst"] = (columns["node_id"][columns[end]] for end in ("src", "dst"))
    for file, names in (
        ("nodes", ["node_id", "features", "label", "split"]),
        ("edges", ["src", "dst", "kind", "pair", "weight"]),
    ):
        arrays = {name: columns[name] if columns[name].ndim == 1 else columns[name].tolist() for name in names}
        pyarrow.parquet.write_table(pyarrow.table(arrays), f"{file}.parquet")
    return columns


def lists(column: pyarrow.ChunkedArray) -> np.ndarray:
    """Returns a column of lists of equal length as a matrix."""
    return np.array(column.to_pylist())
