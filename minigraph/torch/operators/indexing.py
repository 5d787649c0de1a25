"""Rows of operators that read or write where an index says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node
from minigraph.torch.operators.table import row, rows

rows(
    {
        "index_select": lambda x, axis, index: ops.take(x, index, axis),
        "embedding": lambda weight, indices, *unused: ops.take(weight, indices, 0),
        "take": ops.take,
        "gather": ops.gather,
        "scatter.src scatter.value": ops.scatter,
        "scatter_add": ops.scatter_add,
        "index_add": ops.index_add,
        "one_hot": ops.one_hot,
    }
)


@row("index.Tensor")
def _index(x: Node, indices: Sequence[Any]) -> Node:
    return x[tuple(slice(None) if i is None else i for i in indices)]


@row("index_put")
def _index_put(x: Node, indices: Sequence[Any], values: Node, accumulate: bool) -> Node:
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
