"""Find the pass or the kernel that caused a difference between a function and level 0.

Passes are compared in float64, or bit for bit, at the nodes that each replaced.  Kernels run one by
one on their operands, and are compared with NumPy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.debug.rounding import (
    FLOAT64,
    ROUNDING_FACTOR,
    distance,
    evaluate,
    kernel_bounds,
    largest,
    rounding_of,
    widened,
    without_denormals,
)
from minigraph.graph import (
    FLOATS,
    Array,
    Constant,
    DType,
    Graph,
    Node,
    Parameter,
    Spec,
    aligned_empty,
    compute,
    toposort,
)
from minigraph.program import Backend, Buffer, Program, Step

MIN_EXPLAINED_SHARE = 0.1  # share of a difference that a pass must explain in float64
# Relative to the largest element; nodes that differ by more in float64 differ in meaning.
MEANING_TOLERANCE = 1e-9


class Difference(NamedTuple):
    """Two values of one expression, and a mask of the elements that differ."""

    expected: Array
    actual: Array
    wrong: Array

    def statistics(self, *names: str) -> str:
        """Return lines that describe the two values and the place of their largest difference."""
        width = max(map(len, names))
        values = zip(names, (self.expected, self.actual), strict=True)
        lines = [f"  {name:{width}}  {_summary(value)}" for name, value in values]
        lines.append(f"  {self.wrong.sum()} of {self.wrong.size} elements differ")
        x, y = (widened(v).astype(np.float64) for v in (self.expected, self.actual))
        with np.errstate(all="ignore"):
            gap = np.abs(x - y)
            distances = {"furthest apart": gap, "relative to the size": gap / np.abs(x)}
        for label, amounts in distances.items():
            masked = np.where(self.wrong, np.where(np.isnan(amounts), np.inf, amounts), -1)
            index = np.unravel_index(int(masked.argmax()), masked.shape)
            pair = f"{self.expected[index]!s} and {self.actual[index]!s}"
            lines.append(f"  {label}: by {masked[index]:.3g} at {[*map(int, index)]}: {pair}")
        return "\n".join(lines)


def _summary(x: Array) -> str:
    wide = widened(x).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    numbers = "no finite numbers"
    if finite.size:
        low, high, mean = finite.min(), finite.max(), finite.mean()
        numbers = f"min {low:.6g}, max {high:.6g}, mean {mean:.6g}"
    spec, nans, infinite = Spec(x.shape, x.dtype), np.isnan(wide).sum(), np.isinf(wide).sum()
    return f"{spec}: {numbers}, {nans} NaN, {infinite} infinite"


def differs_in_bits(x: Array, y: Array) -> Array:
    """Return for each element whether a bit differs; denormals are zero, and all NaN are equal."""
    if x.dtype not in FLOATS:
        return np.asarray(x != y)
    a, b = (widened(without_denormals(v)) for v in (x, y))
    alike = (a == b) & (np.signbit(a) == np.signbit(b))
    return ~(alike | (np.isnan(a) & np.isnan(b)))


Stages = Sequence[tuple[str, Graph]]
Differences = Mapping[int, Difference]  # of outputs, by their index


def find_pass_changing_bits(stages: Stages, wrong: Differences, args: Sequence[Array]) -> str:
    """Describe the first pass that changed a bit of these outputs; "" if no pass did."""
    for (_, before), (name, after) in itertools.pairwise(stages):
        graphs = _with_outputs(before, wrong), _with_outputs(after, wrong)
        if change := _first_changed_node(*graphs, args, None, differs_in_bits):
            return _pass_fault(name, *change, ", in other bits")
    return ""


def find_pass_changing_meaning(
    stages: Stages, wrong: Differences, args: Sequence[Array], strict: bool
) -> str:
    """Describe the first pass that explains one of the differences in float64; "" if none does."""
    if not wrong:
        return ""

    def computed(graph: Graph, dtype: DType) -> dict[int, Array]:
        return dict(zip(wrong, evaluate(_with_outputs(graph, wrong), args, dtype), strict=True))

    original = computed(stages[0][1], FLOAT64)
    single = computed(stages[0][1], np.dtype(np.float32))
    dtypes = {i: stages[0][1].outputs[i].dtype for i in wrong}
    noise = {i: ROUNDING_FACTOR * rounding_of(dtypes[i], original[i], single[i]) for i in wrong}

    def explained_outputs(graph: Graph) -> Iterator[tuple[int, Array, Array]]:
        """Yield the outputs whose meaning the graph changes: index, value, and changed elements."""
        for i, y in computed(graph, FLOAT64).items():
            shift, (expected, actual, mask) = distance(original[i], y), wrong[i]
            gap = distance(expected, actual)
            explained = mask & (shift >= MIN_EXPLAINED_SHARE * gap) & (shift > noise[i])
            explained &= np.isfinite(shift) | np.isinf(gap)  # float64 may overflow later
            if not strict:
                explained &= np.isfinite(original[i])
            if explained.any():
                yield i, y, explained

    def other_meaning(x: Array, y: Array) -> Array:
        """Return for each element whether it differs by more than a pass could round it."""
        exceeds = distance(x, y) > MEANING_TOLERANCE * largest(x)
        return exceeds if strict else exceeds & np.isfinite(widened(x))

    if next(explained_outputs(stages[-1][1]), None) is None:
        return ""
    for (_, before), (name, after) in itertools.pairwise(stages):
        for i, y, elements in explained_outputs(after):
            old, new = before.outputs[i], after.outputs[i]
            graphs = _with_outputs(before, [i]), _with_outputs(after, [i])
            change = _first_changed_node(*graphs, args, FLOAT64, other_meaning)
            change = change or (old, new, _difference(old, original[i], y, elements))
            return _pass_fault(name, *change)
    return ""


def _pass_fault(name: str, old: Node, new: Node, difference: Difference, suffix: str = "") -> str:
    text = f"pass {name} made {new.op} of {old.op}, {old.spec} {old.source}{suffix}"
    return f"{text}\n{difference.statistics('before', 'after')}"


def _difference(node: Node, expected: Array, actual: Array, wrong: Array) -> Difference:
    with np.errstate(over="ignore"):
        return Difference(expected.astype(node.dtype), actual.astype(node.dtype), wrong)


def _first_changed_node(
    before: Graph,
    after: Graph,
    args: Sequence[Array],
    dtype: DType | None,
    differ: Callable[[Array, Array], Array],
) -> tuple[Node, Node, Difference] | None:
    """Return the first node whose replacement has another value, and the replacement."""
    pairs = [*_replaced_nodes(before, after)]
    if not pairs:
        return None
    graphs = (Graph(before.inputs, nodes) for nodes in zip(*pairs, strict=True))
    values = (evaluate(graph, args, dtype) for graph in graphs)
    for (old, new), x, y in zip(pairs, *values, strict=True):
        wrong = differ(x, y)
        if wrong.any():
            return old, new, _difference(old, x, y, wrong)
    return None


def _with_outputs(graph: Graph, outputs: Collection[int]) -> Graph:
    return Graph(graph.inputs, tuple(graph.outputs[i] for i in outputs))


def _replaced_nodes(before: Graph, after: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes that a pass replaced, each with its replacement, in order of computation.

    A new node has the order of the node that it replaces.  Of several new nodes with one order, the
    last is the replacement, and the others are its operands.  Operands at the same index are a
    pair, too: a pass may have replaced one by a node of the old graph.
    """
    old = {node.order[0]: node for node in before}
    new = {node.order[0]: node for node in after}
    pairs = [(old[order], node) for order, node in sorted(new.items()) if order in old]
    for x, y in [*pairs, *zip(before.outputs, after.outputs, strict=True)]:
        operands: Iterator[tuple[Node, Node]] = iter(())
        if type(x.op) is type(y.op) and not x.op.commutative and len(x.inputs) == len(y.inputs):
            operands = zip(x.inputs, y.inputs, strict=True)
        for a, b in (*operands, (x, y)):
            if a is not b and a.specs == b.specs and not a.is_bundle:
                yield a, b


def check_steps(
    program: Program,
    backend: Backend,
    inputs: Mapping[Node, Array],
    relative_slack: float = 0.0,
    strict: bool = True,
    allocate: Callable[[Spec], Array] = aligned_empty,
) -> tuple[Step, Difference] | list[Array]:
    """Run the steps one by one, and compare each with NumPy on the same operands.

    Return the first step with a wrong result and its difference, or the outputs of the program.

    inputs          values of the inputs
    relative_slack  difference that counts as rounding, relative to an array's largest element
    strict          whether to compare NumPy's NaN and infinities, too

    No two buffers share memory, so no step overwrites the operands of another step.
    """
    memory = {buffer: _memory(buffer, inputs, allocate) for buffer in program.buffers}
    values: dict[Node, Any] = {p: p.numpy() for p in program.graph.parameters}
    values.update(inputs)
    for step in program.steps:
        backend.run_alone(step, memory)
        results = [view.array(memory[view.buffer]).copy() for view in step.outputs]
        operands = [_value(x, values) for x in step.node.inputs]
        bounds = kernel_bounds(step.node, operands, relative_slack)
        for result, (exact, slack) in zip(results, bounds, strict=True):
            wrong = distance(exact, widened(result)) > slack
            wrong = wrong if strict else wrong & np.isfinite(exact)
            if wrong.any():
                with np.errstate(over="ignore"):
                    expected = exact.astype(result.dtype)
                return step, Difference(expected, result, wrong)
        values[step.node] = tuple(results) if step.node.is_bundle else results[0]
    return [_value(y, values) for y in program.graph.outputs]


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """Return the value of a node, which may be a view of a step's result."""
    for x in toposort([node], dict.fromkeys(values, ())):
        if x not in values:
            values[x] = compute(x, *map(values.__getitem__, x.inputs))
    return values[node]


def _memory(
    buffer: Buffer, inputs: Mapping[Node, Array], allocate: Callable[[Spec], Array]
) -> Array:
    """Return memory for a buffer, with the value that it has when a call begins."""
    memory = allocate(Spec((buffer.nbytes,), np.dtype(np.uint8)))
    node = buffer.node
    if node is not None:
        value = node.op.value if isinstance(node.op, Constant) else inputs.get(node)
        value = node.state.read() if isinstance(node, Parameter) else value
        memory[...] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return memory
