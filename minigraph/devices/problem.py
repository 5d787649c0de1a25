"""The autotuner's problems: convolutions, products, and reorders of images.

The operands, layouts and expected results of a problem are the same on every device.  A device adds
the lanes of its layouts, and its candidates.
"""

from __future__ import annotations

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from minigraph.autotune.candidate import (
    Candidate,
    ChecksumAxes,
    ChecksumAxis,
    Problem,
    Workbench,
    layout_names,
)
from minigraph.autotune.measurement import KernelRecipe, Measurement
from minigraph.graph import Array, Constant, Node, Op, Shape, Spec, input
from minigraph.ops.activation import Activated
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.layout import LaidOut, Layout, Reorder, image_layout, pack, packed, unpacked
from minigraph.ops.matmul import Matmul
from minigraph.program import Kernel, Tunable

FEW_CHANNELS = 4  # channels that the first convolution of a network reads, at most
MIN_WARNED_OPERATIONS = 10_000_000  # operations that take NumPy at least a millisecond
WEIGHTS, BIAS = Layout("oihw"), Layout("vector")
MATRIX, TRANSPOSED = Layout("rows"), Layout("columns")
# Roles of the two operands and the result: input images (x), output images (y), and weights (w).
ROLES: dict[type[Op], str] = {
    Conv2d: "xwy",
    Conv2dBackwardData: "ywx",
    Conv2dBackwardWeights: "yxw",
}
# The first axes of each role and of a bias: images (n), input channels (c), output channels (k).
AXES = {"x": "nc", "w": "kc", "y": "nk", "b": "k"}
Layouts = tuple[Layout, ...]  # of the inputs, then of the result
Lanes = tuple[int, int, int]  # of the two operands and the result; 1 is nchw, and weights


class Product(NamedTuple):
    """The parts of a node.

    op          its convolution or product of matrices
    lanes       lanes of the images
    activation  activation that follows, if any
    """

    op: Op
    lanes: Lanes = (1, 1, 1)
    activation: Elementwise | None = None


class Arrangement(NamedTuple):
    """A node with the layouts of its operands, and the strides of its inputs in bytes."""

    node: Node
    strides: Sequence[Shape]
    layouts: Layouts


def product_of(node: Node) -> Product | None:
    """Return the convolution or product of a node; None for other nodes."""
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


def conv_of(op: Op) -> Conv2d:
    """Return the convolution that an op is, or is a gradient of."""
    if isinstance(op, Conv2dBackwardData | Conv2dBackwardWeights):
        return op.conv
    assert isinstance(op, Conv2d)
    return op


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


# ---------------------------------------------------------------- layouts of operands


def matrix_order(shape: Shape, strides: Shape, itemsize: int) -> Layout | None:
    """Return the layout of contiguous matrices or batches of matrices: MATRIX or TRANSPOSED.

    BIAS for a contiguous vector; None for operands with gaps or in another order.
    """
    if len(shape) < 2:
        return BIAS if not shape or shape[0] == 1 or strides[0] == itemsize else None
    *outer, m, n = range(len(shape))
    for layout, axes in ((MATRIX, (*outer, m, n)), (TRANSPOSED, (*outer, n, m))):
        step, dense = itemsize, True
        for axis in reversed(axes):
            dense &= shape[axis] == 1 or strides[axis] == step
            step *= shape[axis]
        if dense:
            return layout
    return None


def strides_in(layout: Layout, spec: Spec) -> Shape:
    """Return the strides, in bytes, of a contiguous operand in a layout of `matrix_order`."""
    if layout != TRANSPOSED:
        return spec.strides
    *outer, m, n = spec.shape
    *steps, row, column = Spec((*outer, n, m), spec.dtype).strides
    return (*steps, column, row)


def to_layout(x: Array, layout: Layout) -> Array:
    """Return a contiguous array in a layout."""
    return pack(x.swapaxes(-1, -2) if layout == TRANSPOSED else x, layout.lanes or 1)


def layouts_of(op: Op, lanes: Lanes, inputs: Sequence[Shape], result: Shape) -> Layouts:
    """Return the layouts of inputs and result of a convolution whose images have these lanes."""
    operands = zip(ROLES[type(op)], lanes, (*inputs[:2], result), strict=True)
    first, second, target = (
        WEIGHTS if role == "w" else image_layout(n, shape[1]) for role, n, shape in operands
    )
    return first, second, *(BIAS for _ in inputs[2:]), target


def arrangement_of(
    op: Op,
    activation: Elementwise | None,
    inputs: Sequence[Spec],
    constants: Collection[int],
    layouts: Layouts,
) -> Arrangement:
    """Return a node of an op and an activation whose operands have these layouts.

    inputs     specs of the inputs, those of images as [n, c, h, w]
    constants  indices of constant inputs
    """
    *lanes, result_lanes = (layout.lanes or 1 for layout in layouts)
    if isinstance(op, Reorder):
        op = Reorder(result_lanes)
    elif type(op) in ROLES and max(*lanes, result_lanes) > 1:
        op = LaidOut(op, (*lanes,), (result_lanes,))
    specs = [Spec(packed(x.shape, n), x.dtype) for x, n in zip(inputs, lanes, strict=True)]
    operands = [
        Constant(np.broadcast_to(np.zeros((), x.dtype), x.shape))()
        if i in constants
        else input("x", x.shape, x.dtype)
        for i, x in enumerate(specs)
    ]
    strides = [strides_in(layout, x) for layout, x in zip(layouts, specs, strict=False)]
    combined = Activated(op, activation) if activation else op
    return Arrangement(combined(*operands), strides, layouts)


# ---------------------------------------------------------------- problems


class OpProblem(Problem):
    """A convolution, a product of matrices, or a reorder of images between any two layouts.

    maker       maker of the candidates
    op          op on images in nchw, whatever lanes a node of the problem has
    activation  activation that follows, if any
    specs       specs of inputs and result, those of images as [n, c, h, w]
    options     layouts in which the op may be computed
    constants   indices of constant inputs
    """

    def __init__(
        self,
        maker: ProblemMaker,
        op: Op,
        activation: Elementwise | None,
        specs: Sequence[Spec],
        options: Sequence[Layouts],
        constants: Sequence[int],
    ) -> None:
        super().__init__()
        self.maker = maker
        self.op = op
        self.activation = activation
        self.inputs, self.results = (*specs[:-1],), (*specs[-1:],)
        self.options = options
        self.constants = constants
        self.kind, self.workbench = maker.kind, maker.workbench
        self.layouts = {layout_names(each): each for each in options}
        node = self.arrangement(options[0]).node
        self.work = operations(node)
        self.sums = None if activation else _sums(op, self.inputs, specs[-1].shape)
        description = op.name if isinstance(op, Reorder) else str(op)
        if isinstance(op, Matmul):
            description += f" of {' and '.join(map(str, options[0][:-1]))}"
        description += f" and {activation.name}" if activation else ""
        shapes = (f"{x.dtype}{[*x.shape]}" for x in self.inputs)
        self.subject = " ".join([description, *shapes]) + maker.note(node)

    def arrangement(self, layouts: Layouts) -> Arrangement:
        """Return a node of the problem whose operands have these layouts."""
        return arrangement_of(self.op, self.activation, self.inputs, self.constants, layouts)

    def meaning(self, *xs: Array) -> tuple[Array, ...]:
        if isinstance(self.op, Reorder):
            return xs
        with np.errstate(all="ignore"):
            y = self.op.forward(*xs)
            return (self.activation.forward(y) if self.activation else y,)

    def to_layout(self, array: Array, layout: Layout) -> Array:
        return to_layout(array, layout)

    def make_candidates(self, layouts: Layouts) -> Iterable[Candidate]:
        return self.maker.candidates(self.arrangement(layouts))

    def shortlist(self, layouts: Layouts) -> Sequence[Candidate]:
        return self.maker.shortlist(self, layouts)

    def estimate(self, layouts: Layouts) -> float | None:
        return self.maker.estimate(self, layouts)

    def kernel(self, measurement: Measurement) -> Any:
        # The remake is faster than asking the library for all of its candidates.
        if measurement.recipe and measurement.key not in self._retained:
            arrangement = self.arrangement(self.layouts[measurement.layouts])
            return self.maker.remake(arrangement, measurement.recipe)
        return super().kernel(measurement)


def _sums(op: Op, inputs: Sequence[Spec], y: Shape) -> ChecksumAxes | None:
    """Return the sums by which a convolution is checked; None for a product of matrices.

    Each of the first two axes of the result is an axis of one of the operands.
    """
    if type(op) not in ROLES:
        return None
    groups = conv_of(op).groups
    first, second, role = [*ROLES[type(op)]]
    roles = (first, second, *("b" for _ in inputs[2:]))
    axes = []
    for axis, name in enumerate(AXES[role]):
        axes_of_operands = {i: AXES[r].index(name) for i, r in enumerate(roles) if name in AXES[r]}
        reduced_inputs = [i for i, r in enumerate(roles) if r == "b" and i not in axes_of_operands]
        parts = 1 if name == "n" or (role, name) == ("w", "c") else groups
        axes.append(ChecksumAxis(y[axis] // parts, axis, axes_of_operands, reduced_inputs))

    def convolve(shape: Shape, *xs: Array) -> Array:
        sized = op if isinstance(op, Conv2d) else replace(op, shape=shape)  # type: ignore[type-var]
        y: Array = sized.forward(*xs)
        return y

    return ChecksumAxes(axes, convolve)


class ProblemMaker(ABC):
    """Makes the problems of nodes for a device, each once.

    kind       kind of the cache entries of measurements
    workbench  workbench that measures candidates
    """

    kind: str
    workbench: Workbench

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @abstractmethod
    def product(self, node: Node) -> Product | None:
        """Return the convolution or product of a node; None if the device does not tune it."""

    @abstractmethod
    def image_lanes(self, roles: str, channels: Sequence[int]) -> list[Lanes]:
        """Return the lanes in which to convolve, nchw first.

        channels  second extents of the two operands and the result; that of weights is ignored
        """

    @abstractmethod
    def reorder_lanes(self, spec: Spec) -> list[int]:
        """Return the lanes between which images [n, c, h, w] can be reordered."""

    @abstractmethod
    def candidates(self, arrangement: Arrangement) -> Iterable[Candidate]:
        """Return the candidates for a node, the heuristic's choice first."""

    def shortlist(self, problem: OpProblem, layouts: Layouts) -> Sequence[Candidate]:
        """Return the result of `Problem.shortlist`."""
        return [*problem.candidates(layouts)]

    @abstractmethod
    def estimate(self, problem: OpProblem, layouts: Layouts) -> float | None:
        """Return a rough prediction of a problem's seconds in layouts; None without a model."""

    def note(self, node: Node) -> str:
        """Return further facts on which the measurements of a node depend, as text."""
        return ""

    def remake(self, arrangement: Arrangement, recipe: KernelRecipe) -> Kernel:
        """Return the kernel of a recipe; raise GraphError if the library no longer has it."""
        raise NotImplementedError

    def tunable(self, node: Node, strides: Sequence[Shape]) -> Tunable | None:
        """Return the problem of `node`, or None if it has no candidates.

        strides  strides of its inputs, in bytes; only matrix products depend on them
        """
        if isinstance(node.op, Reorder):
            return self._reorder(node)
        product = self.product(node)
        if product is None:
            return None
        op, lanes, activation = product
        inputs, y = plain_shapes(node, lanes)
        specs = tuple(Spec(x, node.dtype) for x in (*inputs, y))
        if isinstance(op, Matmul):
            operands = zip(node.inputs, strides, strict=True)
            orders = [matrix_order(x.shape, s, x.dtype.itemsize) for x, s in operands]
            layouts: Layouts = (*filter(None, orders), MATRIX)
            if None in orders:
                return None
            return Tunable(self._shared_problem(op, activation, specs, (layouts,), ()), layouts)
        channels = [shape[1] for shape in (*inputs[:2], y)]
        lanes_options = dict.fromkeys([*self.image_lanes(ROLES[type(op)], channels), lanes])
        options = tuple(layouts_of(op, option, inputs, y) for option in lanes_options)
        constants = tuple(i for i, x in enumerate(node.inputs) if isinstance(x.op, Constant))
        problem = self._shared_problem(op, activation, specs, options, constants)
        return Tunable(problem, layouts_of(op, lanes, inputs, y))

    def _reorder(self, node: Node) -> Tunable | None:
        """Return the problem of moving images between any two layouts."""
        spec = Spec(unpacked(node.shape), node.dtype)
        lanes = dict.fromkeys(self.reorder_lanes(spec)) if node.size else ()
        layouts = [image_layout(n, spec.shape[1]) for n in lanes]
        options = (*itertools.permutations(layouts, 2),)
        if not options:
            return None
        return Tunable(self._shared_problem(Reorder(1), None, (spec, spec), options, ()), ())

    def _shared_problem(self, *arguments: Any) -> OpProblem:
        """Return the thread's problem with these arguments of `OpProblem`, created once.

        Threads share no problems: a kernel belongs to one function, and functions may run at the
        same time.
        """
        problems: dict[Any, OpProblem] = vars(self._of_thread).setdefault("problems", {})
        if arguments not in problems:
            problems[arguments] = OpProblem(self, *arguments)
        return problems[arguments]
