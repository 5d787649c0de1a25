"""Functions that are compared with level 0 in every call: negative `graph_opt_level`.

Results of elementwise ops alone are compared bit for bit.  If other results differ by more than
`TOLERANCES`, level 0 runs a few more times with inputs and parameters perturbed by some ulps: if
its results change as much, the graph amplifies rounding.

For other differences `minigraph.debug.fault_localization` searches for the cause, which takes
hundreds of times as long.  The call then raises an error that names the pass or the kernel and the
user's line, unless the search finds that the difference is rounding.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from minigraph.cache import Entry
from minigraph.compiler.pipeline import Compilation, OptimizedGraph
from minigraph.debug.fault_localization import (
    Difference,
    Differences,
    check_steps,
    differs_in_bits,
    find_pass_changing_bits,
    find_pass_changing_meaning,
)
from minigraph.debug.rounding import PERTURBATION_FACTOR, TOLERANCES, distance, largest, perturbed
from minigraph.distributed import World
from minigraph.errors import CompileError, GraphError
from minigraph.graph import FLOATS, Array, Graph, Node
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.random import SEED, STEP
from minigraph.platform.signals import signals_deferred
from minigraph.program import on_host
from minigraph.runtime.function import CallCounter, Execute, Function

EXPLAINED_FACTOR = 4  # times a difference that rounding explained: smaller ones are not examined
PERTURBED_RUNS = 4  # runs of level 0 with perturbed inputs

# Options whose values name dtypes to which arrays may be rounded.
DTYPE_OPTIONS = ("amp", "precision", "distributed.compress")
NARROW_DTYPES = ("bfloat16", "float16", "tf32")

Values = Mapping[int, Array]  # of some outputs, by their index


class VerifiedFunction(Function):
    """A function that raises CompileError if it differs from level 0 by more than rounding.

    A call that raises leaves the parameters unchanged.
    """

    def __init__(
        self,
        compilation: Compilation,
        counter: CallCounter | None,
        optimized: OptimizedGraph,
        reference: Function,
    ) -> None:
        """Wrap a compilation, as a Function does.

        optimized  the result of the compilation's passes
        reference  the function at level 0, which returns a list
        """
        super().__init__(compilation, counter)
        self._reference = reference
        self._updates = compilation.traced.updates
        self._world = compilation.context.world
        # The graph as written, then the graph after each pass, with the pass's name.
        self._stages = [("", optimized.original)]
        self._stages += [(record.name, graph) for graph, record in optimized.stages]
        if self.options["amp"] != "off":  # the first pass, which rounds more than the others
            self._stages = [("", self._stages[1][1]), *self._stages[2:]]
        # Fast math may replace level 0's NaN and infinity by any number.
        self._strict = not self.options["graph_opt.fast_math"]
        types = {self.options[name] for name in DTYPE_OPTIONS} & set(NARROW_DTYPES)
        self._min_tolerance = max((TOLERANCES[name] for name in types), default=0.0)
        self._kernel_share = TOLERANCES["tf32"] if "tf32" in types else 0.0
        exact = self._strict and types <= {"tf32"}
        self._bitwise = _elementwise_outputs(self._stages[0][1]) if exact else frozenset()
        self._explained: dict[int, float] = {}  # the largest rounding that was seen, by output
        self._title = f"graph_opt_level {self.options['graph_opt_level']} differs from level 0"

    def bind(self) -> None:
        super().bind()
        self._reference.bind()

    def cache_entries(self) -> list[Entry]:
        return [*super().cache_entries(), *self._reference.cache_entries()]

    def _run(self, values: Sequence[Array], execute: Execute) -> list[Array]:
        before, calls = self._state(), self.calls
        try:
            return self._run_both(values, execute, before)
        except BaseException:
            with signals_deferred():
                self._restore(before)
                self.calls = calls
            raise

    def _run_both(
        self, values: Sequence[Array], execute: Execute, before: Sequence[Array]
    ) -> list[Array]:
        """Run level 0 and this function on the same state; return the results if they agree."""
        expected = self._run_reference(values)
        self._restore(before)
        try:
            results = super()._run(values, execute)
        except GraphError as error:
            raise CompileError(f"{self._title}, which raises no error: {error}") from None
        actual = self._outputs(results)
        wrong = self._differences(expected, actual)
        sizes = {i: float(distance(*each[:2]).max()) for i, each in wrong.items()}
        wrong = {
            i: wrong[i] for i in wrong if sizes[i] > EXPLAINED_FACTOR * self._explained.get(i, 0.0)
        }
        # If one process examines its results, all do, as further runs call collectives.
        if self._world.any(bool(wrong)) if self._world else wrong:
            # `ops.print` must not print again.
            with self._state_restored(), contextlib.redirect_stdout(io.StringIO()):
                self._restore(before)
                self.calls -= 1
                unexplained = self._unexplained(values, before, wrong)
                fault = ""
                if self._world:
                    fault = self._wrong_process(self._world, unexplained)
                elif unexplained:
                    fault = self._fault(values, execute, expected, actual, unexplained)
            if fault:
                note = "; run a single process to find the pass or kernel" if self._world else ""
                raise CompileError(
                    f"{self._title}{' ' if self._world else ': '}{fault}\n"
                    f"  the parameters are unchanged{note}"
                )
            self._explained.update((i, sizes[i]) for i in wrong if np.isfinite(sizes[i]))
        return results

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        """Restore the parameters and the number of calls after the block."""
        state, calls = self._state(), self.calls
        try:
            yield
        finally:
            with signals_deferred():
                self._restore(state)
                self.calls = calls

    def _run_reference(self, values: Sequence[Array]) -> dict[int, Array]:
        """Run level 0, which updates the parameters; return its results and their new values."""
        self._reference.calls, self._reference.seed = self.calls, self.seed
        return self._outputs(self._reference(*values))

    def _outputs(self, results: Sequence[Array]) -> dict[int, Array]:
        """Return the results, and then the current values of the updated parameters, by index."""
        return dict(enumerate([*map(on_host, results), *self._state()]))

    def _differences(self, expected: Values, actual: Values) -> dict[int, Difference]:
        differences = {}
        for i, x in expected.items():
            y = actual[i]
            wrong = differs_in_bits(x, y) if i in self._bitwise else self._exceeds_tolerance(x, y)
            if wrong.any():
                differences[i] = Difference(x, y, wrong)
        return differences

    def _exceeds_tolerance(self, expected: Array, actual: Array) -> Array:
        """Return for each element whether it differs by more than the tolerance of its dtype."""
        gap = distance(expected, actual)
        if expected.dtype not in FLOATS:
            return gap > 0
        tolerance = max(TOLERANCES[expected.dtype.name], self._min_tolerance)
        exceeds = gap > tolerance * largest(expected)
        return exceeds if self._strict else exceeds & np.isfinite(expected)

    def _unexplained(
        self, values: Sequence[Array], before: Sequence[Array], wrong: Differences
    ) -> dict[int, Difference]:
        """Return the differences that perturbed runs of level 0 do not explain.

        Processes, which run level 0 together, do all the runs.
        """
        masks = {i: np.array(wrong[i].wrong) for i in wrong if i not in self._bitwise}
        for seed in range(PERTURBED_RUNS if masks or self._world else 0):
            self._restore([perturbed(x, seed) for x in before])
            with contextlib.suppress(GraphError):  # an index that is computed from floats may fail
                results = self._run_reference([perturbed(on_host(x), seed) for x in values])
                for i, mask in masks.items():
                    x, y, z = (array[mask] for array in (*wrong[i][:2], results[i]))
                    mask[mask] = distance(x, y) > PERTURBATION_FACTOR * distance(x, z)
                masks = {i: mask for i, mask in masks.items() if mask.any()}
            if not (masks or self._world):
                break
        self._restore(before)
        return {i: wrong[i] for i in wrong if i in masks or i in self._bitwise}

    def _fault(
        self,
        values: Sequence[Array],
        execute: Execute,
        expected: Values,
        actual: Values,
        wrong: Differences,
    ) -> str:
        """Describe the cause of the differences; "" for rounding."""
        inputs = dict(zip(self._inputs, map(on_host, values), strict=True))
        inputs |= {SEED: self._own_seed(), STEP: np.array(self.calls, np.uint64)}
        args = [*inputs.values()]
        bits = {i: each for i, each in wrong.items() if i in self._bitwise}
        others = {i: each for i, each in wrong.items() if i not in bits}
        fault = find_pass_changing_bits(self._stages, bits, args)
        with contextlib.suppress(GraphError):  # in float64 an index or a check may fail
            fault = fault or find_pass_changing_meaning(self._stages, others, args, self._strict)
        run, run_reference = super()._run, partial(self._run_reference, values)
        return (
            fault
            or self._wrong_kernel(self, inputs, actual, lambda: self._outputs(run(values, execute)))
            or self._wrong_kernel(self._reference, inputs, expected, run_reference)
            or (self._output(bits, FAULT_OF_ROUNDING) if bits else "")
        )

    def _wrong_kernel(
        self,
        function: Function,
        inputs: Mapping[Node, Array],
        results: Values,
        run_again: Callable[[], Values],
    ) -> str:
        """Describe the first wrong kernel of a function, or a fault of all kernels together; or "".

        results    of the call, which the kernels should also give one by one
        run_again  calls the function once more
        """
        program, backend = function._program, function._backend
        level = abs(function.options["graph_opt_level"])
        checked = check_steps(program, backend, inputs, self._kernel_share, self._strict)
        if isinstance(checked, tuple):
            step, difference = checked
            return (
                f"at level {level} the kernel {step.kernel.name!r} on {backend.device} for "
                f"{step.node!r} {step.node.source} differs from NumPy\n"
                + difference.statistics("NumPy", "kernel")
            )
        differences = self._differences(dict(enumerate(checked)), results)
        if not differences:
            return ""
        with self._state_restored():
            repeated = run_again()
        # With atomic additions each run gives other bits.
        if any(differs_in_bits(results[i], repeated[i]).any() for i in differences):
            return ""
        return self._output(differences, FAULT_OF_COMBINATION, ("one by one", "together"))

    def _output(
        self, wrong: Differences, suffix: str = "", names: tuple[str, str] = ("level 0", "here")
    ) -> str:
        i, difference = next(iter(wrong.items()))
        graph = self._stages[0][1]
        results = len(graph.outputs) - len(self._updates)
        what = f"output {i}" if i < results else f"parameter {self._updates[i - results].name}"
        node = graph.outputs[i]
        about = f"{what}, {node.op.name} {node.spec} {node.source}{suffix}\n"
        return about + difference.statistics(*names)

    def _wrong_process(self, world: World, wrong: Differences) -> str:
        """Describe an output that is wrong in one of several processes; "" if none is wrong.

        The search for the pass and the kernel would need collectives that other processes do not
        call.
        """
        for rank, fault in enumerate(world.gather(self._output(wrong) if wrong else "")):
            if fault:
                return f"in process {rank}: {fault}"
        return ""


FAULT_OF_COMBINATION = (
    "; every pass and every single kernel agrees with NumPy, so the fault is in how the device "
    "runs the kernels together"
)

FAULT_OF_ROUNDING = (
    "; no pass changed a bit, and every kernel agrees with NumPy up to rounding, so the fault is "
    "in how kernels round or in how the device runs them together"
)


def _elementwise_outputs(graph: Graph) -> frozenset[int]:
    """Return the indices of outputs that only elementwise ops and moves of elements compute."""
    elementwise: dict[Node, bool] = {}
    for node in graph:
        is_elementwise = not node.inputs or isinstance(node.op, Elementwise) or node.op.is_view
        elementwise[node] = is_elementwise and all(elementwise[x] for x in node.inputs)
    return frozenset(i for i, y in enumerate(graph.outputs) if elementwise[y])
