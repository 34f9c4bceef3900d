"""The operations by which numpy and PyTorch differ. All others have the same names in both libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Edges:
    """The in-edges of consecutive nodes, ordered by destination."""

    #: ``[nodes + 1]``, from 0
    indptr: np.ndarray
    #: ``[edges]``: the source of each edge
    src: Any
    #: ``[edges]``: the destination of each edge
    dst: Any
    #: ``[edges]``: the position of its destination among these nodes
    segment: Any
    #: ``[edges, dim]``, or none
    features: Any

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1


class NumpyOps:
    """Operations on arrays of numpy. `TorchOps` has the same ones for PyTorch."""

    #: The library.
    xp: Any = np

    def rows(self, values: Any) -> np.ndarray:
        """Returns values as an array of 32-bit floats."""
        return np.asarray(values, np.float32)

    def index(self, values: np.ndarray) -> np.ndarray:
        """Returns integers as an array that selects rows."""
        return values

    def sum(self, values: np.ndarray, edges: Edges) -> np.ndarray:
        """Sums the values of the in-edges of each node: ``[edges, …]`` → ``[nodes, …]``."""
        return segments(np.add, values, edges.indptr)

    def max(self, values: np.ndarray, edges: Edges) -> np.ndarray:
        """As ``sum``, with the maximum; zeros for a node without in-edges."""
        return segments(np.maximum, values, edges.indptr)


def segments(ufunc: np.ufunc, values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Reduces the rows ``indptr[i]:indptr[i + 1]`` of ``values`` to row i, in 64 bits; zeros for no rows."""
    result = np.zeros((len(indptr) - 1, *values.shape[1:]), values.dtype)
    filled = np.diff(indptr) > 0
    if filled.any():
        result[filled] = ufunc.reduceat(values, indptr[:-1][filled], axis=0, dtype=np.float64)
    return result
