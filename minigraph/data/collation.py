"""Collate examples to batches: values at the same path of the examples become one array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from minigraph.arguments import Kind, checked, short_repr
from minigraph.errors import DTypeError, GraphError, ShapeError

TEXT_KINDS = "SU"  # kinds of dtypes
ADVICE = "use a transform or a collate function"


def _examples(value: Any) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise TypeError
    return value


EXAMPLES = Kind("a sequence of one example or more", _examples)


@checked
def default_collate(examples: Annotated[Sequence[Any], EXAMPLES]) -> Any:
    """Return a batch of examples, as `DataLoader` without `collate` does.

    Tuples and dicts become a tuple or a dict of batches of their parts.  Anything else becomes an
    array: a number, a string, a list of numbers.  Arrays of one shape are stacked along a new first
    axis; they keep their dtype, Python's numbers are int64, float64 and bool.  Raises ShapeError,
    DTypeError or GraphError, which names the examples that do not match.

    >>> default_collate([([1, 2], 0.5), ([3, 4], 1.0)])
    (array([[1, 2],
           [3, 4]]), array([0.5, 1. ]))
    """
    return collate_examples(examples, range(len(examples)))


def collate_examples(examples: Sequence[Any], indexes: Sequence[int], path: str = "") -> Any:
    """Return `default_collate(examples)`; errors name the examples by `indexes`.

    path  of the examples in larger ones, such as "['mask']"
    """
    first = examples[0]
    keys = _keys(first)
    if keys is None:
        return _stacked(examples, indexes, path)
    for index, example in zip(indexes, examples, strict=True):
        example_keys = _keys(example)
        if example_keys is None or set(example_keys) != set(keys):
            raise GraphError(
                f"DataLoader cannot make a batch: example {indexes[0]}{path} is "
                f"{_described(first)}, example {index}{path} is {_described(example)}; {ADVICE}"
            )
    parts = {
        key: collate_examples([example[key] for example in examples], indexes, f"{path}[{key!r}]")
        for key in keys
    }
    return rebuild(first, parts)


def rebuild(like: Any, parts: dict[Any, Any]) -> Any:
    """Return parts in a container of the type of `like`: dict, tuple, named tuple, or none."""
    if isinstance(like, Mapping):
        return parts
    if not isinstance(like, tuple):
        return parts[0]
    return type(like)(*parts.values()) if hasattr(like, "_fields") else tuple(parts.values())


def _keys(example: Any) -> list[Hashable] | None:
    if isinstance(example, Mapping):
        return list(example)
    return list(range(len(example))) if isinstance(example, tuple) else None


def _described(example: Any) -> str:
    if isinstance(example, Mapping):
        return f"a dict of {', '.join(map(repr, example)) or 'nothing'}"
    if isinstance(example, tuple):
        return f"a tuple of {len(example)}"
    return f"of type {type(example).__name__}"


def _stacked(values: Sequence[Any], indexes: Sequence[int], path: str) -> npt.NDArray[Any]:
    arrays = [_array(v, f"{i}{path}") for v, i in zip(values, indexes, strict=True)]
    for index, array in zip(indexes, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise ShapeError(
                f"DataLoader cannot stack a batch: example {indexes[0]}{path} has shape "
                f"{arrays[0].shape}, example {index}{path} has {array.shape}; {ADVICE}, "
                "such as one that pads, or use batch_size=1"
            )
    # Not np.stack, which keeps the order of the axes in memory.
    batch = np.empty((len(arrays), *arrays[0].shape), _common_dtype(arrays, indexes, path))
    for position, array in enumerate(arrays):
        batch[position] = array
    return batch


def _array(value: Any, index: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
        if not array.dtype.hasobject:
            return array
        why = "NumPy makes no array of numbers or strings of it"
    except Exception as error:  # of NumPy, or of the value's library
        why = str(error)
    raise DTypeError(
        f"DataLoader cannot stack a batch: example {index} is {short_repr(value)} ({why}); {ADVICE}"
    )


def _common_dtype(
    arrays: Sequence[npt.NDArray[Any]], indexes: Sequence[int], path: str
) -> np.dtype[Any]:
    """Return the dtype that NumPy promotes the arrays' dtypes to; numbers and strings differ."""
    dtype = arrays[0].dtype
    for index, array in zip(indexes, arrays, strict=True):
        try:
            if (array.dtype.kind in TEXT_KINDS) != (dtype.kind in TEXT_KINDS):
                raise TypeError
            dtype = np.promote_types(dtype, array.dtype)
        except TypeError:
            raise DTypeError(
                f"DataLoader cannot stack a batch: example {indexes[0]}{path} is of "
                f"{arrays[0].dtype}, example {index}{path} of {array.dtype}; {ADVICE}"
            ) from None
    return dtype
