"""Prepared datasets, mapped into memory."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .error import Error
from .pyg import to_data, to_hetero_data

if TYPE_CHECKING:
    import pyarrow
    import torch_geometric.data

#: The version of the layout on disk that this package reads.
SCHEMA = 1


class Csr(NamedTuple):
    """In-edges of all nodes: those of node i are ``indptr[i]:indptr[i + 1]`` of the other arrays."""

    #: ``[nodes + 1]``, int64
    indptr: np.ndarray
    #: ``[edges]``, uint32: global ids of the sources, ascending for each node
    indices: np.ndarray
    #: ``[edges]``, uint16, or none
    edge_types: np.ndarray | None
    #: ``[edges]``, float32, or none
    edge_weights: np.ndarray | None
    #: ``[edges, dim]``, float32, or none
    edge_features: np.ndarray | None


def dataset(folder: str | os.PathLike[str]) -> Dataset:
    """Opens the prepared dataset in a folder. Reads only its manifest.

    >>> graph = gnnflow.dataset(".gnnflow/papers-266c6d6c482f8517")
    >>> graph.nodes, len(graph.parts)
    (4000, 4)
    """
    return Dataset(folder)


class Dataset:
    """A prepared dataset. Its nodes have the global ids ``0:nodes``; a partition owns one range of them."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder).absolute()
        path = self.folder / "manifest.json"
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise Error(f"{path}: {error.strerror}; name the folder of a prepared dataset") from None
        except ValueError as error:
            raise Error(f"{path}: damaged: {error}; restore the dataset from a copy, or prepare it again") from None
        if not isinstance(manifest, dict) or manifest.get("format") != "gnnflow-dataset":
            raise Error(f'{path}: it lacks "format": "gnnflow-dataset"; name the folder of a prepared dataset')
        if manifest.get("schema") != SCHEMA:
            found = manifest.get("schema")
            raise Error(
                f"{path}: the layout has version {found}, and this package reads {SCHEMA}; prepare the dataset again"
            )
        #: `manifest.json`
        self.manifest: dict[str, Any] = manifest
        #: The number of nodes.
        self.nodes: int = manifest["nodes"]
        #: The partitions, in order.
        self.parts = [Partition(self.folder, manifest, part) for part in range(len(manifest["partitions"]))]

    def __repr__(self) -> str:
        sizes = f"{self.nodes} nodes, {self.manifest['edges']} edges, {len(self.parts)} partitions"
        return f"<gnnflow.Dataset {self.folder}: {sizes}>"

    def join(self, name: str) -> np.ndarray | None:
        """Returns a column of all partitions, in the order of global ids; ``None`` if the dataset has no such column.

        ``name`` is that of an array of :class:`Partition` except ``indptr``. The result is a copy if there are several
        partitions.

        >>> graph.join("features").shape
        (4000, 16)
        """
        _check(name)
        columns = [getattr(part, name) for part in self.parts]
        if columns[0] is None:
            return None
        return columns[0] if len(columns) == 1 else np.concatenate(columns)

    def csr(self) -> Csr:
        """Returns the in-edges of all nodes. They are copies if there are several partitions."""
        edges = np.cumsum([0] + [part["edges"] for part in self.manifest["partitions"]])
        indptr = [part.indptr[1:] + first for part, first in zip(self.parts, edges)]
        columns: Any = map(self.join, Csr._fields[1:])
        return Csr(np.concatenate([[0], *indptr]), *columns)

    def arrow(self, name: str) -> pyarrow.ChunkedArray | None:
        """Returns a column of all partitions without a copy: a chunk per partition, each a view of a mapped file.

        Names are those of :meth:`join`; ``None`` if the dataset has no such column. See :meth:`Partition.arrow`.

        >>> pyarrow.table({name: graph.arrow(name) for name in ["ids", "labels", "split"]}).num_rows
        4000
        """
        import pyarrow

        columns = [part.arrow(name) for part in self.parts]
        return None if columns[0] is None else pyarrow.chunked_array(columns)

    def pyg(self) -> torch_geometric.data.Data:
        """Returns the graph as `Data` of PyTorch Geometric. Its nodes have their global ids.

        Of nodes: `x`, `y`, `train_mask`, `val_mask`, `test_mask`, `node_type`, `time`, and `node_id` if your ids are
        integers. Of edges: `edge_index`, `edge_type`, `edge_weight`, `edge_attr` (features), `edge_time`, `edge_label`,
        `edge_train_mask`, `edge_val_mask` and `edge_test_mask`. Columns that the dataset lacks are absent.

        Classes are int64 (-1: none), values and flags float32. Ids that are strings are not included: use
        ``join("ids")``. Names of types and classes are in :attr:`manifest`. For a store per type, use :meth:`hetero`.
        """
        return to_data(self)

    def hetero(self) -> torch_geometric.data.HeteroData:
        """Returns the graph as `HeteroData` of PyTorch Geometric.

        It has a store for each node type that has nodes, and for each triple (source type, edge type, destination type)
        that has edges. Types have their names in the tables, or their numbers as strings. Without node types, all nodes
        are of type ``"node"``; without edge types, all edges are of type ``"to"``.

        Attributes are those of :meth:`pyg`, except the types. `edge_index` counts the nodes of each type from 0;
        `global_id` has their global ids, which are the rows of :meth:`join`. A type has neither labels nor masks if none
        of its rows has a label or is in a split. If each type has its own table, `x` and `edge_attr` have the features of
        that table only; else each type has all features.

        >>> graph.hetero()["author", "writes", "paper"].edge_index.shape
        torch.Size([2, 9000])
        """
        return to_hetero_data(self)


#: The arrays of :class:`Partition` except ``indptr``: the key of the file in the manifest, and the name of the column.
COLUMNS = {
    "ids": ("node_columns", "id"),
    "labels": ("node_columns", "label"),
    "split": ("node_columns", "split"),
    "node_types": ("node_columns", "node_type"),
    "times": ("node_columns", "time"),
    "features": ("features", "features"),
    "indices": ("topology", "neighbors"),
    "edge_types": ("topology", "edge_type"),
    "edge_weights": ("topology", "weight"),
    "edge_times": ("topology", "time"),
    "edge_split": ("topology", "split"),
    "edge_labels": ("topology", "label"),
    "edge_features": ("topology", "edge_features"),
}


def _column(name: str, doc: str) -> Any:
    """A property of :class:`Partition`: one of ``COLUMNS``."""

    def read(self: Partition) -> np.ndarray | None:
        column = self.arrow(name)
        return None if column is None else _rows(column)

    return property(read, doc=doc)


class Partition:
    """A partition of a dataset. Arrays are read-only views of mapped files.

    Row i of a column of nodes is that of the global id ``first + i``. Columns that the dataset lacks are ``None``.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], part: int):
        self.folder, self._manifest = folder / f"part-{part:05}", manifest
        self._info = manifest["partitions"][part]
        self._files: dict[str, dict[str, pyarrow.Array]] = {}
        #: The global ids of its nodes are ``first:last``.
        self.first, self.last = manifest["offsets"][part : part + 2]

    def __repr__(self) -> str:
        return f"<gnnflow.Partition {self.folder}: nodes {self.first}:{self.last}>"

    def arrow(self, name: str) -> pyarrow.Array | None:
        """Returns a column as it is stored, a view of the mapped file; ``None`` if the dataset has no such column.

        ``name`` is that of an array of this class except ``indptr``. Features that are bfloat16, or of several types,
        are stored as 16-bit words.
        """
        _check(name)
        kind, column = COLUMNS[name]
        if self._info[kind] is None:
            return None
        found = self._map(kind).get(column)
        return found.values if kind == "topology" and found is not None else found

    @property
    def ids(self) -> np.ndarray:
        """``[nodes]``: your ids, int64; or a copy of your texts as objects."""
        return self.arrow("ids").to_numpy(zero_copy_only=self._manifest["ids"] == "int")

    labels: np.ndarray | None = _column(
        "labels",
        "``[nodes]``: classes, int32 (-1: none), or values, float32; ``[nodes, labels]``: flags, uint8.",
    )
    split: np.ndarray = _column("split", "``[nodes]``, uint8: 0 none, 1 training, 2 validation, 3 test.")
    node_types: np.ndarray | None = _column(
        "node_types", '``[nodes]``, uint16. Names: ``manifest["node_types"]["names"]``.'
    )
    times: np.ndarray | None = _column("times", "``[nodes]``, int64.")

    @property
    def indptr(self) -> np.ndarray:
        """``[nodes + 1]``, int64: the in-edges of node i are ``indptr[i]:indptr[i + 1]`` of all columns of edges."""
        return self._map("topology")["neighbors"].offsets.to_numpy()

    indices: np.ndarray = _column("indices", "``[edges]``, uint32: global ids of the sources, ascending for each node.")
    edge_types: np.ndarray | None = _column(
        "edge_types", '``[edges]``, uint16. Names: ``manifest["edge_columns"]["edge_type"]["names"]``.'
    )
    edge_weights: np.ndarray | None = _column("edge_weights", "``[edges]``, float32.")
    edge_times: np.ndarray | None = _column("edge_times", "``[edges]``, int64.")
    edge_split: np.ndarray | None = _column("edge_split", "``[edges]``, uint8: as ``split``.")
    edge_labels: np.ndarray | None = _column("edge_labels", "``[edges]``, int32: classes (-1: none).")
    edge_features: np.ndarray | None = _column("edge_features", "``[edges, dim]``, float32.")

    @cached_property
    def features(self) -> np.ndarray | None:
        """``[nodes, dim]``, float32 or float16. A copy as float32 if stored as bfloat16 or in several types."""
        info = self._manifest["features"]
        if info["dim"] == 0:
            return None
        stored = _rows(self.arrow("features"))
        stretches = info.get("stretches") or [{"columns": info["dim"], "dtype": info["dtype"]}]
        if len(stretches) == 1 and info["dtype"] != "bf16":
            return stored
        # Rows of 16-bit words; each stretch of columns has its own type.
        columns, first = [], 0
        for stretch in stretches:
            last = first + stretch["columns"] * (2 if stretch["dtype"] == "f32" else 1)
            words = np.ascontiguousarray(stored[:, first:last])
            wide = words.astype(np.uint32) << 16 if stretch["dtype"] == "bf16" else words
            columns.append(wide.view({"f16": np.float16}.get(stretch["dtype"], np.float32)).astype(np.float32))
            first = last
        return np.concatenate(columns, 1)

    def _map(self, kind: str) -> dict[str, pyarrow.Array]:
        """Maps a file the first time, and returns its columns."""
        import pyarrow

        if kind in self._files:
            return self._files[kind]
        path = self.folder / f"{'nodes' if kind == 'node_columns' else kind}.arrow"
        damaged = "restore the dataset from a copy, or prepare it again"
        try:
            found, expected = path.stat().st_size, self._info[kind]["bytes"]
            if found != expected:
                raise Error(f"{path}: damaged: it has {found} bytes, but the manifest says {expected}; {damaged}")
            batch = pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).get_batch(0)
        except (OSError, pyarrow.ArrowException) as error:
            raise Error(f"{path}: damaged: {error}; {damaged}") from None
        self._files[kind] = dict(zip(batch.schema.names, batch.columns))
        return self._files[kind]


def _check(name: str) -> None:
    if name not in COLUMNS:
        raise Error(f"a dataset has no column `{name}`; name one of {', '.join(COLUMNS)}")


def _rows(column: pyarrow.Array) -> np.ndarray:
    """Returns a column as an array without a copy: ``[rows]``, or ``[rows, width]`` for lists of equal length."""
    import pyarrow

    if isinstance(column, pyarrow.FixedSizeListArray):
        return column.values.to_numpy().reshape(len(column), column.type.list_size)
    return column.to_numpy()
