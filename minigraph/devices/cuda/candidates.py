"""What the autotuner may measure on a CUDA device: cuDNN's ways to compute a node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Runner, Workbench
from minigraph.autotune.measurement import Measurement
from minigraph.devices.cuda import cudnn_kernel
from minigraph.devices.cuda.cudnn_kernel import ROLES, Lanes
from minigraph.devices.cuda.kernel import CudaKernel, kernel
from minigraph.devices.operand import (
    BIAS,
    FEW_CHANNELS,
    MATRIX,
    TRANSPOSED,
    WEIGHTS,
    order,
    strides_in,
)
from minigraph.errors import GraphError
from minigraph.graph import Array, Node, Op, Shape, Spec, input
from minigraph.ops.activation import Activated
from minigraph.ops.layout import LaidOut, Reorder, lanes_of, layout_name, packed, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.program import Tunable

Layouts = tuple[str, ...]  # of the inputs, then of the result
Arrangement = tuple[Node, Sequence[Shape], Layouts]  # a node, its inputs' strides, the layouts


class ProblemMaker:
    """What makes problems of nodes.

    handle     of cuDNN
    workbench  where candidates are measured
    current    a context in which the device is the current one
    tf32       whether products of float32 may be rounded to tf32
    """

    def __init__(
        self,
        handle: Any,
        workbench: Workbench,
        current: Callable[[], AbstractContextManager[Any]],
        tf32: bool,
    ) -> None:
        self.handle = handle
        self.workbench = workbench
        self.current = current
        self.tf32 = tf32

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return the problem that `node` is, or None if there is nothing to choose for it.

        strides  of its inputs, in bytes; they count for matrix products only
        """
        if isinstance(node.op, Reorder):
            return self._reorder(node)
        product = cudnn_kernel.product_of(node)
        if product is None:
            return None
        op, lanes, relu = product
        xs, ys = _plain_shapes(node, lanes)
        arrangements: Callable[[], Iterable[Arrangement]]
        if isinstance(op, Matmul):
            layouts = _matrix_layouts(node, strides)
            if not all(layouts):
                return None
            about = f"{op} of {' and '.join(layouts[:-1])}"
            arrangements = partial(_products, node, layouts)
        else:
            about = str(op)
            layouts = _convolution_layouts(op, lanes, xs, ys)
            arrangements = partial(_convolutions, node, op, relu, xs, ys, lanes)
        about += " and relu" if relu else ""
        operands = " ".join(f"{node.dtype}{list(x)}" for x in xs)
        rounded = ", tf32" if self.tf32 and node.dtype == np.float32 else ""
        problem = self._problem(
            node,
            f"{about} {operands}{rounded}",
            xs,
            ys,
            partial(_meaning, op, relu),
            partial(self._candidates, arrangements),
            cudnn_kernel.ways(node, strides, self.tf32)[0].problem.operations,
            partial(self._remade, arrangements),
        )
        return Tunable(problem, layouts)

    def _problem(
        self,
        node: Node,
        subject: str,
        xs: Sequence[Shape],
        ys: Sequence[Shape],
        meaning: Callable[..., tuple[Array, ...]],
        candidates: Callable[[Layouts | None], Iterable[Candidate]],
        work: float,
        remake: Callable[[Measurement], Runner] | None = None,
    ) -> Problem:
        return Problem(
            kind="cudnn",
            subject=subject,
            inputs=tuple(Spec(x, node.dtype) for x in xs),
            results=tuple(Spec(y, node.dtype) for y in ys),
            meaning=meaning,
            arrange=arranged,
            candidates=candidates,
            work=work,
            workbench=self.workbench,
            remake=remake,
        )

    def candidates(
        self, node: Node, strides: Sequence[Shape], layouts: Layouts
    ) -> Iterator[Candidate]:
        """Yield cuDNN's candidates for a node whose operands lie so."""
        with self.current():
            offered = cudnn_kernel.candidates(node, strides, layouts, self.handle, self.tf32)
            for candidate in offered:
                yield replace(candidate, make=partial(self._make, candidate))

    def _make(self, candidate: Candidate) -> Runner:
        with self.current():
            return candidate.make()

    def _candidates(
        self, arrangements: Callable[[], Iterable[Arrangement]], layouts: Layouts | None
    ) -> Iterator[Candidate]:
        """Yield the candidates in these layouts, or in all."""
        for arrangement in arrangements():
            if layouts in (None, arrangement[-1]):
                yield from self.candidates(*arrangement)

    def _remade(
        self, arrangements: Callable[[], Iterable[Arrangement]], measurement: Measurement
    ) -> Runner:
        """Return the kernel that was measured; GraphError where cuDNN has it no longer."""
        for node, strides, layouts in arrangements():
            if layouts == measurement.layouts and measurement.recipe:
                with self.current():
                    return cudnn_kernel.remade(
                        node, strides, measurement.recipe, self.handle, self.tf32
                    )
        raise GraphError(f"{measurement.name} was measured in layouts that are no longer tried")

    def _reorder(self, node: Node) -> Tunable:
        """Return the problem of all directions between two layouts, each with one kernel."""
        shape = unpacked(node.shape)
        problem = self._problem(
            node,
            f"{node.op.name} {node.dtype}{list(shape)}",
            [shape],
            [shape],
            lambda x: (x,),
            partial(_reorders, shape, node.dtype),
            100.0 * node.size,
        )
        return Tunable(problem, ())


def _convolutions(
    node: Node, op: Op, relu: bool, xs: Sequence[Shape], ys: Sequence[Shape], own: Lanes
) -> Iterator[Arrangement]:
    """Yield a convolution with its images in each layout; `own`: the lanes of the node's own."""
    for lanes in dict.fromkeys([*_layouts(op, xs, ys), own]):
        ones = (1,) * (len(xs) - 2)
        laid = op if max(lanes) == 1 else LaidOut(op, (*lanes[:2], *ones), lanes[2:])
        whole = Activated(laid, node.op.activation) if relu else laid  # type: ignore[attr-defined]
        shapes = [
            packed(x, n) if n > 1 else x for x, n in zip(xs, (*lanes[:2], *ones), strict=True)
        ]
        operands = [input(f"x{i}", s, node.dtype) for i, s in enumerate(shapes)]
        layouts = _convolution_layouts(op, lanes, xs, ys)
        yield whole(*operands), [x.spec.strides for x in operands], layouts


def _products(node: Node, layouts: Layouts) -> Iterator[Arrangement]:
    """Yield the product itself, with the strides that its layouts stand for."""
    operands = zip(node.inputs, layouts, strict=False)
    yield node, [strides_in(layout, x.spec) for x, layout in operands], layouts


def _reorders(shape: Shape, dtype: Any, layouts: Layouts | None) -> Iterator[Candidate]:
    for source, target in itertools.permutations(dict.fromkeys([1, shape[1]]), 2):
        names = layout_name(source, shape[1]), layout_name(target, shape[1])
        if layouts in (None, names):
            node = Reorder(target)(input("x", packed(shape, source), dtype))
            make = partial(_generated, node)
            yield Candidate("generated", names, make, precision=dtype.name)


def _generated(node: Node) -> CudaKernel:
    made = kernel(node, [x.spec.strides for x in node.inputs])
    assert made is not None, "every reorder to or from nchw has a kernel"
    return made


# ---------------------------------------------------------------- layouts


def arranged(x: Array, layout: str) -> Array:
    """Return an array as it lies in a layout: contiguous."""
    if layout == TRANSPOSED:
        x = x.swapaxes(-1, -2)
    elif layout.startswith("n") and lanes_of(layout, x.shape[1]) > 1:
        x = x.transpose(0, 2, 3, 1)[:, None]
    return x.copy(order="C")


def _plain_shapes(node: Node, lanes: Sequence[int]) -> tuple[list[Shape], list[Shape]]:
    """The shapes of inputs and results, those of images as [n, c, h, w]."""
    xs, ys = [x.shape for x in node.inputs], [y.shape for y in node.specs]
    for i, n in enumerate(lanes[:2]):
        xs[i] = unpacked(xs[i]) if n > 1 else xs[i]
    return xs, [unpacked(y) if lanes[2] > 1 else y for y in ys]


def _layouts(op: Op, xs: Sequence[Shape], ys: Sequence[Shape]) -> list[Lanes]:
    """The lanes of two inputs and result in which to convolve: those of nchw and of nhwc.

    So few channels as come into a network are padded anyhow, so they need not be nhwc before.
    """
    _, roles = ROLES[type(op)]
    shapes = (*xs[:2], ys[0])
    last = [1 if role == "w" else s[1] for role, s in zip(roles, shapes, strict=True)]
    found = [[1, 1, 1], last]
    incoming = roles.index("x")
    if shapes[incoming][1] <= FEW_CHANNELS:
        found.append([1 if i == incoming else n for i, n in enumerate(last)])
    return list(dict.fromkeys((a, b, c) for a, b, c in found))


def _convolution_layouts(
    op: Op, lanes: Sequence[int], xs: Sequence[Shape], ys: Sequence[Shape]
) -> tuple[str, ...]:
    _, roles = ROLES[type(op)]
    first, second, result = (
        WEIGHTS if role == "w" else layout_name(n, shape[1])
        for role, n, shape in zip(roles, lanes, (*xs[:2], ys[0]), strict=True)
    )
    return first, second, *(BIAS for _ in xs[2:]), result


def _matrix_layouts(node: Node, strides: Sequence[Shape]) -> tuple[str, ...]:
    itemsize = node.dtype.itemsize
    matrices = (order(x.shape, s, itemsize) for x, s in zip(node.inputs[:2], strides, strict=False))
    return *matrices, *(BIAS for _ in node.inputs[2:]), MATRIX


# ---------------------------------------------------------------- meaning


def _meaning(op: Any, relu: bool, *inputs: Array) -> tuple[Array]:
    """What candidates are compared with, on the device."""
    y = op.forward(*inputs)
    return (np.maximum(y, 0) if relu else y,)
