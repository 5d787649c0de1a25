"""Schedules set torch's learning rates: `minigraph.optim.schedules`."""

import numpy as np
import pytest

import minigraph as mg
from minigraph import optim
from minigraph.errors import GraphError
from minigraph.optim import schedules


def optimizer(lr=0.4):
    return optim.SGD([mg.Parameter(np.zeros(2))], lr=lr)


def rates(optimizer, schedule, steps, *metrics):
    """The rate before each step, and after the last."""
    found = [optimizer.lr]
    for i in range(steps):
        schedule.step(*(m[i] for m in metrics))
        found.append(optimizer.lr)
    return found


def torch_rates(torch, make, steps, *metrics):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.4)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    found = [optimizer.param_groups[0]["lr"]]
    for i in range(steps):
        optimizer.step()
        schedule.step(*(m[i] for m in metrics))
        found.append(optimizer.param_groups[0]["lr"])
    return found


CASES = {
    "step": (
        lambda o: schedules.step(o, 3, gamma=0.5),
        lambda s, o: s.StepLR(o, 3, gamma=0.5),
    ),
    "multi_step": (
        lambda o: schedules.multi_step(o, [2, 5, 5], gamma=0.5),
        lambda s, o: s.MultiStepLR(o, [2, 5, 5], gamma=0.5),
    ),
    "exponential": (
        lambda o: schedules.exponential(o, 0.9),
        lambda s, o: s.ExponentialLR(o, 0.9),
    ),
    "cosine": (
        lambda o: schedules.cosine(o, 8, eta_min=0.01),
        lambda s, o: s.CosineAnnealingLR(o, 8, eta_min=0.01),
    ),
    "warmup": (
        lambda o: schedules.warmup(o, 4, start_factor=0.1),
        lambda s, o: s.LinearLR(o, 0.1, 1.0, 4),
    ),
    "one_cycle": (
        lambda o: schedules.one_cycle(o, 2.0, 10),
        lambda s, o: s.OneCycleLR(o, 2.0, 10, cycle_momentum=False),
    ),
    "one_cycle, linear": (
        lambda o: schedules.one_cycle(o, 2.0, 10, 0.5, "linear", 10.0, 100.0),
        lambda s, o: s.OneCycleLR(
            o,
            2.0,
            10,
            pct_start=0.5,
            anneal_strategy="linear",
            cycle_momentum=False,
            div_factor=10.0,
            final_div_factor=100.0,
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rates_are_those_of_torch(torch, case):
    make, torch_make = CASES[case]
    sgd = optimizer()
    np.testing.assert_allclose(
        rates(sgd, make(sgd), 9), torch_rates(torch, torch_make, 9), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("mode, threshold_mode", [("min", "rel"), ("max", "abs")])
def test_the_rates_of_a_plateau_are_those_of_torch(torch, mode, threshold_mode):
    metrics = np.random.default_rng(1).normal(size=40) ** 2 + 1
    sgd = optimizer()
    arguments = {"mode": mode, "threshold_mode": threshold_mode, "threshold": 0.1}
    arguments |= {"factor": 0.5, "patience": 2, "cooldown": 1}
    found = rates(sgd, schedules.plateau(sgd, min_lr=1e-3, **arguments), 40, metrics)
    expected = torch_rates(
        torch, lambda s, o: s.ReduceLROnPlateau(o, min_lr=1e-3, **arguments), 40, metrics
    )
    assert len(set(found)) > 4
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("steps, share", [(10, 0.1), (4, 0.25), (2, 0.5)])
def test_one_cycle_may_begin_at_its_highest_rate(steps, share):
    sgd = optimizer()
    found = rates(sgd, schedules.one_cycle(sgd, 2.0, steps, share, "linear"), steps)
    last = 2.0 / 25 / 1e4
    np.testing.assert_allclose(found, [*np.linspace(2.0, last, steps), last])


def test_after_the_warm_up_comes_another_schedule():
    sgd = optimizer()
    after = schedules.step(sgd, 2)
    found = rates(sgd, schedules.warmup(sgd, 2, 0.5, after), 5)
    np.testing.assert_allclose(found, [0.2, 0.3, 0.4, 0.4, 0.04, 0.04])


@pytest.mark.parametrize("make", [CASES["cosine"][0], lambda o: schedules.plateau(o, patience=0)])
def test_a_schedule_goes_on_from_a_state(make):
    sgd, other = optimizer(), optimizer()
    schedule = make(sgd)
    metric = () if isinstance(schedule, schedules.Schedule) else (2.0,)
    for _ in range(3):
        schedule.step(*metric)
    resumed = make(other)
    other.load_state_dict(sgd.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    for each in (schedule, resumed):
        each.step(*metric)
    assert sgd.lr == other.lr
    with pytest.raises(GraphError, match="no state of a schedule"):
        resumed.load_state_dict({})


def test_a_schedule_compiles_nothing():
    w = mg.Parameter(np.zeros(2), "w")
    sgd = optim.SGD([w], lr=1.0)
    step = mg.comp_graph("reference").compile([], [], sgd.minimize(grads={w: np.ones(2)}))
    schedule = schedules.step(sgd, 1, 0.5)
    for _ in range(3):
        step()
        schedule.step()
    np.testing.assert_array_equal(w.numpy(), -1.75)
