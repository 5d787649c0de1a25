"""What the autotuner may measure on the CPU: the ways to compute a node, in each layout.

They are oneDNN's, and Winograd's algorithm where there is a C compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem
from minigraph.devices.cpu import compiler, onednn, primitives, winograd
from minigraph.devices.cpu.onednn import F32, OneDnnKernel, PrimitiveChoice
from minigraph.devices.cpu.standalone import Standalone
from minigraph.devices.operand import BIAS, FEW_CHANNELS, MATRIX, TRANSPOSED, WEIGHTS, order
from minigraph.graph import Array, Node, Op, Shape, Spec, input
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, Reorder, lanes_of, layout_name, pack, packed
from minigraph.ops.matmul import Matmul
from minigraph.program import Tunable


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
    candidates: Callable[[], list[Candidate]]
    layouts: tuple[str, ...]
    if isinstance(op, Conv2d | Conv2dBackwardData | Conv2dBackwardWeights):
        layouts = _convolution_layouts(op, xs, ys, *_image_lanes(node))
        candidates = partial(_convolutions, op, xs, ys, threads, on_disk)
    elif isinstance(op, Reorder):
        about, xs = op.name, ys  # in every direction
        layouts = ()
        candidates = partial(_reorders, ys[0], threads)
    elif isinstance(op, Matmul):
        lying = zip(node.inputs, strides, strict=True)
        layouts = (*(order(x.shape, s, F32.itemsize) for x, s in lying), MATRIX)
        if not all(layouts):
            return None
        about += f" of {' and '.join(layouts[:-1])}"
        candidates = partial(_matmuls, node, strides, layouts, threads)
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
        candidates=candidates,
        work=primitives.operations(node),
    )
    return Tunable(problem, layouts)


def _image_lanes(node: Node) -> tuple[int, int]:
    """The lanes of the two images of a convolution: of its inputs if those are both."""
    if not isinstance(node.op, LaidOut):
        return 1, 1
    if isinstance(node.op.plain, Conv2dBackwardWeights):
        return node.op.lanes_in[0], node.op.lanes_in[1]
    return node.op.lanes_in[0], node.op.lanes_out[0]


def _convolution_layouts(
    op: Op, xs: Sequence[Shape], ys: Sequence[Shape], first: int, second: int
) -> tuple[str, ...]:
    """The layouts of inputs and result where the two images have these lanes."""
    if isinstance(op, Conv2dBackwardWeights):
        return layout_name(first, xs[0][1]), layout_name(second, xs[1][1]), WEIGHTS
    biases = (BIAS,) * (len(xs) - 2)
    return layout_name(first, xs[0][1]), WEIGHTS, *biases, layout_name(second, ys[0][1])


def _meaning(op: Op, *xs: Array) -> tuple[Array, ...]:
    return (xs[0],) if isinstance(op, Reorder) else (op.forward(*xs),)


def _arranged(x: Array, layout: str) -> Array:
    if layout in (WEIGHTS, BIAS, MATRIX):
        return np.ascontiguousarray(x)
    if layout == TRANSPOSED:
        return np.ascontiguousarray(np.swapaxes(x, -1, -2))
    return pack(x, lanes_of(layout, x.shape[1]))


def _made(
    node: Node, strides: Sequence[Shape], layouts: Sequence[str], threads: int
) -> Iterator[Candidate]:
    """Yield oneDNN's candidates for a node whose operands lie so.

    Of the implementations that differ in their instruction set alone ("jit:avx512_core" and
    "jit:avx2") the library's first is the one with the widest, and the only one worth the time.
    """
    families = set()
    with onednn.omp_threads(threads):
        for way in primitives.ways(node, strides):
            family = way.name.partition(":")[0], way.name.partition(" ")[2]
            if family not in families:
                families.add(family)
                make = partial(_kernel, way, len(node.inputs), threads)
                yield Candidate(way.name, tuple(layouts), make)


def _kernel(way: PrimitiveChoice, inputs: int, threads: int) -> OneDnnKernel:
    with onednn.omp_threads(threads):
        return OneDnnKernel(way, inputs, threads)


def _compiled(node: Node, algorithm: str, threads: int, on_disk: bool) -> Standalone:
    made = winograd.kernel(node, algorithm, threads)
    assert made is not None, "it is one of the node's algorithms"
    return Standalone(made, len(node.inputs), 1, on_disk)


def _convolutions(
    op: Conv2d | Conv2dBackwardData | Conv2dBackwardWeights,
    xs: Sequence[Shape],
    ys: Sequence[Shape],
    threads: int,
    on_disk: bool,
) -> list[Candidate]:
    weights_gradient = isinstance(op, Conv2dBackwardWeights)
    images = (xs[0], xs[1] if weights_gradient else ys[0])
    found: list[Candidate] = []
    for first, second in _pairs(images[0][1], images[1][1]):
        lanes = (first, second) if weights_gradient else (first, *(1,) * (len(xs) - 1))
        laid = LaidOut(op, lanes, (1 if weights_gradient else second,))
        shapes = [packed(x, n) if n > 1 else x for x, n in zip(xs, lanes, strict=True)]
        operands = [input(f"x{i}", shape) for i, shape in enumerate(shapes)]
        node = (laid if (first, second) != (1, 1) else op)(*operands)
        layouts = _convolution_layouts(op, xs, ys, first, second)
        found += _made(node, [x.spec.strides for x in operands], layouts, threads)
        for name in winograd.algorithms(node) if compiler.compiler() else ():
            make = partial(_compiled, node, name, threads, on_disk)
            found.append(Candidate(name, layouts, make))
    return found


def _pairs(first: int, second: int) -> list[tuple[int, int]]:
    """Return the lanes of two images with so many channels between which to convolve: first nchw.

    Others are the same layout on both sides, but that few channels make no block.
    """
    block = onednn.block()
    pairs = [(1, 1)]
    blocks = [block if channels % block == 0 else 1 for channels in (first, second)]
    if all(n > 1 or c <= FEW_CHANNELS for n, c in zip(blocks, (first, second), strict=True)):
        pairs.append((blocks[0], blocks[1]))
    return list(dict.fromkeys([*pairs, (first, second)]))


def _reorders(shape: Shape, threads: int) -> list[Candidate]:
    channels = shape[1]
    block = onednn.block()
    lanes = [1, block, channels] if channels % block == 0 else [1, channels]
    found: list[Candidate] = []
    for source in dict.fromkeys(lanes):
        for target in dict.fromkeys(lanes):
            if source != target:
                node = Reorder(target)(input("x", packed(shape, source)))
                names = [layout_name(n, channels) for n in (source, target)]
                found += _made(node, [node.inputs[0].spec.strides], names, threads)
    return found


def _matmuls(
    node: Node, strides: Sequence[Shape], layouts: Sequence[str], threads: int
) -> list[Candidate]:
    return list(_made(node, strides, layouts, threads))
