"""Values and gradients of layers agree with PyTorch, where an op has conventions of its own."""

import numpy as np
import pytest
from beside_torch import EXTREMES, INF, NAN, F, assert_agree, assert_same_call, torch
from samples import integer, real

import minigraph as mg
from minigraph import ops

pytestmark = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("x", "w", "kwargs"),
    [
        ((2, 3, 5, 4), (4, 3, 3, 2), {}),
        ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": 2}),
        ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": (3, 1), "padding": (1, 2)}),
        ((1, 2, 4, 4), (3, 2, 3, 3), {"padding": 3}),
        ((1, 2, 9, 8), (3, 2, 3, 2), {"dilation": (3, 2), "padding": 1}),
        ((2, 6, 5, 5), (4, 3, 2, 2), {"groups": 2}),
        ((2, 3, 5, 5), (6, 1, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
        ((2, 4, 8, 7), (6, 2, 3, 2), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
        ((2, 3, 4, 4), (5, 3, 1, 1), {"stride": 3}),
        ((0, 3, 4, 4), (5, 3, 2, 2), {}),
    ],
)
def test_conv2d(x, w, kwargs, bias):
    assert_same_call("conv2d", real(*x), real(*w, seed=1), *[real(w[0], seed=2)] * bias, **kwargs)


POOLINGS = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": 1},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": (3, 4), "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 5, "ceil_mode": True},
    {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True},
]
every_pooling = pytest.mark.parametrize("kwargs", POOLINGS, ids=str)


@every_pooling
@pytest.mark.parametrize("size", [(5, 6), (7, 4), (8, 8), (10, 9)])
def test_max_pool2d(kwargs, size):
    assert_same_call("max_pool2d", real(2, 3, *size), **kwargs)


@every_pooling
def test_max_pool2d_of_equals_takes_the_first(kwargs):
    assert_same_call("max_pool2d", integer(2, 3, 7, 6, high=2).astype(float), **kwargs)


@every_pooling
def test_max_pool2d_passes_nan_and_infinities(kwargs):
    x = real(1, 4, 7, 6)
    x[0, 0, 3, 2] = NAN
    x[0, 1] = -INF
    x[0, 2, ::2] = INF
    x[0, 3, 1:5, 1:4] = -INF
    assert_same_call("max_pool2d", x, **kwargs)


@every_pooling
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("size", [(5, 6), (7, 4), (8, 8), (10, 9)])
def test_avg_pool2d(kwargs, size, count_include_pad):
    x = real(2, 3, *size)
    assert_same_call("avg_pool2d", x, **kwargs, count_include_pad=count_include_pad)


@pytest.mark.parametrize(
    "size", [(6, 6), (3, 2), 1, (4, 5), 7, (13, 1), (12, 12), (None, 4)], ids=str
)
@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_max_pool2d"])
def test_adaptive_pooling(name, size):
    assert_same_call(name, real(2, 3, 6, 6), output_size=size)


def test_adaptive_avg_pool2d_keeps_infinities_to_the_pixels_that_cover_them():
    x = real(2, 3, 7, 5)
    x[0, 0, 0, 0], x[1, 2, 3, 4] = np.inf, np.nan
    assert_same_call("adaptive_avg_pool2d", x, output_size=(3, 4))


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_with_ceil_mode_a_window_may_be_larger_than_the_image(name):
    kwargs = {"kernel_size": 3, "stride": 2, "ceil_mode": True}
    value = real(2, 3, 2, 2)
    assert_same_call(name, value, **kwargs)
    x = mg.input("x", value.shape)
    cg = mg.comp_graph(options={"graph_opt_level": 0, "autotune": "off"})
    expected = getattr(F, name)(torch.from_numpy(value), **kwargs)
    computed = cg.compile([x], getattr(ops, name)(x, **kwargs))(value)
    np.testing.assert_allclose(computed, expected, rtol=1e-5)
    with pytest.raises(mg.ShapeError, match="does not fit"):
        getattr(ops, name)(mg.input("x", (1, 1, 1, 1)), 5, stride=2, ceil_mode=True)


def test_adaptive_max_pool2d_takes_the_first_of_equals_and_passes_nan():
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 7, 5)).astype(float)
    x[0, 0, 2, 2] = np.nan
    assert_same_call("adaptive_max_pool2d", x, output_size=(3, 4))


@pytest.mark.parametrize("level", [0, 3])
def test_adaptive_max_pool2d_runs_in_native_kernels(level):
    x = mg.input("x", (2, 3, 7, 5))
    y = ops.adaptive_max_pool2d(x, (3, 4))
    cg = mg.comp_graph(options={"graph_opt_level": level})
    assert not cg.compile([x], [y, *mg.grad(y.sum(), [x])]).report().numpy


# ---------------------------------------------------------------- normalisation


@pytest.mark.parametrize("size", [(4, 3), (4, 3, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(size, affine, training):
    x, mean, var = real(*size), real(3, seed=1), real(3, low=0.5, seed=2)
    vectors = [real(3, seed=3), real(3, seed=4)] * affine
    assert_agree(
        lambda x, *v: ops.batch_norm(x, mean, var, *v, training=training, eps=1e-3),
        lambda x, *v: F.batch_norm(
            x, *map(torch.tensor, (mean, var)), *v, training=training, eps=1e-3
        ),
        x,
        *vectors,
        rtol=1e-9,
    )


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(shape, affine):
    vectors = [real(*shape, seed=1), real(*shape, seed=2)] * affine
    assert_agree(
        lambda x, *v: ops.layer_norm(x, shape, *v, eps=1e-3),
        lambda x, *v: F.layer_norm(x, shape, *v, eps=1e-3),
        real(2, 3, 4),
        *vectors,
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 5, 3, 2)], ids=str)
def test_local_response_norm(size, shape):
    assert_same_call("local_response_norm", real(*shape), size=size, alpha=0.3, beta=0.7, k=1.5)
    assert_same_call("local_response_norm", real(*shape), size=size)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(name, axis):
    fn = getattr(F, name)
    for x in (real(3, 4, 2), EXTREMES):
        assert_agree(lambda x: getattr(ops, name)(x, axis), lambda x: fn(x, axis), x)


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("size", [(5, 4), (5, 4, 3), (2, 4, 3, 2)], ids=str)
def test_cross_entropy(size):
    labels = integer(size[0], *size[2:])
    assert_same_call("cross_entropy", real(*size, low=-9, high=9), labels)


def test_cross_entropy_of_classes_that_are_ruled_out():
    logits = np.array([[-INF, 1, 2], [3, -INF, -INF], [500, -500, 0]])
    for labels in ([1, 0, 0], [2, 0, 1], [0, 0, 0]):
        assert_same_call("cross_entropy", logits, np.array(labels))


def test_mse_loss():
    assert_same_call("mse_loss", real(3, 4), real(3, 4, seed=1))


@pytest.mark.parametrize("bias", [False, True])
def test_linear(bias):
    for shape in ((3,), (5, 3), (2, 4, 3)):
        assert_same_call("linear", real(*shape), real(2, 3, seed=1), *[real(2, seed=2)] * bias)


# ---------------------------------------------------------------- activations


LINE = np.array([-40.0, -20, -3, -1, -0.0, 0.0, 0.5, 1, 3, 6, 19.9, 20, 20.1, 40, INF, NAN])


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("relu", {}),
        ("relu6", {}),
        ("leaky_relu", {}),
        ("leaky_relu", {"negative_slope": -0.3}),
        ("gelu", {}),
        ("gelu", {"approximate": "tanh"}),
        ("silu", {}),
        ("hardswish", {}),
        ("mish", {}),
        ("sigmoid", {}),
        ("softplus", {}),
        ("softplus", {"beta": 2.5}),
        ("softplus", {"beta": 0.5, "threshold": 1.0}),
    ],
)
def test_activation(name, kwargs):
    # In the limit of these PyTorch and we multiply infinity by 0 in different orders.
    x = LINE[:-2] if name in ("gelu", "silu", "mish") else LINE
    # PyTorch's gradient of relu6 for NaN depends on the place in a vector.
    x = LINE[:-1] if name == "relu6" else x
    assert_same_call(name, x, **kwargs)


def test_hardsigmoid():
    """PyTorch's own multiplies by a sixth in float32."""
    assert_agree(ops.hardsigmoid, lambda x: F.relu6(x + 3) / 6, LINE[:-1])
