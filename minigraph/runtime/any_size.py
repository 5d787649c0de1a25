"""Any-size functions: a function for each combination of sizes, compiled at its first call."""

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
from minigraph.runtime.function import (
    PROFILED_CALLS,
    CallCounter,
    CompiledFunction,
    Described,
    Function,
)
from minigraph.runtime.inputs import CallSizes

MEMORY_LIMIT = 2 << 30  # bytes of all kept functions, unless the option sizes.kept limits them
MIN_TUNING_DELAY = 5.0  # seconds of calls before the algorithms of a size are measured


@dataclass
class SizedFunction:
    """The function for one size.

    predicted  whether the cost model chose its algorithms
    seconds    seconds of its calls so far
    """

    function: Function
    compilation: Compilation
    predicted: bool
    seconds: float = 0.0


class AnySizeFunction(CompiledFunction):
    """The result of `comp_graph().compile` for inputs with sizes such as None; see `Function`.

    The first call with a size compiles a function for it.  The first size is tuned.  Each other
    size uses the cost model's algorithms until its calls have taken as long as tuning the first
    size; then it is tuned.  The option `sizes.kept` limits the number of kept functions; the least
    recently used function is dropped first.  `calls` counts the calls of all sizes.
    """

    def __init__(
        self,
        traced: TracedGraph,
        context: CompileContext,
        make: Callable[[Compilation, CallCounter], Function],
    ) -> None:
        """Keep the symbolic graph; `make` runs a compilation and returns its function."""
        self.traced, self.options = traced, context.options
        self._context = context
        self._make = make
        self._sizes = CallSizes(traced.inputs, context.backend)
        self._counter = CallCounter(context.options["seed"])
        self._capacity: int | None = context.options["sizes.kept"]
        self._capacity_now = self._capacity or sys.maxsize  # functions that are kept at most
        self._by_size: dict[tuple[int, ...], SizedFunction] = {}  # the latest size last
        self._compiled_sizes: set[tuple[int, ...]] = set()
        self._warned = False
        self._tuning_delay = MIN_TUNING_DELAY  # seconds of calls after which a size is measured
        self._choice_lock = forks.reentrant_lock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, as a `Function` does.

        Raises ShapeError for sizes that disagree or that the graph does not support.
        """
        values = self._sizes.values(args, kwargs)
        sized = self._choose(values)
        start = time.perf_counter()
        try:
            results = sized.function(*values)
        except ShapeError:
            self._sizes.check_shapes(values)
            raise
        sized.seconds += time.perf_counter() - start
        return results

    def profile(self, /, *args: Any, calls: Any = PROFILED_CALLS, **kwargs: Any) -> Profile:
        """Profile the calls of a size, as `Function.profile` does."""
        values = self._sizes.values(args, kwargs)
        return self._choose(values).function.profile(*values, calls=calls)

    def bind(self) -> None:
        with self._choice_lock:
            for function in self._kept_functions:
                function.bind()

    def __repr__(self) -> str:
        names = ", ".join(f"{x.name}: {x.spec}" for x in self.traced.inputs)
        return f"<function of ({names}) of any size, {len(self._by_size)} kept>"

    def _repr_html_(self) -> str:
        return preformatted(str(self.report()) if self._by_size else repr(self))

    def _choose(self, values: Sequence[Any]) -> SizedFunction:
        """Return the function for the sizes of `values`, compiled if it is not kept."""
        sizes = self._sizes.of(values)
        with self._choice_lock:
            sized = self._by_size.get(sizes)
            if sized is None:
                self._sizes.check_shapes(values)
            tune_now = bool(sized and sized.predicted and sized.seconds > self._tuning_delay)
            capacity = None
            if self._context.world:
                timeout = self.options["distributed.timeout"]
                tune_now, capacity = agree_on_sizes(
                    self._context.world,
                    self._sizes.names,
                    sizes,
                    tune_now,
                    self._capacity_now,
                    timeout,
                )
            previous = sized
            if sized is None or tune_now:
                sized = self._compile(sizes, is_new=sized is None)
            self._by_size.pop(sizes, None)
            self._by_size[sizes] = sized
            if sized is not previous:
                self._capacity_now = self._capacity or self._fitting_count()
            while len(self._by_size) > (capacity or self._capacity_now):
                del self._by_size[next(iter(self._by_size))]
            return sized

    def _fitting_count(self) -> int:
        """Return the number of latest functions that fit into MEMORY_LIMIT together."""
        bytes_by_owner: dict[int, int] = {}
        total = 0
        for count, sized in enumerate(reversed(self._by_size.values())):
            for owner, nbytes in sized.compilation.bytes_by_owner.items():
                total += max(nbytes - bytes_by_owner.get(owner, 0), 0)
                bytes_by_owner[owner] = max(nbytes, bytes_by_owner.get(owner, 0))
            if total > MEMORY_LIMIT and count:
                return count
        return sys.maxsize

    def _compile(self, sizes: tuple[int, ...], is_new: bool) -> SizedFunction:
        by_name = dict(zip(self._sizes.names, sizes, strict=True))
        if is_new and sizes in self._compiled_sizes and not self._warned:
            self._warned = True
            listed = ", ".join(f"{name} {n}" for name, n in by_name.items())
            warn_once(
                f"a function is compiled for the second time for the size {listed}: it has kept "
                f"only those of {len(self._by_size)} sizes; set the option sizes.kept to keep more"
            )
        measured = any(not sized.predicted for sized in self._by_size.values())
        tunes = self.options["autotune"] in MEASURING
        predicts = is_new and measured and tunes
        seconds: dict[str, float] = {}
        with timed(seconds, "build"):
            traced = self.traced.with_sizes(by_name)
        context = replace(self._context, predicts=predicts)
        compilation = Compilation(traced, context, seconds, self._arenas)
        function = self._make(compilation, self._counter)
        self._compiled_sizes.add(sizes)
        self._tuning_delay = max(self._tuning_delay, compilation.session.spent_seconds)
        return SizedFunction(function, compilation, predicts)

    def _arenas(self) -> list[Any]:
        return [sized.compilation.executor.arena for sized in self._by_size.values()]

    @property
    def _kept_functions(self) -> list[Function]:
        return [sized.function for sized in self._by_size.values()]

    def _described(self) -> Described:
        return self._existing_functions()[-1]._described()

    def _existing_functions(self) -> list[Function]:
        """Return the kept functions; raise GraphError before the first call."""
        if not self._by_size:
            raise GraphError(
                f"the function is not yet compiled for any size; call it once before this {here()}"
            )
        return self._kept_functions

    @checked
    def save_cache(self, path: FilePath, type: str = "all") -> None:
        """Save the measurements and kernels of all kept sizes, as `Function.save_cache` does.

        Raises GraphError before the first call.
        """
        for function in self._existing_functions():
            function.save_cache(path, type)

    def cache_entries(self) -> list[Entry]:
        """Return the cache entries of all kept sizes."""
        return [entry for function in self._kept_functions for entry in function.cache_entries()]
