"""Initial values of parameters: distributions of `torch.nn.init`, drawn from one generator.

The generator starts from seed 0 in every process, so a program that makes its layers in the same
order gets the same values.  `manual_seed` restarts it.  (Dropout and `ops.random_*` do not draw
from it: their seed is an option of `mg.comp_graph`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np

from minigraph.arguments import Kind, Seed, checked, one_of, with_predicate
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, DType, Parameter, Shape, Spec, as_dtype, cast
from minigraph.ops.elementwise import kind

_generator = np.random.default_rng(0)


@checked
def manual_seed(seed: Seed) -> None:
    """Seed the generator of all parameters that are made afterwards.

    >>> nn.manual_seed(0)
    >>> first = nn.Linear(4, 2).weight.numpy()
    >>> nn.manual_seed(0)
    >>> bool((nn.Linear(4, 2).weight.numpy() == first).all())
    True
    """
    global _generator
    _generator = np.random.default_rng(seed)


def _trainable(value: Any, axes: int = 0) -> Parameter:
    if not isinstance(value, Parameter) or kind(value.dtype) != "f":
        raise TypeError
    if value.ndim < axes:
        raise ShapeError(f"weights are (out, in, ...), not {value.shape}")
    return value


FLOATS = "a parameter of floats"
FLOAT_DTYPE = with_predicate(lambda dtype: kind(dtype) == "f", as_dtype)
Weights = Annotated[Any, Kind("a float dtype", FLOAT_DTYPE, DTypeError, none_is_default=True)]
Trainable = Annotated[Parameter, Kind(FLOATS, _trainable)]
Matrix = Annotated[Parameter, Kind(FLOATS, lambda value: _trainable(value, 2))]


def full(shape: Shape, value: float, dtype: DType) -> Array:
    """Return an array filled with `value`, without memory; raise DTypeError if it does not fit."""
    spec = Spec(shape, dtype)
    return np.broadcast_to(cast(np.asarray(value), spec.dtype), spec.shape)


@checked
def uniform_(parameter: Trainable, a: float = 0.0, b: float = 1.0) -> Parameter:
    """Fill with numbers from [a, b) and return the parameter.

    >>> w = mg.Parameter(np.zeros((2, 3), "float32"))
    >>> bool((nn.init.uniform_(w, -0.1, 0.1).numpy() < 0.1).all())
    True
    """
    return _fill(parameter, _generator.random, b - a, a)


@checked
def normal_(parameter: Trainable, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Fill with normally distributed numbers and return the parameter.

    >>> nn.init.normal_(nn.Linear(8, 2).weight, std=0.02).shape
    (2, 8)
    """
    return _fill(parameter, _generator.standard_normal, std, mean)


@checked
def constant_(parameter: Trainable, val: float) -> Parameter:
    """Fill with `val` and return the parameter.

    >>> nn.init.constant_(nn.Linear(8, 2).bias, 0.5).numpy()
    array([0.5, 0.5], dtype=float32)
    """
    parameter.assign(full(parameter.shape, val, parameter.dtype))
    return parameter


@checked
def zeros_(parameter: Trainable) -> Parameter:
    """Fill with 0 and return the parameter.

    >>> nn.init.zeros_(nn.Linear(8, 2).bias).numpy()
    array([0., 0.], dtype=float32)
    """
    return constant_(parameter, 0.0)


@checked
def ones_(parameter: Trainable) -> Parameter:
    """Fill with 1 and return the parameter.

    >>> nn.init.ones_(nn.Linear(8, 2).bias).numpy()
    array([1., 1.], dtype=float32)
    """
    return constant_(parameter, 1.0)


@checked
def eye_(parameter: Trainable) -> Parameter:
    """Fill a matrix with 1 on its diagonal and 0 elsewhere; return it.

    >>> nn.init.eye_(nn.Linear(2, 2).weight).numpy()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if parameter.ndim != 2:
        raise ShapeError(f"eye_: the identity is a matrix, not of shape {parameter.shape}")
    parameter.assign(np.eye(*parameter.shape, dtype=parameter.dtype))
    return parameter


@checked
def trunc_normal_(
    parameter: Trainable, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Parameter:
    """Fill with normally distributed numbers, of those within [a, b], and return the parameter.

    As in torch, the inverse of the distribution function maps uniform numbers; it is interpolated
    in a table.

    >>> nn.init.trunc_normal_(nn.Linear(8, 2).weight, std=0.02).shape
    (2, 8)
    """
    if not (std > 0 and a < b and math.isfinite(mean)):
        arguments = f"mean is {mean}, std {std}, a {a}, b {b}"
        raise GraphError(f"trunc_normal_: {arguments}; it takes a finite mean, std > 0 and a < b")
    low, high = (a - mean) / std, (b - mean) / std
    likeliest = min(max(0.0, low), high)
    # Beyond this distance, numbers are less likely by a factor of 1e-17.
    reach = math.sqrt(likeliest * likeliest + 80)
    z = np.linspace(max(low, -reach), min(high, reach), 2**16 + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        density = np.exp((likeliest * likeliest - z * z) / 2)
    cumulative = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])

    def draw(shape: Shape, dtype: DType) -> Array:
        return np.interp(_generator.random(shape) * cumulative[-1], cumulative, z).astype(dtype)

    _fill(parameter, draw, std, mean)
    with np.errstate(over="ignore"):
        bounds = np.array([a, b]).astype(parameter.dtype)
    parameter.assign(np.clip(parameter.numpy(), *bounds))  # rounding may exceed them
    return parameter


@checked
def orthogonal_(parameter: Matrix, gain: float = 1.0) -> Parameter:
    """Fill weights (out, in, ...), as a matrix (out, rest), with an orthogonal one times `gain`.

    Its rows are orthonormal, or its columns if there are fewer (Saxe et al., 2013).  Returns the
    parameter.

    >>> w = nn.init.orthogonal_(nn.Linear(2, 2).weight).numpy()
    >>> np.allclose(w @ w.T, np.eye(2), atol=1e-6)
    True
    """
    rows, columns = parameter.shape[0], math.prod(parameter.shape[1:])
    normal = _generator.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(normal)
    q *= np.sign(np.diagonal(r))  # so that all orthogonal matrices are equally likely
    matrix = (q if rows >= columns else q.T) * gain
    parameter.assign(matrix.reshape(parameter.shape))
    return parameter


GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "leaky_relu": math.sqrt(2),  # of slope 0
    "selu": 3 / 4,
}
Nonlinearity = Annotated[str, one_of(*GAINS)]


@checked
def calculate_gain(nonlinearity: Nonlinearity, param: float | None = None) -> float:
    """Return torch's factor for the standard deviation of weights before a nonlinearity.

    param  the slope of a leaky ReLU; None: 0.01

    >>> nn.init.calculate_gain("leaky_relu", 1.0)
    1.0
    """
    gain = GAINS[nonlinearity]
    slope = 0.01 if param is None else param
    return gain / math.hypot(1, slope) if nonlinearity == "leaky_relu" else gain


@checked
def xavier_uniform_(parameter: Matrix, gain: float = 1.0) -> Parameter:
    """Fill weights (out, in, ...) uniformly with the standard deviation of `xavier_normal_`.

    >>> nn.init.xavier_uniform_(nn.Linear(8, 2).weight).shape
    (2, 8)
    """
    bound = math.sqrt(3) * _xavier(parameter, gain)
    return uniform_(parameter, -bound, bound)


@checked
def xavier_normal_(parameter: Matrix, gain: float = 1.0) -> Parameter:
    """Fill weights (out, in, ...) normally, a mean of both variances (Glorot and Bengio, 2010).

    The standard deviation is gain * sqrt(2 / (fan_in + fan_out)).

    >>> nn.init.xavier_normal_(nn.Linear(8, 2).weight).shape
    (2, 8)
    """
    return normal_(parameter, 0.0, _xavier(parameter, gain))


@checked
def kaiming_uniform_(
    parameter: Matrix,
    a: float = 0.0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: Nonlinearity = "leaky_relu",
) -> Parameter:
    """Fill weights (out, in, ...) uniformly with the standard deviation of `kaiming_normal_`.

    >>> nn.init.kaiming_uniform_(nn.Linear(8, 2).weight, nonlinearity="relu").shape
    (2, 8)
    """
    bound = math.sqrt(3) * _kaiming(parameter, a, mode, nonlinearity)
    return uniform_(parameter, -bound, bound)


@checked
def kaiming_normal_(
    parameter: Matrix,
    a: float = 0.0,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    nonlinearity: Nonlinearity = "leaky_relu",
) -> Parameter:
    """Fill weights (out, in, ...) normally so that a layer keeps the variance (He et al., 2015).

    a             slope of the leaky ReLU that follows
    mode          "fan_in": of values, forwards; "fan_out": of gradients, backwards
    nonlinearity  the name of the nonlinearity that follows, as for `calculate_gain`

    >>> nn.init.kaiming_normal_(nn.Linear(8, 2).weight, mode="fan_out").shape
    (2, 8)
    """
    return normal_(parameter, 0.0, _kaiming(parameter, a, mode, nonlinearity))


def _kaiming(parameter: Parameter, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _fans(parameter)
    fan = fan_in if mode == "fan_in" else fan_out
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def _xavier(parameter: Parameter, gain: float) -> float:
    return gain * math.sqrt(2 / max(sum(_fans(parameter)), 1))


def _fans(parameter: Parameter) -> tuple[int, int]:
    """Return the inputs of each output of a layer, and the outputs of each input."""
    outputs, inputs, *window = parameter.shape
    return inputs * math.prod(window), outputs * math.prod(window)


def _fill(
    parameter: Parameter, draw: Callable[..., Array], scale: float, shift: float
) -> Parameter:
    working = np.dtype(np.float64 if parameter.dtype == np.float64 else np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # 1e300 is infinity in float32
        values = draw(parameter.shape, working)
        values *= working.type(scale)
        values += working.type(shift)
    parameter.assign(values)
    return parameter
