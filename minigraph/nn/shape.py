"""Layers that compute nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from minigraph import ops
from minigraph.errors import ShapeError
from minigraph.graph import Node, as_node
from minigraph.nn.module import Module
from minigraph.ops.shape import normalize_axis


@dataclass(eq=False, repr=False)
class Flatten(Module):
    """The axes from start_dim to end_dim as one, as in `torch.nn`."""

    start_dim: int = 1
    end_dim: int = -1

    shown = "start_dim={start_dim}, end_dim={end_dim}"

    def forward(self, x: Any) -> Node:
        x = as_node(x)
        start, end = (normalize_axis(axis, x.ndim) for axis in (self.start_dim, self.end_dim))
        if start > end:
            raise ShapeError(f"start_dim {start} comes after end_dim {end}")
        size = math.prod(x.shape[start : end + 1])  # not -1, which an empty batch leaves open
        return ops.reshape(x, (*x.shape[:start], size, *x.shape[end + 1 :]))


class Identity(Module):
    """What it is given; arguments to make it are ignored, so that it can take any layer's place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x
