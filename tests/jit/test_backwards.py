"""Kernels that read an operand from the last element to the first."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import BFLOAT16

pytestmark = needs_compiler

SHAPES = [(5, 7), (300, 200), (40, 3), (2, 70_000), (70, 9, 8)]


def backwards(x):
    return ops.flip(x, -1)


READ = {
    "alone": backwards,
    "in a map": lambda x: backwards(x) + x,
    "sums of rows": lambda x: ops.sum(backwards(x) * x, axis=-1),
    "sums of columns": lambda x: ops.sum(backwards(x) * x, axis=0),
    "rows of two runs": lambda x: ops.softmax(backwards(x), axis=-1) * x,
    "columns of two runs": lambda x: ops.softmax(backwards(x), axis=0) * x,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", BFLOAT16], ids=str)
def test_kernels_read_backwards(shape, dtype):
    x = mg.input("x", shape, dtype)
    value = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    results = [read(x) for read in READ.values()]
    found = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], results)(value)
    wanted = mg.comp_graph("reference").compile([x], results)(value)
    near = 0.01 if dtype == BFLOAT16 else 1e-5
    for name, one, other in zip(READ, found, wanted, strict=True):
        wide = one.astype(float), other.astype(float)
        np.testing.assert_allclose(*wide, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "bool"])
def test_elements_of_any_size_are_turned_round(shape, dtype):
    x = mg.input("x", shape, dtype)
    value = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = mg.comp_graph("cpu").compile([x], [ops.flip(x, -1), ops.flip(x)])(value)
    np.testing.assert_array_equal(found[0], value[..., ::-1], strict=True)
    np.testing.assert_array_equal(found[1], np.flip(value), strict=True)
