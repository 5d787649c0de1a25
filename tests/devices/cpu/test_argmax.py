"""The CPU's kernel of argmax: rows side by side, short rows, and long ones."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops

pytestmark = needs_compiler

SIZES = {  # the array, and the axis
    "one element": ((1,), 0),
    "short rows": ((600, 10), 1),
    "the longest short rows": ((5, 48), 1),
    "the shortest long rows": ((5, 49), 1),
    "rows of whole vectors": ((3, 128), 1),
    "rows that end within a vector": ((4, 1000), 1),
    "columns": ((9, 300), 0),
    "columns of images": ((3, 21, 17, 20), 1),
    "all of a long array": ((70_000,), 0),
}


def indices(x, axis, threads=2):
    fed = mg.input("x", x.shape, x.dtype)
    y = ops.argmax(fed, axis)
    function = mg.comp_graph("cpu", {"num_threads": threads}).compile([fed], y)
    assert [kernel.kernel for kernel in function.profile(x).kernels] == ["c"]
    return function(x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64", "bool"])
@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_it_is_the_first_of_the_largest(shape, axis, dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    np.testing.assert_array_equal(indices(x, axis), np.argmax(x, axis))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_nan_is_the_largest(shape, axis, value, threads):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype("float32")
    x[rng.random(shape) < 0.1] = value
    np.testing.assert_array_equal(indices(x, axis, threads), np.argmax(x, axis))
    x[...] = value
    np.testing.assert_array_equal(indices(x, axis, threads), np.zeros(np.argmax(x, axis).shape))


@pytest.mark.parametrize(("shape", "axis"), SIZES.values(), ids=SIZES)
def test_any_byte_but_0_is_true(shape, axis):
    x = np.random.default_rng(0).choice(np.array([0, 0, 0, 1, 2, 255], np.uint8), shape)
    np.testing.assert_array_equal(indices(x.view(bool), axis), np.argmax(x != 0, axis))
