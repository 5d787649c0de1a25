"""Schedules set torch's learning rates: `minigraph.optim.schedules`."""

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph import optim
from minigraph.optim import schedules

GROUPS = {}, {"lr": 0.02}, {"lr": 0.9}  # beside a rate of 0.4


def optimizer():
    groups = [{"params": [mg.Parameter(np.zeros(2), f"p{i}")], **g} for i, g in enumerate(GROUPS)]
    return optim.SGD(groups, lr=0.4)


def rates(optimizer, schedule, steps, *metrics):
    """The rates before each step, and after the last."""
    series = [optimizer.rates]
    for i in range(steps):
        schedule.step(*(m[i] for m in metrics))
        series.append(optimizer.rates)
    return series


def torch_optimizer(torch):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], **g} for g in GROUPS]
    return torch.optim.SGD(groups, lr=0.4)


def rates_in(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def torch_rates(torch, make, steps, *metrics):
    optimizer = torch_optimizer(torch)
    schedule = make(torch.optim.lr_scheduler, optimizer)
    series = [rates_in(optimizer)]
    for i in range(steps):
        optimizer.step()
        schedule.step(*(m[i] for m in metrics))
        series.append(rates_in(optimizer))
    return series


CASES = {
    "step": (lambda o: schedules.step(o, 3, gamma=0.5), lambda s, o: s.StepLR(o, 3, gamma=0.5)),
    "multi_step": (
        lambda o: schedules.multi_step(o, [2, 5, 5], gamma=0.5),
        lambda s, o: s.MultiStepLR(o, [2, 5, 5], gamma=0.5),
    ),
    "exponential": (lambda o: schedules.exponential(o, 0.9), lambda s, o: s.ExponentialLR(o, 0.9)),
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
    series = rates(sgd, schedules.plateau(sgd, min_lr=1e-3, **arguments), 40, metrics)
    expected = torch_rates(
        torch, lambda s, o: s.ReduceLROnPlateau(o, min_lr=1e-3, **arguments), 40, metrics
    )
    assert len({first for first, *_ in series}) > 4
    np.testing.assert_allclose(series, expected)


@pytest.mark.parametrize("steps, share", [(10, 0.1), (4, 0.25), (2, 0.5)])
def test_one_cycle_may_begin_at_its_highest_rate(steps, share):
    sgd = optimizer()
    series = rates(sgd, schedules.one_cycle(sgd, 2.0, steps, share, "linear"), steps)
    last = 2.0 / 25 / 1e4
    np.testing.assert_allclose(
        [rate for rate, *_ in series], [*np.linspace(2.0, last, steps), last]
    )


@pytest.mark.parametrize("case", CASES)
def test_after_the_warm_up_comes_another_schedule_as_in_torch(torch, case):
    make, torch_make = CASES[case]

    def sequential(s, o):
        return s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 3), torch_make(s, o)], [3])

    sgd = optimizer()
    series = rates(sgd, schedules.warmup(sgd, 3, 0.1, after=make(sgd)), 9)
    np.testing.assert_allclose(series, torch_rates(torch, sequential, 9), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("one, two", [*itertools.combinations(CASES, 2)])
def test_two_schedules_of_an_optimizer_multiply_as_in_torch(torch, one, two):
    sgd, theirs = optimizer(), torch_optimizer(torch)
    ours = [CASES[case][0](sgd) for case in (one, two)]
    torchs = [CASES[case][1](torch.optim.lr_scheduler, theirs) for case in (one, two)]
    theirs.step()
    for i in range(8):
        if i == 5:  # a rate that is set by hand
            sgd.lr = 0.2
            theirs.param_groups[0]["lr"], share = 0.2, 0.2 / 0.4
            for group, own in zip(theirs.param_groups[1:], GROUPS[1:], strict=True):
                group["lr"] = own["lr"] * share
        for schedule in (*ours, *torchs):
            schedule.step()
        np.testing.assert_allclose(sgd.rates, rates_in(theirs), rtol=1e-9, atol=1e-12)


RESUMED = {
    "cosine": CASES["cosine"][0],
    "plateau": lambda o: schedules.plateau(o, patience=0, factor=0.5, min_lr=0.015),
    "warmup, cosine": lambda o: schedules.warmup(o, 4, 0.1, after=schedules.cosine(o, 9, 0.01)),
    "warmup, plateau": lambda o: schedules.warmup(
        o, 4, 0.1, after=schedules.plateau(o, patience=0, factor=0.5)
    ),
}


@pytest.mark.parametrize("order", ["optimizer, schedule", "schedule, optimizer", "made last"])
@pytest.mark.parametrize("done", [2, 4, 7])
@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
def test_a_schedule_goes_on_from_a_state_in_whatever_order_states_are_loaded(make, done, order):
    def step(schedule):
        schedule.step(*([2.0] if "plateau" in case else []))

    case = next(name for name, each in RESUMED.items() if each is make)
    sgd, other = optimizer(), optimizer()
    schedule, halved = make(sgd), schedules.exponential(sgd, 0.9)
    for _ in range(done):
        step(schedule)
        halved.step()
    resumed = None if order == "made last" else make(other)
    if order != "schedule, optimizer":
        other.load_state_dict(sgd.state_dict())
    resumed = resumed or make(other)
    resumed_halved = schedules.exponential(other, 0.9)
    resumed_halved.load_state_dict(halved.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    if order == "schedule, optimizer":
        other.load_state_dict(sgd.state_dict())
    assert sgd.rates == other.rates
    for _ in range(5):
        step(schedule), step(resumed)
        halved.step(), resumed_halved.step()
        np.testing.assert_allclose(sgd.rates, other.rates, rtol=1e-12)


def test_after_the_warm_up_a_plateau_takes_its_metric():
    sgd = optim.SGD([mg.Parameter(np.zeros(2))], lr=1.0)
    after = schedules.plateau(sgd, patience=0, factor=0.5)
    series = rates(sgd, schedules.warmup(sgd, 2, 0.5, after=after), 5, [9, 9, 1, 2, 1])
    assert [rate for (rate,) in series] == [0.5, 0.75, 1.0, 1.0, 0.5, 0.25]


def test_a_state_that_lacks_the_schedule_after_the_warm_up_sets_nothing():
    sgd = optimizer()
    schedule = schedules.warmup(sgd, 4, 0.5, after=schedules.exponential(sgd, 0.9))
    rates_before = sgd.rates
    short = schedules.warmup(optimizer(), 4, 0.25)
    short.step()
    with pytest.raises(mg.GraphError, match="not a state of a schedule"):
        schedule.load_state_dict(short.state_dict())
    assert sgd.rates == rates_before
    assert schedule.steps == 0


def test_a_schedule_compiles_nothing():
    w = mg.Parameter(np.zeros(2), "w")
    sgd = optim.SGD([w], lr=1.0)
    step = mg.comp_graph("reference").compile([], [], sgd.minimize(grads={w: np.ones(2)}))
    schedule = schedules.step(sgd, 1, 0.5)
    for _ in range(3):
        step()
        schedule.step()
    np.testing.assert_array_equal(w.numpy(), -1.75)
