"""Sorting and searching: as in NumPy and PyTorch, special values included."""

import numpy as np
import pytest
from beside_torch import assert_agree, needs_torch, torch
from samples import real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

SPECIAL = np.array([3, np.nan, -0.0, 0, np.inf, -1, -np.inf, 3, 0, -0.0, np.nan, 3])
CUBE = real(3, 4, 5, seed=1)


def value(y, *pairs):
    inputs, arrays = zip(*pairs, strict=True)
    return Graph(inputs, (y,))(*arrays)[0]


@needs_torch
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order_and_nan_is_largest(descending):
    x = mg.input("x", SPECIAL.shape, "float64")
    expected = torch.sort(torch.tensor(SPECIAL), descending=descending, stable=True)
    places = value(ops.argsort(x, descending=descending), (x, SPECIAL))
    np.testing.assert_array_equal(places, expected.indices.numpy())
    result = value(ops.sort(x, descending=descending), (x, SPECIAL))
    assert result.tobytes() == expected.values.numpy().tobytes()


SORTS = {
    "sort": (lambda x, axis: (ops.sort(x, axis), ops.argsort(x, axis)), {}),
    "sort-down": (
        lambda x, axis: (ops.sort(x, axis, True), ops.argsort(x, axis, True)),
        {"descending": True},
    ),
    "topk": (lambda x, axis: ops.topk(x, 2, axis), {"k": 2}),
    "topk-smallest": (lambda x, axis: ops.topk(x, 2, axis, False), {"k": 2, "largest": False}),
}


@needs_torch
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", SORTS)
def test_values_places_and_gradients_are_torchs(name, axis):
    mine, kwargs = SORTS[name]
    theirs = getattr(torch, name.partition("-")[0])
    assert_agree(lambda x: mine(x, axis)[0], lambda x: theirs(x, dim=axis, **kwargs)[0], CUBE)
    x = mg.input("x", CUBE.shape, "float64")
    places = theirs(torch.tensor(CUBE), dim=axis, **kwargs).indices
    np.testing.assert_array_equal(value(mine(x, axis)[1], (x, CUBE)), places.numpy())


def test_no_elements_and_none_asked_for():
    x = mg.input("x", (2, 3))
    assert ops.topk(x, 0)[0].shape == (2, 0)
    assert value(ops.sort(x[:, :0]), (x, np.ones((2, 3)))).shape == (2, 0)


@needs_torch
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys_for_one_row_and_torchs_for_many(side):
    row, expected = np.sort(SPECIAL), np.array([[np.nan, 0.0, -0.0], [-5, 3, np.inf]])
    x, v = mg.input("x", row.shape, "float64"), mg.input("v", expected.shape, "float64")
    result = value(ops.searchsorted(x, v, side), (x, row), (v, expected))
    np.testing.assert_array_equal(result, np.searchsorted(row, expected, side), strict=True)
    rows, expected = np.sort(CUBE), np.concatenate([CUBE, CUBE[::-1]], -1)
    x, v = mg.input("x", rows.shape, "float64"), mg.input("v", expected.shape, "float64")
    result = value(ops.searchsorted(x, v, side), (x, rows), (v, expected))
    theirs = torch.searchsorted(torch.tensor(rows), torch.tensor(expected), side=side)
    np.testing.assert_array_equal(result, theirs.numpy(), strict=True)


def test_searchsorted_takes_numbers_of_two_types():
    x = mg.input("x", (4,), "int32")
    y = ops.searchsorted(x, [0.5, 2.5])
    np.testing.assert_array_equal(value(y, (x, np.array([0, 1, 2, 3], "int32"))), [1, 3])
