"""The sources of a loader: examples by index, arrays of examples, or iterables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from minigraph.arguments import Kind
from minigraph.data.collation import rebuild
from minigraph.errors import DTypeError, GraphError, ShapeError

Generator = np.random.Generator


class Columns:
    """Arrays with a common first axis: example i has element i of each array.

    arrays  an array, a tuple of arrays or a mapping of names to arrays; batches have the same
            structure.  Lists become arrays; memory maps are read batch by batch.
    """

    def __init__(self, arrays: Any) -> None:
        columns = arrays
        if not isinstance(arrays, Mapping):
            columns = dict(enumerate(arrays if isinstance(arrays, tuple) else (arrays,)))
        self._columns = {name: _column(name, array) for name, array in columns.items()}
        self._like = arrays
        lengths = [len(array) for array in self._columns.values()]
        if len(set(lengths)) != 1:
            raise ShapeError(
                f"the arrays must have one length, the number of examples, not {lengths}; "
                "pass a sequence of examples as a list, not as a tuple"
            )
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._map(lambda column: column[index])

    def batch(self, indexes: Sequence[int], rngs: object = None) -> Any:
        """Return the examples at `indexes` as new contiguous arrays, never augmented."""
        rows = np.asarray(indexes)
        return self._map(lambda column: np.ascontiguousarray(column[rows]))

    def _map(self, part: Callable[[npt.NDArray[Any]], Any]) -> Any:
        return rebuild(self._like, {n: part(column) for n, column in self._columns.items()})


class Stream:
    """Examples without index or length, in the order of an iterable.

    source  an iterable, or a function that returns one for each epoch; the function gets a
            generator of random numbers if it has a parameter for it
    """

    def __init__(self, source: Any) -> None:
        self._function = None if isinstance(source, Iterable) else optional_generator(source, 0)
        self._iterable = source
        self._started = False

    def iterate(self, rng: Generator) -> Iterator[Any]:
        """Return an iterator over an epoch; raise GraphError for an iterator in use."""
        iterable = self._iterable if self._function is None else self._function(rng)
        if not isinstance(iterable, Iterable):
            raise GraphError(
                f"DataLoader got {type(iterable).__name__} from the function that it calls for "
                "each epoch, which must return an iterable"
            )
        iterator = iter(iterable)
        if iterator is self._iterable and self._started:
            raise GraphError(
                f"DataLoader cannot begin {type(iterator).__name__} a second time; pass the "
                "function that makes one, or an object whose __iter__ does"
            )
        self._started = True
        return iterator


def as_source(value: Any) -> Any:
    """Return the argument `dataset` as examples by index or a `Stream`; TypeError for others.

    Examples by index are `Columns`, a `Dataset`, a list, a data set of torch.
    """
    if isinstance(value, type | str | bytes):
        raise TypeError
    if _is_array(value) or isinstance(value, Mapping):
        return Columns(value)
    if isinstance(value, tuple) and any(_is_array(v) or isinstance(v, list) for v in value):
        return Columns(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        len(value)  # raises TypeError if it has none
        return value
    return Stream(value)


SOURCE = Kind(
    "a data set or a list of examples, arrays (alone, in a tuple, in a dict), an iterable, "
    "or a function that returns an iterable",
    as_source,
)


def optional_generator(fn: Any, count: int) -> Callable[..., Any]:
    """Return a function of `count` arguments and a generator, which is passed if `fn` takes it.

    TypeError if `fn` takes other numbers of arguments.
    """
    if not callable(fn):
        raise TypeError
    try:
        signature = inspect.signature(fn)
    except ValueError:  # some functions in C have no signature
        return lambda *args: fn(*args[:count])
    arguments = [None] * count
    try:
        signature.bind(*arguments)
    except TypeError:
        signature.bind(*arguments, None)
        return fn
    return lambda *args: fn(*args[:count])


def _is_array(value: Any) -> bool:
    return len(getattr(value, "shape", ())) > 0 and hasattr(value, "__array__")


def _column(name: Any, value: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ShapeError(
            f"{name!r} has elements of different shapes, which make no array; pass the examples as "
            "a list, such as list(zip(images, labels))"
        ) from None
    if array.ndim == 0 or array.dtype.hasobject:
        raise DTypeError(f"{name!r} is {type(value).__name__}, not an array of examples")
    return array
