"""Models as modules of PyTorch. Needs PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .graph import Graph
from .models import Model, run_on
from .ops import Edges


class TorchOps:
    """Operations on tensors of one device."""

    xp = torch

    def __init__(self, device: torch.device):
        self.device = device

    def rows(self, values: Any) -> torch.Tensor:
        if isinstance(values, np.ndarray):
            values = np.require(values, requirements="W")
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)

    def index(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device)

    def sum(self, values: torch.Tensor, edges: Edges) -> torch.Tensor:
        return self._zeros(values, edges).index_add(0, edges.segment, values)

    def max(self, values: torch.Tensor, edges: Edges) -> torch.Tensor:
        segment = edges.segment.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
        return self._zeros(values, edges).scatter_reduce(0, segment, values, "amax", include_self=False)

    def _zeros(self, values: torch.Tensor, edges: Edges) -> torch.Tensor:
        return values.new_zeros((edges.nodes, *values.shape[1:]))


class Module(torch.nn.Module):
    """The forward pass of a :class:`gnnflow.Model`, with its parameters as parameters of PyTorch.

    Names in ``state_dict`` are those of `model.safetensors`. As in ``Model``, there is no dropout, and batch norm uses
    running statistics, also in training mode.
    """

    def __init__(self, model: Model):
        super().__init__()
        self.config, self.in_dim = model.config, model.in_dim
        for name, value in model.params.items():
            *path, leaf = name.split(".")
            owner: torch.nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]
            tensor = torch.tensor(value)
            if leaf in ("running_mean", "running_var", "steps"):
                owner.register_buffer(leaf, tensor)
            else:
                owner.register_parameter(leaf, torch.nn.Parameter(tensor))

    def forward(
        self, features: Any, indptr: Any, indices: Any, *, edge_types: Any = None, edge_features: Any = None
    ) -> torch.Tensor:
        """Returns the results of all nodes, ``[nodes, classes]``; see :meth:`gnnflow.Model.__call__`.

        Inputs are tensors or arrays. The result is on the device of the parameters. Gradients reach the parameters and
        ``features``.
        """
        params = dict(self.named_parameters()) | dict(self.named_buffers())
        ops = TorchOps(next(iter(params.values())).device)
        edges = (_array(values) for values in (indptr, indices, edge_types, edge_features))
        return run_on(self.config, self.in_dim, params, ops.rows(features), Graph(ops, *edges))[1]


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
