"""Functions of inputs whose sizes the calls give."""

import re

import numpy as np
import pytest
from at_once import in_threads

import minigraph as mg
from minigraph import nn, ops, optim

SIZES = (3, 1, 5)


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labels(*shape):
    return np.random.default_rng(1).integers(0, 4, shape)


MASK = np.tril(np.ones((6, 6), bool))

# Of images, [n, 4, 6, 6].
OF_IMAGES = {
    "conv": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "conv-groups": lambda: nn.Conv2d(4, 8, 3, stride=2, groups=2),
    "conv-transpose": lambda: nn.ConvTranspose2d(4, 2, 2, stride=2),
    "batch-norm": lambda: nn.BatchNorm2d(4),
    "group-norm": lambda: nn.GroupNorm(2, 4),
    "instance-norm": lambda: nn.InstanceNorm2d(4),
    "layer-norm": lambda: nn.LayerNorm((4, 6, 6)),
    "rms-norm": lambda: nn.RMSNorm(6),
    "local-response-norm": lambda: nn.LocalResponseNorm(3),
    "max-pool": lambda: nn.MaxPool2d(2),
    "avg-pool": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "adaptive-pool": lambda: nn.AdaptiveAvgPool2d((4, 3)),
    "pixel-shuffle": lambda: nn.PixelShuffle(2),
    "upsampling": lambda: nn.UpsamplingNearest2d(scale_factor=2),
    "flatten-linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
    "softmax": lambda: nn.Softmax(1),
    "prelu": lambda: nn.PReLU(4),
    "gelu": lambda: nn.GELU(),
    "mean": lambda: lambda x: x.mean((0, 2, 3)),
    "mean-of-all": lambda: lambda x: x.mean(),
    "var": lambda: lambda x: ops.var(x, (0, 2)),
    "std-of-all": lambda: lambda x: ops.std(x),
    "sum": lambda: lambda x: x.sum(0),
    "max": lambda: lambda x: x.max((0, 1)),
    "logsumexp": lambda: lambda x: ops.logsumexp(x, 0),
    "reshape": lambda: lambda x: x.reshape(x.shape[0] * 4, 36),
    "reshape-minus-one": lambda: lambda x: x.reshape(-1, 12),
    "transpose": lambda: lambda x: x.transpose(1, 0, 3, 2) * 2,
    "permute-reshape": lambda: lambda x: x.transpose(0, 2, 3, 1).reshape(-1, 4),
    "expand": lambda: lambda x: ops.expand_dims(x, 0),
    "concat": lambda: lambda x: ops.concat([x, x * 2], 0),
    "stack": lambda: lambda x: ops.stack([x, x * 2], 1),
    "slice": lambda: lambda x: x[:, 1:3, ::2],
    "first": lambda: lambda x: x[0] * x[-1],
    "all-but-first": lambda: lambda x: x[:-1].sum() + x[::-1],
    "pad": lambda: lambda x: ops.pad(x, ((1, 0), (0, 0), (1, 1), (1, 1))),
    "flip": lambda: lambda x: ops.flip(x, 0),
    "broadcast": lambda: lambda x: x + ops.zeros((x.shape[0], 1, 1, 6)),
    "by-size": lambda: lambda x: x / x.shape[0] + x.size * 0.5,
    "dropout-eval": lambda: nn.Dropout(0.5).eval(),
    "where": lambda: lambda x: ops.where(x > 0, x, 0.5),
    "matmul": lambda: lambda x: x @ real(6, 3),
    "matmul-own": lambda: lambda x: x @ x.transpose(0, 1, 3, 2),
    "einsum": lambda: lambda x: ops.einsum("nchw,cd->nd", x, real(4, 3)),
    "outer-batch": lambda: lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T,
    "attention": lambda: lambda x: ops.scaled_dot_product_attention(x, x, x, is_causal=True),
    "encoder": lambda: _Encoder(),
    "log-softmax-nll": lambda: lambda x: ops.log_softmax(x, 1)[:, 2],
    "mse": lambda: lambda x: ops.mse_loss(x, x * 0.5),
    "cumsum": lambda: lambda x: ops.cumsum(x, 1),
    "roll": lambda: lambda x: ops.roll(x, 1, 2),
    "tile": lambda: lambda x: ops.tile(x, (1, 2, 1, 1)),
    "sort": lambda: lambda x: ops.sort(x, 1),
    "sort-along-the-size": lambda: lambda x: ops.sort(x, 0),
    "argsort": lambda: lambda x: ops.argsort(x, 2).astype("float32") * x,
    "topk": lambda: lambda x: ops.topk(x, 2, 1)[0],
    "index-list": lambda: lambda x: x[:, [0, 2, 2]],
    "reflection-pad": lambda: nn.ReflectionPad2d(2),
    "padding-same": lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular"),
    "eye": lambda: lambda x: ops.matmul(ops.eye(x.shape[0]), x.reshape(x.shape[0], -1)),
    "tril": lambda: lambda x: ops.tril(x[:, 0, 0] @ x[:, 0, 0].T),
    "arange": lambda: lambda x: x[:, 0, 0, 0] * ops.arange(x.shape[0]),
    "repeat": lambda: lambda x: ops.repeat(x, 2, 1),
    "var-of-a-sample": lambda: lambda x: ops.var(x, (0, 2), correction=1),
    "roll-along-the-size": lambda: lambda x: ops.roll(x, 1, 0) * ops.roll(x, (-2, 1), (0, 1)),
    "roll-of-all": lambda: lambda x: ops.roll(x, 7),
    "index-pairs": lambda: lambda x: x[ops.arange(x.shape[0]), ops.argmax(x[:, :, 0, 0], axis=1)],
    "index-by-size": lambda: lambda x: x[x.shape[0] // 2] * x[x.shape[0] - 1],
    "index-array-along-the-size": lambda: lambda x: x[[-1, 0]],
    "one-hot-of-size": lambda: (
        lambda x: ops.matmul(
            ops.one_hot(ops.arange(x.shape[0]), x.shape[0], "float32"), x.reshape(x.shape[0], -1)
        )
    ),
    "linspace": lambda: lambda x: x[:, 0, 0, 0] * ops.linspace(0, 1, x.shape[0]),
    "split-by-size": lambda: lambda x: ops.split(x, [x.shape[0] // 2], 0)[1],
}
# Of one image their shapes are others, or they are undefined.
OF_SEVERAL = ("outer-batch",)


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x[:, 0])


def loss_and_gradients(network, x):
    y = network(x)
    loss = (y * ops.cos(y)).mean()
    wanted = [x] + (list(network.parameters()) if isinstance(network, nn.Module) else [])
    return [y, loss, *mg.grad(loss, wanted)]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_each_size_gives_what_a_function_of_this_size_gives(name):
    nn.manual_seed(0)
    network = OF_IMAGES[name]()
    cg = mg.comp_graph("reference", {"graph_opt_level": 0})
    x = mg.input("x", (None, 4, 6, 6))
    function = cg.compile([x], loss_and_gradients(network, x))
    for n in SIZES:
        if name in OF_SEVERAL and n == 1:
            continue
        own = mg.input("x", (n, 4, 6, 6))
        expected = cg.compile([own], loss_and_gradients(network, own))(real(n, 4, 6, 6))
        found = function(real(n, 4, 6, 6))
        assert [y.shape for y in found] == [y.shape for y in expected]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


LOSSES = {
    "cross-entropy": lambda x, y: ops.cross_entropy(x, y),
    "cross-entropy-smooth": lambda x, y: ops.cross_entropy(x, y, label_smoothing=0.1),
    "cross-entropy-ignore": lambda x, y: ops.cross_entropy(x, y, ignore_index=1),
    "cross-entropy-sum": lambda x, y: ops.cross_entropy(x, y, reduction="sum"),
    "nll": lambda x, y: ops.nll_loss(ops.log_softmax(x, 1), y),
    "one-hot": lambda x, y: (ops.one_hot(y, 4) * x).mean(),
    "take": lambda x, y: (ops.take(real(4, 4), y, axis=0) * x).sum(),
    "take-along-axis": lambda x, y: ops.take_along_axis(x, ops.expand_dims(y, 1), 1).mean(),
    "gather": lambda x, y: ops.gather(x, 1, ops.expand_dims(y, 1)).sum(),
    "scatter-add": lambda x, y: ops.square(
        ops.scatter_add(x, 1, ops.expand_dims(y, 1), x[:, :1])
    ).sum(),
    "argmax": lambda x, y: (ops.argmax(x, 1) == y).astype("float32").mean() + x.sum(),
    "bce": lambda x, y: ops.binary_cross_entropy_with_logits(x, ops.one_hot(y, 4)),
    "kl": lambda x, y: ops.kl_div(ops.log_softmax(x, 1), ops.softmax(x * 2, 1)),
    "smooth-l1": lambda x, y: ops.smooth_l1_loss(x, ops.one_hot(y, 4)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_any_size(name):
    cg = mg.comp_graph("reference", {"graph_opt_level": 2})

    def compiled(n):
        x, y = mg.input("x", (n, 4)), mg.input("y", (n,), "int64")
        loss = LOSSES[name](x, y)
        return cg.compile([x, y], [loss, *mg.grad(loss, [x])])

    function = compiled(None)
    for n in SIZES:
        values = real(n, 4), labels(n)
        for one, other in zip(function(*values), compiled(n)(*values), strict=True):
            np.testing.assert_array_equal(one, other)


def step_of(n, options=None, device="cpu"):
    nn.manual_seed(3)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 4))
    x, y = mg.input("x", (n, 3, 8, 8)), mg.input("y", (n,), "int64")
    loss = ops.cross_entropy(net(x), y)
    updates = {**optim.Adam(net.parameters(), lr=0.01).minimize(loss), **net.updates()}
    cg = mg.comp_graph(device, options)
    return net, cg.compile([x, y], loss, updates)


@pytest.mark.parametrize("level", [0, 2, 3, -3])
def test_training_with_a_smaller_last_batch(level):
    """The functions of both sizes see the parameters and the count of calls of each other."""
    options = {"graph_opt_level": level, "autotune": "off"}
    net, step = step_of(None, options)
    nets = {n: step_of(n, options) for n in (6, 2)}
    for i, n in enumerate([6, 6, 2, 6, 2]):
        x, y = real(n, 3, 8, 8, seed=i), labels(n)
        other, own = nets[n]
        own.calls = step.calls
        # Both sizes' own functions go on from the same state.
        other.load_state_dict(net.state_dict())
        loss = step(x, y)
        if i == 0:
            np.testing.assert_array_equal(loss, own(x, y))
        assert np.isfinite(loss)
    assert step.calls == 5
    assert len(step.reports()) == 2


def test_attention_over_any_length_sees_the_past_alone():
    q = mg.input("q", (None, None, 8))
    y = ops.scaled_dot_product_attention(q, q, q, is_causal=True)
    function = mg.comp_graph("reference").compile([q], y)
    for n, length in ((2, 5), (1, 7)):
        own = mg.input("q", (n, length, 8))
        y = ops.scaled_dot_product_attention(own, own, own, is_causal=True)
        value = real(n, length, 8)
        expected = mg.comp_graph("reference").compile([own], y)(value)
        np.testing.assert_array_equal(function(value), expected)


def test_dropout_of_channels_takes_any_batch():
    x = mg.input("x", (None, 50, 3, 3))
    step = mg.comp_graph().compile([x], nn.Dropout2d(0.5)(x))
    for n in (2, 1):
        kept = step(np.ones((n, 50, 3, 3)))
        assert (kept == kept[:, :, :1, :1]).all()
        assert set(np.unique(kept)) == {0, 2}


def test_dropout_counts_the_calls_of_all_sizes():
    x = mg.input("x", (None, 50))
    step = mg.comp_graph().compile([x], ops.dropout(x, 0.5))
    one, _, three = step(np.ones((2, 50))), step(np.ones((3, 50))), step(np.ones((2, 50)))
    assert not np.array_equal(one, three)
    step.calls = 0
    np.testing.assert_array_equal(step(np.ones((2, 50))), one)
    step.calls, step.seed = 0, 5
    assert not np.array_equal(step(np.ones((2, 50))), one)


# ---------------------------------------------------------------- sizes that do not fit


@pytest.fixture
def mean():
    x, y = mg.input("x", (None, 3)), mg.input("y", (None,))
    return mg.comp_graph().compile([x, y], [x.mean() + y.sum()])


def message(function, *args):
    with pytest.raises(mg.ShapeError) as error:
        function(*args)
    assert "\n" not in str(error.value)
    assert __file__ in str(error.value)
    return str(error.value)


def test_sizes_of_one_name_are_equal_in_a_call(mean):
    text = message(mean, np.ones((4, 3)), np.ones(5))
    assert "input y has 5 as its size batch, input x has 4" in text
    assert 'mg.input("y", ("batch2", ...))' in text


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 3, 1)])
def test_a_shape_that_does_not_fit_is_named(mean, shape):
    assert f"input x takes float32[batch,3], got shape {shape}" in message(
        mean, np.ones(shape), np.ones(2)
    )


def test_the_known_sizes_are_checked(mean):
    assert "input x takes shape (2, 3), got (2, 4)" in message(mean, np.ones((2, 4)), np.ones(2))


def test_a_size_that_an_op_cannot_have_is_named_with_its_line():
    x = mg.input("x", (None, 2, 8))
    step = mg.comp_graph().compile([x], nn.BatchNorm1d(16)(ops.flatten(x, 1)))
    assert step(real(2, 2, 8)).shape == (2, 16)
    text = message(step, real(1, 2, 8))
    assert "statistics of (1, 16) need more than one value per channel" in text


def test_sizes_with_names_of_their_own():
    x, y = mg.input("x", ("rows", 3)), mg.input("y", ("columns", 3))
    product = mg.comp_graph().compile([x, y], x @ y.T)
    a, b = real(4, 3), real(2, 3, seed=1)
    np.testing.assert_allclose(product(a, b), a @ b.T, rtol=1e-6)
    np.testing.assert_allclose(product(b, a), b @ a.T, rtol=1e-6)


# Of images [n, 4, h, w] whose height and width the calls give, too.
OF_ANY_IMAGES = {
    name: OF_IMAGES[name]
    for name in ("conv", "conv-groups", "conv-transpose", "batch-norm", "group-norm", "max-pool")
} | {
    "max-pool-overlap": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "avg-pool": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "avg-pool-inside": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "global-avg-pool": lambda: nn.AdaptiveAvgPool2d(1),
    "global-max-pool": lambda: nn.AdaptiveMaxPool2d(1),
    "second-derivative": lambda: (
        lambda x: mg.grad((nn.MaxPool2d(2)(x) ** 3).sum() + (nn.AvgPool2d(2)(x) ** 3).sum(), [x])[0]
    ),
    "conv-same": lambda: nn.Conv2d(4, 8, 4, padding="same"),
    "conv-reflect": lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
    "conv-circular": lambda: nn.Conv2d(4, 8, 3, padding=2, padding_mode="circular"),
    "conv-transpose-padding": lambda: nn.ConvTranspose2d(4, 2, 4, stride=2, padding=1),
    "conv-transpose-output-padding": lambda: nn.ConvTranspose2d(
        4, 2, 3, stride=2, padding=1, output_padding=1
    ),
    "max-pool-ceil": lambda: nn.MaxPool2d(3, stride=2, ceil_mode=True),
    "avg-pool-of-two-sides": lambda: nn.AvgPool2d((2, 3), stride=(1, 2)),
    "avg-pool-ceil": lambda: nn.AvgPool2d(4, stride=3, padding=1, ceil_mode=True),
    "pool-of-a-pool": lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1)),
    "upsample": lambda: nn.Upsample(scale_factor=2),
    "upsample-bilinear": lambda: nn.Upsample(scale_factor=3, mode="bilinear"),
    "upsample-aligned": lambda: nn.UpsamplingBilinear2d(scale_factor=2),
    "halved": lambda: nn.Upsample(scale_factor=0.5, mode="bilinear"),
    "resized": lambda: nn.Upsample(size=(5, 8)),
    "resized-to-itself": lambda: (
        lambda x: x + ops.interpolate(ops.max_pool2d(x, 2), size=x.shape[2:])
    ),
    "replication-pad": lambda: nn.ReplicationPad2d((1, 2, 3, 0)),
    "two-ways-to-halve": lambda: (
        lambda x: ops.max_pool2d(x, 3, 2, 1) + x[:, :, ::2, ::2] + ops.avg_pool2d(x, 1, 2)
    ),
    "cropped": lambda: (
        lambda x: x + nn.Upsample(scale_factor=2)(x)[:, :, : x.shape[2], 1 : x.shape[3] + 1]
    ),
    "residual": lambda: _Residual(),
}


class _Residual(nn.Module):
    """The parts of a ResNet whose sizes have to agree."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(4, 4, 7, stride=2, padding=3)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.long = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1))
        self.short = nn.Conv2d(4, 8, 1, 2)
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, x):
        x = self.pool(self.first(x))
        return self.last(self.long(x) + self.short(x))


@pytest.mark.parametrize("name", OF_ANY_IMAGES)
def test_each_height_and_width_gives_what_a_function_of_it_gives(name):
    nn.manual_seed(0)
    network = OF_ANY_IMAGES[name]()
    cg = mg.comp_graph("reference", {"graph_opt_level": 0})
    x = mg.input("x", (None, 4, None, None))
    function = cg.compile([x], loss_and_gradients(network, x))
    for shape in ((2, 4, 6, 6), (1, 4, 9, 7), (3, 4, 8, 12)):
        own = mg.input("x", shape)
        expected = cg.compile([own], loss_and_gradients(network, own))(real(*shape))
        for one, other in zip(function(real(*shape)), expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_array_without_elements_may_have_such_a_size_beside():
    x = mg.input("x", (0, None))
    function = mg.comp_graph("reference").compile([x], x.sum(0))
    np.testing.assert_array_equal(function(np.ones((0, 3))), np.zeros(3))


@pytest.mark.parametrize(
    ("network", "shape", "text"),
    [
        (nn.MaxPool2d(4), (1, 2, 3, 8), "max_pool2d: a window of 4 does not fit 3 pixels"),
        (nn.ReflectionPad2d(3), (1, 2, 3, 8), "an axis of 3 elements takes a border of mode 'refl"),
        (nn.Upsample(scale_factor=0.25), (1, 2, 3, 8), "an axis of 3 would have 0 elements"),
        (
            nn.ConvTranspose2d(2, 2, 1, padding=2),
            (1, 2, 3, 8),
            r"conv2d_backward_data: the result would have \(-1, 4\) pixels",
        ),
    ],
)
def test_images_too_small_are_an_error_of_the_call_with_the_line_of_the_layer(network, shape, text):
    x = mg.input("x", (None, 2, None, None))
    function = mg.comp_graph("reference").compile([x], network(x))
    assert re.search(text, message(function, real(*shape)))
    assert "test_any_size.py" in message(function, real(*shape))


def test_sizes_that_are_multiples_come_back_after_halving_and_doubling():
    down = nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.MaxPool2d(2))
    up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Upsample(scale_factor=2))
    x = mg.input("x", (None, 2, "4*rows", "4*columns"))
    labels = mg.input("labels", (None, 2, "4*rows", "4*columns"))
    y = ops.concat([up(down(x)), x], axis=1)
    assert y.shape == (x.shape[0], 6, *x.shape[2:])
    assert ops.adaptive_avg_pool2d(x, 4).shape[2:] == (4, 4)
    function = mg.comp_graph("reference").compile([x, labels], [y, ops.mse_loss(x, labels)])
    for size in ((4, 12), (8, 8)):
        image = real(1, 2, *size)
        found, loss = function(image, image)
        np.testing.assert_array_equal(found[:, 4:], image)
        assert loss == 0
    small, other = real(1, 2, 6, 8), real(1, 2, 8, 12)
    assert "takes float32[batch,2,4*rows,4*columns], got shape" in message(function, small, small)
    assert "has 3 as its size columns" in message(function, real(1, 2, 8, 8), other)


def test_an_input_of_a_size_that_follows_from_another():
    x = mg.input("x", (None, 2, None, None))
    small = ops.max_pool2d(x, 2)
    target = mg.input("target", small.shape)
    function = mg.comp_graph("reference").compile([x, target], ops.mse_loss(small, target))
    assert function(np.zeros((1, 2, 9, 8)), np.ones((1, 2, 4, 4))) == 1
    text = message(function, np.zeros((1, 2, 9, 8)), np.ones((1, 2, 4, 5)))
    assert "where (size3 // 2) is 4, got shape (1, 2, 4, 5)" in text
    alone = mg.comp_graph("reference").compile([target], target * 2)
    assert "no input has the size size2 itself" in message(alone, np.ones((1, 2, 4, 4)))


def test_what_a_size_cannot_decide_names_a_way_out():
    x = mg.input("x", (None, 2, None, None))
    with pytest.raises(mg.ShapeError, match=r"pixels make 7 parts .* or as a multiple, '7\*h'"):
        ops.adaptive_avg_pool2d(x, 7)
    with pytest.raises(mg.ShapeError, match=r"1\.5 times the size size2 is known only when"):
        ops.interpolate(x, scale_factor=1.5)


def test_images_of_any_size():
    x = mg.input("x", (None, 3, None, None))
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    function = mg.comp_graph().compile([x], ops.mean(net(x), (2, 3)))
    for shape in ((2, 3, 8, 8), (1, 3, 9, 12)):
        assert function(real(*shape)).shape == (shape[0], 4)
    assert "conv2d: " in message(function, real(1, 3, 1, 8))


def test_what_needs_a_number_says_so():
    x = mg.input("x", (None, 3))
    with pytest.raises(mg.ShapeError, match=r"axis 0 of length batch has no 2 .* input of '2\*n'"):
        ops.split(x, 2, 0)
    with pytest.raises(mg.ShapeError, match=r"size batch is known only .* ops\.sqrt\(x\.shape\[0"):
        np.sqrt(x.shape[0])
    with pytest.raises(mg.ShapeError, match="the size batch is known only when"):
        list(x)


# ---------------------------------------------------------------- what is kept


def test_the_functions_of_the_latest_sizes_are_kept():
    x = mg.input("x", (None, 3))
    step = mg.comp_graph(options={"sizes.kept": 2}).compile([x], x * 2)
    for n in (1, 2, 1, 3):
        step(np.ones((n, 3)))
    kept = [next(s for _, _, s in report.steps) for report in step.reports()]
    assert [re.search(r"\[(\d)", text)[1] for text in kept] == ["1", "3"]
    assert step.report().steps == step.reports()[-1].steps


def test_without_a_call_there_is_nothing_to_report():
    x = mg.input("x", (None, 3))
    step = mg.comp_graph().compile([x], x * 2)
    assert step.reports() == []
    for tell in (step.report, lambda: step.save_cache("none"), lambda: step.to_dot("none")):
        with pytest.raises(mg.GraphError, match="call it"):
            tell()


def test_a_function_of_fixed_size_has_one_report():
    x = mg.input("x", (2, 3))
    step = mg.comp_graph().compile([x], x * 2)
    assert [report.fingerprint for report in step.reports()] == [step.report().fingerprint]


def test_smaller_sizes_share_the_memory_of_the_largest():
    x = mg.input("x", (None, 1000))
    step = mg.comp_graph(options={"graph_opt_level": 0}).compile([x], ops.exp(x * 2) + x)
    for n in (64, 8, 32):
        step(np.ones((n, 1000)))
    kept = [each.function.arena for each in step._kept.values()]
    assert all(arena is kept[0] for arena in kept)


def test_other_sizes_take_what_is_expected_of_them_until_they_are_measured():
    x = mg.input("x", (None, 3, 16, 16))
    net = nn.Conv2d(3, 8, 3, padding=1)
    gradients = mg.grad(ops.square(net(x)).sum(), [x, net.weight])
    step = mg.comp_graph(options={"graph_opt_level": 2}).compile([x], gradients)
    step(real(8, 3, 16, 16))
    step(real(5, 3, 16, 16))

    def origins():
        return {algorithm.origin for algorithm in step.report().algorithms}

    assert origins() == {"measured for another size"}
    next(reversed(step._kept.values())).seconds = 1e6  # as after many calls
    step(real(5, 3, 16, 16))
    assert origins() <= {"measured", "stored"}


def test_caches_hold_what_all_sizes_use(tmp_path):
    x = mg.input("x", (None, 3, 16, 16))
    net = nn.Conv2d(3, 8, 3, padding=1)
    step = mg.comp_graph(options={"graph_opt_level": 3}).compile([x], ops.relu(net(x)) * 2)
    step(real(2, 3, 16, 16))
    step(real(4, 3, 16, 16))
    step.save_cache(tmp_path / "all.cache")
    loaded = mg.comp_graph(options={"graph_opt_level": 3}).load_cache(tmp_path / "all.cache")
    assert len(loaded.entries) >= 2
    folder = tmp_path / "folder"
    folder.mkdir()
    again = mg.comp_graph().compile([x], net(x), cache_dir=folder)
    again(real(2, 3, 16, 16))
    again(real(4, 3, 16, 16))
    assert len(list(folder.glob("*.cache"))) == 2


def test_threads_may_call_it_with_different_sizes():
    x = mg.input("x", (None, 3))
    total = mg.Parameter(np.zeros((), np.float32), "total")
    step = mg.comp_graph().compile([x], x * 2, {total: total + x.sum()})
    sizes = [1, 2, 3, 4]

    def work(n):
        for _ in range(50):
            np.testing.assert_array_equal(step(np.ones((n, 3))), np.full((n, 3), 2))

    in_threads(*(lambda n=n: work(n) for n in sizes))
    assert total.numpy() == 50 * 3 * sum(sizes)
    assert step.calls == 200


def test_threads_may_call_it_with_different_sizes_where_it_changes_nothing():
    x = mg.input("x", (None, 256))
    y = x
    for _ in range(4):
        y = ops.tanh(y @ np.eye(256, dtype=np.float32))
    function = mg.comp_graph(options={"graph_opt_level": 1}).compile([x], y)
    arrays = {n: real(n, 256) for n in (60, 61, 62)}
    expected = {n: function(array) for n, array in arrays.items()}

    def work(n):
        for _ in range(30):
            np.testing.assert_array_equal(function(arrays[n]), expected[n])

    in_threads(*(lambda n=n: work(n) for n in arrays))
    assert function.calls == 3 + 3 * 30


def test_neighbours_along_such_an_axis_are_subtracted():
    x = mg.input("x", (None, 3))
    difference = mg.comp_graph("reference").compile([x], ops.diff(x, axis=0))
    for n in SIZES:
        array = real(n, 3)
        np.testing.assert_array_equal(difference(array), np.diff(array, axis=0))


@pytest.mark.parametrize("function", [ops.cumsum, ops.cumprod])
def test_sums_and_products_along_such_an_axis_are_those_of_numpy(function):
    x = mg.input("x", (None, 3))
    total = function(x, axis=0)
    (dx,) = mg.grad((total * total).sum(), [x])
    found = mg.comp_graph("reference").compile([x], [total, dx])
    for n in SIZES:
        fixed = mg.input("x", (n, 3))
        known = function(fixed, axis=0)
        wanted = [known, *mg.grad((known * known).sum(), [fixed])]
        expected = mg.comp_graph("reference").compile([fixed], wanted)(real(n, 3))
        for one, other in zip(found(real(n, 3)), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert total.dtype == np.float32
    assert function(mg.input("mask", (2, None), "bool"), axis=1).dtype == np.int64


def test_a_multiple_of_a_number_splits_into_so_many_equal_sections():
    x = mg.input("x", ("2*pairs", 3))
    first, second = ops.split(x, 2)
    assert str(first.shape) == str(second.shape) == "(pairs, 3)"
    function = mg.comp_graph("reference").compile([x], first - second)
    np.testing.assert_array_equal(function(np.arange(12).reshape(4, 3)), np.full((2, 3), -6))


def test_a_deviation_of_too_few_values_is_an_error_of_the_call():
    x = mg.input("x", (None,))
    function = mg.comp_graph("reference").compile([x], ops.std(x, correction=1))
    assert function([1.0, 2.0]) == pytest.approx(0.5**0.5)
    text = message(function, [1.0])
    assert "var over axes (0,) of shape (1,) with correction 1" in text
    assert "from_sizes" not in text


def test_an_index_out_of_range_along_such_an_axis_is_an_error_of_the_call():
    x = mg.input("x", (None, 3))
    function = mg.comp_graph("reference").compile([x], x[[0, 2]])
    assert function(real(3, 3)).shape == (2, 3)
    with pytest.raises(mg.GraphError, match=r"index 2 at \(1,\) is not in -2 \.\.\. 1"):
        function(real(2, 3))


def test_values_need_not_be_arrays():
    x = mg.input("x", (None,))
    step = mg.comp_graph().compile([x], x * 2)
    np.testing.assert_array_equal(step([1, 2, 3]), [2, 4, 6])
    np.testing.assert_array_equal(step(x=[1.0]), [2])
    with pytest.raises(mg.GraphError, match="no input 'z'"):
        step(z=[1])
