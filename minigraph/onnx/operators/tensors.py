"""Rows of operators that make tensors, tell shapes, or place elements anew."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Array, Node, UndecidedSize, constant, is_symbolic
from minigraph.onnx.operators.table import along, row, rows
from minigraph.onnx.tensors import CODES, dtype_of
from minigraph.onnx.values import constant_value, integer, integers, number, of_sizes, value_of
from minigraph.ops.slicing import Slice

FLOAT = 1  # the number of float32
rows(
    {
        "EyeLike": lambda x, dtype=None, k=0: ops.eye(
            x.shape[0], x.shape[1], k, x.dtype if dtype is None else dtype_of(dtype)
        ),
        "Trilu": lambda x, k=None, upper=1: (ops.triu if upper else ops.tril)(x, int(number(k, 0))),
        "RandomUniform RandomUniformLike": (
            lambda x=None, shape=None, dtype=None, low=0.0, high=1.0, seed=0.0: ops.random_uniform(
                *_like(x, shape, dtype, low, high)
            )
        ),
        "RandomNormal RandomNormalLike": (
            lambda x=None, shape=None, dtype=None, mean=0.0, scale=1.0, seed=0.0: ops.random_normal(
                *_like(x, shape, dtype, mean, scale)
            )
        ),
        "OptionalHasElement": lambda x=None: constant(np.array(x is not None)),
    }
)


@row("Constant")
def _constant(**given: Any) -> Node:
    ((name, value),) = given.items()
    kind = {"value_int": "int64", "value_ints": "int64", "value_float": "float32"}
    kind |= {"value_floats": "float32"}
    if name == "value":
        return constant(value)
    if name not in kind:
        raise GraphError(f"there is no constant of {name} here")
    return constant(np.array(value, kind[name]))


@row("ConstantOfShape")
def _constant_of_shape(shape: Node, value: Array | None = None) -> Node:
    fill = np.zeros(1, np.float32) if value is None else value
    return ops.full(tuple(integers(shape) or ()), fill.reshape(()), fill.dtype)


@row("Range")
def _range(start: Node, limit: Node, delta: Node, stash_type: int = FLOAT) -> Node:
    if start.dtype.kind in "iu":
        return ops.arange(integer(start), integer(limit), integer(delta), start.dtype)
    a, b, step = (float(value_of(x).reshape(())) for x in (start, limit, delta))
    if not step:
        raise GraphError("its step is 0")
    count = max(int(np.ceil((b - a) / step)), 0)
    wide = np.promote_types(start.dtype, np.float32)
    return ops.astype(start + ops.arange(count, dtype=wide) * delta, start.dtype)


@row("OneHot")
def _one_hot(indices: Node, depth: Node, values: Node, axis: int = -1) -> Node:
    count = int(number(depth, 0))
    labels = ops.astype(indices, "int64")
    labels = ops.expand_dims(ops.where(labels < 0, labels + count, labels), axis)
    is_label = labels == along(ops.arange(count), labels.ndim, axis)
    return ops.where(is_label, values[1], values[0])


def _like(x: Node | None, shape: Any, dtype: int | None, *how: float) -> tuple[Any, ...]:
    sizes = tuple(shape) if x is None else x.shape
    own = CODES[np.dtype("float32") if x is None else x.dtype]
    return sizes, *how, dtype_of(own if dtype is None else dtype)


@row("Dropout", counting=True)
def _dropout(
    x: Node, ratio: Node | None = None, training: Node | None = None, seed: float = 0.0,
    outputs: int = 1,
) -> list[Node]:  # fmt: skip
    p = number(ratio, 0.5) if training is not None and number(training, 0) else 0.0
    if not p:
        return [x, ops.ones(x.shape, "bool")][:outputs]
    kept = ops.dropout(ops.ones_like(x), p)
    return [x * kept, kept != 0]


LIMIT = (1 << 31) - 1  # from which on an end is none
rows(
    {
        "Identity OptionalGetElement": lambda x: x,
        "Shape": lambda x, start=0, end=None: of_sizes(x.shape[start:end]),
        "Size": lambda x: ops.reshape(of_sizes([x.size]), ()),
        "Transpose": lambda x, perm=None: ops.permute_dims(x, tuple(perm or range(x.ndim)[::-1])),
        "Concat": lambda *xs, axis: ops.concat(xs, axis),
        "Tile": lambda x, repeats: ops.tile(x, tuple(integers(repeats) or ())),
        "Gather": lambda x, indices, axis=0: ops.take(x, indices, axis),
        "GatherElements": lambda x, indices, axis=0: ops.gather(
            x, axis, _from_front(indices, x.shape[axis])
        ),
        "NonZero": lambda x: constant(np.array(np.atleast_1d(value_of(x)).nonzero())),
    }
)


@row("Reshape")
def _reshape(x: Node, shape: Node, allowzero: int = 0) -> Node:
    wanted = integers(shape) or []
    if not allowzero:
        if 0 in wanted[x.ndim :]:
            raise ShapeError(f"a 0 keeps a size, but {wanted} is longer than {[*x.shape]}")
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return ops.reshape(x, tuple(wanted))


@row("Flatten")
def _flatten(x: Node, axis: int = 1) -> Node:
    axis = axis + x.ndim if axis < 0 else axis
    return ops.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@row("DepthToSpace")
def _depth_to_space(x: Node, blocksize: int, mode: str = "DCR") -> Node:
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "CRD":
        x, order = ops.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3)
    else:
        x, order = ops.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2)
    return ops.reshape(ops.permute_dims(x, order), (n, depth, h * b, w * b))


@row("SpaceToDepth")
def _space_to_depth(x: Node, blocksize: int, mode: str = "DCR") -> Node:
    n, c, h, w = x.shape
    b, order = blocksize, (0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4)
    parts = ops.permute_dims(ops.reshape(x, (n, c, h // b, b, w // b, b)), order)
    return ops.reshape(parts, (n, c * b * b, h // b, w // b))


@row("Squeeze")
def _squeeze(x: Node, axes: Node | None = None) -> Node:
    chosen = integers(axes)
    if chosen is None:
        if is_symbolic(x.shape):
            raise UndecidedSize("which axes have length 1 depends on sizes")
        chosen = [i for i, n in enumerate(x.shape) if n == 1]
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


@row("Split", counting=True)
def _split(
    x: Node, split: Node | None = None, axis: int = 0, num_outputs: int = 0, outputs: int = 0
) -> list[Node]:
    sizes = integers(split)
    if sizes is None:
        size = -(-x.shape[axis] // (num_outputs or outputs))
        ends = [i * size for i in range(1, num_outputs or outputs)]
    else:
        if sum(sizes) != x.shape[axis] or len(sizes) != outputs:
            raise ShapeError(f"{outputs} parts of {sizes} do not make {x.shape[axis]}")
        ends = [sum(sizes[:i]) for i in range(1, len(sizes))]
    return ops.split(x, ends, axis)


@row("Slice")
def _slice(x: Node, starts: Node, ends: Node, axes: Any = None, steps: Any = None) -> Node:
    first, last = integers(starts) or [], integers(ends) or []
    chosen = integers(axes) or range(len(first))
    strides = integers(steps) or [1] * len(first)
    index: list[Any] = [slice(None)] * x.ndim
    if {len(first), len(last), len(strides)} != {len(chosen)}:
        raise GraphError("its starts, ends, axes and steps differ in length")
    for axis, a, b, step in zip(chosen, first, last, strides, strict=True):
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"axis {axis} does not exist; there are {x.ndim} axes")
        if step < 0:  # past the front there is nothing: Python counts from the back there
            n = x.shape[axis]
            a = 0 if a + n < 0 else a
            b = None if (isinstance(b, int) and b < -LIMIT) or b + n < 0 else b
        elif isinstance(b, int) and b >= LIMIT:
            b = None
        if step > 0 and is_symbolic([b]) and isinstance(x.shape[axis], int):
            x, b = _within(x, axis, b), None
        index[axis] = slice(a, b, step)
    return x[tuple(index)]


def _within(x: Node, axis: int, stop: int) -> Node:
    """Return x[:stop] along an axis of a known length; a call whose `stop` is longer is an error.

    So a table of positions that is cut to a text has the text's length, not at most its own.
    """
    sizes = [*x.shape]
    sizes[axis] = stop
    return Slice((0,) * x.ndim, tuple(sizes), (1,) * x.ndim)(x)


@row("Pad")
def _pad(
    x: Node, pads: Node, value: Node | None = None, axes: Node | None = None, mode: str = "constant"
) -> Node:
    widths = integers(pads) or []
    chosen = [axis % x.ndim for axis in integers(axes) or range(x.ndim)]
    half = len(widths) // 2
    if len(widths) != 2 * len(chosen):
        raise ShapeError(f"{len(widths)} pads are not two for each of {len(chosen)} axes")
    pairs = dict(zip(chosen, zip(widths[:half], widths[half:], strict=True), strict=True))
    every = [pairs.get(axis, (0, 0)) for axis in range(x.ndim)]
    cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, every, strict=True))
    x = x[cut] if any(a < 0 or b < 0 for a, b in every) else x
    every = [(max(a, 0), max(b, 0)) for a, b in every]
    known = None if value is None else constant_value(value)
    if mode != "constant" or value is None or known is not None:
        fixed = 0 if mode != "constant" or known is None else known.item()
        return ops.pad(x, every, fixed, mode)  # type: ignore[arg-type]
    inside = ops.pad(ops.ones(x.shape, "bool"), every)
    fill = ops.reshape(value, ())
    return ops.where(inside, ops.pad(x, every), fill)


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
