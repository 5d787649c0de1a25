"""Fused kernels of float16 and bfloat16 have the bits of one kernel for each op."""

import ml_dtypes
import numpy as np
import pytest
from long_runs import long
from needs import needs_compiler
from small_floats import F16, F64, SMALL, assert_bits, compiled, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16, Graph
from minigraph.ops.elementwise import kind

pytestmark = needs_compiler


def masked(x, y):
    return [ops.where(x > y, x * 2.5 + 1, ops.sqrt(ops.abs(y)) - x / 3) * (x != 0).astype(x.dtype)]


def mixed(x, y):
    wide = x.astype("float32") * 1.001
    return [(wide + y.astype("float32")).astype(x.dtype) * y, wide + 1, (x * y).astype("int32")]


def rows(x, y):
    e = ops.exp(x - x.max(1, keepdims=True))
    return [e / e.sum(1, keepdims=True) * y]


def columns(x, y):
    return [(x * y + x).sum(0), (x - y).max(0)]


def everything(x, y):
    return [((x - y) * (x - y)).mean(), (x + y).sum()]


def views(x, y):
    return [x[:, ::2] + y[::-1, 1::2] * 2, (x.T * y[:1].T).T - 1]


def numbers(x, y):
    return [(x + 1) * 0.1 + ops.maximum(y, 0.0), ops.where(x > 0, x, -np.inf)]


GRAPHS = [masked, mixed, rows, columns, everything, views, numbers]
SOME = {F16: GRAPHS[::2], BFLOAT16: GRAPHS[1::2]}


def graphs_of(makes, dtype, *size):
    """Return inputs, outputs and arrays of all graphs, compiled together."""
    inputs, outputs, arrays = [], [], []
    for make in makes:
        nodes = [mg.input(f"{name}_{make.__name__}", size, dtype) for name in "xy"]
        inputs += nodes
        outputs += make(*nodes)
        for i in range(2):
            values = real(*size, dtype=dtype, seed=i + 1)
            values[i::3, 0] = 0
            arrays.append(values)
    return inputs, outputs, arrays


@pytest.mark.parametrize("dtype, graphs", [*SOME.items(), *(long(dtype, GRAPHS) for dtype in SOME)])
def test_a_fused_kernel_gives_the_bits_of_one_kernel_an_op(dtype, graphs):
    inputs, outputs, xs = graphs_of(graphs, dtype, 24, 50)
    alone = compiled(inputs, outputs, 1)
    fused = compiled(inputs, outputs, 1, **{"graph_opt.jit": 2})
    assert set(fused.report().ops) <= {"fused", "reshape", "slice", "flip"}
    for a, b in zip(alone(*xs), fused(*xs), strict=True):
        assert_bits(a, b)


@SMALL
def test_level_3_agrees_with_the_meaning(dtype):
    inputs, outputs, xs = graphs_of(GRAPHS, dtype, 24, 50)
    function = compiled(inputs, outputs, 3)
    rounding = float(ml_dtypes.finfo(dtype).eps)
    meant = Graph(tuple(inputs), tuple(outputs))(*xs)
    for y, expected in zip(function(*xs), meant, strict=True):
        y, expected = y.astype(F64), expected.astype(F64)
        scale = np.abs(expected).max(initial=0, where=np.isfinite(expected))
        atol = 4 * rounding * scale + (kind(y.dtype) != "f")
        np.testing.assert_allclose(y, expected, rtol=0, atol=atol)


@SMALL
def test_the_number_of_threads_changes_no_bit(dtype):
    inputs, outputs, xs = graphs_of([masked, rows, columns, views], dtype, 300, 200)
    one, four = (compiled(inputs, outputs, 3, num_threads=n)(*xs) for n in (1, 4))
    for a, b in zip(one, four, strict=True):
        assert_bits(a, b)
