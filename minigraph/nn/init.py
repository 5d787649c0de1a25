"""How parameters start: distributions of `torch.nn.init`, drawn from one generator.

The generator starts from seed 0 in every process, so a program that makes its layers in the same
order makes the same ones.  `manual_seed` starts it anew for what is made afterwards.  (Dropout and
`ops.random_*` do not draw from it: their seed is an option of `mg.comp_graph`.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Parameter, as_dtype
from minigraph.ops.elementwise import kind

_generator = np.random.default_rng(0)


def manual_seed(seed: int) -> None:
    """Let the parameters made from now on depend on `seed` and on nothing before."""
    global _generator
    try:
        _generator = np.random.default_rng(operator.index(seed))
    except (TypeError, ValueError):
        raise GraphError(f"manual_seed: a seed is an integer >= 0, not {seed!r}") from None


def zeros(what: str, shape: Sequence[Any], dtype: Any) -> Parameter:
    """Return a float parameter of zeros; an error that begins with `what` if there is none."""
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
        raise ShapeError(f"{what}: sizes are integers >= 0, not {tuple(shape)}")
    if kind(as_dtype(dtype)) != "f":
        raise DTypeError(f"{what}: weights are floats, not {as_dtype(dtype).name}")
    return Parameter(np.zeros(shape, as_dtype(dtype)))


def uniform_(parameter: Parameter, a: float = 0.0, b: float = 1.0) -> Parameter:
    """Fill with numbers from [a, b) and return the parameter."""
    return _fill(parameter, _generator.random, b - a, a)


def normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Fill with normally distributed numbers and return the parameter."""
    return _fill(parameter, _generator.standard_normal, std, mean)


def kaiming_normal_(
    parameter: Parameter, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Parameter:
    """Fill weights (out, in, ...) normally so that a layer keeps the variance (He et al., 2015).

    a             slope of the leaky ReLU that follows
    mode          "fan_in": of values, forwards; "fan_out": of gradients, backwards
    nonlinearity  what follows: "relu", "leaky_relu" or "linear"
    """
    if parameter.ndim < 2:
        raise ShapeError(f"kaiming_normal_: weights are (out, in, ...), not {parameter.shape}")
    outputs, inputs, *window = parameter.shape
    fans = {"fan_in": inputs * math.prod(window), "fan_out": outputs * math.prod(window)}
    gains = {"linear": 1.0, "relu": 2.0, "leaky_relu": 2 / (1 + a * a)}
    for name, value, allowed in (("mode", mode, fans), ("nonlinearity", nonlinearity, gains)):
        if value not in allowed:
            raise GraphError(f"kaiming_normal_: {name} is {value!r}, not {' or '.join(allowed)}")
    return normal_(parameter, 0.0, math.sqrt(gains[nonlinearity] / max(fans[mode], 1)))


def _fill(
    parameter: Parameter, draw: Callable[..., Array], scale: float, shift: float
) -> Parameter:
    working = np.dtype(np.float64 if parameter.dtype == np.float64 else np.float32)
    values = draw(parameter.shape, working) * working.type(scale) + working.type(shift)
    parameter.assign(values.astype(parameter.dtype))
    return parameter
