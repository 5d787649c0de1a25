"""cuDNN's execution plans for a problem: listing, naming and building them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cudnn

from minigraph.devices.cuda.cudnn_graph import CudnnProblem, build
from minigraph.errors import GraphError
from minigraph.platform.records import one_line

# Mode B uses a slower model, which seldom lists other plans.
MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
ALL_MODES = [cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK]
MAX_PLANS = 6  # plans of a problem to measure: cuDNN lists the best first
MIN_PLANS = 3  # with fewer plans, all modes are used
NOTE = cudnn.numerical_note
RUNTIME_COMPILED = cudnn.behavior_note.RUNTIME_COMPILATION
TRANSFORM_NOTES = {NOTE.FFT.name, NOTE.WINOGRAD.name}  # fewer products than by the definition
LOSSY_NOTES = (
    NOTE.DOWN_CONVERT_INPUTS,
    NOTE.REDUCED_PRECISION_REDUCTION,
    NOTE.WINOGRAD_TILE_13x13,
)
# Engine 17 has no note, but on an H200 the gradient of AlexNet's 5 x 5 weights was off by 5e-3 of
# its root mean square, and with tensor cores in tf32 by 3e-4; that of 3 x 3 weights by 1e-5.
INEXACT_ENGINE = ("wgrad", 17)
# The engine that supports all problems.  On an H200 it takes 10 to 100 times as long as the other
# engines, so measuring it would take as long as measuring all others.
GENERIC_ENGINE = 0
# Lower numbers are cuDNN's own engines; the others are the frontend's, in Python.
FIRST_FOREIGN_ENGINE = 10_000
UNKNOWN_KNOB = "NOT_SET"  # the frontend's name for knobs that are newer than the frontend
# The frontend raises RuntimeError if the backend rejects a descriptor.
UNSUPPORTED = (cudnn.cudnnGraphNotSupportedError, RuntimeError)

Knobs = dict[str, int]


@dataclass(frozen=True, eq=False)
class CudnnPlan:
    """A plan for a problem: an engine of cuDNN with its knobs.

    deterministic  whether every run gives the same bits
    precision      of the arithmetic: the name of a dtype, or "tf32"
    generated      whether cuDNN compiles its kernel when the plan is built
    transformed    whether it multiplies Fourier or Winograd transforms
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
        """Compile the plan; raise GraphError if the device cannot run it."""
        try:
            self.graph.build_plan_at_index(self.index)
        except UNSUPPORTED as error:
            message = one_line(f"{type(error).__name__}: {error}")
            raise GraphError(f"cuDNN has no {self.name}: {message}") from None

    @property
    def workspace(self) -> int:
        """Bytes of memory that a run needs; call `build` first."""
        return int(self.graph.get_workspace_size_plan_at_index(self.index))


class Catalogue:
    """cuDNN's plans for problems.

    Listing plans takes longer than most kernels.  So the plans of each problem are listed once, and
    the notes of an engine once for all problems that differ only in sizes.
    """

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._plans: dict[CudnnProblem, list[CudnnPlan]] = {}
        self._notes_by_engine: dict[tuple[Any, ...], set[str]] = {}  # notes of engines

    def plans(self, problem: CudnnProblem) -> list[CudnnPlan]:
        """Return up to MAX_PLANS plans for a problem, and compile none.

        cuDNN's own first choice is first.  Compiled engines precede those that cuDNN would
        generate, which takes seconds for each.  Plans of less precision than the problem requires
        are omitted: see `lossy`.
        """
        if problem not in self._plans:
            # Mode A ranks exact engines after tensor cores, in no useful order: on an H200 its
            # first exact engine took up to 9 times as long as FALLBACK's for gradients of weights,
            # and 10 times as long as a transform for windows of several pixels.
            is_exact = NOTE.TENSOR_CORE in lossy(problem)
            modes = MODES[::-1] if is_exact and problem.kind == "wgrad" else MODES
            plans = self._listed(problem, modes)
            if is_exact and max(problem.window) > 1:
                plans.sort(key=lambda plan: not plan.transformed)
            if len(plans) < MIN_PLANS:
                plans = self._listed(problem, ALL_MODES)
            plans = [plan for plan in plans if plan.engine != GENERIC_ENGINE] or plans
            ranks = sorted(range(len(plans)), key=lambda i: (i > 0, plans[i].generated, i))
            self._plans[problem] = [plans[i] for i in sorted(ranks[:MAX_PLANS])]
        return self._plans[problem]

    def _listed(self, problem: CudnnProblem, modes: Sequence[Any]) -> list[CudnnPlan]:
        """Return all plans that cuDNN's heuristics list in these modes."""
        graph = build(problem, self.handle)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([*modes])
        except UNSUPPORTED:
            return []
        forbidden = {note.name for note in lossy(problem)}
        plans = []
        for index in range(graph.get_execution_plan_count()):
            engine, knobs = _engine_at(graph, index)
            notes = self._notes(problem, engine, knobs) if engine >= 0 else None
            if notes is None or not notes.isdisjoint(forbidden):
                continue
            if (problem.kind, engine) == INEXACT_ENGINE and max(problem.window) > 3:
                continue
            is_tf32 = problem.dtype == "float32" and "TENSOR_CORE" in notes
            plans.append(
                CudnnPlan(
                    graph,
                    index,
                    engine,
                    {knob.name: value for knob, value in knobs.items()},
                    "NONDETERMINISTIC" not in notes,
                    "tf32" if is_tf32 else problem.dtype,
                    RUNTIME_COMPILED.name in notes,
                    not notes.isdisjoint(TRANSFORM_NOTES),
                )
            )
        return plans

    def _notes(self, problem: CudnnProblem, engine: int, knobs: dict[Any, int]) -> set[str] | None:
        """Return the numerical and behavioural notes of an engine.

        None if the engine does not support the problem.

        The frontend can exclude plans with a note, but cannot list the notes of a plan.  So for
        each note, build a graph with this plan alone, exclude the note, and test whether the plan
        remains.  That compiles nothing.
        """

        def remains(numeric_notes: Sequence[Any] = (), behavior_notes: Sequence[Any] = ()) -> bool:
            probe = build(problem, self.handle)
            try:
                probe.validate()
                probe.build_operation_graph()
                probe.create_execution_plan(engine, knobs)
                probe.deselect_numeric_notes([*numeric_notes])
                probe.deselect_behavior_notes([*behavior_notes])
                probe.check_support()
            except UNSUPPORTED:
                return False
            return True

        key = engine, problem.family
        if key not in self._notes_by_engine:
            if not remains():
                return None
            numeric = *LOSSY_NOTES, NOTE.TENSOR_CORE, NOTE.NONDETERMINISTIC, NOTE.FFT, NOTE.WINOGRAD
            notes = {note.name for note in numeric if not remains([note])}
            if not remains(behavior_notes=[RUNTIME_COMPILED]):
                notes.add(RUNTIME_COMPILED.name)
            self._notes_by_engine[key] = notes
        return self._notes_by_engine[key]


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
        message = one_line(f"{type(error).__name__}: {error}")
        raise GraphError(f"cuDNN has no engine {engine} with {knobs}: {message}") from None
    return CudnnPlan(graph, index, engine, knobs)


def lossy(problem: CudnnProblem) -> list[Any]:
    """Return the notes of engines that compute in less precision than a problem requires.

    cuDNN's tensor cores do not support float32: they round the factors to tf32.
    """
    is_exact = problem.dtype == "float32" and not problem.tf32
    return [*LOSSY_NOTES, NOTE.TENSOR_CORE] if is_exact else [*LOSSY_NOTES]


def _engine_at(graph: Any, index: int) -> tuple[int, dict[Any, int]]:
    """Return the engine and the knobs of a plan; engine -1 if the plan cannot be replayed."""
    try:
        engine, knobs = graph.get_engine_and_knobs_at_index(index)
    except NotImplementedError:  # the frontend would choose another engine
        return -1, {}
    known_knobs = all(knob.name != UNKNOWN_KNOB for knob in knobs or {})
    is_replayable = 0 <= engine < FIRST_FOREIGN_ENGINE and known_knobs
    return (engine, knobs or {}) if is_replayable else (-1, {})
