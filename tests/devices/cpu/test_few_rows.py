"""Products of few rows on the CPU: right to the last row and element, and chosen where they pay."""

import numpy as np
import pytest
from needs import needs_both

import minigraph as mg
from minigraph import nn
from minigraph.autotune.candidate import HostBench
from minigraph.autotune.data import Block
from minigraph.devices.cpu import few_rows, onednn
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.ops.matmul import Matmul

pytestmark = needs_both

# Rows of x, their length, rows of w.
SHAPES = [(1, 1, 1), (1, 33, 23), (3, 7, 2), (3, 64, 50), (8, 47, 19), (12, 16, 5)]
every_shape = pytest.mark.parametrize(("m", "length", "n"), SHAPES)


@pytest.fixture
def weights_come_from_memory(monkeypatch):
    monkeypatch.setattr(few_rows, "cache_bytes", lambda: 0)


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def product(m, length, n, bias=True, dtype="float32"):
    given = [mg.input("x", (m, length), dtype), mg.input("w", (length, n), dtype)]
    return Matmul()(*given, *([mg.input("bias", (n,), dtype)] if bias else []))


def computed(x, w, *bias, threads=1):
    """Return the product of x and the transposed w, with nothing written elsewhere."""
    node = product(*x.shape, len(w), bool(bias))
    kernel = few_rows.few_rows(node, threads)
    result = Block(HostBench(), node.shape, node.dtype)
    scratch = Block(HostBench(), (kernel.scratch // 4,), node.dtype)
    for block in (result, scratch):
        block.clear(block.array.nbytes)
    KernelRunner(kernel, on_disk=True).run([x, w.T, *bias], [result.array], scratch.array)
    assert result.intact(result.array.nbytes)
    assert scratch.intact(kernel.scratch)
    return result.array


@every_shape
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_right(m, length, n, threads):
    x, w, bias = drawn((m, length), (n, length), (n,))
    want = x.astype("float64") @ w.T + bias
    np.testing.assert_allclose(computed(x, w, bias, threads=threads), want, rtol=0, atol=1e-5)
    np.testing.assert_allclose(computed(x, w, threads=threads), want - bias, rtol=0, atol=1e-5)


@every_shape
def test_results_are_right_with_short_vectors(m, length, n, monkeypatch):
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
    assert offered(node, node.inputs[0].spec.strides, transposed(40))[0] == few_rows.NAME


def test_they_are_no_candidate_where_weights_stay_in_a_cache():
    node = product(4, 40, 30)
    assert few_rows.NAME not in offered(node, node.inputs[0].spec.strides, transposed(40))


@pytest.mark.usefixtures("weights_come_from_memory")
def test_they_are_no_candidate_for_other_products():
    many = product(few_rows.MOST + 1, 40, 30)
    by_rows = product(4, 40, 30)
    assert few_rows.NAME not in offered(many, many.inputs[0].spec.strides, transposed(40))
    assert few_rows.NAME not in offered(by_rows)
    assert few_rows.NAME not in offered(by_rows, (4, 16), transposed(40))


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
    assert [a.name for a in predict.report().algorithms] == [few_rows.NAME] * 2
