"""Results: every sample with the machine, the versions and the options, as JSON and back."""

from __future__ import annotations

import datetime
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct, field, to_builtins
from msgspec.json import Decoder

from minigraph.bench.cases import CUBLAS, PRODUCT
from minigraph.bench.limit import limit
from minigraph.cache.machine import processor
from minigraph.devices.cpu import onednn
from minigraph.errors import GraphError
from minigraph.inspect.roofline import Bound
from minigraph.options import cpus
from minigraph.platform.records import decode, encode
from minigraph.platform.text_file import write_text
from minigraph.version import __version__

FILE = "results.json"
PACKAGES = ("torch", "jax", "onnxruntime")
NOISY = 0.15  # a spread above this is unusual
LEVELS = (0, 1, 2, 3)
PROCESSES = " processes"  # the end of the name of a side of several: "level 3, 2 processes"
UNTUNED = ", untuned"  # the end of the name of an untuned level's side
UNFROZEN = ", unfrozen"  # the same of a prediction's side whose parameters may change
CHANNELS_LAST = "channels last"
EAGER = "torch"  # the side whose losses are compared with minigraph's
EAGER_LAST = f"{EAGER}, {CHANNELS_LAST}"  # the same library, to show how far equal losses differ

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]


class SideResult(Struct, forbid_unknown_fields=True):
    """What one side of a case gave.

    seconds  of a step, one for each turn
    warmup   turns before those, until the times settled
    cold     seconds of the first call with empty caches, from after the library's import
    warm     the same in a second process; None if there was none
    peak     bytes of memory, of all its processes together
    hidden   the share of the shorter of computing and communicating by which its step is shorter
    p99      seconds that one of a hundred calls takes longer than, where that counts
    apart    the largest difference of its scores from another side's, over the largest score
    kernels  seconds of one call by kernel
    error    what ended it early, else empty
    losses   of the first steps of training, if the side was asked for them
    lost     why a side that was asked for losses gave none, else empty
    """

    seconds: list[Seconds] = field(default_factory=list)
    warmup: Count = 0
    cold: Seconds | None = None
    warm: Seconds | None = None
    peak: Count | None = None
    hidden: Annotated[float, Meta(ge=0, le=1)] | None = None
    p99: Seconds | None = None
    apart: Annotated[float, Meta(ge=0)] | None = None
    kernels: dict[str, float] = field(default_factory=dict)
    error: str = ""
    losses: list[float] = field(default_factory=list)
    lost: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def scatter(self) -> float:
        """The distance between the quartiles, in seconds; of few turns, between the extremes."""
        if len(self.seconds) < 4:
            return max(self.seconds) - min(self.seconds)
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return high - low

    @property
    def spread(self) -> float:
        """The scatter divided by the median."""
        return self.scatter / self.median

    def differs(self, other: SideResult) -> bool:
        """Return whether the medians differ by more than either scatter; one turn shows nothing."""
        if min(len(self.seconds), len(other.seconds)) < 2:
            return False
        return abs(self.median - other.median) > max(self.scatter, other.scatter)


class ProbeResult(Struct, forbid_unknown_fields=True):
    """What one step of the probe gave.

    bytes    that it moves
    flops    operations that it computes
    seconds  of a step, one for each turn
    """

    bytes: Count
    flops: Count
    seconds: list[Seconds] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class CaseResult(Struct, forbid_unknown_fields=True):
    """What one case gave.

    images     in a step; 0 for an expression
    published  MegBrain's speed relative to its level 0, by level
    sides      by name: "level 3", "level 3, untuned", "torch.compile, channels last"
    machine    what the probe gave, by the name of its step
    """

    title: str
    images: Count
    bytes: Count
    flops: Count
    published: dict[str, float] = field(default_factory=dict)
    sides: dict[str, SideResult] = field(default_factory=dict)
    machine: dict[str, ProbeResult] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, SideResult]:
        return {name: side for name, side in self.sides.items() if side.seconds}

    def levels(self, suffix: str = "") -> dict[int, SideResult]:
        """Return minigraph's measured sides by level: the tuned ones, or those with a suffix."""
        names = {level: f"level {level}{suffix}" for level in LEVELS}
        return {level: self.measured[n] for level, n in names.items() if n in self.measured}

    @property
    def highest(self) -> tuple[int, SideResult] | None:
        """The highest level that was measured; None if none was."""
        return max(self.levels().items(), default=None, key=lambda item: item[0])

    @property
    def best_peer(self) -> tuple[str, SideResult] | None:
        """The fastest side of another library in one process; None if there is none."""
        return self._fastest([name for name in self.measured if not name.endswith(PROCESSES)])

    @property
    def best_processes(self) -> tuple[str, SideResult] | None:
        """The fastest side of another library in several processes; None if there is none."""
        return self._fastest([name for name in self.measured if name.endswith(PROCESSES)])

    def _fastest(self, names: Sequence[str]) -> tuple[str, SideResult] | None:
        sides = [(name, self.measured[name]) for name in names if not name.startswith("level ")]
        peers = [(name, side) for name, side in sides if not side.error]
        return min(peers, key=lambda peer: peer[1].median, default=None)

    @property
    def bound(self) -> Bound | None:
        """The least time of a step; None if the probe did not run."""
        steps = {name: step for name, step in self.machine.items() if step.seconds}
        copies = [step.bytes / step.median for step in steps.values() if step.bytes]
        found = (steps[name] for name in (PRODUCT, CUBLAS) if name in steps)
        products = [step.flops / step.median for step in found]
        if not copies or not products:
            return None
        return Bound(max(copies), max(products), self.bytes, self.flops)


class Results(Struct, forbid_unknown_fields=True):
    """One run of the benchmark.

    options   as asked for on the command line
    missing   libraries that were asked for and not measured, each with the reason
    left_out  the sides for which there was no time, by the title of their case; of none: all
    """

    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    options: dict[str, Any]
    missing: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    interrupted: bool = False
    cases: dict[str, CaseResult] = field(default_factory=dict)

    @staticmethod
    def begin(options: dict[str, Any]) -> Results:
        """Return results without cases, of this machine and of today."""
        library = onednn.library()
        versions = {
            "minigraph": __version__,
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "oneDNN": library.version if library else "none",
        }
        for package in PACKAGES:
            with suppress(metadata.PackageNotFoundError):
                versions[package] = metadata.version(package)
        memory = None
        if hasattr(os, "sysconf"):
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limited = f", limited to {limit()}" * bool(limit())
        machine = {"processor": f"{processor()}{limited}", "cpus": cpus(), "memory": memory}
        return Results(datetime.date.today().isoformat(), machine, versions, options)

    @staticmethod
    def read(folder: Path) -> Results:
        """Return the results in a folder; GraphError if it has none that can be read."""
        path = folder / FILE
        try:
            return decode(RESULTS, path.read_bytes())
        except FileNotFoundError:
            raise GraphError(
                f"{path} is missing; minigraph bench --out {folder} makes it"
            ) from None
        except (OSError, ValueError) as error:
            raise GraphError(f"{path} holds no results of minigraph bench: it {error}") from None

    @property
    def spread(self) -> float:
        """The median spread of all sides."""
        spreads = [side.spread for case in self.cases.values() for side in case.measured.values()]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY

    def data(self) -> dict[str, Any]:
        """Return the results as JSON's types."""
        return to_builtins(self)

    def write(self, folder: Path) -> None:
        """Write the results to a folder, which is made; GraphError or OSError if they cannot be."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, encode(self, indent=1) + "\n")


RESULTS = Decoder(Results)
