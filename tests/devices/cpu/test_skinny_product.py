"""Products of few rows and of vectors: right to the last element, and chosen where they pay."""

import numpy as np
import pytest
from laid_out import computed_by
from needs import needs_both

import minigraph as mg
from minigraph import nn, ops
from minigraph.devices.cpu import onednn, skinny_product
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.ops.matmul import Matmul

pytestmark = needs_both

# Rows of x, their length, rows of w.
SHAPES = [(1, 1, 1), (1, 33, 23), (3, 7, 2), (3, 64, 50), (8, 47, 19), (12, 16, 5)]
every_shape = pytest.mark.parametrize(("m", "length", "n"), SHAPES)


@pytest.fixture
def weights_come_from_memory(monkeypatch):
    monkeypatch.setattr(skinny_product, "cache_bytes", lambda: 0)


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def product(m, length, n, bias=True, dtype="float32"):
    given = [mg.input("x", (m, length), dtype), mg.input("w", (length, n), dtype)]
    return Matmul()(*given, *([mg.input("bias", (n,), dtype)] if bias else []))


def computed(x, w, *bias, threads=1):
    """Return the product of x and the transposed w, with nothing written elsewhere."""
    node = product(*x.shape, len(w), bool(bias))
    kernel = skinny_product.few_rows(node, threads)
    return computed_by(kernel, node, [x, (w, np.transpose), *bias])


@every_shape
@pytest.mark.parametrize("threads", [1, 2])
def test_few_rows_are_right(m, length, n, threads):
    x, w, bias = drawn((m, length), (n, length), (n,))
    want = x.astype("float64") @ w.T + bias
    np.testing.assert_allclose(computed(x, w, bias, threads=threads), want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(computed(x, w, threads=threads), want - bias, rtol=0, atol=1e-5)


@every_shape
def test_few_rows_are_right_with_short_vectors(m, length, n, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: 8)
    x, w = drawn((m, length), (n, length))
    np.testing.assert_allclose(computed(x, w), x.astype("float64") @ w.T, rtol=0, atol=1e-5)


def test_nan_and_infinity_reach_the_results_that_they_are_part_of_alone():
    x, w = drawn((3, 33), (23, 33))
    x[1, 32], w[7, 20], w[22, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isfinite(computed(x, w)), np.isfinite(x @ w.T))


def offered(node, *strides):
    """Return the names of the candidates for a node, the heuristic's choice first."""
    steps = [*strides, *(x.spec.strides for x in node.inputs[len(strides) :])]
    problem, layouts = CpuProblems(2, on_disk=True).tunable(node, steps)
    return [candidate.name for candidate in problem.candidates(layouts)]


def transposed(length):
    return (4, 4 * length)


@pytest.mark.usefixtures("weights_come_from_memory")
def test_the_heuristic_takes_them_for_weights_that_come_from_memory():
    node = product(4, 40, 30)
    assert offered(node, node.inputs[0].spec.strides, transposed(40))[0] == skinny_product.FEW_ROWS


def test_few_rows_are_no_candidate_where_weights_stay_in_a_cache():
    node = product(4, 40, 30)
    assert skinny_product.FEW_ROWS not in offered(node, node.inputs[0].spec.strides, transposed(40))


@pytest.mark.usefixtures("weights_come_from_memory")
@pytest.mark.parametrize(
    ("rows", "strides"),
    [
        (skinny_product.MOST + 1, [(160, 4), transposed(40)]),
        (4, []),
        (4, [(4, 16), transposed(40)]),
    ],
)
def test_few_rows_are_no_candidate_for_other_products(rows, strides):
    assert skinny_product.FEW_ROWS not in offered(product(rows, 40, 30), *strides)


@pytest.mark.usefixtures("weights_come_from_memory")
@pytest.mark.parametrize("freeze", [False, True])
def test_layers_of_a_small_batch_run_in_them(freeze):
    net = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 200))
    x = mg.input("x", (3, 300))
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
    predict = cg.compile([x], net(x), freeze=freeze)
    (value,) = drawn(x.shape)
    want = mg.comp_graph("reference").compile([x], net(x))(value)
    np.testing.assert_allclose(predict(value), want, rtol=0, atol=1e-5)
    assert [a.name for a in predict.report().algorithms] == [skinny_product.FEW_ROWS] * 2


# ---------------------------------------------------------------- vectors

VECTORS = {
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


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("shapes", VECTORS.values(), ids=VECTORS)
def test_products_of_vectors_are_right(shapes, level):
    function, (x, y, *bias) = compiled(shapes, lambda *xs: Matmul()(*xs), level), drawn(*shapes)
    want = np.matmul(x.astype("float64"), y) + (bias[0] if bias else 0)
    np.testing.assert_allclose(function(x, y, *bias), want, rtol=1e-6, atol=1e-5)
    if level == 3:
        assert [a.name for a in function.report().algorithms] == [skinny_product.VECTOR]


def test_vectors_read_transposed_matrices_where_they_lie():
    function = compiled([(50, 33), (50, 1)], lambda x, y: x.T @ y)
    x, y = drawn((50, 33), (50, 1))
    np.testing.assert_allclose(function(x, y), x.T.astype("float64") @ y, rtol=1e-6, atol=1e-5)
    assert function.report().launches == 1
    assert [a.name for a in function.report().algorithms] == [skinny_product.VECTOR]


def test_nan_and_infinity_reach_their_own_results_of_vectors_alone():
    x, y = drawn((9, 100), (100,))
    x[2, 99], x[7, 0] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        got = compiled([x.shape, y.shape], ops.matmul)(x, y)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(x @ y))


def test_products_of_two_rows_are_left_to_others():
    shapes = [(2, 33), (33, 50)]
    names = [a.name for a in compiled(shapes).report().algorithms]
    assert names and skinny_product.VECTOR not in names
