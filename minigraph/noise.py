"""How far rounding may move the results of a graph.

Two ways to compute the same thing differ by rounding: a little, or a lot where the graph subtracts
what is nearly equal, divides by what is nearly zero, or asks for a sign.  No fixed tolerance knows
which, so the graph itself is asked: it is evaluated several times with every number that is rounded
somewhat off, and what moves by that may differ by that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from minigraph.dtypes import FLOATS, Array, DType
from minigraph.graph import Constant, Graph, Item, Node, Parameter, run
from minigraph.ops.elementwise import Elementwise

AMPLITUDES = (3, 8)  # of the noise, in distances between neighbouring floats
OVERFLOWS = 8  # runs where numbers are too large
MARGIN = 30  # by how much the few runs may underestimate

_info: Callable[..., Any] = ml_dtypes.finfo  # NumPy's does not know bfloat16


class Noise:
    """The outputs of a graph in several runs: as they are, without denormals, and with noise.

    Parameters have the values that they have when the runs are first asked for.
    """

    def __init__(self, graph: Graph, args: Sequence[Array]) -> None:
        self.graph = graph
        self.args = args

    @functools.cached_property
    def runs(self) -> list[list[Array]]:
        def results(change: Change) -> list[Array]:
            return evaluate(self.graph, self.args, change)

        # With both signs of each noise, what is zero but for rounding gets both signs too.
        blurs = [_Blur(seed, k * sign) for seed, k in enumerate(AMPLITUDES) for sign in (1, -1)]
        changes: list[Change] = [_unchanged, _flushed, *blurs]
        runs = [results(change) for change in changes]
        if any(blur.overflows for blur in blurs):
            runs += [results(_Blur(seed, 1, by_chance=True)) for seed in range(OVERFLOWS)]
        return runs

    def explains(self, output: int, expected: Array, found: Array) -> Array:
        """Return for each element of an output whether `found` may differ from `expected`.

        True where it differs by no more than the runs do, and where the runs disagree on whether
        the element is finite or, of an integer or bool, on what it is.
        """
        runs = np.stack([real(run[output]) for run in self.runs])
        if expected.dtype not in FLOATS:
            return (runs != runs[0]).any(0)
        info = _info(expected.dtype)
        x, y = real(expected), real(found)
        sort = np.where(np.isnan(runs), 2, np.isinf(runs) * np.sign(runs))
        with np.errstate(all="ignore"):
            spread = runs.max(0) - runs.min(0)
            limit = MARGIN * spread + 4 * float(info.eps) * np.abs(x) + float(info.tiny)
            return (sort != sort[0]).any(0) | (np.abs(x - y) <= limit)


class Place(NamedTuple):
    """Where a value is in the graph: its node, its dtype there, and the node's inputs' values."""

    node: Node
    dtype: DType
    inputs: Sequence[Any]


Change = Callable[[Array, Place], Array]


def evaluate(graph: Graph, args: Sequence[Array], change: Change) -> list[Array]:
    """Return the outputs, by NumPy, where `change` is applied to every value once it is there.

    A change may widen floats: ops compute in the type that they are given.
    """
    values: dict[Node, Any] = dict(zip(graph.inputs, args, strict=True))
    with np.errstate(all="ignore"):
        for node in graph:
            inputs = [values[x] for x in node.inputs]
            if isinstance(node, Parameter):
                result: Any = node.data
            else:
                result = values[node] if node in values else run(node, *inputs)
            parts = [
                change(part, Place(node, spec.dtype, inputs))
                for part, spec in zip(
                    result if node.is_bundle else [result], node.specs, strict=True
                )
            ]
            values[node] = tuple(parts) if node.is_bundle else parts[0]
        return [values[y].astype(y.dtype) for y in graph.outputs]


def real(x: Array) -> Array:
    """Return floats as float64, which NumPy knows all about; anything else as it is."""
    return x.astype(np.float64) if x.dtype in FLOATS else x


def _unchanged(value: Array, place: Place) -> Array:
    return value


def _flushed(value: Array, place: Place) -> Array:
    """The CPU's native calls flush denormals to zero, which keeps their sign."""
    if place.dtype not in FLOATS:
        return value
    return np.where(np.abs(value) < _info(place.dtype).tiny, value * 0, value)


class _Blur:
    """What is rounded, and what the graph is given, is somewhat off.

    It is so in float64, in which no noise is rounded away.  `overflows` says whether a number was
    too large for its own type.  Depending on how sums and products are grouped it may become
    infinite or not: `by_chance`, some do.
    """

    def __init__(self, seed: int, amplitude: float, by_chance: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.amplitude = amplitude
        self.by_chance = by_chance
        self.overflows = False

    def __call__(self, value: Array, place: Place) -> Array:
        op = place.node.op
        wide = real(value)
        if place.dtype not in FLOATS or op.is_view or isinstance(op, Constant | Item):
            return wide
        info, size = _info(place.dtype), np.abs(wide)
        finite = np.isfinite(wide)
        noise = self.rng.uniform(-1, 1, value.shape)
        large = finite & (size > float(info.max))
        if large.any():
            self.overflows = True
            if self.by_chance:
                wide = np.where(large & (noise > 0), wide * np.inf, wide)
        if len(place.inputs) > 1 and not isinstance(op, Elementwise):
            # A sum of products is as exact as its largest terms, and its errors need not cancel.
            size = np.where(wide == 0, 0, size.max(initial=0, where=finite))
            noise = noise + self.rng.uniform(-1, 1)
        off = wide + self.amplitude * float(info.eps) * size * noise
        return np.where(finite & ~_moved(value, place.inputs), off, wide)


def _moved(value: Array, inputs: Sequence[Any]) -> Array:
    """Whether each element is one of the inputs', or its negative: then nothing was rounded.

    That holds for what a maximum, a choice or a gather returns, whose equality with an input a
    graph may ask for.
    """
    given = [real(x).ravel() for x in inputs if not isinstance(x, tuple) and x.dtype in FLOATS]
    if not given:
        return np.zeros(value.shape, bool)
    return np.isin(np.abs(real(value)), np.abs(np.concatenate(given)))
