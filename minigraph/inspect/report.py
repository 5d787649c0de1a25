"""What a compiled function tells about itself."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from minigraph.arguments import few
from minigraph.autotune.measurement import Measurement
from minigraph.compile.pipeline import Compilation
from minigraph.devices.cost import Work, work_of
from minigraph.errors import GraphError
from minigraph.graph import Constant, Input, Item, Node, Variable
from minigraph.jit.fused import Fused, Together
from minigraph.options import ineffective
from minigraph.passes.notes import PassRecord, Stop
from minigraph.program import MemorySpace, Program, Step, Traffic
from minigraph.program.memory import largest_results

LEAVES = (Input, Constant, Item, Variable)
GENERATED = (Fused, Together)
FEW = 3  # names in a line of the summary


@dataclass(frozen=True)
class MemoryUse:
    """Bytes.  `unplanned_bytes` is the arena if no memory were used twice.

    largest  the largest intermediate results, each in words, with its bytes
    """

    peak_bytes: int
    arena_bytes: int
    parameter_bytes: int
    unplanned_bytes: int
    largest: list[tuple[str, int]] = field(default_factory=list)


def memory_use(program: Program) -> MemoryUse:
    """Return what memory a program takes."""
    sizes: Counter[MemorySpace] = Counter()
    held: set[Node | None] = set()
    for buffer in program.buffers:
        if buffer.node is None or buffer.node not in held:
            sizes[buffer.space] += buffer.nbytes
        held.add(buffer.node)
    others = sizes[MemorySpace.PARAMETER] + sizes[MemorySpace.CONSTANT] + sizes[MemorySpace.OUTPUT]
    others += sum(step.kernel.prepared_bytes for step in program.steps)
    return MemoryUse(
        peak_bytes=program.arena_bytes + others,
        arena_bytes=program.arena_bytes,
        parameter_bytes=sizes[MemorySpace.PARAMETER],
        unplanned_bytes=program.unplanned_bytes,
        largest=largest_results(program),
    )


@dataclass(frozen=True, repr=False)
class GeneratedKernel:
    """A kernel that was generated for a group of ops.

    name     of the function in the text; equal kernels have equal names
    ops      the names of the ops that it computes
    inputs   how many arrays it reads
    outputs  how many it writes
    bytes    that it reads and writes at least
    source   its text
    lines    of the user's code that the ops were made at
    layers   that the ops were made in; of ops outside of layers, their lines
    """

    name: str
    ops: list[str]
    inputs: int
    outputs: int
    bytes: int
    source: str
    lines: list[str]
    layers: list[str] = field(default_factory=list)

    @property
    def contents(self) -> str:
        """What it computes, in a line; equal kernels have equal lines."""
        return f"{few(self.ops, 12)}; {self.inputs} in, {self.outputs} out ({self.name})"

    def __str__(self) -> str:
        return f"{few(self.layers)}: {self.contents}"

    __repr__ = __str__


def generated(step: Step) -> GeneratedKernel:
    """Return what a step tells of its kernel."""
    op = step.node.op
    parts = [part for part, _ in op.groups(())] if isinstance(op, Together) else [op]
    nodes = [node for part in parts if isinstance(part, Fused) for node in part.graph]
    inner = [node for node in nodes if node.inputs]
    names = [source.name for source in step.kernel.sources]
    places = [node.source for node in (*inner, step.node)]
    return GeneratedKernel(
        name=names[0] + (f" and {len(names) - 1} more" if names[1:] else "") if names else "",
        ops=[n.op.name for n in inner] + [p.name for p in parts if not isinstance(p, Fused)],
        inputs=len(step.inputs),
        outputs=len(step.outputs),
        bytes=work_of(step).bytes,
        source="\n".join(source.kernel for source in step.kernel.sources),
        lines=list(dict.fromkeys(map(str, places))),
        layers=list(dict.fromkeys(place.brief for place in places)),
    )


@dataclass(frozen=True, repr=False)
class Algorithm:
    """What computes a convolution or product, and what else there was.

    result      the spec of its result
    line        the user's
    subject     what was measured, in words
    name        of the algorithm
    layout      of each input, then of the result
    seconds     that it took when it was measured; None if it was not
    workspace   bytes; None if it was not measured
    origin      "measured" now, "stored", "loaded file", or "heuristic"
    candidates  all that were measured, in every layout
    layer       that it belongs to; outside of layers, its line
    """

    op: str
    result: str
    line: str
    subject: str
    name: str
    layout: str
    seconds: float | None
    workspace: int | None
    origin: str
    candidates: list[Measurement]
    layer: str = ""

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f", {self.seconds * 1e3:.2f} ms"
        of = f" of {len(self.candidates)}" if self.candidates else ""
        return f"{self.op} {self.result}: {self.name} in {self.layout} ({self.origin}{of}{seconds})"

    __repr__ = __str__


def algorithm(step: Step) -> Algorithm | None:
    """Return what a step's kernel was chosen from; None where there was no choice."""
    choice = step.choice
    if choice is None:
        return None
    kernel = choice.kernel or step.kernel
    return Algorithm(
        op=step.node.op.name,
        result=", ".join(map(str, step.node.specs)),
        line=str(step.node.source),
        subject=choice.problem.subject,
        name=kernel.algorithm or kernel.maker,
        layout=" ".join(choice.layouts),
        seconds=choice.measurement.seconds if choice.measurement else None,
        workspace=choice.measurement.workspace if choice.measurement else None,
        origin=choice.origin,
        candidates=list(choice.rivals),
        layer=step.node.source.brief,
    )


@dataclass(frozen=True)
class LayerUse:
    """What a call does for one layer, or for one line of the program outside of layers.

    steps    kernels that run
    bytes    that they read and write at least
    flops    of convolutions and products, and one for each element that anything else computes
    seconds  that they took in the last profile of the function; None without one
    """

    layer: str
    steps: int
    bytes: int
    flops: int
    seconds: float | None = None


def layer_uses(steps: Sequence[Step], seconds: Mapping[str, float]) -> list[LayerUse]:
    """Return what the steps of a program do, by layer, in the order of the first steps.

    seconds  that layers took, where they were profiled
    """
    groups: dict[str, list[Work]] = {}
    for step in steps:
        groups.setdefault(step.node.source.brief, []).append(work_of(step))
    return [
        LayerUse(
            layer,
            steps=len(works),
            bytes=sum(w.bytes for w in works),
            flops=sum(w.flops for w in works),
            seconds=seconds.get(layer),
        )
        for layer, works in groups.items()
    ]


class Text(str):
    """Lines that show as they are, in a console and in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, repr=False)
class Report:
    """How a function came to be and what it executes; `print` it for five lines.

    `section(name)` gives the details of one subject as text, `to_dict()` everything as JSON's
    types.

    ops          how often each op is executed
    steps        for each step in order: the op, the name of its kernel, and its result; those of a
                 loop's body follow the loop, and so it is with all that is listed here
    makers       how many steps each maker of kernels computes: "c", "onednn", "numpy", ...
    layers       what a call does, by layer
    passes       what each pass made of the graph
    kernels      generated kernels
    numpy        steps that NumPy computes although the device has kernels: op, results, why, line
    stops        pairs of neighbours that were not fused, and why
    algorithms   the choice for each convolution and product, each direction
    traffic      what each collective of several processes has sent in the calls but the first
    launches     native entries from Python per call
    syncs        device synchronisations per call
    seconds      compile time by stage
    options      the options it was compiled with
    ineffective  options whose values have no effect on the device, and why
    """

    device: str
    ops: Counter[str]
    steps: list[tuple[str, str, str]]
    makers: Counter[str]
    memory: MemoryUse
    launches: int
    syncs: int
    seconds: dict[str, float]
    fingerprint: str
    options: dict[str, Any]
    ineffective: dict[str, str]
    layers: list[LayerUse] = field(default_factory=list)
    passes: list[PassRecord] = field(default_factory=list)
    kernels: list[GeneratedKernel] = field(default_factory=list)
    numpy: list[str] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    algorithms: list[Algorithm] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)

    @property
    def hidden(self) -> float | None:
        """The share of the time in flight of collectives in which the process computed.

        None before the second call, and where there are no other processes.
        """
        flown = sum(t.flown for t in self.traffic)
        return max(0.0, 1 - sum(t.waited for t in self.traffic) / flown) if flown else None

    @property
    def advice(self) -> list[str]:
        """What would make calls faster, as far as compiling tells; that with most effect first."""
        level = self.options["graph_opt_level"]
        tunes = self.options["autotune"] == "tune"
        checks = self.options["debug.check_finite"]
        guesses = sum(a.origin == "heuristic" for a in self.algorithms)
        of = f"{guesses} of {len(self.algorithms)} algorithms are guesses"
        python = f"{len(self.numpy)} of {len(self.steps)} steps run in NumPy"
        advice = (
            ("debug.check_finite=False: now each call looks at every result", checks),
            (f"graph_opt_level={-level}: now each call also runs level 0", level < 0),
            (f'section("numpy"): {python}', self.numpy),
            (f"graph_opt_level=3: now it is {level}", 0 <= level < 3),
            (f'autotune="tune": {of}', guesses and not tunes),
            (f"compile again, with a larger autotune.budget: {of}", guesses and tunes),
            ("bulk=True: now each kernel is a call", not self.options["bulk"]),
        )
        return [text for text, holds in advice if holds]

    def section(self, name: str) -> Text:
        """Return the details of one subject as text; GraphError lists the names if it has none.

        Where there are no details, such as steps that NumPy computes, the text is "none".
        """
        if name not in SECTIONS:
            raise GraphError(f"a report has no section {name!r}; it has {', '.join(SECTIONS)}")
        return Text("\n".join(SECTIONS[name](self)) or "none")

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the report holds, and its advice, as JSON's types."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "advice": self.advice}

    def __str__(self) -> str:
        makers = ", ".join(f"{count} by {name}" for name, count in self.makers.most_common())
        return "\n".join(
            (
                f"function {self.fingerprint[-7:]} on {self.device} at level "
                f"{self.options['graph_opt_level']}: {len(self.steps)} steps ({makers}), "
                f"native calls {self.launches}, synchronisations {self.syncs}; "
                f"compiled in {sum(self.seconds.values()):.2f} s",
                f"  layers    {self._heaviest()}",
                f"  memory    {_memory(self.memory)}",
                *([f"  processes {self._travels()}"] if self.traffic else []),
                f"  try       {'; '.join(self.advice) or 'step.profile(...), for what takes long'}",
                f'  details   report.section("{next(iter(SECTIONS))}"), and so '
                f"{', '.join([*SECTIONS][1:])}",
            )
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _travels(self) -> str:
        sent = amount(sum(t.bytes for t in self.traffic))
        hidden = "" if self.hidden is None else f", {self.hidden:.0%} of their time hidden"
        return f"exchange {sent} a call in {len(self.traffic)} collectives{hidden}"

    def _heaviest(self) -> str:
        """Return the slowest layers; without a profile, those with most arithmetic."""
        profiled = [use for use in self.layers if use.seconds is not None]
        if profiled:
            total = sum(use.seconds or 0.0 for use in profiled) or 1.0
            slowest = sorted(profiled, key=lambda use: -(use.seconds or 0.0))[:FEW]
            times = (
                f"{use.layer} {1e3 * (use.seconds or 0.0):.3g} ms "
                f"({(use.seconds or 0.0) / total:.0%})"
                for use in slowest
            )
            return f"slowest of {len(self.layers)}: {', '.join(times)}"
        total = sum(use.flops for use in self.layers) or 1
        most = sorted(self.layers, key=lambda use: -use.flops)[:FEW]
        shares = ", ".join(f"{use.layer} ({use.flops / total:.0%})" for use in most)
        return (
            f"most of {_operations(total)} in {shares or 'none'}; "
            "after step.profile(...) the slowest"
        )


def report_of(compilation: Compilation, layer_seconds: Mapping[str, float]) -> Report:
    """Return the report of what was compiled.

    layer_seconds  by layer, how long it took in the last profile, if there is one
    """
    context, program = compilation.context, compilation.program
    steps = list(program.all_steps())
    graphs = [program.graph, *(step.kernel.body.graph for step in steps if step.kernel.body)]
    nodes = [node for graph in graphs for node in graph if not isinstance(node.op, LEAVES)]
    return Report(
        device=context.backend.device,
        ops=Counter(node.op.name for node in nodes),
        steps=[
            (step.node.op.name, step.kernel.name, ", ".join(map(str, step.node.specs)))
            for step in steps
        ],
        makers=Counter(step.kernel.maker for step in steps),
        layers=layer_uses(program.steps, layer_seconds),
        memory=memory_use(program),
        launches=compilation.executor.launches,
        syncs=compilation.executor.syncs,
        seconds=dict(compilation.seconds),
        fingerprint=compilation.environment["fingerprint"],
        options=dict(context.options),
        ineffective=ineffective(context.options, context.backend.ignored_options),
        passes=[*compilation.records, *([program.recomputed] if program.recomputed else [])],
        kernels=[generated(s) for s in steps if isinstance(s.node.op, GENERATED)],
        numpy=[
            f"{step.node} ({step.kernel.why_numpy}), made {step.node.source}"
            for step in steps
            if step.kernel.why_numpy
        ],
        stops=[stop for record in compilation.records for stop in record.stops],
        algorithms=[a for a in map(algorithm, steps) if a],
        traffic=[t for t in (step.kernel.traffic for step in steps) if t],
    )


def preformatted(text: str) -> str:
    """Return text as HTML that shows it as it is."""
    return f"<pre>{html.escape(text)}</pre>"


def _scaled(number: float, step: int, units: Sequence[str]) -> tuple[float, str]:
    """Return a number in the first of some units, each `step` times the one before, that suits."""
    powers = [step**i for i in range(1, len(units) + 1)]
    fits = (i for i, power in enumerate(powers[1:]) if number < power)
    i = next(fits, len(units) - 1)
    return number / powers[i], units[i]


def amount(nbytes: int) -> str:
    """Return a number of bytes in the unit that suits it, as pages do: "1.5 MiB"."""
    number, unit = _scaled(nbytes, 1024, ("KiB", "MiB", "GiB"))
    return f"{number:.1f} {unit}"


def _operations(count: float) -> str:
    number, unit = _scaled(count, 1000, ("kFLOP", "MFLOP", "GFLOP"))
    return f"{number:.3g} {unit}"


def _memory(memory: MemoryUse) -> str:
    return (
        f"{amount(memory.arena_bytes)} arena ({amount(memory.unplanned_bytes)} without reuse), "
        f"{amount(memory.parameter_bytes)} parameters"
    )


# ---------------------------------------------------------------- sections


def _alike(items: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each text of (layer, text): how often it occurs, and in which layers."""
    layers: dict[str, list[str]] = {}
    for layer, text in items:
        layers.setdefault(text, []).append(layer)
    return [
        f"{len(names)} x {text}; in {few(list(dict.fromkeys(names)))}"
        for text, names in layers.items()
    ]


def _table_of_layers(report: Report) -> list[str]:
    width = max((len(use.layer) for use in report.layers), default=0)
    lines = [f"{'layer':{width}} {'steps':>6} {'MB':>9} {'MFLOP':>10} {'ms':>9}"]
    for use in sorted(report.layers, key=lambda use: (-(use.seconds or 0.0), -use.flops)):
        ms = "" if use.seconds is None else f"{1e3 * use.seconds:9.3f}"
        lines.append(
            f"{use.layer:{width}} {use.steps:6} {use.bytes / 1e6:9.2f} {use.flops / 1e6:10.2f} {ms}"
        )
    return [line.rstrip() for line in lines]


def _steps(report: Report) -> list[str]:
    makers = ", ".join(f"{count} by {name}" for name, count in report.makers.most_common())
    return [
        f"steps      {len(report.steps)}: {makers}",
        f"ops        {', '.join(f'{name} {count}' for name, count in report.ops.most_common())}",
        *(f"  {op} {result}: {kernel}" for op, kernel, result in report.steps),
    ]


def _memory_lines(report: Report) -> list[str]:
    memory = report.memory
    return [
        _memory(memory),
        f"{amount(memory.peak_bytes)} with constants and results; the largest intermediates:",
        *(f"  {amount(nbytes)} {text}" for text, nbytes in memory.largest),
    ]


def _not_fused(report: Report) -> list[str]:
    reasons = Counter(stop.reason for stop in report.stops)
    return [
        *(f"{count} x {why}" for why, count in reasons.most_common()),
        *(f"  {stop}" for stop in report.stops),
    ]


def _traffic(report: Report) -> list[str]:
    return [
        f"{t.what}: {t.times} times, {1e3 * t.flown / max(t.times, 1):.3g} ms on the way, of which "
        f"{1e3 * t.waited / max(t.times, 1):.3g} ms waited for"
        for t in report.traffic
    ]


def _options(report: Report) -> list[str]:
    return [
        *(f"{name} = {value!r}" for name, value in report.options.items()),
        *(f"no effect  {name}: {why}" for name, why in report.ineffective.items()),
    ]


SECTIONS: dict[str, Callable[[Report], list[str]]] = {
    "layers": _table_of_layers,
    "steps": _steps,
    "memory": _memory_lines,
    "passes": lambda report: list(map(str, report.passes)),
    "kernels": lambda report: _alike([(few(k.layers), k.contents) for k in report.kernels]),
    "algorithms": lambda report: _alike([(a.layer, str(a)) for a in report.algorithms]),
    "numpy": lambda report: report.numpy,
    "stops": _not_fused,
    "traffic": _traffic,
    "compiling": lambda report: [f"{stage} {s:.3f} s" for stage, s in report.seconds.items()],
    "options": _options,
    "advice": lambda report: report.advice,
}
