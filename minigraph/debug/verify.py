"""Functions that run beside level 0 at every call, as a negative `graph_opt_level` asks for.

Results of elementwise ops alone are compared bit for bit.  Where others differ by more than
rounding, or these at all, the call raises an error that names the pass or the kernel that made the
difference, and the user's line.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minigraph.cache import Entry
from minigraph.compile.pipeline import Compilation
from minigraph.debug.noise import (
    AMPLITUDES,
    evaluate,
    explained,
    explained_as_a_whole,
    flushed,
    noisy,
    real,
    shaken,
)
from minigraph.devices.reference import NumpyKernel, run_step
from minigraph.distributed import World
from minigraph.errors import CompileError, GraphError
from minigraph.graph import (
    BFLOAT16,
    FLOATS,
    Array,
    Constant,
    Graph,
    Node,
    Op,
    Parameter,
    Spec,
    aligned_empty,
    input,
)
from minigraph.jit.fused import Fused, Together
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.random import SEED, STEP
from minigraph.platform.signals import held
from minigraph.program import Backend, Buffer, Program, Step
from minigraph.runtime.calls import CallCounter
from minigraph.runtime.function import Execute, Function

# Differences up to this share of an array's largest element need no closer look.
TOLERANCES = {
    BFLOAT16: 5e-2,
    np.dtype(np.float16): 1e-2,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float64): 1e-10,
}

T = TypeVar("T")
Values = Mapping[int, Array]  # of some outputs, by their position


class VerifiedFunction(Function):
    """A function that raises CompileError where it differs from level 0 by more than rounding.

    A call that raises leaves the parameters unchanged.
    """

    def __init__(
        self, compilation: Compilation, counter: CallCounter | None, written: Function
    ) -> None:
        """Take what a Function takes, and the function at level 0, which returns a list."""
        super().__init__(compilation, counter)
        self._written = written
        self._updates = compilation.traced.updates
        self._world = compilation.context.world
        optimized = compilation.optimize()
        # The graph as written, then the graph after each pass, with the pass's name.
        self._stages = [("", optimized.written)]
        self._stages += [(record.name, graph) for graph, record in optimized.stages]
        if self._options["amp"] != "off":  # the first pass, which rounds more than the others
            self._stages = [("", self._stages[1][1]), *self._stages[2:]]
        # Fast math may replace level 0's NaN and infinity by any number.
        self._strict = not self._options["graph_opt.fast_math"]
        rounds = self._options["amp"] != "off" or self._rounds_activations
        self._bitwise = (
            _elementwise(self._stages[0][1]) if self._strict and not rounds else frozenset()
        )
        self._title = f"graph_opt_level {self._options['graph_opt_level']} differs from level 0"

    @property
    def _rounds_activations(self) -> bool:
        return self._options["graph_opt.saved_activations"] != "float32"

    def cache_entries(self) -> list[Entry]:
        return [*super().cache_entries(), *self._written.cache_entries()]

    def _run(self, values: list[Array], execute: Execute) -> list[Array]:
        before, calls = self._state(), self.calls
        try:
            return self._compared(values, execute, before)
        except BaseException:
            with held():
                self._restore(before)
                self.calls = calls
            raise

    def _compared(
        self, values: list[Array], execute: Execute, before: Sequence[Array]
    ) -> list[Array]:
        """Run level 0 and this function on the same state; return the results if they agree."""
        expected = self._as_written(values)
        self._restore(before)
        try:
            results = super()._run(values, execute)
        except GraphError as error:
            raise CompileError(f"{self._title}, which raises no error: {error}") from None
        after = self._state()
        actual = dict(enumerate([*map(_on_host, results), *after]))
        doubts = {
            **_differences(_without(expected, self._bitwise), actual, self._strict),
            **_different_bits({at: x for at, x in expected.items() if at in self._bitwise}, actual),
        }
        # What one process looks at more closely all do: it takes more calls, with collectives.
        if self._world.any(bool(doubts)) if self._world else doubts:
            self._restore(before)
            self.calls -= 1
            self._judge(list(map(_on_host, values)), doubts)
            with held():
                self._restore(after)
                self.calls += 1
        return results

    def _as_written(self, values: Sequence[Array]) -> dict[int, Array]:
        """Run level 0, which updates the parameters; return its results and their new values."""
        self._written.calls, self._written.seed = self.calls, self.seed
        results = map(_on_host, self._written(*values))
        return dict(enumerate([*results, *self._state()]))

    def _judge(self, values: Sequence[Array], doubts: Mapping[int, Difference]) -> None:
        """Raise CompileError that says what made the differences, unless rounding explains them."""
        certain = {at: doubt for at, doubt in doubts.items() if at in self._bitwise}
        doubts = _without(doubts, self._bitwise)
        if doubts or self._world:  # what one process looks at more closely all do
            doubts = _unexplained(doubts, self._shaken(values, doubts))
        rounds = self._rounds_activations
        if self._world:
            doubts = _large(doubts, self._strict) if rounds else doubts
            self._judge_together(self._world, {**certain, **doubts})
            return
        if not (certain or doubts):
            return
        given = {
            **dict(zip(self._inputs, values, strict=True)),
            SEED: self.seed,
            STEP: np.array(self.calls, np.uint64),
        }
        args = [*given.values()]
        if certain:
            message = (
                _wrong_bits(self._stages, certain, args)
                or self._wrong_kernel(given)
                or self._first(certain, ROUNDED)
            )
            raise CompileError(f"{self._title}: {message}\n  the parameters are unchanged")
        graph, last = self._stages[0][1], self._stages[-1][1]
        stored = {s.size for node in last for s in node.specs if s.dtype == BFLOAT16}
        found = noisy(_part(graph, doubts), args, stored)
        runs = [dict(zip(doubts, run, strict=True)) for run in found]
        doubts = _unexplained(doubts, runs)
        if rounds or self._options["amp"] != "off":
            whole = {at: [run[at] for run in runs] for at in doubts}
            doubts = {
                at: doubt
                for at, doubt in doubts.items()
                if not explained_as_a_whole(whole[at], *doubt[:2])
            }
        if not doubts:
            return
        message = (
            _wrong_pass(self._stages, doubts, runs, args, self._strict)
            or self._wrong_kernel(given)
            or self._first(doubts, TOGETHER)
        )
        raise CompileError(f"{self._title}: {message}\n  the parameters are unchanged")

    def _judge_together(self, world: World, doubts: Mapping[int, Difference]) -> None:
        """Raise CompileError in all processes if one of them has doubts.

        To look for the pass and the kernel, each process would need other collectives.
        """
        for rank, found in enumerate(world.gather(self._first(doubts) if doubts else "")):
            if found:
                raise CompileError(
                    f"{self._title} in process {rank}: {found}\n  the parameters are unchanged; "
                    "one process alone is told which pass or kernel it is"
                )

    def _shaken(self, values: Sequence[Array], doubts: Mapping[int, Difference]) -> list[Values]:
        """Return the results of level 0 for slightly changed inputs and parameters.

        Its kernels round differently each time.  This is faster than noise by NumPy.
        """
        touched = dict.fromkeys([*self._stages[0][1].parameters, *self._updates])
        kept = [(p, p.numpy()) for p in touched]
        runs: list[Values] = [{at: doubt.expected for at, doubt in doubts.items()}]
        try:
            for amplitude in AMPLITUDES:
                rng = np.random.default_rng(abs(amplitude))
                for p, value in kept:
                    p.state.write()[...] = shaken(value, rng, amplitude)
                with contextlib.suppress(GraphError):  # an index may be computed from floats
                    results = self._as_written([shaken(x, rng, amplitude) for x in values])
                    runs.append({at: results[at] for at in doubts})
        finally:
            for p, value in kept:
                p.state.write()[...] = value
        return runs

    def _wrong_kernel(self, given: Mapping[Node, Array]) -> str:
        """Describe the first kernel that differs from NumPy; "" if none does."""
        level = abs(self._options["graph_opt_level"])
        for function, name in ((self, f"level {level}"), (self._written, "level 0")):
            wrong = wrong_step(function._program, function._backend, given)
            if wrong is not None:
                step, difference = wrong
                return (
                    f"at {name} the kernel {step.kernel.name!r} on {function._backend.device} for "
                    f"{step.node!r} {step.node.source} differs from NumPy\n"
                    + difference.statistics("NumPy", "kernel")
                )
        return ""

    def _first(self, doubts: Mapping[int, Difference], why: str = "") -> str:
        """Describe the first output that is wrong."""
        at, difference = next(iter(doubts.items()))
        graph = self._stages[0][1]
        results = len(graph.outputs) - len(self._updates)
        what = f"output {at}" if at < results else f"parameter {self._updates[at - results].name}"
        node = graph.outputs[at]
        about = f"{what}, {node.op.name} {node.spec} {node.source}{why}\n"
        return about + difference.statistics("level 0", "here")


TOGETHER = (
    "; every pass and every single kernel agrees with NumPy, so the fault is in how the device "
    "runs them together"
)

ROUNDED = (
    "; no pass changed a bit, and every kernel agrees with NumPy to rounding, so the fault is "
    "in how kernels round or in how the device runs them together"
)


# ---------------------------------------------------------------- comparing


class Difference(NamedTuple):
    """Two values of one expression, and a mask of the elements that differ."""

    expected: Array
    actual: Array
    wrong: Array

    def statistics(self, *names: str) -> str:
        """Return lines that describe the two values and where they are furthest apart."""
        width = max(map(len, names))
        values = zip(names, (self.expected, self.actual), strict=True)
        lines = [f"  {name:{width}}  {_summary(value)}" for name, value in values]
        lines.append(f"  {self.wrong.sum()} of {self.wrong.size} elements differ")
        x, y = (real(v).astype(np.float64) for v in (self.expected, self.actual))
        with np.errstate(all="ignore"):
            gap = np.abs(x - y)
            distances = {"furthest apart": gap, "relative to the size": gap / np.abs(x)}
        for what, distance in distances.items():
            far = np.where(self.wrong, np.where(np.isnan(distance), np.inf, distance), -1)
            at = np.unravel_index(int(far.argmax()), far.shape)
            pair = f"{self.expected[at]!s} and {self.actual[at]!s}"
            lines.append(f"  {what}: by {far[at]:.3g} at {[*map(int, at)]}: {pair}")
        return "\n".join(lines)


def _summary(x: Array) -> str:
    """Return an array's smallest, largest and mean number, and its counts of NaN and infinity."""
    wide = real(x).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    numbers = "no finite numbers"
    if finite.size:
        least, most, mean = finite.min(), finite.max(), finite.mean()
        numbers = f"min {least:.6g}, max {most:.6g}, mean {mean:.6g}"
    spec, nans, infinite = Spec(x.shape, x.dtype), np.isnan(wide).sum(), np.isinf(wide).sum()
    return f"{spec}: {numbers}, {nans} NaN, {infinite} infinite"


def _differences(expected: Values, actual: Values, strict: bool = True) -> dict[int, Difference]:
    """Return the values that differ by more than the tolerance of their dtype.

    strict  whether NaN and infinity have to be equal too
    """
    pairs = {at: (x, actual[at]) for at, x in expected.items()}
    apart = {at: Difference(x, y, _apart(x, y, strict)) for at, (x, y) in pairs.items()}
    return {at: difference for at, difference in apart.items() if difference.wrong.any()}


def _different_bits(expected: Values, actual: Values) -> dict[int, Difference]:
    """Return the values that differ in a bit; denormals are zero, and all NaN are equal."""
    found: dict[int, Difference] = {}
    for at, x in expected.items():
        y = actual[at]
        wrong = np.asarray(x != y)
        if x.dtype in FLOATS:
            wide, other = flushed(real(x), x.dtype), flushed(real(y), x.dtype)
            alike = (wide == other) & (np.signbit(wide) == np.signbit(other))
            wrong = ~(alike | (np.isnan(wide) & np.isnan(other)))
        if wrong.any():
            found[at] = Difference(x, y, wrong)
    return found


def _without(values: Mapping[int, T], positions: Collection[int]) -> dict[int, T]:
    return {at: value for at, value in values.items() if at not in positions}


def _elementwise(graph: Graph) -> frozenset[int]:
    """Return the positions of outputs that elementwise ops, and moves of elements, alone make."""
    apart: dict[Node, bool] = {}
    for node in graph:
        own = not node.inputs or isinstance(node.op, Elementwise) or node.op.is_view
        apart[node] = own and all(apart[x] for x in node.inputs)
    return frozenset(at for at, y in enumerate(graph.outputs) if apart[y])


def _large(differences: Mapping[int, Difference], strict: bool) -> dict[int, Difference]:
    """Return the differences that would be too large between arrays of bfloat16."""
    rounded = {
        at: [x.astype(BFLOAT16) if x.dtype in FLOATS else x for x in (expected, actual)]
        for at, (expected, actual, _) in differences.items()
    }
    expected, actual = ({at: pair[i] for at, pair in rounded.items()} for i in (0, 1))
    return _differences(expected, actual, strict)


def _apart(expected: Array, actual: Array, strict: bool) -> Array:
    if expected.dtype not in FLOATS:
        return np.asarray(expected != actual)
    small = expected.dtype.itemsize < 4
    x, y = (v.astype(np.float32) if small else v for v in (expected, actual))
    finite = np.isfinite(x)
    limit = TOLERANCES[expected.dtype] * np.abs(x).max(initial=0, where=finite)
    with np.errstate(all="ignore"):
        far = ~np.asarray(np.abs(x - y) <= limit)
    if far.any():
        far &= ~((x == y) | (np.isnan(x) & np.isnan(y)))
    return far if strict else far & finite


def _unexplained(
    differences: Mapping[int, Difference], runs: Sequence[Values]
) -> dict[int, Difference]:
    """Return the differences without the elements at which these runs differ as much."""
    left: dict[int, Difference] = {}
    for at, (x, y, wrong) in differences.items():
        wrong = np.array(wrong)
        wrong[wrong] = ~explained([run[at][wrong] for run in runs], x[wrong], y[wrong])
        if wrong.any():
            left[at] = Difference(x, y, wrong)
    return left


# ---------------------------------------------------------------- what made a difference

CLOSER_LOOKS = 8, 64  # nodes that are evaluated with noise: at a time, and at most


def _wrong_pass(
    stages: Sequence[tuple[str, Graph]],
    outputs: Mapping[int, Difference],
    runs: Sequence[Values],
    args: Sequence[Array],
    strict: bool,
) -> str:
    """Describe the first pass that changed the meaning of one of the outputs; "" if none did.

    runs  the outputs of the graph as written: first without noise, then with noise
    """
    expected = {at: runs[0][at] for at in outputs}
    for (_, before), (name, after) in itertools.pairwise(stages):
        actual = dict(zip(outputs, evaluate(_part(after, outputs), args), strict=True))
        wrong = _unexplained(_differences(expected, actual, strict), runs)
        for at, difference in wrong.items():
            old, new, difference = _wrong_node(
                _part(before, [at]), _part(after, [at]), args, strict
            ) or (before.outputs[at], after.outputs[at], difference)
            return (
                f"pass {name} made {new.op} of {old.op}, {old.spec} {old.source}\n"
                + difference.statistics("before", "after")
            )
    return ""


def _wrong_bits(
    stages: Sequence[tuple[str, Graph]], outputs: Mapping[int, Difference], args: Sequence[Array]
) -> str:
    """Describe the first pass that changed a bit of these outputs; "" if none did."""
    for (_, before), (name, after) in itertools.pairwise(stages):
        if found := _changed_node(_part(before, outputs), _part(after, outputs), args):
            old, new, difference = found
            return (
                f"pass {name} made {new.op} of {old.op}, {old.spec} {old.source}, in other bits\n"
                + difference.statistics("before", "after")
            )
    return ""


def _changed_node(
    before: Graph, after: Graph, args: Sequence[Array]
) -> tuple[Node, Node, Difference] | None:
    """Return the first node that a pass replaced by one of other bits, and its replacement."""
    pairs, differences = _replaced(before, after, args, _different_bits)
    return next(((*pairs[at], difference) for at, difference in differences.items()), None)


def _replaced(
    before: Graph,
    after: Graph,
    args: Sequence[Array],
    compare: Callable[[Values, Values], dict[int, Difference]],
) -> tuple[list[tuple[Node, Node]], dict[int, Difference]]:
    """Return the nodes that a pass replaced, each with its replacement, and how values differ."""
    pairs = [*_pairs(before, after)]
    if not pairs:
        return [], {}
    old, new = (Graph(before.inputs, nodes) for nodes in zip(*pairs, strict=True))
    expected, actual = (dict(enumerate(evaluate(graph, args))) for graph in (old, new))
    return pairs, compare(expected, actual)


def _part(graph: Graph, outputs: Mapping[int, Any] | Sequence[int]) -> Graph:
    return Graph(graph.inputs, tuple(graph.outputs[at] for at in outputs))


def _wrong_node(
    before: Graph, after: Graph, args: Sequence[Array], strict: bool
) -> tuple[Node, Node, Difference] | None:
    """Return the first node that a pass replaced by one of another meaning, and its replacement."""
    pairs, differences = _replaced(
        before, after, args, lambda expected, actual: _differences(expected, actual, strict)
    )
    step, end = CLOSER_LOOKS
    for first in range(0, min(len(differences), end), step):
        some = dict(itertools.islice(differences.items(), first, first + step))
        old = Graph(before.inputs, tuple(pairs[at][0] for at in some))
        runs = [dict(zip(some, run, strict=True)) for run in noisy(old, args)]
        for at, difference in _unexplained(some, runs).items():
            return (*pairs[at], difference)
    return None


def _on_host(array: Array) -> Array:
    """Return a NumPy array; CuPy arrays have a method for that."""
    return array if isinstance(array, np.ndarray) else array.get()


def _pairs(before: Graph, after: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes that a pass replaced, each with its replacement, in order of computation.

    A new node has the turn of the node that it replaces.  Of several new nodes with one turn, the
    last replaces it, and the others are its operands.  Operands at the same position are a pair
    too: a pass may have replaced one by a node that was there before.
    """
    old = {node.turn[0]: node for node in before}
    new = {node.turn[0]: node for node in after}
    pairs = [(old[turn], node) for turn, node in sorted(new.items()) if turn in old]
    for x, y in [*pairs, *zip(before.outputs, after.outputs, strict=True)]:
        operands: Iterator[tuple[Node, Node]] = iter(())
        if type(x.op) is type(y.op) and not x.op.commutative and len(x.inputs) == len(y.inputs):
            operands = zip(x.inputs, y.inputs, strict=True)
        for a, b in (*operands, (x, y)):
            if a is not b and a.specs == b.specs and not a.is_bundle:
                yield a, b


def wrong_step(
    program: Program,
    backend: Backend,
    given: Mapping[Node, Array],
    allocate: Callable[[Spec], Array] = aligned_empty,
) -> tuple[Step, Difference] | None:
    """Return the first step whose kernel differs from NumPy on the operands that NumPy computes.

    Each buffer has memory of its own here, so that no step overwrites what another one reads.
    """
    memory = {buffer: _memory(buffer, given, allocate) for buffer in program.buffers}
    for step in program.steps:
        backend.run_alone(step, memory)
        results = [view.array(memory[view.buffer]) for view in step.outputs]
        actual = dict(enumerate(y.copy() for y in results))
        run_step(step, NumpyKernel(step.node), memory)
        differences = _differences(dict(enumerate(results)), actual)
        if differences:
            operands = [view.array(memory[view.buffer]) for view in step.inputs]
            xs = tuple(input("x", x.shape, x.dtype) for x in operands)
            graph = Graph(xs, _written_out(step.node.op, xs))
            runs = [dict(enumerate(run)) for run in noisy(graph, operands)]
            for difference in _unexplained(differences, runs).values():
                return step, difference
    return None


def _written_out(op: Op, xs: Sequence[Node]) -> tuple[Node, ...]:
    """Return the results of a kernel's op as the ops that it was made of, each of which rounds."""
    if isinstance(op, Together):
        parts = op.groups(xs)
        return tuple(y for part, group in parts for y in _written_out(part, group))
    return op.expand(*xs) if isinstance(op, Fused) or op.composed else op.results(*xs)


def _memory(
    buffer: Buffer, given: Mapping[Node, Array], allocate: Callable[[Spec], Array]
) -> Array:
    """Return memory for a buffer, with the value that it has when a call begins."""
    memory = allocate(Spec((buffer.nbytes,), np.dtype(np.uint8)))
    node = buffer.node
    if node is not None:
        value = node.op.value if isinstance(node.op, Constant) else given.get(node)
        value = node.state.read() if isinstance(node, Parameter) else value
        memory[...] = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    return memory
