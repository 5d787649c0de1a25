"""FMA fusion: unchanged numbers, and graphs of any depth; see also `cases/fma.txt`."""

from collections import Counter

import numpy as np
import pytest
from fused_units import of

import minigraph as mg
from minigraph import ops
from minigraph.graph import FLOATS, Graph
from minigraph.passes.kernels.fma import fuse_fma
from minigraph.passes.notes import Notes

a, b, c, d, e, f = (mg.input(name, (2, 3)) for name in "abcdef")


def count(graph):
    return Counter(node.op.name for node in graph if node.inputs)


def test_what_is_made_stands_where_the_sum_was():
    first = a * b + c * d
    y = first + e * f
    fused = [n for n in fuse_fma(of(ops.exp(y)), Notes()) if n.op.name in ("fma3", "fma4")]
    assert [(n.source, n.order[0]) for n in fused] == [(s.source, s.order[0]) for s in (first, y)]


# ---------------------------------------------------------------- the numbers


SUMS = [
    lambda a, b, c, d: a * b + c,
    lambda a, b, c, d: a * b - c,
    lambda a, b, c, d: c - a * b,
    lambda a, b, c, d: -(a * b) - c,
    lambda a, b, c, d: a * b + c + d,
    lambda a, b, c, d: a * b - c - d,
    lambda a, b, c, d: c - a * b - d,
    lambda a, b, c, d: a * b + c * d,
    lambda a, b, c, d: a * b - c * d,
    lambda a, b, c, d: -a * b - c * d,
    lambda a, b, c, d: a * b + c * d - a * d,
    lambda a, b, c, d: a * a - b * c - d,
]


@pytest.mark.parametrize("dtype", [*FLOATS, *map(np.dtype, ("int8", "uint8", "uint64"))], ids=str)
def test_every_bit_comes_out_as_without_the_pass(dtype):
    rng = np.random.default_rng(0)
    values = [0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
    if dtype not in FLOATS:
        values = [0, 1, 2, np.iinfo(dtype).max, np.iinfo(dtype).min]
    xs = [x.ravel().astype(dtype) for x in np.meshgrid(*[np.array(values, dtype)] * 4)]
    wide = (rng.normal(size=(4, 4000)) * 10.0 ** rng.uniform(-4, 4, 4000)).astype(dtype)
    xs = [np.concatenate([x, y]) for x, y in zip(xs, wide, strict=True)]
    nodes = tuple(mg.input(name, xs[0].shape, dtype) for name in "abcd")
    for make in SUMS:
        graph = Graph(nodes, (make(*nodes),))
        after = fuse_fma(graph, Notes())
        assert {"fma3", "fma4"}.intersection(count(after)), str(graph)
        with np.errstate(all="ignore"):
            (result,), (want,) = after(*xs), graph(*xs)
        result, want = (np.where(np.isnan(x), np.nan, x) for x in (result, want))
        assert result.tobytes() == want.tobytes(), str(graph)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_equal_products_cancel(device):
    x, y = mg.input("x", (1000,)), mg.input("y", (1000,))
    graph = mg.comp_graph(device, {"graph_opt_level": 2})
    step = graph.compile([x, y], [x * x - y * y, ops.sqrt(x * x - y * y)])
    assert set(step.report().ops) == {"fma4", "sqrt"}
    values = np.random.default_rng(0).normal(size=1000).astype("float32")
    for result in step(values, values):
        np.testing.assert_array_equal(result, 0)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_fast_math_rounds_the_first_product_with_the_sum(device):
    x, y = mg.input("x", (2,)), mg.input("y", (2,))
    near, rounded = np.full(2, 1 + 2**-12, "float32"), np.full(2, 1 + 2**-11, "float32")
    for fast_math, rest in ((False, 0), (True, 2**-24)):
        options = {"graph_opt_level": 3, "graph_opt.fast_math": fast_math}
        for z, value in ((x * x - y, rounded), (x * x - y * y, near)):
            step = mg.comp_graph(device, options).compile([x, y], z)
            np.testing.assert_array_equal(step(near, value), rest)


# ---------------------------------------------------------------- size


def test_a_sum_of_ten_thousand_products_is_one_chain():
    y = a * b
    for _ in range(9_999):
        y = y + ops.sin(a) * b
    notes = Notes()
    graph = fuse_fma(of(y), notes)
    assert notes.fired == {"fma4": 1, "fma3": 9_998}
    assert count(graph) == {"sin": 9_999, **notes.fired}


def test_ten_thousand_sums_are_fused_one_by_one():
    y = a
    for _ in range(10_000):
        y = y * b + c
    notes = Notes()
    assert count(fuse_fma(of(y), notes)) == notes.fired == {"fma3": 10_000}
