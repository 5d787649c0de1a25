"""How long a run takes, roughly: what the progress bar has to know before it begins."""

from __future__ import annotations

from minigraph.bench.cases import Case
from minigraph.bench.losses import STEPS
from minigraph.bench.plan import Plan, followed, missing, sides
from minigraph.bench.scale import scale

TURN = 0.2  # seconds of a turn besides its step


def step_cost(plan: Plan, subject: Case) -> float:
    """Return about how many seconds a step takes, should it compute a lot."""
    return subject.flops / scale(plan.device).speed


def turn_cost(plan: Plan, subject: Case) -> float:
    """Return about how many seconds a turn of a case takes."""
    return TURN + step_cost(plan, subject)


def start_cost(plan: Plan, name: str) -> float:
    """Return about how many seconds the start of a side takes."""
    usual, compiled = scale(plan.device).starts
    return (compiled if name.startswith("torch.compile") else usual) * (1 + plan.twice)


def losses_cost(plan: Plan, subject: Case) -> float:
    """Return about how many seconds a side takes for its first losses."""
    usual, _ = scale(plan.device).starts
    return usual + STEPS * step_cost(plan, subject)


def cost(plan: Plan) -> float:
    """Return about how many seconds it all takes, as `measure.run` says bit by bit."""
    total, absent = 0.0, missing(plan)
    for model in plan.models:
        subject, names = plan.task(model, "").subject, sides(plan, model, absent)
        turns = (plan.warmup + plan.repeats) * turn_cost(plan, subject)
        total += sum(start_cost(plan, name) + turns for name in names)
        total += len(followed(plan, model, names)) * losses_cost(plan, subject)
    return total
