"""The arguments of a call: in the order of the inputs, and as arrays that programs accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node, Spec, SymbolicSize, as_array, here, same_kind
from minigraph.program import Backend


def in_order(
    inputs: Sequence[Node], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Sequence[Any]:
    """Return the value for each input; raise GraphError for a missing, unknown or repeated one."""
    names = [node.name for node in inputs]
    if len(args) > len(names):
        raise GraphError(
            f"the function takes {len(names)} inputs ({', '.join(names)}), got {len(args)} {here()}"
        )
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            listed = ", ".join(names) or "none"
            raise GraphError(f"unknown input {name!r}; the inputs: {listed} {here()}")
        if name in values:
            raise GraphError(f"input {name!r} is given twice {here()}")
        values[name] = value
    missing = [name for name in names if name not in values]
    if missing:
        text = f"no value is given for input {', '.join(missing)} {here()}"
        raise GraphError(text + _packed_inputs_advice(args))
    return [values[name] for name in names]


def _packed_inputs_advice(args: Sequence[Any]) -> str:
    """Return advice if a single argument holds the values of several inputs, else ""."""
    match args:
        case [Mapping()]:
            return "; to pass a dict of values, write function(**values)"
        case [list() | tuple()]:
            return "; to pass a list of values, write function(*values)"
    return ""


def channels_last_advice(expected: Sequence[Any], actual: Sequence[int]) -> str:
    """Return advice if `actual` is the shape of images with channels last, else ""."""
    if len(expected) != 4 or len(actual) != 4:
        return ""
    n, height, width, channels = actual
    pairs = zip(expected, (n, channels, height, width), strict=True)
    if any(isinstance(size, int) and size != other for size, other in pairs):
        return ""
    return "images have channels before height and width: images.transpose(0, 3, 1, 2)"


def need_no_conversion(values: Sequence[Any], specs: Sequence[Spec]) -> bool:
    """Return whether programs accept the values for inputs of these specs without conversion."""
    if len(values) != len(specs):
        return False
    # In one loop, as a call of a function for each takes longer, and so does an argument of `zip`.
    for value, spec in zip(values, specs):  # noqa: B905
        if (
            type(value) is not np.ndarray
            or value.dtype is not spec.dtype
            or value.shape != spec.shape
            or not value.flags.carray
        ):
            return False
    return True


def as_input(node: Node, value: Any, backend: Backend) -> Array:
    """Return `value` as a contiguous array of the input's dtype and shape.

    The array is in the device's memory if the value is.  Raises ShapeError and DTypeError.
    """
    array = _cast(node, value, backend)
    if array.shape != node.shape:
        text = f"input {node.name} takes shape {node.shape}, got {array.shape} {here()}"
        advice = channels_last_advice(node.shape, array.shape)
        if array.ndim == node.ndim and not advice:
            advice = "use None for a size that differs between calls: "
            advice += f"mg.input({node.name!r}, (None, ...))"
        raise ShapeError(f"{text}; {advice}" if advice else text)
    if not isinstance(array, np.ndarray) or array.flags.carray:
        return array
    return np.require(array, requirements=["C", "A"])


def _has_shape(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, Node)


def array_of(value: Any, backend: Backend) -> Array:
    """Return `value` as an array, which is in the device's memory if the value is."""
    on_device = backend.array(value)
    return as_array(value) if on_device is None else on_device


def _cast(node: Node, value: Any, backend: Backend) -> Array:
    """Return `value` as an array of the input's dtype, on the device if the value is there."""
    try:
        return same_kind(array_of(value, backend), node.dtype, backend.cast)
    except DTypeError as error:
        advice = _packed_inputs_advice([value])
        text = f"input {node.name} takes {node.spec}: {error} {here()}{advice}"
        raise DTypeError(text) from None


class CallSizes:
    """The symbolic sizes that the arguments of a call determine.

    names  of the sizes, in the order of the results of `of`
    """

    def __init__(self, inputs: Sequence[Node], backend: Backend) -> None:
        self._inputs = inputs
        self._backend = backend
        axes = ((i, axis, n) for i, x in enumerate(inputs) for axis, n in enumerate(x.shape))
        symbolic = [(i, axis, n) for i, axis, n in axes if isinstance(n, SymbolicSize)]
        # Axes that determine a size: input, axis, name, and the multiple of the size.
        self._defining_axes = [(i, axis, *n.multiple) for i, axis, n in symbolic if n.multiple]
        self._derived_axes = [(i, axis, n) for i, axis, n in symbolic if not n.multiple]
        self.names = [*dict.fromkeys(name for _, _, name, _ in self._defining_axes)]

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return a value with a shape for each input."""
        if kwargs or len(args) != len(self._inputs):
            args = in_order(self._inputs, args, kwargs)
        pairs = zip(self._inputs, args, strict=True)
        return [v if _has_shape(v) else _cast(x, v, self._backend) for x, v in pairs]

    def of(self, values: Sequence[Any]) -> tuple[int, ...]:
        """Return the sizes that `values` determine; raise ShapeError if two disagree."""
        sizes: dict[str, int] = {}
        owners: dict[str, Node] = {}
        for i, axis, name, multiple in self._defining_axes:
            x, shape = self._inputs[i], tuple(values[i].shape)
            if len(shape) != x.ndim or shape[axis] % multiple:
                raise ShapeError(f"input {x.name} takes {x.spec}, got shape {shape} {here()}")
            n = shape[axis] // multiple
            if sizes.setdefault(name, n) != n:
                raise ShapeError(
                    f"input {x.name} has {n} as its size {name}, input {owners[name].name} has "
                    f"{sizes[name]} {here()}; give different sizes different names, as in "
                    f'mg.input("{x.name}", ("{name}2", ...))'
                )
            owners.setdefault(name, x)
        for i, axis, size in self._derived_axes:
            x, shape = self._inputs[i], tuple(values[i].shape)
            missing = size.names - sizes.keys()
            if missing:
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, but no input has the size "
                    f"{min(missing)} itself {here()}"
                )
            if len(shape) != x.ndim or shape[axis] != size.at(sizes):
                raise ShapeError(
                    f"input {x.name} takes {x.spec}, where {size} is {size.at(sizes)}, got shape "
                    f"{shape} {here()}"
                )
        return tuple(sizes[name] for name in self.names)

    def check_shapes(self, values: Sequence[Any]) -> None:
        """Raise ShapeError for a value with another size than an input's fixed size."""
        for x, value in zip(self._inputs, values, strict=True):
            shape = tuple(value.shape)
            axes = zip(x.shape, shape, strict=False)
            if len(shape) != x.ndim or any(isinstance(n, int) and n != m for n, m in axes):
                advice = channels_last_advice(x.shape, shape)
                text = f"input {x.name} takes {x.spec}, got shape {shape} {here()}"
                raise ShapeError(f"{text}; {advice}" if advice else text)
