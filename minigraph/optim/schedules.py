"""Schedules of the learning rate, as in `torch.optim.lr_scheduler`.

`schedule.step()`, after each epoch or each call, sets `optimizer.lr`, without compilation, and the
rates of groups that have their own.  As in torch, it starts from the present rates, so several
schedules of one optimizer multiply, and a rate that the program sets counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from minigraph import errors
from minigraph.arguments import (
    Count,
    Integers,
    NotNegative,
    Probability,
    at_least,
    checked,
    instance_of,
    number_in,
)
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.optim.optimizer import Optimizer
from minigraph.optim.rule import Fraction

__all__ = ["cosine", "exponential", "multi_step", "one_cycle", "plateau", "step", "warmup"]
errors.install_hints(__name__, "schedules")

Rate = Callable[[float, int], float]  # of the base rate and the number of steps so far


class Resumable:
    """The base of schedules, whose state a checkpoint can hold.

    saved  the attributes of the state, each with the function that converts an array to it
    """

    saved: ClassVar[Mapping[str, Callable[[Any], Any]]]
    optimizer: Optimizer
    step: Callable[..., None]

    def state_dict(self) -> dict[str, Array]:
        """Return the state as arrays, to resume a training; `lr` holds the present rates."""
        state = {name: np.array(getattr(self, name)) for name in self.saved}
        return {**state, "lr": np.array(self.optimizer.rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the state that `state_dict()` returned, and the learning rates.

        The optimizer's own state may be loaded before or after.
        """
        try:
            attributes = {name: make(state[name]) for name, make in self.saved.items()}
            lr = _rates(state["lr"])
        except (KeyError, TypeError, ValueError) as error:
            raise GraphError(f"load_state_dict: not a state of a schedule ({error!r})") from None
        count = len(self.optimizer.rates)
        for rates in (lr, attributes.get("base", lr)):
            if len(rates) != count:
                raise GraphError(
                    f"load_state_dict: the state has {len(rates)} learning rates, the optimizer "
                    f"{count}; make the optimizer with the groups that it had"
                )
        vars(self).update(attributes)
        self.optimizer.rates = lr


def _rates(value: Any) -> list[float]:
    return [float(x) for x in np.asarray(value).reshape(-1)]


OptimizerArgument = Annotated[Optimizer, instance_of(Optimizer, "an optimizer")]
Divisor = Annotated[float, number_in(1e-9)]
ScheduleArgument = Annotated[Resumable, instance_of(Resumable, "a schedule")]


class StepSchedule(Resumable):
    """Learning rates that depend on the number of steps.

    base   rates before the first step: the optimizer's, then those of groups with their own
    steps  number of calls of `step`
    rate   pure function of a base rate and a number of steps
    floor  lowest rate of the schedule, which scales the present rate less the floor.  None: the
           schedule overwrites the rates of other schedules
    """

    saved: ClassVar = {"steps": int, "base": _rates}

    def __init__(self, optimizer: Optimizer, rate: Rate, floor: float | None = 0.0) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.base = optimizer.rates
        self.rate = rate
        self.floor = floor
        optimizer.rates = self.rates(0)

    def step(self) -> None:
        """Count a step, and set the optimizer's learning rates."""
        before, after = self.rates(self.steps), self.rates(self.steps + 1)
        self.steps += 1
        changes = zip(self.optimizer.rates, before, after, strict=True)
        self.optimizer.rates = [self._changed(*change) for change in changes]

    def rates(self, steps: int) -> list[float]:
        """Return the rates after a number of steps if nothing else changes them."""
        return [self.rate(base, steps) for base in self.base]

    def _changed(self, rate: float, before: float, after: float) -> float:
        """Return the next value of a rate: `after`, if nothing else changed it from `before`."""
        low = self.floor
        if rate == before or low is None:
            return after
        if before == low:
            return rate + after - low
        return max(low + (rate - low) * (after - low) / (before - low), 0.0)


@checked
def step(optimizer: OptimizerArgument, step_size: Count, gamma: float = 0.1) -> StepSchedule:
    """Return a schedule that multiplies the rate by `gamma` every `step_size` steps (StepLR).

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.step(sgd, step_size=2, gamma=0.5)
    >>> for _ in range(3):
    ...     schedule.step()
    ...     print(sgd.lr)
    1.0
    0.5
    0.5
    """
    return StepSchedule(optimizer, lambda base, t: base * gamma ** (t // step_size))


@checked
def multi_step(
    optimizer: OptimizerArgument, milestones: Integers, gamma: float = 0.1
) -> StepSchedule:
    """Return a schedule that multiplies the rate by `gamma` after each milestone (MultiStepLR).

    milestones  numbers of steps; a repeated one counts as often

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.multi_step(sgd, milestones=[1, 3], gamma=0.5)
    >>> [schedule.rates(t) for t in range(4)]
    [[1.0], [0.5], [0.5], [0.25]]
    """
    return StepSchedule(optimizer, lambda base, t: base * gamma ** sum(m <= t for m in milestones))


@checked
def exponential(optimizer: OptimizerArgument, gamma: float) -> StepSchedule:
    """Return a schedule that multiplies the rate by `gamma` in each step (ExponentialLR).

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> optim.schedules.exponential(sgd, gamma=0.5).rates(2)
    [0.25]
    """
    return StepSchedule(optimizer, lambda base, t: base * gamma**t)


@checked
def cosine(optimizer: OptimizerArgument, T_max: Count, eta_min: float = 0.0) -> StepSchedule:
    """Return a schedule that falls to `eta_min` in `T_max` steps along half a cosine.

    CosineAnnealingLR; I. Loshchilov and F. Hutter (2017), SGDR, without restarts.

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> optim.schedules.cosine(sgd, T_max=2).rates(1)
    [0.5]
    """

    def rate(base: float, t: int) -> float:
        return eta_min + (base - eta_min) * (1 + math.cos(math.pi * t / T_max)) / 2

    return StepSchedule(optimizer, rate, floor=eta_min)


class WarmUp(StepSchedule):
    """Rates that rise, and then those of another schedule."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int, start_factor: float, after: Resumable | None
    ) -> None:
        if isinstance(after, StepSchedule):
            optimizer.rates = after.base
        self.total, self.after = total_iters, after

        def rate(base: float, t: int) -> float:
            return base * (start_factor + (1 - start_factor) * min(t / total_iters, 1))

        super().__init__(optimizer, rate)

    def step(self, *metric: float) -> None:
        """Count a step, and set the optimizer's learning rates.

        metric  for a plateau as the other schedule
        """
        if self.steps < self.total or self.after is None:
            super().step()
            if self.steps == self.total and isinstance(self.after, StepSchedule):
                self.optimizer.rates = self.after.rates(self.after.steps)
        else:
            self.steps += 1
            self.after.step(*metric)

    def state_dict(self) -> dict[str, Array]:
        inner = {} if self.after is None else self.after.state_dict()
        return {**super().state_dict(), **{f"after.{name}": x for name, x in inner.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.after is not None:  # first, so that an error sets nothing
            prefix = "after."
            inner = {n.removeprefix(prefix): x for n, x in state.items() if n.startswith(prefix)}
            self.after.load_state_dict(inner)
        super().load_state_dict(state)


@checked
def warmup(
    optimizer: OptimizerArgument,
    total_iters: Count = 5,
    start_factor: NotNegative = 1 / 3,
    after: ScheduleArgument | None = None,
) -> WarmUp:
    """Return a schedule that rises from `start_factor` of the rate to all of it (LinearLR).

    total_iters  the number of steps of the rise
    after        a schedule of the same optimizer, which begins after the rise; a `plateau` gets its
                 metric from `step(metric)` of the returned schedule

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> cosine = optim.schedules.cosine(sgd, T_max=100)
    >>> schedule = optim.schedules.warmup(sgd, total_iters=4, start_factor=0.2, after=cosine)
    >>> sgd.lr
    0.2
    """
    if after is not None and after.optimizer is not optimizer:
        raise GraphError("warmup: after is a schedule of another optimizer; pass the same to both")
    return WarmUp(optimizer, total_iters, start_factor, after)


@checked
def one_cycle(
    optimizer: OptimizerArgument,
    max_lr: float,
    total_steps: Annotated[int, at_least(2)],
    pct_start: Probability = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: Divisor = 25.0,
    final_div_factor: Divisor = 1e4,
) -> StepSchedule:
    """Return a schedule that rises to `max_lr` and falls far below its start (OneCycleLR).

    L. Smith and N. Topin (2018), Super-Convergence.  The rate starts at max_lr / div_factor, rises
    for the share `pct_start` of `total_steps`, and ends at its start / final_div_factor.  Momentum
    and betas do not change, as in torch with cycle_momentum=False.

    >>> sgd = optim.SGD([mg.Parameter([1.0])])
    >>> schedule = optim.schedules.one_cycle(sgd, max_lr=0.1, total_steps=100)
    >>> print(f"{sgd.lr:.3f}")
    0.004
    """
    low = max_lr / div_factor
    last = low / final_div_factor
    peak = pct_start * total_steps - 1

    def between(start: float, end: float, part: float) -> float:
        if anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))

    def rate(base: float, t: int) -> float:
        t = min(t, total_steps - 1)
        if t < peak:
            return between(low, max_lr, t / peak)
        if t == peak:  # may be the first step, or the last
            return max_lr
        return between(max_lr, last, (t - peak) / (total_steps - 1 - peak))

    schedule = StepSchedule(optimizer, rate, floor=None)
    schedule.base = [low for _ in schedule.base]
    return schedule


@dataclass(eq=False, repr=False)
class Plateau(Resumable):
    """A learning rate that falls when a metric stops getting better (ReduceLROnPlateau).

    bad      number of steps in a row that were not better
    resting  remaining steps of the cooldown
    """

    optimizer: Optimizer
    is_better: Callable[[float, float], bool]
    best: float
    factor: float
    patience: int
    cooldown: int
    min_lr: float
    bad: int = 0
    resting: int = 0

    saved: ClassVar = {"best": float, "bad": int, "resting": int}

    def step(self, metric: float) -> None:
        """Compare a metric with the best; lower the rates after `patience` that were not better."""
        value = float(metric)
        if self.is_better(value, self.best):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.resting:
            self.resting -= 1
            self.bad = 0
        if self.bad > self.patience:
            rates = self.optimizer.rates
            lowered = [max(lr * self.factor, self.min_lr) for lr in rates]
            self.optimizer.rates = [
                low if lr - low > 1e-8 else lr for lr, low in zip(rates, lowered, strict=True)
            ]
            self.resting, self.bad = self.cooldown, 0


@checked
def plateau(
    optimizer: OptimizerArgument,
    mode: Literal["min", "max"] = "min",
    factor: Fraction = 0.1,
    patience: Annotated[int, at_least(0)] = 10,
    threshold: float = 1e-4,
    threshold_mode: Literal["rel", "abs"] = "rel",
    cooldown: Annotated[int, at_least(0)] = 0,
    min_lr: float = 0.0,
) -> Plateau:
    """Return a schedule that multiplies the rate by `factor` when a metric stops getting better.

    Its `step(metric)` counts the steps that are not better by `threshold` ("rel": of the best so
    far); more than `patience` of them in a row lower the rate, and then `cooldown` steps do not
    count.

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.plateau(sgd, patience=1)
    >>> for loss in (0.5, 0.5, 0.5):
    ...     schedule.step(loss)
    >>> sgd.lr
    0.1
    """
    sign = 1 if mode == "min" else -1

    def better(value: float, best: float) -> bool:
        margin = threshold * abs(best) if threshold_mode == "rel" else threshold
        return sign * value < sign * best - (margin if math.isfinite(best) else 0)

    return Plateau(optimizer, better, sign * math.inf, factor, patience, cooldown, min_lr)
