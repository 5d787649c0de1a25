"""Compiled functions: programs with their memory, called with arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import numpy as np

from minigraph.arguments import FilePath, Kind, at_least, checked
from minigraph.cache import Entry
from minigraph.compiler.pipeline import Compilation
from minigraph.compiler.trace import TracedGraph
from minigraph.errors import GraphError, attribute_error
from minigraph.graph import Array, Claim, Node, here
from minigraph.inspect.describe import describe
from minigraph.inspect.dot import to_dot
from minigraph.inspect.page import to_html
from minigraph.inspect.profile import Profile, profile_of
from minigraph.inspect.record import Description, KernelTime
from minigraph.inspect.report import Report, counted, preformatted
from minigraph.ops.random import SEED, STEP
from minigraph.platform import forks
from minigraph.platform.regular_file import write_text
from minigraph.platform.signals import signals_deferred
from minigraph.program import Done, Step, Timing
from minigraph.runtime import cache_file
from minigraph.runtime.inputs import as_input, in_order, need_no_conversion

CALL_COUNT = at_least(1)
PROFILED_CALLS = 5  # calls of a profile by default
SEED_STRIDE = 0x9E3779B97F4A7C15  # from one process's seed to the next: 2**64 / golden ratio
UINT64 = at_least(0, most=2**64 - 1)  # seeds and step counters of random ops
T = TypeVar("T")
Described = tuple[Compilation, Sequence[tuple[Step, KernelTime]]]


class CallCounter:
    """The number of calls of a function, its seed, and the lock of the running call.

    The functions for the sizes of an any-size function share a counter, as they share an arena.
    """

    def __init__(self, seed: int) -> None:
        self.calls = 0
        self.seed = np.array(seed, np.uint64)
        self._running = forks.reentrant_lock()

    def exclusively(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `function`, which runs a call, after the calls of other threads."""
        if self._running._is_owned():  # type: ignore[attr-defined]
            raise GraphError(f"the handler of a signal called a function that is running {here()}")
        with self._running:
            return function(*arguments)


def _functions(value: Any) -> list[CompiledFunction]:
    functions = [value] if isinstance(value, CompiledFunction) else list(value)
    if not all(isinstance(function, CompiledFunction) for function in functions):
        raise TypeError
    return functions


FUNCTIONS = Kind("a compiled function or a sequence of them", _functions)


class CompiledFunction:
    """A compiled function, for one size or any size; it can neither be copied nor pickled.

    calls    number of calls so far, the step counter of random ops.  Set it to continue from a
             checkpoint.
    seed     of the random ops
    traced   the graph as written
    options  all options of the compilation
    """

    traced: TracedGraph
    options: Mapping[str, Any]
    _counter: CallCounter

    if not TYPE_CHECKING:  # otherwise mypy would accept any name of an attribute

        def __getattr__(self, name: str) -> Any:
            raise attribute_error("a compiled function", name, "functions", self)

    @property
    def _kept_functions(self) -> Sequence[Function]:
        """The functions of all kept sizes, the latest call's last."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether `describe` works: an any-size function must be called first."""
        return bool(self._kept_functions)

    def bind(self) -> None:
        """Bind the program to the current memory of the parameters.

        It is needed after `State.share_host_memory`.
        """
        raise NotImplementedError

    def _described(self) -> Described:
        """Return the compilation of the latest call, and the times of its last profile."""
        raise NotImplementedError

    def report(self) -> Report:
        """Return a report on the compilation, of the latest call's size; `print` shows it."""
        return Report(describe(*self._described()))

    def reports(self) -> list[Report]:
        """Return the reports of all kept sizes, the latest call's last."""
        return [function.report() for function in self._kept_functions]

    @checked
    def to_dot(self, path: FilePath) -> None:
        """Write all steps, by layer, in Graphviz's language: `dot -Tsvg -O path` draws the graph.

        Graphviz takes minutes for a large network; `to_html` shows it at once.
        """
        write_text(path, to_dot(describe(*self._described())))

    def describe(self) -> Description:
        """Return the record of the function from which pages and JSON files are made.

        It has the graph as written and after each pass, the steps, memory, algorithms, the sources
        of kernels, and the times of the last profile.  The passes run again for it.
        """
        return describe(*self._described(), history=True)

    @checked
    def to_html(self, path: FilePath, beside: Annotated[Sequence[Any], FUNCTIONS] = ()) -> None:
        """Write a page about the function: one HTML file that needs no network.

        beside  further functions for the page, such as the same at another level; the page
                compares the times of their layers if they were profiled

        The page shows the times of the last profile, so call `profile` first.
        """
        write_text(path, to_html([function.describe() for function in (self, *beside)]))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise GraphError("a compiled function cannot be copied or pickled; compile another one")

    @property
    def calls(self) -> int:
        return self._counter.calls

    @calls.setter
    def calls(self, value: int) -> None:
        self._counter.calls = UINT64.check("calls", value)

    @property
    def seed(self) -> Array:
        return self._counter.seed

    @seed.setter
    def seed(self, value: Any) -> None:
        self._counter.seed = np.array(UINT64.check("seed", value), np.uint64)


class Function(CompiledFunction):
    """The result of `comp_graph().compile`: call it with an array for each input.

    Pass inputs in order or by name: NumPy arrays, or objects with `__array__` or DLPack.  The
    results belong to the caller; they are NumPy arrays, on a CUDA device CuPy arrays.  A call is
    atomic: an interrupted or failed call changes no parameter.  Calls from several threads wait for
    each other if one changes a parameter that the other uses.

    >>> x, y = mg.input("x", (2,)), mg.input("y", (2,))
    >>> difference = cg.compile([x, y], x - y)
    >>> difference([1, 2], y=[3, 3])
    array([-2., -1.], dtype=float32)
    >>> difference.calls
    1
    """

    def __init__(self, compilation: Compilation, counter: CallCounter | None = None) -> None:
        """Wrap a compilation that has run.

        counter  shared with other functions; None for a new one
        """
        context, traced = compilation.context, compilation.traced
        self._compilation = compilation
        self.traced, self.options = traced, dict(context.options)
        self._backend = context.backend
        self._counter = counter or CallCounter(self.options["seed"])
        self._inputs = traced.inputs
        self._specs = [x.spec for x in traced.inputs]
        self._pack = traced.pack
        reads, changes = traced.graph.parameters, traced.updates
        claim = Claim((p.state for p in reads), (p.state for p in changes))
        # Runs a function while no other call changes the parameters.
        alone = self._counter.exclusively
        self._exclusively = functools.partial(claim.run, alone) if claim.uses else alone
        self._kernel_times: list[tuple[Step, KernelTime]] = []  # of the last profile
        self._load_program()

    def _load_program(self) -> None:
        self._program = self._compilation.program
        self._executor = self._compilation.executor
        self._failures = self._executor.failures
        self._execute = self._executor.__call__  # Python calls a method faster than an object
        feeds = [_feed(buffer.node, self._inputs) for buffer in self._program.inputs]
        # None: the program reads all inputs, in their order.
        self._feeds = None if feeds == [*range(len(self._inputs))] else feeds

    def __repr__(self) -> str:
        names = ", ".join(f"{x.name}: {x.spec}" for x in self._inputs)
        steps = counted(len(self._program.steps), "step")
        return f"<function of ({names}) on {self._backend.device}, {steps}>"

    def _repr_html_(self) -> str:
        return preformatted(str(self.report()))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once.  Raises GraphError for invalid input, and then changes no parameter."""
        ready = not kwargs and need_no_conversion(args, self._specs)
        values = args if ready else self._converted(args, kwargs)
        return self._pack(self._exclusively(self._call, values))

    def _call(self, values: Sequence[Array]) -> list[Array]:
        results = self._run(values, self._execute)
        if self._failures and self._compilation.recompile():
            self._load_program()
        return results

    def profile(self, /, *args: Any, calls: Any = PROFILED_CALLS, **kwargs: Any) -> Profile:
        """Run `calls` calls kernel by kernel, and return the median time of each kernel.

        calls  number of calls.  An input of this name must be passed in order.

        Parameters and random ops change as in one call: the changes of the other calls are undone.
        """
        values = self._converted(args, kwargs)
        repeats = CALL_COUNT.check("calls", calls) - 1
        runs: list[list[Timing]] = []

        def execute(inputs: Sequence[Array], done: Done) -> list[Array]:
            state = self._state()
            try:
                for _ in range(repeats):
                    runs.append(self._executor.profile(inputs)[1])
            finally:
                with signals_deferred():
                    self._restore(state)
            results, timings = self._executor.profile(inputs, done)
            runs.append(timings)
            return results

        self._exclusively(self._run, values, execute)
        profile = profile_of(self._compilation, runs)
        steps = dict.fromkeys(timing.step for timing in runs[0])
        self._kernel_times = [*zip(steps, profile.kernels, strict=True)]
        return profile

    def bind(self) -> None:
        def work() -> None:
            self._compilation.bind(self._program, [self._executor.arena])
            self._load_program()

        self._exclusively(work)

    def _converted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        values = in_order(self._inputs, args, kwargs)
        pairs = zip(self._inputs, values, strict=True)
        return [as_input(x, value, self._backend) for x, value in pairs]

    def _run(self, values: Sequence[Array], execute: Execute) -> list[Array]:
        inputs = values
        if self._feeds is not None:
            inputs = [feed(self) if callable(feed) else values[feed] for feed in self._feeds]
        counter = self._counter
        return execute(inputs, functools.partial(setattr, counter, "calls", counter.calls + 1))

    def _state(self) -> list[Array]:
        return [p.numpy() for p in self.traced.updates]

    def _restore(self, state: Sequence[Array]) -> None:
        for parameter, value in zip(self.traced.updates, state, strict=True):
            parameter.state.assign(value)

    def _own_seed(self) -> Array:
        """Return the seed of this process's random ops, which differs between processes."""
        world = self._compilation.context.world
        if world is None:
            return self.seed
        return np.array((int(self.seed) + world.rank * SEED_STRIDE) % 2**64, np.uint64)

    def _described(self) -> Described:
        return self._compilation, self._kernel_times

    @property
    def _kept_functions(self) -> Sequence[Function]:
        return [self]

    @checked
    def save_cache(self, path: FilePath, type: str = "all") -> None:
        """Add the function's measurements and kernels to a file for `comp_graph().load_cache`.

        type  "onednn" (or "mkldnn"), "cudnn", "jit" or "all"

        The other entries of the file stay.  Raises CacheError if the file cannot be written.
        """
        environment, merge = self._compilation.environment, self._compilation.session.merge
        cache_file.save_entries(path, type, environment, self.cache_entries(), merge)

    def cache_entries(self) -> list[Entry]:
        """Return the cache entries of the function's measurements and kernels."""
        return self._compilation.cache_entries()


Execute = Callable[[Sequence[Array], Done], list[Array]]  # the signature of Executor.__call__
Feed = int | Callable[[Function], Array]  # index of an argument, or a getter for seed and step


def _feed(node: Node | None, inputs: Sequence[Node]) -> Feed:
    if node is SEED:
        return Function._own_seed
    if node is STEP:
        return lambda function: np.array(function.calls, np.uint64)
    return next(i for i, x in enumerate(inputs) if x is node)


# ---------------------------------------------------------------- collecting functions

F = TypeVar("F", bound=CompiledFunction)
_collections: list[list[CompiledFunction]] = []


@contextmanager
def collecting() -> Iterator[list[CompiledFunction]]:
    """Yield a list to which each function is appended that the block compiles."""
    functions: list[CompiledFunction] = []
    _collections.append(functions)
    try:
        yield functions
    finally:
        _collections.remove(functions)


def collect(function: F) -> F:
    """Append a compiled function to the lists of all active `collecting` blocks; return it."""
    for functions in _collections:
        functions.append(function)
    return function
