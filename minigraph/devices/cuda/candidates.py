"""What the autotuner may measure on a CUDA device: cuDNN's ways to compute a node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Runner, Workbench
from minigraph.devices.cuda import cudnn_kernel
from minigraph.devices.cuda.cudnn_kernel import ROLES, CudnnKernel, CudnnWay
from minigraph.devices.cuda.cudnn_plan import CudnnPlan
from minigraph.devices.operand import BIAS, FEW_CHANNELS, MATRIX, TRANSPOSED, WEIGHTS, order
from minigraph.graph import Array, Node, Op, Shape, Spec, input
from minigraph.ops.activation import Activated
from minigraph.ops.layout import LaidOut, Reorder, lanes_of, layout_name, packed, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.program import Tunable


class Tuner:
    """What makes problems of nodes.

    handle     of cuDNN
    tf32       whether products of float32 may be rounded to tf32
    generated  returns our own kernel for a node
    """

    def __init__(
        self, handle: Any, workbench: Workbench, tf32: bool, generated: Callable[[Node], Runner]
    ) -> None:
        self.handle = handle
        self.workbench = workbench
        self.tf32 = tf32
        self.generated = generated

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return the problem that `node` is, or None if there is nothing to choose for it.

        strides  of its inputs, in bytes; they count for matrix products only
        """
        if isinstance(node.op, Reorder):
            return self._reorder(node)
        found = cudnn_kernel.product_of(node)
        if found is None:
            return None
        op, lanes, relu = found
        xs, ys = _plain_shapes(node, lanes)
        candidates: Callable[[], list[Candidate]]
        if isinstance(op, Matmul):
            layouts = _matrix_layouts(node, strides)
            if not all(layouts):
                return None
            about = f"{op} of {' and '.join(layouts[:-1])}"
            candidates = partial(self._candidates, node, strides, layouts)
        else:
            about = str(op)
            layouts = _convolution_layouts(op, lanes, xs, ys)
            candidates = partial(self._convolutions, node, op, relu, xs, ys)
        about += " and relu" if relu else ""
        return Tunable(
            self._problem(
                node,
                f"{about} {' '.join(f'{node.dtype}{list(x)}' for x in xs)}"
                f"{', tf32' if self.tf32 and node.dtype == np.float32 else ''}",
                xs,
                ys,
                partial(_meaning, op, relu),
                candidates,
                cudnn_kernel.ways(node, strides, self.tf32)[0].problem.operations,
            ),
            layouts,
        )

    def _problem(
        self,
        node: Node,
        subject: str,
        xs: Sequence[Shape],
        ys: Sequence[Shape],
        meaning: Callable[..., tuple[Array, ...]],
        candidates: Callable[[], list[Candidate]],
        work: float,
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
        )

    # ------------------------------------------------------------ candidates

    def _candidates(
        self, node: Node, strides: Sequence[Shape], layouts: Sequence[str]
    ) -> list[Candidate]:
        return [
            Candidate(
                way.label + plan.name,
                tuple(layouts),
                partial(self._made, way, plan),
                plan.deterministic,
                plan.precision,
            )
            for way in cudnn_kernel.ways(node, strides, self.tf32)
            for plan in cudnn_kernel.offered(way, self.handle)
        ]

    def _made(self, way: CudnnWay, plan: CudnnPlan) -> CudnnKernel:
        return CudnnKernel(way, plan.build(), self.handle)

    def _convolutions(
        self, node: Node, op: Op, relu: bool, xs: Sequence[Shape], ys: Sequence[Shape]
    ) -> list[Candidate]:
        found: list[Candidate] = []
        for lanes in _layouts(op, xs, ys):
            ones = (1,) * (len(xs) - 2)
            laid = op if max(lanes) == 1 else LaidOut(op, (*lanes[:2], *ones), lanes[2:])
            whole = Activated(laid, node.op.activation) if relu else laid  # type: ignore[attr-defined]
            shapes = [
                packed(x, n) if n > 1 else x for x, n in zip(xs, (*lanes[:2], *ones), strict=True)
            ]
            operands = [input(f"x{i}", s, node.dtype) for i, s in enumerate(shapes)]
            layouts = _convolution_layouts(op, lanes, xs, ys)
            found += self._candidates(whole(*operands), [x.spec.strides for x in operands], layouts)
        return found

    def _reorder(self, node: Node) -> Tunable:
        """All directions between two layouts, each with the one kernel that there is."""
        shape = unpacked(node.shape)
        problem = self._problem(
            node,
            f"{node.op.name} {node.dtype}{list(shape)}",
            [shape],
            [shape],
            lambda x: (x,),
            partial(self._reorders, shape, node.dtype),
            100.0 * node.size,
        )
        return Tunable(problem, ())

    def _reorders(self, shape: Shape, dtype: Any) -> list[Candidate]:
        found = []
        for source, target in itertools.permutations(dict.fromkeys([1, shape[1]]), 2):
            node = Reorder(target)(input("x", packed(shape, source), dtype))
            names = tuple(layout_name(n, shape[1]) for n in (source, target))
            found.append(
                Candidate("generated", names, partial(self.generated, node), precision=dtype.name)
            )
        return found


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


def _layouts(op: Op, xs: Sequence[Shape], ys: Sequence[Shape]) -> list[tuple[int, int, int]]:
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
