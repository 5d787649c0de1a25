"""The plan: what is to be measured, and the commands that run the sides of a case."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from minigraph.bench.cases import NETWORKS
from minigraph.bench.precision import PRECISIONS
from minigraph.bench.results import EAGER, LAST, LEVELS, OTHER, UNTUNED
from minigraph.bench.worker import Task

MACHINE = "machine"  # the side that is none: the probe
TUNED = 2  # the least level that measures algorithms


@dataclass(frozen=True)
class Peer:
    """A library in one way of using it.

    file        of this package, which runs it
    settings    of its sides
    precisions  in which it is compared with
    on_cuda     its settings for networks there, where a start may take minutes; empty: all
    """

    library: str
    file: str
    settings: Sequence[str]
    precisions: Collection[str] = tuple(PRECISIONS)
    on_cuda: Sequence[str] = ()

    def sides(self, model: str, device: str) -> Sequence[str]:
        """Return the settings in which it runs a case."""
        if model not in NETWORKS:  # an expression has no channels
            return [setting for setting in self.settings if LAST not in setting]
        return (device != "cpu" and self.on_cuda) or self.settings


PEERS = {
    "torch": Peer("torch", "torch_peer", ("", LAST)),
    "torch.compile": Peer(
        *("torch", "torch_peer", ("compiled", f"compiled, {LAST}")), on_cuda=(f"compiled, {LAST}",)
    ),
    "jax": Peer("jax", "jax_peer", ("",), [name for name, p in PRECISIONS.items() if p.jax]),
}


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    untuned  run the levels that measure algorithms without measuring, too
    repeats  turns of each side
    warmup   turns before them, at most
    limit    seconds of a case's turns, after which no new round begins
    budget   seconds of tuning a compile
    twice    start each side in two processes: with nothing on disk, then with what the first left
    """

    models: Sequence[str]
    levels: Sequence[int]
    peers: Sequence[str]
    device: str
    threads: int
    batch_size: int | None
    quick: bool
    precision: str
    untuned: bool
    repeats: int
    warmup: int
    limit: float
    budget: float
    twice: bool

    def task(self, model: str, setting: str) -> Task:
        return Task(
            case=model,
            setting=setting,
            device=self.device,
            threads=self.threads,
            batch_size=self.batch_size,
            quick=self.quick,
            precision=self.precision,
            budget=self.budget,
        )


def missing(plan: Plan) -> dict[str, str]:
    """Return the libraries that were asked for and cannot be compared with, and why."""
    found = {}
    for peer in map(PEERS.__getitem__, plan.peers):
        if find_spec(peer.library) is None:
            found[peer.library] = "is not installed"
        elif plan.precision not in peer.precisions:
            found[peer.library] = f"is not measured in {plan.precision}"
    return found


def sides(plan: Plan, model: str, missing: Collection[str]) -> dict[str, list[str]]:
    """Return the command of each side of a case, by name, the machine itself first."""

    def command(file: str, setting: str) -> list[str]:
        task = json.dumps(asdict(plan.task(model, setting)))
        return [sys.executable, "-m", f"minigraph.bench.{file}", task]

    settings = [str(level) for level in plan.levels]
    if plan.untuned and model in NETWORKS:  # in an expression there is nothing to tune
        settings += [f"{level}{UNTUNED}" for level in plan.levels if level >= TUNED]
    found = {MACHINE: command("probe", "")}
    found |= {f"level {setting}": command("ours", setting) for setting in settings}
    for name in plan.peers:
        peer = PEERS[name]
        if peer.library in missing:
            continue
        for setting in peer.sides(model, plan.device):
            found[f"{name}, {LAST}" if LAST in setting else name] = command(peer.file, setting)
    return found


def followed(plan: Plan, model: str, names: Collection[str]) -> list[str]:
    """Return those of the sides whose losses are compared: the highest level, and PyTorch's."""
    levels = [name for level in LEVELS if (name := f"level {level}") in names]
    if plan.quick or model not in NETWORKS or not levels or EAGER not in names:
        return []
    return [levels[-1], EAGER, *([OTHER] if OTHER in names else [])]
