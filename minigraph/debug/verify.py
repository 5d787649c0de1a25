"""Functions that run beside level 0 at every call, as a negative `graph_opt_level` asks for.

Results of elementwise ops alone are compared bit for bit.  Where others differ by more than
`TOLERANCES`, level 0 runs a few times more on inputs and parameters that are off by some ulps: if
its results move as far as the difference, the graph amplifies rounding.  That costs a few calls.

Other differences are examined in parts, which takes hundreds of times as long: each pass in
float64, each kernel on the operands that it had, within the bound of `minigraph.debug.rounding`,
and the kernels one by one beside the call.  Either the call raises an error that names the pass or
the kernel that made the difference, and the user's line, or the difference is rounding.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigraph.cache import Entry
from minigraph.compiler.pipeline import Compilation, OptimizedGraph
from minigraph.debug.rounding import (
    FLOAT32,
    FLOAT64,
    TOLERANCES,
    bounded,
    distance,
    evaluate,
    limits,
    perturbed,
    widened,
)
from minigraph.distributed import World
from minigraph.errors import CompileError, GraphError
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
)
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.random import SEED, STEP
from minigraph.platform.signals import held
from minigraph.program import Backend, Buffer, Program, Step
from minigraph.runtime.calls import CallCounter
from minigraph.runtime.function import Execute, Function

SHARE = 0.1  # of a difference that a pass must account for in float64
AGAIN = 4  # times the rounding of an output that an earlier call had, and nothing is looked at
MARGIN = 8  # times the rounding that is seen in NumPy's results
PERTURBED_RUNS = 4  # of level 0, at most
REACH = 30  # times what these runs move an element: few of them may underestimate that
PAIRED = 1e-9  # of the largest element: two nodes that differ by more in float64 differ in meaning

# What options name a type that arrays may be rounded to.
ROUNDING = ("amp", "graph_opt.saved_activations", "precision", "distributed.compress")
EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-10}  # of these types

Values = Mapping[int, Array]  # of some outputs, by their position


class VerifiedFunction(Function):
    """A function that raises CompileError where it differs from level 0 by more than rounding.

    A call that raises leaves the parameters unchanged.
    """

    def __init__(
        self,
        compilation: Compilation,
        counter: CallCounter | None,
        optimized: OptimizedGraph,
        written: Function,
    ) -> None:
        """Take what a Function takes, and what it is compared with.

        optimized  what the passes of the compilation have made
        written    the function at level 0, which returns a list
        """
        super().__init__(compilation, counter)
        self._written = written
        self._updates = compilation.traced.updates
        self._world = compilation.context.world
        # The graph as written, then the graph after each pass, with the pass's name.
        self._stages = [("", optimized.written)]
        self._stages += [(record.name, graph) for graph, record in optimized.stages]
        if self._options["amp"] != "off":  # the first pass, which rounds more than the others
            self._stages = [("", self._stages[1][1]), *self._stages[2:]]
        # Fast math may replace level 0's NaN and infinity by any number.
        self._strict = not self._options["graph_opt.fast_math"]
        types = {self._options[name] for name in ROUNDING} & EPS.keys()
        self._eps = max((EPS[name] for name in types), default=0.0)
        self._least = max((TOLERANCES[name] for name in types), default=0.0)
        self._product_eps = EPS["tf32"] if "tf32" in types else 0.0
        exact = self._strict and types <= {"tf32"}
        self._bitwise = _elementwise_outputs(self._stages[0][1]) if exact else frozenset()
        self._explained: dict[int, float] = {}  # the largest rounding that was seen, by output
        self._title = f"graph_opt_level {self._options['graph_opt_level']} differs from level 0"

    def bind(self) -> None:
        super().bind()
        self._written.bind()

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
        wrong = self._differences(expected, actual)
        sizes = {at: float(distance(*each[:2]).max()) for at, each in wrong.items()}
        wrong = {at: wrong[at] for at in wrong if sizes[at] > AGAIN * self._explained.get(at, 0.0)}
        # What one process looks at more closely all do: it takes more calls, with collectives.
        if self._world.any(bool(wrong)) if self._world else wrong:
            self._restore(before)
            self.calls -= 1
            with contextlib.redirect_stdout(io.StringIO()):  # `ops.print` has printed
                left = wrong if self._world else self._not_amplified(values, before, wrong)
                examine = bool(left or self._world)
                fault = self._fault(values, execute, expected, actual, left) if examine else ""
            if fault:
                note = "one process alone is told which pass or kernel it is" * bool(self._world)
                raise CompileError(
                    f"{self._title}{' ' if self._world else ': '}{fault}\n"
                    f"  the parameters are unchanged{'; ' * bool(note)}{note}"
                )
            self._explained.update((at, sizes[at]) for at in wrong if np.isfinite(sizes[at]))
            with held():
                self._restore(after)
                self.calls += 1
        return results

    def _as_written(self, values: Sequence[Array]) -> dict[int, Array]:
        """Run level 0, which updates the parameters; return its results and their new values."""
        self._written.calls, self._written.seed = self.calls, self.seed
        results = map(_on_host, self._written(*values))
        return dict(enumerate([*results, *self._state()]))

    def _differences(self, expected: Values, actual: Values) -> dict[int, Difference]:
        """Return the outputs that differ by more than their tolerance, or in a bit."""
        found = {}
        for at, x in expected.items():
            y = actual[at]
            wrong = _other_bits(x, y) if at in self._bitwise else self._far(x, y)
            if wrong.any():
                found[at] = Difference(x, y, wrong)
        return found

    def _far(self, expected: Array, actual: Array) -> Array:
        """Return for each element whether it differs by more than the tolerance of its dtype."""
        gap = distance(expected, actual)
        if expected.dtype not in FLOATS:
            return gap > 0
        finite = np.isfinite(expected)
        largest = np.abs(expected).max(initial=0, where=finite)
        far = gap > self._tolerance(expected.dtype) * widened(largest)
        return far if self._strict else far & finite

    def _tolerance(self, dtype: DType) -> float:
        return max(TOLERANCES[dtype.name], self._least)

    def _not_amplified(
        self,
        values: Sequence[Array],
        before: Sequence[Array],
        wrong: Mapping[int, Difference],
    ) -> dict[int, Difference]:
        """Return the differences that perturbed runs of level 0 do not explain."""
        left = {at: np.array(wrong[at].wrong) for at in wrong if at not in self._bitwise}
        for seed in range(PERTURBED_RUNS if left else 0):
            self._restore([perturbed(x, seed) for x in before])
            with contextlib.suppress(GraphError):  # of an index that is computed from floats
                results = self._as_written([perturbed(_on_host(x), seed) for x in values])
                for at, mask in left.items():
                    x, y, z = (v[mask] for v in (*wrong[at][:2], results[at]))
                    mask[mask] = distance(x, y) > REACH * distance(x, z)
                left = {at: mask for at, mask in left.items() if mask.any()}
            if not left:
                break
        self._restore(before)
        return {at: wrong[at] for at in wrong if at in left or at in self._bitwise}

    # ------------------------------------------------------------ what made a difference

    def _fault(
        self,
        values: list[Array],
        execute: Execute,
        expected: Values,
        actual: Values,
        wrong: Mapping[int, Difference],
    ) -> str:
        """Describe what made the differences; "" if rounding did."""
        given = {
            **dict(zip(self._inputs, map(_on_host, values), strict=True)),
            SEED: self._own_seed(),
            STEP: np.array(self.calls, np.uint64),
        }
        args = [*given.values()]
        if self._world:
            return self._wrong_process(self._world, args, wrong)
        bits = {at: each for at, each in wrong.items() if at in self._bitwise}
        others = {at: each for at, each in wrong.items() if at not in bits}
        fault = _wrong_bits(self._stages, bits, args)
        with contextlib.suppress(GraphError):  # of an index or a check, which float64 may decide
            fault = fault or _wrong_pass(self._stages, others, args, self._strict)
        return (
            fault
            or self._wrong_kernel(self, given, actual, lambda: self._again(values, execute))
            or self._wrong_kernel(self._written, given, expected, lambda: self._as_written(values))
            or (self._output(bits, ROUNDED) if bits else "")
        )

    def _again(self, values: list[Array], execute: Execute) -> dict[int, Array]:
        results = super()._run(values, execute)
        return dict(enumerate([*map(_on_host, results), *self._state()]))

    def _wrong_kernel(
        self,
        function: Function,
        given: Mapping[Node, Array],
        results: Values,
        again: Callable[[], Values],
    ) -> str:
        """Describe the first kernel of a function that is wrong, or that one alone is not; or "".

        results  of the call, which kernels that run one by one have to give again
        again    calls the function once more
        """
        program, backend = function._program, function._backend
        level = abs(function._options["graph_opt_level"])
        checked = check_steps(program, backend, given, self._product_eps, self._strict)
        if checked.wrong:
            step, difference = checked.wrong
            return (
                f"at level {level} the kernel {step.kernel.name!r} on {backend.device} for "
                f"{step.node!r} {step.node.source} differs from NumPy\n"
                + difference.statistics("NumPy", "kernel")
            )
        apart = self._differences(dict(enumerate(checked.results)), results)
        if not apart:
            return ""
        state, calls = self._state(), self.calls
        repeated = again()
        self._restore(state)
        self.calls = calls
        # Where sums are atomic, each run gives other bits.
        if any(_other_bits(results[at], repeated[at]).any() for at in apart):
            return ""
        return self._output(apart, TOGETHER, ("one by one", "together"))

    def _output(
        self,
        wrong: Mapping[int, Difference],
        why: str = "",
        names: tuple[str, str] = ("level 0", "here"),
    ) -> str:
        """Describe the first output that is wrong."""
        at, difference = next(iter(wrong.items()))
        graph = self._stages[0][1]
        results = len(graph.outputs) - len(self._updates)
        what = f"output {at}" if at < results else f"parameter {self._updates[at - results].name}"
        node = graph.outputs[at]
        about = f"{what}, {node.op.name} {node.spec} {node.source}{why}\n"
        return about + difference.statistics(*names)

    def _wrong_process(
        self, world: World, args: Sequence[Array], wrong: Mapping[int, Difference]
    ) -> str:
        """Describe an output that rounding does not explain in one of several processes; or "".

        Level 0 and this function have to be as near to float64 as NumPy is in float32, by a margin.
        To look for the pass and the kernel, each process would need other collectives.
        """
        graph = self._stages[0][1]
        exact, single = (evaluate(graph, args, dtype) for dtype in (FLOAT64, FLOAT32))
        left: dict[int, Difference] = {}
        for at, (x, y, mask) in wrong.items():
            if at not in self._bitwise and x.dtype in FLOATS:
                noise = _rounding_of(x.dtype, exact[at], single[at], self._eps)
                largest = np.abs(exact[at]).max(initial=0, where=np.isfinite(exact[at]))
                limit = self._tolerance(x.dtype) * largest + MARGIN * noise
                near = (distance(exact[at], widened(v)) <= limit for v in (x, y))
                mask = mask & ~np.logical_and(*near)
            if mask.any():
                left[at] = Difference(x, y, mask)
        for rank, fault in enumerate(world.gather(self._output(left) if left else "")):
            if fault:
                return f"in process {rank}: {fault}"
        return ""


TOGETHER = (
    "; every pass and every single kernel agrees with NumPy, so the fault is in how the device "
    "runs them together"
)

ROUNDED = (
    "; no pass changed a bit, and every kernel agrees with NumPy to rounding, so the fault is "
    "in how kernels round or in how the device runs them together"
)


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
        x, y = (widened(v).astype(np.float64) for v in (self.expected, self.actual))
        with np.errstate(all="ignore"):
            gap = np.abs(x - y)
            distances = {"furthest apart": gap, "relative to the size": gap / np.abs(x)}
        for what, each in distances.items():
            far = np.where(self.wrong, np.where(np.isnan(each), np.inf, each), -1)
            at = np.unravel_index(int(far.argmax()), far.shape)
            pair = f"{self.expected[at]!s} and {self.actual[at]!s}"
            lines.append(f"  {what}: by {far[at]:.3g} at {[*map(int, at)]}: {pair}")
        return "\n".join(lines)


def _summary(x: Array) -> str:
    """Return an array's smallest, largest and mean number, and its counts of NaN and infinity."""
    wide = widened(x).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    numbers = "no finite numbers"
    if finite.size:
        least, most, mean = finite.min(), finite.max(), finite.mean()
        numbers = f"min {least:.6g}, max {most:.6g}, mean {mean:.6g}"
    spec, nans, infinite = Spec(x.shape, x.dtype), np.isnan(wide).sum(), np.isinf(wide).sum()
    return f"{spec}: {numbers}, {nans} NaN, {infinite} infinite"


def _other_bits(x: Array, y: Array) -> Array:
    """Return for each element whether a bit differs; denormals are zero, and all NaN are equal."""
    if x.dtype not in FLOATS:
        return np.asarray(x != y)
    tiny = float(limits(x.dtype).tiny)
    a, b = (np.where(np.abs(v) < tiny, np.copysign(0, v), v) for v in (widened(x), widened(y)))
    alike = (a == b) & (np.signbit(a) == np.signbit(b))
    return ~(alike | (np.isnan(a) & np.isnan(b)))


def _rounding_of(dtype: DType, exact: Array, single: Array, eps: float = 0.0) -> float:
    """Return how far a dtype rounds an array, as float32 is from float64."""
    gaps = distance(exact, widened(single))
    ratio = (
        max(float(limits(dtype).eps), eps) / float(limits(FLOAT32).eps) if dtype in FLOATS else 1
    )
    return float(ratio * gaps.max(initial=0, where=np.isfinite(gaps)))


def _elementwise_outputs(graph: Graph) -> frozenset[int]:
    """Return the positions of outputs that elementwise ops, and moves of elements, alone make."""
    alone: dict[Node, bool] = {}
    for node in graph:
        own = not node.inputs or isinstance(node.op, Elementwise) or node.op.is_view
        alone[node] = own and all(alone[x] for x in node.inputs)
    return frozenset(at for at, y in enumerate(graph.outputs) if alone[y])


def _on_host(array: Array) -> Array:
    """Return a NumPy array; CuPy arrays have a method for that."""
    return array if isinstance(array, np.ndarray) else array.get()


# ---------------------------------------------------------------- passes

Stages = Sequence[tuple[str, Graph]]


def _wrong_bits(stages: Stages, wrong: Mapping[int, Difference], args: Sequence[Array]) -> str:
    """Describe the first pass that changed a bit of these outputs; "" if none did."""
    for (_, before), (name, after) in itertools.pairwise(stages):
        graphs = _part(before, wrong), _part(after, wrong)
        if found := _replaced(*graphs, args, None, _other_bits):
            return f"{_rewrite(name, *found)}, in other bits\n{_values(found)}"
    return ""


def _wrong_pass(
    stages: Stages, wrong: Mapping[int, Difference], args: Sequence[Array], strict: bool
) -> str:
    """Describe the first pass that accounts for one of the differences in float64; or ""."""
    if not wrong:
        return ""

    def computed(graph: Graph, dtype: DType = FLOAT64) -> dict[int, Array]:
        return dict(zip(wrong, evaluate(_part(graph, wrong), args, dtype), strict=True))

    written = computed(stages[0][1])
    single = computed(stages[0][1], FLOAT32)
    noise = {
        at: MARGIN * _rounding_of(stages[0][1].outputs[at].dtype, written[at], single[at])
        for at in wrong
    }

    def accounts(graph: Graph) -> Iterator[tuple[int, Array, Array]]:
        """Yield the outputs of which the graph means something else, and at which elements."""
        for at, y in computed(graph).items():
            gap, (expected, actual, mask) = distance(written[at], y), wrong[at]
            apart = distance(expected, actual)
            share = mask & (gap >= SHARE * apart) & (gap > noise[at])
            share &= np.isfinite(gap) | np.isinf(apart)  # float64 may overflow later
            if not strict:
                share &= np.isfinite(written[at])
            if share.any():
                yield at, y, share

    if next(accounts(stages[-1][1]), None) is None:
        return ""
    for (_, before), (name, after) in itertools.pairwise(stages):
        for at, y, share in accounts(after):
            old, new = before.outputs[at], after.outputs[at]
            graphs = _part(before, [at]), _part(after, [at])
            found = _replaced(*graphs, args, FLOAT64, lambda x, y: _other_meaning(x, y, strict))
            found = found or (old, new, _difference(old, written[at], y, share))
            return f"{_rewrite(name, *found)}\n{_values(found)}"
    return ""


def _rewrite(name: str, old: Node, new: Node, difference: Difference) -> str:
    return f"pass {name} made {new.op} of {old.op}, {old.spec} {old.source}"


def _values(found: tuple[Node, Node, Difference]) -> str:
    return found[2].statistics("before", "after")


def _difference(node: Node, expected: Array, actual: Array, wrong: Array) -> Difference:
    with np.errstate(over="ignore"):
        return Difference(expected.astype(node.dtype), actual.astype(node.dtype), wrong)


def _other_meaning(x: Array, y: Array, strict: bool) -> Array:
    """Return for each element of values in float64 whether passes cannot have rounded it so."""
    finite = np.isfinite(x) if x.dtype in FLOATS else np.ones(x.shape, bool)
    far = distance(x, y) > PAIRED * np.abs(x).max(initial=0, where=finite)
    return far if strict else far & finite


def _replaced(
    before: Graph,
    after: Graph,
    args: Sequence[Array],
    dtype: DType | None,
    differ: Callable[[Array, Array], Array],
) -> tuple[Node, Node, Difference] | None:
    """Return the first node that a pass replaced by one of another value, and its replacement."""
    pairs = [*_pairs(before, after)]
    if not pairs:
        return None
    values = (
        evaluate(Graph(before.inputs, nodes), args, dtype) for nodes in zip(*pairs, strict=True)
    )
    for (old, new), x, y in zip(pairs, *values, strict=True):
        wrong = differ(x, y)
        if wrong.any():
            return old, new, _difference(old, x, y, wrong)
    return None


def _part(graph: Graph, outputs: Collection[int]) -> Graph:
    return Graph(graph.inputs, tuple(graph.outputs[at] for at in outputs))


def _pairs(before: Graph, after: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield the nodes that a pass replaced, each with its replacement, in order of computation.

    A new node has the order of the node that it replaces.  Of several new nodes with one order, the
    last replaces it, and the others are its operands.  Operands at the same position are a pair
    too: a pass may have replaced one by a node that was there before.
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


# ---------------------------------------------------------------- kernels


class Checked(NamedTuple):
    """The first step whose kernel is wrong, if one is, and else what all steps together give."""

    wrong: tuple[Step, Difference] | None
    results: Sequence[Array] = ()


def check_steps(
    program: Program,
    backend: Backend,
    given: Mapping[Node, Array],
    product_eps: float = 0.0,
    strict: bool = True,
    allocate: Callable[[Spec], Array] = aligned_empty,
) -> Checked:
    """Run the steps one by one, and compare each with float64 on what the steps before it made.

    given  the values of inputs

    Each buffer has memory of its own, so that no step overwrites what another one reads.
    """
    memory = {buffer: _memory(buffer, given, allocate) for buffer in program.buffers}
    values: dict[Node, Any] = {
        **{p: p.state.read().copy() for p in program.graph.parameters},
        **given,
    }
    for step in program.steps:
        backend.run_alone(step, memory)
        results = [view.array(memory[view.buffer]).copy() for view in step.outputs]
        operands = [_value(x, values) for x in step.node.inputs]
        for result, exact in zip(results, bounded(step.node, operands, product_eps), strict=True):
            wrong = exact.excludes(result)
            wrong = wrong if strict else wrong & np.isfinite(exact.value)
            if wrong.any():
                with np.errstate(over="ignore"):
                    expected = exact.value.astype(result.dtype)
                return Checked((step, Difference(expected, result, wrong)))
        values[step.node] = tuple(results) if step.node.is_bundle else results[0]
    return Checked(None, [_value(y, values) for y in program.graph.outputs])


def _value(node: Node, values: dict[Node, Any]) -> Any:
    """Return the value of a node; views of what steps made have no step of their own."""
    stack = [node]
    while stack:
        missing = [x for x in stack[-1].inputs if x not in values]
        if stack[-1] in values:
            stack.pop()
        elif missing:
            stack += missing
        else:
            values[stack[-1]] = compute(stack[-1], *(values[x] for x in stack[-1].inputs))
    return values[node]


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
