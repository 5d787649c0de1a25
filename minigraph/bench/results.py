"""Results: every sample with the machine, the versions and the options, as JSON and back."""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.cache.machine import processor
from minigraph.devices.cpu import onednn
from minigraph.errors import GraphError
from minigraph.options import cpus
from minigraph.version import __version__

FILE = "results.json"
PACKAGES = ("torch", "jax")
NOISY = 0.15
LEVELS = (0, 1, 2, 3)
UNTUNED = ", untuned"  # what the name of a level's side ends with
LAST = "channels last"
EAGER = "torch"  # the side whose losses ours are compared with
OTHER = f"{EAGER}, {LAST}"  # the same library, for how far apart losses are that should be equal


@dataclass
class SideResult:
    """What one side of a case gave.

    seconds  of a step, one for each turn
    warmup   turns before those, until the times settled
    cold     seconds from an imported library to the end of the first call, nothing being on disk
    warm     the same in a second process; None if there was none
    peak     bytes of memory
    kernels  seconds of one call by kernel
    error    what ended it early; empty if nothing did
    losses   of the first steps, of the sides that were asked for them
    lost     why there are none, though it was asked; empty if there are
    """

    seconds: list[float] = field(default_factory=list)
    warmup: int = 0
    cold: float | None = None
    warm: float | None = None
    peak: int | None = None
    kernels: dict[str, float] = field(default_factory=dict)
    error: str = ""
    losses: list[float] = field(default_factory=list)
    lost: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def scatter(self) -> float:
        """The distance between the quartiles, in seconds."""
        return _scatter(self.seconds)

    @property
    def spread(self) -> float:
        """The scatter over the median."""
        return self.scatter / self.median


def _scatter(seconds: Sequence[float]) -> float:
    if len(seconds) < 4:
        return max(seconds) - min(seconds)
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low


def differ(a: SideResult, b: SideResult) -> bool:
    """Return whether two sides differ by more than either scatters; one turn shows nothing."""
    if min(len(a.seconds), len(b.seconds)) < 2:
        return False
    return abs(a.median - b.median) > max(a.scatter, b.scatter)


@dataclass
class ProbeResult:
    """What one step of the probe gave.

    bytes    that it moves
    flops    operations that it computes
    seconds  of a step, one for each turn
    """

    bytes: int
    flops: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class CaseResult:
    """What one case gave.

    images     in a step; 0 for an expression
    published  MegBrain's speed over its level 0, by level
    sides      by name: "level 3", "level 3, untuned", "torch.compile, channels last"
    machine    what bounds everything, by name; see `bound`
    """

    title: str
    images: int
    bytes: int
    flops: int
    published: dict[str, float] = field(default_factory=dict)
    sides: dict[str, SideResult] = field(default_factory=dict)
    machine: dict[str, ProbeResult] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, SideResult]:
        return {name: side for name, side in self.sides.items() if side.seconds}

    def levels(self) -> dict[int, SideResult]:
        """Return minigraph's tuned sides that were measured, by level."""
        return self._levels("")

    def untuned(self) -> dict[int, SideResult]:
        """Return minigraph's untuned sides that were measured, by level."""
        return self._levels(UNTUNED)

    def _levels(self, suffix: str) -> dict[int, SideResult]:
        found = {level: self.measured.get(f"level {level}{suffix}") for level in LEVELS}
        return {level: side for level, side in found.items() if side is not None}

    def best_peer(self) -> tuple[str, SideResult] | None:
        """Return the fastest side that is not minigraph's; None if there is none."""
        measured = self.measured.items()
        peers = [(n, s) for n, s in measured if not n.startswith("level ") and not s.error]
        return min(peers, key=lambda peer: peer[1].median, default=None)


@dataclass
class Results:
    """One run of the benchmark.

    options  as asked for on the command line
    missing  libraries of peers that were asked for and not measured, with the reason
    """

    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    options: dict[str, Any]
    missing: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    cases: dict[str, CaseResult] = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """The median over all sides of the spread of their samples."""
        spreads = [side.spread for case in self.cases.values() for side in case.measured.values()]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY

    def data(self) -> dict[str, Any]:
        """Return this as what JSON knows."""
        return asdict(self)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(self.data(), indent=1) + "\n")


def begin(options: dict[str, Any]) -> Results:
    """Return results without any case, of this machine and now."""
    library = onednn.library()
    versions = {
        "minigraph": __version__,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "oneDNN": library.version if library else "none",
    }
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    machine = {"processor": processor(), "cpus": cpus(), "memory": _memory()}
    return Results(datetime.date.today().isoformat(), machine, versions, options)


def _memory() -> int | None:
    """Return the bytes of memory of this machine; None where nobody says."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read(folder: Path) -> Results:
    """Return the results in a folder; GraphError if there are none that can be read."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text())
        found["cases"] = {name: _case(data) for name, data in found["cases"].items()}
        return Results(**found)
    except FileNotFoundError:
        raise GraphError(f"there is no {path}; minigraph bench --out {folder} makes one") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise GraphError(f"{path} holds no results of minigraph bench ({error})") from None


def _case(data: dict[str, Any]) -> CaseResult:
    sides = {name: SideResult(**side) for name, side in data.pop("sides").items()}
    machine = {name: ProbeResult(**step) for name, step in data.pop("machine").items()}
    return CaseResult(**data, sides=sides, machine=machine)
