"""What all compiled functions are: things that count their calls, and that can be collected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from minigraph.arguments import Kind, at_least
from minigraph.compiler.trace import TracedGraph
from minigraph.errors import GraphError
from minigraph.graph import Array, here
from minigraph.inspect.record import Description
from minigraph.platform import forks
from minigraph.torch_hints import missing

WORD = at_least(0, most=2**64 - 1)  # what random ops count with
T = TypeVar("T")


class _CurrentThread(threading.local):
    """Whether the current thread runs a call."""

    runs = False


class CallCounter:
    """How many calls of a function were done, its seed, and the lock of the call that runs.

    The functions of different sizes that make one function share it: their calls come one after
    the other, because they share memory for intermediate results, too.
    """

    def __init__(self, seed: int) -> None:
        self.calls = np.zeros((), np.uint64)
        self.seed = np.array(seed, np.uint64)
        self._running = forks.reentrant_lock()
        self._thread = _CurrentThread()

    def alone(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, a call, after the calls of other threads."""
        if self._thread.runs:
            raise GraphError(
                f"a function was called, by the handler of a signal, while it ran {here()}"
            )
        with self._running:
            try:
                self._thread.runs = True
                return work()
            finally:
                self._thread.runs = False


class CompiledFunction:
    """What is called, counts its calls, and can neither be copied nor pickled.

    calls  how many calls were done: the step that random ops count by.  Setting it makes the
           function go on from there, as after loading a checkpoint.
    seed   of the random ops
    """

    _counter: CallCounter

    if not TYPE_CHECKING:  # else no wrong name of an attribute would be found

        def __getattr__(self, name: str) -> Any:
            raise missing("a compiled function", name, "functions", self)

    @property
    def ready(self) -> bool:
        """Whether there is something to describe: of any size, only once it was called."""
        return True

    @property
    def traced(self) -> TracedGraph:
        """The graph as written."""
        raise NotImplementedError

    @property
    def options(self) -> Mapping[str, Any]:
        """All options that it was compiled with."""
        raise NotImplementedError

    def bind(self) -> None:
        """Use the memory in which parameters lie now, after `State.move`."""
        raise NotImplementedError

    def describe(self) -> Description:
        """Return one record of all that is known of it, as pages and files keep it."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise GraphError("a compiled function cannot be copied or pickled; compile another one")

    @property
    def calls(self) -> int:
        return int(self._counter.calls)

    @calls.setter
    def calls(self, value: int) -> None:
        self._counter.calls[...] = WORD.check("calls", value)

    @property
    def seed(self) -> Array:
        return self._counter.seed

    @seed.setter
    def seed(self, value: Any) -> None:
        self._counter.seed = np.array(WORD.check("seed", value), np.uint64)


def _functions(value: Any) -> list[CompiledFunction]:
    functions = [value] if isinstance(value, CompiledFunction) else list(value)
    if not all(isinstance(function, CompiledFunction) for function in functions):
        raise TypeError
    return functions


FUNCTIONS = Kind("a compiled function or a sequence of them", _functions)


# ---------------------------------------------------------------- what a program compiles

F = TypeVar("F", bound=CompiledFunction)
_collections: list[list[CompiledFunction]] = []


@contextmanager
def collecting() -> Iterator[list[CompiledFunction]]:
    """Give a list, to which functions are appended that are compiled inside."""
    functions: list[CompiledFunction] = []
    _collections.append(functions)
    try:
        yield functions
    finally:
        _collections.remove(functions)


def collect(function: F) -> F:
    """Return a function that was compiled, after adding it to all lists that collect."""
    for functions in _collections:
        functions.append(function)
    return function
