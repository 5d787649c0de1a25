"""Graphs evaluated in float64, and bounds for the rounding errors of results.

In float64, passes that keep the meaning of a graph change its results by about 1e-16, even where
float32 amplifies rounding.  That amplification is estimated from NumPy's results in the graph's own
dtypes, for the given operands and for operands perturbed by some ulps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from minigraph.graph import (
    FLOATS,
    Array,
    DType,
    Graph,
    Loop,
    Node,
    Parameter,
    placeholders,
)
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.ops.elementwise import Elementwise

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

# Differences up to this share of an array's largest element count as rounding.
TOLERANCES = {
    "bfloat16": 5e-2,
    "float16": 1e-2,
    "tf32": 1e-2,
    "float32": 1e-4,
    "float64": 1e-10,
}
ROUNDING_FACTOR = 8  # times the rounding error of NumPy's results
# Times the change of an element in perturbed runs, as a few runs may miss the largest change.
PERTURBATION_FACTOR = 30
PERTURBATION_ULPS = 4  # the largest change of a perturbed number
PERTURBATION_PERIOD = 4099  # of repeated random factors; a prime, so that rows have different ones
KERNEL_RUNS = 2  # perturbed runs of a kernel's op

float_limits: Callable[..., Any] = ml_dtypes.finfo  # np.finfo lacks bfloat16


def widened(x: Array) -> Array:
    """Return floats as float64, which all of NumPy supports; other arrays unchanged."""
    return x.astype(np.float64) if x.dtype in FLOATS else x


def distance(x: Array, y: Array) -> Array:
    """Return the distances of two arrays, infinite where only one is NaN or infinite."""
    if x.dtype not in FLOATS:
        return (x != y).astype(np.float64)
    x, y = (v.astype(np.float32) if v.dtype.itemsize < 4 else v for v in (x, y))
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
    gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, gap)
    return np.where(np.isnan(gap), np.inf, gap)


def largest(x: Array) -> float:
    wide = widened(x)
    return float(np.abs(wide).max(initial=0, where=np.isfinite(wide)))


def perturbed(x: Array, seed: int) -> Array:
    """Return an array whose floats are off by random ulps, and without denormals."""
    if x.dtype not in FLOATS:
        return x
    error = PERTURBATION_ULPS * float(float_limits(x.dtype).eps)
    random = np.random.default_rng(seed)
    factors = random.uniform(1 - error, 1 + error, PERTURBATION_PERIOD).astype(x.dtype)
    with np.errstate(all="ignore"):
        return without_denormals(np.asarray(x * np.resize(factors, x.shape)))


def without_denormals(x: Array) -> Array:
    """Return floats with zeros for denormals, as native calls may take them."""
    tiny = float(float_limits(x.dtype).tiny)
    return np.where(np.abs(x) < tiny, np.copysign(x.dtype.type(0), x), x)


def rounding_of(dtype: DType, exact: Array, single: Array) -> float:
    """Return the rounding errors of an array in a dtype, scaled from float32's by their eps."""
    gaps = distance(exact, widened(single))
    ratio = float(float_limits(dtype).eps / float_limits(FLOAT32).eps) if dtype in FLOATS else 1.0
    return ratio * float(gaps.max(initial=0, where=np.isfinite(gaps)))


def kernel_bounds(
    node: Node, operands: Sequence[Array], relative_slack: float = 0.0
) -> list[tuple[Array, Array]]:
    """Return for each result of a node its value in float64, and the largest error of a kernel.

    The error is the sum of TOLERANCES of the largest element, ROUNDING_FACTOR times the error of
    NumPy's results in the node's own dtypes, and at each element PERTURBATION_FACTOR times the
    change that perturbed operands make.

    relative_slack  smallest error bound, relative to the largest element
    """
    exact = _results(node, operands, FLOAT64)
    plain = _results(node, operands, None)
    bounds = []
    perturbed_operands = ([perturbed(x, seed) for x in operands] for seed in range(KERNEL_RUNS))
    runs = [_results(node, xs, None) for xs in perturbed_operands]
    for i, (value, computed, spec) in enumerate(zip(exact, plain, node.specs, strict=True)):
        shifts = [distance(value, widened(run[i])) for run in runs]
        slack = PERTURBATION_FACTOR * np.maximum.reduce(shifts)
        slack = np.maximum(slack, distance(value, widened(computed)))
        if spec.dtype in FLOATS:
            tiny = float(float_limits(spec.dtype).tiny)  # native calls flush smaller numbers to 0
            min_slack = max(relative_slack, TOLERANCES[spec.dtype.name]) * largest(value) + tiny
            slack = slack + min_slack + ROUNDING_FACTOR * rounding_of(FLOAT32, value, computed)
        bounds.append((value, slack))
    return bounds


def _results(node: Node, operands: Sequence[Array], dtype: DType | None) -> list[Array]:
    inputs = placeholders([x.spec for x in node.inputs])
    graph = Graph(inputs, (Node(node.op, inputs, node.specs),))
    (result,) = evaluate(graph, operands, dtype)
    return list(result) if node.is_bundle else [result]


def evaluate(graph: Graph, args: Sequence[Array], dtype: DType | None = None) -> list[Any]:
    """Return the outputs, computed by NumPy.

    dtype  dtype in which floats are computed, limited to the range of their own dtype; then
           conversions between floats do not round.  None: their own dtypes
    """
    if dtype is None:
        return [*graph(*args)]

    def wide(node: Node, *inputs: Any) -> Any:
        if isinstance(node, Parameter):
            result = node.state.read()
        else:
            result = inputs[0] if _is_conversion(node) else _forward(node, inputs, dtype)
        if not node.is_bundle:
            return _in_dtype(np.asarray(result), node.dtype, dtype)
        pairs = zip(result, node.specs, strict=True)
        return tuple(_in_dtype(part, spec.dtype, dtype) for part, spec in pairs)

    values = [_in_dtype(x, n.dtype, dtype) for x, n in zip(args, graph.inputs, strict=True)]
    return [*graph.evaluate(values, wide)]


def _is_conversion(node: Node) -> bool:
    """Whether a node converts floats to other floats: all other ops keep the dtype."""
    if not isinstance(node.op, Elementwise) or len(node.inputs) != 1:
        return False
    before, after = node.inputs[0].dtype, node.dtype
    return before in FLOATS and after in FLOATS and before != after


def _forward(node: Node, inputs: Sequence[Any], dtype: DType) -> Any:
    """Return the result of a node's op, with inner graphs computed in `dtype`."""
    op = node.op
    if isinstance(op, Loop):
        return op.loop(lambda *xs: evaluate(op.graph, xs, dtype), *inputs)
    if isinstance(op, Fused):
        results = evaluate(op.graph, inputs, dtype)
    elif isinstance(op, HorizontalFusion):
        xs = placeholders([x.spec for x in node.inputs])
        results = evaluate(Graph(xs, op.expand(*xs)), inputs, dtype)
    else:
        return op.forward(*inputs)
    return tuple(results) if len(results) > 1 else results[0]


def _in_dtype(value: Array, range_dtype: DType, dtype: DType) -> Array:
    """Return floats in `dtype`, infinite if they exceed the range of their own dtype."""
    if range_dtype not in FLOATS:
        return value
    wide = value.astype(dtype, copy=False)
    limit = np.float64(float_limits(range_dtype).max)  # of float64, may exceed what `dtype` holds
    return np.where(np.abs(wide) > limit, np.copysign(np.inf, wide), wide)
