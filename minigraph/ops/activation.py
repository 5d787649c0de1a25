"""Activation functions, with the arguments of `torch.nn.functional`, and ops fused with one."""

from __future__ import annotations

import math
from typing import Literal

import ml_dtypes
import numpy as np

from minigraph.errors import ShapeError
from minigraph.graph import Array, Expanded, Node, Op, Operand, Spec, Tensor, builder, gradients
from minigraph.ops.comparison import Isinf, where
from minigraph.ops.elementwise import Elementwise, FloatTensor, promote, widen
from minigraph.ops.exponential import Erfc, Exp, Expm1, Log1p
from minigraph.ops.shape import reshape
from minigraph.ops.trigonometric import Tanh


class Relu(Elementwise):
    """0 where x is negative, else x; NaN stays."""

    example = "[-1.0, 2.0]", "array([0., 2.])"
    c = "({0} < 0 ? 0 : {0})"
    exact = True
    kinks = (0.0,)
    grad = gradients(lambda dy, y, x: where(y <= 0, 0, dy))

    def forward(self, x: Array) -> Array:
        return np.where(x < 0, np.zeros_like(x, shape=()), x)


class LeakyRelu(Elementwise):
    """x where it is positive, else x * slope."""

    c = "({0} > 0 ? {0} : {0} * {1})"
    accepts = "f"
    kinks = (0.0,)

    def forward(self, x: Array, slope: Array) -> Array:
        return np.where(x > 0, x, x * slope)

    def grad(self, dy: Node, y: Node, x: Node, slope: Node) -> tuple[Node, Node]:
        positive = x > 0
        return where(positive, dy, dy * slope), where(positive, 0, dy * x)


class Hardswish(Elementwise):
    """0 below -3, x above 3, x * (x + 3) / 6 in between (Howard et al., 2019, MobileNetV3)."""

    example = "[-4.0, 1.0, 4.0]", "array([0.        , 0.66666667, 4.        ])"
    c = "({0} <= -3 ? 0 : {0} < 3 ? {0} * ({0} + 3) / 6 : {0})"
    accepts = "f"
    kinks = (-3.0, 3.0)
    grad = gradients(lambda dy, y, x: where(x <= -3, 0, where(x >= 3, dy, dy * (x / 3 + 0.5))))

    def forward(self, x: Array) -> Array:
        return np.where(x <= -3, np.zeros_like(x, shape=()), np.where(x < 3, x * (x + 3) / 6, x))


class Sigmoid(Elementwise):
    """1 / (1 + exp(-x))."""

    example = "[0.0, 2.0]", "array([0.5       , 0.88079708])"
    c = "1 / (1 + exp{f}(-{0}))"
    accepts = "f"
    costly = True
    grad = gradients(lambda dy, y, x: dy * (y * (1 - y)))

    def forward(self, x: Array) -> Array:
        y: Array = 1 / (1 + np.exp(-widen(x)))
        return y.astype(x.dtype)


class Logaddexp(Elementwise):
    """log(exp(x) + exp(y)) without overflow."""

    example = "[0.0, 1000.0], [0.0, 1000.0]", "array([6.93147181e-01, 1.00069315e+03])"
    c = "mg_logaddexp{f}({0}, {1})"
    support = """
static inline {T} mg_logaddexp{f}({T} x, {T} y) {{
  {T} apart = x == y ? 0 : fabs{f}(x - y);  /* inf - inf is NaN */
  return (x > y || x != x ? x : y) + log1p{f}(exp{f}(-apart));
}}"""
    accepts = "f"
    costly = True
    commutative = True

    def grad(self, dy: Node, z: Node, x: Node, y: Node) -> tuple[Node, Node]:
        difference = where((x == y) & Isinf.of(x), 0, x - y)
        return dy * Sigmoid.of(difference), dy * Sigmoid.of(-difference)


class Activated(Expanded):
    """The unary op `activation` applied to the result of `first`, whose name reports show.

    The optimizer fuses a convolution or product and its activation to this op, so that they become
    one step and the value in between needs no memory.
    """

    first: Op
    activation: Elementwise

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.first.name)  # the class is frozen

    def infer(self, *xs: Spec) -> Spec:
        return self.activation.infer(self.first.infer(*xs))

    def expand(self, *xs: Node) -> tuple[Node]:
        return (self.activation(self.first(*xs)),)

    def __str__(self) -> str:
        return f"{self.first}+{self.activation}"


@builder
def leaky_relu(x: Operand, negative_slope: Operand = 0.01) -> Node:
    """Return x where it is positive, else x * negative_slope.

    >>> cg.compile([], ops.leaky_relu([-1.0, 2.0]))()
    array([-0.01,  2.  ])
    """
    return LeakyRelu()(*promote(x, negative_slope, floating=True))


@builder
def prelu(x: Operand, weight: Operand) -> Node:
    """Return x where it is positive, else x * weight, with a weight per channel (c,) or one (1,).

    x is (n, c, ...) with several weights (He et al., 2015).

    >>> cg.compile([], ops.prelu([[-1.0, -2.0]], [0.1, 0.5]))()
    array([[-0.1, -1. ]])
    """
    x, weight = promote(x, weight, floating=True)
    if weight.ndim > 1 or (weight.size != 1 and (x.ndim < 2 or weight.size != x.shape[1])):
        raise ShapeError(
            f"weight has shape {weight.shape}; x of shape {x.shape} takes (1,) or one per channel"
        )
    axes = (1, weight.size, *(1,) * (x.ndim - 2)) if weight.size > 1 else ()
    return LeakyRelu()(x, reshape(weight, axes))


@builder
def elu(x: FloatTensor, alpha: float = 1.0) -> Node:
    """Return x where it is positive, else alpha * (exp(x) - 1) (Clevert et al., 2016).

    >>> cg.compile([], ops.elu([-1.0, 2.0]))()
    array([-0.63212056,  2.        ])
    """
    positive = x > 0
    return where(positive, x, Expm1.of(where(positive, 0, x)) * alpha)


@builder
def relu6(x: Tensor) -> Node:
    """Return 0 where x is negative, 6 where it is above 6, else x.

    >>> cg.compile([], ops.relu6([-1.0, 3.0, 8.0]))()
    array([0., 3., 6.])
    """
    positive = Relu.of(x)
    return where(positive >= 6, 6, positive)  # as in torch, no gradient at 6


@builder
def hardsigmoid(x: FloatTensor) -> Node:
    """Return 0 below -3, 1 above 3, x / 6 + 1 / 2 in between (Howard et al., 2019, MobileNetV3).

    >>> cg.compile([], ops.hardsigmoid([-4.0, 1.5, 4.0]))()
    array([0.  , 0.75, 1.  ])
    """
    return (relu6(widen(x) + 3) / 6).astype(x.dtype)


@builder
def mish(x: FloatTensor) -> Node:
    """Return x * tanh(softplus(x)) (Misra, 2019).

    >>> cg.compile([], ops.mish([-1.0, 1.0]))()
    array([-0.30340146,  0.86509839])
    """
    return x * Tanh.of(softplus(x))


@builder
def gelu(x: FloatTensor, approximate: Literal["none", "tanh"] = "none") -> Node:
    """Return x times the normal distribution function of x (Hendrycks and Gimpel, 2016).

    16-bit floats are computed in float32.

    approximate  "none": exact, by erf; "tanh": the paper's approximation

    >>> cg.compile([], ops.gelu([-1.0, 0.0, 1.0]))()
    array([-0.15865525,  0.        ,  0.84134475])
    """
    wide = widen(x)
    if approximate == "none":
        y = wide * 0.5 * Erfc.of(wide * -math.sqrt(0.5))
    else:
        # (1 + tanh(z)) / 2 is sigmoid(2 z), which does not cancel.
        z = wide + 0.044715 * wide * wide * wide
        y = wide * Sigmoid.of(2 * math.sqrt(2 / math.pi) * z)
    return y.astype(x.dtype)


@builder
def silu(x: FloatTensor) -> Node:
    """Return x * sigmoid(x).

    >>> cg.compile([], ops.silu([-1.0, 1.0]))()
    array([-0.26894142,  0.73105858])
    """
    return x * Sigmoid.of(x)


@builder
def softplus(x: FloatTensor, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """Return log(1 + exp(beta * x)) / beta, and x where beta * x is above `threshold`.

    >>> cg.compile([], ops.softplus([-1.0, 0.0, 30.0]))()
    array([ 0.31326169,  0.69314718, 30.        ])
    """
    scaled = x * beta
    # Above -log(eps / 4) both formulas round to the same number, and exp may overflow.
    eps = float(ml_dtypes.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    large = scaled > min(threshold, -math.log(eps / 4))
    return where(large, x, Log1p.of(Exp.of(where(large, 0, scaled))) / beta)
