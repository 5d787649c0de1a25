"""Exports of elementwise ops: tables of those that ONNX has as well, and functions of the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from minigraph import ops
from minigraph.graph import BOOL, Constant, Node, Op
from minigraph.onnx.exports.structural import product_with_bias
from minigraph.onnx.exports.writer import CannotSay, Exports, Writer, entering
from minigraph.ops import (
    activation,
    arithmetic,
    comparison,
    elementwise,
    exponential,
    trigonometric,
)
from minigraph.ops.elementwise import kind
from minigraph.symbolic import same_shape

# Operators that do what an op does to the same inputs, and the functions of those ops: rows of what
# is read, too, are made of them.
ALIKE = """Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater
HardSwish IsNaN Less Log Mish Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Sqrt Tan Tanh
Where"""
FUNCTIONS = {name: name.lower() for name in ALIKE.split()}
FUNCTIONS |= {name: f"logical_{name.lower()}" for name in ("And", "Not", "Or", "Xor")}
FUNCTIONS |= {f"Bitwise{name}": f"bitwise_{name.lower()}" for name in ("And", "Or", "Xor")}
FUNCTIONS |= {"BitwiseNot": "bitwise_invert", "Mul": "multiply", "Neg": "negative"}
FUNCTIONS |= {"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "Sub": "subtract"}
# By ops; these functions are more, or less, than their operators.
others = {"Div": "divide", "Max": "maximum", "Min": "minimum", "Pow": "pow"}
classes = {name: f.title().replace("_", "") for name, f in (FUNCTIONS | others).items()}
SAME = {Op.registry[op]: name for name, op in classes.items() if op in Op.registry}
# Of bools.
OF_BOOLS: dict[type[Op], str] = {
    arithmetic.Add: "Or",
    arithmetic.Multiply: "And",
    comparison.BitwiseAnd: "And",
    comparison.BitwiseInvert: "Not",
    comparison.BitwiseOr: "Or",
    comparison.BitwiseXor: "Xor",
    comparison.Maximum: "Or",
    comparison.Minimum: "And",
}
ORDERS = (comparison.Greater, comparison.GreaterEqual, comparison.Less, comparison.LessEqual)
LOGIC = tuple(Op.registry[f"Logical{name}"] for name in ("And", "Not", "Or", "Xor"))
# What ops that ONNX has compute as well.
COMPOSED: dict[type[Op], Callable[..., Node]] = {
    activation.Logaddexp: lambda x, y: (
        ops.maximum(x, y) + ops.log1p(ops.exp(-ops.where(x == y, 0, abs(x - y))))
    ),
    arithmetic.Copysign: lambda x, y: ops.where(ops.signbit(y), -abs(x), abs(x)),
    arithmetic.Hypot: lambda x, y: ops.sqrt(x * x + y * y),
    arithmetic.Rsqrt: lambda x: ops.reciprocal(ops.sqrt(x)),
    arithmetic.Square: lambda x: x * x,
    comparison.Isfinite: lambda x: ops.logical_not(ops.isinf(x) | ops.isnan(x)),
    comparison.NotEqual: lambda x, y: ops.logical_not(x == y),
    comparison.Signbit: lambda x: (x < 0) | ((x == 0) & (1 / x < 0)),
    exponential.Erfc: lambda x: 1 - ops.erf(x),
    exponential.Expm1: lambda x: ops.tanh(x * 0.5) * (ops.exp(x) + 1),  # no digits are lost near 0
    exponential.Log10: lambda x: ops.log(x) / math.log(10),
    exponential.Log1p: lambda x: ops.log(x + 1),
    exponential.Log2: lambda x: ops.log(x) / math.log(2),
    trigonometric.Atan2: lambda y, x: (
        ops.where(x == 0, ops.sign(y) * (math.pi / 2), ops.atan(y / x))
        + ops.where(x < 0, ops.copysign(ops.full_like(y, math.pi), y), 0)
    ),
}

EXPORTS: Exports = {
    **dict.fromkeys(SAME, lambda w, op, node, *xs: w.op(SAME[type(op)], *xs)),
    **dict.fromkeys(COMPOSED, lambda w, op, node, *xs: w.expanded(COMPOSED[type(op)], node, xs)),
    elementwise.Astype: lambda w, op, node, x: w.cast(x, node.dtype),
}
export = entering(EXPORTS)


@export(*OF_BOOLS)
def _numbers_or_bools(w: Writer, op: Op, node: Node, *xs: str) -> str:
    if isinstance(op, arithmetic.Add) and (product := product_with_bias(w, *node.inputs)):
        return product
    return w.op((OF_BOOLS if node.dtype == BOOL else SAME)[type(op)], *xs)


@export(*ORDERS, *LOGIC)
def _of_one_kind(w: Writer, op: Op, node: Node, *xs: str) -> str:
    of_bools = isinstance(op, LOGIC)
    if of_bools != (node.inputs[0].dtype == BOOL):
        xs = tuple(w.cast(x, BOOL if of_bools else np.int32) for x in xs)
    return w.op(SAME[type(op)], *xs)


@export(comparison.Isinf, comparison.Isnan)
def _special(w: Writer, op: Op, node: Node, x: str) -> str:
    if node.inputs[0].dtype not in (np.float32, np.float64):  # IsInf takes others from opset 20 on
        x = w.cast(x, np.float32)
    return w.op("IsInf" if isinstance(op, comparison.Isinf) else "IsNaN", x)


@export(comparison.Where)
def _where(w: Writer, op: Op, node: Node, condition: str, x: str, y: str) -> str:
    """Write where(y >= c, c, y), y = relu(x), as a clip of x: that is what `relu6` is."""
    above, limit, positive = node.inputs
    compared = isinstance(above.op, comparison.GreaterEqual) and not limit.shape
    same = compared and [w.values[v] for v in above.inputs] == [y, x]
    if same and isinstance(positive.op, activation.Relu):
        return w.op("Clip", w.values[positive.inputs[0]], w.constant(0, node.dtype), x)
    if node.dtype == BOOL:  # onnxruntime has no Where of these
        chosen = w.op("And", condition, x)
        return w.op("Or", chosen, w.op("And", w.op("Not", condition), y))
    return w.op("Where", condition, x, y)


@export(arithmetic.Ceil, arithmetic.Floor, arithmetic.Round, arithmetic.Trunc)
def _rounding(w: Writer, op: Op, node: Node, x: str) -> str:
    if kind(node.dtype) != "f":
        return x
    if isinstance(op, arithmetic.Trunc):
        return w.op("Mul", w.op("Sign", x), w.op("Floor", w.op("Abs", x)))
    return w.op(type(op).__name__, x)


@export(exponential.ConstantPow)
def _constant_pow(w: Writer, op: exponential.ConstantPow, node: Node, x: str) -> str:
    if op.exponent == 2:
        return w.op("Mul", x, x)
    return w.op("Pow", x, w.constant(op.exponent, node.dtype))


@export(arithmetic.FloorDivide, arithmetic.Remainder)
def _floor_divide(w: Writer, op: Op, node: Node, x: str, y: str) -> str:
    divides, whole = isinstance(op, arithmetic.FloorDivide), kind(node.dtype) != "f"
    below = "" if whole else w.op("Floor", w.op("Div", x, y))
    if divides and not whole:
        return below
    rest = w.op("Mod", x, y) if whole else w.op("Sub", x, w.op("Mul", below, y))
    return w.op("Div", w.op("Sub", x, rest), y) if divides else rest


@export(activation.LeakyRelu)
def _leaky_relu(w: Writer, op: Op, node: Node, x: str, slope: str) -> str:
    factor = node.inputs[1].op
    if isinstance(factor, Constant) and factor.value.size == 1:
        return w.op("LeakyRelu", x, alpha=float(factor.value.item()))
    if not same_shape(node.shape, node.inputs[0].shape):
        raise CannotSay
    return w.op("PRelu", x, slope)


@export(comparison.Clip)
def _clip(w: Writer, op: Op, node: Node, x: str, low: str, high: str) -> str:
    if node.inputs[1].shape == node.inputs[2].shape == ():
        return w.op("Clip", x, low, high)
    return w.op("Min", w.op("Max", x, low), high)
