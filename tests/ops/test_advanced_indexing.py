"""Indexing with arrays of integers as in NumPy, and what torch does with such indices."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from needs import needs_compiler
from op_values import assert_native
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

CUBE = real(3, 4, 5, seed=1)
AT = np.array([[0, -1], [2, 2]])
INDICES = [
    [0, 2],
    [-1, -3, 1],
    AT,
    np.array(1),
    [],
    range(2),
    (slice(None), [3, 0, 0]),
    (..., [1, 2]),
    ([0, 2], [1, 3]),
    ([[0], [2]], [1, 3]),
    (AT, AT, AT),
    (slice(None), [1, 3], AT),
    ([0, 1], slice(None), [2, 3]),
    ([0, 1], None, [2, 3]),
    (slice(None), [1, 0], ..., [1, 0]),
    (0, slice(None), [1, 2]),
    (slice(None, None, -1), 1, [1, 2]),
    (None, [1, 2], slice(1, 3)),
    ([2], [1], [0]),
    ([0, 1], ..., None),
    (np.array([], int), slice(0, 2)),
    (np.array([1, 2], np.uint8), 3),
    [True, False, True],
    CUBE > 0,
    (CUBE[..., 0] > 0, None, slice(1, 3)),
    (..., CUBE[0] > 0),
    (slice(None), [True, False, True, True], [1, 2, 3]),
    np.zeros(3, bool),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_numpys(index):
    x = mg.input("x", CUBE.shape, "float64")
    y = x[index]
    (dx,) = mg.grad(ops.sum(y * y), [x])
    result, gradient = Graph((x,), (y, dx))(CUBE)
    np.testing.assert_array_equal(result, CUBE[index], strict=True)
    expected = np.zeros_like(CUBE)
    np.add.at(expected, index, 2 * CUBE[index])
    np.testing.assert_allclose(gradient, expected, rtol=1e-14)


def test_expressions_are_indices():
    x, i = mg.input("x", CUBE.shape, "float64"), mg.input("i", AT.shape, "int32")
    outputs = (x[i], x[:, i, 0], x[i, i + 1], x[0, i])
    result = Graph((x, i), outputs)(CUBE, AT.astype("int32"))
    expected = (CUBE[AT], CUBE[:, AT, 0], CUBE[AT, AT + 1], CUBE[0, AT])
    for ours, theirs in zip(result, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("bad", [3, -4])
def test_an_index_out_of_range_is_an_error_at_the_call(bad):
    x, i = mg.input("x", CUBE.shape), mg.input("i", (2,), "int64")
    function = mg.comp_graph("cpu").compile([x, i], x[i, i])
    with pytest.raises(mg.GraphError, match=rf"index {bad} at \(1,\) is not in -3 \.\.\. 2"):
        function(CUBE.astype("float32"), np.array([0, bad]))


# ---------------------------------------------------------------- updates


def test_a_mask_stands_for_indices_of_updates():
    mask = CUBE[0] > 0
    y = ops.index_put(CUBE[0], [mask], np.arange(mask.sum()))
    expected = CUBE[0].copy()
    expected[mask] = np.arange(mask.sum())
    np.testing.assert_array_equal(Graph((), (y,))()[0], expected, strict=True)


ROWS = np.array([[0, 3, 1], [3, 3, 0]])
X, SRC = real(3, 4, seed=2), real(2, 5, seed=3)

# Each as a function of minigraph.ops or torch, of x, of SRC and of what makes a tensor of indices.
UPDATES = {
    "gather": lambda f, x, v, at: f.gather(x, 1, at(ROWS)) * v[:, :3],
    "scatter": lambda f, x, v, at: f.scatter(x, 1, at(ROWS[:, ::2]), v[:, :2]),
    "scatter-whole": lambda f, x, v, at: f.scatter(x[:2], 1, at(ROWS[:, ::2]), v[:, :2]),
    "scatter-number": lambda f, x, v, at: f.scatter(x, 1, at(ROWS), 2.5),
    "scatter-empty": lambda f, x, v, at: f.scatter(x, 1, at(ROWS[:, :0]), v[:, :0]),
    "scatter-0": lambda f, x, v, at: f.scatter(x, 0, at([[2, 0, 0, 1]]), v[:1, :4]),
    "scatter_add": lambda f, x, v, at: f.scatter_add(x, 1, at(ROWS), v[:, 2:]),
    "scatter_add-0": lambda f, x, v, at: f.scatter_add(x, 0, at(ROWS % 3), v[:, 2:]),
    "index_add": lambda f, x, v, at: f.index_add(x, 1, at(ROWS[0]), v[[0, 1, 0], :3], alpha=-2),
    "index_put": lambda f, x, v, at: f.index_put(x, (at([0, 2]),), v[:, :4]),
    "index_put-pairs": lambda f, x, v, at: f.index_put(x, (at([[0], [2]]), at([1, 3])), v[:, :2]),
    "index_put-add": lambda f, x, v, at: f.index_put(x, (at([2, 2]),), v[:, :4], True),
    "index_put-add-pairs": lambda f, x, v, at: f.index_put(
        x, (at([0, 0]), at([1, 1])), v[:, 0], True
    ),
    "sum of taken": lambda f, x, v, at: (x[:, at(ROWS)] ** 2 * v[0, :3]).sum(),
}


@needs_torch
@pytest.mark.parametrize("name", UPDATES)
def test_values_and_gradients_are_torchs(name):
    assert_agree(
        lambda x, v: UPDATES[name](ops, x, v, np.asarray),
        lambda x, v: UPDATES[name](torch, x, v, torch.tensor),
        *(X, SRC),
        rtol=1e-14,
    )


@pytest.mark.parametrize("put", ["scatter", "index_put"])
def test_the_last_of_several_stays_and_has_the_gradient(put):
    x, v = mg.input("x", (4,), "float64"), mg.input("v", (3,), "float64")
    at = np.array([2, 0, -2])
    y = ops.scatter(x, 0, at, v) if put == "scatter" else ops.index_put(x, (at,), v)
    outputs = (y, *mg.grad(ops.sum(y * y), [x, v]))
    result, dx, dv = Graph((x, v), outputs)(np.array([1.0, 2, 3, 4]), np.array([5.0, 6, 7]))
    np.testing.assert_array_equal(result, [6, 2, 7, 4])
    np.testing.assert_array_equal(dx, [0, 4, 0, 8])
    np.testing.assert_array_equal(dv, [0, 12, 14])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_is_checked_where_nothing_is_put(device, accumulate):
    x, at = mg.input("x", (3, 0)), mg.input("at", (1,), "int64")
    put = ops.index_put(x, [at], np.zeros((1, 0), np.float32), accumulate)
    function = mg.comp_graph(device).compile([x, at], put)
    assert function(np.zeros((3, 0)), [2]).shape == (3, 0)
    with pytest.raises(mg.GraphError, match=r"index 77 at \(0,\) is not in -3 \.\.\. 2"):
        function(np.zeros((3, 0)), [77])


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_native_kernels_compute_them_at_every_level(level):
    x, v = mg.input("x", X.shape), mg.input("v", SRC.shape)
    outputs = [update(ops, x, v, np.asarray) for update in UPDATES.values()]
    outputs += mg.grad(sum(ops.sum(y * y) for y in outputs), [x, v])
    assert_native([x, v], outputs, [X.astype("float32"), SRC.astype("float32")], level)


def test_values_take_the_dtype_of_the_array_where_that_loses_no_kind():
    x, n = mg.input("x", (3,)), mg.input("n", (3,), "int32")
    assert ops.index_put(x, ([0],), np.ones(1)).dtype == np.float32
    assert ops.scatter(n, 0, [1], 7).dtype == np.int32


@pytest.mark.parametrize("alpha", [0, 1, 2])
def test_index_add_keeps_the_type_of_bools(alpha):
    x = np.array([False, True, False])
    y = ops.index_add(x, 0, np.array([0, 1]), np.array([True, False]), alpha)
    function = mg.comp_graph("reference").compile([], y)
    np.testing.assert_array_equal(function(), np.array([alpha > 0, True, False]), strict=True)
