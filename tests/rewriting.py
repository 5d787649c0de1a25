"""Helpers for the tests of passes: inputs, special values, and comparison bit for bit."""

import ml_dtypes
import numpy as np
from elementwise_samples import draw, specials

import minigraph as mg
from minigraph.graph import FLOATS, Graph
from minigraph.ops.elementwise import kind
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.simplification import share_common, simplify

F32, F64, I32 = map(np.dtype, ("float32", "float64", "int32"))

X = mg.input("x", (5, 30))
ROW = mg.input("row", (30,))
INT = mg.input("i", (5, 30), "int32")
U = mg.input("u", (5, 30), "uint8")
D = mg.input("d", (5, 30), "float64")
B = mg.input("b", (5, 30), "bool")
K = mg.input("k", (5, 30), "int64")
Y = mg.input("y", (5, 30))
ONES = np.ones((5, 1), "float32")


def values(dtype, shape):
    """Special values of any dtype, then numbers, in a shape."""
    wide = F32 if dtype in FLOATS and dtype not in (F32, F64) else dtype
    with np.errstate(all="ignore"):
        flat = np.concatenate([specials(wide), draw(wide, 200, -3, 3)]).astype(dtype)
    return np.resize(flat, shape)


def assert_bits(result, want, name=""):
    """Equal bit for bit, but that any NaN is as good as another."""
    assert result.dtype == want.dtype, name
    if kind(want.dtype) == "f":
        result, want = result.astype(F64), want.astype(F64)  # which says the same of every float
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(want)[number], name)
    np.testing.assert_array_equal(result, want, name)


def run(rewriting, graph):
    """Return the checked graph after a pass, and the rewrites that it counted."""
    notes = Notes()
    result = rewriting(graph, notes)
    result.check()
    assert [y.spec for y in result.outputs] == [y.spec for y in graph.outputs]
    return result, notes.fired


def assert_becomes(rewriting, before, after, check=assert_bits):
    """The pass makes `after` of `before`, once and for all, and both compute the same."""
    (result, _) = run(rewriting, before)
    assert str(result) == str(after)
    again, fired = run(rewriting, result)
    assert str(again) == str(result) and not fired
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(result(*xs), before(*xs), strict=True):
        check(new, old)


def assert_close(result, want):
    eps = float(ml_dtypes.finfo(want.dtype).eps)
    np.testing.assert_allclose(result.astype(F64), want.astype(F64), rtol=4 * eps)


def optimized(graph, notes):
    """Level 1 as a whole: what is equal after simplifying is one node again."""
    return share_common(simplify(share_common(graph, notes), notes), notes)


def graph_of(fn, *inputs):
    y = fn(*inputs)
    return Graph(inputs, tuple(y) if isinstance(y, tuple | list) else (y,))
