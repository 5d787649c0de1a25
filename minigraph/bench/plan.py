"""The plan of a run: its cases, and the sides of each case with their commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec

from minigraph.bench.cases import DEFAULT_PRECISION, EXPRESSIONS, PRECISIONS, PREDICTIONS
from minigraph.bench.networks import MODEL, name_of
from minigraph.bench.results import (
    BY_MINIGRAPH,
    CHANNELS_LAST,
    EAGER,
    EAGER_LAST,
    FRONTEND_PREFIX,
    LEVEL_PREFIX,
    LEVELS,
    UNFROZEN_SUFFIX,
    UNTUNED_SUFFIX,
)
from minigraph.bench.worker import Task
from minigraph.platform.records import encode

MIN_TUNED_LEVEL = 2  # the lowest level that measures algorithms


@dataclass(frozen=True)
class Peer:
    """A way of using a library.

    library     which must be installed
    program     the module of this package that runs it
    settings    one for each of its sides
    precisions  that it supports
    runs        whether it runs a case, on a kind of device
    """

    library: str
    program: str
    settings: Sequence[str] = ("",)
    precisions: Collection[str] = tuple(PRECISIONS)
    runs: Callable[[str, str], bool] = lambda model, device: not model.endswith(MODEL)

    def settings_of(self, model: str, device: str) -> Sequence[str]:
        """Return the settings in which it runs a case, if any."""
        if not self.runs(model, device):
            return ()
        if model in EXPRESSIONS:  # which have no channels
            return [setting for setting in self.settings if CHANNELS_LAST not in setting]
        return self.settings

    def unusable(self, precision: str) -> str:
        """Return why it cannot run on this machine or in this precision; "" if it can."""
        if find_spec(self.library) is None:
            return f"is not installed (pip install {self.library})"
        return "" if precision in self.precisions else f"is not measured in {precision}"


FASTEST_TORCH_SETTING = f"compiled, {CHANNELS_LAST}"
PEERS = {
    "torch": Peer("torch", "torch_peer", ("", CHANNELS_LAST)),
    "torch.compile": Peer("torch", "torch_peer", ("compiled", FASTEST_TORCH_SETTING)),
    "jax": Peer(
        "jax",
        "jax_peer",
        precisions=[name for name, p in PRECISIONS.items() if p.jax],
        runs=lambda model, device: model in (*EXPRESSIONS, "mlp"),
    ),
    "onnxruntime": Peer(
        "onnxruntime",
        "onnx_peer",
        precisions=(DEFAULT_PRECISION,),
        runs=lambda model, device: model.endswith(MODEL) and device == "cpu",
    ),
    f"{FRONTEND_PREFIX}torch": Peer(
        "torch",
        "torch_frontend",
        runs=lambda model, device: not model.endswith(MODEL) and model not in EXPRESSIONS,
    ),
    f"{FRONTEND_PREFIX}compile": Peer(
        "torch", "torch_peer", (BY_MINIGRAPH,), precisions=(DEFAULT_PRECISION,)
    ),
}
OTHER_LIBRARIES = tuple(name for name in PEERS if not name.startswith(FRONTEND_PREFIX))


@dataclass(frozen=True)
class Plan:
    """The cases and sides of a run, and its limits.

    budget   seconds of tuning per compile
    untuned  whether to run tuned levels also without tuning
    repeats  turns of each side, if the time suffices
    minutes  limit of the run
    twice    whether to start each side in two processes: with empty caches, then with the first's
    named    whether the user named the peers, so that unsupported cases are reported
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
    minutes: int
    twice: bool
    named: bool = False

    def task(self, model: str, setting: str = "") -> Task:
        shared = [f.name for f in fields(Task) if f.name not in ("case", "setting")]
        return Task(model, setting, **{name: getattr(self, name) for name in shared})

    def missing(self) -> dict[str, str]:
        """Return the requested libraries that cannot be measured, each with the reason."""
        reasons = {}
        for peer in map(PEERS.__getitem__, self.peers):
            unsupported = [m for m in self.models if not peer.settings_of(m, self.device)]
            why = "" if len(unsupported) == len(self.models) else peer.unusable(self.precision)
            if not why and unsupported and self.named:
                why = f"does not run {', '.join(map(name_of, unsupported))} on {self.device}"
            if why:
                reasons[peer.library] = why
        return reasons

    def sides(self, model: str) -> dict[str, list[str]]:
        def command(program: str, setting: str) -> list[str]:
            task = encode(self.task(model, setting))
            return [sys.executable, "-m", f"minigraph.bench.{program}", task]

        settings = [str(level) for level in self.levels]
        if self.untuned and model not in EXPRESSIONS:  # which have nothing to tune
            settings += [
                f"{level}{UNTUNED_SUFFIX}" for level in self.levels if level >= MIN_TUNED_LEVEL
            ]
        if model in PREDICTIONS:
            settings.append(f"{max(self.levels)}{UNFROZEN_SUFFIX}")
        commands = {LEVEL_PREFIX + setting: command("ours", setting) for setting in settings}
        for name in self.peers:
            peer = PEERS[name]
            usable = not peer.unusable(self.precision)
            for setting in peer.settings_of(model, self.device) if usable else ():
                side = f"{name}, {CHANNELS_LAST}" if CHANNELS_LAST in setting else name
                commands[side] = command(peer.program, setting)
        return commands


def by_priority(names: Collection[str]) -> list[str]:
    """Return sides in the order of their start: when time runs out, the last ones are left out.

    The highest level and the usually fastest peer, which can be compared, come first.
    """
    levels = [name for level in LEVELS if (name := f"{LEVEL_PREFIX}{level}") in names]
    first = [*levels[-1:], EAGER_LAST, EAGER, *levels[:1]]
    return list(dict.fromkeys(name for name in (*first, *names) if name in names))
