"""Rows of operators that read or write where an index says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node, constant
from minigraph.onnx.operators.table import along, row
from minigraph.onnx.values import value_of


@row("Gather")
def _gather(x: Node, indices: Node, axis: int = 0) -> Node:
    return ops.take(x, indices, axis)


@row("GatherElements")
def _gather_elements(x: Node, indices: Node, axis: int = 0) -> Node:
    return ops.gather(x, axis, _from_front(indices, x.shape[axis]))


def _from_front(indices: Node, size: Any) -> Node:
    """Return indices of which none counts from the back."""
    return ops.where(indices < 0, indices + size, indices)


@row("GatherND")
def _gather_nd(x: Node, indices: Node, batch_dims: int = 0) -> Node:
    lead = indices.shape[:-1]
    parts = ops.unstack(indices, -1)
    index: list[Any] = []
    for axis in range(batch_dims):
        index.append(along(ops.arange(x.shape[axis]), len(lead), axis))
    return x[(*index, *parts)]


@row("ScatterElements")
def _scatter_elements(
    x: Node, indices: Node, updates: Node, axis: int = 0, reduction: str = "none"
) -> Node:
    at = _from_front(indices, x.shape[axis])
    if reduction == "none":
        return ops.scatter(x, axis, at, updates)
    if reduction == "add":
        return ops.scatter_add(x, axis, at, updates)
    # One slice of the updates after the other: each writes a place once.
    for i in range(indices.shape[axis]):
        part = (*(slice(None),) * (axis % x.ndim), slice(i, i + 1))
        here = ops.gather(x, axis, at[part])
        x = ops.scatter(x, axis, at[part], _combined(reduction, here, updates[part]))
    return x


def _combined(reduction: str, x: Node, y: Node) -> Node:
    combine = {"mul": ops.multiply, "max": ops.maximum, "min": ops.minimum, "add": ops.add}
    if reduction not in combine:
        raise GraphError(f"it has no reduction={reduction!r}")
    return combine[reduction](x, y)


@row("ScatterND")
def _scatter_nd(x: Node, indices: Node, updates: Node, reduction: str = "none") -> Node:
    *lead, depth = indices.shape
    count = math.prod(lead)
    places = ops.unstack(ops.reshape(indices, (count, depth)), -1)
    places = [_from_front(p, n) for p, n in zip(places, x.shape, strict=False)]
    updates = ops.reshape(updates, (count, *x.shape[depth:]))
    if reduction in ("none", "add"):
        return ops.index_put(x, tuple(places), updates, reduction == "add")
    for i in range(count):
        at = tuple(p[i : i + 1] for p in places)
        x = ops.index_put(x, at, _combined(reduction, x[at], updates[i : i + 1]))
    return x


@row("Compress")
def _compress(x: Node, condition: Node, axis: int | None = None) -> Node:
    (chosen,) = value_of(condition).nonzero()
    return ops.take(ops.flatten(x) if axis is None else x, constant(chosen), axis or 0)


@row("NonZero")
def _non_zero(x: Node) -> Node:
    return constant(np.array(np.atleast_1d(value_of(x)).nonzero()))


@row("ReverseSequence")
def reverse_sequence(x: Node, lengths: Node, batch_axis: int = 1, time_axis: int = 0) -> Node:
    time = along(ops.arange(x.shape[time_axis]), x.ndim, time_axis)
    length = along(lengths, x.ndim, batch_axis)
    places = ops.where(time < length, length - 1 - time, time)
    return ops.take_along_axis(x, ops.broadcast_to(places, x.shape), time_axis)


@row("TensorScatter")
def _tensor_scatter(
    past: Node, update: Node, indices: Node | None = None, axis: int = -2, mode: str = "linear"
) -> Node:
    axis %= past.ndim
    at = along(ops.arange(update.shape[axis]), past.ndim, axis)
    at = at if indices is None else at + along(indices, past.ndim, 0)
    at = ops.remainder(at, past.shape[axis]) if mode == "circular" else at
    return ops.scatter(past, axis, ops.broadcast_to(at, update.shape), update)
