"""What all compiled functions have in common: they count their calls, and describe themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from minigraph.arguments import Kind, at_least
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.inspect.description.record import Description
from minigraph.runtime.call_counter import CallCounter
from minigraph.torch_hints import missing

WORD = at_least(0, most=2**64 - 1)  # what random ops count with


class Counted:
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


def _functions(value: Any) -> list[Counted]:
    found = [value] if isinstance(value, Counted) else list(value)
    if not all(isinstance(function, Counted) for function in found):
        raise TypeError
    return found


FUNCTIONS = Kind("a compiled function or a sequence of them", _functions)
