"""The stages of a compile after `trace`: optimise, lower, plan, bind.

Each stage turns the result of the one before into another that can be printed: a `TracedGraph`, an
`OptimizedGraph`, a `Program`, and the same program with its memory planned.  A `Compilation` runs
all stages, and runs them again after a kernel failed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minigraph import options as settings
from minigraph.autotune.measurement import HEURISTIC, PREDICTED, policy_of
from minigraph.autotune.session import Session, Tables
from minigraph.cache import Entry, open_store
from minigraph.cache.machine import processor
from minigraph.compiler.agreement import tuning_exchange
from minigraph.compiler.trace import TracedGraph, unpacked
from minigraph.devices.cost import cost_of
from minigraph.distributed import World
from minigraph.errors import warn_once
from minigraph.graph import Constant, Graph, Node, nested
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import PassRecord
from minigraph.passes.rewrite.loops import unroll_loops
from minigraph.platform.messages import status_line
from minigraph.program import NOTHING_RESERVED, Backend, Executor, Program, ReservedMemory
from minigraph.program.choices import Choices
from minigraph.program.lower import lower
from minigraph.program.memory import plan, predicted_arena_bytes
from minigraph.program.recomputation import within_limit
from minigraph.version import __version__

log = logging.getLogger(__name__)
STEP_BYTES = 16 << 10  # of Python objects for a step, roughly


@dataclass(frozen=True)
class CompileContext:
    """The settings of one compile, for all stages.

    device     name of the device
    options    all options, by name
    backend    the device, opened with these options
    world      processes that run the function together; None for a single one
    cache_dir  folder of the function's own cache file, or None
    loaded     measurements of cache files, by key; they take precedence over the user's cache
    predicts   whether to use the cost model for problems without measurements
    peer       tables of another process that measures for this one, or None
    memory     memory for the arena, which the device prepares while passes run
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
        """The choices of kernels and layouts; they share the tuning budget of the compile."""
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
            self.memory.close,  # measuring needs the memory
        )
        return Choices(self.backend, session, PREDICTED if self.predicts else HEURISTIC)

    @functools.cached_property
    def pass_parameters(self) -> dict[str, Any]:
        """The arguments of `passes.levels.pipeline`: options by their last names, and more."""
        parameters = {name.rpartition(".")[2]: value for name, value in self.options.items()}
        level, jit = abs(parameters["graph_opt_level"]), parameters["jit"]
        if jit == "auto":
            jit = 2 if level == 3 else 0
        if jit and (reason := self.backend.why_no_jit):
            warn_once(f"no kernels are fused: {reason}", cause=reason)
            jit = 0
        return parameters | {
            "level": level,
            "jit": jit,
            "costs": self.choices.seconds,
            "blocks": self.backend.blocks,
            "horizontal_fusion": self.backend.horizontal_fusion,
        }

    def environment(self, graph: Graph) -> dict[str, str]:
        """Return the fields of a function's fingerprint, and then the fingerprint.

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


@dataclass(frozen=True)
class OptimizedGraph:
    """A graph and its rewrites.

    original  the graph before all passes
    stages    the graph after each pass, and the record of the pass
    """

    original: Graph
    stages: Sequence[tuple[Graph, PassRecord]]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.records), str(self.graph)])

    @property
    def graph(self) -> Graph:
        return self.stages[-1][0] if self.stages else self.original

    @property
    def records(self) -> list[PassRecord]:
        return [record for _, record in self.stages]


class Compilation:
    """A traced graph and the results of the stages that it has passed.

    seconds   of each stage
    records   of the passes
    program   with its memory planned
    executor  of the program
    """

    records: list[PassRecord]
    program: Program
    executor: Executor

    def __init__(
        self,
        traced: TracedGraph,
        context: CompileContext,
        seconds: dict[str, float],
        arenas: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Unroll the loops of the traced graph if the backend needs that.

        seconds  of tracing
        arenas   returns arenas of other programs that never run at the same time
        """
        self.seconds = seconds
        self.context = context
        self._arenas = arenas
        if context.backend.unrolls:
            with timed(seconds, "build"):
                traced = replace(traced, graph=unroll_loops(traced.graph))
        self.traced = traced

    @functools.cached_property
    def environment(self) -> Mapping[str, str]:
        """The fields of the function's fingerprint, and the fingerprint, by name."""
        return self.context.environment(self.traced.graph)

    def run(self) -> OptimizedGraph:
        """Run all stages, and return the optimised graph, which the compilation does not keep.

        Of several processes on machines of the same kind, the first measures for all.
        """
        context = self.context
        nbytes = 0
        if not self._arenas():
            limit = context.options["graph_opt.memory_limit"] or math.inf
            predicted = predicted_arena_bytes(self.traced.graph, context.options["amp"])
            nbytes = int(min(predicted, limit))
        with contextlib.closing(context.backend.reserve_memory(nbytes)) as memory:
            waits, exchange = tuning_exchange(context.world, context.backend, context.options)
            peer = exchange(None) if waits else None
            self.context = replace(context, memory=memory, peer=peer)
            optimized = self._run()
            if not waits:
                exchange(self.session.all_tables)
        return optimized

    def _run(self, arenas: Sequence[Any] = ()) -> OptimizedGraph:
        with timed(self.seconds, "optimize"):
            optimized = self.optimize()
            self.context.choices.prepare(optimized.graph)
        with timed(self.seconds, "lower"):
            program = self.lower(optimized.graph)
        self.seconds["bind"] = 0.0  # only the last binding counts
        with timed(self.seconds, "bind"):
            self.bind(program, arenas)
        self.records = optimized.records
        for record in self.records:
            log.debug("%s, %.3f s", record, record.seconds)
        seconds = ", ".join(f"{name} {s:.3f} s" for name, s in self.seconds.items())
        steps, device = len(program.steps), self.context.backend.device
        log.info("a function of %d steps on %s: %s", steps, device, seconds)
        return optimized

    def optimize(self) -> OptimizedGraph:
        """Run the passes on the traced graph; reports run them again."""
        passes = pipeline(**self.context.pass_parameters)
        return OptimizedGraph(self.traced.graph, optimize(self.traced.graph, passes))

    def lower(self, graph: Graph) -> Program:
        """Return the program for an optimised graph, within the memory limit if there is one."""
        program = self._planned(graph)
        limit = self.context.options["graph_opt.memory_limit"]
        if limit is None:
            return program
        return within_limit(limit, program, self.traced.results, self._planned, cost_of)

    def _planned(self, graph: Graph, pinned: AbstractSet[Node] = frozenset()) -> Program:
        traced, context = self.traced, self.context
        choose = context.choices.choose
        return plan(lower(graph, traced.results, traced.updates, context.backend, choose, pinned))

    def bind(self, program: Program, arenas: Sequence[Any] = ()) -> None:
        """Bind the program to memory: one of `arenas`, a shared arena, or a new one."""
        new = self.context.memory.arenas(program.arena_bytes)
        self.executor = self.context.backend.bind(program, [*self._arenas(), *arenas, *new])
        self.program = program

    def recompile(self) -> bool:
        """Quarantine the failed kernels of the last call; return whether others replace them.

        The passes run again, as the best layouts may differ without these kernels.
        """
        failures = dict(self.executor.failures)
        self.executor.failures.clear()
        for step, error in failures.items():
            warn_once(f"{step.node.op.name} {step.node.source}: {error}; NumPy computed it instead")
        # A choice of the heuristic has no measurement that could be quarantined.
        choices = {step.choice: error for step, error in failures.items() if step.choice}
        measured = {choice: error for choice, error in choices.items() if choice.measurement}
        for choice, error in measured.items():
            self.context.choices.quarantine(choice, error)
        if measured:
            with collector_paused():
                self._run([self.executor.arena])
        return bool(measured)

    def as_written(self) -> Compilation:
        """Return a compilation of the traced graph without optimisation, which returns a list."""
        traced, old = replace(self.traced, pack=unpacked), self.context
        options = settings.as_written(old.options)
        context = CompileContext(old.device, options, old.backend, old.world)
        compilation = Compilation(traced, context, {})
        compilation.run()
        return compilation

    @property
    def bytes_by_owner(self) -> Mapping[int, int]:
        """Bytes in memory besides parameters, by the ids of the objects that own them.

        Compilations may share an arena and constants.
        """
        program = self.program
        kernels = sum(STEP_BYTES + step.kernel.prepared_bytes for step in program.steps)
        ops = ((b.node.op, b.nbytes) for b in program.buffers if b.node is not None)
        constants = {id(op.value): nbytes for op, nbytes in ops if isinstance(op, Constant)}
        return {**constants, id(self): kernels, id(self.executor.arena): program.arena_bytes}

    @property
    def session(self) -> Session:
        return self.context.choices.session

    def cache_entries(self) -> list[Entry]:
        """Return the cache entries of the function's measurements and kernels."""
        measured = self.session.used_entries.values()
        return [*measured, *self.context.backend.kernels(self.program)]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector while the block makes many objects that are all in use.

    The block should end after its temporary objects are freed; otherwise the collector visits them.
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
    """Add the time of the block to `seconds[stage]`; show a status line during a long stage."""
    start = time.perf_counter()
    try:
        with status_line(f"compiling: {stage}"):
            yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
