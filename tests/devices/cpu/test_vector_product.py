"""Products of a matrix and a vector on the CPU: right for every shape, and chosen untuned."""

import numpy as np
import pytest
from needs import needs_both

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import vector_product
from minigraph.ops.matmul import Matmul

pytestmark = needs_both

SHAPES = {
    "a column": [(50, 33), (33, 1)],
    "a row": [(1, 33), (33, 50)],
    "both": [(1, 700), (700, 1)],
    "one element": [(1, 1), (1, 1)],
    "a row and a bias": [(1, 33), (33, 50), (50,)],
    "a column and a bias": [(50, 33), (33, 1), (1,)],
    "batches": [(3, 2, 1, 64), (3, 2, 64, 70)],
    "one matrix for all": [(3, 1, 20, 65), (2, 65, 1)],
    "many threads": [(600, 600), (600, 1)],
}


def compiled(shapes, build=ops.matmul, level=3):
    given = [mg.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    return cg.compile(given, build(*given))


def drawn(shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_results_are_right(shapes, level):
    function, (x, y, *bias) = compiled(shapes, lambda *xs: Matmul()(*xs), level), drawn(shapes)
    want = np.matmul(x.astype("float64"), y) + (bias[0] if bias else 0)
    np.testing.assert_allclose(function(x, y, *bias), want, rtol=1e-6, atol=1e-5)
    if level == 3:
        assert [a.name for a in function.report().algorithms] == [vector_product.NAME]


def test_they_read_transposed_matrices_where_they_lie():
    function = compiled([(50, 33), (50, 1)], lambda x, y: x.T @ y)
    x, y = drawn([(50, 33), (50, 1)])
    np.testing.assert_allclose(function(x, y), x.T.astype("float64") @ y, rtol=1e-6, atol=1e-5)
    assert function.report().launches == 1
    assert [a.name for a in function.report().algorithms] == [vector_product.NAME]


def test_nan_and_infinity_reach_the_results_that_they_are_part_of_alone():
    x, y = drawn([(9, 100), (100,)])
    x[2, 99], x[7, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        got = compiled([x.shape, y.shape], ops.matmul)(x, y)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(x @ y))


def test_products_of_two_rows_are_left_to_others():
    shapes = [(2, 33), (33, 50)]
    names = [a.name for a in compiled(shapes).report().algorithms]
    assert names and vector_product.NAME not in names
