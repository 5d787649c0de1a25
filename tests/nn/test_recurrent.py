"""Recurrent layers and cells against torch's: states, results, gradients, whole trainings."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import nn, ops, optim

torch = pytest.importorskip("torch")

LAYERS = ["RNN", "LSTM", "GRU"]
WIDTH, HIDDEN, LENGTH, BATCH = 3, 4, 5, 2


def real(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def pair(name, *arguments, **kwargs):
    """Our layer and torch's, with the same weights."""
    theirs = getattr(torch.nn, name)(*arguments, **kwargs)
    ours = getattr(nn, name)(*arguments, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def leaves(tree):
    return [leaf for x in tree for leaf in leaves(x)] if isinstance(tree, tuple | list) else [tree]


def assert_torchs(ours, theirs, arrays, form=lambda x, *hx: (x, *hx), level=3):
    """Compare results and all gradients; `form` makes a layer's arguments of the arrays."""
    inputs = [mg.input(f"x{i}", x.shape) for i, x in enumerate(arrays)]
    ys = leaves(ours(*form(*inputs)))
    wrt = [*inputs, *ours.parameters()]
    loss = sum(ops.sum(ops.sin(y)) for y in ys)
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    result = cg.compile(inputs, [*ys, *mg.grad(loss, wrt)])(*arrays)
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    want = leaves(theirs(*form(*tensors)))
    total = sum(torch.sin(y).sum() for y in want)
    want = [*want, *torch.autograd.grad(total, [*tensors, *theirs.parameters()])]
    assert len(result) == len(want)
    for a, b in zip(result, want, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-4, atol=2e-6)


OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "three layers": {"num_layers": 3},
    "both directions": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
}


# Loops at each level are tests of `ops/test_scan.py`.
@pytest.mark.parametrize(("options", "level"), [*((each, 3) for each in OPTIONS), ("all", 0)])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_torchs(name, options, level):
    layers = pair(name, WIDTH, HIDDEN, **OPTIONS[options])
    shape = (BATCH, LENGTH) if OPTIONS[options].get("batch_first") else (LENGTH, BATCH)
    assert_torchs(*layers, [real(*shape, WIDTH)], level=level)


def state_of(name, count, *n):
    states = [real(count, *n, HIDDEN, seed=i) for i in (1, 2)]
    return states if name == "LSTM" else states[:1]


def with_state(x, *hx):
    return x, hx if len(hx) > 1 else hx[0]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_start_from_a_state(name, batch_first):
    layers = pair(name, WIDTH, HIDDEN, 2, bidirectional=True, batch_first=batch_first)
    x = real(*((BATCH, LENGTH) if batch_first else (LENGTH, BATCH)), WIDTH)
    assert_torchs(*layers, [x, *state_of(name, 4, BATCH)], with_state)
    assert_torchs(*layers, [real(LENGTH, WIDTH), *state_of(name, 4)], with_state)


def test_rnn_with_relu_is_torchs():
    assert_torchs(*pair("RNN", WIDTH, HIDDEN, 2, "relu"), [real(LENGTH, BATCH, WIDTH)])
    assert_torchs(*pair("RNNCell", WIDTH, HIDDEN, True, "relu"), [real(BATCH, WIDTH)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_cells_are_torchs(name, bias):
    cells = pair(f"{name}Cell", WIDTH, HIDDEN, bias)
    assert_torchs(*cells, [real(BATCH, WIDTH)])
    assert_torchs(*cells, [real(WIDTH)])
    states = [real(BATCH, HIDDEN, seed=i) for i in (1, 2)][: 2 if name == "LSTM" else 1]
    assert_torchs(*cells, [real(BATCH, WIDTH), *states], with_state)


def test_weights_start_as_torchs():
    for name in LAYERS:
        theirs = getattr(torch.nn, name)(WIDTH, 400, 2, bidirectional=True)
        ours = getattr(nn, name)(WIDTH, 400, 2, bidirectional=True)
        state = theirs.state_dict()
        assert {k: v.shape for k, v in ours.state_dict().items()} == {
            k: tuple(v.shape) for k, v in state.items()
        }
        assert [k for k, _ in ours.named_parameters()] == [k for k, _ in theirs.named_parameters()]
        for value in ours.state_dict().values():
            assert 0.045 < np.abs(value).max() <= 0.05


def test_dropout_is_between_the_layers_in_training_only():
    x = mg.input("x", (LENGTH, 50, WIDTH))
    net = nn.LSTM(WIDTH, HIDDEN, 2, dropout=0.5)
    given = real(LENGTH, 50, WIDTH)
    trained = mg.comp_graph("cpu").compile([x], net(x)[0])
    assert not np.array_equal(trained(given), trained(given))
    tested = mg.comp_graph("cpu").compile([x], net.eval()(x)[0])
    np.testing.assert_array_equal(tested(given), tested(given))
    alone = nn.GRU(WIDTH, HIDDEN, 1, dropout=0.5)
    last = mg.comp_graph("cpu").compile([x], alone(x)[0])
    np.testing.assert_array_equal(last(given), last(given))


@needs_compiler
def test_a_layer_is_two_loops_whatever_its_length():
    x = mg.input("x", (200, BATCH, WIDTH))
    net = nn.LSTM(WIDTH, HIDDEN)
    loss = ops.mean(net(x)[0])
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
    step = cg.compile([x], loss, updates=optim.SGD(net.parameters(), 0.1).minimize(loss))
    report = step.report()
    assert report.ops["scan"] == 2
    assert report.launches == 1
    assert not report.numpy
    assert len(report.steps) < 40


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("LSTM", {}),
        ("LSTM", {"num_layers": 2, "batch_first": True, "dropout": 0.5, "bidirectional": True}),
        ("GRU", {"bias": False}),
        ("GRUCell", {}),
        ("LSTMCell", {"bias": False}),
        ("RNNCell", {"bias": False, "nonlinearity": "relu"}),
    ],
)
def test_layers_print_what_torchs_do(name, arguments):
    ours, theirs = getattr(nn, name)(2, 3, **arguments), getattr(torch.nn, name)(2, 3, **arguments)
    assert repr(ours) == repr(theirs)
