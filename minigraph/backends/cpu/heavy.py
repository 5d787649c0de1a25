"""Which oneDNN primitive computes which op.

Nothing here says what an op is: only ways to compute it.  A function gives the kernel for one op,
or None where oneDNN has nothing but its slow reference implementation; then NumPy does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import c_float
from typing import Any, NamedTuple

import numpy as np

from minigraph.backends.cpu import onednn
from minigraph.backends.cpu.onednn import (
    MAX_NDIM,
    Descriptor,
    Layout,
    OneDnnKernel,
    Operand,
    dims,
)
from minigraph.graph import Node, Op
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    BatchNormInference,
)
from minigraph.ops.pooling import (
    AvgPool2d,
    AvgPool2dBackward,
    Pooling,
)
from minigraph.spec import Shape

F32 = np.dtype(np.float32)
THREADED = 4_000_000  # operations from which on a second thread pays
Strides = Sequence[tuple[int, ...]]


def _in(index: int) -> Operand:
    return Operand("input", index)


def _out(index: int) -> Operand:
    return Operand("output", index)


def _fast(descriptor: Descriptor) -> Descriptor | None:
    """Return the descriptor if it is not the reference implementation, which comes last."""
    return None if descriptor.name.startswith("ref") else descriptor


class Recipe(NamedTuple):
    """What a kernel is made of: see `OneDnnKernel`."""

    descriptor: Descriptor
    args: Sequence[tuple[int, Layout, Operand]]
    strided: Sequence[bool]


def _kernel(
    descriptor: Descriptor | None,
    args: Sequence[tuple[int, Layout, Operand]],
    strided: Sequence[bool],
) -> Recipe | None:
    return None if descriptor is None else Recipe(descriptor, args, strided)


# ---------------------------------------------------------------- convolution


def _grouped(shape: Shape, groups: int) -> Shape:
    """The shape of weights as oneDNN has it: with groups, those come first."""
    return shape if groups == 1 else (groups, shape[0] // groups, *shape[1:])


def _convolution(
    kind: str, op: Conv2d, x: Shape, w: Shape, y: Shape, bias: bool = False
) -> Descriptor | None:
    """Return oneDNN's first implementation, in the layouts that suit the convolution best.

    1x1 windows are matrix products, which need no other layout than the caller's; for larger ones
    oneDNN chooses, and what it gains outweighs the reorders.
    """
    engine = onednn.loaded().engine
    weights = onednn.any_layout(_grouped(w, op.groups), F32)
    choose = onednn.strided if w[2:] == (1, 1) else onednn.any_layout
    free = [choose(x, F32), weights, choose(y, F32)]
    window = [
        dims(op.stride),
        dims(d - 1 for d in op.dilation),
        dims(op.padding),
        dims(_padding_behind(op, x, w, y)),
    ]
    x_layout, w_layout, y_layout = free
    b_layout = onednn.strided((w[0],), F32) if bias else None
    hint = Descriptor(
        "dnnl_convolution_forward_primitive_desc_create",
        engine,
        onednn.FORWARD_TRAINING,
        onednn.CONVOLUTION_DIRECT,
        x_layout,
        w_layout,
        b_layout,
        y_layout,
        *window,
    )
    if kind == "forward":
        return _fast(hint)
    if kind == "backward_weights":
        free.insert(2, None)  # type: ignore[arg-type]
    return _fast(
        Descriptor(
            f"dnnl_convolution_{kind}_primitive_desc_create",
            engine,
            onednn.CONVOLUTION_DIRECT,
            *free,
            *window,
            hint,
        )
    )


def _padding_behind(op: Conv2d, x: Shape, w: Shape, y: Shape) -> list[int]:
    """oneDNN wants windows to end where the padding does; a remainder of the stride shortens it."""
    axes = zip(x[2:], w[2:], y[2:], op.stride, op.padding, op.dilation, strict=True)
    return [(o - 1) * t + d * (k - 1) + 1 - n - p for n, k, o, t, p, d in axes]


def conv2d(op: Conv2d, node: Node, strides: Strides) -> Recipe | None:
    x, w, *bias = (v.shape for v in node.inputs)
    args = [
        (onednn.SRC, onednn.strided(x, F32), _in(0)),
        (onednn.WEIGHTS, onednn.strided(_grouped(w, op.groups), F32), _in(1)),
        *((onednn.BIAS, onednn.strided(b, F32), _in(2)) for b in bias),
        (onednn.DST, onednn.strided(node.shape, F32), _out(0)),
    ]
    found = _convolution("forward", op, x, w, node.shape, bool(bias))
    return _kernel(found, args, (False,) * len(node.inputs))


def conv2d_backward_data(op: Conv2dBackwardData, node: Node, strides: Strides) -> Recipe | None:
    dy, w = (v.shape for v in node.inputs)
    args = [
        (onednn.DIFF_DST, onednn.strided(dy, F32), _in(0)),
        (onednn.WEIGHTS, onednn.strided(_grouped(w, op.conv.groups), F32), _in(1)),
        (onednn.DIFF_SRC, onednn.strided(node.shape, F32), _out(0)),
    ]
    found = _convolution("backward_data", op.conv, node.shape, w, dy)
    return _kernel(found, args, (False, False))


def conv2d_backward_weights(
    op: Conv2dBackwardWeights, node: Node, strides: Strides
) -> Recipe | None:
    dy, x = (v.shape for v in node.inputs)
    args = [
        (onednn.DIFF_DST, onednn.strided(dy, F32), _in(0)),
        (onednn.SRC, onednn.strided(x, F32), _in(1)),
        (
            onednn.DIFF_WEIGHTS,
            onednn.strided(_grouped(node.shape, op.conv.groups), F32),
            _out(0),
        ),
    ]
    found = _convolution("backward_weights", op.conv, x, node.shape, dy)
    return _kernel(found, args, (False, False))


# ---------------------------------------------------------------- matrix products


def matmul(op: Matmul, node: Node, strides: Strides) -> Recipe | None:
    layouts, strided = [], []
    for x, bytes_ in zip(node.inputs[:2], strides, strict=False):
        steps = [s // x.dtype.itemsize for s in bytes_]
        readable = _is_matrix(x.shape, steps)
        strided.append(readable)
        shape = (1,) * (node.ndim - x.ndim) + x.shape
        lead = [steps[0] * x.shape[0]] * (node.ndim - x.ndim) if readable else []
        layouts.append(onednn.strided(shape, F32, [*lead, *steps] if readable else None))
    bias = [onednn.strided((1,) * (node.ndim - 1) + b.shape, F32) for b in node.inputs[2:]]
    y = onednn.strided(node.shape, F32)
    found = Descriptor(
        "dnnl_matmul_primitive_desc_create",
        onednn.loaded().engine,
        *layouts,
        bias[0] if bias else None,
        y,
    )
    args = [
        (onednn.SRC, layouts[0], _in(0)),
        (onednn.WEIGHTS, layouts[1], _in(1)),
        *((onednn.BIAS, layout, _in(2)) for layout in bias),
        (onednn.DST, y, _out(0)),
    ]
    return _kernel(_fast(found), args, (*strided, *(False for _ in bias)))


def _is_matrix(shape: Shape, steps: Sequence[int]) -> bool:
    """Whether oneDNN reads matrices with these strides in place: rows or columns are contiguous."""
    if any(s <= 0 for s in steps):
        return False
    rows = steps[-1] == 1 and steps[-2] >= shape[-1]
    columns = steps[-2] == 1 and steps[-1] >= shape[-2]
    extent = steps[-2] * shape[-2] if rows else steps[-1] * shape[-1]
    for n, s in zip(reversed(shape[:-2]), reversed(steps[:-2]), strict=True):
        if s < extent:
            return False
        extent = s * n
    return rows or columns


# ---------------------------------------------------------------- pooling


def _pooling(kind: int, pooling: Pooling, x: Shape, y: Shape, backward: bool) -> Descriptor | None:
    engine = onednn.loaded().engine
    x_layout, y_layout = onednn.strided(x, F32), onednn.strided(y, F32)
    window = [
        dims(pooling.stride),
        dims(pooling.window),
        dims((0, 0)),
        dims(before for before, _ in pooling.padding),
        dims(_pooling_behind(pooling, x, y)),
    ]
    forward = Descriptor(
        "dnnl_pooling_forward_primitive_desc_create",
        engine,
        onednn.FORWARD_TRAINING,
        kind,
        x_layout,
        y_layout,
        *window,
    )
    if not backward:
        return _fast(forward)
    return _fast(
        Descriptor(
            "dnnl_pooling_backward_primitive_desc_create",
            engine,
            kind,
            x_layout,
            y_layout,
            *window,
            forward,
        )
    )


def _pooling_behind(pooling: Pooling, x: Shape, y: Shape) -> list[int]:
    axes = zip(x[2:], y[2:], pooling.window, pooling.stride, pooling.padding, strict=True)
    return [(o - 1) * t + k - n - p for n, o, k, t, (p, _) in axes]


def _average(op: AvgPool2d, x: Shape, y: Shape, backward: bool) -> Descriptor | None:
    pooling = op.pooling
    behind = _pooling_behind(pooling, x, y)
    if op.count_padding and any(b > p for b, p in zip(behind, op.pad, strict=True)):
        return None  # oneDNN would count what lies beyond the padding too
    kind = onednn.POOLING_AVG_EXCLUDE_PADDING
    if op.count_padding:
        kind = onednn.POOLING_AVG_INCLUDE_PADDING
    return _pooling(kind, pooling, x, y, backward)


def avg_pool2d(op: AvgPool2d, node: Node, strides: Strides) -> Recipe | None:
    x = node.inputs[0].shape
    args = [
        (onednn.SRC, onednn.strided(x, F32), _in(0)),
        (onednn.DST, onednn.strided(node.shape, F32), _out(0)),
    ]
    return _kernel(_average(op, x, node.shape, False), args, (False,))


def avg_pool2d_backward(op: AvgPool2dBackward, node: Node, strides: Strides) -> Recipe | None:
    dy = node.inputs[0].shape
    args = [
        (onednn.DIFF_DST, onednn.strided(dy, F32), _in(0)),
        (onednn.DIFF_SRC, onednn.strided(node.shape, F32), _out(0)),
    ]
    return _kernel(_average(op.pool, node.shape, dy, True), args, (False,))


# ---------------------------------------------------------------- normalisation


def _batch_norm(x: Shape, eps: float, propagation: int, flags: int) -> Descriptor:
    layout = onednn.strided(x, F32)
    return Descriptor(
        "dnnl_batch_normalization_forward_primitive_desc_create",
        onednn.loaded().engine,
        propagation,
        layout,
        layout,
        c_float(eps),
        flags,
    )


def batch_norm(op: BatchNorm, node: Node, strides: Strides) -> Recipe | None:
    x, channels = node.inputs[0].shape, onednn.strided(node.inputs[1].shape, F32)
    flags = onednn.USE_SCALE | onednn.USE_SHIFT
    found = _batch_norm(x, op.eps, onednn.FORWARD_TRAINING, flags)
    args = [
        (onednn.SRC, onednn.strided(x, F32), _in(0)),
        (onednn.SCALE, channels, _in(1)),
        (onednn.SHIFT, channels, _in(2)),
        (onednn.DST, onednn.strided(x, F32), _out(0)),
        (onednn.MEAN, channels, _out(1)),
        (onednn.VARIANCE, channels, _out(2)),
    ]
    return _kernel(_fast(found), args, (False,) * 3)


def batch_norm_inference(op: BatchNormInference, node: Node, strides: Strides) -> Recipe | None:
    x, channels = node.shape, onednn.strided(node.inputs[1].shape, F32)
    flags = onednn.USE_SCALE | onednn.USE_SHIFT | onednn.USE_GLOBAL_STATS
    found = _batch_norm(x, op.eps, onednn.FORWARD_INFERENCE, flags)
    names = (onednn.SCALE, onednn.SHIFT, onednn.MEAN, onednn.VARIANCE)
    args = [
        (onednn.SRC, onednn.strided(x, F32), _in(0)),
        *((name, channels, _in(i)) for i, name in enumerate(names, 1)),
        (onednn.DST, onednn.strided(x, F32), _out(0)),
    ]
    return _kernel(_fast(found), args, (False,) * 5)


def batch_norm_backward(op: BatchNormBackward, node: Node, strides: Strides) -> Recipe | None:
    x, channels = node.inputs[1].shape, onednn.strided(node.inputs[2].shape, F32)
    layout = onednn.strided(x, F32)
    flags = onednn.USE_SCALE | onednn.USE_SHIFT
    found = Descriptor(
        "dnnl_batch_normalization_backward_primitive_desc_create",
        onednn.loaded().engine,
        onednn.BACKWARD,
        layout,
        layout,
        layout,
        c_float(op.eps),
        flags,
        _batch_norm(x, op.eps, onednn.FORWARD_TRAINING, flags),
    )
    args = [
        (onednn.DIFF_DST, layout, _in(0)),
        (onednn.SRC, layout, _in(1)),
        (onednn.SCALE, channels, _in(2)),
        (onednn.MEAN, channels, _in(3)),
        (onednn.VARIANCE, channels, _in(4)),
        (onednn.DIFF_SRC, layout, _out(0)),
        (onednn.DIFF_SCALE, channels, _out(1)),
        (onednn.DIFF_SHIFT, channels, _out(2)),
    ]
    return _kernel(_fast(found), args, (False,) * 5)


KERNELS: dict[type[Op], Callable[[Any, Node, Strides], Recipe | None]] = {
    Conv2d: conv2d,
    Conv2dBackwardData: conv2d_backward_data,
    Conv2dBackwardWeights: conv2d_backward_weights,
    Matmul: matmul,
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d_backward,
    BatchNorm: batch_norm,
    BatchNormInference: batch_norm_inference,
    BatchNormBackward: batch_norm_backward,
}


def _operations(node: Node) -> int:
    """Return roughly how many floating-point operations a node takes."""
    match node.op:
        case Conv2d():
            return 2 * node.size * math.prod(node.inputs[1].shape[1:])
        case Conv2dBackwardData():
            return 2 * node.inputs[0].size * math.prod(node.inputs[1].shape[1:])
        case Conv2dBackwardWeights():
            return 2 * node.inputs[0].size * math.prod(node.shape[1:])
        case Matmul():
            return 2 * node.size * node.inputs[0].shape[-1]
    return 100 * max(s.size for s in (*(x.spec for x in node.inputs), *node.specs))


def kernel(node: Node, strides: Strides, threads: int) -> OneDnnKernel | None:
    """Return oneDNN's kernel for `node`, or None if it has no fast one."""
    make = KERNELS.get(type(node.op))
    specs = (*(x.spec for x in node.inputs), *node.specs)
    if make is None or not all(
        s.size and s.dtype == F32 and len(s.shape) <= MAX_NDIM for s in specs
    ):
        return None
    threads = threads if _operations(node) >= THREADED else 1
    try:
        with onednn.omp_threads(threads):
            recipe = make(node.op, node, strides)
            return recipe and OneDnnKernel(*recipe, threads)
    except onednn.Unimplemented:
        return None
