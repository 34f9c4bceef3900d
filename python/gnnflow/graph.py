"""The in-edges of all nodes, in parts that fit into memory as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from .error import Error
from .ops import Edges, segments

#: Edges of a part, unless one node has more.
PART_EDGES = 1 << 18


class Graph:
    """In-edges of all nodes as CSR arrays: those of node i are ``indptr[i]:indptr[i + 1]``.

    ``ops`` are the operations of a library: ``NumpyOps`` or ``TorchOps``.
    """

    def __init__(self, ops: Any, indptr: Any, indices: Any, types: Any = None, features: Any = None):
        self.ops = ops
        self.indptr, self.indices = np.asarray(indptr, np.int64), np.asarray(indices, np.int64)
        self.types = None if types is None else np.asarray(types, np.int64)
        self.features = None if features is None else np.asarray(features, np.float32)

    def check(self, nodes: int) -> None:
        """Raises ``Error`` unless the arrays are the in-edges of ``nodes`` nodes."""
        indptr, edges = self.indptr, len(self.indices)
        if len(indptr) != nodes + 1 or indptr[0] != 0 or indptr[-1] != edges or np.any(np.diff(indptr) < 0):
            raise Error(
                f"`indptr` must have {nodes + 1} numbers from 0 to {edges}, the number of `indices`, in ascending order"
            )
        if edges and not 0 <= self.indices.min() <= self.indices.max() < nodes:
            raise Error(f"`indices` must be at least 0 and less than {nodes}, the number of rows of `features`")
        for name, values in (("edge_types", self.types), ("edge_features", self.features)):
            if values is not None and len(values) != edges:
                raise Error(f"`{name}` has {len(values)} rows; it must have one for each of the {edges} edges")

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def degrees(self) -> np.ndarray:
        """``[nodes]``: the number of in-edges."""
        return np.diff(self.indptr)

    @cached_property
    def destinations(self) -> np.ndarray:
        """``[edges]``: the destination of each edge."""
        return np.repeat(np.arange(self.nodes), self.degrees)

    @cached_property
    def with_self_loops(self) -> Graph:
        """The graph with exactly one edge from each node to itself, before its other in-edges. It has no edge types.

        The features of this edge are the mean of those of the other in-edges, or zeros.
        """
        others = self._select(self.indices != self.destinations)
        indptr = others.indptr + np.arange(self.nodes + 1)
        is_loop = np.zeros(indptr[-1], bool)
        is_loop[indptr[:-1]] = True
        indices = np.empty(len(is_loop), np.int64)
        indices[is_loop], indices[~is_loop] = np.arange(self.nodes), others.indices
        features = None
        if others.features is not None:
            features = np.empty((len(is_loop), others.features.shape[1]), np.float32)
            features[is_loop] = (
                segments(np.add, others.features, others.indptr) / np.maximum(others.degrees, 1)[:, None]
            )
            features[~is_loop] = others.features
        return Graph(self.ops, indptr, indices, None, features)

    def of_type(self, edge_type: int) -> Graph:
        """Returns the edges of one type."""
        return self._select(np.asarray(self.types) == edge_type)

    def _select(self, chosen: np.ndarray) -> Graph:
        before = np.concatenate([[0], np.cumsum(chosen)])
        features = None if self.features is None else self.features[chosen]
        return Graph(self.ops, before[self.indptr], self.indices[chosen], None, features)

    def map(self, reduce: Callable[[Edges], Any]) -> Any:
        """Returns the rows of all nodes, ``[nodes, columns]``. ``reduce`` computes those of a part from its edges."""
        return self.ops.xp.concatenate([reduce(edges) for edges in self.parts()])

    def sum(self, rows: Any) -> Any:
        """Returns the sum of the rows of the in-neighbors: ``[nodes, columns]`` → ``[nodes, columns]``."""
        return self.map(lambda edges: self.ops.sum(rows[edges.src], edges))

    def mean(self, rows: Any) -> Any:
        """As ``sum``, with the mean; zeros for a node without in-edges."""
        return self.sum(rows) * self.ops.rows(1.0 / np.maximum(self.degrees, 1))[:, None]

    def parts(self) -> Iterator[Edges]:
        """Iterates over the edges of consecutive nodes. A part has at most ``PART_EDGES`` edges, or one node."""
        first = 0
        while True:
            # At least one node, and also a part for a graph without nodes.
            fitting = int(np.searchsorted(self.indptr, self.indptr[first] + PART_EDGES, "right")) - 1
            last = min(max(fitting, first + 1), self.nodes)
            edges, index = slice(self.indptr[first], self.indptr[last]), self.ops.index
            dst = self.destinations[edges]
            features = None if self.features is None else self.ops.rows(self.features[edges])
            indptr = self.indptr[first : last + 1] - self.indptr[first]
            yield Edges(indptr, index(self.indices[edges]), index(dst), index(dst - first), features)
            first = last
            if first >= self.nodes:
                return
