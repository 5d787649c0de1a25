"""Normalisation over batches, layers and channels, as in `torch.nn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn import init
from minigraph.nn.module import Module, ModuleState
from minigraph.ops.shape import as_shape


class BatchNorm2d(Module):
    """Normalise images (n, num_features, h, w) per channel.

    In training by the statistics of the batch, which `updates()` mixes into the running ones; in
    evaluation by the running ones, as they are when the compiled function is called.

    momentum             share of the batch in the running statistics; None: all batches count alike
    affine, bias         whether to scale by `weight`, and then to shift by `bias`
    track_running_stats  whether to have running statistics; else the batch's serve always
    """

    running_mean: ModuleState | None
    running_var: ModuleState | None
    num_batches_tracked: ModuleState | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight, self.bias = _weight_and_bias(self, (num_features,), affine, bias, dtype)
        self.running_mean = self.running_var = self.num_batches_tracked = None
        if track_running_stats:
            self.running_mean = ModuleState(np.zeros(num_features), dtype=dtype)
            self.running_var = ModuleState(np.ones(num_features), dtype=dtype)
            self.num_batches_tracked = ModuleState(0)

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        if x.ndim != 4:
            raise ShapeError(f"the input is (n, {self.num_features}, h, w), not {x.shape}")
        mean, var, batches = self.running_mean, self.running_var, self.num_batches_tracked
        if mean is None or var is None or batches is None:
            return ops.batch_norm_with_statistics(x, self.weight, self.bias, self.eps)[0]
        if not self.training:
            return ops.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        y, new_mean, new_var = ops.batch_norm_with_statistics(x, self.weight, self.bias, self.eps)
        count = self.updated(batches) + 1
        self.update(batches, count)
        share = (1 / count).astype(x.dtype) if self.momentum is None else self.momentum
        values = x.size // x.shape[1]  # of a channel; the running variance is the unbiased one
        unbiased = share * (values / (values - 1))
        self.update(mean, self.updated(mean) * (1 - share) + new_mean * share)
        self.update(var, self.updated(var) * (1 - share) + new_var * unbiased)
        return y

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class LayerNorm(Module):
    """Normalise over the last axes, which are `normalized_shape`, an int or ints."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = "float32",
    ) -> None:
        super().__init__()
        shape = as_shape(normalized_shape)
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.weight, self.bias = _weight_and_bias(self, shape, elementwise_affine, bias, dtype)

    def forward(self, x: Any) -> Node:
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


@dataclass(eq=False, repr=False)
class LocalResponseNorm(Module):
    """x over a power of the mean square of `size` neighbouring channels."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    shown = "{size}, alpha={alpha}, beta={beta}, k={k}"

    def forward(self, x: Any) -> Node:
        return ops.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


def _weight_and_bias(
    module: Module, shape: tuple[int, ...], affine: bool, bias: bool, dtype: Any
) -> tuple[Parameter | None, Parameter | None]:
    """Return ones and zeros, None for what is not wanted."""
    zeros = init.zeros(type(module).__name__, shape, dtype)
    ones = Parameter(np.ones(shape), dtype=dtype) if affine else None
    return ones, zeros if affine and bias else None
