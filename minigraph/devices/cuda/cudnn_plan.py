"""The ways in which cuDNN computes a problem: what it offers, their names, and running them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cudnn

from minigraph.devices.cuda.cudnn_graph import CudnnGraph, CudnnProblem, build
from minigraph.errors import GraphError

MODES = [cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK]
NOTE = cudnn.numerical_note
LOSSY = (NOTE.DOWN_CONVERT_INPUTS, NOTE.REDUCED_PRECISION_REDUCTION)
# What cuDNN's own engines are numbered below; from there on they are the frontend's, in Python.
FOREIGN = 10_000
UNKNOWN = "NOT_SET"  # what the frontend calls knobs that are newer than itself
# The frontend raises the second where the backend turns down a descriptor.
UNSUPPORTED = (cudnn.cudnnGraphNotSupportedError, RuntimeError)

Knobs = dict[str, int]


class CudnnPlan:
    """One way to compute a problem: an engine of cuDNN's with its knobs.

    deterministic  whether it gives the same bits every run
    precision      what it computes in: the name of a dtype, or "tf32"
    """

    def __init__(
        self,
        graph: CudnnGraph,
        index: int,
        engine: int,
        knobs: Knobs,
        deterministic: bool = True,
        precision: str = "float32",
    ) -> None:
        self.graph = graph
        self.index = index
        self.engine = engine
        self.knobs = knobs
        self.deterministic = deterministic
        self.precision = precision

    @property
    def name(self) -> str:
        """Its name, the same in every process."""
        knobs = ", ".join(f"{knob}: {value}" for knob, value in sorted(self.knobs.items()))
        return f"engine {self.engine} knobs {{{knobs}}}"

    def build(self) -> CudnnPlan:
        """Compile it, and return it; raises GraphError where the device cannot run it."""
        try:
            self.graph.built.build_plan_at_index(self.index)
        except UNSUPPORTED as error:
            raise GraphError(f"cuDNN has no {self.name}: {_one_line(error)}") from None
        return self

    @property
    def workspace(self) -> int:
        """Bytes that it needs while it runs, once it is built."""
        return int(self.graph.built.get_workspace_size_plan_at_index(self.index))

    def execute(self, addresses: Mapping[int, int], workspace: int, handle: Any) -> None:
        """Run it, on the stream of the handle.

        addresses  of the operands, in device memory, by uid
        workspace  the address of as much memory as it needs
        """
        numbers = {uid: x.ctypes.data for uid, x in self.graph.constants.items()}
        self.graph.built.execute_plan_at_index(
            {**addresses, **numbers}, workspace, self.index, handle
        )


def plans(graph: CudnnGraph, handle: Any) -> list[CudnnPlan]:
    """Return what cuDNN offers for a problem, its own first choice first; nothing is compiled.

    Left out is what computes in less than the problem asks for: see `lossy`.
    """
    built = graph.built
    try:
        built.validate()
        built.build_operation_graph()
        built.create_execution_plans(MODES)
    except UNSUPPORTED:
        return []
    notes: dict[int, set[str]] = {}
    found = []
    for index in range(built.get_execution_plan_count()):
        engine, knobs = _engine_at(built, index)
        if engine < 0:
            continue
        if engine not in notes:
            notes[engine] = _notes(graph.problem, handle, engine, knobs)
        if not notes[engine].isdisjoint(note.name for note in lossy(graph.problem)):
            continue
        wide = graph.problem.dtype == "float32" and "TENSOR_CORE" in notes[engine]
        found.append(
            CudnnPlan(
                graph,
                index,
                engine,
                {knob.name: value for knob, value in knobs.items()},
                "NONDETERMINISTIC" not in notes[engine],
                "tf32" if wide else graph.problem.dtype,
            )
        )
    return found


def replay(problem: CudnnProblem, handle: Any, engine: int, knobs: Knobs) -> CudnnPlan:
    """Return the plan with an engine and its knobs, compiled; GraphError where cuDNN lacks it."""
    graph = build(problem, handle)
    built = graph.built
    try:
        types = {cudnn.knob_type.__members__[knob]: value for knob, value in knobs.items()}
        built.validate()
        built.build_operation_graph()
        built.create_execution_plan(engine, types)
        built.deselect_numeric_notes(lossy(problem))
        index = built.get_execution_plan_count() - 1
    except (KeyError, TypeError, *UNSUPPORTED) as error:
        raise GraphError(f"cuDNN has no engine {engine} with {knobs}: {_one_line(error)}") from None
    return CudnnPlan(graph, index, engine, knobs).build()


def lossy(problem: CudnnProblem) -> list[Any]:
    """Return the notes of engines that compute a problem in less than it asks for.

    cuDNN's tensor cores have no float32: they round its factors to tf32.
    """
    exact = problem.dtype == "float32" and not problem.tf32
    return [*LOSSY, NOTE.TENSOR_CORE] if exact else [*LOSSY]


def _engine_at(built: Any, index: int) -> tuple[int, dict[Any, int]]:
    """The engine and the knobs of a plan; an engine below 0 where it cannot be had again."""
    try:
        engine, knobs = built.get_engine_and_knobs_at_index(index)
    except NotImplementedError:  # the frontend would choose among others
        return -1, {}
    lasting = 0 <= engine < FOREIGN and all(knob.name != UNKNOWN for knob in knobs or {})
    return (engine, knobs or {}) if lasting else (-1, {})


def _notes(problem: Any, handle: Any, engine: int, knobs: dict[Any, int]) -> set[str]:
    """The numerical notes of an engine.

    The frontend can leave out plans by their notes, but not say which notes a plan has.  So a graph
    with this plan alone is asked, for each note, whether anything remains without it; that
    compiles nothing.
    """
    found = set()
    for note in (*LOSSY, NOTE.TENSOR_CORE, NOTE.NONDETERMINISTIC):
        probe = build(problem, handle).built
        try:
            probe.validate()
            probe.build_operation_graph()
            probe.create_execution_plan(engine, knobs)
            probe.deselect_numeric_notes([note])
            probe.check_support()
        except UNSUPPORTED:
            found.add(note.name)
    return found


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
