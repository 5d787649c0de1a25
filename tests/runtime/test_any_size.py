"""Functions of inputs whose first size the calls give."""

import numpy as np
import pytest
from sized import OF_IMAGES, SIZES, check_sizes, real

import minigraph as mg
from minigraph import nn, ops, optim


def labels(*shape):
    return np.random.default_rng(1).integers(0, 4, shape)


# Of one image their shapes are others, or they are undefined.
OF_SEVERAL = ("outer-batch",)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_each_size_gives_what_a_function_of_this_size_gives(name):
    sizes = [n for n in SIZES if n > 1 or name not in OF_SEVERAL]
    check_sizes(OF_IMAGES[name], (None, 4, 6, 6), [(n, 4, 6, 6) for n in sizes])


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_an_empty_batch_works_where_the_mathematics_does(device):
    cg = mg.comp_graph(device, {"graph_opt_level": 3, "autotune": "off"})
    network = nn.Sequential(
        nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    ).eval()
    x = mg.input("x", (None, 4, 6, 6))
    (gradient,) = mg.grad(network(x).sum(), [network[0].weight])
    results = cg.compile([x], [network(x), gradient])
    assert np.any(results(real(2, 4, 6, 6))[1])
    empty, zeros = results(real(0, 4, 6, 6))
    assert empty.shape == (0, 12) and not np.any(zeros)
    assert cg.compile([x], x[:, 0].reshape(-1, 18).sum())(real(0, 4, 6, 6)) == 0
    with pytest.raises(mg.ShapeError, match="no elements"):
        cg.compile([x], network(x).mean())(real(0, 4, 6, 6))
    with pytest.raises(mg.ShapeError, match="out of range for an axis of length 0"):
        cg.compile([x], x[0])(real(0, 4, 6, 6))


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
    step = mg.comp_graph().compile([x], nn.Dropout2d(0.25)(x))
    for n in (2, 1):
        kept = step(np.ones((n, 50, 3, 3)))
        assert (kept == kept[:, :, :1, :1]).all()
        assert set(np.unique(kept)) == {0, np.float32(1 / 0.75)}


def test_dropout_counts_the_calls_of_all_sizes():
    x = mg.input("x", (None, 50))
    step = mg.comp_graph().compile([x], ops.dropout(x, 0.5))
    one, _, three = step(np.ones((2, 50))), step(np.ones((3, 50))), step(np.ones((2, 50)))
    assert not np.array_equal(one, three)
    step.calls = 0
    np.testing.assert_array_equal(step(np.ones((2, 50))), one)
    step.calls, step.seed = 0, 5
    assert not np.array_equal(step(np.ones((2, 50))), one)


def test_sizes_with_names_of_their_own():
    x, y = mg.input("x", ("rows", 3)), mg.input("y", ("columns", 3))
    product = mg.comp_graph().compile([x, y], x @ y.T)
    a, b = real(4, 3), real(2, 3, seed=1)
    np.testing.assert_allclose(product(a, b), a @ b.T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(product(b, a), b @ a.T, rtol=1e-6, atol=1e-6)


def test_an_array_without_elements_may_have_such_a_size_beside():
    x = mg.input("x", (0, None))
    function = mg.comp_graph("reference").compile([x], x.sum(0))
    np.testing.assert_array_equal(function(np.ones((0, 3))), np.zeros(3))


def test_a_multiple_of_a_number_splits_into_so_many_equal_sections():
    x = mg.input("x", ("2*pairs", 3))
    first, second = ops.split(x, 2)
    assert str(first.shape) == str(second.shape) == "(pairs, 3)"
    function = mg.comp_graph("reference").compile([x], first - second)
    np.testing.assert_array_equal(function(np.arange(12).reshape(4, 3)), np.full((2, 3), -6))
