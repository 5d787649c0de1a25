"""Which oneDNN primitives compute which op.

Nothing here says what an op is: only ways to compute it.  A function yields them in a fixed order,
what is likely to be fastest first; nothing where oneDNN has but its slow reference implementation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_float
from functools import partial
from typing import Any

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import convolution, onednn
from minigraph.devices.cpu.convolution import image_layout
from minigraph.devices.cpu.onednn import F32, MAX_NDIM, Descriptor, dims
from minigraph.devices.cpu.onednn_kernel import Implementation, OneDnnKernel, Operand
from minigraph.devices.problem import Arrangement, operations
from minigraph.errors import GraphError
from minigraph.graph import Node, Op, Shape
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import BatchNorm, BatchNormBackward, BatchNormInference
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward, Pooling

THREADED = 4_000_000  # operations from which on a second thread pays
Shapes = list[Shape]
Strides = Sequence[tuple[int, ...]]


def _in(index: int) -> Operand:
    return Operand("inputs", index)


def _out(index: int) -> Operand:
    return Operand("outputs", index)


# ---------------------------------------------------------------- matrix products


def matmul(op: Matmul, xs: Shapes, ys: Shapes, strides: Strides) -> Iterator[Implementation]:
    (y,) = ys
    layouts, strided = [], []
    for x, bytes_ in zip(xs[:2], strides, strict=False):
        steps = [s // F32.itemsize for s in bytes_]
        readable = _is_matrix(x, steps)
        strided.append(readable)
        shape = (1,) * (len(y) - len(x)) + x
        lead = [steps[0] * x[0]] * (len(y) - len(x)) if readable else []
        layouts.append(onednn.strided(shape, F32, [*lead, *steps] if readable else None))
    bias = [onednn.strided((1,) * (len(y) - 1) + b, F32) for b in xs[2:]]
    result = onednn.strided(y, F32)
    args = [
        (onednn.SRC, layouts[0], _in(0)),
        (onednn.WEIGHTS, layouts[1], _in(1)),
        *((onednn.BIAS, layout, _in(2)) for layout in bias),
        (onednn.DST, result, _out(0)),
    ]
    for descriptor in onednn.implementations(
        "dnnl_matmul_primitive_desc_create",
        onednn.loaded().engine,
        *layouts,
        bias[0] if bias else None,
        result,
    ):
        yield Implementation(descriptor, args, (*strided, *(False for _ in bias)))


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


def _pooling(
    kind: int, pooling: Pooling, x: Shape, y: Shape, backward: bool
) -> Iterator[Descriptor]:
    engine = onednn.loaded().engine
    x_layout, y_layout = image_layout(x), image_layout(y)
    window = [
        dims(pooling.stride),
        dims(pooling.window),
        dims((0, 0)),
        dims(before for before, _ in pooling.padding),
        dims(_pooling_behind(pooling, unpacked(x), unpacked(y))),
    ]
    forward: list[Any] = [
        "dnnl_pooling_forward_primitive_desc_create",
        engine,
        onednn.FORWARD_TRAINING,
        kind,
        x_layout,
        y_layout,
        *window,
    ]
    if not backward:
        return onednn.implementations(*forward)
    create = "dnnl_pooling_backward_primitive_desc_create"
    return onednn.implementations(
        create, engine, kind, x_layout, y_layout, *window, Descriptor(*forward)
    )


def _pooling_behind(pooling: Pooling, x: Shape, y: Shape) -> list[int]:
    axes = zip(x[2:], y[2:], pooling.window, pooling.stride, pooling.padding, strict=True)
    return [(o - 1) * t + k - n - p for n, o, k, t, (p, _) in axes]


def _average(op: AvgPool2d, x: Shape, y: Shape, backward: bool) -> Iterator[Descriptor]:
    behind = _pooling_behind(op.pooling, unpacked(x), unpacked(y))
    if op.count_padding and any(b > p for b, p in zip(behind, op.pad, strict=True)):
        return iter(())  # oneDNN would count what lies beyond the padding too
    kind = onednn.POOLING_AVG_EXCLUDE_PADDING
    if op.count_padding:
        kind = onednn.POOLING_AVG_INCLUDE_PADDING
    return _pooling(kind, op.pooling, x, y, backward)


def avg_pool2d(op: AvgPool2d, xs: Shapes, ys: Shapes) -> Iterator[Implementation]:
    args = [
        (onednn.SRC, image_layout(xs[0]), _in(0)),
        (onednn.DST, image_layout(ys[0]), _out(0)),
    ]
    for descriptor in _average(op, xs[0], ys[0], False):
        yield Implementation(descriptor, args)


def avg_pool2d_backward(op: AvgPool2dBackward, xs: Shapes, ys: Shapes) -> Iterator[Implementation]:
    args = [
        (onednn.DIFF_DST, image_layout(xs[0]), _in(0)),
        (onednn.DIFF_SRC, image_layout(ys[0]), _out(0)),
    ]
    for descriptor in _average(op.pool, ys[0], xs[0], True):
        yield Implementation(descriptor, args)


# ---------------------------------------------------------------- normalisation


def _normalized(x: Shape, vector: Shape) -> onednn.MemoryDescriptor:
    """The layout of what is normalised: images with lanes, if the vectors have them."""
    return image_layout(x) if len(vector) == 2 else onednn.strided(x, F32)


def _vector(shape: Shape) -> onednn.MemoryDescriptor:
    return onednn.strided((math.prod(shape),), F32)


def _batch_norm(
    layout: onednn.MemoryDescriptor, eps: float, propagation: int, flags: int
) -> list[Any]:
    return [
        "dnnl_batch_normalization_forward_primitive_desc_create",
        onednn.loaded().engine,
        propagation,
        layout,
        layout,
        c_float(eps),
        flags,
    ]


def batch_norm(op: BatchNorm, xs: Shapes, ys: Shapes) -> Iterator[Implementation]:
    layout, channels = _normalized(*xs[:2]), _vector(xs[1])
    flags = onednn.USE_SCALE | onednn.USE_SHIFT
    args = [
        (onednn.SRC, layout, _in(0)),
        (onednn.SCALE, channels, _in(1)),
        (onednn.SHIFT, channels, _in(2)),
        (onednn.DST, layout, _out(0)),
        (onednn.MEAN, channels, _out(1)),
        (onednn.VARIANCE, channels, _out(2)),
    ]
    forward = _batch_norm(layout, op.eps, onednn.FORWARD_TRAINING, flags)
    for descriptor in onednn.implementations(*forward):
        yield Implementation(descriptor, args)


def batch_norm_inference(
    op: BatchNormInference, xs: Shapes, ys: Shapes
) -> Iterator[Implementation]:
    layout, channels = _normalized(*xs[:2]), _vector(xs[1])
    flags = onednn.USE_SCALE | onednn.USE_SHIFT | onednn.USE_GLOBAL_STATS
    names = (onednn.SCALE, onednn.SHIFT, onednn.MEAN, onednn.VARIANCE)
    args = [
        (onednn.SRC, layout, _in(0)),
        *((name, channels, _in(i)) for i, name in enumerate(names, 1)),
        (onednn.DST, layout, _out(0)),
    ]
    forward = _batch_norm(layout, op.eps, onednn.FORWARD_INFERENCE, flags)
    for descriptor in onednn.implementations(*forward):
        yield Implementation(descriptor, args)


def batch_norm_backward(op: BatchNormBackward, xs: Shapes, ys: Shapes) -> Iterator[Implementation]:
    layout, channels = _normalized(*xs[1:3]), _vector(xs[2])
    flags = onednn.USE_SCALE | onednn.USE_SHIFT
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
    for descriptor in onednn.implementations(
        "dnnl_batch_normalization_backward_primitive_desc_create",
        onednn.loaded().engine,
        onednn.BACKWARD,
        layout,
        layout,
        layout,
        c_float(op.eps),
        flags,
        Descriptor(*_batch_norm(layout, op.eps, onednn.FORWARD_TRAINING, flags)),
    ):
        yield Implementation(descriptor, args)


# ---------------------------------------------------------------- layouts


def reorder(op: Reorder, xs: Shapes, ys: Shapes) -> Iterator[Implementation]:
    source, target = image_layout(xs[0]), image_layout(ys[0])
    args = [(onednn.SRC, source, _in(0)), (onednn.DST, target, _out(0))]
    for descriptor in onednn.reorders(source, target):
        yield Implementation(descriptor, args)


KERNELS: dict[type[Op], Callable[[Any, Shapes, Shapes], Iterator[Implementation]]] = {
    Conv2d: convolution.conv2d,
    Conv2dBackwardData: convolution.conv2d_backward_data,
    Conv2dBackwardWeights: convolution.conv2d_backward_weights,
    AvgPool2d: avg_pool2d,
    AvgPool2dBackward: avg_pool2d_backward,
    BatchNorm: batch_norm,
    BatchNormInference: batch_norm_inference,
    BatchNormBackward: batch_norm_backward,
    Reorder: reorder,
}


def implementations(node: Node, strides: Strides) -> Iterator[Implementation]:
    """Yield oneDNN's ways to compute `node`, whose inputs have these strides in bytes."""
    specs = (*(x.spec for x in node.inputs), *node.specs)
    if not all(s.size and s.dtype == F32 and len(s.shape) <= MAX_NDIM for s in specs):
        return
    xs, ys = [x.shape for x in node.inputs], [y.shape for y in node.specs]
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    try:
        if isinstance(op, Matmul):
            yield from matmul(op, xs, ys, strides)
        elif type(op) in KERNELS:
            yield from KERNELS[type(op)](op, xs, ys)
    except onednn.Unimplemented:
        return


def threads_for(node: Node, threads: int) -> int:
    """Return how many threads are worth it."""
    return threads if operations(node) >= THREADED else 1


def kernel(node: Node, strides: Strides, threads: int) -> OneDnnKernel | None:
    """Return oneDNN's kernel for `node`, or None if it has no fast one."""
    threads = threads_for(node, threads)
    with onednn.omp_threads(threads):
        for implementation in implementations(node, strides):
            try:
                return OneDnnKernel(implementation, threads)
            except GraphError:  # described, but not to be had: the next one takes its place
                continue
    return None


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    """Yield oneDNN's candidates for a node.

    Of the implementations that differ in their instruction set alone ("jit:avx512_core" and
    "jit:avx2") the library's first is the one with the widest, and the only one worth the time.
    """
    families = set()
    with onednn.omp_threads(threads):
        for implementation in implementations(arrangement.node, arrangement.strides):
            if implementation.family not in families:
                families.add(implementation.family)
                make = partial(_made, implementation, threads)
                yield Candidate(implementation.name, arrangement.layouts, make)


def _made(implementation: Implementation, threads: int) -> OneDnnKernel:
    with onednn.omp_threads(threads):
        return OneDnnKernel(implementation, threads)
