"""Rows of operators that create, move and index tensors, and of sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, Node, SymbolicSize, as_node
from minigraph.ops.indexing import take_tokens
from minigraph.ops.slicing import first_elements
from minigraph.torch.operators.table import DTYPES, ROWS, Row, row, rows

rows(
    {
        "clone alias lift_fresh_copy lift_fresh _conj": lambda x: x,
        "detach detach_ _local_scalar_dense": ops.stop_gradient,
        "copy": lambda x, source, *unused: ops.broadcast_to(
            ops.astype(as_node(source), x.dtype), x.shape
        ),
        "full_like": lambda x, value, dtype=None: ops.full(
            x.shape, value, DTYPES[dtype] if dtype else x.dtype
        ),
        "empty.memory_format": lambda size, dtype=None: _full(size, 0.0, dtype),
        "empty_permuted empty_strided": lambda size, order, dtype=None: _full(size, 0.0, dtype),
        "new_empty_strided": lambda x, size, strides, **unused: ops.zeros(tuple(size), x.dtype),
        "scalar_tensor": lambda value, dtype=None: ops.full(
            (), value, DTYPES[dtype or torch.float32]
        ),
        "dropout feature_dropout": ops.dropout,
        "rand": lambda size, dtype=None: ops.random_uniform(
            tuple(size), dtype=DTYPES[dtype or torch.float32]
        ),
        "randn": lambda size, dtype=None: ops.random_normal(
            tuple(size), dtype=DTYPES[dtype or torch.float32]
        ),
        "randint": lambda high, size, **named: _integers(0, high, size, **named),
        "randint.low": lambda low, high, size, **named: _integers(low, high, size, **named),
        "randperm": lambda n, **unused: ops.argsort(ops.random_uniform((n,))),
        "rand_like": lambda x, **unused: ops.random_uniform(x.shape, dtype=x.dtype),
        "randn_like": lambda x, **unused: ops.random_normal(x.shape, dtype=x.dtype),
        "uniform": lambda x, low, high, **unused: ops.random_uniform(x.shape, low, high, x.dtype),
        "normal_functional": lambda x, mean, std, **unused: ops.random_normal(
            x.shape, mean, std, x.dtype
        ),
        "bernoulli.p": lambda x, p, **unused: ops.random_uniform(x.shape) < p,
    }
)


@row("_to_copy")
def _to(x: Node, dtype: torch.dtype | None = None) -> Node:
    return x if dtype is None else ops.astype(x, DTYPES[dtype])


ROWS["prims.convert_element_type.default"] = _to
ROWS["prims.fma.default"] = ops.fma  # of compiled steps of optimizers


def _integers(low: int, high: int, size: Any, dtype: torch.dtype | None = None) -> Node:
    offsets = ops.random_uniform(tuple(size), 0, high - low, "float64")
    return ops.astype(ops.floor(offsets), DTYPES[dtype or torch.int64]) + low


ROWS["prims.normal.default"] = lambda size, *, mean, std, dtype, **unused: ops.random_normal(
    tuple(size), mean, std, DTYPES[dtype]
)


@row("full")
def _full(size: Any, value: Any, dtype: torch.dtype | None = None) -> Node:
    if dtype is None:
        dtype = torch.get_default_dtype() if isinstance(value, float) else torch.tensor(value).dtype
    return ops.full(tuple(size), value, DTYPES[dtype])


@row("arange.start_step")
def _range(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> Node:
    floats = any(isinstance(each, float) for each in (start, end, step))
    kind = dtype or (torch.float32 if floats else torch.int64)
    if floats and not kind.is_floating_point:  # torch counts in floats, and steps in integers
        count = max(math.ceil((end - start) / step), 0)
        return ops.astype(int(start) + int(step) * ops.arange(count), DTYPES[kind])
    return ops.arange(start, end, step, DTYPES[kind])


@row("native_dropout")
def _native_dropout(x: Node, p: float, training: bool | None) -> tuple[Node, Node]:
    scaled_mask = ops.dropout(ops.ones_like(x), p, training is not False)
    return x * scaled_mask, scaled_mask != 0


ARITHMETIC = "getitem add sub mul truediv floordiv mod neg pow eq ne lt le gt ge and_ or_ not_"
ROWS |= {f"_operator.{name}": getattr(operator, name) for name in ARITHMETIC.split()}
ROWS |= {"torch.sym_max": max, "torch.sym_min": min, "torch.sym_not": operator.not_}
rows(
    {
        "sym_size.int": lambda x, axis: x.shape[axis],
        "sym_numel": lambda x: x.size,
        # The assertions of tracing hold as long as the shapes stay the same.
        "_assert_scalar _assert_tensor_metadata sym_constrain_range_for_size": (
            lambda *unused, **others: None
        ),
        "_assert_async.msg": ops.check,
        "view view_copy": lambda x, shape: ops.reshape(x, tuple(shape)),
        "permute permute_copy": lambda x, axes: ops.permute_dims(x, tuple(axes)),
        "unsqueeze": ops.expand_dims,
        "stack": ops.stack,
        "unbind.int": ops.unstack,
        "repeat": lambda x, counts: ops.tile(x, tuple(counts)),
        "flip": lambda x, axes: ops.flip(x, tuple(axes)) if axes else x,
        "roll": lambda x, shifts, axes: ops.roll(x, tuple(shifts), tuple(axes) or None),
        "tril": ops.tril,
        "triu": ops.triu,
        "select.int select_copy.int": (
            lambda x, axis, index: x[(*(slice(None),) * (axis % x.ndim), index)]
        ),
        "index_select": lambda x, axis, index: ops.take(x, index, axis),
        "take": ops.take,
        "gather": ops.gather,
        "scatter.src scatter.value": ops.scatter,
        "scatter_add": ops.scatter_add,
        "index_add": ops.index_add,
        "one_hot": ops.one_hot,
    }
)


@row("embedding")
def _embedding(
    weight: Node, tokens: Node, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Node:
    if by_frequency:
        raise GraphError("scale_grad_by_freq is not supported")
    return take_tokens(weight, tokens, None if padding < 0 else padding)


@row("expand", "expand_copy")
def _expand(x: Node, shape: Any, implicit: bool = False) -> Node:
    padded_shape = (*(1,) * (len(shape) - x.ndim), *x.shape)
    sizes = zip(shape, padded_shape, strict=True)
    return ops.broadcast_to(x, tuple(m if isinstance(n, int) and n == -1 else n for n, m in sizes))


@row("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Node, axes: Any = None) -> Node:
    candidates = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    ones = tuple({a % x.ndim for a in candidates if x.ndim and x.shape[a % x.ndim] == 1})
    return ops.squeeze(x, tuple(sorted(ones))) if ones else x


@row("cat")
def _cat(xs: Sequence[Node], axis: int) -> Node:
    # torch skips empty vectors, whatever the rank of the other operands.
    return ops.concat([x for x in xs if x.shape != (0,)] or xs, axis)


@row("split_with_sizes")
def _split_with_sizes(x: Node, sizes: Any, axis: int) -> list[Node]:
    offsets = [sum(sizes[:i]) for i in range(1, len(sizes))]
    return ops.split(x, offsets, axis)


END = (1 << 63) - 1  # torch's end of a slice without one


@row("slice.Tensor", "slice_copy.Tensor")
def _slice(x: Node, axis: int, start: Any, end: Any, step: int) -> Node:
    stop = None if end is None or (isinstance(end, int) and end >= END) else end
    if isinstance(stop, SymbolicSize) and isinstance(x.shape[axis], int):
        x, stop = first_elements(x, axis, stop), None  # torch has checked that it is not longer
    return x[(*(slice(None),) * (axis % x.ndim), slice(start, stop, step))]


@row("slice_scatter")
def _slice_scatter(x: Node, source: Node, axis: int, start: Any, end: Any, step: int) -> Node:
    positions = ops.reshape(ops.arange(x.shape[axis]), (-1, *(1,) * (x.ndim - 1 - axis % x.ndim)))
    positions = _slice(ops.broadcast_to(positions, x.shape), axis, start, end, step)
    return ops.scatter(x, axis, positions, source)


@row("constant_pad_nd")
def _pad(x: Node, padding: Any, value: Any = 0) -> Node:
    """Return x with a border, cut where a width is negative."""
    widths = _widths(x, padding)
    if all(isinstance(n, int) for n in padding) and min(padding, default=0) < 0:
        x = x[tuple(slice(max(-n, 0), min(m, 0) or None) for n, m in widths)]
        widths = [(max(n, 0), max(m, 0)) for n, m in widths]
    return ops.pad(x, widths, value)


@row("unfold")
def _unfold(x: Node, axis: int, size: int, step: int) -> Node:
    """Return the windows along an axis, with their elements along a new last axis."""
    if not x.ndim:
        return x[None]
    axis %= x.ndim
    starts = ops.arange(0, x.shape[axis] - size + 1, step)
    windows = ops.take(x, starts[:, None] + ops.arange(size), axis)
    return ops.moveaxis(windows, axis + 1, -1)


BORDERS: dict[str, Row] = {
    f"{name}_pad{n}d": lambda x, padding, mode=mode: ops.pad(x, _widths(x, padding), mode=mode)
    for name, mode in (("reflection", "reflect"), ("replication", "edge"))
    for n in (1, 2, 3)
}
rows(BORDERS)


def _widths(x: Node, padding: Any) -> list[tuple[int, int]]:
    """Return torch's padding, of the last axis first, as one pair an axis."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


@row("diagonal", "diagonal_copy")
def _diagonal(x: Node, offset: int, axis: int, other_axis: int) -> Node:
    x = ops.moveaxis(x, (axis, other_axis), (-2, -1))
    *lead, h, w = x.shape
    first = offset if offset >= 0 else -offset * w
    count = max(min(h, w - offset) if offset >= 0 else min(h + offset, w), 0)
    flat = ops.reshape(x, (*lead, h * w))
    return flat[..., first : first + count * (w + 1) : w + 1][..., :count]


@row("diagonal_scatter")
def _diagonal_scatter(x: Node, source: Node, offset: int, axis: int, other_axis: int) -> Node:
    positions = ops.reshape(ops.arange(x.size), x.shape)
    positions = ops.flatten(_diagonal(positions, offset, axis, other_axis))
    return ops.reshape(ops.scatter(ops.flatten(x), 0, positions, ops.flatten(source)), x.shape)


@row("masked_scatter")
def _masked_scatter(x: Node, mask: Node, source: Node) -> Node:
    mask = ops.broadcast_to(mask, x.shape)
    ranks = ops.cumsum(ops.astype(ops.flatten(mask), "int64"), 0) - 1
    values = ops.take(ops.flatten(source), ops.maximum(ranks, 0), 0)
    return ops.where(mask, ops.reshape(values, x.shape), x)


@row("index_put")
def _index_put(x: Node, indices: Sequence[Any], values: Node, accumulate: bool) -> Node:
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    masks = [index for index in indices if index is not None and index.dtype == np.bool_]
    if masks and len(masks) == len(indexed) == 1 and values.size == 1:
        mask, value = masks[0], ops.reshape(values, ())
        for _ in range(x.ndim - indexed[0] - mask.ndim):
            mask = ops.expand_dims(mask, -1)
        return ops.where(mask, x + value if accumulate else value, x)
    arrays = tuple(index for index in indices if index is not None)
    if indexed == [*range(len(indexed))]:
        return ops.index_put(x, arrays, values, accumulate)
    # Move the indexed axes to the front, in x and in the values.
    others = [axis for axis in range(x.ndim) if axis not in indexed]
    index_shape = np.broadcast_shapes(*(index.shape for index in arrays))
    first = indexed[0] if indexed[-1] - indexed[0] < len(indexed) else 0
    shape = [x.shape[axis] for axis in others]
    values = ops.broadcast_to(values, (*shape[:first], *index_shape, *shape[first:]))
    targets = range(len(index_shape))
    values = ops.moveaxis(values, tuple(first + axis for axis in targets), tuple(targets))
    order = (*indexed, *others)
    result = ops.index_put(ops.permute_dims(x, order), arrays, values, accumulate)
    return ops.permute_dims(result, tuple(sorted(range(x.ndim), key=order.__getitem__)))


@row("scatter_reduce.two")
def scatter_reduce(
    x: Node, axis: int, index: Node, source: Node, reduce: str, include_self: bool = True
) -> Node:
    """Return x with elements of `source` combined into it at the integers `index`."""
    if reduce in ("amax", "amin"):
        return _scatter_extremum(x, axis, index, source, reduce, include_self)
    if reduce not in ("sum", "mean"):
        raise GraphError(f"reduce={reduce!r} is not supported")
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


def _scatter_extremum(
    x: Node, axis: int, index: Node, source: Node, reduce: str, include_self: bool
) -> Node:
    if not x.ndim:
        x, index, source = x[None], index[None], source[None]
        return _scatter_extremum(x, 0, index, source, reduce, include_self)[0]
    source = source[tuple(map(slice, index.shape))]
    order = ops.argsort(source, axis, reduce == "amin")  # the last write to an index wins
    ordered = (ops.take_along_axis(each, order, axis) for each in (index, source))
    best = ops.scatter(x, axis, *ordered)
    if include_self:
        best = (ops.maximum if reduce == "amax" else ops.minimum)(x, best)
    if x.dtype not in FLOATS:
        return best
    # Equal elements share the gradient; as in torch, also with those of x that are not included.
    best = ops.stop_gradient(best)
    is_own, is_best = x == best, source == ops.gather(best, axis, index)
    count = ops.scatter_add(ops.astype(is_own, x.dtype), axis, index, ops.astype(is_best, x.dtype))
    share = 1 / ops.maximum(count, 1)
    if not include_self:
        is_own = is_own & (ops.scatter(ops.zeros_like(x), axis, index, 1) == 0)
    gradient = _slope(source, is_best) * ops.gather(share, axis, index)
    return best + ops.scatter_add(_slope(x, is_own) * share, axis, index, gradient)


def _slope(x: Node, mask: Node) -> Node:
    """Return zeros whose gradient for x is 1 where the mask is true and x is finite."""
    x = ops.where(mask & ops.isfinite(x), x, 0)
    return x - ops.stop_gradient(x)
