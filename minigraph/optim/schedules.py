"""Schedules of the learning rate, as in `torch.optim.lr_scheduler`.

`schedule.step()`, after each epoch or each call, sets `optimizer.lr`, which compiles nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from minigraph import habits
from minigraph.arguments import Count, Integers, Kind, at_least, checked
from minigraph.errors import GraphError
from minigraph.graph import Array
from minigraph.optim.optimizer import Optimizer, within

__all__ = ["cosine", "exponential", "multi_step", "one_cycle", "plateau", "step", "warmup"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # else no wrong name would be found
    __getattr__ = habits.of_module(__name__, habits.OF_SCHEDULES)

Rate = Callable[[float, int], float]  # of the rate to begin with, and of the steps done


def _optimizer(value: Any) -> Optimizer[Any]:
    if not isinstance(value, Optimizer):
        raise TypeError
    return value


SomeOptimizer = Annotated[Optimizer[Any], Kind("an optimizer", _optimizer)]


class Resumable:
    """What goes on from the arrays that it gave, which a checkpoint keeps.

    kept  for each attribute the type of its number
    """

    kept: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def state_dict(self) -> dict[str, Array]:
        """Return what a resumed training needs, as arrays."""
        return {name: np.array(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict()` was taken."""
        try:
            found = {name: number(state[name]) for name, number in self.kept.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise GraphError(f"load_state_dict: no state of a schedule ({error!r})") from None
        vars(self).update(found)


class Schedule(Resumable):
    """A learning rate that depends on how many steps were done.

    base   the rate to begin with
    steps  how many were done
    """

    kept: ClassVar = {"steps": int, "base": float}

    def __init__(self, optimizer: Optimizer[Any], rate: Rate) -> None:
        self.optimizer = optimizer
        self.steps = 0
        self.base = optimizer.lr
        self.rate = rate
        self._set()

    def step(self) -> None:
        """Count a step, and set the optimizer's learning rate."""
        self.steps += 1
        self._set()

    def _set(self) -> None:
        self.optimizer.lr = self.rate(self.base, self.steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._set()


@checked
def step(optimizer: SomeOptimizer, step_size: Count, gamma: float = 0.1) -> Schedule:
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
    return Schedule(optimizer, lambda base, t: base * gamma ** (t // step_size))


@checked
def multi_step(optimizer: SomeOptimizer, milestones: Integers, gamma: float = 0.1) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` after each milestone (MultiStepLR).

    milestones  numbers of steps; one that is there twice counts twice

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.multi_step(sgd, milestones=[1, 3], gamma=0.5)
    >>> for _ in range(3):
    ...     schedule.step()
    ...     print(sgd.lr)
    0.5
    0.5
    0.25
    """

    def rate(base: float, t: int) -> float:
        return base * gamma ** sum(milestone <= t for milestone in milestones)

    return Schedule(optimizer, rate)


@checked
def exponential(optimizer: SomeOptimizer, gamma: float) -> Schedule:
    """Return a schedule that multiplies the rate by `gamma` in each step (ExponentialLR).

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.exponential(sgd, gamma=0.5)
    >>> for _ in range(2):
    ...     schedule.step()
    ...     print(sgd.lr)
    0.5
    0.25
    """
    return Schedule(optimizer, lambda base, t: base * gamma**t)


@checked
def cosine(optimizer: SomeOptimizer, T_max: Count, eta_min: float = 0.0) -> Schedule:
    """Return a schedule that falls to `eta_min` in `T_max` steps along half a cosine.

    CosineAnnealingLR; I. Loshchilov and F. Hutter (2017), SGDR, without restarts.

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> schedule = optim.schedules.cosine(sgd, T_max=2)
    >>> for _ in range(2):
    ...     schedule.step()
    ...     print(f"{sgd.lr:.2f}")
    0.50
    0.00
    """

    def rate(base: float, t: int) -> float:
        return eta_min + (base - eta_min) * (1 + math.cos(math.pi * t / T_max)) / 2

    return Schedule(optimizer, rate)


@checked
def warmup(
    optimizer: SomeOptimizer,
    total_iters: Count = 5,
    start_factor: float = 1 / 3,
    after: Schedule | None = None,
) -> Schedule:
    """Return a schedule that rises from `start_factor` of the rate to all of it (LinearLR).

    total_iters  steps that it takes
    after        a schedule of the same optimizer, which begins then

    >>> sgd = optim.SGD([mg.Parameter([1.0])], lr=1.0)
    >>> cosine = optim.schedules.cosine(sgd, T_max=100)
    >>> schedule = optim.schedules.warmup(sgd, total_iters=4, start_factor=0.2, after=cosine)
    >>> sgd.lr
    0.2
    """
    within("warmup: start_factor", start_factor)
    if after is not None:
        optimizer.lr = after.base

    def rate(base: float, t: int) -> float:
        if t < total_iters:
            return base * (start_factor + (1 - start_factor) * t / total_iters)
        return base if after is None else after.rate(after.base, t - total_iters)

    return Schedule(optimizer, rate)


@checked
def one_cycle(
    optimizer: SomeOptimizer,
    max_lr: float,
    total_steps: Annotated[int, at_least(2)],
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Return a schedule that rises to `max_lr` and falls far below where it began (OneCycleLR).

    L. Smith and N. Topin (2018), Super-Convergence.  Of `total_steps`, the share `pct_start` rises.
    It begins at max_lr / div_factor and ends at that / final_div_factor.  It leaves momentum
    alone, as torch's does with cycle_momentum=False only: else that changes momentum or betas, too.

    >>> sgd = optim.SGD([mg.Parameter([1.0])])
    >>> schedule = optim.schedules.one_cycle(sgd, max_lr=0.1, total_steps=100)
    >>> print(f"{sgd.lr:.3f}")
    0.004
    """
    within("one_cycle: pct_start", pct_start, high=1 + 1e-9)
    low = max_lr / within("one_cycle: div_factor", div_factor, low=1e-9)
    last = low / within("one_cycle: final_div_factor", final_div_factor, low=1e-9)
    peak = pct_start * total_steps - 1

    def between(start: float, end: float, part: float) -> float:
        if anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2 * (1 + math.cos(math.pi * part))

    def rate(base: float, t: int) -> float:
        t = min(t, total_steps - 1)
        if t < peak:
            return between(low, max_lr, t / peak)
        if t == peak:  # which may be the first step, or the last
            return max_lr
        return between(max_lr, last, (t - peak) / (total_steps - 1 - peak))

    return Schedule(optimizer, rate)


class Plateau(Resumable):
    """A learning rate that falls when a metric stops getting better (ReduceLROnPlateau)."""

    kept: ClassVar = {"best": float, "bad": int, "resting": int}

    def __init__(
        self,
        optimizer: Optimizer[Any],
        better: Callable[[float, float], bool],
        worst: float,
        factor: float,
        patience: int,
        cooldown: int,
        min_lr: float,
    ) -> None:
        self.optimizer = optimizer
        self.best = worst
        self.bad = 0  # steps in a row that were not better
        self.resting = 0  # steps in which nothing is counted yet
        self._better = better
        self._factor, self._patience, self._cooldown = factor, patience, cooldown
        self._min_lr = min_lr

    def step(self, metric: float) -> None:
        """Take note of a metric, and lower the optimizer's learning rate if it is time to."""
        value = float(metric)
        if self._better(value, self.best):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.resting:
            self.resting -= 1
            self.bad = 0
        if self.bad > self._patience:
            lr = max(self.optimizer.lr * self._factor, self._min_lr)
            if self.optimizer.lr - lr > 1e-8:
                self.optimizer.lr = lr
            self.resting, self.bad = self._cooldown, 0


@checked
def plateau(
    optimizer: SomeOptimizer,
    mode: Literal["min", "max"] = "min",
    factor: float = 0.1,
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
    within("plateau: factor", factor, high=1)
    sign = 1 if mode == "min" else -1

    def better(value: float, best: float) -> bool:
        margin = threshold * abs(best) if threshold_mode == "rel" else threshold
        return sign * value < sign * best - (margin if math.isfinite(best) else 0)

    return Plateau(optimizer, better, sign * math.inf, factor, patience, cooldown, min_lr)
