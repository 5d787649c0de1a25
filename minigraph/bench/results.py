"""Results: all samples with the machine, the versions and the options, to JSON and back."""

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

from minigraph.cache.machine import processor
from minigraph.devices.cpu import onednn
from minigraph.devices.factory import open_backend
from minigraph.errors import GraphError
from minigraph.options import cpus, resolve
from minigraph.platform.records import decode, encode
from minigraph.platform.regular_file import write_text
from minigraph.version import __version__

FILE = "results.json"
PACKAGES = ("torch", "jax", "onnxruntime")
MAX_USUAL_SPREAD = 0.15  # a spread above this is unusual
MIN_RELATIVE_DIFFERENCE = 0.02  # times that differ by less are the same
LEVELS = (0, 1, 2, 3)
LEVEL_PREFIX = "level "  # of the names of minigraph's sides
FRONTEND_PREFIX = "minigraph."  # of the names of sides in which minigraph runs a PyTorch model
UNTUNED_SUFFIX = ", untuned"  # of the name of an untuned level's side
UNFROZEN_SUFFIX = ", unfrozen"  # of the name of a prediction's side whose parameters may change
CHANNELS_LAST = "channels last"
BY_MINIGRAPH = "compiled by minigraph"
EAGER = "torch"  # the side whose losses and scores are the reference for others
EAGER_LAST = f"{EAGER}, {CHANNELS_LAST}"  # the same library, to show how far equal losses differ

Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=0)]


class SideResult(Struct, forbid_unknown_fields=True):
    """The measurements of one side of a case.

    seconds        of a step, one for each turn
    warmup         number of earlier turns, until the times settled
    cold           seconds of the first call with empty caches, without the library's import
    warm           the same in a second process; None without one
    peak           bytes of memory
    roofline       seconds of the kernels of minigraph's step at the machine's full speed
    p99            99th percentile of the seconds of a call, for predictions of single examples
    difference     largest relative difference from PyTorch's losses or scores
    losses_error   why its losses could not be compared, else ""
    error          why it ended early, else ""
    """

    seconds: list[Positive] = field(default_factory=list)
    warmup: Count = 0
    cold: Positive | None = None
    warm: Positive | None = None
    peak: Count | None = None
    roofline: Positive | None = None
    p99: Positive | None = None
    difference: Annotated[float, Meta(ge=0)] | None = None
    losses_error: str = ""
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles divided by the median."""
        low, high = _quartiles(self.seconds)
        return (high - low) / self.median

    def differs(self, other: SideResult) -> bool:
        """Return whether one side was faster by MIN_RELATIVE_DIFFERENCE in 3/4 of the rounds.

        Sides take turns, so a slow period of the machine slows both.  One round is not enough.
        """
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=False)]
        if len(ratios) < 2:
            return False
        low, high = _quartiles(ratios)
        return high < 1 - MIN_RELATIVE_DIFFERENCE or low > 1 + MIN_RELATIVE_DIFFERENCE


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile; of fewer than four values, the extremes."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


class CaseResult(Struct, forbid_unknown_fields=True):
    """The measurements of one case.

    images  in a step; 0 for an expression
    sides   by name: "level 3", "level 3, untuned", "torch.compile, channels last"
    """

    title: str
    images: Count
    sides: dict[str, SideResult] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, SideResult]:
        return {name: side for name, side in self.sides.items() if side.seconds}

    @property
    def ours(self) -> dict[str, SideResult]:
        return {name: side for name, side in self.measured.items() if name.startswith(LEVEL_PREFIX)}

    @property
    def frontend(self) -> dict[str, SideResult]:
        """The measured sides in which minigraph runs a model of PyTorch."""
        return {
            name: side for name, side in self.measured.items() if name.startswith(FRONTEND_PREFIX)
        }

    @property
    def highest(self) -> tuple[str, SideResult] | None:
        """The highest level that was measured, tuned and frozen; None if none was."""
        levels = [
            name for name in self.ours if not name.endswith((UNTUNED_SUFFIX, UNFROZEN_SUFFIX))
        ]
        return (max(levels), self.measured[max(levels)]) if levels else None

    @property
    def best_peer(self) -> tuple[str, SideResult] | None:
        """The fastest side of another library; None without one."""
        peers = [
            (name, side)
            for name, side in self.measured.items()
            if not name.startswith((LEVEL_PREFIX, FRONTEND_PREFIX)) and not side.error
        ]
        return min(peers, key=lambda peer: peer[1].median, default=None)


class Results(Struct, forbid_unknown_fields=True):
    """One run of the benchmark.

    options   of the command line
    missing   requested libraries that were not measured, each with the reason
    left_out  sides that were left out for lack of time, by the title of their case; [] means all
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
        """Return results without cases, for this machine and date."""
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
        device = options.get("device", "cpu")
        if device != "cpu":
            versions |= open_backend(device, resolve({})).versions
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        machine = {"processor": processor(), "cpus": cpus(), "memory": memory}
        return Results(datetime.date.today().isoformat(), machine, versions, options)

    @staticmethod
    def read(folder: Path) -> Results:
        """Return the results in a folder; raise GraphError if they cannot be read."""
        path = folder / FILE
        try:
            return decode(RESULTS, path.read_bytes())
        except FileNotFoundError:
            raise GraphError(
                f"{path} is missing; minigraph bench --out {folder} writes it"
            ) from None
        except (OSError, ValueError) as error:
            raise GraphError(f"{path} is not a result of minigraph bench: it {error}") from None

    @property
    def spread(self) -> float:
        """The median spread of all sides."""
        spreads = [side.spread for case in self.cases.values() for side in case.measured.values()]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def processor(self) -> str:
        """The processor without the number of its features, which only caches need."""
        return str(self.machine["processor"]).partition(" features ")[0]

    def data(self) -> dict[str, Any]:
        return to_builtins(self)

    def write(self, folder: Path) -> None:
        """Write the results to a new or existing folder; raise GraphError or OSError on failure."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, encode(self, indent=1) + "\n")


RESULTS = Decoder(Results)
