"""Values and gradients agree with PyTorch, where an op has conventions of its own."""

import numpy as np
import pytest
from samples import integer, real

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")
F = torch.nn.functional

INF, NAN = np.inf, np.nan


def ours(fn, xs):
    """The value of `fn` and its gradients, each output weighted by its own random number."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    y = fn(*inputs)
    floats = [x for x in inputs if x.dtype.kind == "f"]
    grads = mg.grad(ops.sum(y * weights(y.shape)), floats)
    return Graph(tuple(inputs), (y, *grads))(*xs)


def theirs(fn, xs):
    inputs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    y = fn(*inputs)
    floats = [x for x in inputs if x.requires_grad]
    grads = [torch.zeros_like(x) for x in floats]
    if y.requires_grad:
        loss = (y * torch.from_numpy(weights(tuple(y.shape)))).sum()
        grads = torch.autograd.grad(loss, floats, materialize_grads=True)
    return y.detach().numpy(), *(g.numpy() for g in grads)


def weights(shape):
    return np.asarray(np.random.default_rng(9).uniform(0.5, 1.5, shape))


def assert_agree(mine, torchs, *xs, rtol=1e-10):
    for got, want in zip(ours(mine, xs), theirs(torchs, xs), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12)


def assert_same_call(name, *xs, **kwargs):
    """`ops` and `torch.nn.functional` give the same for the same arguments."""
    assert_agree(
        lambda *xs: getattr(ops, name)(*xs, **kwargs),
        lambda *xs: getattr(F, name)(*xs, **kwargs),
        *xs,
    )


# ---------------------------------------------------------------- convolution and pooling


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


@pytest.mark.parametrize("size", [(6, 6), (3, 2), 1, (4, 5), 7, (13, 1), (12, 12)], ids=str)
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


EXTREMES = np.array(
    [
        [1.0, 2, 3, 4],
        [800, -800, 0, 799],
        [-INF, 1, -INF, 2],
        [-INF, -INF, -INF, -INF],
        [INF, 1, 2, 3],
        [NAN, 1, 2, 3],
    ]
)


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


# ---------------------------------------------------------------- arithmetic at its edges

GRID = np.meshgrid(*[[-2.0, -1, -0.0, 0, 0.5, 1, 2, 3, INF]] * 2)
TIES = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5], [NAN, 1, 1, 2], [-INF, -INF, 0, 0]])
ZEROS = np.array([[1.0, 2, 3], [0, 2, 3], [0, 2, 0], [0, 0, 0]])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_prod_with_zeros(axis):
    dim = () if axis is None else (axis,)
    assert_agree(lambda x: ops.prod(x, axis), lambda x: torch.prod(x, *dim), ZEROS)
    assert_agree(lambda x: ops.prod(x, axis), lambda x: torch.prod(x, *dim), ZEROS[:1])


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_extrema_share_the_gradient_among_equals(axis):
    assert_agree(lambda x: ops.max(x, axis), lambda x: torch.amax(x, axis), TIES)
    assert_agree(lambda x: ops.min(x, axis), lambda x: torch.amin(x, axis), TIES)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_larger_of_equals_shares_the_gradient(name):
    assert_agree(getattr(ops, name), getattr(torch, name), *GRID)


def test_pow_of_zero_and_negative_bases():
    x, y = (v[np.isfinite(v)] for v in np.where(np.isfinite(GRID[0] + GRID[1]), GRID, NAN))
    assert_agree(ops.pow, torch.pow, x, y)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, 1.5, -1, -0.5])
def test_pow_with_a_number(exponent):
    x = np.array([-2.0, 0, 0.5, 3, INF])
    assert_agree(lambda x: x**exponent, lambda x: x**exponent, x)
    assert_agree(lambda x: 2**x, lambda x: 2**x, x)
    assert_agree(lambda x: 0**x, lambda x: 0**x, x)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (None, 0), (0, None), (2, 1), (0, 0)])
def test_clip_at_its_bounds(low, high):
    x = np.array([-INF, -2, -1, -0.5, 0, 0.5, 1, 2, INF, NAN])
    assert_agree(lambda x: ops.clip(x, low, high), lambda x: torch.clamp(x, low, high), x)


@pytest.mark.parametrize("axis", [1, (0, 1)])
def test_logsumexp_with_infinities(axis):
    for x in (EXTREMES[:3], EXTREMES[3:4], EXTREMES[5:], real(3, 4)):
        assert_agree(lambda x: ops.logsumexp(x, axis), lambda x: torch.logsumexp(x, axis), x)
    (got,) = theirs(lambda x: torch.logsumexp(x, axis).detach(), [EXTREMES[4:5]])[:1]
    np.testing.assert_array_equal(ours(lambda x: ops.logsumexp(x, axis), [EXTREMES[4:5]])[0], got)


@pytest.mark.parametrize("correction", [0, 1, 1.5])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_var(axis, correction):
    assert_agree(
        lambda x: ops.var(x, axis, correction=correction),
        lambda x: torch.var(x, axis, correction=correction),
        real(3, 4, 2),
    )


def test_atan2_in_every_quadrant_and_at_the_origin():
    finite = np.isfinite(GRID[0]) & np.isfinite(GRID[1])
    assert_agree(ops.atan2, torch.atan2, *(v[finite] for v in GRID))


def test_remainder_and_floor_divide_follow_the_divisors_sign():
    x, y = (v[GRID[1] != 0] for v in GRID)
    finite = np.isfinite(x)
    assert_agree(ops.remainder, torch.remainder, x[finite], y[finite])
    assert_agree(
        ops.floor_divide,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        x[finite],
        y[finite],
    )
    x, y = np.meshgrid(np.arange(-7, 8), [-3, -2, -1, 1, 2, 3])
    for mine, torchs in ((ops.remainder, torch.remainder), (ops.floor_divide, torch.floor_divide)):
        got = Graph((), (mine(x, y),))()[0]
        np.testing.assert_array_equal(got, torchs(*map(torch.tensor, (x, y))).numpy())


@pytest.mark.parametrize("name", ["abs", "sqrt", "sign", "square", "log", "rsqrt", "reciprocal"])
def test_function_at_zero_and_infinity(name):
    x = np.array([-INF, -1, -0.0, 0.0, 1, INF])  # the sign of NaN is 0 in PyTorch, NaN in NumPy
    assert_agree(getattr(ops, name), getattr(torch, name), x)


@pytest.mark.parametrize("name", ["sinh", "cosh", "tanh", "atan", "erf", "exp", "expm1", "log1p"])
def test_function_far_out(name):
    x = np.array([-INF, -800, -30, -1e-9, 0, 1e-9, 30, 800, INF, NAN])
    assert_agree(getattr(ops, name), getattr(torch, name), x)


def test_logaddexp_with_infinities():
    x, y = (v.ravel() for v in np.meshgrid(*[[-INF, -800, 0.0, 1, 800]] * 2))
    different = x != y
    assert_agree(ops.logaddexp, torch.logaddexp, x[different], y[different])
    np.testing.assert_array_equal(
        ours(ops.logaddexp, [x, y])[0], theirs(torch.logaddexp, [x, y])[0]
    )


@pytest.mark.parametrize(
    ("name", "kwargs"), [("smooth_l1_loss", {"beta": 2.5}), ("huber_loss", {"delta": 2.5})]
)
def test_bent_losses_far_out(name, kwargs):
    x = np.array([0, 1e-30, -0.9, 1, 2.5, -2.6, 1e30, INF, -INF, NAN])
    assert_same_call(name, x, np.zeros(10), **kwargs, reduction="none")


def test_second_derivatives_of_logaddexp_where_its_operands_are_equal():
    x = mg.input("x", (2,), "float64")
    (dx,) = mg.grad(ops.logaddexp(x, [0.0, 1.0]).sum(), [x])
    (ddx,) = mg.grad(dx.sum(), [x])
    np.testing.assert_allclose(Graph((x,), (ddx,))(np.array([0.0, 1.0]))[0], [0.25, 0.25])


def test_where_keeps_the_gradient_from_the_other_branch():
    x = np.array([-1.0, 0, 2, INF])
    assert_agree(
        lambda x: ops.where(x > 0, x * 2, 3 - x),
        lambda x: torch.where(x > 0, x * 2, 3 - x),
        x,
    )


def test_gradient_of_take_adds_what_was_taken_twice():
    i = np.array([[0, -1, 0], [1, 1, 1]])
    assert_agree(
        lambda x: ops.take(x, i, 1),
        lambda x: x[:, torch.tensor(i)],
        real(2, 4, 3),
    )
