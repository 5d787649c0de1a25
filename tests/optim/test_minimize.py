"""Groups of parameters, clipped, given and accumulated gradients, averages: `minigraph.optim`."""

import numpy as np
import pytest
from beside_torch_optim import TorchTrained, Trained, assert_same_steps

import minigraph as mg
from minigraph import ops, optim
from minigraph.errors import GraphError

STARTS = [np.linspace(-1, 1, 6).reshape(2, 3), np.linspace(0.2, 2, 3)]
X = np.random.default_rng(0).standard_normal((5, 4, 2))


def made(dtype="float64"):
    """Two parameters, an input, and a loss."""
    w, b = (mg.Parameter(v.astype(dtype), name) for v, name in zip(STARTS, "wb", strict=True))
    x = mg.input("x", X.shape[1:], dtype)
    return w, b, x, ops.square(ops.tanh(x @ w) * b - 0.3).sum()


@pytest.mark.parametrize(
    "kind, arguments, first, second",
    [
        ("SGD", {"lr": 0.1, "momentum": 0.5}, {"lr": 0.01}, {"momentum": 0.0}),
        ("SGD", {"lr": 0.1}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}),
        ("Adam", {"lr": 0.1}, {"betas": (0.5, 0.9)}, {"lr": 0.02, "weight_decay": 0.1}),
        ("AdamW", {"lr": 0.1}, {"weight_decay": 0.0}, {"weight_decay": 0.5}),
        ("AdamW", {"lr": 0.1}, {"amsgrad": True, "betas": (0.5, 0.5)}, {"lr": 0.02}),
        ("RMSprop", {"lr": 0.1}, {"centered": True}, {"momentum": 0.9, "lr": 0.01}),
        ("Adagrad", {"lr": 0.1}, {"lr_decay": 0.1}, {"lr": 0.3}),
    ],
)
def test_groups_are_trained_as_torch_trains_them(torch, kind, arguments, first, second):
    case = kind, arguments, "float64", [first, {}, second]
    assert_same_steps(Trained(*case), TorchTrained(torch, *case))


@pytest.mark.parametrize(
    "argument, most", [("norm", 0.01), ("norm", 1.0), ("norm", 1e6), ("value", 0.02)]
)
def test_gradients_are_clipped_as_torch_clips_them(torch, argument, most):
    clip = getattr(torch.nn.utils, f"clip_grad_{argument}_")
    case = "SGD", {"lr": 0.1}, "float64"
    ours = Trained(*case, **{f"clip_{argument}": most})
    assert_same_steps(ours, TorchTrained(torch, *case, clip=lambda ps: clip(ps, most)))


def test_the_norm_of_16_bit_gradients_does_not_overflow():
    w = mg.Parameter(np.zeros(100, "float16"), "w")
    grads = {w: mg.input("g", (100,), "float16")}
    updates = optim.SGD([w], lr=1.0).minimize(grads=grads, clip_norm=1.0)
    mg.comp_graph().compile([grads[w]], [], updates)(np.full(100, 300, "float16"))
    np.testing.assert_allclose(w.numpy(), -0.1, rtol=2e-3)


def test_lion_follows_its_paper():
    w, _, x, loss = made()
    gradient = mg.comp_graph("reference").compile([x], mg.grad(loss, [w])[0])
    updates = optim.Lion([w], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1).minimize(loss)
    step = mg.comp_graph("reference").compile([x], loss, updates)
    mean = 0.0
    for batch in X:
        g, expected = gradient(batch), w.numpy()
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * np.sign(0.8 * mean + 0.2 * g)
        mean = 0.95 * mean + 0.05 * g
        step(batch)
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-12)


def test_a_parameter_without_a_way_from_the_loss_stays_as_torch_leaves_it(torch):
    w, v = mg.Parameter(np.ones(3)), mg.Parameter(np.ones(3))
    loss = (w * ops.stop_gradient(v)).sum() + (ops.floor(v)).sum()
    step = mg.comp_graph().compile([], loss, optim.AdamW([w, v], lr=0.1).minimize(loss))
    theirs = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    adam = torch.optim.AdamW(theirs, lr=0.1)
    for _ in range(2):
        step()
        adam.zero_grad()
        (theirs[0] * theirs[1].detach()).sum().backward()
        adam.step()
    for one, other in zip((w, v), theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-12)


# ---------------------------------------------------------------- several updates in a dict


def test_one_optimizer_takes_losses_of_different_parameters_in_one_dict():
    w, b, *_ = made()
    adam, cg = optim.Adam([w, b], lr=0.1), mg.comp_graph("reference")
    updates = {**adam.minimize(ops.square(w).sum()), **adam.minimize(ops.square(b).sum())}
    cg.compile([], [], updates)()
    for p, start in zip((w, b), STARTS, strict=True):
        np.testing.assert_allclose(p.numpy(), start - 0.1 * np.sign(start), rtol=1e-6)


def test_a_new_value_may_be_changed_by_hand():
    w, b, x, loss = made()
    updates = optim.Adam([w, b], lr=0.1).minimize(loss)
    updates[w], updates[b] = ops.clip(updates[w], -0.01, 0.01), b * 1
    mg.comp_graph("reference").compile([x], loss, updates)(X[0])
    assert abs(w.numpy()).max() == 0.01
    np.testing.assert_array_equal(b.numpy(), STARTS[1])


# ---------------------------------------------------------------- sums and averages


def test_four_parts_of_a_batch_are_a_step_on_the_whole():
    w, b, x, loss = made()
    whole = mg.input("whole", (16, 2), "float64")
    v, c = mg.Parameter(STARTS[0]), mg.Parameter(STARTS[1])
    of_whole = ops.square(ops.tanh(whole @ v) * c - 0.3).sum() / 4
    cg = mg.comp_graph()
    sums = optim.Accumulation([w, b])
    add = cg.compile([x], loss, sums.add(loss))
    apply = cg.compile([], [], {**optim.Adam([w, b]).minimize(grads=sums.mean), **sums.clear()})
    step = cg.compile([whole], of_whole, optim.Adam([v, c]).minimize(of_whole))
    for _ in range(3):
        for batch in X[:4]:
            add(batch)
        apply()
        step(X[:4].reshape(16, 2))
    for p, q in ((w, v), (b, c)):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-12)


@pytest.mark.parametrize("level", [0, 3])
def test_parts_with_different_numbers_of_tokens_are_a_step_on_the_whole(level):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(12, 4))
    labels = np.where(rng.random(12) < 0.5, rng.integers(1, 3, 12), 0)
    labels[3:6] = 0  # nothing but padding: the mean over it is NaN
    parts = [slice(0, 1), slice(1, 3), slice(3, 6), slice(6, 12)]
    w, v = (mg.Parameter(np.ones((4, 3)), "w") for _ in range(2))
    x, y = mg.input("x", (None, 4), "float64"), mg.input("y", (None,), "int64")
    cg = mg.comp_graph(options={"graph_opt_level": level})
    loss, whole = (ops.cross_entropy(ops.tanh(x @ p), y, ignore_index=0) for p in (w, v))
    sums = optim.Accumulation([w])
    add = cg.compile([x, y], [], sums.add(loss, (y != 0).sum()))
    apply = cg.compile([], [], {**optim.SGD([w], 0.1).minimize(grads=sums.mean), **sums.clear()})
    step = cg.compile([x, y], [], optim.SGD([v], 0.1).minimize(whole))
    for _ in range(3):
        for part in parts:
            add(features[part], labels[part])
        apply()
        step(features, labels)
    np.testing.assert_allclose(w.numpy(), v.numpy(), rtol=1e-13)


def test_sums_leave_parameters_alone_that_no_loss_depends_on():
    w, b, x, loss = made()
    sums, cg = optim.Accumulation([w, b]), mg.comp_graph("reference")
    add = cg.compile([x], loss, sums.add(ops.square(ops.tanh(x @ w) * ops.stop_gradient(b)).sum()))
    adam = optim.AdamW([w, b], lr=0.1)
    apply = cg.compile([], [], {**adam.minimize(grads=sums.mean), **sums.clear()})
    add(X[0])
    apply()
    assert (w.numpy() != STARTS[0]).all()
    np.testing.assert_array_equal(b.numpy(), STARTS[1])
    with pytest.raises(GraphError, match="depends on b, which an earlier `mean` left out"):
        sums.add(loss)


def test_an_average_is_of_the_new_values():
    w, b, x, loss = made()
    ema = optim.EMA([w, b], decay=0.9)
    updates = optim.SGD([w, b], lr=0.1).minimize(loss)
    step = mg.comp_graph("reference").compile([x], loss, {**updates, **ema.updates(updates)})
    expected = STARTS[0]
    for batch in X:
        step(batch)
        expected = 0.9 * expected + 0.1 * w.numpy()
    np.testing.assert_allclose(ema.state_dict()["ema.w"], expected, rtol=1e-12)
    now = w.numpy()
    with ema.applied():
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(w.numpy(), now)
    other = optim.EMA([w, b])
    other.load_state_dict(ema.state_dict())
    np.testing.assert_array_equal(other.state_dict()["ema.w"], ema.state_dict()["ema.w"])
