"""C for a loop over small values: one function for all steps, with values on its stack.

Statements name each element of a small node, and loop over the constant extents of a larger node.
Views cost nothing: they are other indices of the same array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from minigraph.graph import BOOL, Array, Constant, Graph, Item, Loop, Node, Op, Shape
from minigraph.jit.domain import NotFusible
from minigraph.jit.emitter import block
from minigraph.jit.expression import (
    c_type,
    expression,
    filled,
    limits,
    literal,
    support,
    takes_index,
)
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.jit.small_float import SMALL_FLOATS
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.matmul import Matmul
from minigraph.ops.reduction import MAX_PLAIN_SUM, Reduction

MAX_MATRIX_SIDE = 16  # the longest side of a product
MAX_ELEMENTS = 1024  # elements of a value
MAX_STACK_BYTES = 32 << 10  # bytes of all values
MAX_OPERATIONS = 1 << 15  # operations of a step
MAX_UNROLLED = 128  # operations of a node whose elements are named one by one


class Elements(NamedTuple):
    """The elements of a node: a C array, and the index in it of each element."""

    name: str
    index: Array

    def reshaped(self, shape: Shape) -> Elements:
        return Elements(self.name, np.broadcast_to(self.index, shape))


ElementText = Callable[[Elements], str]  # (value) to the C text of the current element


class LoopText(NamedTuple):
    """The C of a loop, and the functions that it calls.

    operands  declarations, which refer to pointers p0, p1 and so on
    step      statements that compute step `t`
    results   statements that write the carries
    """

    operands: list[str]
    step: list[str]
    results: list[str]
    support: tuple[str, ...]


def loop_text(op: Loop, strides: Sequence[Shape]) -> LoopText:
    """Return the text of a loop whose inputs have these strides in bytes.

    Raises NotFusible if the values do not fit, or an op has no statements.
    """
    graph = expand_fused(op.graph)
    writer = _StatementWriter()
    end_of_slices, operands = op.carried + op.scanned, []
    for i, (x, steps) in enumerate(zip(graph.inputs, strides, strict=True)):
        if op.carried <= i < end_of_slices:
            pointer = f"const {c_type(x.dtype)} *"
            writer.lines.append(f"{pointer}x{i} = ({pointer})(p{i} + t * step{i});")
            writer.values[x] = _slice(f"x{i}", x, steps[1:])
        else:
            source = f"progress[2] ? p{i + len(strides)} : p{i}" if i < op.carried else f"p{i}"
            operands.append(f"{writer.array(x, f'x{i}')} memcpy(x{i}, {source}, sizeof x{i});")
        if x.dtype == BOOL:  # a view of another dtype may have any byte
            bytes_value = writer.values[x]
            writer.lines.append(writer.array(x, f"bit{i}"))
            writer.copy(writer.values[x], bytes_value, x.shape, " != 0")
    for node in graph:
        if node not in writer.values:
            writer.compute(node)
    outputs = len(strides)
    for k, y in enumerate(graph.outputs[op.carried :], outputs + op.carried):
        writer.lines.append(f"{c_type(y.dtype)} *y{k} = ({c_type(y.dtype)} *)(p{k} + t * step{k});")
        writer.copy(writer.contiguous(f"y{k}", y.shape), writer.values[y], y.shape)
    for i, y in enumerate(graph.outputs[: op.carried]):
        writer.lines.append(writer.array(y, f"new{i}", is_value=False))
        writer.copy(writer.contiguous(f"new{i}", y.shape), writer.values[y], y.shape)
    carries = range(op.carried)
    writer.lines += [f"memcpy(x{i}, new{i}, sizeof x{i});" for i in carries]
    results = [f"memcpy(p{outputs + i}, x{i}, sizeof x{i});" for i in carries]
    return LoopText(operands, writer.lines, results, tuple(writer.support))


def expand_fused(graph: Graph) -> Graph:
    """Return the graph with fused kernels replaced by their ops."""
    while any(_is_expandable(node.op) for node in graph):
        results_of: dict[Node, tuple[Node, ...]] = {}
        for node in graph:
            inputs = [results_of[x][0] for x in node.inputs]
            if isinstance(node.op, Item):
                results_of[node] = (results_of[node.inputs[0]][node.op.index],)
            elif _is_expandable(node.op):
                results_of[node] = tuple(node.op.expand(*inputs))
            else:
                copy = node.replace(tuple(inputs))
                results_of[node] = copy.op.results(*inputs) if node.is_bundle else (copy,)
        graph = Graph(graph.inputs, tuple(results_of[y][0] for y in graph.outputs))
    return graph


def _is_expandable(op: Op) -> bool:
    return isinstance(op, Fused | HorizontalFusion) or op.composed


def _slice(name: str, node: Node, strides: Shape) -> Elements:
    steps = [step // node.dtype.itemsize for step in strides]
    axes = np.ix_(*(step * np.arange(n) for n, step in zip(node.shape, steps, strict=True)))
    return Elements(name, np.broadcast_to(sum(axes, np.zeros((), np.int64)), node.shape))


class _StatementWriter:
    """Statements that compute nodes, and the values of the nodes."""

    def __init__(self) -> None:
        self.values: dict[Node, Elements] = {}
        self.lines: list[str] = []
        self.support: dict[str, None] = {}
        self.bytes = 0
        self.operations = 0

    def contiguous(self, name: str, shape: Shape) -> Elements:
        """Return the value of a contiguous array."""
        return Elements(name, np.arange(math.prod(shape)).reshape(shape))

    def array(self, node: Node, name: str, is_value: bool = True) -> str:
        """Return the declaration of an array for a node; make it the node's value if `is_value`."""
        self.bytes += node.spec.nbytes
        if not 0 < node.size <= MAX_ELEMENTS or self.bytes > MAX_STACK_BYTES:
            raise NotFusible("its values are empty, or do not fit the first-level cache")
        if is_value:
            self.values[node] = self.contiguous(name, node.shape)
        return f"{c_type(node.dtype)} {name}[{node.size}];"

    def compute(self, node: Node) -> None:
        if node.is_bundle or isinstance(node.op, Item):
            raise NotFusible(f"{node.op.name} has several results")
        xs = [self.values[x] for x in node.inputs]
        if node.op.is_view:
            self.values[node] = Elements(xs[0].name, node.op.forward(xs[0].index))
            return
        name = f"v{len(self.values)}"
        if isinstance(node.op, Constant):
            numbers = ", ".join(map(literal, np.asarray(node.op.value).reshape(-1)))
            self.lines.append(f"static const {self.array(node, name)[:-1]} = {{{numbers}}};")
            return
        self.lines.append(self.array(node, name))
        target = self.values[node]
        match node.op:
            case Elementwise() if not takes_index(node.op):
                self.elementwise(node, target, xs)
            case Reduction() as op if op.combine:
                self.reduction(op, node, target, xs[0])
            case Matmul():
                self.product(node, target, xs)
            case _:
                raise NotFusible(f"{node.op.name} is computed by a separate kernel")

    def emit(self, shape: Shape, operations: int, line: Callable[[ElementText], str]) -> None:
        """Append `line` for each element of a shape, which take this number of operations."""
        self.operations += operations
        if self.operations > MAX_OPERATIONS:
            raise NotFusible("a step has too many operations")
        self.lines += _element_lines(shape, operations, line)

    def copy(self, target: Elements, x: Elements, shape: Shape, suffix: str = "") -> None:
        self.emit(shape, x.index.size, lambda text: f"{text(target)} = {text(x)}{suffix};")

    def elementwise(self, node: Node, target: Elements, xs: Sequence[Elements]) -> None:
        xs = [x.reshaped(node.shape) for x in xs]
        dtypes = [x.dtype for x in node.inputs]
        self.support.update(
            (text.replace("static inline ", "MG_INLINE "), None)
            for text in support(node.op, dtypes, node.dtype)
        )

        def line(text: ElementText) -> str:
            right = expression(node.op, dtypes, node.dtype, [*map(text, xs)])
            return f"{text(target)} = {right};"

        self.emit(node.shape, node.size, line)

    def reduction(self, op: Reduction, node: Node, target: Elements, x: Elements) -> None:
        (operand,) = node.inputs
        count = operand.size // node.size
        if count > MAX_PLAIN_SUM or operand.dtype in SMALL_FLOATS:
            raise NotFusible(f"{op.name} reduces many elements, or floats of 16 bits")
        is_choice = op.combine.startswith("(")
        element_type = c_type((operand if is_choice else node).dtype)
        order = [a for a in range(operand.ndim) if a not in op.axes] + [*op.axes]
        terms = x.index.transpose(order).reshape(*node.shape, count)
        identity = filled(op, op.identity, **limits(operand.dtype))

        def line(text: ElementText) -> str:
            statements = (
                f"s = {filled(op, op.combine, f'({element_type})' + text(x), 's')};"
                for x in _along(x.name, terms)
            )
            body = f"{element_type} s = {identity}; {' '.join(statements)} {text(target)} = s;"
            return f"{{ {body} }}"

        self.emit(node.shape, operand.size, line)

    def product(self, node: Node, target: Elements, xs: Sequence[Elements]) -> None:
        x, y, *bias = xs
        count = node.inputs[0].shape[-1]
        if max(*node.shape[-2:], count) > MAX_MATRIX_SIDE or node.dtype in SMALL_FLOATS:
            raise NotFusible("a product is large, or has floats of 16 bits")
        lead, (m, n) = node.shape[:-2], node.shape[-2:]
        left = np.broadcast_to(x.index[..., None, :], (*lead, m, n, count))
        right = np.broadcast_to(np.swapaxes(y.index, -1, -2)[..., None, :, :], (*lead, m, n, count))
        times, plus = ("&", "|") if kind(node.dtype) == "b" else ("*", "+")
        element_type = c_type(node.dtype)

        def line(text: ElementText) -> str:
            pairs = zip(_along(x.name, left), _along(y.name, right), strict=True)
            terms = [f"({element_type})({text(a)} {times} {text(b)})" for a, b in pairs]
            terms += [text(b.reshaped(node.shape)) for b in bias]
            return f"{text(target)} = {f' {plus} '.join(terms) or '0'};"

        self.emit(node.shape, node.size * count, line)


def _along(name: str, index: Array) -> Iterator[Elements]:
    """Yield the values that a reduction combines, along the last axis."""
    return (Elements(name, index[..., k]) for k in range(index.shape[-1]))


def _element_lines(shape: Shape, operations: int, line: Callable[[ElementText], str]) -> list[str]:
    """Return `line` for each element of a shape, unrolled or in loops."""
    if operations <= MAX_UNROLLED:
        return [line(functools.partial(_unrolled_element, i)) for i in np.ndindex(*shape)]
    lines = [line(_loop_element)]
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1:
            lines = block(f"for (int i{axis} = 0; i{axis} < {shape[axis]}; i{axis}++)", *lines)
    return lines


def _unrolled_element(position: tuple[int, ...], value: Elements) -> str:
    return f"{value.name}[{value.index[position]}]"


def _loop_element(value: Elements) -> str:
    """Return the element at indices i0, i1 and so on; raise NotFusible without fixed strides."""
    index = value.index
    steps = [
        np.take(index, min(1, n - 1), d).flat[0] - index.flat[0] for d, n in enumerate(index.shape)
    ]
    axes = np.ix_(*(step * np.arange(n) for n, step in zip(index.shape, steps, strict=True)))
    if not np.array_equal(index, sum(axes, index.flat[0])):
        raise NotFusible("a view has no strides")
    terms = [str(index.flat[0]), *(f"{s} * i{d}" for d, s in enumerate(steps) if s)]
    return f"{value.name}[{' + '.join(terms)}]"
