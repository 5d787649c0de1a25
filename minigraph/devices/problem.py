"""The problems that the autotuner chooses for: convolutions, products, and reorders of images.

What is to be computed, in which layouts, and what has to come out is the same on every device.  A
device adds in which lanes images may lie there, and whose candidates there are.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Runner, Workbench
from minigraph.autotune.measurement import Recipe
from minigraph.autotune.sums import Axis, Sums
from minigraph.graph import Array, Constant, DType, Node, Op, Shape, Spec, input
from minigraph.ops.activation import Activated
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.layout import LaidOut, Reorder, lanes_of, layout_name, pack, packed, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.program import Tunable

FEW_CHANNELS = 4  # as the first convolution of a network reads
WEIGHTS, BIAS, MATRIX, TRANSPOSED = "oihw", "vector", "rows", "columns"
# What the two operands and the result are: images before (x) and behind (y), and weights.
ROLES: dict[type[Op], str] = {
    Conv2d: "xwy",
    Conv2dBackwardData: "ywx",
    Conv2dBackwardWeights: "yxw",
}
# Their first axes, and that of a bias: images, channels before and behind.
AXES = {"x": "nc", "w": "kc", "y": "nk", "b": "k"}
Layouts = tuple[str, ...]  # of the inputs, then of the result
Lanes = tuple[int, int, int]  # of the two operands and the result; 1 is nchw, and weights


class Product(NamedTuple):
    """A node taken apart.

    op          its convolution or product of matrices
    lanes       of its images
    activation  that follows it, if any
    """

    op: Op
    lanes: Lanes = (1, 1, 1)
    activation: Elementwise | None = None


class Arrangement(NamedTuple):
    """A node whose operands lie in some layouts, with the strides of its inputs in bytes."""

    node: Node
    strides: Sequence[Shape]
    layouts: Layouts


Arrangements = Mapping[Layouts, Callable[[], Arrangement]]
CandidatesIn = Callable[[Layouts], Iterator[Candidate]]  # those of a problem in some layouts


def product_of(node: Node) -> Product | None:
    """Return what a node is made of; None if it is neither a convolution nor a product."""
    op: Op = node.op
    activation: Elementwise | None = None
    if isinstance(node.op, Activated):
        op, activation = node.op.first, node.op.activation
    lanes: Lanes = (1, 1, 1)
    if isinstance(op, LaidOut) and type(op.plain) in ROLES:
        lanes = (op.lanes_in[0], op.lanes_in[1], op.lanes_out[0])
        op = op.plain
    if type(op) in ROLES or isinstance(op, Matmul):
        return Product(op, lanes, activation)
    return None


def plain_shapes(node: Node, lanes: Lanes) -> tuple[list[Shape], Shape]:
    """Return the shapes of inputs and result, those of images as [n, c, h, w]."""
    shapes = [*(x.shape for x in node.inputs[:2]), node.shape]
    first, second, y = (unpacked(s) if n > 1 else s for s, n in zip(shapes, lanes, strict=True))
    return [first, second, *(x.shape for x in node.inputs[2:])], y


def operations(node: Node) -> int:
    """Return roughly how many floating-point operations a node takes."""
    product = product_of(node)
    if product is None:
        return 100 * max(s.size for s in (*(x.spec for x in node.inputs), *node.specs))
    (first, second, *_), y = plain_shapes(node, product.lanes)
    match product.op:
        case Conv2d():
            return 2 * math.prod(y) * math.prod(second[1:])
        case Conv2dBackwardData():
            return 2 * math.prod(first) * math.prod(second[1:])
        case Conv2dBackwardWeights():
            return 2 * math.prod(first) * math.prod(y[1:])
    return 2 * math.prod(y) * first[-1]


# ---------------------------------------------------------------- how operands lie


def order(shape: Shape, strides: Shape, itemsize: int) -> str:
    """Return which axis of matrices, or of batches of them, is innermost in memory without gaps.

    MATRIX, TRANSPOSED, or an empty string if neither is; of a vector BIAS, or an empty string.
    """
    if len(shape) < 2:
        return BIAS if not shape or shape[0] == 1 or strides[0] == itemsize else ""
    *outer, m, n = range(len(shape))
    for name, axes in ((MATRIX, (*outer, m, n)), (TRANSPOSED, (*outer, n, m))):
        step, dense = itemsize, True
        for axis in reversed(axes):
            dense &= shape[axis] == 1 or strides[axis] == step
            step *= shape[axis]
        if dense:
            return name
    return ""


def strides_in(layout: str, spec: Spec) -> Shape:
    """Return the strides, in bytes, of an operand without gaps in a layout of `order`."""
    if layout != TRANSPOSED:
        return spec.strides
    *outer, m, n = spec.shape
    *steps, row, column = Spec((*outer, n, m), spec.dtype).strides
    return (*steps, column, row)


def arranged(x: Array, layout: str) -> Array:
    """Return an array as it lies in a layout: contiguous."""
    if layout == TRANSPOSED:
        x = x.swapaxes(-1, -2)
    elif layout not in (WEIGHTS, BIAS, MATRIX):
        return pack(x, lanes_of(layout, x.shape[1]))
    return x if x.flags.c_contiguous else x.copy(order="C")


# ---------------------------------------------------------------- problems


class ProblemMaker(ABC):
    """What makes problems of nodes for a device.

    kind       of the cache entries that keep measurements
    workbench  where candidates are measured
    """

    kind: str
    workbench: Workbench

    @abstractmethod
    def product(self, node: Node) -> Product | None:
        """Return what a node is made of; None if the device's library cannot compute it."""

    @abstractmethod
    def image_lanes(self, roles: str, channels: Sequence[int]) -> list[Lanes]:
        """Return the lanes in which to convolve, nchw first.

        channels  of the two operands and the result; those of weights do not count
        """

    @abstractmethod
    def reorder_lanes(self, spec: Spec) -> list[int]:
        """Return the lanes between which images [n, c, h, w] are reordered; none if they cannot."""

    @abstractmethod
    def candidates(self, arrangement: Arrangement) -> Iterable[Candidate]:
        """Return the candidates for a node; the first is what the heuristic chooses."""

    def note(self, node: Node) -> str:
        """Return what else the measurements of a node depend on, in words."""
        return ""

    remake: Callable[[Arrangement, Recipe], Runner] | None = None

    def estimate(
        self, node: Node, xs: Sequence[Shape], y: Shape, candidates: CandidatesIn
    ) -> Callable[[Layouts], float] | None:
        """Return what estimates the seconds of a node in layouts; None: nothing does.

        xs, y       the shapes of its inputs and result, those of images as [n, c, h, w]
        candidates  (layouts) to what there is to choose from
        """
        return None

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return the problem that `node` is, or None if there is nothing to choose for it.

        strides  of its inputs, in bytes; they count for matrix products only
        """
        if isinstance(node.op, Reorder):
            return self._reorder(node)
        product = self.product(node)
        if product is None:
            return None
        op, lanes, activation = product
        xs, y = plain_shapes(node, lanes)
        if isinstance(op, Matmul):
            operands = zip(node.inputs, strides, strict=True)
            orders = [order(x.shape, s, x.dtype.itemsize) for x, s in operands]
            if not all(orders):
                return None
            layouts: Layouts = (*orders, MATRIX)
            about = f"{op} of {' and '.join(orders)}"
            arrangements: Arrangements = {layouts: partial(_as_it_lies, node, layouts)}
        else:
            about = str(op)
            layouts = _layouts(op, lanes, xs, y)
            arrangements = self._convolutions(product, xs, y, node)
        about += f" and {activation.name}" if activation else ""
        meaning = partial(_meaning, op, activation)
        problem = self._problem(node, about, xs, y, meaning, arrangements)
        sums = None if activation else _sums(op, xs, y)
        return Tunable(replace(problem, sums=sums), layouts)

    def _problem(
        self,
        node: Node,
        about: str,
        xs: Sequence[Shape],
        y: Shape,
        meaning: Callable[..., tuple[Array, ...]],
        arrangements: Arrangements,
    ) -> Problem:
        operands = " ".join(f"{node.dtype}{list(x)}" for x in xs)
        candidates = partial(self._candidates, arrangements)
        return Problem(
            kind=self.kind,
            subject=f"{about} {operands}{self.note(node)}",
            inputs=tuple(Spec(x, node.dtype) for x in xs),
            results=(Spec(y, node.dtype),),
            meaning=meaning,
            arrange=arranged,
            layouts=arrangements.keys(),
            candidates=candidates,
            work=operations(node),
            estimate=self.estimate(node, xs, y, candidates),
            workbench=self.workbench,
            remake=partial(self._remade, arrangements) if self.remake else None,
        )

    def _candidates(
        self, arrangements: Arrangements, layouts: Layouts | None
    ) -> Iterator[Candidate]:
        """Yield the candidates in these layouts, or in all."""
        for own, arrangement in arrangements.items():
            if layouts in (None, own):
                yield from self.candidates(arrangement())

    def _remade(self, arrangements: Arrangements, layouts: Layouts, recipe: Recipe) -> Runner:
        """Return the kernel of a recipe; GraphError where the library has it no longer."""
        assert self.remake is not None
        return self.remake(arrangements[layouts](), recipe)

    def _convolutions(
        self, product: Product, xs: Sequence[Shape], y: Shape, node: Node
    ) -> Arrangements:
        """Return a convolution with its images in each layout, that of the node itself included."""
        op, own, _ = product
        channels = [shape[1] for shape in (*xs[:2], y)]
        tried = dict.fromkeys([*self.image_lanes(ROLES[type(op)], channels), own])
        return {
            _layouts(op, lanes, xs, y): partial(convolution_in, product, lanes, xs, y, node)
            for lanes in tried
        }

    def _reorder(self, node: Node) -> Tunable | None:
        """Return the problem of moving images between any two layouts."""
        shape = unpacked(node.shape)
        lanes = self.reorder_lanes(Spec(shape, node.dtype)) if node.size else []
        if not lanes:
            return None
        arrangements = _reorders(Spec(shape, node.dtype), lanes)
        problem = self._problem(node, node.op.name, [shape], shape, _unchanged, arrangements)
        return Tunable(problem, ())


def _layouts(op: Op, lanes: Lanes, xs: Sequence[Shape], y: Shape) -> Layouts:
    """Return the layouts of inputs and result of a convolution whose images have these lanes."""
    operands = zip(ROLES[type(op)], lanes, (*xs[:2], y), strict=True)
    first, second, result = (
        WEIGHTS if role == "w" else layout_name(n, shape[1]) for role, n, shape in operands
    )
    return first, second, *(BIAS for _ in xs[2:]), result


def _as_it_lies(node: Node, layouts: Layouts) -> Arrangement:
    """Return a product itself, with the strides that its layouts stand for."""
    operands = zip(node.inputs, layouts, strict=False)
    return Arrangement(node, [strides_in(layout, x.spec) for x, layout in operands], layouts)


def convolution_in(
    product: Product, lanes: Lanes, xs: Sequence[Shape], y: Shape, node: Node
) -> Arrangement:
    """Return the convolution of `node` with images of these lanes, as a node of its own."""
    op, _, activation = product
    ins = (*lanes[:2], *(1 for _ in xs[2:]))
    laid = op if max(lanes) == 1 else LaidOut(op, ins, lanes[2:])
    shapes = [packed(x, n) if n > 1 else x for x, n in zip(xs, ins, strict=True)]
    operands = [
        _some_constant(s, node.dtype) if isinstance(x.op, Constant) else input("x", s, node.dtype)
        for x, s in zip(node.inputs, shapes, strict=True)
    ]
    whole = Activated(laid, activation) if activation else laid
    strides = [x.spec.strides for x in operands]
    return Arrangement(whole(*operands), strides, _layouts(op, lanes, xs, y))


def _some_constant(shape: Shape, dtype: DType) -> Node:
    """Return a constant whose value nobody reads."""
    return Node(Constant(np.broadcast_to(np.zeros((), dtype), shape)), (), (Spec(shape, dtype),))


def _reorders(spec: Spec, lanes: Sequence[int]) -> Arrangements:
    """Return the reorders of images between any two of these lanes."""
    channels = spec.shape[1]
    found: dict[Layouts, Callable[[], Arrangement]] = {}
    for source, target in itertools.permutations(dict.fromkeys(lanes), 2):
        names = layout_name(source, channels), layout_name(target, channels)
        found[names] = partial(_reorder, spec, source, target, names)
    return found


def _reorder(spec: Spec, source: int, target: int, names: Layouts) -> Arrangement:
    node = Reorder(target)(input("x", packed(spec.shape, source), spec.dtype))
    return Arrangement(node, [node.inputs[0].spec.strides], names)


def _meaning(op: Op, activation: Op | None, *xs: Array) -> tuple[Array]:
    """Return what candidates are compared with, on the device's own arrays."""
    with np.errstate(all="ignore"):
        y = op.forward(*xs)
        return (activation.forward(y) if activation else y,)


def _sums(op: Op, xs: Sequence[Shape], y: Shape) -> Sums | None:
    """Return the sums by which a convolution is checked; None for a product of matrices.

    Each of the first two axes of the result is an axis of one of the operands.
    """
    match op:
        case Conv2d():
            groups = op.groups
        case Conv2dBackwardData() | Conv2dBackwardWeights():
            groups = op.conv.groups
        case _:
            return None
    first, second, role = [*ROLES[type(op)]]
    roles = (first, second, *("b" for _ in xs[2:]))
    axes = []
    for axis, name in enumerate(AXES[role]):
        inputs = {i: AXES[r].index(name) for i, r in enumerate(roles) if name in AXES[r]}
        added = [i for i, r in enumerate(roles) if r == "b" and i not in inputs]
        parts = 1 if name == "n" or (role, name) == ("w", "c") else groups
        axes.append(Axis(y[axis] // parts, axis, inputs, added))
    return Sums(axes, partial(_of_shape, op))


def _of_shape(op: Op, shape: Shape, *xs: Array) -> Array:
    """Return the result, of so many images and channels, of a convolution."""
    if isinstance(op, Conv2dBackwardData | Conv2dBackwardWeights):
        op = replace(op, shape=shape)
    y: Array = op.forward(*xs)
    return y


def _unchanged(x: Array) -> tuple[Array]:
    return (x,)
