"""The plan: what is to be measured, by which commands, and how long that takes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any

from minigraph.bench.cases import (
    EXPRESSIONS,
    LOSSES,
    PRECISIONS,
    PREDICTIONS,
    USUAL,
    Case,
    is_network,
    scale,
)
from minigraph.bench.limit import limit
from minigraph.bench.own_network import name_of
from minigraph.bench.results import (
    CHANNELS_LAST,
    EAGER,
    EAGER_LAST,
    LEVELS,
    PROCESSES,
    UNFROZEN,
    UNTUNED,
)
from minigraph.bench.worker import LONG, MANY, Task
from minigraph.platform.records import encode

MACHINE = "machine"  # the name of the probe, which is no side
TUNED = 2  # the lowest level that measures algorithms
TURN = 0.2  # seconds of a turn besides its step
WARMUP = 1 / 3  # the share of the time for turns in which they may warm up
STARTING = 2  # steps that the first call of a network takes longer, roughly
TUNING = 15  # steps that tuning a network takes as long as, roughly
PROFILED = 5  # turns that the profile of a level takes as long as


@dataclass(frozen=True)
class Peer:
    """A library in one way of using it.

    libraries   that have to be installed, its own first
    program     the module of this package that runs it
    settings    one for each of its sides
    precisions  those that it has
    on_cuda     its settings for networks on a GPU, where a start may take minutes; empty: all
    cases       those that its program has; empty: all, and networks that users bring
    devices     those on which it is measured
    unlimited   whether it uses all instructions of the processor, whatever it is told
    """

    libraries: Sequence[str]
    program: str
    settings: Sequence[str]
    precisions: Collection[str] = tuple(PRECISIONS)
    on_cuda: Sequence[str] = ()
    cases: Collection[str] = ()
    devices: Collection[str] = ("cpu", "cuda")
    unlimited: bool = False

    def sides(self, model: str, device: str) -> Sequence[str]:
        """Return the settings in which it runs a case."""
        if self.cases and model not in self.cases:
            return ()
        if device.partition(":")[0] not in self.devices:
            return ()
        if model in EXPRESSIONS:  # which have no channels
            return [setting for setting in self.settings if CHANNELS_LAST not in setting]
        return (device != "cpu" and self.on_cuda) or self.settings


BEST = f"compiled, {CHANNELS_LAST}"
ONNX = "onnxruntime"
PEERS = {
    "torch": Peer(("torch",), "torch_peer", ("", CHANNELS_LAST)),
    "torch.compile": Peer(("torch",), "torch_peer", ("compiled", BEST), on_cuda=(BEST,)),
    "jax": Peer(
        ("jax",),
        "jax_peer",
        ("",),
        [name for name, p in PRECISIONS.items() if p.jax],
        cases=(*EXPRESSIONS, "mlp"),
    ),
    ONNX: Peer(
        (ONNX, "torch", "onnx"),
        "onnx_peer",
        ("",),
        (USUAL,),
        cases=PREDICTIONS,
        devices=("cpu",),
        unlimited=True,
    ),
}


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    threads    of a side that is one process; several processes share them
    processes  of the sides that train in several, beside the others; 1: there are none
    budget   seconds of tuning per compile
    untuned  also run the levels that measure algorithms without measuring
    repeats  turns of each side, where the time allows them
    minutes  after which the run has to end; None: as long as it takes where nothing else runs
    twice    start each side in two processes: with empty caches, then with those of the first
    named    whether the user named the peers, and wants to know what they do not run
    """

    models: Sequence[str]
    levels: Sequence[int]
    peers: Sequence[str]
    device: str
    threads: int
    processes: int
    batch_size: int | None
    quick: bool
    precision: str
    budget: float
    untuned: bool
    repeats: int
    minutes: int | None
    twice: bool
    named: bool = False

    def task(self, model: str, setting: str = "", processes: int = 1) -> Task:
        """Return what a worker has to do for a side of a case, in so many processes."""
        threads = max(1, self.threads // processes)
        own: dict[str, Any] = {"case": model, "setting": setting, "threads": threads}
        shared = {f.name for f in fields(Task)} - own.keys()
        return Task(**own, **{name: getattr(self, name) for name in shared})

    def missing(self) -> dict[str, str]:
        """Return the libraries that were asked for and cannot be measured, each with the reason."""
        reasons = {}
        for peer in map(PEERS.__getitem__, self.peers):
            lacking = [model for model in self.models if not peer.sides(model, self.device)]
            why = "" if len(lacking) == len(self.models) else self._unusable(peer)
            if not why and lacking and self.named:
                why = f"does not run {', '.join(map(name_of, lacking))} on {self.device}"
            if why:
                reasons[peer.libraries[0]] = why
        if self.processes > 1 and not self._launcher:
            reasons["several processes"] = "need mpiexec and mpi4py: pip install 'minigraph[mpi]'"
        return reasons

    def _unusable(self, peer: Peer) -> str:
        """Return why a peer can run nothing here; "" if it can."""
        library, *others = peer.libraries
        if find_spec(library) is None:
            return "is not installed"
        for name in others:
            if find_spec(name) is None:
                return f"needs {name}, which is not installed"
        if peer.unlimited and limit():
            return f"cannot be limited to {limit()}"
        if self.precision not in peer.precisions:
            return f"is not measured in {self.precision}"
        return ""

    def sides(self, model: str) -> dict[str, list[str]]:
        """Return the command of each side of a case, by name, that of the probe first."""

        def command(program: str, setting: str) -> list[str]:
            task = encode(self.task(model, setting))
            return [sys.executable, "-m", f"minigraph.bench.{program}", task]

        settings = [str(level) for level in self.levels]
        if self.untuned and model not in EXPRESSIONS:  # which have nothing to tune
            settings += [f"{level}{UNTUNED}" for level in self.levels if level >= TUNED]
        if model in PREDICTIONS:
            settings.append(f"{max(self.levels)}{UNFROZEN}")
        commands = {MACHINE: command("probe" if self.device == "cpu" else "cuda_probe", "")}
        commands |= {f"level {setting}": command("ours", setting) for setting in settings}
        for name in self.peers:
            peer = PEERS[name]
            if not self._unusable(peer):
                for setting in peer.sides(model, self.device):
                    side = f"{name}, {CHANNELS_LAST}" if CHANNELS_LAST in setting else name
                    commands[side] = command(peer.program, setting)
        return commands | self._launched(model)

    def _launched(self, model: str) -> dict[str, list[str]]:
        """Return the commands of the sides in several processes: the highest level, PyTorch."""
        if self.processes == 1 or not is_network(model) or not self._launcher:
            return {}

        def launch(program: str, setting: str) -> list[str]:
            task = encode(self.task(model, setting, self.processes))
            python = [sys.executable, "-m", f"minigraph.bench.{program}", task]
            return [self._launcher, "-n", str(self.processes), *python]

        many, level = f", {self.processes}{PROCESSES}", max(self.levels)
        commands = {f"level {level}{many}": launch("ours", str(level))}
        if EAGER in self.peers and not self._unusable(PEERS[EAGER]):
            commands[f"{EAGER_LAST}{many}"] = launch(PEERS[EAGER].program, CHANNELS_LAST)
        return commands

    @property
    def _launcher(self) -> str:
        """The path of the launcher of MPI; "" where there is none that could be used."""
        beside = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
        found = shutil.which("mpiexec", path=beside) if find_spec("mpi4py") else None
        return found or ""

    def compared(self, model: str, names: Collection[str]) -> list[str]:
        """Return the sides whose losses are compared: the highest level, and PyTorch's."""
        levels = [name for level in LEVELS if (name := f"level {level}") in names]
        if self.quick or not is_network(model) or not levels or EAGER not in names:
            return []
        return [levels[-1], EAGER, *([EAGER_LAST] if EAGER_LAST in names else [])]

    # How many seconds it takes, roughly, where nothing else runs.

    def turn_seconds(self, subject: Case) -> float:
        """Return the seconds of a turn."""
        calls = (MANY - LONG) * subject.latency
        return TURN + calls + subject.flops / scale(self.device).speed

    def start_seconds(self, name: str, subject: Case) -> float:
        """Return the seconds until a side is ready."""
        usual, compiled = scale(self.device).starts
        step = subject.flops / scale(self.device).speed
        seconds = compiled if name.startswith("torch.compile") else usual + STARTING * step
        tuned = [f"level {level}" for level in self.levels if level >= TUNED]
        if name.partition(", ")[0] in tuned and not name.endswith(UNTUNED):
            return seconds * (1 + self.twice) + min(self.budget, TUNING * step)
        return seconds * (1 + self.twice)

    def details_seconds(self, name: str, subject: Case) -> float:
        """Return the seconds in which a side says what it knows besides its times."""
        return PROFILED * self.turn_seconds(subject) if name.startswith("level ") else 0.0

    def losses_seconds(self, subject: Case) -> float:
        """Return the seconds of a side's first losses."""
        usual, _ = scale(self.device).starts
        return usual + LOSSES * subject.flops / scale(self.device).speed

    def ending_seconds(self, model: str, names: Collection[str]) -> float:
        """Return the seconds of what these sides of a case do after their turns."""
        subject = self.task(model).subject
        losses = len(self.compared(model, names)) * self.losses_seconds(subject)
        return losses + sum(self.details_seconds(name, subject) for name in names)

    def case_seconds(self, model: str) -> float:
        """Return the seconds of a case."""
        subject, names = self.task(model).subject, self.sides(model)
        count = self.repeats / (1 - WARMUP) + (model in PREDICTIONS)  # one batch is compared
        turns = count * self.turn_seconds(subject)
        starts = (self.start_seconds(name, subject) for name in names)
        return sum(starts) + turns * len(names) + self.ending_seconds(model, names)

    def seconds(self) -> float:
        """Return the seconds of the whole run."""
        return sum(map(self.case_seconds, self.models))

    @property
    def promised(self) -> float:
        """The seconds after which the run has to end."""
        return 60.0 * self.minutes if self.minutes else self.seconds()


def by_worth(names: Collection[str]) -> list[str]:
    """Return sides in the order in which they are started: if time runs out, the last are missing.

    First the highest level and the peer that is usually the fastest, which make a comparison.
    """
    levels = [name for level in LEVELS if (name := f"level {level}") in names]
    many = [name for name in names if name.endswith(PROCESSES)]
    first = [*levels[-1:], *many, ONNX, EAGER_LAST, EAGER, *levels[:1], MACHINE]
    return list(dict.fromkeys(name for name in (*first, *names) if name in names))
