"""Rows of operators that read or write where an index says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node
from minigraph.torch.operators.table import row


@row("index.Tensor")
def _index(x: Node, indices: Sequence[Any]) -> Node:
    return x[tuple(slice(None) if i is None else i for i in indices)]


@row("index_select")
def _index_select(x: Node, axis: int, index: Node) -> Node:
    return ops.take(x, index, axis)


@row("embedding")
def _embedding(weight: Node, indices: Node, *unused: Any) -> Node:
    return ops.take(weight, indices, 0)


@row("gather")
def _gather(x: Node, axis: int, index: Node, **unused: Any) -> Node:
    return ops.gather(x, axis, index)


@row("scatter.src", "scatter.value")
def _scatter(x: Node, axis: int, index: Node, source: Any) -> Node:
    return ops.scatter(x, axis, index, source)


@row("scatter_add")
def _scatter_add(x: Node, axis: int, index: Node, source: Node) -> Node:
    return ops.scatter_add(x, axis, index, source)


@row("index_put")
def _index_put(x: Node, indices: Sequence[Any], values: Node, accumulate: bool = False) -> Node:
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = tuple(index for index in indices if index is not None)
    if indexed == [*range(len(indexed))]:
        return ops.index_put(x, chosen, values, accumulate)
    # The axes with an index come first, in x and in what is put there.
    others = [axis for axis in range(x.ndim) if axis not in indexed]
    picked = np.broadcast_shapes(*(index.shape for index in chosen))
    at = indexed[0] if indexed[-1] - indexed[0] < len(indexed) else 0
    shape = [x.shape[axis] for axis in others]
    values = ops.broadcast_to(values, (*shape[:at], *picked, *shape[at:]))
    values = ops.moveaxis(values, tuple(range(at, at + len(picked))), tuple(range(len(picked))))
    order = (*indexed, *others)
    made = ops.index_put(ops.permute_dims(x, order), chosen, values, accumulate)
    return ops.permute_dims(made, tuple(sorted(range(x.ndim), key=order.__getitem__)))


@row("index_add")
def _index_add(x: Node, axis: int, index: Node, source: Node, alpha: Any = 1) -> Node:
    return ops.index_add(x, axis, index, source, alpha)


@row("one_hot")
def _one_hot(labels: Node, classes: int = -1) -> Node:
    return ops.one_hot(labels, classes)


@row("scatter_reduce.two")
def _scatter_reduce(
    x: Node, axis: int, index: Node, source: Node, reduce: str, include_self: bool = True
) -> Node:
    if reduce not in ("sum", "mean"):
        raise GraphError(f"it has no reduce={reduce!r}")
    start = x if include_self else ops.scatter(x, axis, index, 0)
    total = ops.scatter_add(start, axis, index, source)
    if reduce == "sum":
        return total
    ones = ops.ones_like(x)
    first = ones if include_self else ops.scatter(ones, axis, index, 0)
    count = ops.scatter_add(first, axis, index, ops.ones_like(source))
    if x.dtype in FLOATS:
        return total / ops.maximum(count, 1)
    return ops.floor_divide(total, ops.maximum(count, 1))


@row("take")
def _take(x: Node, index: Node) -> Node:
    return ops.take(ops.flatten(x) if x.ndim else ops.reshape(x, (1,)), index, 0)
