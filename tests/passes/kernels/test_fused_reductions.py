"""Which reductions become one kernel with what is before and after them."""

import numpy as np
import pytest
from fused_units import CHANNELS, IMAGES, ROW, SQUARE, A, B, C, fused, reasons, softmax, units
from needs import needs_compiler
from rewriting import run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.fused import Fused
from minigraph.ops.shape import PermuteDims
from minigraph.passes.kernels.fusion import decompose, fuse_elementwise, fuse_kernels
from minigraph.passes.kernels.group import ACROSS


def batch_norm(x):
    distance = x - x.mean((0, 2, 3), keepdims=True)
    variance = (distance * distance).mean((0, 2, 3), keepdims=True)
    return distance * ops.rsqrt(variance + 1e-5) * CHANNELS + 1


LOGSUMEXP = "max isfinite where subtract exp sum log add"
ROWS = {
    "work before": ((A * B).sum(1), "multiply sum"),
    "work after": (A.max(1) * 2 + 1, "max multiply add"),
    "before and after": ((A * B).sum(1, keepdims=True) * 2, "multiply sum multiply"),
    "all axes": (ops.mse_loss(A, B), "subtract multiply sum divide"),
    "a mean taken away": (A - A.mean(1, keepdims=True), "sum divide subtract"),
    "a mean of all": (A - A.mean(), "sum divide subtract"),
    "variance": (ops.var(A, 1), "sum divide subtract multiply sum divide"),
    "softmax": (softmax(A * 2, 1), "multiply max subtract exp sum divide"),
    "log softmax": (A - ops.logsumexp(A, 1, keepdims=True), f"{LOGSUMEXP} subtract"),
    "logsumexp": (ops.logsumexp(A, 1), LOGSUMEXP),
    "layer norm": (
        ops.layer_norm(A, (32,), ROW),
        "sum divide subtract multiply sum divide add rsqrt multiply multiply",
    ),
    "batch norm": (
        ops.relu(batch_norm(IMAGES)),
        "sum divide subtract multiply sum divide add rsqrt multiply multiply add relu",
    ),
    "two reductions of one kind": (A.sum(1) + (B * 2).max(1), "sum multiply max add"),
    "a result that meets another array": (A.sum(1, keepdims=True) + B * 2, "sum multiply add"),
    "read transposed": ((mg.input("t", (32, 16)).T * A).sum(1), "multiply sum"),
    "integers": (mg.input("i", (6, 7), "int16").sum(1) + 1, "sum add"),
    "bools": ((A > 0).sum(1) * 2, "greater sum multiply"),
}


@pytest.mark.parametrize(("y", "kernel"), ROWS.values(), ids=ROWS)
def test_reductions_along_rows_take_the_work_before_and_after(y, kernel):
    assert fused(y) == [kernel]


COLUMNS = {
    "work before": ((A * B).sum(0), "multiply sum"),
    "work after": (A.max(0) * 2 + 1, "max multiply add"),
    "before and after": ((A * B).sum(0) * ROW + 1, "multiply sum multiply add"),
    "outer axes of images": ((IMAGES * CHANNELS).sum((0, 1)) + 1, "multiply sum add"),
    "two reductions": ((A * B).sum(0) / A.max(0), "multiply sum max divide"),
}


@pytest.mark.parametrize(("y", "kernel"), COLUMNS.values(), ids=COLUMNS)
def test_reductions_down_columns_take_the_work_before_and_after(y, kernel):
    assert fused(y) == [kernel]


def test_a_reduction_may_store_what_it_reduces():
    e = ops.exp(A)
    assert fused(e, e.sum(1)) == fused(e.sum(1), e) == ["exp sum -> 2"]
    assert fused(e, e.sum(0) + 1) == ["exp sum add -> 2"]


def test_running_statistics_are_computed_beside_the_batch_norm():
    mean = IMAGES.mean((0, 2, 3), keepdims=True)
    y = (IMAGES - mean) * CHANNELS
    assert fused(y, mean) == ["sum divide subtract multiply -> 2"]
    running = mg.Parameter(np.zeros((1, 8, 1, 1), "float32"))
    assert fused(y, running * 0.9 + mean * 0.1)[0] == "sum divide subtract multiply -> 2"


def test_columns_are_not_run_over_twice():
    assert fused(softmax(A, 0)) == ["[max]", "subtract exp sum -> 2", "[divide]"]
    why = "the kernel would have to read whole columns twice"
    assert set(reasons(softmax(A, 0))) == {("sum", "divide", why), ("max", "subtract", why)}
    top = A.max(0) * 2  # is needed for every row, and once more after the last
    assert fused((A - top).sum(0) + top) == ["[max]", "multiply subtract sum add"]


def test_reductions_over_different_axes_are_different_kernels():
    for shared, kernels in (
        (A * 2, ["multiply sum", "multiply sum"]),  # rather than stored
        (A * B, ["multiply sum", "multiply sum"]),  # as A * B would be written, and read
        (A * B * C, ["multiply multiply sum -> 2", "[sum]"]),
        (ops.exp(A), ["exp sum -> 2", "[sum]"]),
    ):
        assert fused(shared.sum(0), shared.sum(1)) == kernels
    assert fused((A * 2).sum(0) + (SQUARE[0] * 2).sum()) == ["multiply sum", "multiply sum add"]
    y = A.sum(0, keepdims=True) + A.sum(1, keepdims=True) * B
    assert ("sum", "add", "the kernel reduces over other axes") in reasons(y)


def test_reductions_that_read_the_same_are_one_kernel():
    """Neither reads the other's result, but what they read is read once."""
    gradient = [(A * B).sum(0), (A * B * ROW).sum(0)]
    assert fused(*gradient) == ["multiply sum multiply multiply sum -> 2"]
    assert fused(A.sum(0) / 16, (A * B).sum(0)) == ["sum divide multiply sum -> 2"]
    # Where an elementwise op reads them and their input, it runs once both are known.
    first, second = A.sum(0) / 16, ops.sqrt((A * B).sum(0))
    kernels = fused((A - first) * second)
    assert kernels == ["sum divide multiply sum sqrt -> 2", "subtract multiply"]


def test_a_reduction_joins_another_that_reads_what_is_made_of_it():
    """As the statistics of a batch norm do, whose mean another kernel reads as well."""
    distance = A - ROW
    lack = distance.sum(0) / 16
    mean, variance = ROW + lack, (distance * distance).sum(0) / 16 - lack * lack
    statistics, _ = fused((A - mean) * ops.rsqrt(variance + 1), mean)
    assert statistics.startswith("subtract sum divide add multiply sum divide ")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A.sum(0), A.sum(1)),  # over other axes
        (A.sum(0), B.sum(0)),  # of other values
        (A.sum(0), (A * A.sum(0).sum()).sum(0)),  # of what is made of the first
    ],
)
def test_reductions_that_cannot_run_together_are_several_kernels(one, other):
    assert len(fused(one, other)) >= 2


def test_a_reduction_of_a_reduction_is_another_kernel():
    assert fused((A * B).sum(0).sum() * 2) == ["multiply sum", "sum multiply"]


def test_few_long_rows_are_one_kernel():
    """Threads share each of them."""
    long = mg.input("long", (2, 100_000))
    assert fused(softmax(long, 1)) == ["max subtract exp sum divide"]
    assert fused((long * 2).sum(1) + 1) == ["multiply sum add"]


def test_an_argmax_has_a_kernel_of_its_own():
    assert fused(ops.argmax(A * B + 1, 1) * 2) == ["multiply add", "[argmax]", "[multiply]"]


def test_level_1_of_the_jit_keeps_reductions_out():
    y = softmax(A * 2, 1) * B + 1
    assert fused(y, by=fuse_elementwise) == [
        *("[multiply]", "[max]", "subtract exp", "[sum]"),
        "divide multiply add",
    ]


@pytest.mark.parametrize(
    ("y", "units"),
    [
        (ops.softmax(A * 2) * B, ["multiply max subtract exp sum divide multiply"]),
        (ops.log_softmax(A) + 1, ["max subtract exp sum log subtract add"]),
        (ops.softmax(A, 0) * 2, ["[softmax]", "[multiply]"]),  # alone, it has a better kernel
        (ops.softmax(mg.input("long", (2, 10_000))), ["max subtract exp sum divide"]),
    ],
)
def test_composed_ops_are_taken_apart_where_one_kernel_can_compute_them(y, units):
    assert fused(y, by=lambda graph, notes: fuse_kernels(decompose(graph, notes), notes)) == units


# ---------------------------------------------------------------- rows across the order in memory


LAST = ops.permute_dims(IMAGES, (0, 2, 3, 1))  # the channels


def centered(x):
    return x - x.mean(-1, keepdims=True)


def made_of(y):
    graph, _ = run(fuse_kernels, Graph((IMAGES,), (y,)))
    return graph


def permuted_inside(graph):
    """The permutations of axes that kernels read through."""
    kernels = [node.op.graph for node in graph if isinstance(node.op, Fused)]
    return [x.op.name for each in kernels for x in each if isinstance(x.op, PermuteDims)]


def test_a_kernel_does_not_read_across_the_rows_that_it_reduces():
    y = centered(LAST)
    assert ("permute_dims", ACROSS) in [(made, why) for made, _, why in reasons(y)]
    graph = made_of(y)
    assert len(units(graph)) == 1 and not permuted_inside(graph)


def test_a_kernel_does_not_write_across_the_rows_that_it_reduces():
    y = IMAGES + ops.permute_dims(centered(LAST), (0, 3, 1, 2))
    assert ACROSS in [why for *_, why in reasons(y)]


def test_a_kernel_does_not_reduce_rows_beside_columns():
    square = mg.input("square", (32, 32))
    assert ACROSS in [why for *_, why in reasons(square.sum(0) + square.sum(1))]


def test_rows_that_stay_rows_are_read_through_a_view():
    y = centered(ops.permute_dims(IMAGES, (1, 0, 2, 3)))
    assert ACROSS not in [why for *_, why in reasons(y)]
    assert permuted_inside(made_of(y)) == ["permute_dims"]


def test_what_reduces_nothing_is_read_through_any_view():
    y = LAST * 2 + 1
    assert not reasons(y)
    assert permuted_inside(made_of(y)) == ["permute_dims"]


@needs_compiler
@pytest.mark.parametrize("level", [2, 3])
def test_the_kernel_reads_a_copy(level):
    x = mg.input("x", (2, 96, 12, 10))
    y = ops.layer_norm(ops.permute_dims(x, (0, 2, 3, 1)), (96,))
    values = np.random.default_rng(0).standard_normal(x.shape).astype("float32")
    step = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], y)
    want = mg.comp_graph("reference").compile([x], y)(values)
    np.testing.assert_allclose(step(values), want, rtol=1e-5, atol=1e-6)
    assert "copy" in [kernel.name for kernel in step.profile(values).kernels]
