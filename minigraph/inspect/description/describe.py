"""Putting the record of a function together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigraph.compile.pipeline import Compilation
from minigraph.devices.cost import work_of
from minigraph.graph import Node
from minigraph.inspect.description.history import History
from minigraph.inspect.description.record import (
    AlgorithmRecord,
    BufferRecord,
    Description,
    Run,
    StepRecord,
    TextRecord,
)
from minigraph.inspect.profile import KernelTime
from minigraph.inspect.roofline import Bound, Speeds, speeds
from minigraph.options import num_threads
from minigraph.program import Buffer, Choice, Program, Step
from minigraph.version import __version__


def describe(
    compilation: Compilation, kernel_times: Sequence[tuple[Step, KernelTime]] = ()
) -> Description:
    """Return the record of what was compiled.

    kernel_times  the steps with their times, if there is a profile
    """
    context, traced, program = compilation.context, compilation.traced, compilation.program
    optimized = compilation.optimize()
    history = History(traced.results, traced.updates)
    history.add(optimized.written)
    for graph, record in optimized.stages:
        history.add(graph, record)
    fast = speeds(context.backend, num_threads(context.options["num_threads"]))
    parts = _Parts(program, history.ids_of(program.graph), fast)
    fingerprint = compilation.environment["fingerprint"]
    return Description(
        title=f"{fingerprint[-7:]}, level {context.options['graph_opt_level']}",
        version=__version__,
        device=context.backend.device,
        fingerprint=fingerprint,
        options=dict(context.options),
        seconds=dict(compilation.seconds),
        bandwidth=fast.bandwidth,
        peak=fast.peak,
        arena=program.arena_bytes,
        unplanned=program.unplanned_bytes,
        stages=tuple(history.stages),
        steps=tuple(parts.steps),
        buffers=tuple(parts.buffers),
        algorithms=tuple(parts.algorithms),
        texts=tuple(parts.texts),
        runs=tuple(_runs(program, kernel_times)),
    )


def _runs(program: Program, profile: Sequence[tuple[Step, KernelTime]]) -> Iterable[Run]:
    number = {step: i for i, step in enumerate(program.all_steps())}
    for step, took in profile:
        if step in number:  # else another algorithm has taken its place since
            yield Run(number[step], took.start, took.seconds)


class _Parts:
    """The records of the steps of a program, and of what they share."""

    def __init__(self, program: Program, ids: dict[Node, int], fast: Speeds) -> None:
        self.ids = ids
        self.fast = fast
        self.texts: dict[TextRecord, int] = {}
        self.algorithms: list[AlgorithmRecord] = []
        self._by_choice: dict[Choice, int] = {}
        self.number = {buffer: i for i, buffer in enumerate(program.buffers, 1)}
        self.holds: dict[Buffer, int] = {}  # the id of what a buffer holds
        self.steps: list[StepRecord] = []
        self._add(program, None)
        self.buffers = [self._buffer(buffer) for buffer in program.buffers]

    def _add(self, program: Program, loop: int | None) -> None:
        for step in program.steps:
            now = len(self.steps)
            self.steps.append(self._step(step, loop))
            if step.kernel.body:
                self._add(step.kernel.body, now)

    def _step(self, step: Step, loop: int | None) -> StepRecord:
        work = work_of(step)
        node = self._id(step.node)
        for view in step.outputs:
            self.holds.setdefault(view.buffer, node)
        scratch = [step.scratch] if step.scratch.nbytes else []
        return StepRecord(
            node=node,
            name=step.node.op.name,
            kernel=step.kernel.name,
            reads=self._buffers(view.buffer for view in step.inputs),
            writes=self._buffers([*(view.buffer for view in step.outputs), *scratch]),
            bytes=work.bytes,
            flops=work.flops,
            bound=Bound(*self.fast, *work).seconds,
            texts=tuple(
                self.texts.setdefault(TextRecord(s.name, s.kernel), len(self.texts))
                for s in step.kernel.sources
            ),
            algorithm=self._algorithm(step),
            numpy=step.kernel.why_numpy,
            loop=loop,
        )

    def _id(self, node: Node) -> int:
        """Return the id of a node; of a copy that lowering has made, of what is copied."""
        while node not in self.ids and node.inputs:
            node = node.inputs[0]
        return self.ids.get(node, 0)

    def _buffers(self, buffers: Iterable[Buffer]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.number[b] for b in buffers if b in self.number))

    def _algorithm(self, step: Step) -> int | None:
        choice = step.choice
        if choice is None:
            return None
        if choice not in self._by_choice:
            kernel = choice.kernel or step.kernel
            record = AlgorithmRecord(
                subject=choice.problem.subject,
                name=kernel.algorithm or kernel.maker,
                layouts=tuple(choice.layouts),
                origin=choice.origin,
                seconds=choice.measurement.seconds if choice.measurement else None,
                rivals=tuple(choice.rivals),
            )
            self._by_choice[choice] = len(self._by_choice)
            self.algorithms.append(record)
        return self._by_choice[choice]

    def _buffer(self, buffer: Buffer) -> BufferRecord:
        held = 0 if buffer.node is None else self._id(buffer.node)
        return BufferRecord(
            id=self.number[buffer],
            home=buffer.space.value,
            bytes=buffer.nbytes,
            node=held or self.holds.get(buffer, 0),
            offset=buffer.offset,
            first=buffer.first,
            last=buffer.last,
            heir=self.number[buffer.successor] if buffer.successor else 0,
        )
