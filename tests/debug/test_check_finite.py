"""The option `debug.check_finite`: errors name the op that makes a NaN or an infinity."""

import linecache
import re

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops, optim

LEVELS = pytest.mark.parametrize("level", [0, 2, 3, -3])
DEVICES = pytest.mark.parametrize("device", ["cpu", "reference"])


def checked(device, level, *args, **kwargs):
    options = {"graph_opt_level": level, "debug.check_finite": True, "autotune": "off"}
    return mg.comp_graph(device, options).compile(*args, **kwargs)


def message(function, *args):
    with pytest.raises(mg.GraphError) as error:
        function(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


@LEVELS
@DEVICES
def test_the_first_op_that_makes_a_nan_is_named_with_its_inputs(device, level):
    x = mg.input("x", (3,))
    y = ops.log(x - 1) * 2 + 1
    function = checked(device, level, [x], ops.exp(y))
    function([2.0, 3.0, 4.0])
    text = message(function, [2.0, 0.5, 4.0])
    assert "log made NaN in 1 of 3 elements of float32[3] from -0.5 to 3" in text
    (number,) = re.findall(rf"{re.escape(__file__)}:(\d+)", text)
    assert "ops.log(x - 1)" in linecache.getline(__file__, int(number))


@LEVELS
def test_an_infinity_is_named_where_it_begins(level):
    x = mg.input("x", (2,))
    function = checked("cpu", level, [x], ops.tanh(1 / ops.relu(x)))
    text = message(function, [-5.0, 1.0])
    assert text.startswith("divide made infinity in 1 of 2 elements of float32[] from 1 to 1, ")


def test_the_layer_is_named():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = mg.input("x", (None, 4))
    function = checked("cpu", 3, [x], net(x))
    weight = net[2].weight.numpy()
    weight[...] = 1e38
    net[2].weight.assign(weight)
    net[0].bias.assign(np.full(4, 100, np.float32))
    assert "in layer 2" in message(function, np.ones((3, 4)))


def test_infinities_that_a_program_writes_down_may_pass():
    q = mg.input("q", (2, 4, 8))
    y = ops.scaled_dot_product_attention(q, q, q, is_causal=True)
    function = checked("cpu", 3, [q], [y, *mg.grad(y.sum(), [q])])
    for value in function(np.random.default_rng(0).normal(size=(2, 4, 8))):
        assert np.isfinite(value).all()
    x = mg.input("x", (2,))
    given = checked("cpu", 2, [x], [x * 2, ops.maximum(x, 0)])
    np.testing.assert_array_equal(given([np.inf, np.nan])[0], [np.inf, np.nan])


@LEVELS
def test_a_step_that_raises_leaves_the_parameters_as_they_were(level):
    w = mg.Parameter(np.ones(3, np.float32), "w")
    v = mg.Parameter(np.zeros(3, np.float32), "v")
    x = mg.input("x", (3,))
    function = checked("cpu", level, [x], (w * x).sum(), {w: w + 1, v: v + ops.sqrt(x)})
    function([1, 4, 9])
    before = w.numpy(), v.numpy()
    assert "sqrt made NaN" in message(function, [1, -4, 9])
    np.testing.assert_array_equal([w.numpy(), v.numpy()], before)
    assert function.calls == 1


@LEVELS
@DEVICES
def test_a_nan_that_is_given_reaches_no_parameter(device, level):
    w, v = (mg.Parameter(np.ones(3, np.float32), name) for name in "wv")
    x = mg.input("x", (3,))
    filled = ops.where(ops.isnan(x), 0, x)
    function = checked(device, level, [x], x * 2, {w: w - v * x, v: v + filled})
    with pytest.raises(mg.GraphError, match="input x holds NaN in 1 of 3 elements") as error:
        function([1, np.nan, 2])
    assert "elements; the new value of parameter w would hold NaN from it, made at " in str(
        error.value
    )
    np.testing.assert_array_equal([w.numpy(), v.numpy()], np.ones((2, 3)))
    checked(device, level, [x], x * 2, {v: v + filled})([1, np.nan, 2])
    np.testing.assert_array_equal(v.numpy(), [2, 1, 3])
    v.assign(np.full(3, np.nan))
    assert message(function, [1, 2, 3]).startswith("parameter v holds NaN in 3 of 3 elements; the")


def test_training_runs_as_without_the_option():
    def trained(check):
        nn.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        x, y = mg.input("x", (None, 4)), mg.input("y", (None,), "int64")
        loss = ops.cross_entropy(net(x), y)
        updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
        cg = mg.comp_graph(options={"graph_opt_level": 3, "debug.check_finite": check})
        step = cg.compile([x, y], loss, updates)
        rng = np.random.default_rng(0)
        return [step(rng.normal(size=(6, 4)), rng.integers(0, 3, 6)) for _ in range(5)]

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-5)
