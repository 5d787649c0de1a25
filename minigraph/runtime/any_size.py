"""Functions whose inputs have sizes that each call gives: one function for each size met."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigraph.arguments import FilePath, checked
from minigraph.cache import Entry
from minigraph.compiler.agreement import agree_on_sizes
from minigraph.compiler.pipeline import Compilation, CompileContext, timed
from minigraph.compiler.trace import TracedGraph
from minigraph.errors import GraphError, ShapeError, warn_once
from minigraph.graph import here
from minigraph.inspect.profile import Profile
from minigraph.inspect.report import preformatted
from minigraph.options import MEASURING
from minigraph.platform import forks
from minigraph.runtime.function import PROFILED, CallCounter, CompiledFunction, Function, Shown
from minigraph.runtime.inputs import CallSizes

MEMORY = 2 << 30  # bytes that functions may take that are kept, unless the user says how many are
SHORT = 5.0  # seconds: the calls of a size take at least so long before it is measured


@dataclass
class SizedFunction:
    """The function for one size.

    predicted  whether its algorithms were left to the model of cost
    seconds    that its calls have taken so far
    """

    function: Function
    compilation: Compilation
    predicted: bool
    seconds: float = 0.0


class AnySizeFunction(CompiledFunction):
    """What `comp_graph().compile` returns where inputs have sizes such as None: see `Function`.

    The first call of a size compiles a function for it.  Algorithms are measured for the first
    size.  Another size begins with those that the model of cost expects to be the fastest, and is
    measured, too, once its calls have taken as long as measuring the first one took.  The
    functions of the latest sizes are kept, as many as the option `sizes.kept` says.  Calls of all
    sizes are counted together.
    """

    def __init__(
        self,
        traced: TracedGraph,
        context: CompileContext,
        make: Callable[[Compilation, CallCounter], Function],
    ) -> None:
        """Take the graph, with its symbolic sizes, and what makes a function of a compilation."""
        self.traced, self.options = traced, context.options
        self._context = context
        self._make = make
        self._sizes = CallSizes(traced.inputs, context.backend)
        self._counter = CallCounter(context.options["seed"])
        self._capacity: int | None = context.options["sizes.kept"]
        self._room = self._capacity or sys.maxsize  # functions that are kept at most
        self._by_size: dict[tuple[int, ...], SizedFunction] = {}  # the latest size last
        self._compiled_sizes: set[tuple[int, ...]] = set()
        self._warned = False
        self._measuring = SHORT  # seconds of calls from which on a size is measured
        self._choosing = forks.reentrant_lock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, as a `Function` does.

        Raises ShapeError for sizes that differ where they have to be equal, or that the graph
        cannot have.
        """
        values = self._sizes.values(args, kwargs)
        chosen = self._choose(values)
        start = time.perf_counter()
        try:
            results = chosen.function(*values)
        except ShapeError:
            self._sizes.check_shapes(values)
            raise
        chosen.seconds += time.perf_counter() - start
        return results

    def profile(self, /, *args: Any, calls: Any = PROFILED, **kwargs: Any) -> Profile:
        """Run some calls of a size, as `Function.profile` does."""
        values = self._sizes.values(args, kwargs)
        return self._choose(values).function.profile(*values, calls=calls)

    def bind(self) -> None:
        with self._choosing:
            for function in self._kept:
                function.bind()

    def __repr__(self) -> str:
        names = ", ".join(f"{x.name}: {x.spec}" for x in self.traced.inputs)
        return f"<function of ({names}) of any size, {len(self._by_size)} kept>"

    def _repr_html_(self) -> str:
        return preformatted(str(self.report()) if self._by_size else repr(self))

    def _choose(self, values: Sequence[Any]) -> SizedFunction:
        """Return the function for the sizes of `values`, compiled if it is not kept."""
        sizes = self._sizes.of(values)
        with self._choosing:
            chosen = self._by_size.get(sizes)
            if chosen is None:
                self._sizes.check_shapes(values)
            due = bool(chosen and chosen.predicted and chosen.seconds > self._measuring)
            room = None
            if self._context.world:
                timeout = self.options["distributed.timeout"]
                due, room = agree_on_sizes(
                    self._context.world, self._sizes.names, sizes, due, self._room, timeout
                )
            known = chosen
            if chosen is None or due:
                chosen = self._compile(sizes, is_new=chosen is None)
            self._by_size.pop(sizes, None)
            self._by_size[sizes] = chosen
            if chosen is not known:
                self._room = self._capacity or self._fitting()
            while len(self._by_size) > (room or self._room):
                del self._by_size[next(iter(self._by_size))]
            return chosen

    def _fitting(self) -> int:
        """Return how many functions, of the latest sizes, fit into the memory for them."""
        largest: dict[int, int] = {}  # by owner
        total = 0
        for count, each in enumerate(reversed(self._by_size.values())):
            for owner, nbytes in each.compilation.bytes_by_owner.items():
                total += max(nbytes - largest.get(owner, 0), 0)
                largest[owner] = max(nbytes, largest.get(owner, 0))
            if total > MEMORY and count:
                return count
        return sys.maxsize

    def _compile(self, sizes: tuple[int, ...], is_new: bool) -> SizedFunction:
        by_name = dict(zip(self._sizes.names, sizes, strict=True))
        if is_new and sizes in self._compiled_sizes and not self._warned:
            self._warned = True
            listed = ", ".join(f"{name} {n}" for name, n in by_name.items())
            warn_once(
                f"a function is compiled for the second time for the size {listed}: it keeps those "
                f"of {len(self._by_size)} sizes, and the option sizes.kept lets it keep more"
            )
        measured = any(not each.predicted for each in self._by_size.values())
        tunes = self.options["autotune"] in MEASURING
        predicts = is_new and measured and tunes
        seconds: dict[str, float] = {}
        with timed(seconds, "build"):
            traced = self.traced.with_sizes(by_name)
        context = replace(self._context, predicts=predicts)
        compilation = Compilation(traced, context, seconds, self._arenas)
        function = self._make(compilation, self._counter)
        self._compiled_sizes.add(sizes)
        self._measuring = max(self._measuring, compilation.session.spent)
        return SizedFunction(function, compilation, predicts)

    def _arenas(self) -> list[Any]:
        return [each.compilation.executor.arena for each in self._by_size.values()]

    @property
    def _kept(self) -> list[Function]:
        return [each.function for each in self._by_size.values()]

    def _shown(self) -> Shown:
        return self._of_a_size()[-1]._shown()

    def _of_a_size(self) -> list[Function]:
        """Return the functions that are kept; GraphError before the first call."""
        if not self._by_size:
            raise GraphError(
                f"the function has no sizes yet, so there is nothing to tell; call it {here()}"
            )
        return self._kept

    @checked
    def save_cache(self, path: FilePath, type: str = "all") -> None:
        """Write what was measured and compiled for all sizes, as `Function.save_cache` does.

        Raises GraphError before the first call, which gives a size.
        """
        for function in self._of_a_size():
            function.save_cache(path, type)

    def cache_entries(self) -> list[Entry]:
        """Return all that was measured and compiled for the sizes that are kept."""
        return [entry for function in self._kept for entry in function.cache_entries()]
