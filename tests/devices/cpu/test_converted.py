"""Floats of 16 bits in kernels of float32; integers in a smaller type."""

import numpy as np
import pytest
from native_and_reference import both
from needs import needs_both

import minigraph as mg
from minigraph import ops

SMALL = ["float16", "bfloat16"]


def label_loss(x, labels):
    loss = ops.cross_entropy(x, labels)
    return loss, mg.grad(loss, [x])[0]


# What is computed, and the shapes of what it is made of; integers are in int64.
PROGRAMS = [
    (lambda x, y: x @ y, [(3, 9, 7), (7, 5)]),
    (lambda x, y: x.T @ y[::2], [(9, 4), (18, 5)]),
    (lambda x, y, b: ops.relu(ops.linear(x, y, b)), [(6, 7), (5, 7), (5,)]),
    (lambda x, w: ops.conv2d(x, w, padding=1), [(2, 3, 9, 9), (4, 3, 3, 3)]),
    (
        lambda x, w: mg.grad(ops.square(ops.conv2d(x, w)).sum(), [x, w]),
        [(2, 3, 9, 9), (4, 3, 3, 3)],
    ),
    (lambda x: ops.max_pool2d(x, 2), [(2, 3, 8, 8)]),
    (lambda x: mg.grad((ops.max_pool2d(x, 3, 1) * 2).sum(), [x]), [(2, 3, 8, 8)]),
    (lambda x: ops.avg_pool2d(x, 2), [(2, 3, 8, 8)]),
    (lambda x: ops.argmax(x, 1), [(5, 9)]),
    (lambda x: ops.local_response_norm(x, 3), [(2, 6, 4, 4)]),
    (label_loss, [(9, 5), (9, "labels")]),
    (
        lambda x, at: mg.grad((ops.take(x, at, 0) * 1.5).sum(), [x]),
        [(5, 3), (40, "labels")],
    ),
]


def arrays(shapes, dtype):
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 5, shape[:-1])
        if shape[-1] == "labels"
        else rng.normal(size=shape).astype(np.dtype(dtype))
        for shape in shapes
    ]


@needs_both
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("dtype", SMALL)
def test_ops_in_16_bits_have_native_kernels(dtype, level):
    cases = [(build, *arrays(shapes, dtype)) for build, shapes in PROGRAMS]
    near = 0.02 if dtype == "bfloat16" else 0.004
    for actual, expected in both(cases, graph_opt_level=level):
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(actual.astype("f8"), expected.astype("f8"), near, near)


@needs_both
@pytest.mark.parametrize("dtype", SMALL)
def test_nan_and_infinity_pass_through(dtype):
    x = np.array([[np.nan, 1, 2], [np.inf, 1, -1], [-np.inf, 0, 3]]).astype(np.dtype(dtype))
    for actual, expected in both([(lambda x: [x @ x, ops.argmax(x, 1)], x)]):
        np.testing.assert_array_equal(actual.astype("f8"), expected.astype("f8"))


@needs_both
def test_a_label_out_of_range_is_refused_before_a_parameter_changes():
    w = mg.Parameter(np.ones((4, 5), "float16"))
    labels = mg.input("labels", (4,), "int64")
    loss = ops.cross_entropy(w, labels)
    step = mg.comp_graph("cpu").compile([labels], loss, updates={w: w - mg.grad(loss, [w])[0]})
    assert step.report().numpy == []
    with pytest.raises(mg.GraphError, match="5 at"):
        step(np.array([0, 1, 5, 2]))
    np.testing.assert_array_equal(w.numpy(), np.ones((4, 5)))


@needs_both
def test_the_report_names_what_it_runs_in():
    x = mg.input("x", (4, 4), "float16")
    ((op, kernel, _),) = mg.comp_graph("cpu").compile([x], x @ x).report().steps
    assert op == "matmul" and kernel.startswith("onednn") and kernel.endswith("in float32")


def test_a_call_refuses_one_of_many_integers_that_does_not_fit():
    x = mg.input("x", (1 << 15,), "int32")
    count = mg.comp_graph().compile([x], x.sum())
    given = np.ones(1 << 15, np.int64)
    for layout in (lambda v: v, lambda v: np.repeat(v, 2)[::2], lambda v: v.astype(">i8")):
        assert count(layout(given)) == given.size
        wrong = given.copy()
        wrong[-1] = 1 << 31
        with pytest.raises(mg.DTypeError, match=rf"input x .*2147483648 at \({given.size - 1},\)"):
            count(layout(wrong))
