"""Running a function beside level 0 at every call: what a negative `graph_opt_level` asks for.

Where the two differ by more than rounding, the call raises an error that says which pass, or which
kernel, made the difference, and where in the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.backends.reference import NumpyKernel, run_step
from minigraph.dtypes import BFLOAT16, FLOATS, Array
from minigraph.errors import CompileError, GraphError
from minigraph.function import Function
from minigraph.graph import Constant, Graph, Node, Parameter, input
from minigraph.noise import Noise, real
from minigraph.ops.random import SEED, STEP
from minigraph.program import Backend, Buffer, Home, Program, Step
from minigraph.spec import Spec, aligned_empty

# By how much of its largest element an array may differ without a closer look.
TOLERANCES = {
    BFLOAT16: 5e-2,
    np.dtype(np.float16): 1e-2,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float64): 1e-10,
}


class VerifiedFunction(Function):
    """A function that raises CompileError where it and level 0 differ by more than rounding.

    A call that raises leaves the parameters as they were.
    """

    def __init__(
        self,
        *function: Any,
        written: Function,
        stages: Sequence[tuple[str, Graph]],
        updates: Sequence[Parameter],
    ) -> None:
        """Take what a Function takes, and what it is compared with.

        written  the function at level 0, which returns a list
        stages   the graph as written, and with each pass's name the graph after it
        updates  the parameters whose new values are the last outputs of these graphs
        """
        super().__init__(*function)
        self._written = written
        self._stages = stages
        self._updates = updates
        # Fast math may make any number of what level 0 has no number for.
        self._strict = not self._options["graph_opt.fast_math"]

    def _run(
        self, values: list[Array], execute: Callable[[Sequence[Array], Sequence[Array]], None]
    ) -> list[Array]:
        before = self._state()
        self._written.calls, self._written.seed = self.calls, self.seed
        expected = [*self._written(*values), *self._state()]
        self._restore(before)
        try:
            results = super()._run(values, execute)
        except GraphError as error:
            raise CompileError(f"{self._title}, which computes what it refuses: {error}") from None
        found = [*results, *self._state()]
        if any(_apart(x, y, self._strict).any() for x, y in zip(expected, found, strict=True)):
            self._restore(before)
            self.calls -= 1
            self._explain(values, expected, found)
            self._restore(found[len(results) :])
            self.calls += 1
        return results

    def _state(self) -> list[Array]:
        return [p.numpy() for p in self._updates]

    def _restore(self, state: Sequence[Array]) -> None:
        for parameter, value in zip(self._updates, state, strict=True):
            parameter.data[...] = value

    @property
    def _title(self) -> str:
        return f"graph_opt_level {self._options['graph_opt_level']} differs from level 0"

    def _explain(
        self, values: Sequence[Array], expected: Sequence[Array], found: Sequence[Array]
    ) -> None:
        """Raise CompileError, with what made the difference, unless rounding explains it."""
        given = {
            **dict(zip(self._inputs, values, strict=True)),
            SEED: self.seed,
            STEP: np.array(self.calls, np.uint64),
        }
        graph = self._stages[0][1]
        noise = Noise(graph, [*given.values()])
        difference = _first(noise, expected, found, self._strict)
        if difference is None:
            return
        at, node = difference.at, graph.outputs[difference.at]
        results = len(graph.outputs) - len(self._updates)
        what = f"output {at}" if at < results else f"parameter {self._updates[at - results].name}"
        message = (
            self._wrong_pass(noise, given)
            or self._wrong_kernel(given)
            or f"{what}, {node.op.name} {node.spec} {node.source}; every pass, and every kernel on "
            f"its own, agrees with NumPy, so it is how the device runs them\n"
            + difference.statistics("level 0", "here")
        )
        raise CompileError(
            f"{self._title}: {message}\n  the parameters are as they were before the call"
        )

    def _wrong_pass(self, noise: Noise, given: Mapping[Node, Array]) -> str:
        """Return which pass changed what the graph means, "" if none did."""
        args = [*given.values()]
        for (_, before), (name, after) in itertools.pairwise(self._stages):
            difference = _first(noise, noise.runs[0], after(*args), self._strict)
            if difference is None:
                continue
            at = difference.at
            old, new = before.outputs[at], after.outputs[at]
            pairs = [*_pairs(before, after)]
            olds, news = (Graph(before.inputs, side) for side in zip(*pairs, strict=True))
            first = _first(Noise(olds, args), olds(*args), news(*args), self._strict)
            if first is not None:
                difference, (old, new) = first, pairs[first.at]
            return (
                f"pass {name} made {new.op} of {old.op}, {old.spec} {old.source}\n"
                + difference.statistics("before", "after")
            )
        return ""

    def _wrong_kernel(self, given: Mapping[Node, Array]) -> str:
        """Return which step computes something else than NumPy does, "" if none does."""
        level = abs(self._options["graph_opt_level"])
        for function, name in ((self, f"level {level}"), (self._written, "level 0")):
            wrong = _wrong_step(function._program, function._backend, given, self._strict)
            if wrong is not None:
                step, difference = wrong
                return (
                    f"at {name} the kernel {step.kernel.name!r} on {function._backend.device} for "
                    f"{step.node!r} {step.node.source} differs from NumPy\n"
                    + difference.statistics("NumPy", "kernel")
                )
        return ""


class Difference(NamedTuple):
    """Two values of one expression, the elements at which they differ, and its place in a list."""

    at: int
    expected: Array
    found: Array
    wrong: Array

    def statistics(self, *names: str) -> str:
        """Return what the values are like and where they are furthest apart, in lines."""
        width = max(map(len, names))
        values = zip(names, (self.expected, self.found), strict=True)
        lines = [f"  {name:{width}}  {_summary(value)}" for name, value in values]
        x, y = (real(v).astype(np.float64) for v in (self.expected, self.found))
        with np.errstate(all="ignore"):
            gap = np.abs(x - y)
            distances = {"most": gap, "most for its size": gap / np.abs(x)}
        lines.append(f"  {self.wrong.sum()} of {self.wrong.size} elements differ")
        for what, distance in distances.items():
            far = np.where(self.wrong, np.where(np.isnan(distance), np.inf, distance), -1)
            at = np.unravel_index(int(far.argmax()), far.shape)
            pair = f"{self.expected[at]!s} and {self.found[at]!s}"
            lines.append(f"  {what}: by {far[at]:.3g} at {[*map(int, at)]}: {pair}")
        return "\n".join(lines)


def _summary(x: Array) -> str:
    """Return an array's smallest, largest and mean number, and how much of it is no number."""
    wide = real(x).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    numbers = "no numbers"
    if finite.size:
        least, most, mean = finite.min(), finite.max(), finite.mean()
        numbers = f"min {least:.6g}, max {most:.6g}, mean {mean:.6g}"
    spec, nans, infinite = Spec(x.shape, x.dtype), np.isnan(wide).sum(), np.isinf(wide).sum()
    return f"{spec}: {numbers}, {nans} NaN, {infinite} infinite"


def _apart(expected: Array, found: Array, strict: bool) -> Array:
    """Return which elements differ by more than the rounding of the array's largest element.

    strict  whether what is no number has to be the same too
    """
    if expected.dtype not in FLOATS:
        return np.asarray(expected != found)
    x, y = real(expected), real(found)
    finite = np.isfinite(x)
    limit = TOLERANCES[expected.dtype] * np.abs(x[finite]).max(initial=0)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= limit)
    return ~same if strict else ~same & finite


def _first(
    noise: Noise, expected: Sequence[Array], found: Sequence[Array], strict: bool
) -> Difference | None:
    """Return the first outputs of `noise` that differ by more than rounding explains."""
    for i, (x, y) in enumerate(zip(expected, found, strict=True)):
        wrong = _apart(x, y, strict)
        if wrong.any():
            wrong &= ~noise.explains(i, x, y)
        if wrong.any():
            return Difference(i, x, y, wrong)
    return None


def _pairs(before: Graph, after: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield what a pass replaced, and by what, in the order in which it is computed.

    A node that a pass makes has the turn of the one that it replaces.  Where several have one turn,
    the last is what the others were made for.  Operands at the same place are a pair too: one may
    have been replaced by what was there before.
    """
    old = {node.turn[0]: node for node in before}
    new = {node.turn[0]: node for node in after}
    pairs = [(old[turn], node) for turn, node in new.items() if turn in old]
    pairs.sort(key=lambda pair: pair[1].turn)
    for x, y in [*pairs, *zip(before.outputs, after.outputs, strict=True)]:
        operands: Iterator[tuple[Node, Node]] = iter(())
        if type(x.op) is type(y.op) and not x.op.commutative and len(x.inputs) == len(y.inputs):
            operands = zip(x.inputs, y.inputs, strict=True)
        for a, b in (*operands, (x, y)):
            if a is not b and a.specs == b.specs and not a.is_bundle:
                yield a, b


def _wrong_step(
    program: Program, backend: Backend, given: Mapping[Node, Array], strict: bool
) -> tuple[Step, Difference] | None:
    """Return the first step whose kernel differs from NumPy on what NumPy gives it to read.

    Each buffer has memory of its own here, so that no step spoils what another one reads.
    """
    memory = {buffer: _memory(buffer, given) for buffer in program.buffers}
    for step in program.steps:
        used = {view.buffer: None for view in (*step.inputs, *step.outputs)} | {step.scratch: None}
        alone = Program(program.graph, [step], buffers=[*used])
        static = {b: memory[b] for b in used if b.home not in (Home.INPUT, Home.OUTPUT)}
        operands = [view.array(memory[view.buffer]) for view in step.inputs]
        execute = backend.bind(alone, static)
        execute([memory[b] for b in alone.inputs], [memory[b] for b in alone.returned])
        found = [view.array(memory[view.buffer]).copy() for view in step.outputs]
        run_step(step, NumpyKernel(step.node), memory)
        expected = [view.array(memory[view.buffer]) for view in step.outputs]
        xs = tuple(input("x", x.shape, x.dtype) for x in operands)
        noise = Noise(Graph(xs, step.node.op.results(*xs)), operands)
        difference = _first(noise, expected, found, strict)
        if difference is not None:
            return step, difference
    return None


def _memory(buffer: Buffer, given: Mapping[Node, Array]) -> Array:
    """Return memory for a buffer, with the value that it has when a call begins."""
    memory = aligned_empty(Spec((buffer.nbytes,), np.dtype(np.uint8)))
    node = buffer.node
    if node is not None:
        value = node.op.value if isinstance(node.op, Constant) else given.get(node)
        value = node.data if isinstance(node, Parameter) else value
        memory[...] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return memory
