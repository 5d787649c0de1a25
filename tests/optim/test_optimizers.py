"""Optimizers: torch's numbers step by step, state that can be saved, mistakes that are told."""

import numpy as np
import pytest
from beside_torch_optim import BATCHES, START, TorchTrained, Trained, assert_same_steps

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.errors import GraphError

ADAM = [
    {},
    {"weight_decay": 0.1},
    {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3},
    {"betas": (0.0, 0.0)},
    {"lr": 0.05, "betas": (0.5, 0.5), "amsgrad": True},
    {"weight_decay": 0.1, "amsgrad": True},
]
SGD = [
    {},
    {"lr": 0.1, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    {"lr": 0.1, "momentum": 0.9, "dampening": -0.5, "weight_decay": 0.01},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    {"lr": 0.1, "dampening": 0.5},
]
OTHERS = [
    ("AdamW", {}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "betas": (0.5, 0.9)}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "betas": (0.5, 0.5), "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.8}),
    ("RMSprop", {"centered": True, "eps": 1e-3}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1}),
    ("Adagrad", {"initial_accumulator_value": 0.3}),
]
CASES = [
    *(("Adam", arguments) for arguments in ADAM),
    *(("SGD", arguments) for arguments in SGD),
    *OTHERS,
]

# Numbers


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize(("kind", "arguments"), CASES)
def test_ten_steps_follow_torch(torch, kind, arguments, dtype, tolerance):
    ours = Trained(kind, arguments, dtype)
    assert_same_steps(ours, TorchTrained(torch, kind, arguments, dtype), dtype, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("Adam", {"weight_decay": 0.1}),
        ("AdamW", {"amsgrad": True}),
        ("RMSprop", {"momentum": 0.5, "centered": True, "eps": 1e-6}),
        ("Adagrad", {"lr_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ],
)
def test_a_16_bit_parameter_takes_the_steps_of_float32(torch, kind, arguments, level, dtype):
    gradient = np.array([0, 1e-4, -1e-7, 1, -300, 3e4, 6e4])
    p, g = mg.Parameter(np.linspace(-2, 3, 7), "p", dtype=dtype), mg.input("g", (7,), dtype)
    updates = getattr(optim, kind)([p], **arguments).minimize(grads={p: g})
    step = mg.comp_graph(options={"graph_opt_level": level}).compile([g], [], updates)
    assert {q.dtype.name for q in updates if q is not p} <= {"float32", "int64"}

    def small(x):
        return torch.tensor(x).to(getattr(torch, dtype)).float()

    q = torch.nn.Parameter(small(p.numpy().astype("float64")))
    theirs = getattr(torch.optim, kind)([q], **arguments)
    for scale in (1, 0, 1, -0.5, 1):
        step((gradient * scale).astype(p.dtype))
        q.grad = small(gradient * scale)
        theirs.step()
        q.data = small(q.detach().numpy())
        ulps = {"float16": 2**-9, "bfloat16": 2**-6}[dtype]
        np.testing.assert_allclose(p.numpy().astype("float32"), q.detach().numpy(), rtol=ulps)


def test_a_largest_moment_that_is_nan_stays_nan_as_in_torch(torch):
    arguments = {"amsgrad": True}
    ours, theirs = Trained("Adam", arguments), TorchTrained(torch, "Adam", arguments)
    for batch in (np.full_like(BATCHES[0], np.nan), BATCHES[1]):
        ours.step(batch)
        theirs.step(batch)
    largest = ours.optimizer.state_dict()["adam.max_exp_avg_sq.second"]
    expected = theirs.optimizer.state[theirs.parameters["second"]]["max_exp_avg_sq"]
    assert np.isnan(largest).all()
    assert np.isnan(expected.numpy()).all()


def test_amsgrad_adds_no_kernel_to_a_step_at_level_3():
    def kernels(**arguments):
        parameters = [mg.Parameter(np.ones((64, n), "float32"), f"w{n}") for n in (3, 40)]
        loss = sum(ops.square(p).sum() for p in parameters)
        updates = optim.AdamW(parameters, **arguments).minimize(loss)
        cg = mg.comp_graph("cpu", {"graph_opt_level": 3})
        return cg.compile([], [], updates).report().kernels

    plain, largest = kernels(), kernels(amsgrad=True)
    assert len(largest) == len(plain)
    assert sum("maximum" in kernel.ops for kernel in largest) == 1


COUNTED = [
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.1, "betas": (0.5, 0.9)}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("RMSprop", {"lr": 0.1, "momentum": 0.5}),
]


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize(("kind", "arguments"), COUNTED)
def test_each_parameter_counts_its_own_steps(torch, kind, arguments, level):
    """A body with two heads: trained in turn, alone, resumed from a state, together."""
    starts = {"body": START["first"], "a": START["second"], "b": START["second"] / 3}

    def made():
        parameters = {name: mg.Parameter(value, name) for name, value in starts.items()}
        optimizer = getattr(optim, kind)(parameters.values(), **arguments)
        body, *heads = parameters.values()
        losses = [ops.square(ops.tanh(body) @ head - 0.3).sum() for head in heads]
        cg = mg.comp_graph(options={"graph_opt_level": level})
        subset = {heads[1]: mg.grad(losses[1], heads[1:])[0]}
        updates = [optimizer.minimize(x) for x in (*losses, sum(losses))]
        updates += [optimizer.minimize(grads=subset)]
        return parameters, optimizer, [cg.compile([], [], each) for each in updates]

    theirs = {name: torch.nn.Parameter(torch.tensor(v)) for name, v in starts.items()}
    optimizer = getattr(torch.optim, kind)(theirs.values(), **arguments)
    body, *heads = theirs.values()

    def torch_step(which):
        optimizer.zero_grad()
        losses = [((torch.tanh(body) @ head - 0.3) ** 2).sum() for head in heads]
        [losses[0], losses[1], sum(losses), losses[1]][which].backward()
        if which == 3:
            body.grad = None
        optimizer.step()

    parameters, ours, steps = made()
    for i, which in enumerate([0] * 5 + [1, 0, 1, 3, 3] + [2, 2, 0, 3] + [1, 2] * 3):
        if i == 8:
            ours.lr = optimizer.param_groups[0]["lr"] = 0.07
            resumed, other, steps = made()
            other.load_state_dict(ours.state_dict())
            for name, p in resumed.items():
                p.assign(parameters[name].numpy())
            parameters, ours = resumed, other
        steps[which]()
        torch_step(which)
        for name, q in theirs.items():
            np.testing.assert_allclose(parameters[name].numpy(), q.detach().numpy(), rtol=1e-11)


@pytest.mark.parametrize("shape, kernels", [((9,), 1), ((200, 200), 6)], ids=["small", "large"])
def test_counts_add_one_op_and_no_kernel_to_a_step(shape, kernels):
    parameters = [mg.Parameter(np.ones(shape, "float32"), f"p{i}") for i in range(5)]
    grads = {p: mg.Parameter(p.numpy(), trainable=False) for p in parameters}
    updates = optim.Adam(parameters).minimize(grads=grads)
    step = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([], [], updates)
    views = {"slice", "reshape"}
    ran = {name: n for name, n in step.report().ops.items() if name not in views}
    # Two for the bias corrections; the counts, with small updates, are one.
    assert ran == {"fused": 2 + kernels, "concat": 1}


# What is trained


def test_parameters_that_are_frozen_or_not_in_the_loss_stay():
    used, unused, frozen, later = (mg.Parameter(np.ones(2, "float32"), n) for n in "abcd")
    frozen.trainable = False
    optimizer = optim.Adam([used, unused, frozen, later], weight_decay=0.1)
    later.trainable = False
    updates = optimizer.minimize((used * frozen * later).sum())
    assert {p.name for p in updates} == {"adam.step.a", "adam.exp_avg.a", "adam.exp_avg_sq.a", "a"}
    assert "adam.exp_avg.c" not in optimizer.state_dict()


# State


def test_state_is_named_after_optimizer_and_parameter():
    net = nn.Sequential({"conv1": nn.Conv2d(1, 1, 1, bias=False)})
    adam = optim.Adam(net.parameters())
    expected = "adam.lr", *(f"adam.{s}.conv1.weight" for s in ("step", "exp_avg", "exp_avg_sq"))
    assert list(adam.state_dict()) == [*expected]
    sgd = optim.SGD(net.parameters(), momentum=0.9, dampening=0.1)
    expected = "sgd.lr", "sgd.momentum.conv1.weight", "sgd.step.conv1.weight"
    assert list(sgd.state_dict()) == [*expected]


def test_only_groups_that_need_a_state_have_it():
    def names(kind, **option):
        w, b = mg.Parameter(np.ones(3), "w"), mg.Parameter(np.ones(2), "b")
        optimizer = getattr(optim, kind)([{"params": [w]}, {"params": [b], **option}])
        updates = optimizer.minimize(ops.square(w).sum() + ops.square(b).sum())
        assert set(optimizer.state_dict()) == {p.name for p in updates} - {"w", "b"} | {
            f"{kind.lower()}.lr",
            f"{kind.lower()}.lr#1",
        }
        return [name for name in optimizer.state_dict() if name.endswith(".w")]

    assert names("Adam", amsgrad=True) == ["adam.step.w", "adam.exp_avg.w", "adam.exp_avg_sq.w"]
    assert names("SGD", momentum=0.9) == []
    assert names("RMSprop", momentum=0.9, centered=True) == ["rmsprop.square_avg.w"]


def test_states_of_two_networks_are_told_apart_by_name_or_refused():
    def parameters_of_two(names):
        networks = {name: nn.Linear(2, 2) for name in "ab"}
        both = nn.ModuleDict(networks) if names else None
        parameters = [p for name in "ab" for p in networks[name].parameters()]
        return both, parameters

    _, parameters = parameters_of_two(names=False)
    plain = optim.SGD(parameters)
    assert list(plain.state_dict()) == ["sgd.lr"]  # nothing that could be mistaken
    for each in (optim.Adam(parameters), optim.EMA(parameters)):
        with pytest.raises(GraphError, match=r"state_dict: two parameters are named (weight|bias)"):
            each.state_dict()
    nameless = optim.Adam([mg.Parameter([1.0]), mg.Parameter([2.0])]).state_dict()
    assert "adam.step.parameter#1" in nameless  # by place, as in torch
    _, parameters = parameters_of_two(names=True)
    grads = {p: np.full(p.shape, i + 1.0) for i, p in enumerate(parameters)}
    one, other = optim.Adam(parameters), optim.Adam(parameters[::-1])
    mg.comp_graph("reference").compile([], [], one.minimize(grads=grads))()
    other.load_state_dict(one.state_dict())
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)


def test_users_may_give_an_optimizer_attributes_of_their_own():
    adam = optim.Adam([mg.Parameter([1.0])])
    adam.name_of_mine = 1
    assert adam.name_of_mine == 1


def test_groups_are_read_and_their_rates_set_as_in_torch(torch):
    body, head = mg.Parameter([1.0, 2.0], "body"), mg.Parameter([3.0], "head")
    sgd = optim.SGD([{"params": [body]}, {"params": [head], "momentum": 0.5}], lr=0.1)
    theirs = [torch.nn.Parameter(torch.tensor(p.numpy())) for p in (body, head)]
    groups = [{"params": theirs[:1]}, {"params": theirs[1:], "momentum": 0.5}]
    other = torch.optim.SGD(groups, lr=0.1)
    step = mg.comp_graph().compile([], [], sgd.minimize((body**2).sum() + (head**2).sum()))
    for rate in (0.1, 0.03, 0.2):
        for group, same in zip(sgd.param_groups, other.param_groups, strict=True):
            assert (group["lr"], group["momentum"]) == (same["lr"], same["momentum"])
            group["lr"] = same["lr"] = group["lr"] + rate
        step()
        other.zero_grad()
        sum((p**2).sum() for p in theirs).backward()
        other.step()
        for p, q in zip((body, head), theirs, strict=True):
            np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-12)
    sgd.lr = 0.86  # twice as much: other groups in proportion
    assert [group["lr"] for group in sgd.param_groups] == pytest.approx([0.86, 0.86])
    assert sgd.param_groups[1]["params"] == [head]


def test_a_group_may_join_later():
    body, head = mg.Parameter([1.0], "body"), mg.Parameter([1.0], "head")
    loss = (body**2).sum() + (head**2).sum()
    adam = optim.Adam([body], lr=0.1)
    mg.comp_graph().compile([], [], adam.minimize(loss))()
    adam.add_param_group({"params": [head], "lr": 0.5, "betas": (0.5, 0.9)})
    assert [group["lr"] for group in adam.param_groups] == [0.1, 0.5]
    mg.comp_graph().compile([], [], adam.minimize(loss))()
    assert body.numpy() == pytest.approx(0.8, abs=1e-3) and head.numpy() == pytest.approx(0.5)
    state = adam.state_dict()
    assert state["adam.step.body"] == 2 and state["adam.step.head"] == 1


def test_an_optimizer_prints_its_groups():
    w, b = mg.Parameter(np.ones(2), "w"), mg.Parameter(np.ones(2), "b")
    adam = optim.Adam([{"params": [w], "weight_decay": 0.1}, {"params": [b], "lr": 0.5}], lr=0.1)
    adam.lr = 0.2
    assert repr(adam) == (
        "Adam(1 parameter: lr=0.2, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.1, amsgrad=False; "
        "1 parameter: lr=1, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0, amsgrad=False)"
    )
