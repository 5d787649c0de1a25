"""Estimates, by sampling, of the rounding errors of a graph's results.

Two ways to compute the same result differ by rounding: a little, or a lot where the graph subtracts
nearly equal numbers, divides by nearly zero, or takes a sign.  No fixed tolerance fits both, so the
graph is evaluated several times with small changes to its numbers.  Results may differ by as much
as these runs differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from minigraph.graph import (
    BFLOAT16,
    FLOATS,
    Array,
    Constant,
    DType,
    Graph,
    Item,
    Loop,
    Node,
    Parameter,
    compute,
)
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.elementwise import Elementwise

# Noise amplitude, in ulps; both signs, so that a zero with rounding errors gets both signs too.
AMPLITUDES = (3, -3, 8, -8)
# Ops that Winograd's algorithm computes: it may round a sum of zeros to a small number.
ROUNDS_ZEROS = (Conv2d, Conv2dBackwardData, Conv2dBackwardWeights)
OVERFLOWS = 8  # more runs where numbers overflow
MARGIN = 30  # few runs may underestimate the differences by this factor

_info: Callable[..., Any] = ml_dtypes.finfo  # NumPy's finfo does not know bfloat16


def explained(runs: Sequence[Array], expected: Array, actual: Array) -> Array:
    """Return for each element whether noise explains the difference of `actual` and `expected`.

    True where the difference is at most MARGIN times that of the runs, where one run is finite and
    another is not, and for integers and bools where the runs differ.
    """
    if expected.dtype not in FLOATS:
        return np.any([run != runs[0] for run in runs], 0)
    info = _info(expected.dtype)
    x, y, numbers = real(expected), real(actual), np.stack([real(run) for run in runs])
    sort = np.where(np.isnan(numbers), 2, np.isinf(numbers) * np.sign(numbers))
    with np.errstate(all="ignore"):
        spread = numbers.max(0) - numbers.min(0)
        limit = MARGIN * spread + 4 * float(info.eps) * np.abs(x) + float(info.tiny)
        return np.asarray((sort != sort[0]).any(0) | (np.abs(x - y) <= limit))


def noisy(graph: Graph, args: Sequence[Array], stored: Collection[int] = ()) -> list[list[Array]]:
    """Return the outputs of several runs: without noise, without denormals, then with noise.

    stored  how many elements arrays of float32 have that may be stored in bfloat16
    """
    blurs = [_Blur(amplitude, stored=stored) for amplitude in AMPLITUDES]
    changes: list[Change] = [unchanged, _flushed, _flushed_if_computed, *blurs]
    runs = [evaluate(graph, args, change) for change in changes]
    if any(blur.overflows for blur in blurs):
        more = [_Blur(1, chance, stored) for chance in range(1, OVERFLOWS + 1)]
        runs += [evaluate(graph, args, blur) for blur in more]
    return runs


class Place(NamedTuple):
    """The place of a value in the graph: its node, its dtype, and the values of its inputs."""

    node: Node
    dtype: DType
    inputs: Sequence[Any]


Change = Callable[[Array, Place], Array]


def unchanged(value: Array, place: Place) -> Array:
    return value


def evaluate(graph: Graph, args: Sequence[Array], change: Change = unchanged) -> list[Array]:
    """Return the outputs, computed by NumPy, with `change` applied to every value.

    A change may widen floats: ops compute in the dtype of their inputs.  Unlike a call of the
    graph, this keeps only the values that are still needed.
    """
    values: dict[Node, Any] = dict(zip(graph.inputs, args, strict=True))
    reads = Counter(graph.outputs) + Counter(x for node in graph for x in node.inputs)
    with np.errstate(all="ignore"):
        for node in graph:
            inputs = [values[x] for x in node.inputs]
            if isinstance(node, Parameter):
                result: Any = node.state.read()
            else:
                result = values[node] if node in values else _computed(node, inputs, change)
            parts = [
                change(part, Place(node, spec.dtype, inputs))
                for part, spec in zip(
                    result if node.is_bundle else (result,), node.specs, strict=True
                )
            ]
            values[node] = tuple(parts) if node.is_bundle else parts[0]
            for x in node.inputs:
                reads[x] -= 1
                if not reads[x]:
                    values.pop(x)
        return [values[y].astype(y.dtype, copy=False) for y in graph.outputs]


def _computed(node: Node, inputs: Sequence[Any], change: Change) -> Any:
    op = node.op
    if isinstance(op, Loop):  # whose steps round, too
        return op.loop(lambda *xs: evaluate(op.graph, xs, change), *inputs)
    return compute(node, *inputs)


def real(x: Array) -> Array:
    """Return floats as float64, which all of NumPy supports; other arrays unchanged."""
    return x.astype(np.float64) if x.dtype in FLOATS else x


def flushed(value: Array, dtype: DType) -> Array:
    """Return numbers of a float dtype, denormals as a zero of their sign, as native calls do."""
    return np.where(np.abs(value) < float(_info(dtype).tiny), np.copysign(0, value), value)


def _flushed(value: Array, place: Place) -> Array:
    return flushed(value, place.dtype) if place.dtype in FLOATS else value


def _flushed_if_computed(value: Array, place: Place) -> Array:
    """Flush results only: a logarithm takes the exponent of a denormal, and is finite."""
    return _flushed(value, place) if place.inputs else value


class _Blur:
    """Adds noise to inputs and to rounded results, in float64, which does not round it away.

    overflows  whether a number was too large for its dtype
    chance     if not 0, seeds which of those numbers become infinite: the grouping of sums and
               products decides that
    stored     as in `noisy`
    """

    def __init__(self, amplitude: int, chance: int = 0, stored: Collection[int] = ()) -> None:
        self.rng = np.random.default_rng((abs(amplitude), chance))
        self.amplitude = amplitude
        self.chance = chance
        self.stored = stored
        self.overflows = False

    def __call__(self, value: Array, place: Place) -> Array:
        op = place.node.op
        wide = real(value)
        if place.dtype not in FLOATS or op.is_view or isinstance(op, Constant | Item):
            return wide
        small = place.dtype == np.float32 and value.size in self.stored
        info, size = _info(BFLOAT16 if small else place.dtype), np.abs(wide)
        finite = np.isfinite(wide)
        noise = self.rng.uniform(-1, 1, value.shape)
        large = finite & (size > float(info.max))
        if large.any():
            self.overflows = True
            if self.chance:
                wide = np.where(large & (noise > 0), wide * np.inf, wide)
        if len(place.inputs) > 1 and not isinstance(op, Elementwise):
            # The error of a sum of products is that of its largest terms, and may not cancel.
            exact = (wide == 0) & (not isinstance(op, ROUNDS_ZEROS))
            size = np.where(exact, 0, size.max(initial=0, where=finite))
            noise = noise + self.rng.uniform(-1, 1)
        off = wide + self.amplitude * float(info.eps) * size * noise
        return np.where(finite & ~_moved(wide, place), off, wide)


def _moved(value: Array, place: Place) -> Array:
    """Return for each element whether an input has it, or its negative: then nothing was rounded.

    That is so for extrema, choices and gathers, and a graph may compare their results with their
    inputs.  A sum is rounded even where it equals its larger operand.
    """
    if isinstance(place.node.op, ROUNDS_ZEROS):
        return np.zeros(value.shape, bool)
    size = np.abs(value)
    arrays = [np.abs(x) for x in place.inputs if not isinstance(x, tuple)]
    if not isinstance(place.node.op, Elementwise):
        return np.isin(size, np.concatenate([x.ravel() for x in arrays])) if arrays else size < 0
    if len(arrays) > 1 and all(x.dtype == value.dtype for x in arrays):
        return size < 0
    return np.any([size == x for x in arrays], 0)
