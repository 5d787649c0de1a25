"""What the autotuner may measure on the CPU: convolutions, products and reorders, in each layout.

Whose candidates there are for a node that lies in some layouts says the table CANDIDATES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem
from minigraph.devices.cpu import onednn, primitives, winograd
from minigraph.devices.cpu.onednn import F32
from minigraph.devices.cpu.workbench import CpuBench
from minigraph.devices.operand import (
    BIAS,
    FEW_CHANNELS,
    MATRIX,
    TRANSPOSED,
    WEIGHTS,
    order,
    strides_in,
)
from minigraph.graph import Array, Node, Op, Shape, Spec, input
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, lanes_of, layout_name, pack, packed
from minigraph.ops.matmul import Matmul
from minigraph.program import Tunable

Layouts = tuple[str, ...]  # of the inputs, then of the result
# (node, strides of its inputs in bytes, their layouts and the result's, threads) to candidates,
# which compute the node there.  The first is the heuristic's choice.
CANDIDATES: tuple[Callable[[Node, Sequence[Shape], Layouts, int], Iterable[Candidate]], ...] = (
    primitives.candidates,
    winograd.candidates,
)

Arrangement = tuple[Node, Sequence[Shape], Layouts]


def tunable(
    node: Node, strides: Sequence[Shape], threads: int, on_disk: bool = True
) -> Tunable | None:
    """Return the problem that `node` is, or None if there is nothing to choose for it.

    strides  of its inputs, in bytes; they count for matrix products only
    on_disk  whether kernels may be looked for, and kept, on disk
    """
    op = node.op.plain if isinstance(node.op, LaidOut) else node.op
    if not all(s.size and s.dtype == F32 for s in (*(x.spec for x in node.inputs), *node.specs)):
        return None
    threads = primitives.threads_for(node, threads)
    xs, ys = primitives.plain_shapes(node)
    about = str(op)
    arrangements: Callable[[], Iterable[Arrangement]]
    layouts: Layouts = ()
    if isinstance(op, Conv2d | Conv2dBackwardData | Conv2dBackwardWeights):
        lanes = _image_lanes(node)
        layouts = _convolution_layouts(op, xs, ys, *lanes)
        arrangements = partial(_convolutions, op, xs, ys, lanes)
    elif isinstance(op, Reorder):
        about, xs = op.name, ys  # in every direction
        arrangements = partial(_reorders, ys[0])
    elif isinstance(op, Matmul):
        lying = zip(node.inputs, strides, strict=True)
        layouts = (*(order(x.shape, s, F32.itemsize) for x, s in lying), MATRIX)
        if not all(layouts):
            return None
        about += f" of {' and '.join(layouts[:-1])}"
        arrangements = partial(_products, node, layouts)
    else:
        return None
    operands = " ".join(f"float32{list(x)}" for x in xs)
    problem = Problem(
        kind="onednn",
        subject=f"{about} {operands}, {threads} thread{'s' if threads > 1 else ''}",
        inputs=tuple(Spec(x, F32) for x in xs),
        results=tuple(Spec(y, F32) for y in ys),
        meaning=partial(_meaning, op),
        arrange=_arranged,
        candidates=partial(_candidates, arrangements, threads),
        work=primitives.operations(node),
        workbench=CpuBench(on_disk),
    )
    return Tunable(problem, layouts)


def _candidates(
    arrangements: Callable[[], Iterable[Arrangement]], threads: int, layouts: Layouts | None
) -> Iterator[Candidate]:
    """Yield the candidates in these layouts, or in all."""
    for node, strides, lying in arrangements():
        if layouts in (None, lying):
            for offered in CANDIDATES:
                yield from offered(node, strides, lying, threads)


def _meaning(op: Op, *xs: Array) -> tuple[Array, ...]:
    return (xs[0],) if isinstance(op, Reorder) else (op.forward(*xs),)


def _arranged(x: Array, layout: str) -> Array:
    if layout in (WEIGHTS, BIAS, MATRIX):
        return np.ascontiguousarray(x)
    if layout == TRANSPOSED:
        return np.ascontiguousarray(np.swapaxes(x, -1, -2))
    return pack(x, lanes_of(layout, x.shape[1]))


# ---------------------------------------------------------------- how operands may lie


def _image_lanes(node: Node) -> tuple[int, int]:
    """Return the lanes of the two images of a convolution: of its inputs if those are both."""
    if not isinstance(node.op, LaidOut):
        return 1, 1
    if isinstance(node.op.plain, Conv2dBackwardWeights):
        return node.op.lanes_in[0], node.op.lanes_in[1]
    return node.op.lanes_in[0], node.op.lanes_out[0]


def _convolution_layouts(
    op: Op, xs: Sequence[Shape], ys: Sequence[Shape], first: int, second: int
) -> Layouts:
    """Return the layouts of inputs and result where the two images have these lanes."""
    if isinstance(op, Conv2dBackwardWeights):
        return layout_name(first, xs[0][1]), layout_name(second, xs[1][1]), WEIGHTS
    biases = (BIAS,) * (len(xs) - 2)
    return layout_name(first, xs[0][1]), WEIGHTS, *biases, layout_name(second, ys[0][1])


def _convolutions(
    op: Conv2d | Conv2dBackwardData | Conv2dBackwardWeights,
    xs: Sequence[Shape],
    ys: Sequence[Shape],
    own: tuple[int, int],
) -> Iterator[Arrangement]:
    """Yield a convolution with its images in each layout; `own`: the lanes of the node's own."""
    weights_gradient = isinstance(op, Conv2dBackwardWeights)
    images = (xs[0], xs[1] if weights_gradient else ys[0])
    for first, second in dict.fromkeys([*_pairs(images[0][1], images[1][1]), own]):
        lanes = (first, second) if weights_gradient else (first, *(1,) * (len(xs) - 1))
        laid = LaidOut(op, lanes, (1 if weights_gradient else second,))
        shapes = [packed(x, n) if n > 1 else x for x, n in zip(xs, lanes, strict=True)]
        operands = [input(f"x{i}", shape) for i, shape in enumerate(shapes)]
        node = (laid if (first, second) != (1, 1) else op)(*operands)
        layouts = _convolution_layouts(op, xs, ys, first, second)
        yield node, [x.spec.strides for x in operands], layouts


def _pairs(first: int, second: int) -> list[tuple[int, int]]:
    """Return the lanes of two images with so many channels between which to convolve: first nchw.

    Others are the same layout on both sides, but that few channels make no block.
    """
    block = onednn.block()
    pairs = [(1, 1)]
    blocks = [block if channels % block == 0 else 1 for channels in (first, second)]
    if all(n > 1 or c <= FEW_CHANNELS for n, c in zip(blocks, (first, second), strict=True)):
        pairs.append((blocks[0], blocks[1]))
    return [*pairs, (first, second)]


def _reorders(shape: Shape) -> Iterator[Arrangement]:
    channels = shape[1]
    block = onednn.block()
    lanes = [1, block, channels] if channels % block == 0 else [1, channels]
    for source in dict.fromkeys(lanes):
        for target in dict.fromkeys(lanes):
            if source != target:
                node = Reorder(target)(input("x", packed(shape, source)))
                layouts = layout_name(source, channels), layout_name(target, channels)
                yield node, [node.inputs[0].spec.strides], layouts


def _products(node: Node, layouts: Layouts) -> Iterator[Arrangement]:
    """Yield the product itself, with the strides that its layouts stand for."""
    strides = [strides_in(layout, x.spec) for x, layout in zip(node.inputs, layouts, strict=False)]
    yield node, strides, layouts
