"""Export ops to ONNX: tables of the ops that ONNX has, and functions for the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minigraph.graph import BFLOAT16, BOOL, Constant, Copy, FromSizes, Node, Op
from minigraph.onnx.compositions import COMPOSED
from minigraph.onnx.writer import INT64, SLICE_END, Export, Exports, NotExpressible, Writer
from minigraph.ops import (
    activation,
    arithmetic,
    comparison,
    conv,
    elementwise,
    exponential,
    indexing,
    interpolation,
    pooling,
    reduction,
    shape,
    slicing,
)
from minigraph.ops.batch_norm import BatchNormInference
from minigraph.ops.cumulative import CumulativeSum
from minigraph.ops.custom_gradient import After, Recomputed, WithGradient
from minigraph.ops.elementwise import kind
from minigraph.ops.joining import Concat
from minigraph.ops.matmul import Matmul
from minigraph.ops.normalization import LocalResponseNorm
from minigraph.ops.ordering import Argsort
from minigraph.ops.scan import Scan
from minigraph.ops.softmax import LogSoftmax, Softmax
from minigraph.symbolic import is_integer, is_symbolic, same_shape

# Operators that mean the same as an op, and the functions of these ops; the rows for reading models
# use them, too.
SAME_NAMES = """Abs Acos Acosh Add Asin Asinh Atan Atanh Ceil Cos Cosh Equal Erf Exp Floor Greater
HardSwish IsNaN Less Log Mish Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Sqrt Tan Tanh
Where"""
FUNCTIONS = {name: name.lower() for name in SAME_NAMES.split()}
FUNCTIONS |= {name: f"logical_{name.lower()}" for name in ("And", "Not", "Or", "Xor")}
FUNCTIONS |= {f"Bitwise{name}": f"bitwise_{name.lower()}" for name in ("And", "Or", "Xor")}
FUNCTIONS |= {"BitwiseNot": "bitwise_invert", "Mul": "multiply", "Neg": "negative"}
FUNCTIONS |= {"GreaterOrEqual": "greater_equal", "LessOrEqual": "less_equal", "Sub": "subtract"}
# The last four mean the same as an op, but differ from the function of that name.
OPS = FUNCTIONS | {"Div": "divide", "Max": "maximum", "Min": "minimum", "Pow": "pow"}
CLASSES = {name: function.title().replace("_", "") for name, function in OPS.items()}
OPERATOR_OF_CLASS = {Op.registry[cls]: name for name, cls in CLASSES.items() if cls in Op.registry}
BOOL_OPERATORS: dict[type[Op], str] = {
    arithmetic.Add: "Or",
    arithmetic.Multiply: "And",
    comparison.BitwiseAnd: "And",
    comparison.BitwiseInvert: "Not",
    comparison.BitwiseOr: "Or",
    comparison.BitwiseXor: "Xor",
    comparison.Maximum: "Or",
    comparison.Minimum: "And",
}
ORDER_COMPARISONS = (
    comparison.Greater,
    comparison.GreaterEqual,
    comparison.Less,
    comparison.LessEqual,
)
LOGIC = tuple(Op.registry[f"Logical{name}"] for name in ("And", "Not", "Or", "Xor"))
REDUCTIONS = (reduction.Max, reduction.Min, reduction.Prod, reduction.Sum)
EXPORTS: Exports = {
    **dict.fromkeys(
        OPERATOR_OF_CLASS, lambda w, op, node, *xs: w.op(OPERATOR_OF_CLASS[type(op)], *xs)
    ),
    **dict.fromkeys(COMPOSED, lambda w, op, node, *xs: w.expanded(COMPOSED[type(op)], node, xs)),
    elementwise.Astype: lambda w, op, node, x: w.cast(x, node.dtype),
    Concat: lambda w, op, node, *xs: w.op("Concat", *xs, axis=op.axis),
    Copy: lambda w, op, node, x: x,
    LogSoftmax: lambda w, op, node, x: w.op("LogSoftmax", x, axis=op.axis),
    indexing.PutAlong: lambda w, op, node, x, index, v: w.op(
        "ScatterElements", x, w.index(node.inputs[1], index), v, axis=op.axis
    ),
    indexing.TakeAlong: lambda w, op, node, x, index: w.op(
        "GatherElements", x, w.index(node.inputs[1], index), axis=op.axis
    ),
    conv.Conv2d: lambda w, op, node, *xs: w.op("Conv", *xs, **_window(op, node.inputs[1])),
    indexing.Take: lambda w, op, node, x, index: w.op(
        "Gather", x, w.index(node.inputs[1], index), axis=op.axis
    ),
    # ONNX numbers the positions of maxima differently.
    pooling.MaxPool2d: lambda w, op, node, x: [w.op("MaxPool", x, **_pool(op.pooling))],
    shape.BroadcastTo: lambda w, op, node, x: w.expand(x, node.inputs[0].shape, node.shape),
    shape.PermuteDims: lambda w, op, node, x: w.op("Transpose", x, perm=op.axes),
    shape.Reshape: lambda w, op, node, x: w.reshape(x, node.shape),
    **dict.fromkeys(
        (shape.StopGradient, WithGradient, Recomputed, After), lambda w, op, node, y, *xs: y
    ),
}


def export(*ops: type[Op]) -> Callable[[Export], Export]:
    """Return a decorator that enters a function into EXPORTS for these ops."""
    return lambda function: EXPORTS.update(dict.fromkeys(ops, function)) or function


@export(*BOOL_OPERATORS)
def _numbers_or_bools(w: Writer, op: Op, node: Node, *xs: str) -> str:
    if isinstance(op, arithmetic.Add) and (product := product_with_bias(w, *node.inputs)):
        return product
    return w.op((BOOL_OPERATORS if node.dtype == BOOL else OPERATOR_OF_CLASS)[type(op)], *xs)


@export(*ORDER_COMPARISONS, *LOGIC)
def _one_dtype_kind(w: Writer, op: Op, node: Node, *xs: str) -> str:
    is_logical = isinstance(op, LOGIC)
    if is_logical != (node.inputs[0].dtype == BOOL):
        xs = tuple(w.cast(x, BOOL if is_logical else np.int32) for x in xs)
    return w.op(OPERATOR_OF_CLASS[type(op)], *xs)


@export(comparison.Isinf, comparison.Isnan)
def _special(w: Writer, op: Op, node: Node, x: str) -> str:
    if node.inputs[0].dtype not in (np.float32, np.float64):  # IsInf takes others from opset 20
        x = w.cast(x, np.float32)
    return w.op("IsInf" if isinstance(op, comparison.Isinf) else "IsNaN", x)


@export(comparison.Where)
def _where(w: Writer, op: Op, node: Node, condition: str, x: str, y: str) -> str:
    """Write where(condition, x, y); relu6, which is where(y >= c, c, y) of y = relu(x), as Clip."""
    above, limit, positive = node.inputs
    compared = isinstance(above.op, comparison.GreaterEqual) and not limit.shape
    same = compared and [w.values[v] for v in above.inputs] == [y, x]
    if same and isinstance(positive.op, activation.Relu):
        return w.op("Clip", w.values[positive.inputs[0]], w.constant(0, node.dtype), x)
    if node.dtype == BOOL:  # onnxruntime has no Where of bools
        selected = w.op("And", condition, x)
        return w.op("Or", selected, w.op("And", w.op("Not", condition), y))
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
    divides = isinstance(op, arithmetic.FloorDivide)
    if kind(node.dtype) != "f":
        remainder = w.op("Mod", x, y)
        return w.op("Div", w.op("Sub", x, remainder), y) if divides else remainder
    remainder, zero = w.op("Mod", x, y, fmod=1), w.constant(0, node.dtype)  # with the sign of x
    opposite = w.op("Xor", w.op("Less", remainder, zero), w.op("Less", y, zero))
    opposite = w.op("And", opposite, w.op("Not", w.op("Equal", remainder, zero)))
    if not divides:
        return w.op("Where", opposite, w.op("Add", remainder, y), remainder)
    quotient = w.op("Round", w.op("Div", w.op("Sub", x, remainder), y))
    floor = w.op("Sub", quotient, w.cast(opposite, node.dtype))
    return w.op("Where", w.op("Equal", y, zero), w.op("Div", x, y), floor)


@export(activation.LeakyRelu)
def _leaky_relu(w: Writer, op: Op, node: Node, x: str, slope: str) -> str:
    factor = node.inputs[1].op
    if isinstance(factor, Constant) and factor.value.size == 1:
        return w.op("LeakyRelu", x, alpha=float(factor.value.item()))
    if not same_shape(node.shape, node.inputs[0].shape):
        raise NotExpressible
    return w.op("PRelu", x, slope)


@export(comparison.Clip)
def _clip(w: Writer, op: Op, node: Node, x: str, low: str, high: str) -> str:
    if node.inputs[1].shape == node.inputs[2].shape == ():
        return w.op("Clip", x, low, high)
    return w.op("Min", w.op("Max", x, low), high)


@export(slicing.Slice)
def _slice(w: Writer, op: slicing.Slice, node: Node, x: str) -> str:
    windows = zip(range(node.ndim), op.start, op.stop, op.step, node.inputs[0].shape, strict=True)
    sliced = [
        (axis, start, SLICE_END if same_shape((stop,), (size,)) else stop, step)
        for axis, start, stop, step, size in windows
        if not same_shape((start, stop, step), (0, size, 1))
    ]
    axes, start, stop, step = map(w.sizes, zip(*sliced, strict=True) if sliced else ((),) * 4)
    return w.op("Slice", x, start, stop, axes, step)


@export(slicing.Flip)
def _flip(w: Writer, op: slicing.Flip, node: Node, x: str) -> str:
    stop, step = ([n] * len(op.axes) for n in (-SLICE_END, -1))
    return w.op("Slice", x, *map(w.sizes, (step, stop, op.axes, step)))


@export(slicing.Pad)
def _pad(w: Writer, op: slicing.Pad, node: Node, x: str) -> str:
    value, shape = w.constant(op.value, node.dtype), [*node.inputs[0].shape]
    for axis, between in enumerate(op.interior):
        if between:  # n elements are rows of one; pad the rows, join them, and cut the last one
            before, (n, *after) = shape[:axis], shape[axis:]
            rows = w.reshape(x, (*before, n, 1, *after))
            rows = w.op("Pad", rows, w.sizes([0, between]), value, w.sizes([axis + 1]))
            joined = w.reshape(rows, (*before, n * (between + 1), *after))
            shape[axis] = n * (between + 1) - between
            x = w.op("Slice", joined, *map(w.sizes, ([0], [shape[axis]], [axis])))
    return w.op("Pad", x, w.sizes((*op.low, *op.high)), value)


@export(indexing.AddAlong)
def _add_along(w: Writer, op: indexing.AddAlong, node: Node, v: str, indices: str, *x: str) -> str:
    (start,) = x or (w.expand(w.constant(0, node.dtype), (), node.shape),)
    indices = w.index(node.inputs[1], indices)
    return w.op("ScatterElements", start, indices, v, axis=op.axis, reduction="add")


@export(indexing.OneHot)
def _one_hot(w: Writer, op: indexing.OneHot, node: Node, labels: str) -> str:
    column = w.op("Unsqueeze", w.cast(labels, np.int64), w.sizes([-1]))
    return w.cast(w.op("Equal", column, _numbers(w, 0, op.size)), node.dtype)


@export(interpolation.Blend)
def _blend(w: Writer, op: interpolation.Blend, node: Node, x: str, *xs: str) -> str:
    dtype = node.inputs[3].dtype
    wide = x if node.dtype == dtype else w.cast(x, dtype)
    share = w.reshape(xs[2], (-1, *(1,) * (node.ndim - op.axis - 1)))
    below, above = (w.op("Gather", wide, indices, axis=op.axis) for indices in xs[:2])
    y = w.op("Mul", below, w.op("Sub", w.constant(1, dtype), share))
    y = w.op("Add", y, w.op("Mul", above, share))
    return y if node.dtype == dtype else w.cast(y, node.dtype)


@export(Argsort)
def _argsort(w: Writer, op: Argsort, node: Node, x: str) -> str:
    largest = int(op.descending)
    return w.ops("TopK", 2, x, w.sizes([op.count]), axis=op.axis, largest=largest)[1]


@export(FromSizes)
def _from_sizes(w: Writer, op: FromSizes, node: Node) -> str:
    """Write a size, an array of sizes, a range, or the mask of a triangle or a diagonal."""
    match op.of:
        case "a size" | "mean" | "var":
            dtype = INT64 if is_integer(op.sizes[0]) else op.dtype
            number = w.op("Squeeze", w.size(op.sizes[0], dtype), w.sizes([0]))
            return number if dtype == op.dtype else w.cast(number, op.dtype)
        case "arange" | "index":
            bounds = op.sizes if len(op.sizes) == 3 else (0, *op.sizes)
            return w.cast(_numbers(w, *bounds), op.dtype)
        case "triangle" | "eye":
            rows, columns, k = op.sizes
            down = w.op("Unsqueeze", _numbers(w, k, rows + k), w.sizes([1]))
            comparison = "Equal" if op.of == "eye" else "LessOrEqual"
            return w.op(comparison, _numbers(w, 0, columns), down)
        case "Shape":  # of an ONNX model
            numbers = w.op("Reshape", w.sizes(op.sizes), w.sizes(op.shape))
            return w.cast(numbers, op.dtype)
    raise NotExpressible


def _numbers(w: Writer, *bounds: int) -> str:
    if not is_symbolic(bounds):
        return w.constant(np.arange(*bounds), INT64)
    return w.op("Range", *(w.op("Squeeze", w.size(n), w.sizes([0])) for n in (*bounds, 1)[:3]))


# ---------------------------------------------------------------- reductions and layers


@export(*REDUCTIONS, CumulativeSum)
def _reduce(w: Writer, op: Any, node: Node, x: str) -> str:
    """Write a reduction, which is computed in at least 32 bits."""
    wide = np.dtype(np.float32 if node.dtype in (BFLOAT16, np.float16) else np.int32)
    wide = node.dtype if node.dtype.itemsize > 2 else wide
    x = x if node.inputs[0].dtype == wide else w.cast(x, wide)
    if isinstance(op, CumulativeSum):
        x = w.op("CumSum", x, w.constant(op.axis, INT64), reverse=int(op.reverse))
    elif op.axes:
        x = w.op(f"Reduce{type(op).__name__}", x, w.sizes(op.axes), keepdims=1)
    return x if node.dtype == wide else w.cast(x, node.dtype)


@export(reduction.Argmax)
def _argmax(w: Writer, op: reduction.Argmax, node: Node, x: str) -> str:
    x = w.cast(x, np.int32) if node.inputs[0].dtype == BOOL else x
    return w.op("ArgMax", x, axis=op.axes[0], keepdims=1)


@export(Softmax)
def _softmax(w: Writer, op: Softmax, node: Node, x: str) -> str:
    if op.masked:
        raise NotExpressible
    return w.op("Softmax", x, axis=op.axis)


@export(Matmul)
def _matmul(w: Writer, op: Matmul, node: Node, x: str, y: str, *bias: str) -> str:
    weights = node.inputs[1].op
    if kind(node.dtype) == "f" and node.inputs[0].ndim == node.inputs[1].ndim == 2:
        if isinstance(weights, shape.PermuteDims):  # the weights of `linear`
            return w.op("Gemm", x, w.values[node.inputs[1].inputs[0]], *bias, transB=1)
        if bias:
            return w.op("Gemm", x, y, *bias)
    product = w.op("MatMul", x, y)
    return w.op("Add", product, *bias) if bias else product


def product_with_bias(w: Writer, product: Node, bias: Node) -> str:
    """Return product + bias as one node; "" if they do not come from `linear`."""
    if not isinstance(product.op, Matmul) or w.users[product] != 1 or len(product.inputs) > 2:
        return ""
    matrices = kind(product.dtype) == "f" and product.inputs[0].ndim == product.inputs[1].ndim == 2
    if not matrices or not same_shape(bias.shape, product.shape[1:]):
        return ""
    w.withdraw(w.values[product])
    return _matmul(w, product.op, product, *(w.values[x] for x in (*product.inputs, bias)))


@export(conv.Conv2dBackwardData)
def _conv_transpose2d(w: Writer, op: conv.Conv2dBackwardData, node: Node, *xs: str) -> str:
    y, weights = node.inputs
    sizes = (node.shape[2:], y.shape[2:], weights.shape[2:])
    numbers = (op.conv.stride, op.conv.padding, op.conv.dilation)
    extras = [
        m - ((n - 1) * stride - 2 * padding + dilation * (k - 1) + 1)
        for m, n, k, stride, padding, dilation in zip(*sizes, *numbers, strict=True)
    ]
    if not all(isinstance(n, int) for n in extras):
        raise NotExpressible
    return w.op("ConvTranspose", *xs, output_padding=extras, **_window(op.conv, weights))


def _window(op: conv.Conv2d, weights: Node) -> dict[str, Any]:
    return {
        "kernel_shape": weights.shape[2:],
        "strides": op.stride,
        "pads": op.padding * 2,
        "dilations": op.dilation,
        "group": op.groups,
    }


@export(pooling.AvgPool2d)
def _avg_pool2d(w: Writer, op: pooling.AvgPool2d, node: Node, x: str) -> str:
    y = w.op("AveragePool", x, count_include_pad=int(op.count_padding), **_pool(op.pooling))
    if not op.count_padding or op.pooling.padding == tuple((p, p) for p in op.pad):
        return y
    if is_symbolic(node.inputs[0].shape[2:]):
        raise NotExpressible
    # With ceil_mode, elements of a window beyond the padding are not counted.
    share = math.prod(op.pooling.window) / op.counts(node.inputs[0].shape)
    return w.op("Mul", y, w.constant(share, node.dtype))


def _pool(p: pooling.Pooling) -> dict[str, Any]:
    (top, bottom), (left, right) = p.padding
    return {"kernel_shape": p.window, "strides": p.stride, "pads": (top, left, bottom, right)}


@export(BatchNormInference)
def _batch_norm(w: Writer, op: BatchNormInference, node: Node, *xs: str) -> str:
    if node.inputs[1].ndim > 1:  # in a layout chosen by a pass
        raise NotExpressible
    return w.op("BatchNormalization", *xs, epsilon=op.eps)


@export(LocalResponseNorm)
def _local_response_norm(w: Writer, op: LocalResponseNorm, node: Node, x: str) -> str:
    if node.ndim != 4 or not op.size % 2:  # for even sizes ONNX takes other neighbours
        raise NotExpressible
    return w.op("LRN", x, size=op.size, alpha=op.alpha, beta=op.beta, bias=op.k)


@export(Scan)
def _scan(w: Writer, op: Scan, node: Node, *xs: str) -> Any:
    count, results = op.carried + op.scanned, len(op.graph.outputs)
    if not (op.scanned and op.length):
        raise NotExpressible
    body = w.body(op.graph, [*(w.unique(f"step.{i}") for i in range(count)), *xs[count:]], count)
    counts = {"input": op.scanned, "output": results - op.carried}
    reverse = {f"scan_{what}_directions": [1] * n for what, n in counts.items() if op.reverse and n}
    names = w.ops("Scan", results, *xs[:count], body=body, num_scan_inputs=op.scanned, **reverse)
    return names if node.is_bundle else names[0]
