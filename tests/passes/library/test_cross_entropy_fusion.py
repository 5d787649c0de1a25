"""Softmax with cross entropy, and its gradient: one op each."""

import numpy as np
import pytest
from fused_ops import (
    SPECIAL,
    assert_same_numbers,
    assert_untouched,
    float32,
    fused,
    names,
    with_gradients,
)
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler
from minigraph.graph import Graph
from minigraph.ops.loss import CrossEntropy, CrossEntropyBackward
from minigraph.passes import levels
from minigraph.passes.library.cross_entropy import fuse_cross_entropy


@pytest.fixture
def classes():
    return [mg.input("x", (4, 3)), mg.input("labels", (4,), "int64"), mg.input("w", (4, 1))]


def picked(x, labels):
    """The logarithms of the labels' probabilities [n, 1], as `ops.cross_entropy` writes them."""
    chosen = ops.one_hot(labels, x.shape[-1], "bool")
    return ops.sum(ops.where(chosen, ops.log_softmax(x), 0), -1, keepdims=True)


def test_a_cross_entropy_is_one_op_and_so_is_its_gradient(classes):
    inputs = classes[:2]
    graph, fired = fused(
        fuse_cross_entropy, inputs, with_gradients(ops.cross_entropy(*inputs), inputs[:1])
    )
    assert str(graph).splitlines()[1:] == [
        "  %0: float32[4,1] = cross_entropy x labels",
        "  %1: float32[1,1] = sum[axes=(0, 1)] %0",
        "  %2: float32[] = const 4",
        "  %3: float32[1,1] = divide %1 %2",
        "  %4: float32[] = reshape[shape=()] %3",
        "  %5: float32[] = const 1",
        "  %6: float32[1,1] = reshape[shape=(1, 1)] %5",
        "  %7: float32[1,1] = divide %6 %2",
        "  %8: float32[4,1] = broadcast_to[shape=(4, 1)] %7",
        "  %9: float32[4,3] = cross_entropy_backward %8 x labels",
        "  return %4, %9",
    ]
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}


def test_the_loss_and_its_gradient_are_fused_where_they_stand_alone(classes):
    inputs = classes[:2]
    loss, dx = with_gradients(ops.cross_entropy(*inputs), inputs[:1])
    assert fused(fuse_cross_entropy, inputs, [loss])[1] == {"cross_entropy": 1}
    assert fused(fuse_cross_entropy, inputs, [dx])[1] == {"cross_entropy_backward": 1}


@pytest.mark.parametrize("size", [(5, 3), (2, 3, 4), (2, 1, 2, 3), (0, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_and_images_of_any_dtype_have_the_same_cross_entropy(size, dtype):
    rows = (size[0], *size[2:])
    inputs = [mg.input("x", size, dtype), mg.input("labels", rows, "uint8")]
    outputs = (
        with_gradients(ops.cross_entropy(*inputs), inputs[:1]) if size[0] else [-picked(*inputs)]
    )
    graph, fired = fused(fuse_cross_entropy, inputs, outputs)
    assert fired.total() == len(outputs)
    xs = [real(*size).astype(dtype), integer(*rows, high=size[1]).astype(np.uint8)]
    assert_same_numbers(graph, inputs, outputs, xs, 2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("where", ["label", "other", "all", "weight"])
def test_special_values_pass_as_in_the_ops_that_were_fused(classes, where, value):
    x, labels, w = classes
    outputs = [-picked(x, labels), *mg.grad((-picked(x, labels) * w).sum(), [x])]
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert fired == {"cross_entropy": 1, "cross_entropy_backward": 1}
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    xs[0][2] = {"label": [1, value, 2], "other": [1, 2, value], "all": [value] * 3}.get(
        where, xs[0][2]
    )
    if where == "weight":
        xs[2][2] = value
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)


def test_rows_may_have_weights(classes):
    x, labels, w = classes
    outputs = with_gradients((-picked(x, labels) * w).sum(), [x, w])
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert fired.total() == 2
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)
    assert "negative" not in names(graph)


def test_the_factors_of_the_gradient_may_be_swapped(classes):
    x, labels, w = classes
    logs, chosen = ops.log_softmax(x), ops.one_hot(labels, 3, "bool")
    dlogs = ops.where(chosen, w, 0)
    outputs = [dlogs - ops.sum(dlogs, -1, keepdims=True) * ops.exp(logs)]
    graph, fired = fused(fuse_cross_entropy, classes, outputs)
    assert names(graph) == ["negative", "cross_entropy_backward"]
    assert fired == {"cross_entropy_backward": 1}
    xs = [float32(4, 3), np.array([0, 2, 1, 1]), float32(4, 1, seed=1)]
    assert_same_numbers(graph, classes, outputs, xs, 1e-6)


def log_likelihood(axis=-1, size=3, fill=0, total=-1, dtype="bool"):
    """As `picked`, but for one thing."""

    def build(x, labels, w):
        chosen = ops.one_hot(labels, size, dtype)
        return [-ops.sum(ops.where(chosen, ops.log_softmax(x, axis), fill), total, keepdims=True)]

    return build


def gradient_of(logs, dlogs, total=None):
    return dlogs - ops.exp(logs) * ops.sum(dlogs if total is None else total, -1, keepdims=True)


LOSS_NOT_FUSED = {
    "the softmax is another axis's": log_likelihood(axis=0),
    "the sum is another axis's": log_likelihood(total=0),
    "the rest is not 0": log_likelihood(fill=1),
    "the labels are repeated": lambda x, labels, w: log_likelihood()(x, labels[:1], w),
    "the choice is no one-hot": lambda x, labels, w: [
        -ops.sum(ops.where(x > 0, ops.log_softmax(x), 0), -1, keepdims=True)
    ],
    "the largest is taken": lambda x, labels, w: [
        -ops.max(
            ops.where(ops.one_hot(labels, 3, "bool"), ops.log_softmax(x), 0), -1, keepdims=True
        )
    ],
    "the sign is missing": lambda x, labels, w: [picked(x, labels)],
    "the sum has another reader": lambda x, labels, w: [-(z := picked(x, labels)), z * 2],
    "the sum is an output": lambda x, labels, w: [-(z := picked(x, labels)), z],
    "the logarithms are an output": lambda x, labels, w: [
        -ops.sum(ops.where(ops.one_hot(labels, 3, "bool"), z := ops.log_softmax(x), 0), -1),
        z,
    ],
    "the logarithms have another reader": lambda x, labels, w: [
        -(z := picked(x, labels)),
        z.inputs[0].inputs[1] * 2,
    ],
    "the logarithms have a gradient": lambda x, labels, w: mg.grad(
        (loss := ops.cross_entropy(x, labels)),
        [x, next(n for n in Graph((), (loss,)) if n.op.name == "log_softmax")],
    ),
    "the probabilities have another reader": lambda x, labels, w: [
        dx := mg.grad(ops.cross_entropy(x, labels), [x])[0],
        dx.inputs[1].inputs[0],
    ],
    "the weights differ in a row": lambda x, labels, w: [
        gradient_of(ops.log_softmax(x), ops.where(ops.one_hot(labels, 3, "bool"), x, 0))
    ],
    "another gradient is summed": lambda x, labels, w: [
        gradient_of(ops.log_softmax(x), ops.where(ops.one_hot(labels, 3, "bool"), w, 0), x)
    ],
}


@pytest.mark.parametrize("why", LOSS_NOT_FUSED)
def test_a_cross_entropy_is_left_alone_where(classes, why):
    assert_untouched(fuse_cross_entropy, classes, LOSS_NOT_FUSED[why](*classes))


# ---------------------------------------------------------------- kernels of the cross entropy


def compiled(op, xs, threads=2):
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    cg = mg.comp_graph("cpu", {"num_threads": threads})
    function = cg.compile(inputs, op(*inputs))
    if compiler.compiler():
        assert [kernel for _, kernel, _ in function.report().steps] == ["c"]
    return function


def assert_kernels_agree(logits, labels, threads=2):
    dy = real(*labels.shape, 1, seed=3).astype(logits.dtype)
    for op, xs in (
        (CrossEntropy(), [logits, labels]),
        (CrossEntropyBackward(), [dy, logits, labels]),
    ):
        with np.errstate(all="ignore"):
            want = op.forward(*(x.astype("float64") if x.dtype.kind == "f" else x for x in xs))
        got = compiled(op, xs, threads)(*xs)
        assert got.dtype == logits.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


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


def test_a_gradient_may_be_written_over_the_logits(monkeypatch):
    monkeypatch.setattr(levels, "TABLE", (levels.Row(fuse_cross_entropy, 2),))
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


# ---------------------------------------------------------------- labels out of range


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("label", [3, -1, 2**40])
@pytest.mark.parametrize("with_loss", [True, False])
def test_a_label_out_of_range_is_refused_and_changes_nothing(monkeypatch, device, label, with_loss):
    monkeypatch.setattr(levels, "TABLE", (levels.Row(fuse_cross_entropy, 2),))
    x, labels = mg.input("x", (4, 3)), mg.input("labels", (4,), "int64")
    w, count = mg.Parameter(np.eye(3, dtype="float32"), "w"), mg.Parameter(0, "count")
    loss = ops.cross_entropy(x @ w, labels)
    (dw,) = mg.grad(loss, [w])
    cg = mg.comp_graph(device, {"graph_opt_level": 2})
    outputs = [loss] if with_loss else []
    step = cg.compile([x, labels], outputs, {w: w - dw, count: count + 1})
    assert step.report().ops["one_hot"] == 0
    assert step.report().ops["cross_entropy_backward"] == 1
    step(float32(4, 3), [0, 1, 2, 0])
    before = w.numpy()
    with pytest.raises(
        mg.GraphError, match=rf"label {label} at \(1,\) is not in 0 \.\.\. 2"
    ) as error:
        step(float32(4, 3), [0, label, 2, 0])
    assert str(error.value).startswith("cross_entropy")
    np.testing.assert_array_equal(w.numpy(), before)
    assert count.numpy() == 1
    step(float32(4, 3), [0, 1, 2, 0])
    assert count.numpy() == 2
