"""Narrow rows, and rows too short for vectors, which the CPU's kernels compute side by side."""

import numpy as np
import pytest
from level_3 import array, before_a_guard, check, each_alone
from needs import needs_compiler

import minigraph as mg
from minigraph import nn, ops
from minigraph.devices.cpu.kernels import MAX_SHORT_ROW
from minigraph.graph import BOOL, FLOATS, Graph
from minigraph.jit.kernel import specialise
from minigraph.jit.loops import MAX_NARROW_ROW

pytestmark = needs_compiler

BUILT = {
    "sum": lambda x: ops.sum(x, -1),
    "max": lambda x: ops.max(x, -1),
    "softmax": lambda x: ops.softmax(x, -1),
    "softmax and its sum": lambda x: (ops.softmax(x, -1), ops.sum(x, -1)),
    "layer norm": lambda x: ops.layer_norm(x, (x.shape[-1],), x[0], x[1]) * 2,
    "across memory": lambda x: ops.softmax(x.T, -1),
    "beside numbers of rows": lambda x: ops.logsumexp(x + x[:, :1], -1) * x[:, 0],
}


def form(x, short):
    y = ops.sum(x * 2, -1)
    return specialise(Graph((x,), (y,)), [x.spec.strides], short_row=short).pattern.form


def test_rows_up_to_a_length_that_the_device_names_are_computed_as_columns():
    x = mg.input("x", (100, 10))
    assert [form(x, short) for short in (0, 9, 10, 11)] == ["row", "row", "column", "column"]
    assert form(mg.input("x", (1, 10)), 10) == "row"  # there is nothing beside it
    assert form(mg.input("x", (100, 8)), 48) == "column"  # no block of channels
    assert form(mg.input("x", (100, 16)), 48) == "row"  # of a vector


def test_strided_columns_of_a_unit_stay_in_the_first_cache():
    def columns_and_units(*shape, axis=1):
        x = mg.input("x", shape)
        row, element = x.spec.strides
        strides = [(row, element * (1 + axis))]  # contiguous rows are no columns
        kernel = specialise(Graph((x,), (ops.sum(x, axis),)), strides, short_row=48)
        return kernel.pattern.columns, kernel.units

    assert columns_and_units(1024, 10) == (512, 2)
    assert columns_and_units(1024, 40) == (128, 8)
    assert columns_and_units(40, 1024, axis=0) == (512, 2)


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("rows", [2, 3, 129, 600])
def test_short_rows_agree_with_numpy(rows, level):
    for length in (2, 3, 10, 16, MAX_SHORT_ROW, MAX_SHORT_ROW + 1, 95, MAX_NARROW_ROW):
        xs = [array(rows, length)] * len(BUILT)
        check(each_alone(BUILT.values()), *xs, signs=False, level=level)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_short_rows(threads):
    check(BUILT["softmax and its sum"], array(9000, 7), num_threads=threads)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_short_rows_pass_nan_and_infinity(value):
    for length in (5, 70):
        x = array(200, length)
        x[::3, -1] = value
        check(each_alone([BUILT[name] for name in ("max", "softmax", "sum")]), x, x, x)


def whole_rows(x):
    """Return results with an element for each row, and for each element."""
    top = ops.max(x, -1, keepdims=True)
    counts = ops.sum(ops.astype(x == top, "int64"), -1)
    return top, counts, ops.any(x != top, -1), ops.where(x == top, x, top)


def test_narrow_rows_of_every_dtype_agree_with_numpy():
    x = np.random.default_rng(0).integers(-9, 9, (3, 21, 67))
    xs = [x.astype(dtype) for dtype in (*FLOATS, "int64", "int8", BOOL)]
    check(each_alone([whole_rows] * len(xs)), *xs, tolerance=0, signs=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_narrow_rows_touch_no_memory_behind_the_last_one(dtype):
    with before_a_guard((3, 71), dtype) as x:
        x[...] = np.arange(3 * 71).reshape(3, 71)
        check(whole_rows, x, tolerance=0, signs=False)


def test_short_rows_across_memory_are_read_in_place():
    x = mg.input("x", (2, 40, 12, 10))
    y = ops.layer_norm(ops.permute_dims(x, (0, 2, 3, 1)), (40,))
    values = array(*x.shape)
    step = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], y)
    assert [kernel.name for kernel in step.profile(values).kernels] == ["fused"]


# ---------------------------------------------------------------- maps with a short innermost axis


SHORT_MAPS = {
    "scaled channels": ([(20000, 3), (3,)], lambda x, a: x * a),
    "a prime number of rows": ([(19997, 2), (2,)], lambda x, a: x * a),
    "shuffled pixels": ([(2, 12, 33, 40)], nn.PixelShuffle(2)),
    "swapped axes": ([(128, 3, 100)], lambda x: ops.permute_dims(x, (0, 2, 1)) * 2),
    "a column for all": ([(9000, 4), (9000, 1)], lambda x, a: x - a),
    "few elements": ([(3, 2), (2,)], lambda x, a: x + a),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", SHORT_MAPS.values(), ids=SHORT_MAPS)
def test_maps_of_short_rows_are_right(case, threads):
    shapes, build = case
    inputs = [mg.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    xs = [np.arange(np.prod(shape), dtype="float32").reshape(shape) + 1 for shape in shapes]
    result = build(*inputs)
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "num_threads": threads})
    want = mg.comp_graph("reference").compile(inputs, result)(*xs)
    np.testing.assert_array_equal(cg.compile(inputs, result)(*xs), want)


def test_a_short_innermost_axis_is_run_over_outside_of_a_stretch_of_a_long_one():
    x, a = mg.input("x", (16384, 3)), mg.input("a", (3,))
    graph, strides = Graph((x, a), (x * a,)), [x.spec.strides, a.spec.strides]
    loops = {short: specialise(graph, strides, short_row=short).nest.loops for short in (0, 48)}
    assert [n for n, _ in loops[0]] == [16384, 3]
    assert [n for n, _ in loops[48]] == [16, 3, 1024]
