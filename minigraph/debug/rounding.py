"""Graphs evaluated in float64, and how far rounding may take a kernel's result from that.

In float64, passes that keep the meaning of a graph give the same results but for 1e-16, whatever
float32 makes of them.  Kernels are compared with float64 on the operands that they had, within a
bound.  A sum of n terms may be off by (8 + 2 sqrt(n)) eps times the sum of the terms' magnitudes,
and so may be what else adds up; an elementwise op by an ulp, a function by 8 ulps and by what 4
ulps of its operands change.  Inside of a kernel of several ops, the bound of an operand is carried
on: an elementwise op is evaluated at both ends of the operand's interval, everything else adds up
the bounds as it adds up the operands.
N. J. Higham (2002), Accuracy and stability of numerical algorithms, chapters 3 and 4.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from minigraph.devices.problem import operations, product_of
from minigraph.graph import (
    FLOATS,
    Array,
    DType,
    Graph,
    Item,
    Loop,
    Node,
    Op,
    Parameter,
    compute,
    placeholders,
)
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Extremum, Reduction

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

# Differences up to this share of an array's largest element count as rounding.
TOLERANCES = {
    "bfloat16": 5e-2,
    "float16": 1e-2,
    "tf32": 1e-2,
    "float32": 1e-4,
    "float64": 1e-10,
}
TERMS = 8, 2  # eps of a sum: at least, and times the root of the number of terms
FUNCTION_ULPS = 8  # that a function's result may be off
OPERAND_ULPS = 4  # that its operands may be off, as where it is nearly zero
LARGEST_ULPS = 32  # of an array's largest element, that all elements may be off
PERTURBATION_ULPS = 4  # that perturbed numbers are off, at most
PERIOD = 4099  # of random numbers that repeat: a prime, so that rows get other ones
LOOP_MARGIN = 30  # times the error of NumPy in the loop's own dtype

limits: Callable[..., Any] = ml_dtypes.finfo  # NumPy's finfo does not know bfloat16


def widened(x: Array) -> Array:
    """Return floats as float64, which all of NumPy supports; other arrays unchanged."""
    return x.astype(np.float64) if x.dtype in FLOATS else x


def distance(x: Array, y: Array) -> Array:
    """Return how far apart two arrays are: infinitely where one alone is NaN or infinite."""
    if x.dtype not in FLOATS:
        return (x != y).astype(np.float64)
    x, y = (v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in (x, y))
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
    gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, gap)
    return np.where(np.isnan(gap), np.inf, gap)


def perturbed(x: Array, seed: int) -> Array:
    """Return an array whose floats are off by random ulps."""
    if x.dtype not in FLOATS:
        return x
    off = PERTURBATION_ULPS * float(limits(x.dtype).eps)
    factors = np.random.default_rng(seed).uniform(1 - off, 1 + off, PERIOD).astype(x.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(x * np.resize(factors, x.shape))


def evaluate(graph: Graph, args: Sequence[Array], dtype: DType | None = None) -> list[Array]:
    """Return the outputs, computed by NumPy.

    dtype  that floats are computed in, within the range of their own; conversions between floats
           round nothing then.  None: their own dtypes

    Unlike a call of the graph, this keeps only the values that are still needed.
    """
    values: dict[Node, Any] = dict(zip(graph.inputs, args, strict=True))
    reads = Counter(graph.outputs) + Counter(x for node in graph for x in node.inputs)
    with np.errstate(all="ignore"):
        for node in graph:
            inputs = [values[x] for x in node.inputs]
            if node in values:
                result: Any = values[node]
            elif isinstance(node, Parameter):
                result = node.state.read()
            else:
                result = _computed(node, inputs, dtype)
            if dtype and not node.is_bundle:
                result = _in_dtype(result, node.dtype, dtype)
            elif dtype:
                pairs = zip(result, node.specs, strict=True)
                result = tuple(_in_dtype(part, spec.dtype, dtype) for part, spec in pairs)
            values[node] = result
            for x in node.inputs:
                reads[x] -= 1
                if not reads[x]:
                    values.pop(x)
    return [values[y] for y in graph.outputs]


def _is_conversion(node: Node) -> bool:
    """Whether a node converts floats to other floats: all other ops keep the dtype."""
    if not isinstance(node.op, Elementwise) or len(node.inputs) != 1:
        return False
    before, after = node.inputs[0].dtype, node.dtype
    return before in FLOATS and after in FLOATS and before != after


def _computed(node: Node, inputs: Sequence[Any], dtype: DType | None) -> Any:
    op = node.op
    if dtype and _is_conversion(node):
        return inputs[0]
    return compute(node, *inputs) if dtype is None else _forward(op, inputs, dtype)


def _forward(op: Op, inputs: Sequence[Any], dtype: DType) -> Any:
    """Return what an op makes of its inputs, with the graphs inside of it computed in `dtype`."""
    if isinstance(op, Loop):
        return op.loop(lambda *xs: evaluate(op.graph, xs, dtype), *inputs)
    if isinstance(op, Fused):
        results: Any = tuple(evaluate(op.graph, inputs, dtype))
    elif isinstance(op, HorizontalFusion):
        results = tuple(y for part, xs in op.groups(inputs) for y in _apply(part, xs, dtype))
    else:
        return op.forward(*inputs)
    return results if len(results) > 1 else results[0]


def _in_dtype(value: Array, own: DType, dtype: DType) -> Array:
    """Return floats in `dtype`, infinite where they are too large for their own."""
    if own not in FLOATS:
        return value
    wide = value.astype(dtype, copy=False)
    return np.where(np.abs(wide) > float(limits(own).max), np.copysign(np.inf, wide), wide)


# ---------------------------------------------------------------- bounds


class Bounded(NamedTuple):
    """A value, floats in float64, and how far a kernel's result may be from it."""

    value: Array
    error: Array

    def excludes(self, result: Array) -> Array:
        """Return for each element of a kernel's result whether it is out of bounds."""
        value, slack = self.value, self.error
        if result.dtype in FLOATS:
            info = limits(result.dtype)
            largest = np.abs(value).max(initial=0, where=np.isfinite(value))
            slack = slack + LARGEST_ULPS * float(info.eps) * largest + float(info.tiny)
        return distance(value, widened(result)) > slack  # not of a NaN: it bounds nothing


def bounded(node: Node, operands: Sequence[Array], product_eps: float = 0.0) -> list[Bounded]:
    """Return the results of a node for these operands, with their bounds.

    product_eps  of the type that products of float32 are computed in, if that is smaller
    """
    with np.errstate(all="ignore"):
        given = [Bounded(widened(x), _flushed(widened(x), x.dtype)) for x in operands]
        return _results(node, given, product_eps)


def _results(node: Node, xs: Sequence[Bounded], product_eps: float) -> list[Bounded]:
    op = node.op
    if not node.inputs:
        values = [*map(widened, _apply(op, []))]
        return [Bounded(y, _flushed(y, s.dtype)) for y, s in zip(values, node.specs, strict=True)]
    if isinstance(op, Loop):
        return _loop(node, xs)
    if isinstance(op, Fused):
        return _inside(op.graph, xs, product_eps)
    if type(op).expand is not Op.expand:
        places = placeholders([x.spec for x in node.inputs])
        return _inside(Graph(places, op.expand(*places)), xs, product_eps)
    values = [x.value for x in xs]
    exact = [values[0]] if _is_conversion(node) else _apply(op, values)
    # NumPy's results are within the bounds, and so is an overflow on the way to them.
    own = _apply(op, [v.astype(x.dtype) for v, x in zip(values, node.inputs, strict=True)])
    errors = _elementwise_errors if isinstance(op, Elementwise) else _errors
    return [
        _in_range(y, np.maximum(error, distance(z, _in_dtype(y, spec.dtype, FLOAT64))), spec.dtype)
        for y, z, error, spec in zip(
            exact, own, errors(node, exact, xs, product_eps), node.specs, strict=True
        )
    ]


def _apply(op: Op, values: Sequence[Array], dtype: DType | None = None) -> list[Array]:
    results = _forward(op, values, dtype) if dtype else op.forward(*values)
    return [*map(np.asarray, results)] if isinstance(results, tuple) else [np.asarray(results)]


def _inside(graph: Graph, xs: Sequence[Bounded], product_eps: float) -> list[Bounded]:
    """Return the outputs of a graph that one kernel computes."""
    values = {x: [value] for x, value in zip(graph.inputs, xs, strict=True)}
    for node in graph:
        if isinstance(node.op, Item):
            values[node] = [values[node.inputs[0]][node.op.index]]
        elif node not in values:
            values[node] = _results(node, [values[x][0] for x in node.inputs], product_eps)
    return [values[y][0] for y in graph.outputs]


def _elementwise_errors(
    node: Node, results: Sequence[Array], xs: Sequence[Bounded], product_eps: float
) -> list[Array]:
    op, spec, (value,) = node.op, node.spec, results
    assert isinstance(op, Elementwise)
    eps = float(limits(spec.dtype).eps) if spec.dtype in FLOATS else 0.0
    if op.costly:
        error, ulps = FUNCTION_ULPS * eps * np.abs(value), OPERAND_ULPS
    else:
        rounds = spec.dtype in FLOATS and value.astype(spec.dtype) != value
        error, ulps = np.where(rounds, eps * np.abs(value), 0.0), 0
        if all(x.dtype in FLOATS for x in node.inputs[:3]) and len(xs) > 2:
            ulps = 1  # a product inside is rounded, too
    ends = [
        _ends(x, ulps * eps if y.dtype in FLOATS else 0.0)
        for x, y in zip(xs, node.inputs, strict=True)
    ]
    if any(len(each) > 1 for each in ends):
        corners = (_apply(op, values)[0] for values in itertools.product(*ends))
        error = error + functools.reduce(np.maximum, (distance(y, value) for y in corners))
    return [error]


def _ends(x: Bounded, eps: float) -> list[Array]:
    """Return the ends of an operand's interval, with a relative error besides its own."""
    value, off = x.value, x.error + eps * np.abs(x.value) if eps else x.error
    if not off.any():
        return [value]
    if value.dtype == bool:
        return [value, value ^ (off != 0)]
    if value.dtype in FLOATS:
        # A quotient is largest, and a square smallest, at the end that is nearest to zero.
        rest = np.maximum(np.abs(value) - off, 0.0)
        between = [np.copysign(rest, value)] if (rest == 0).any() else []
        return [value + off, value - off, *between]
    step = np.clip(off, 0, 1 << 30).astype(value.dtype)
    return [value, value + step, value - step]


def _errors(
    node: Node, results: Sequence[Array], xs: Sequence[Bounded], product_eps: float
) -> list[Array]:
    """Return the errors of what adds up or moves elements."""
    op, floats = node.op, [x.value.dtype in FLOATS for x in xs]
    if any(x.error.any() and not is_float for x, is_float in zip(xs, floats, strict=True)):
        return [np.full(y.shape, np.inf) for y in results]
    sizes = [np.abs(x.value) if f else x.value for x, f in zip(xs, floats, strict=True)]
    terms = _apply(op, sizes)
    errors = [_rounding(node, *each, product_eps) for each in zip(results, terms, strict=True)]
    if any(x.error.any() for x in xs):
        pairs = [*zip(sizes, xs, floats, strict=True)]
        grown = _apply(op, [size + x.error if f else size for size, x, f in pairs])
        alone = _apply(op, [x.error if f else size for size, x, f in pairs])
        for i, (y, z) in enumerate(zip(grown, alone, strict=True)):
            errors[i] = errors[i] + np.maximum(distance(y, terms[i]), np.abs(widened(z)))
    return errors


def _rounding(node: Node, value: Array, terms: Array, product_eps: float) -> Array:
    op, dtype = node.op, node.specs[0].dtype
    shapes = [x.shape for x in node.inputs] + [node.specs[0].shape]
    moves = op.is_view or isinstance(op, Extremum) or op.along(shapes[0], shapes[-1]) is not None
    if moves or value.dtype not in FLOATS:
        return np.zeros(value.shape)
    largest = max(x.size for x in node.inputs)
    is_product = product_of(node) is not None
    if is_product:
        count = operations(node) / 2 / max(value.size, 1)
    else:
        count = largest / max(value.size, 1) if isinstance(op, Reduction) else largest
    eps = min(float(limits(dtype).eps), float(limits(FLOAT32).eps))
    eps = max(eps, product_eps) if is_product else eps
    size = np.where(np.isfinite(terms), np.abs(terms), 0.0)
    if not isinstance(op, Reduction):
        size = size.max(initial=0)  # algorithms such as Winograd's mix terms of several elements
    least, by_root = TERMS
    error = (least + by_root * np.sqrt(count)) * eps * size
    error = error + float(limits(dtype).eps) * np.abs(value)
    return np.where(np.abs(terms) < float(limits(dtype).max), error, np.inf)


def _flushed(value: Array, dtype: DType) -> Array:
    """Return how much denormals lose where a native call takes them for zero."""
    if dtype not in FLOATS:
        return np.zeros(value.shape)
    size = np.abs(value)
    return np.where(size < float(limits(dtype).tiny), size, 0.0)


def _in_range(value: Array, error: Array, dtype: DType) -> Bounded:
    """Return a value, infinite if it is too large for its dtype, and unbounded if it may be."""
    if dtype not in FLOATS:
        return Bounded(value, error)
    top, size = float(limits(dtype).max), np.abs(value)
    may_be = (size * 1.001 + error >= top) & ~(size * 0.999 - error >= top)
    error = np.where(may_be, np.inf, error + _flushed(value, dtype))
    return Bounded(_in_dtype(value, dtype, FLOAT64), error)


def _loop(node: Node, xs: Sequence[Bounded]) -> list[Bounded]:
    """Return the results of a loop: how its steps round is seen in NumPy's."""
    op = node.op
    assert isinstance(op, Loop)
    values = [x.value for x in xs]
    exact = op.loop(lambda *each: evaluate(op.graph, each, FLOAT64), *values)
    own = _apply(op, [v.astype(x.dtype) for v, x in zip(values, node.inputs, strict=True)])
    results = []
    for y, z in zip(exact if node.is_bundle else (exact,), own, strict=True):
        gap = distance(z, y)
        largest = np.abs(widened(y)).max(initial=0, where=np.isfinite(widened(y)))
        error = TOLERANCES[z.dtype.name] * largest if z.dtype in FLOATS else 0.0
        results.append(Bounded(y, np.full(y.shape, error + LOOP_MARGIN * gap.max(initial=0))))
    return results
