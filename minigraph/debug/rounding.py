"""Graphs evaluated in float64, and how far rounding may take results from that.

In float64, passes that keep the meaning of a graph give the same results but for 1e-16, whatever
float32 makes of them.  How far a graph amplifies rounding is seen in NumPy's results in its own
dtypes, as they are and with operands that are off by some ulps.
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
MARGIN = 8  # times the rounding that is seen in NumPy's results
REACH = 30  # times what a few perturbed runs move an element, which may be less than others would
PERTURBATION_ULPS = 4  # that perturbed numbers are off, at most
PERIOD = 4099  # of random numbers that repeat: a prime, so that rows get other ones
KERNEL_RUNS = 2  # perturbed runs of a kernel's op

limits: Callable[..., Any] = ml_dtypes.finfo  # np.finfo lacks bfloat16


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
    off = PERTURBATION_ULPS * float(limits(x.dtype).eps)
    factors = np.random.default_rng(seed).uniform(1 - off, 1 + off, PERIOD).astype(x.dtype)
    with np.errstate(all="ignore"):
        return without_denormals(np.asarray(x * np.resize(factors, x.shape)))


def without_denormals(x: Array) -> Array:
    """Return floats with zeros for denormals, as native calls may take them."""
    return np.where(np.abs(x) < float(limits(x.dtype).tiny), np.copysign(x.dtype.type(0), x), x)


def rounding_of(dtype: DType, exact: Array, single: Array) -> float:
    """Return the rounding errors of an array in a dtype, scaled from float32's by their eps."""
    gaps = distance(exact, widened(single))
    ratio = float(limits(dtype).eps / limits(FLOAT32).eps) if dtype in FLOATS else 1.0
    return ratio * float(gaps.max(initial=0, where=np.isfinite(gaps)))


def kernel_bounds(
    node: Node, operands: Sequence[Array], share: float = 0.0
) -> list[tuple[Array, Array]]:
    """Return for each result of a node its value in float64, and how far a kernel's may be off.

    That is TOLERANCES of the largest element, as much as NumPy's results in the node's own dtypes
    are off by MARGIN, and at each element as much as those of perturbed operands by REACH.

    share  of the largest element that results may be off at least
    """
    exact = _results(node, operands, FLOAT64)
    plain = _results(node, operands, None)
    bounds = []
    moved = ([perturbed(x, seed) for x in operands] for seed in range(KERNEL_RUNS))
    runs = [_results(node, xs, None) for xs in moved]
    for i, (value, own, spec) in enumerate(zip(exact, plain, node.specs, strict=True)):
        slack = np.maximum.reduce([REACH * distance(value, widened(run[i])) for run in runs])
        slack = np.maximum(slack, distance(value, widened(own)))
        if spec.dtype in FLOATS:
            tiny = float(limits(spec.dtype).tiny)  # a native call takes smaller numbers for zero
            least = max(share, TOLERANCES[spec.dtype.name]) * largest(value) + tiny
            slack = slack + least + MARGIN * rounding_of(FLOAT32, value, own)
        bounds.append((value, slack))
    return bounds


def _results(node: Node, operands: Sequence[Array], dtype: DType | None) -> list[Array]:
    places = placeholders([x.spec for x in node.inputs])
    graph = Graph(places, (Node(node.op, places, node.specs),))
    (result,) = evaluate(graph, operands, dtype)
    return list(result) if node.is_bundle else [result]


def evaluate(graph: Graph, args: Sequence[Array], dtype: DType | None = None) -> list[Any]:
    """Return the outputs, computed by NumPy.

    dtype  in which floats are computed, limited to the range of their own dtype; conversions
           between floats do not round then.  None: their own dtypes
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

    given = [_in_dtype(x, n.dtype, dtype) for x, n in zip(args, graph.inputs, strict=True)]
    return [*graph.evaluate(given, wide)]


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


def _in_dtype(value: Array, own: DType, dtype: DType) -> Array:
    """Return floats in `dtype`, infinite if they exceed the range of their own dtype."""
    if own not in FLOATS:
        return value
    wide = value.astype(dtype, copy=False)
    return np.where(np.abs(wide) > float(limits(own).max), np.copysign(np.inf, wide), wide)
