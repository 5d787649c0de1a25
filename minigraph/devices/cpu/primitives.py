"""The oneDNN primitives for each op.

A function yields the implementations of an op in a fixed order, with the fastest probably first.
It yields none if oneDNN has only its slow reference implementation.

Images have the layout of the graph.  Kernels reorder weights to the layout that the implementation
prefers.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from minigraph.autotune.candidate import Candidate
from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.kernel import constants_of
from minigraph.devices.cpu.onednn import MAX_NDIM, Descriptor, MemoryDescriptor, dims
from minigraph.devices.cpu.onednn_kernel import Implementation, OneDnnKernel
from minigraph.devices.problem import ROLES, Arrangement, conv_of, operations
from minigraph.errors import GraphError
from minigraph.graph import Node, Op, Shape, Spec
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.ops.pooling import AvgPool2d, AvgPool2dBackward
from minigraph.ops.reduction import MAX_PLAIN_SUM

MAX_SEQUENTIAL_SUM = 1 << 14  # products in a sum
MIN_ACCURATE_SIDE = 32  # rows or columns
# "gemm" is faster for up to MAX_GEMM_ROWS rows if the second matrix is row-major, as "brg" then
# copies it in each call (Zen 5, 32 rows times 4096 x 4096: 6.1 and 10.5 ms); for up to
# MAX_GEMM_ROWS_BY_COLUMNS if it is column-major (1 row times 9216 x 4096: 4.5 and 7.1 ms); and
# always for one column.  In a batch whose second matrices have fewer than MIN_GEMM_MATRIX elements
# "brg" is faster (64 times 2 x 2 x 16: 6 and 20 us).
MAX_GEMM_ROWS, MAX_GEMM_ROWS_BY_COLUMNS, MIN_GEMM_MATRIX = 64, 3, 1 << 16
# "gemm" is also faster for at least MIN_GEMM_RESULT sums of at most MAX_GEMM_SUM products, as in
# the gradient of a large layer's weights (Xeon, 4096 x 9216 sums of 32: 20 and 49 ms of one core).
MAX_GEMM_SUM, MIN_GEMM_RESULT = 64, 1 << 20
# A second thread pays for this many operations, or for an operand with this many elements, as
# memory then bounds the kernel.
MIN_THREADED_OPERATIONS, MIN_THREADED_OPERAND = 4_000_000, 1 << 16
MIN_GENERATED_WIDTH = 16  # elements of a row of a window
POINTWISE = (1, 1)  # a window of one pixel
MAX_SUMMED_PIXELS = 1024  # pixels of all images of a batch
Specs = Sequence[Spec]
Strides = Sequence[Shape]


# ---------------------------------------------------------------- layouts


def image_descriptor(x: Spec, blocked: bool = False) -> MemoryDescriptor:
    """Return oneDNN's layout of images whose spec is one of `minigraph.ops.layout`.

    blocked  whether a single block of all channels is described as blocked, not as nhwc
    """
    if len(x.shape) == 4:
        return onednn.strided(x.shape, x.dtype)
    n, c, h, w = unpacked(x.shape)
    lanes = x.shape[4]
    if lanes == c and not blocked:
        return onednn.strided((n, c, h, w), x.dtype, (c * h * w, 1, w * c, c))
    return onednn.blocked((n, c, h, w), x.dtype, lanes)


def _is_matrix(shape: Shape, steps: Sequence[int]) -> bool:
    """Whether oneDNN can read matrices in place.

    It can if rows or columns are contiguous, and the matrices follow each other, or have no gaps in
    any order of axes, such as the interleaved heads of attention.
    """
    rows = steps[-1] == 1 and steps[-2] >= shape[-1]
    columns = steps[-2] == 1 and steps[-1] >= shape[-2]
    if any(s <= 0 for s in steps) or not (rows or columns):
        return False
    extent = steps[-2] * shape[-2] if rows else steps[-1] * shape[-1]
    in_order = True
    for n, s in zip(reversed(shape[:-2]), reversed(steps[:-2]), strict=True):
        in_order &= s >= extent
        extent = s * n
    by_distance = sorted((s, n) for n, s in zip(shape, steps, strict=True) if n > 1)
    sizes = itertools.accumulate((n for _, n in by_distance), operator.mul, initial=1)
    return in_order or all(s == size for (s, _), size in zip(by_distance, sizes, strict=False))


# ---------------------------------------------------------------- matrix products


def matmul(op: Matmul, xs: Specs, ys: Specs, strides: Strides) -> Iterator[Implementation]:
    (y,) = ys
    layouts, strided = [], []
    for x, nbytes in zip(xs[:2], strides, strict=False):
        steps = [s // x.dtype.itemsize for s in nbytes]
        readable = _is_matrix(x.shape, steps)
        strided.append(readable)
        missing_axes = len(y.shape) - len(x.shape)
        lead = [steps[0] * x.shape[0]] * missing_axes if readable else []
        shape = (1,) * missing_axes + x.shape
        layouts.append(onednn.strided(shape, x.dtype, [*lead, *steps] if readable else None))
    bias = [onednn.strided((1,) * (len(y.shape) - 1) + b.shape, b.dtype) for b in xs[2:]]
    result = onednn.strided(y.shape, y.dtype)
    names = (onednn.SRC, onednn.WEIGHTS, onednn.BIAS)
    inputs = [*zip(names, [*layouts, *bias], strict=False)]
    strided += [False for _ in bias]
    create = "dnnl_matmul_primitive_desc_create"
    bias_layout = bias[0] if bias else None
    (m, n), k = y.shape[-2:], xs[0].shape[-1]
    descriptors = onednn.implementations(create, *layouts, bias_layout, result)
    x_in_rows, y_in_rows = (steps[-1] == y.dtype.itemsize for steps in strides[:2])
    large = math.prod(y.shape[:-2]) == 1 or k * n >= MIN_GEMM_MATRIX
    few_rows = (m <= MAX_GEMM_ROWS and y_in_rows) or (m <= MAX_GEMM_ROWS_BY_COLUMNS and x_in_rows)
    short_sums = k <= MAX_GEMM_SUM and m * n >= MIN_GEMM_RESULT
    if n == 1 or (large and few_rows) or short_sums:
        descriptors = iter(
            sorted(descriptors, key=lambda descriptor: "gemm" not in descriptor.name)
        )
    for descriptor in descriptors:
        # With few rows or columns "gemm" adds up products in sequence, which loses accuracy.
        inexact = k > MAX_SEQUENTIAL_SUM and min(m, n) < MIN_ACCURATE_SIDE
        if inexact and "gemm" in descriptor.name:
            continue
        yield Implementation(descriptor, inputs, (onednn.DST, result), strided)


# ---------------------------------------------------------------- convolutions

# oneDNN's names of a convolution and its gradients, and indices of two operands and the result.
CONVOLUTIONS: dict[type[Op], tuple[str, tuple[int, int, int]]] = {
    Conv2d: ("forward", (onednn.SRC, onednn.WEIGHTS, onednn.DST)),
    Conv2dBackwardData: ("backward_data", (onednn.DIFF_DST, onednn.WEIGHTS, onednn.DIFF_SRC)),
    Conv2dBackwardWeights: ("backward_weights", (onednn.DIFF_DST, onednn.SRC, onednn.DIFF_WEIGHTS)),
}


def convolution(op: Any, xs: Specs, ys: Specs) -> Iterator[Implementation]:
    """Yield implementations of a convolution or one of its gradients.

    If both images are nchw, oneDNN may also choose layouts, and the kernel reorders the images.
    1 x 1 windows are matrix products, which are fast in nchw; for larger windows the gain of
    another layout outweighs the reorders.
    """
    direction, names = CONVOLUTIONS[type(op)]
    conv, roles = conv_of(op), ROLES[type(op)]
    specs = dict(zip(roles, (*xs[:2], *ys), strict=True))
    x, w, y = (specs[role] for role in "xwy")
    blocked = any(len(s.shape) == 5 and s.shape[1] > 1 for s in (x, y))  # both or neither are
    # oneDNN has the groups first.
    k, *window_and_channels = w.shape
    grouped = w.shape if conv.groups == 1 else (conv.groups, k // conv.groups, *window_and_channels)
    shapes = {"x": unpacked(x.shape), "w": grouped, "y": unpacked(y.shape)}
    layouts = {"x": image_descriptor(x, blocked), "y": image_descriptor(y, blocked)}
    layouts["w"] = onednn.strided(grouped, w.dtype)
    any_layouts = {role: onednn.any_layout(shapes[role], specs[role].dtype) for role in "xwy"}
    first, second, result = zip(names, (layouts[role] for role in roles), strict=True)
    bias = [(onednn.BIAS, onednn.strided(b.shape, b.dtype)) for b in xs[2:]]
    pairs = [("", layouts)]
    if len(x.shape) == len(y.shape) == 4:
        pairs.insert(1 if w.shape[2:] == POINTWISE else 0, (" with reorders", any_layouts))
    window = [
        dims(conv.stride),
        dims(d - 1 for d in conv.dilation),
        dims(conv.padding),
        dims(_padding_behind(conv, shapes["x"], w.shape, shapes["y"])),
    ]

    create = f"dnnl_convolution_{direction}_primitive_desc_create"
    no_bias = [None] if direction == "backward_weights" else []  # the gradient of a bias
    # The forward descriptor (hint) has a single dtype, even if the gradient has another.
    hint_layouts = [onednn.any_layout(shapes[role], xs[0].dtype) for role in "xwy"]

    def forward(
        x: MemoryDescriptor, w: MemoryDescriptor, y: MemoryDescriptor, bias_layout: Any = None
    ) -> list[Any]:
        name = "dnnl_convolution_forward_primitive_desc_create"
        kinds = onednn.FORWARD_TRAINING, onednn.CONVOLUTION_DIRECT
        return [name, *kinds, x, w, bias_layout, y, *window]

    # "gemm" multiplies padding zeros by infinity and NaN, which gives NaN.
    padded = any(conv.padding) and not isinstance(op, Conv2dBackwardData)
    for suffix, images in pairs:
        arguments = forward(
            images["x"], any_layouts["w"], images["y"], *(layout for _, layout in bias)
        )
        with suppress(onednn.Unimplemented):
            if direction != "forward":
                operands = images["x"], any_layouts["w"], *no_bias, images["y"]
                hint = Descriptor(*forward(*hint_layouts))
                arguments = [create, onednn.CONVOLUTION_DIRECT, *operands, *window, hint]
            for descriptor in onednn.implementations(*arguments):
                reordered = any(
                    descriptor.layout(name) != layouts[role]
                    for name, role in zip(names, roles, strict=True)
                    if role != "w"
                )
                if (reordered or not suffix) and not (padded and "gemm" in descriptor.name):
                    yield Implementation(descriptor, [first, second, *bias], result, suffix=suffix)


def _padding_behind(op: Conv2d, x: Shape, w: Shape, y: Shape) -> list[int]:
    """Return the padding after the last pixels: oneDNN's last window ends with the padding."""
    axes = zip(x[2:], w[2:], y[2:], op.stride, op.padding, op.dilation, strict=True)
    return [(o - 1) * t + d * (k - 1) + 1 - n - p for n, k, o, t, p, d in axes]


# ---------------------------------------------------------------- pooling


def average_pooling(
    op: AvgPool2d | AvgPool2dBackward, xs: Specs, ys: Specs
) -> Iterator[Implementation]:
    backward = isinstance(op, AvgPool2dBackward)
    pool = op.pool if isinstance(op, AvgPool2dBackward) else op
    x, y = (ys[0], xs[0]) if backward else (xs[0], ys[0])
    pooling = pool.pooling
    sides = zip(unpacked(x.shape)[2:], unpacked(y.shape)[2:], strict=True)
    windows = [*zip(pooling.window, pooling.stride, pooling.padding, strict=True)]
    padding_behind = [
        (o - 1) * t + k - n - p for (n, o), (k, t, (p, _)) in zip(sides, windows, strict=True)
    ]
    summands = [math.ceil(k / t) if backward else k for k, t, _ in windows]
    if math.prod(summands) > MAX_PLAIN_SUM:
        return iter(())  # oneDNN adds up in sequence, which loses accuracy
    if pooling.window[1] >= MIN_GENERATED_WIDTH or (not backward and pooling.window == x.shape[2:]):
        return iter(())  # generated kernels are faster; whole images are rows
    if pool.count_padding and any(b > p for b, p in zip(padding_behind, pool.pad, strict=True)):
        return iter(())  # oneDNN would also count elements beyond the padding
    kind = onednn.POOLING_AVG_EXCLUDE_PADDING
    if pool.count_padding:
        kind = onednn.POOLING_AVG_INCLUDE_PADDING
    padding_before = [p for p, _ in pooling.padding]
    window = [*map(dims, (pooling.stride, pooling.window, (0, 0), padding_before, padding_behind))]
    image, result = image_descriptor(x), image_descriptor(y)
    operands = [kind, image, result, *window]
    create = "dnnl_pooling_forward_primitive_desc_create"
    forward = [create, onednn.FORWARD_TRAINING, *operands]
    source, destination = onednn.SRC, onednn.DST
    if backward:
        source, destination = onednn.DIFF_DST, onednn.DIFF_SRC
        create = "dnnl_pooling_backward_primitive_desc_create"
        forward = [create, *operands, Descriptor(*forward)]
        image, result = result, image
    # The "simple" loops add up in sequence, which loses accuracy.
    descriptors = (d for d in onednn.implementations(*forward) if "simple" not in d.name)
    return (Implementation(d, [(source, image)], (destination, result)) for d in descriptors)


# ---------------------------------------------------------------- all ops


def implementations(node: Node, strides: Strides) -> Iterator[Implementation]:
    """Yield implementations of `node`, whose inputs have these strides in bytes."""
    xs, ys = [x.spec for x in node.inputs], node.specs
    dtypes = {s.dtype for s in (*xs, *ys)}
    supported = all(s.size and len(s.shape) <= MAX_NDIM for s in (*xs, *ys))
    if not (supported and len(dtypes) == 1 and dtypes <= onednn.dtypes()):
        return
    yield from implementations_of(node.op, xs, ys, strides)


def implementations_of(op: Op, xs: Specs, ys: Specs, strides: Strides) -> Iterator[Implementation]:
    """Yield implementations of an op for operands with these specs, of any dtypes."""
    op = op.plain if isinstance(op, LaidOut) else op
    with suppress(onednn.Unimplemented):
        if isinstance(op, Matmul):
            yield from matmul(op, xs, ys, strides)
        elif type(op) in CONVOLUTIONS:
            yield from convolution(op, xs, ys)
        elif isinstance(op, AvgPool2d | AvgPool2dBackward):
            yield from average_pooling(op, xs, ys)


def threads_for_node(node: Node, threads: int) -> int:
    """Return how many threads should share a node of a primitive or a tuned problem."""
    largest = max(spec.size for spec in (*(x.spec for x in node.inputs), *node.specs))
    is_large = operations(node) >= MIN_THREADED_OPERATIONS or largest >= MIN_THREADED_OPERAND
    return threads if is_large else 1


def sums_of_many_pixels(op: Op, node: Node) -> bool:
    """Whether a weights' gradient sums too many pixels for oneDNN's accuracy.

    Its "jit" kernels for blocks of channels add up the pixels of all images in sequence.
    """
    dy = node.inputs[0]
    pixels = dy.shape[0] * math.prod(dy.shape[2:4])
    return (
        isinstance(op, Conv2dBackwardWeights) and op.conv.groups == 1 and pixels > MAX_SUMMED_PIXELS
    )


def onednn_kernel(node: Node, strides: Strides, threads: int) -> OneDnnKernel | None:
    """Return oneDNN's kernel for `node`, or None if it has no fast one."""
    threads = threads_for_node(node, threads)
    with onednn.omp_threads(threads):
        for implementation in implementations(node, strides):
            try:
                return OneDnnKernel(implementation, threads, constants_of(node))
            except GraphError:  # described, but not supported
                continue
    return None


def candidates(arrangement: Arrangement, threads: int) -> Iterator[Candidate]:
    if onednn.library() is None:
        return
    available = implementations(arrangement.node, arrangement.strides)
    for implementation in one_of_each_family(available, threads):
        make = partial(kernel_of, implementation, threads, constants_of(arrangement.node))
        yield Candidate(implementation.name, arrangement.layouts, make)


def one_of_each_family(options: Iterator[Implementation], threads: int) -> Iterator[Implementation]:
    """Yield the implementations that are worth measuring with `threads` threads.

    Of implementations that differ only in their instruction sets ("jit:avx512_core" and
    "jit:avx2"), the library's first uses the widest vectors.
    """
    families = set()
    while True:
        with onednn.omp_threads(threads):  # but not while the caller runs
            implementation = next(options, None)
        if implementation is None:
            return
        if implementation.family not in families:
            families.add(implementation.family)
            yield implementation


def kernel_of(
    implementation: Implementation, threads: int, constants: Collection[int] = ()
) -> OneDnnKernel:
    with onednn.omp_threads(threads):
        return OneDnnKernel(implementation, threads, constants)
