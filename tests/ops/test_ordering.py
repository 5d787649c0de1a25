"""Sorting and searching: as in NumPy and PyTorch, special values included."""

import numpy as np
import pytest
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

SPECIAL = np.array([3, np.nan, -0.0, 0, np.inf, -1, -np.inf, 3, 0, -0.0, np.nan, 3])
CUBE = real(3, 4, 5, seed=1)


def value(y, *pairs):
    inputs, arrays = zip(*pairs, strict=True)
    return Graph(inputs, (y,))(*arrays)[0]


@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order_and_nan_is_largest(descending, torch):
    x = mg.input("x", SPECIAL.shape, "float64")
    wanted = torch.sort(torch.tensor(SPECIAL), descending=descending, stable=True)
    places = value(ops.argsort(x, descending=descending), (x, SPECIAL))
    np.testing.assert_array_equal(places, wanted.indices.numpy())
    got = value(ops.sort(x, descending=descending), (x, SPECIAL))
    assert got.tobytes() == wanted.values.numpy().tobytes()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["sort", "sort-down", "topk", "topk-smallest"])
def test_values_places_and_gradients_are_torchs(name, axis, torch):
    given = torch.tensor(CUBE, requires_grad=True)
    x = mg.input("x", CUBE.shape, "float64")
    if name.startswith("sort"):
        down = name == "sort-down"
        wanted = torch.sort(given, axis, descending=down)
        y, places = ops.sort(x, axis, down), ops.argsort(x, axis, down)
    else:
        largest = name == "topk"
        wanted = torch.topk(given, 2, axis, largest)
        y, places = ops.topk(x, 2, axis, largest)
    weights = np.arange(float(y.size)).reshape(y.shape)
    (wanted.values * torch.tensor(weights)).sum().backward()
    (dx,) = mg.grad(ops.sum(y * weights), [x])
    got = Graph((x,), (y, places, dx))(CUBE)
    pairs = zip(got, (wanted.values, wanted.indices, given.grad), strict=True)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs.detach().numpy())


def test_no_elements_and_none_asked_for():
    x = mg.input("x", (2, 3))
    assert ops.topk(x, 0)[0].shape == (2, 0)
    assert value(ops.sort(x[:, :0]), (x, np.ones((2, 3)))).shape == (2, 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys_for_one_row_and_torchs_for_many(side, torch):
    row, wanted = np.sort(SPECIAL), np.array([[np.nan, 0.0, -0.0], [-5, 3, np.inf]])
    x, v = mg.input("x", row.shape, "float64"), mg.input("v", wanted.shape, "float64")
    got = value(ops.searchsorted(x, v, side), (x, row), (v, wanted))
    np.testing.assert_array_equal(got, np.searchsorted(row, wanted, side), strict=True)
    rows, wanted = np.sort(CUBE), np.concatenate([CUBE, CUBE[::-1]], -1)
    x, v = mg.input("x", rows.shape, "float64"), mg.input("v", wanted.shape, "float64")
    got = value(ops.searchsorted(x, v, side), (x, rows), (v, wanted))
    theirs = torch.searchsorted(torch.tensor(rows), torch.tensor(wanted), side=side)
    np.testing.assert_array_equal(got, theirs.numpy(), strict=True)


def test_searchsorted_takes_numbers_of_two_types():
    x = mg.input("x", (4,), "int32")
    y = ops.searchsorted(x, [0.5, 2.5])
    np.testing.assert_array_equal(value(y, (x, np.array([0, 1, 2, 3], "int32"))), [1, 3])
