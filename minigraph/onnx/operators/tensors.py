"""Rows of operators that create tensors, return shapes, or move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError, ShapeError
from minigraph.graph import Array, Node, UndecidedSize, constant, is_symbolic
from minigraph.onnx.operators.table import row, rows, vector_along
from minigraph.onnx.tensors import CODES, dtype_of
from minigraph.onnx.values import (
    Tensors,
    constant_value,
    integer,
    integers,
    number,
    of_sizes,
    value_of,
)
from minigraph.ops.slicing import first_elements

FLOAT = 1  # ONNX's code of float32
rows(
    {
        "EyeLike": lambda x, dtype=None, k=0: ops.eye(
            x.shape[0], x.shape[1], k, x.dtype if dtype is None else dtype_of(dtype)
        ),
        "Trilu": lambda x, k=None, upper=1: (ops.triu if upper else ops.tril)(x, integer(k, 0)),
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
def _constant(**attributes: Any) -> Node:
    ((name, value),) = attributes.items()
    if name == "value":
        return constant(value)
    if name in ("value_int", "value_ints"):
        return constant(np.array(value, "int64"))
    if name in ("value_float", "value_floats"):
        return constant(np.array(value, "float32"))
    raise GraphError(f"a constant with the attribute {name} is not supported")


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
    is_label = labels == vector_along(ops.arange(count), labels.ndim, axis)
    return ops.where(is_label, values[1], values[0])


def _like(x: Node | None, shape: Any, dtype: int | None, *numbers: float) -> tuple[Any, ...]:
    sizes = tuple(shape) if x is None else x.shape
    code = CODES[np.dtype("float32") if x is None else x.dtype]
    return sizes, *numbers, dtype_of(code if dtype is None else dtype)


@row("Dropout", counting=True)
def _dropout(
    x: Node, ratio: Node | None = None, training: Node | None = None, seed: float = 0.0,
    outputs: int = 1,
) -> list[Node]:  # fmt: skip
    p = number(ratio, 0.5) if training is not None and number(training, 0) else 0.0
    if not p:
        return [x, ops.ones(x.shape, "bool")][:outputs]
    scaled_mask = ops.dropout(ops.ones_like(x), p)
    return [x * scaled_mask, scaled_mask != 0]


LIMIT = (1 << 31) - 1  # ends of slices beyond it mean the end of the axis
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
    sizes = integers(shape) or []
    if not allowzero:
        if 0 in sizes[x.ndim :]:
            raise ShapeError(f"a 0 keeps a size, but {sizes} is longer than {[*x.shape]}")
        sizes = [x.shape[i] if n == 0 else n for i, n in enumerate(sizes)]
    return ops.reshape(x, tuple(sizes))


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
    squeezed = integers(axes)
    if squeezed is None:
        if is_symbolic(x.shape):
            raise UndecidedSize("which axes have length 1 depends on sizes")
        squeezed = [i for i, n in enumerate(x.shape) if n == 1]
    return ops.squeeze(x, tuple(squeezed)) if squeezed else x


@row("Unsqueeze")
def _unsqueeze(x: Node, axes: Node) -> Node:
    new_axes = integers(axes)
    return ops.expand_dims(x, tuple(new_axes)) if new_axes else x


@row("Expand")
def _expand(x: Node, shape: Node) -> Node:
    sizes = integers(shape) or []
    lead = max(x.ndim - len(sizes), 0)
    padded_shape = (*(1,) * (len(sizes) + lead - x.ndim), *x.shape)
    pairs = zip(padded_shape, [1] * lead + sizes, strict=True)
    return ops.broadcast_to(x, tuple(m if isinstance(n, int) and n == 1 else n for m, n in pairs))


@row("Split", counting=True)
def _split(
    x: Node, split: Node | None = None, axis: int = 0, num_outputs: int = 0, outputs: int = 0
) -> list[Node]:
    sizes = integers(split)
    if sizes is None:
        size = -(-x.shape[axis] // (num_outputs or outputs))
        offsets = [i * size for i in range(1, num_outputs or outputs)]
    else:
        if sum(sizes) != x.shape[axis] or len(sizes) != outputs:
            raise ShapeError(f"{outputs} parts of {sizes} do not make {x.shape[axis]}")
        offsets = _offsets(sizes)
    return ops.split(x, offsets, axis)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Return the positions at which parts of these sizes begin, without that of the first."""
    return [sum(sizes[:i]) for i in range(1, len(sizes))]


@row("Slice")
def _slice(x: Node, starts: Node, ends: Node, axes: Any = None, steps: Any = None) -> Node:
    first, last = integers(starts) or [], integers(ends) or []
    sliced_axes = integers(axes) or range(len(first))
    strides = integers(steps) or [1] * len(first)
    index: list[Any] = [slice(None)] * x.ndim
    if {len(first), len(last), len(strides)} != {len(sliced_axes)}:
        raise GraphError("its starts, ends, axes and steps differ in length")
    for axis, a, b, step in zip(sliced_axes, first, last, strides, strict=True):
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"axis {axis} does not exist; there are {x.ndim} axes")
        if step < 0:  # ONNX clips at the front, where Python counts from the back
            n = x.shape[axis]
            a = 0 if a + n < 0 else a
            b = None if (isinstance(b, int) and b < -LIMIT) or b + n < 0 else b
        elif isinstance(b, int) and b >= LIMIT:
            b = None
        if step > 0 and is_symbolic([b]) and isinstance(x.shape[axis], int):
            x, b = first_elements(x, axis, b), None
        index[axis] = slice(a, b, step)
    return x[tuple(index)]


@row("Pad")
def _pad(
    x: Node, pads: Node, value: Node | None = None, axes: Node | None = None, mode: str = "constant"
) -> Node:
    widths = integers(pads) or []
    padded_axes = [axis % x.ndim for axis in integers(axes) or range(x.ndim)]
    half = len(widths) // 2
    if len(widths) != 2 * len(padded_axes):
        raise ShapeError(f"{len(widths)} pads are not two for each of {len(padded_axes)} axes")
    pairs = dict(zip(padded_axes, zip(widths[:half], widths[half:], strict=True), strict=True))
    borders = [pairs.get(axis, (0, 0)) for axis in range(x.ndim)]
    if any(a < 0 or b < 0 for a, b in borders):
        sizes = zip(x.shape, borders, strict=True)
        x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in sizes)]
    borders = [(max(a, 0), max(b, 0)) for a, b in borders]
    fill_value = None if value is None else constant_value(value)
    if mode != "constant" or value is None or fill_value is not None:
        fill_number = 0 if mode != "constant" or fill_value is None else fill_value.item()
        return ops.pad(x, borders, fill_number, mode)  # type: ignore[arg-type]
    inside = ops.pad(ops.ones(x.shape, "bool"), borders)
    fill = ops.reshape(value, ())
    return ops.where(inside, ops.pad(x, borders), fill)


def _from_front(indices: Node, size: Any) -> Node:
    """Return indices without negative ones."""
    return ops.where(indices < 0, indices + size, indices)


@row("GatherND")
def _gather_nd(x: Node, indices: Node, batch_dims: int = 0) -> Node:
    lead = indices.shape[:-1]
    parts = ops.unstack(indices, -1)
    index: list[Any] = []
    for axis in range(batch_dims):
        index.append(vector_along(ops.arange(x.shape[axis]), len(lead), axis))
    return x[(*index, *parts)]


@row("ScatterElements", "Scatter")
def _scatter_elements(
    x: Node, indices: Node, updates: Node, axis: int = 0, reduction: str = "none"
) -> Node:
    positions = _from_front(indices, x.shape[axis])
    if reduction == "none":
        return ops.scatter(x, axis, positions, updates)
    if reduction == "add":
        return ops.scatter_add(x, axis, positions, updates)
    # One slice of the updates after the other, because each writes an index only once.
    for i in range(indices.shape[axis]):
        part = (*(slice(None),) * (axis % x.ndim), slice(i, i + 1))
        current = ops.gather(x, axis, positions[part])
        x = ops.scatter(x, axis, positions[part], _combined(reduction, current, updates[part]))
    return x


def _combined(reduction: str, x: Node, y: Node) -> Node:
    combine = {"mul": ops.multiply, "max": ops.maximum, "min": ops.minimum, "add": ops.add}
    if reduction not in combine:
        raise GraphError(f"reduction={reduction!r} is not supported")
    return combine[reduction](x, y)


@row("ScatterND")
def _scatter_nd(x: Node, indices: Node, updates: Node, reduction: str = "none") -> Node:
    *lead, depth = indices.shape
    count = math.prod(lead)
    positions = ops.unstack(ops.reshape(indices, (count, depth)), -1)
    positions = [_from_front(p, n) for p, n in zip(positions, x.shape, strict=False)]
    updates = ops.reshape(updates, (count, *x.shape[depth:]))
    if reduction in ("none", "add"):
        return ops.index_put(x, tuple(positions), updates, reduction == "add")
    for i in range(count):
        position = tuple(p[i : i + 1] for p in positions)
        x = ops.index_put(x, position, _combined(reduction, x[position], updates[i : i + 1]))
    return x


@row("Compress")
def _compress(x: Node, condition: Node, axis: int | None = None) -> Node:
    (selected,) = value_of(condition).nonzero()
    return ops.take(ops.flatten(x) if axis is None else x, constant(selected), axis or 0)


@row("ReverseSequence")
def reverse_sequence(x: Node, lengths: Node, batch_axis: int = 1, time_axis: int = 0) -> Node:
    time = vector_along(ops.arange(x.shape[time_axis]), x.ndim, time_axis)
    length = vector_along(lengths, x.ndim, batch_axis)
    positions = ops.where(time < length, length - 1 - time, time)
    return ops.take_along_axis(x, ops.broadcast_to(positions, x.shape), time_axis)


@row("TensorScatter")
def _tensor_scatter(
    past: Node, update: Node, indices: Node | None = None, axis: int = -2, mode: str = "linear"
) -> Node:
    axis %= past.ndim
    positions = vector_along(ops.arange(update.shape[axis]), past.ndim, axis)
    positions = positions if indices is None else positions + vector_along(indices, past.ndim, 0)
    positions = ops.remainder(positions, past.shape[axis]) if mode == "circular" else positions
    return ops.scatter(past, axis, ops.broadcast_to(positions, update.shape), update)


# ---------------------------------------------------------------- sequences


def _inserted(xs: Tensors, x: Node, position: Node | None = None) -> Tensors:
    tensors = [*xs]
    tensors.insert(len(xs) if position is None else integer(position), x)
    return Tensors(tensors)


def _without(xs: Tensors, position: Node | None = None) -> Tensors:
    tensors = [*xs]
    del tensors[-1 if position is None else integer(position)]
    return Tensors(tensors)


rows(
    {
        "SequenceConstruct": lambda *xs: Tensors(xs),
        "SequenceEmpty": lambda dtype=FLOAT: Tensors(),
        "SequenceInsert": _inserted,
        "SequenceErase": _without,
        "SequenceAt": lambda xs, position: xs[integer(position)],
        "SequenceLength": lambda xs: constant(np.int64(len(xs))),
        "ConcatFromSequence": lambda xs, axis, new_axis=0: (
            ops.stack(xs, axis) if new_axis else ops.concat(xs, axis)
        ),
    }
)


@row("SplitToSequence")
def _split_to_sequence(
    x: Node, split: Node | None = None, axis: int = 0, keepdims: int = 1
) -> Tensors:
    n = x.shape[axis]
    if is_symbolic([n]):
        raise UndecidedSize(f"the number of parts depends on the size {n}")
    if split is not None and split.ndim:
        offsets = _offsets(integers(split) or [])
    else:
        offsets = [*range(0, n, 1 if split is None else integer(split))][1:]
    parts = ops.split(x, offsets, axis)
    squeezes = split is None and not keepdims
    return Tensors(ops.squeeze(part, axis) if squeezes else part for part in parts)
