"""The stages of a compile after `trace`: optimise, lower, plan, bind; and what all of them read.

Each is made from the one before, and can be printed: a `TracedGraph`, an `OptimizedGraph`, and the
`Program`, first without and then with its plan of memory.  A `Compilation` goes through all of
them, and goes through them again once a kernel has failed.
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
from minigraph.compiler.agreement import tuning_turn
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
from minigraph.program.memory import foreseen, plan
from minigraph.program.recomputation import within
from minigraph.version import __version__

log = logging.getLogger(__name__)
STEP_BYTES = 16 << 10  # what a step takes beside arrays: objects of Python, above all


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


@dataclass(frozen=True)
class OptimizedGraph:
    """What the passes have made of a graph.

    stages  the graph after each pass, and what the pass did
    """

    written: Graph
    stages: Sequence[tuple[Graph, PassRecord]]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.records), str(self.graph)])

    @property
    def graph(self) -> Graph:
        return self.stages[-1][0] if self.stages else self.written

    @property
    def records(self) -> list[PassRecord]:
        return [record for _, record in self.stages]


class Compilation:
    """A traced graph on its way through the stages, and what they have made of it so far.

    seconds   that each stage has taken
    records   of the passes
    program   with its plan of memory
    executor  the program with its memory
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
        """Take what to compile.

        seconds  that tracing has taken
        arenas   returns memory that the program may share with others, which never run meanwhile
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
        """What the function's fingerprint covers, and the fingerprint, by name."""
        return self.context.environment(self.traced.graph)

    def run(self) -> OptimizedGraph:
        """Go through all stages; of several processes, the first of each kind measures for all.

        Returns what the passes have made, which nothing else keeps.
        """
        context = self.context
        limit = context.options["graph_opt.memory_limit"] or math.inf
        nbytes = 0 if self._arenas() else int(min(foreseen(self.traced.graph), limit))
        with contextlib.closing(context.backend.reserve_memory(nbytes)) as memory:
            waits, exchange = tuning_turn(context.world, context.backend, context.options)
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
        self.seconds["bind"] = 0.0  # the last time counts
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
        """Run the passes; nothing keeps what they make, so whoever explains it runs them again."""
        passes = pipeline(**self.context.pass_parameters)
        return OptimizedGraph(self.traced.graph, optimize(self.traced.graph, passes))

    def lower(self, graph: Graph) -> Program:
        """Return the program for an optimised graph, within the limit of memory if there is one."""
        program = self._planned(graph)
        limit = self.context.options["graph_opt.memory_limit"]
        if limit is None:
            return program
        return within(limit, program, self.traced.results, self._planned, cost_of)

    def _planned(self, graph: Graph, stay: AbstractSet[Node] = frozenset()) -> Program:
        traced, context = self.traced, self.context
        choose = context.choices.choose
        return plan(lower(graph, traced.results, traced.updates, context.backend, choose, stay))

    def bind(self, program: Program, arenas: Sequence[Any] = ()) -> None:
        """Give a program memory of its own, or one of `arenas` or of those that it may share."""
        new = self.context.memory.arenas(program.arena_bytes)
        self.executor = self.context.backend.bind(program, [*self._arenas(), *arenas, *new])
        self.program = program

    def recompile(self) -> bool:
        """Put the failed kernels of the last call in quarantine; return whether others are used.

        Other layouts may be best without them, so the passes run again.
        """
        failures = dict(self.executor.failures)
        self.executor.failures.clear()
        for step, why in failures.items():
            warn_once(f"{step.node.op.name} {step.node.source}: {why}; NumPy has stood in for it")
        # Where a heuristic failed, there is nothing measured left to take.
        choices = {step.choice: why for step, why in failures.items() if step.choice}
        measured = {choice: why for choice, why in choices.items() if choice.measurement}
        for choice, why in measured.items():
            self.context.choices.quarantine(choice, why)
        if measured:
            with collector_paused():
                self._run([self.executor.arena])
        return bool(measured)

    def as_written(self) -> Compilation:
        """Return the compilation of the graph as written, op by op, which returns a list."""
        traced, old = replace(self.traced, pack=unpacked), self.context
        options = settings.as_written(old.options)
        context = CompileContext(old.device, options, old.backend, old.world)
        compilation = Compilation(traced, context, {})
        compilation.run()
        return compilation

    @property
    def bytes_by_owner(self) -> Mapping[int, int]:
        """How many bytes it holds besides parameters, by the id of what holds them.

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
        """Return all that was measured and compiled for it, as caches keep it."""
        measured = self.session.used.values()
        return [*measured, *self.context.backend.kernels(self.program)]


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
