"""How parameters start: distributions of `torch.nn.init`, drawn from one generator.

The generator starts from seed 0 in every process, so a program that makes its layers in the same
order makes the same ones.  `manual_seed` starts it anew for what is made afterwards.  (Dropout and
`ops.random_*` do not draw from it: their seed is an option of `mg.comp_graph`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from minigraph.arguments import Kind, Seed, checked
from minigraph.errors import DTypeError, ShapeError
from minigraph.graph import Array, DType, Parameter, Shape, Spec, as_dtype
from minigraph.ops.elementwise import kind

_generator = np.random.default_rng(0)


@checked
def manual_seed(seed: Seed) -> None:
    """Let the parameters made from now on depend on `seed` and on nothing before."""
    global _generator
    _generator = np.random.default_rng(seed)


def _floats(dtype: Any) -> DType:
    found = as_dtype(dtype)
    if kind(found) != "f":
        raise DTypeError(f"weights are floats, not {found.name}")
    return found


def _trainable(value: Any) -> Parameter:
    if not isinstance(value, Parameter) or kind(value.dtype) != "f":
        raise TypeError
    return value


Weights = Annotated[Any, Kind("a float dtype", _floats, DTypeError, unset=True)]
Trainable = Annotated[Parameter, Kind("a parameter of floats", _trainable)]


def full(shape: Shape, value: float, dtype: DType) -> Array:
    """Return an array filled with `value`, which takes no memory."""
    spec = Spec(shape, dtype)
    with np.errstate(over="ignore"):  # infinity, as in torch
        return np.broadcast_to(np.array(value, spec.dtype), spec.shape)


@checked
def uniform_(parameter: Trainable, a: float = 0.0, b: float = 1.0) -> Parameter:
    """Fill with numbers from [a, b) and return the parameter."""
    return _fill(parameter, _generator.random, b - a, a)


@checked
def normal_(parameter: Trainable, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Fill with normally distributed numbers and return the parameter."""
    return _fill(parameter, _generator.standard_normal, std, mean)


@checked
def kaiming_normal_(
    parameter: Trainable,
    a: float = 0.0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: Literal["linear", "relu", "leaky_relu"] = "leaky_relu",
) -> Parameter:
    """Fill weights (out, in, ...) normally so that a layer keeps the variance (He et al., 2015).

    a             slope of the leaky ReLU that follows
    mode          "fan_in": of values, forwards; "fan_out": of gradients, backwards
    nonlinearity  what follows
    """
    if parameter.ndim < 2:
        raise ShapeError(f"kaiming_normal_: weights are (out, in, ...), not {parameter.shape}")
    outputs, inputs, *window = parameter.shape
    fan = (inputs if mode == "fan_in" else outputs) * math.prod(window)
    gain = {"linear": 1.0, "relu": 2.0, "leaky_relu": 2 / (1 + a * a)}[nonlinearity]
    return normal_(parameter, 0.0, math.sqrt(gain / max(fan, 1)))


def _fill(
    parameter: Parameter, draw: Callable[..., Array], scale: float, shift: float
) -> Parameter:
    working = np.dtype(np.float64 if parameter.dtype == np.float64 else np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # 1e300 is infinity in float32
        values = draw(parameter.shape, working) * working.type(scale) + working.type(shift)
        parameter.assign(values.astype(parameter.dtype))
    return parameter
