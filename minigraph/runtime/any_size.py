"""Functions whose inputs have sizes that each call gives: one function for each size met."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigraph.arguments import FilePath, checked
from minigraph.cache import Entry
from minigraph.distributed import World
from minigraph.errors import DTypeError, GraphError, ShapeError, warn_once
from minigraph.graph import Array, Node, SymbolicSize, as_array, here
from minigraph.inspect.description.record import Description
from minigraph.inspect.profile import Profile
from minigraph.inspect.report import Report, preformatted
from minigraph.platform import forks
from minigraph.runtime.agreement import call_alike
from minigraph.runtime.call_counter import CallCounter
from minigraph.runtime.counted import Counted
from minigraph.runtime.function import PROFILED, Function
from minigraph.runtime.inputs import channels_last, in_order

MEMORY = 2 << 30  # bytes that functions may take that are kept, unless the user says how many are
SHORT = 5.0  # seconds: the calls of a size take at least so long before it is measured


@dataclass(frozen=True)
class Shared:
    """What the functions of different sizes have in common.

    counter  their calls are counted as those of one function
    arenas   returns the memory for intermediate results of the functions that are kept
    borrows  whether algorithms are not measured that were for other sizes
    """

    counter: CallCounter
    arenas: Callable[[], Sequence[Any]]
    borrows: bool


@dataclass
class Kept:
    """The function of a size.

    borrows  whether its algorithms were chosen by what was measured for other sizes
    holds    how many bytes it holds, by what holds them, which functions may share
    seconds  that its calls have taken so far
    """

    function: Function
    borrows: bool
    holds: Mapping[int, int]
    seconds: float = 0.0


class AnySizeFunction(Counted):
    """What `comp_graph().compile` returns where inputs have sizes such as None: see `Function`.

    The first call of a size compiles a function for it.  Algorithms are measured for the first
    size.  Another size begins with those that are expected to be the fastest by all that was
    measured of other sizes, and is measured, too, once its calls have taken as long as measuring
    the first one took.  The functions of the latest sizes are kept, as many as the option
    `sizes.kept` says.  Calls of all sizes are counted together.
    """

    def __init__(
        self,
        inputs: Sequence[Node],
        on_device: Callable[[Any], Array | None],
        options: Mapping[str, Any],
        compile: Callable[[Mapping[str, int], Shared], Function],
        world: World | None = None,
    ) -> None:
        self._inputs = list(inputs)
        self._on_device = on_device
        self._most: int | None = options["sizes.kept"]
        self._room = self._most or sys.maxsize
        self._met: set[tuple[int, ...]] = set()  # sizes that were compiled
        self._warned = False
        self._tunes = options["autotune"] == "tune"
        self._compile = compile
        self._world = world
        self._timeout = options["distributed.timeout"]
        self._counter = CallCounter(options["seed"])
        self._kept: dict[tuple[int, ...], Kept] = {}  # the latest size last
        symbolic = [
            (i, axis, n)
            for i, x in enumerate(inputs)
            for axis, n in enumerate(x.shape)
            if isinstance(n, SymbolicSize)
        ]
        self._places = [  # of the sizes that calls give: input, axis, name, how many times that
            (i, axis, *n.multiple) for i, axis, n in symbolic if n.multiple
        ]
        self._others = [(i, axis, n) for i, axis, n in symbolic if not n.multiple]
        self._names = [*dict.fromkeys(name for _, _, name, _ in self._places)]
        self._choosing = forks.reentrant_lock()
        self._measuring = SHORT

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once, as a `Function` does.

        Raises ShapeError for sizes that differ where they have to be equal, that are 0, or that the
        graph cannot have.
        """
        values = self._values(args, kwargs)
        kept = self._function(values)
        start = time.perf_counter()
        try:
            results = kept.function(*values)
        except ShapeError:
            self._check_shapes(values)
            raise
        kept.seconds += time.perf_counter() - start
        return results

    def profile(self, /, *args: Any, calls: Any = PROFILED, **kwargs: Any) -> Profile:
        """Run some calls of a size, as `Function.profile` does."""
        values = self._values(args, kwargs)
        return self._function(values).function.profile(*values, calls=calls)

    def __repr__(self) -> str:
        names = ", ".join(f"{x.name}: {x.spec}" for x in self._inputs)
        return f"<function of ({names}) of any size, {len(self._kept)} kept>"

    def _repr_html_(self) -> str:
        return preformatted(str(self.report()) if self._kept else repr(self))

    # ------------------------------------------------------------ sizes

    def _values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return for each input a value that has a shape."""
        if kwargs or len(args) != len(self._inputs):
            args = in_order(self._inputs, args, kwargs)
        return [
            value if hasattr(value, "shape") else self._array(x, value)
            for x, value in zip(self._inputs, args, strict=True)
        ]

    def _array(self, x: Node, value: Any) -> Array:
        on_device = self._on_device(value)
        try:
            return as_array(value, x.dtype) if on_device is None else on_device
        except DTypeError as error:
            raise DTypeError(f"input {x.name} takes {x.spec}: {error} {here()}") from None

    def _sizes(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return what the calls give of each size."""
        found: dict[str, int] = {}
        first: dict[str, Node] = {}
        for i, axis, name, times in self._places:
            x, shape = self._inputs[i], tuple(values[i].shape)
            if len(shape) != x.ndim or shape[axis] < 1 or shape[axis] % times:
                least = "; a size is 1 or more" if 0 in shape else ""
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, got shape {shape} {here()}{least}"
                )
            n = shape[axis] // times
            if found.setdefault(name, n) != n:
                raise ShapeError(
                    f"input {x.name} has {n} as its size {name}, input {first[name].name} has "
                    f"{found[name]} {here()}; give sizes that differ names of their own, as in "
                    f'mg.input("{x.name}", ("{name}2", ...))'
                )
            first.setdefault(name, x)
        for i, axis, size in self._others:
            x, shape = self._inputs[i], tuple(values[i].shape)
            missing = size.names - found.keys()
            if missing:
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, but no input has the size "
                    f"{min(missing)} itself {here()}"
                )
            if len(shape) != x.ndim or shape[axis] != size.at(found):
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, where {size} is {size.at(found)}, got shape "
                    f"{shape} {here()}"
                )
        return tuple(found[name] for name in self._names)

    def _check_shapes(self, values: Sequence[Any]) -> None:
        """Raise ShapeError for a value that differs where the size of an axis is a number."""
        for x, value in zip(self._inputs, values, strict=True):
            shape = tuple(value.shape)
            known = zip(x.shape, shape, strict=False)
            if len(shape) != x.ndim or any(isinstance(n, int) and n != m for n, m in known):
                advice = channels_last(x.shape, shape)
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, got shape {shape} {here()}"
                    + (f"; {advice}" if advice else "")
                )

    def _function(self, values: Sequence[Any]) -> Kept:
        """Return the function for the sizes of `values`, compiled if it is not kept."""
        sizes = self._sizes(values)
        with self._choosing:
            kept = self._kept.get(sizes)
            if kept is None:
                self._check_shapes(values)
            due = bool(kept and kept.borrows and kept.seconds > self._measuring)
            room = None
            if self._world:
                given = (sizes, due, self._room, self._timeout)
                due, room = call_alike(self._world, self._names, *given)
            new = kept is None or due
            if kept is None or due:
                kept = self._compiled(sizes, new=kept is None)
            self._kept.pop(sizes, None)
            self._kept[sizes] = kept
            if new:
                self._room = self._most or self._fitting()
            while len(self._kept) > (room or self._room):
                del self._kept[next(iter(self._kept))]
            return kept

    def _fitting(self) -> int:
        """Return how many functions, of the latest sizes, fit into the memory for them."""
        held: dict[int, int] = {}
        total = 0
        for count, kept in enumerate(reversed(self._kept.values())):
            for holder, nbytes in kept.holds.items():
                total += max(nbytes - held.get(holder, 0), 0)
                held[holder] = max(nbytes, held.get(holder, 0))
            if total > MEMORY and count:
                return count
        return sys.maxsize

    def _compiled(self, sizes: tuple[int, ...], new: bool) -> Kept:
        if new and sizes in self._met and not self._warned:
            self._warned = True
            given = ", ".join(f"{name} {n}" for name, n in zip(self._names, sizes, strict=True))
            warn_once(
                f"a function is compiled for the second time for the size {given}: it keeps those "
                f"of {len(self._kept)} sizes, and the option sizes.kept lets it keep more"
            )
        measured = any(not kept.borrows for kept in self._kept.values())
        borrows = new and self._tunes and measured
        shared = Shared(self._counter, self._arenas, borrows)
        function = self._compile(dict(zip(self._names, sizes, strict=True)), shared)
        self._met.add(sizes)
        self._measuring = max(self._measuring, function.tuning_seconds)
        return Kept(function, borrows, function.holds)

    def _arenas(self) -> list[Any]:
        return [kept.function.arena for kept in self._kept.values()]

    # ------------------------------------------------------------ what it tells

    @property
    def _functions(self) -> list[Function]:
        """Those that are kept, that of the latest call last; GraphError before the first call."""
        if not self._kept:
            raise GraphError(
                f"the function has no sizes yet, so there is nothing to tell; call it {here()}"
            )
        return [kept.function for kept in self._kept.values()]

    def report(self) -> Report:
        """Return what was compiled for the size of the latest call, and how; `print` it."""
        return self._functions[-1].report()

    def reports(self) -> list[Report]:
        """Return the reports of all sizes that are kept, that of the latest call last."""
        return [kept.function.report() for kept in self._kept.values()]

    @checked
    def to_dot(self, path: FilePath, whole: bool = False) -> None:
        """Write a graph for the size of the latest call, as `Function.to_dot` does."""
        self._functions[-1].to_dot(path, whole)

    @property
    def ready(self) -> bool:
        return bool(self._kept)

    def describe(self) -> Description:
        """Return the record of the function for the size of the latest call."""
        return self._functions[-1].describe()

    def to_html(self, path: FilePath, beside: Any = ()) -> None:
        """Write a page about the size of the latest call, as `Function.to_html` does."""
        self._functions[-1].to_html(path, beside)

    # ------------------------------------------------------------ its caches

    @checked
    def save_cache(self, path: FilePath, type: str = "all") -> None:
        """Write what was measured and compiled for all sizes, as `Function.save_cache` does.

        Raises GraphError before the first call, which gives a size.
        """
        for function in self._functions:
            function.save_cache(path, type)

    def cache_entries(self) -> list[Entry]:
        """Return all that was measured and compiled for the sizes that are kept."""
        return [entry for kept in self._kept.values() for entry in kept.function.cache_entries()]
