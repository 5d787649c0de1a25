"""Softmax with cross entropy, and its gradient: one op each."""

import numpy as np
import pytest
from heavy_nodes import real as float32
from op_values import inputs_like
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler
from minigraph.graph import Graph
from minigraph.ops.indexing import TakeAlong
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e-30, 1e30, -3e38]


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("where", ["label", "other", "all", "weight"])
def test_special_values_pass_as_in_separate_ops(where, value):
    x, labels, w = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64"), mg.input("w", (4,))
    losses = ops.cross_entropy(x, labels, reduction="none")
    take = TakeAlong(1, labels=True)
    apart = -take(ops.log_softmax(x), ops.expand_dims(labels, 1))[:, 0]
    fused, of = ([y, *mg.grad((y * w).sum(), [x])] for y in (losses, apart))
    ops_made = [node.op.name for node in Graph((x, labels, w), tuple(fused))]
    assert {"cross_entropy", "cross_entropy_backward"} <= {*ops_made} and "exp" not in ops_made
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, seed=1)]
    rows = {"label": [1, value, 2], "other": [1, 2, value], "all": [value] * 3}
    xs[0][2] = rows.get(where, xs[0][2])
    if where == "weight":
        xs[2][2] = value
    result, want = (Graph((x, labels, w), tuple(ys))(*xs) for ys in (fused, of))
    for y, expected in zip(result, want, strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_labels_that_are_ignored_have_no_loss_and_no_gradient():
    x, labels = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64")
    losses = ops.cross_entropy(x, labels, ignore_index=-100, reduction="none")
    plain = ops.cross_entropy(x, labels, reduction="none")
    graphs = [Graph((x, labels), (y, *mg.grad(y.sum(), [x]))) for y in (losses, plain)]
    logits = float32(4, 3)
    result = graphs[0](logits, np.array([0, -100, 2, 1]))
    want = graphs[1](logits, np.array([0, 0, 2, 1]))
    for y, expected in zip(result, want, strict=True):
        expected[1] = 0
        np.testing.assert_array_equal(y, expected)


# ---------------------------------------------------------------- kernels of the cross entropy


def assert_kernels_agree(logits, labels, threads=2):
    arrays = [real(*labels.shape, 1, seed=3).astype(logits.dtype), logits, labels]
    dy, x, at = inputs = inputs_like(arrays)
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    function = cg.compile(inputs, [CrossEntropy()(x, at), CrossEntropyBackward()(dy, x, at)])
    if compiler.compiler():
        assert [kernel for _, kernel, _ in function.report().steps] == ["c", "c"]
    dy, x = (y.astype("float64") for y in arrays[:2])
    with np.errstate(all="ignore"):
        exact = CrossEntropy().forward(x, labels), CrossEntropyBackward().forward(dy, x, labels)
    for y, expected in zip(function(*arrays), exact, strict=True):
        assert y.dtype == logits.dtype
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (2, 31), (2, 32), (5, 33), (2, 2500), (2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_agree_with_the_meaning(size, dtype):
    for scale in (1, 50):  # 50: differences beyond the range of exp
        logits = (real(*size) * scale).astype(dtype)
        assert_kernels_agree(logits, integer(*size[:-1], high=size[-1]))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_labels_are_integers_of_any_size(dtype):
    assert_kernels_agree(float32(4, 5), integer(4, high=5).astype(dtype))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_kernels_agree_with_any_number_of_threads(threads):
    assert_kernels_agree(float32(333, 200), integer(333, high=200), threads)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("size", [(8, 3), (8, 40)])
def test_kernels_pass_special_values_as_the_meaning(size, value):
    for share in (0.1, 0.5, 1.0):
        chosen = np.random.default_rng(0).random(size) < share
        logits = np.where(chosen, np.float32(value), float32(*size))
        assert_kernels_agree(logits, integer(8, high=3))


def test_a_gradient_may_be_written_over_the_logits():
    x, labels = mg.input("x", (64, 100)), mg.input("labels", (64,), "int64")
    logits = ops.tanh(x) * 5
    outputs = [mg.grad(ops.cross_entropy(logits, labels), [logits])[0] * 2]
    function = mg.comp_graph("cpu", {"graph_opt_level": 2}).compile([x, labels], outputs)
    assert function.report().ops["cross_entropy_backward"] == 1
    xs = [float32(64, 100), integer(64, high=100)]
    (want,) = Graph((x, labels), tuple(outputs))(*xs)
    np.testing.assert_allclose(function(*xs)[0], want, rtol=1e-5, atol=1e-7)
    if compiler.compiler():
        assert function.report().memory.arena_bytes < 1.2 * xs[0].nbytes
