"""Make the record of a function from its program; for stages, the passes run again."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from minigraph.arguments import first_names
from minigraph.compiler.pipeline import Compilation
from minigraph.compiler.trace import TracedGraph
from minigraph.devices.cost import cost_of
from minigraph.graph import Constant, Input, Item, Node, Parameter, Variable
from minigraph.inspect.history import History
from minigraph.inspect.profile import KernelTime
from minigraph.inspect.record import (
    Algorithm,
    BufferRecord,
    Description,
    GeneratedKernel,
    MemoryUse,
    Run,
    StepRecord,
)
from minigraph.inspect.roofline import speeds
from minigraph.jit.fused import Fused, HorizontalFusion
from minigraph.options import ineffective
from minigraph.passes.kernels.group import is_kernel_op
from minigraph.program import Buffer, MemorySpace, Program, Step
from minigraph.program.memory import largest_results
from minigraph.version import __version__

LEAVES = (Input, Constant, Item, Variable)
ASSIGNMENT = re.compile(r"\s*(\w+)\s*=(?!=)")  # of an expression to a variable


def describe(
    compilation: Compilation,
    kernel_times: Sequence[tuple[Step, KernelTime]] = (),
    history: bool = False,
) -> Description:
    """Return the record of a compilation.

    kernel_times  the steps with their times, if there is a profile
    history       whether to add the graph as written and after each pass, and the device's speeds;
                  the passes run again for them
    """
    context, traced, program = compilation.context, compilation.traced, compilation.program
    ids: Mapping[Node, int] = {}
    past: History | None = None
    if history:
        optimized = compilation.optimize()
        past = History(traced.results, traced.updates)
        past.add(optimized.original)
        for graph, record in optimized.stages:
            past.add(graph, record)
        ids = past.ids_of(program.graph, program.recomputed)
    recomputed = [program.recomputed] if program.recomputed else []
    parts = _Parts(program, ids)
    numbers = {step: i for i, step in enumerate(program.all_steps())}
    bodies = [step.kernel.body.graph for step in numbers if step.kernel.body]
    nodes = (node for graph in (program.graph, *bodies) for node in graph)
    fingerprint = compilation.environment["fingerprint"]
    return Description(
        title=_title(traced),
        version=__version__,
        device=context.backend.device,
        fingerprint=fingerprint,
        options=dict(context.options),
        ineffective=ineffective(context.options, context.backend.ignored_options),
        ops=Counter(node.op.name for node in nodes if not isinstance(node.op, LEAVES)),
        seconds=dict(compilation.seconds),
        launches=compilation.executor.launches,
        syncs=compilation.executor.syncs,
        memory=_memory_use(program),
        passes=tuple(past.passes if past else (*compilation.records, *recomputed)),
        steps=tuple(parts.steps),
        buffers=tuple(parts.buffers),
        algorithms=tuple(parts.algorithms),
        kernels=tuple(parts.kernels),
        traffic=tuple(step.kernel.traffic for step in numbers if step.kernel.traffic),
        runs=tuple(
            Run(numbers[step], time.start, time.seconds)
            for step, time in kernel_times
            if step in numbers  # else another algorithm has replaced it
        ),
        stages=tuple(past.stages if past else ()),
        speeds=speeds(context, program) if history else None,
    )


def _title(traced: TracedGraph) -> str:
    names = [_name(node) for node in traced.graph.outputs[: traced.results]]
    names = list(dict.fromkeys(names)) or ["no result"]
    updates = len(traced.updates)
    return first_names(names) + (f" and {updates} update{'s' * (updates > 1)}" if updates else "")


def _name(node: Node) -> str:
    """Return the name of a result in the user's program: its layer, variable or line."""
    if isinstance(node, Parameter) or isinstance(node.op, Input):
        return node.name
    source = node.source
    assignment = ASSIGNMENT.match(linecache.getline(source.file, source.line))
    return assignment[1] if assignment and not source.layer else source.brief


def _memory_use(program: Program) -> MemoryUse:
    sizes: Counter[MemorySpace] = Counter()
    nodes: set[Node | None] = set()
    for buffer in program.buffers:
        if buffer.node is None or buffer.node not in nodes:
            sizes[buffer.space] += buffer.nbytes
        nodes.add(buffer.node)
    others = sizes[MemorySpace.PARAMETER] + sizes[MemorySpace.CONSTANT] + sizes[MemorySpace.OUTPUT]
    others += sum(step.kernel.prepared_bytes for step in program.steps)
    return MemoryUse(
        peak_bytes=program.arena_bytes + others,
        arena_bytes=program.arena_bytes,
        parameter_bytes=sizes[MemorySpace.PARAMETER],
        unplanned_bytes=program.unplanned_bytes,
        largest=largest_results(program),
    )


class _Parts:
    """The records of a program's steps, buffers, algorithms and kernels."""

    def __init__(self, program: Program, ids: Mapping[Node, int]) -> None:
        self.ids = ids
        self.algorithms: list[Algorithm] = []
        self.kernels: list[GeneratedKernel] = []
        self.number = {buffer: i for i, buffer in enumerate(program.buffers, 1)}
        self.contents: dict[Buffer, int] = {}  # id of the first node in a buffer
        self.steps: list[StepRecord] = []
        self._add(program, None)
        self.buffers = [self._buffer(buffer) for buffer in program.buffers]

    def _add(self, program: Program, loop: int | None) -> None:
        for step in program.steps:
            number = len(self.steps)
            self.steps.append(self._step(step, loop))
            if step.kernel.body:
                self._add(step.kernel.body, number)

    def _step(self, step: Step, loop: int | None) -> StepRecord:
        cost, source, node = cost_of(step), step.node.source, self._id(step.node)
        for view in step.outputs:
            self.contents.setdefault(view.buffer, node)
        scratch = [step.scratch] if step.scratch.nbytes else []
        # Generating source takes time, and a report shows only that of fused kernels.
        fused = isinstance(step.node.op, Fused | HorizontalFusion)
        is_generated = fused or bool(self.ids and step.kernel.sources)
        record = StepRecord(
            name=step.node.op.name,
            kernel=step.kernel.name,
            results=tuple(map(str, step.node.specs)),
            line=str(source),
            layer=source.brief,
            reads=self._numbers(view.buffer for view in step.inputs),
            writes=self._numbers([*(view.buffer for view in step.outputs), *scratch]),
            bytes=cost.bytes,
            flops=cost.flops,
            backward=source.backward,
            node=node,
            algorithm=len(self.algorithms) if step.choice else None,
            generated=len(self.kernels) if is_generated else None,
            numpy=f"{step.node} ({step.kernel.why_numpy})" if step.kernel.why_numpy else "",
            loop=loop,
            fusible=is_kernel_op(step.node, reductions=True),
        )
        if record.algorithm is not None:
            self.algorithms.append(_algorithm(step, record))
        if record.generated is not None:
            self.kernels.append(_generated(step, record))
        return record

    def _id(self, node: Node) -> int:
        """Return the id of a node; for a copy made by lowering, that of the copied node."""
        while node not in self.ids and node.inputs:
            node = node.inputs[0]
        return self.ids.get(node, 0)

    def _numbers(self, buffers: Iterable[Buffer]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.number[b] for b in buffers if b in self.number))

    def _buffer(self, buffer: Buffer) -> BufferRecord:
        node = buffer.node
        name = ""
        if isinstance(node, Parameter):
            name = node.name
        elif node is not None and isinstance(node.op, Input):
            name = str(node.op)
        return BufferRecord(
            id=self.number[buffer],
            space=buffer.space.value,
            bytes=buffer.nbytes,
            name=name,
            node=(node is not None and self._id(node)) or self.contents.get(buffer, 0),
            offset=buffer.offset,
            first=buffer.first,
            last=buffer.last,
            successor=self.number[buffer.successor] if buffer.successor else 0,
        )


def _algorithm(step: Step, record: StepRecord) -> Algorithm:
    choice = step.choice
    assert choice is not None
    kernel = choice.kernel or step.kernel
    return Algorithm(
        op=record.name,
        result=record.result,
        line=record.line,
        subject=choice.problem.subject,
        name=kernel.algorithm or kernel.maker,
        layout=" ".join(choice.layouts),
        seconds=choice.measurement.seconds if choice.measurement else None,
        workspace=choice.measurement.workspace if choice.measurement else None,
        origin=choice.origin,
        candidates=list(choice.all_measurements),
        layer=record.layer,
    )


def _generated(step: Step, record: StepRecord) -> GeneratedKernel:
    op = step.node.op
    parts = [part for part, _ in op.groups(())] if isinstance(op, HorizontalFusion) else [op]
    graphs = [part.graph for part in parts if isinstance(part, Fused)]
    inner = [node for graph in graphs for node in graph if node.inputs]
    names = [source.name for source in step.kernel.sources]
    sources = [node.source for node in (*inner, step.node)]
    return GeneratedKernel(
        name=names[0] + (f" and {len(names) - 1} more" if names[1:] else "") if names else "",
        ops=[n.op.name for n in inner] + [p.name for p in parts if not isinstance(p, Fused)],
        inputs=len(step.inputs),
        outputs=len(step.outputs),
        bytes=record.bytes,
        source="\n".join(source.kernel for source in step.kernel.sources),
        lines=list(dict.fromkeys(map(str, sources))),
        layers=list(dict.fromkeys(location.brief for location in sources)),
    )
