"""cuDNN's execution plans for a problem: their list, names and execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cudnn

from minigraph.devices.cuda.cudnn_graph import CudnnProblem, build
from minigraph.errors import GraphError
from minigraph.platform.records import one_line

# Mode B asks a slower model, which seldom names others.
MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
ALL_MODES = [cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK]
MAX_PLANS = 6  # plans of a problem that are worth measuring: cuDNN names them best first
MIN_PLANS = 3  # so few plans are too few: all modes are asked
NOTE = cudnn.numerical_note
RUNTIME_COMPILED = cudnn.behavior_note.RUNTIME_COMPILATION
TRANSFORM_NOTES = {
    NOTE.FFT.name,
    NOTE.WINOGRAD.name,
}  # with fewer multiplications than the definition
LOSSY_NOTES = (
    NOTE.DOWN_CONVERT_INPUTS,
    NOTE.REDUCED_PRECISION_REDUCTION,
    NOTE.WINOGRAD_TILE_13x13,
)
# Engine 17 has no note, but on an H200 the gradient of AlexNet's 5 x 5 weights was off by 5e-3 of
# its root mean square, and with tensor cores in tf32 by 3e-4; that of 3 x 3 weights by 1e-5.
INEXACT_ENGINE = ("wgrad", 17)
# The engine that supports all problems.  On an H200 it is 10 to 100 times as slow as the others, so
# one run of it takes as long as all of theirs.
GENERIC_ENGINE = 0
# Lower numbers are cuDNN's own engines; the others are the frontend's, in Python.
FIRST_FOREIGN_ENGINE = 10_000
UNKNOWN_KNOB = "NOT_SET"  # the frontend's name for knobs that are newer than itself
# The frontend raises RuntimeError if the backend rejects a descriptor.
UNSUPPORTED = (cudnn.cudnnGraphNotSupportedError, RuntimeError)

Knobs = dict[str, int]


@dataclass(frozen=True, eq=False)
class CudnnPlan:
    """One way to compute a problem: an engine of cuDNN's with its knobs.

    deterministic  whether it gives the same bits every run
    precision      what it computes in: the name of a dtype, or "tf32"
    generated      whether cuDNN compiles its kernel when the plan is built
    transformed    whether it multiplies Fourier transforms, or Winograd's
    """

    graph: Any
    index: int
    engine: int
    knobs: Knobs
    deterministic: bool = True
    precision: str = "float32"
    generated: bool = False
    transformed: bool = False

    @property
    def name(self) -> str:
        """Its name, the same in every process."""
        knobs = ", ".join(f"{knob}: {value}" for knob, value in sorted(self.knobs.items()))
        return f"engine {self.engine} knobs {{{knobs}}}"

    def build(self) -> None:
        """Compile it; raise GraphError if the device cannot run it."""
        try:
            self.graph.build_plan_at_index(self.index)
        except UNSUPPORTED as error:
            said = one_line(f"{type(error).__name__}: {error}")
            raise GraphError(f"cuDNN has no {self.name}: {said}") from None

    @property
    def workspace(self) -> int:
        """Bytes of memory that the plan needs in a run; known once it is built."""
        return int(self.graph.get_workspace_size_plan_at_index(self.index))


class Catalogue:
    """cuDNN's plans for problems.

    Each problem is listed once, and the notes of an engine are asked for once for all problems that
    differ in sizes only: listing takes longer than most kernels.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._plans: dict[CudnnProblem, list[CudnnPlan]] = {}
        self._known: dict[tuple[Any, ...], set[str]] = {}  # notes of engines

    def plans(self, problem: CudnnProblem) -> list[CudnnPlan]:
        """Return at most MAX_PLANS ways to compute a problem; nothing is compiled.

        cuDNN's own first choice is first.  Engines that are compiled already go before those that
        cuDNN would generate, which takes seconds each.  Plans of less precision than the problem
        asks for are left out: see `lossy`.
        """
        if problem not in self._plans:
            # Mode A ranks exact engines behind tensor cores, in no order: on an H200 its first one
            # took up to 9 times as long as FALLBACK's for gradients of weights, and 10 times as
            # long as a transform for windows of several pixels.
            exact = NOTE.TENSOR_CORE in lossy(problem)
            found = self._listed(problem, MODES[:: -1 if exact and problem.kind == "wgrad" else 1])
            if exact and max(problem.window) > 1:
                found.sort(key=lambda plan: not plan.transformed)
            if len(found) < MIN_PLANS:
                found = self._listed(problem, ALL_MODES)
            found = [plan for plan in found if plan.engine != GENERIC_ENGINE] or found
            ranks = sorted(range(len(found)), key=lambda i: (i > 0, found[i].generated, i))
            self._plans[problem] = [found[i] for i in sorted(ranks[:MAX_PLANS])]
        return self._plans[problem]

    def _listed(self, problem: CudnnProblem, modes: Sequence[Any]) -> list[CudnnPlan]:
        """Return all plans that cuDNN's heuristics name in these modes."""
        graph = build(problem, self.handle)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([*modes])
        except UNSUPPORTED:
            return []
        too_coarse = {note.name for note in lossy(problem)}
        found = []
        for index in range(graph.get_execution_plan_count()):
            engine, knobs = _engine_at(graph, index)
            notes = self._notes(problem, engine, knobs) if engine >= 0 else None
            if notes is None or not notes.isdisjoint(too_coarse):
                continue
            if (problem.kind, engine) == INEXACT_ENGINE and max(problem.window) > 3:
                continue
            wide = problem.dtype == "float32" and "TENSOR_CORE" in notes
            found.append(
                CudnnPlan(
                    graph,
                    index,
                    engine,
                    {knob.name: value for knob, value in knobs.items()},
                    "NONDETERMINISTIC" not in notes,
                    "tf32" if wide else problem.dtype,
                    RUNTIME_COMPILED.name in notes,
                    not notes.isdisjoint(TRANSFORM_NOTES),
                )
            )
        return found

    def _notes(self, problem: CudnnProblem, engine: int, knobs: dict[Any, int]) -> set[str] | None:
        """Return the notes of an engine, on its numbers and its behaviour.

        None where it does not support the problem.

        The frontend can leave out plans by their notes, but not say which notes a plan has.  So a
        graph with this plan alone is asked, for each note, whether anything remains without it;
        that compiles nothing.
        """

        def remains(leave_out: Callable[[Any], object]) -> bool:
            probe = build(problem, self.handle)
            try:
                probe.validate()
                probe.build_operation_graph()
                probe.create_execution_plan(engine, knobs)
                leave_out(probe)
                probe.check_support()
            except UNSUPPORTED:
                return False
            return True

        key = engine, problem.family
        if key not in self._known:
            if not remains(lambda probe: None):
                return None
            numeric = (
                *LOSSY_NOTES,
                NOTE.TENSOR_CORE,
                NOTE.NONDETERMINISTIC,
                NOTE.FFT,
                NOTE.WINOGRAD,
            )
            found = {
                note.name
                for note in numeric
                if not remains(lambda probe, note=note: probe.deselect_numeric_notes([note]))  # type: ignore[misc]
            }
            if not remains(lambda probe: probe.deselect_behavior_notes([RUNTIME_COMPILED])):
                found.add(RUNTIME_COMPILED.name)
            self._known[key] = found
        return self._known[key]


def replay(problem: CudnnProblem, handle: Any, engine: int, knobs: Knobs) -> CudnnPlan:
    """Return the plan with an engine and its knobs; raise GraphError if cuDNN lacks it."""
    graph = build(problem, handle)
    try:
        types = {cudnn.knob_type.__members__[knob]: value for knob, value in knobs.items()}
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plan(engine, types)
        graph.deselect_numeric_notes(lossy(problem))
        index = graph.get_execution_plan_count() - 1
    except (KeyError, TypeError, *UNSUPPORTED) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise GraphError(f"cuDNN has no engine {engine} with {knobs}: {said}") from None
    return CudnnPlan(graph, index, engine, knobs)


def lossy(problem: CudnnProblem) -> list[Any]:
    """Return the notes of engines that compute in less precision than a problem asks for.

    cuDNN's tensor cores have no float32: they round its factors to tf32.
    """
    exact = problem.dtype == "float32" and not problem.tf32
    return [*LOSSY_NOTES, NOTE.TENSOR_CORE] if exact else [*LOSSY_NOTES]


def _engine_at(graph: Any, index: int) -> tuple[int, dict[Any, int]]:
    """Return the engine and the knobs of a plan; an engine below 0 if it cannot be replayed."""
    try:
        engine, knobs = graph.get_engine_and_knobs_at_index(index)
    except NotImplementedError:  # the frontend would choose among others
        return -1, {}
    lasting = 0 <= engine < FIRST_FOREIGN_ENGINE and all(
        knob.name != UNKNOWN_KNOB for knob in knobs or {}
    )
    return (engine, knobs or {}) if lasting else (-1, {})
