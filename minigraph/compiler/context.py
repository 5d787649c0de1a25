"""What all stages of a compile read: options, the device, measurements, other processes."""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minigraph import options as settings
from minigraph.autotune.measurement import HEURISTIC, PREDICTED, policy_of
from minigraph.autotune.session import Session, Tables
from minigraph.cache import Entry, open_store
from minigraph.cache.machine import processor
from minigraph.distributed import World
from minigraph.errors import warn_once
from minigraph.graph import Constant, Graph, nested
from minigraph.platform.messages import status_line
from minigraph.program import NOTHING_RESERVED, Backend, ReservedMemory
from minigraph.program.choices import Choices
from minigraph.version import __version__


@dataclass(frozen=True)
class CompileContext:
    """What all stages of one compile read, besides the result of the stage before.

    device     its name
    options    all options, by name
    backend    the device, opened with these options
    world      the processes that run the function together, if there are several
    cache_dir  the folder of the function's own cache file, if it has one
    loaded     measurements of cache files, by key; they go before those of the user's cache
    predicts   leave to the model of cost what is not measured yet
    peer       measurements of the process that measures for this one; then these alone count
    memory     for the arena, made ready while passes run
    """

    device: str
    options: Mapping[str, Any]
    backend: Backend
    world: World | None = None
    cache_dir: str | os.PathLike[str] | None = None
    loaded: Mapping[str, Entry] = field(default_factory=dict)
    predicts: bool = False
    peer: Tables | None = None
    memory: ReservedMemory = NOTHING_RESERVED

    @functools.cached_property
    def choices(self) -> Choices:
        """What chooses kernels and layouts for this compile, with a budget of its own."""
        folder = settings.cache_folder()
        mode = "cached" if self.predicts else self.options["autotune"]
        mode = self.backend.tunes if mode == "tune" else mode
        session = Session(
            mode,
            policy_of(self.options),
            self.options["autotune.budget"],
            self.backend.environment(self.backend.tuning),
            open_store(folder) if folder and mode != "off" else None,
            self.loaded,
            self.peer,
            self.memory.close,  # measuring needs memory first
        )
        return Choices(self.backend, session, PREDICTED if self.predicts else HEURISTIC)

    @functools.cached_property
    def pass_parameters(self) -> dict[str, Any]:
        """The arguments of `passes.levels.pipeline`: options without their prefixes, and others."""
        parameters = {name.rpartition(".")[2]: value for name, value in self.options.items()}
        level, jit = abs(parameters["graph_opt_level"]), parameters["jit"]
        if jit == "auto":
            jit = 2 if level == 3 else 0
        if jit and (why := self.backend.why_no_jit):
            warn_once(f"no kernels are fused: {why}", cause=why)
            jit = 0
        return parameters | {
            "level": level,
            "jit": jit,
            "costs": self.choices.seconds,
            "block": self.backend.block,
            "horizontal_fusion": self.backend.horizontal_fusion,
        }

    def environment(self, graph: Graph) -> dict[str, str]:
        """Return what the fingerprint of a function covers, in words, and last the fingerprint.

        Functions with the same fingerprint may share measurements and generated kernels.
        """
        constants = hashlib.sha256()
        graphs = list(nested(graph))
        for node in itertools.chain.from_iterable(graphs):
            if isinstance(node.op, Constant):
                constants.update(f"{node.spec}".encode() + node.op.value.tobytes())
        on_processor = "" if self.device == "reference" else f" {processor()}"
        fields = {
            "minigraph": __version__,
            "numpy": np.__version__,
            **self.backend.versions,
            "device": self.device + on_processor,
            "options": settings.fingerprint_text(self.options),
            "graph": hashlib.sha256("\n".join(map(str, graphs)).encode()).hexdigest(),
            "constants": constants.hexdigest(),
        }
        text = "\n".join(f"{name}: {value}" for name, value in fields.items())
        return {**fields, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:40]}


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector off: a graph is many objects, of which none is garbage yet.

    What is left of them after the pause the collector looks at, so a pause should outlast them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time spent inside to `seconds[stage]`, and tell the user of a long stage."""
    start = time.perf_counter()
    try:
        with status_line(f"compiling: {stage}"):
            yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
