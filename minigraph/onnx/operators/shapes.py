"""Rows of operators that place elements anew, and compute none; and of those that tell shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minigraph import ops
from minigraph.graph import Node
from minigraph.onnx.operators.table import row
from minigraph.onnx.values import integers, of_sizes

LIMIT = (1 << 31) - 1  # from which on an end is none


@row("Shape")
def _shape(x: Node, start: int = 0, end: int | None = None) -> Node:
    return of_sizes(x.shape[start:end])


@row("Size")
def _size(x: Node) -> Node:
    return ops.reshape(of_sizes([x.size]), ())


@row("Reshape")
def _reshape(x: Node, shape: Node, allowzero: int = 0) -> Node:
    wanted = integers(shape) or []
    if not allowzero:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return ops.reshape(x, tuple(wanted))


@row("Flatten")
def _flatten(x: Node, axis: int = 1) -> Node:
    axis = axis + x.ndim if axis < 0 else axis
    return ops.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@row("Transpose")
def _transpose(x: Node, perm: Sequence[int] | None = None) -> Node:
    return ops.permute_dims(x, tuple(reversed(range(x.ndim)) if perm is None else perm))


@row("Squeeze")
def _squeeze(x: Node, axes: Node | None = None) -> Node:
    chosen = integers(axes)
    if chosen is None:
        chosen = [i for i, n in enumerate(x.shape) if isinstance(n, int) and n == 1]
    return ops.squeeze(x, tuple(chosen)) if chosen else x


@row("Unsqueeze")
def _unsqueeze(x: Node, axes: Node) -> Node:
    chosen = integers(axes)
    return ops.expand_dims(x, tuple(chosen)) if chosen else x


@row("Expand")
def _expand(x: Node, shape: Node) -> Node:
    wanted = integers(shape) or []
    lead = max(x.ndim - len(wanted), 0)
    own = (*(1,) * (len(wanted) + lead - x.ndim), *x.shape)
    pairs = zip(own, [1] * lead + wanted, strict=True)
    return ops.broadcast_to(x, tuple(m if isinstance(n, int) and n == 1 else n for m, n in pairs))


@row("Concat")
def _concat(*xs: Node, axis: int) -> Node:
    return ops.concat(xs, axis)


@row("Split", counting=True)
def _split(
    x: Node, split: Node | None = None, axis: int = 0, num_outputs: int = 0, outputs: int = 0
) -> list[Node]:
    sizes = integers(split)
    if sizes is None:
        size = -(-x.shape[axis] // (num_outputs or outputs))
        ends = [i * size for i in range(1, num_outputs or outputs)]
    else:
        ends = [sum(sizes[:i]) for i in range(1, len(sizes))]
    return ops.split(x, ends, axis)


@row("Slice")
def _slice(x: Node, starts: Node, ends: Node, axes: Any = None, steps: Any = None) -> Node:
    first, last = integers(starts) or [], integers(ends) or []
    chosen = integers(axes) or range(len(first))
    strides = integers(steps) or [1] * len(first)
    index: list[Any] = [slice(None)] * x.ndim
    for axis, a, b, step in zip(chosen, first, last, strides, strict=True):
        if step < 0:  # past the front there is nothing: Python counts from the back there
            n = x.shape[axis]
            b = None if (isinstance(b, int) and b < -LIMIT) or b + n < 0 else b
        elif isinstance(b, int) and b >= LIMIT:
            b = None
        index[axis] = slice(a, b, step)
    return x[tuple(index)]


@row("Tile")
def _tile(x: Node, repeats: Node) -> Node:
    return ops.tile(x, tuple(integers(repeats) or ()))


@row("Identity", "OptionalGetElement")
def _identity(x: Node) -> Node:
    return x


@row("Pad")
def _pad(
    x: Node, pads: Node, value: Node | None = None, axes: Node | None = None, mode: str = "constant"
) -> Node:
    widths = integers(pads) or []
    chosen = [axis % x.ndim for axis in integers(axes) or range(x.ndim)]
    half = len(widths) // 2
    pairs = dict(zip(chosen, zip(widths[:half], widths[half:], strict=True), strict=True))
    every = [pairs.get(axis, (0, 0)) for axis in range(x.ndim)]
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, every, strict=True))
    x = x[cut] if any(a < 0 or b < 0 for a, b in every) else x
    every = [(max(a, 0), max(b, 0)) for a, b in every]
    if mode != "constant" or value is None:
        return ops.pad(x, every, 0, mode)  # type: ignore[arg-type]
    inside = ops.pad(ops.ones(x.shape, "bool"), every)
    fill = ops.reshape(value, ())
    return ops.where(inside, ops.pad(x, every), fill)
