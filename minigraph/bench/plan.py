"""The plan: what is to be measured, by which commands, and how long that takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

from minigraph.bench.cases import LOSSES, NETWORKS, PRECISIONS, Case, scale
from minigraph.bench.results import CHANNELS_LAST, EAGER, EAGER_LAST, LEVELS, UNTUNED
from minigraph.bench.worker import Task

MACHINE = "machine"  # the name of the probe, which is no side
TUNED = 2  # the lowest level that measures algorithms
TURN = 0.2  # seconds of a turn besides its step


@dataclass(frozen=True)
class Peer:
    """A library in one way of using it.

    program     the module of this package that runs it
    settings    one for each of its sides
    precisions  those that it has
    on_cuda     its settings for networks on a GPU, where a start may take minutes; empty: all
    """

    library: str
    program: str
    settings: Sequence[str]
    precisions: Collection[str] = tuple(PRECISIONS)
    on_cuda: Sequence[str] = ()

    def sides(self, model: str, device: str) -> Sequence[str]:
        """Return the settings in which it runs a case."""
        if model not in NETWORKS:  # an expression has no channels
            return [setting for setting in self.settings if CHANNELS_LAST not in setting]
        return (device != "cpu" and self.on_cuda) or self.settings


BEST = f"compiled, {CHANNELS_LAST}"
PEERS = {
    "torch": Peer("torch", "torch_peer", ("", CHANNELS_LAST)),
    "torch.compile": Peer("torch", "torch_peer", ("compiled", BEST), on_cuda=(BEST,)),
    "jax": Peer("jax", "jax_peer", ("",), [name for name, p in PRECISIONS.items() if p.jax]),
}


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    budget   seconds of tuning per compile
    untuned  also run the levels that measure algorithms without measuring
    repeats  turns of each side
    warmup   turns before them, at most
    limit    seconds of a case's turns, after which no new round begins
    twice    start each side in two processes: with empty caches, then with those of the first
    """

    models: Sequence[str]
    levels: Sequence[int]
    peers: Sequence[str]
    device: str
    threads: int
    batch_size: int | None
    quick: bool
    precision: str
    budget: float
    untuned: bool
    repeats: int
    warmup: int
    limit: float
    twice: bool

    def task(self, model: str, setting: str = "") -> Task:
        """Return what a worker has to do for a side of a case."""
        own: dict[str, Any] = {"case": model, "setting": setting}
        shared = {f.name for f in fields(Task)} - own.keys()
        return Task(**own, **{name: getattr(self, name) for name in shared})

    def missing(self) -> dict[str, str]:
        """Return the libraries that were asked for and cannot be measured, each with the reason."""
        reasons = {}
        for peer in map(PEERS.__getitem__, self.peers):
            if find_spec(peer.library) is None:
                reasons[peer.library] = "is not installed"
            elif self.precision not in peer.precisions:
                reasons[peer.library] = f"is not measured in {self.precision}"
        return reasons

    def sides(self, model: str) -> dict[str, list[str]]:
        """Return the command of each side of a case, by name, that of the probe first."""

        def command(program: str, setting: str) -> list[str]:
            task = json.dumps(asdict(self.task(model, setting)))
            return [sys.executable, "-m", f"minigraph.bench.{program}", task]

        settings = [str(level) for level in self.levels]
        if self.untuned and model in NETWORKS:  # an expression has nothing to tune
            settings += [f"{level}{UNTUNED}" for level in self.levels if level >= TUNED]
        commands = {MACHINE: command("probe", "")}
        commands |= {f"level {setting}": command("ours", setting) for setting in settings}
        missing = self.missing()
        for name in self.peers:
            peer = PEERS[name]
            if peer.library not in missing:
                for setting in peer.sides(model, self.device):
                    side = f"{name}, {CHANNELS_LAST}" if CHANNELS_LAST in setting else name
                    commands[side] = command(peer.program, setting)
        return commands

    def compared(self, model: str, names: Collection[str]) -> list[str]:
        """Return the sides whose losses are compared: the highest level, and PyTorch's."""
        levels = [name for level in LEVELS if (name := f"level {level}") in names]
        if self.quick or model not in NETWORKS or not levels or EAGER not in names:
            return []
        return [levels[-1], EAGER, *([EAGER_LAST] if EAGER_LAST in names else [])]

    # The progress bar has to know before anything runs how many seconds it takes, roughly.

    def turn_seconds(self, subject: Case) -> float:
        """Return the seconds of a turn."""
        return TURN + subject.flops / scale(self.device).speed

    def start_seconds(self, name: str) -> float:
        """Return the seconds until a side is ready."""
        usual, compiled = scale(self.device).starts
        return (compiled if name.startswith("torch.compile") else usual) * (1 + self.twice)

    def losses_seconds(self, subject: Case) -> float:
        """Return the seconds of a side's first losses."""
        usual, _ = scale(self.device).starts
        return usual + LOSSES * subject.flops / scale(self.device).speed

    def seconds(self) -> float:
        """Return the seconds of all that `measure` does."""
        total = 0.0
        for model in self.models:
            subject, names = self.task(model).subject, self.sides(model)
            turns = (self.warmup + self.repeats) * self.turn_seconds(subject)
            total += sum(self.start_seconds(name) + turns for name in names)
            total += len(self.compared(model, names)) * self.losses_seconds(subject)
        return total
