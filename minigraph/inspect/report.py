"""Summaries of a compiled function as text: its kernels, memory, layers and advice."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from minigraph.arguments import first_names, shorten
from minigraph.errors import GraphError
from minigraph.inspect.record import Algorithm, Description, GeneratedKernel, MemoryUse
from minigraph.inspect.roofline import Cost
from minigraph.options import MEASURING
from minigraph.passes.notes import MissedFusion, PassRecord
from minigraph.program import Traffic

WIDTH = 80  # of a line of the summary
# The minimum saving for which the report advises fusion: share of the bytes moved, and bytes.
MIN_SAVED_SHARE, MIN_SAVED_BYTES = 0.1, 1 << 16


class Text(str):
    """A string that consoles and notebooks print without quotes and escapes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Report:
    """How a function was compiled and what it executes; `print` shows a summary of five lines.

    `section(name)` returns the details of one subject as text, `to_dict()` everything as JSON's
    types.  In all lists, the steps of a loop's body follow the loop.

    title        names of the results, and the number of updated parameters
    ops          number of executions of each op
    steps        of each step in order: the op, the name of its kernel, and its result
    makers       number of steps by the maker of their kernels: "c", "onednn", "numpy", ...
    memory       bytes of the function's memory
    layers       the work of a call, by layer
    passes       what each pass changed in the graph
    kernels      generated kernels of fused ops
    numpy        steps that NumPy computes although the device has kernels: op, results, why, line
    stops        pairs of neighbours that were not fused, and why
    algorithms   the choice for each convolution and product, each direction
    traffic      the communication of each collective in all calls but the first
    launches     native calls from Python in a call
    syncs        device synchronisations in a call
    seconds      compile time by stage
    fingerprint  40 hexadecimal digits that identify the graph, options, device and versions
    options      the options of the compilation
    ineffective  options whose values have no effect on the device, and why
    fusible      an estimate of the bytes that fusion would save a call
    """

    def __init__(self, description: Description) -> None:
        d = description
        self.title: str = d.title
        self.device: str = d.device
        self.ops: Counter[str] = Counter(d.ops)
        self.steps: list[tuple[str, str, str]] = [(s.name, s.kernel, s.result) for s in d.steps]
        self.makers: Counter[str] = Counter(step.maker for step in d.steps)
        self.memory: MemoryUse = d.memory
        self.launches: int = d.launches
        self.syncs: int = d.syncs
        self.seconds: dict[str, float] = d.seconds
        self.fingerprint: str = d.fingerprint
        self.options: dict[str, Any] = d.options
        self.ineffective = d.ineffective
        self.layers: list[Cost] = d.layers
        self.passes: list[PassRecord] = list(d.passes)
        fused = (step.generated for step in d.steps if step.name == "fused")
        self.kernels: list[GeneratedKernel] = [d.kernels[i] for i in fused if i is not None]
        self.numpy: list[str] = [f"{s.numpy}, made {s.line}" for s in d.steps if s.numpy]
        self.stops: list[MissedFusion] = d.stops
        self.algorithms: list[Algorithm] = list(d.algorithms)
        self.traffic: list[Traffic] = list(d.traffic)
        self.fusible: int = _fusible(d)

    @property
    def hidden(self) -> float | None:
        """The share of the collectives' time that computation overlaps.

        None before the second call, and in a single process.
        """
        pending = sum(t.pending for t in self.traffic)
        return max(0.0, 1 - sum(t.waited for t in self.traffic) / pending) if pending else None

    @property
    def advice(self) -> list[str]:
        """Changes that would make calls faster, the most effective first."""
        level = self.options["graph_opt_level"]
        tunes = self.options["autotune"] in MEASURING
        guesses = sum(a.origin == "heuristic" for a in self.algorithms)
        untuned = f"{guesses} of {len(self.algorithms)} algorithms are heuristic choices"
        numpy = f"{len(self.numpy)} of {len(self.steps)} steps run in NumPy"
        share = self.fusible / (sum(cost.bytes for cost in self.layers) or 1)
        saved = f"fusion saves {share:.0%} of the memory traffic (estimate)"
        worthwhile = share >= MIN_SAVED_SHARE and self.fusible >= MIN_SAVED_BYTES
        advice = (
            (
                "debug.check_finite=False: each call now inspects all results",
                self.options["debug.check_finite"],
            ),
            (f"graph_opt_level={-level}: each call now also runs level 0", level < 0),
            (f'section("numpy"): {numpy}', self.numpy),
            (f"graph_opt_level=3: {saved}", 0 <= level < 3 and worthwhile),
            (f'autotune="tune": {untuned}', guesses and not tunes),
            (f"a larger autotune.budget: {untuned}", guesses and tunes),
            ("bulk=True: each kernel is now a call of its own", not self.options["bulk"]),
        )
        return [text for text, applies in advice if applies]

    def section(self, name: str = "") -> Text:
        """Return the details of one subject as text; "none" if there are none.

        Without a name: the names of all sections.  Raises GraphError for an unknown name.
        """
        if not name:
            return Text(", ".join(SECTIONS))
        if name not in SECTIONS:
            raise GraphError(f"a report has no section {name!r}; it has {', '.join(SECTIONS)}")
        return Text("\n".join(SECTIONS[name](self)) or "none")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields of the report, and its advice, as JSON's types."""
        everything: dict[str, Any] = msgspec.to_builtins({**vars(self), "advice": self.advice})
        return everything

    def __str__(self) -> str:
        """Return five lines of at most 80 columns, and a sixth if processes exchange arrays."""
        facts = (
            f": level {self.options['graph_opt_level']} on {self.device}, "
            f"{counted(len(self.steps), 'kernel')}, compiled in {sum(self.seconds.values()):.1f} s"
        )
        return "\n".join(
            (
                shorten(self.title, WIDTH - len(facts)) + facts,
                self._layers_line(),
                f"  memory    {_memory(self.memory)}",
                *([self._traffic_line()] if self.traffic else []),
                _fit_line("  try       ", self.advice or [PROFILE_ADVICE], "; "),
                '  details   report.section("layers"), "steps", "kernels"; all: report.section()',
            )
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    def _traffic_line(self) -> str:
        volume = bytes_text(sum(t.bytes for t in self.traffic))
        hidden = "" if self.hidden is None else f"; computation overlaps {self.hidden:.0%}"
        collectives = counted(len(self.traffic), "collective")
        return f"  processes exchange {volume} a call, {collectives}{hidden}"

    def _layers_line(self) -> str:
        """Return the line of the slowest layers; without a profile, of those with most FLOPs."""
        timed = any(cost.seconds for cost in self.layers)
        amounts = {c.name: c.seconds or 0.0 if timed else c.flops for c in self.layers}
        total = sum(amounts.values()) or 1
        all_of_them = milliseconds(total) if timed else _operations(total)
        shares = [f"{layer} {part / total:.0%}" for layer, part in amounts.items()]
        return _fit_line(f"  layers    {all_of_them}: ", shares or ["none"], ", ")


PROFILE_ADVICE = "step.profile(...): the time of each layer and kernel"


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: "1 kernel", "2 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _fit_line(head: str, parts: Sequence[str], between: str) -> str:
    """Return a line of the first parts that fit; shorten the first if it is too long."""
    line = head + shorten(parts[0], WIDTH - len(head))
    for part in parts[1:]:
        if len(line) + len(between) + len(part) > WIDTH:
            break
        line += between + part
    return line


def align_columns(
    rows: Sequence[Sequence[str]], others: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Return a line for each row, with aligned columns.

    others  alignment of all columns but the first: str.ljust, or str.rjust
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([row[0].ljust(widths[0]), *map(others, row[1:], widths[1:])] for row in rows)
    return ["  ".join(cells).rstrip() for cells in lines]


def preformatted(text: str) -> str:
    """Return text as HTML that keeps its line breaks and spaces."""
    return f"<pre>{html.escape(text)}</pre>"


def _scaled(number: float, step: int, units: Sequence[str]) -> tuple[float, str]:
    """Return a number in the unit that fits it; each unit is `step` times the one before."""
    powers = [step**i for i in range(1, len(units) + 1)]
    fits = (i for i, power in enumerate(powers[1:]) if number < power)
    i = next(fits, len(units) - 1)
    return number / powers[i], units[i]


def bytes_text(nbytes: int) -> str:
    """Return a number of bytes with a unit: "1.5 MiB"."""
    number, unit = _scaled(nbytes, 1024, ("KiB", "MiB", "GiB"))
    return f"{number:.1f} {unit}"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with three digits."""
    ms = 1e3 * seconds
    return f"{ms:.3f} ms" if ms < 1 else f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"


def _operations(count: float) -> str:
    if count < 1000:
        return f"{count} FLOP"
    number, unit = _scaled(count, 1000, ("kFLOP", "MFLOP", "GFLOP"))
    return f"{number:.3g} {unit}"


def _fusible(d: Description) -> int:
    """Return how many bytes fusible kernels read from buffers that fusible kernels write.

    Fusion keeps these in registers; it has further conditions, so this is an estimate.
    """
    size = {buffer.id: buffer.bytes for buffer in d.buffers if buffer.space == "arena"}
    steps = [step for step in d.steps if step.fusible]
    buffers = {buffer for step in steps for buffer in step.writes}
    return sum(size.get(buffer, 0) for step in steps for buffer in buffers.intersection(step.reads))


def _memory(memory: MemoryUse) -> str:
    return (
        f"{bytes_text(memory.arena_bytes)} arena "
        f"({bytes_text(memory.unplanned_bytes)} without reuse), "
        f"{bytes_text(memory.parameter_bytes)} parameters"
    )


# ---------------------------------------------------------------- sections


def _grouped(items: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each text of pairs (layer, text), with its count and its layers."""
    layers: dict[str, list[str]] = {}
    for layer, text in items:
        layers.setdefault(text, []).append(layer)
    return [
        f"{len(names)} x {text}; in {first_names([*dict.fromkeys(names)])}"
        for text, names in layers.items()
    ]


COLUMNS: dict[str, Callable[[Cost], str]] = {
    "kernels": lambda c: str(c.kernels),
    "ms": lambda c: "" if c.seconds is None else f"{1e3 * c.seconds:.3f}",
    "share": lambda c: "" if c.share is None else f"{c.share:.1%}",
    "MB": lambda c: f"{c.bytes / 1e6:.2f}",
    "MFLOP": lambda c: f"{c.flops / 1e6:.2f}",
    "roofline": lambda c: "" if c.roofline is None else f"{c.roofline:.0%}",
}


def cost_table(title: str, costs: Sequence[Cost]) -> list[str]:
    """Return the lines of a table without its empty columns."""
    head, cells = [title, *COLUMNS], [[c.name, *(f(c) for f in COLUMNS.values())] for c in costs]
    columns = [column for column in zip(head, *cells, strict=True) if any(column[1:])]
    return align_columns([*zip(*columns, strict=True)] or [head], str.rjust)


def _steps(report: Report) -> list[str]:
    makers = ", ".join(f"{count} by {name}" for name, count in report.makers.most_common())
    return [
        f"steps      {len(report.steps)}: {makers}",
        f"a call     {counted(report.launches, 'native call')}, "
        f"{counted(report.syncs, 'synchronisation')}",
        f"ops        {', '.join(f'{name} {count}' for name, count in report.ops.most_common())}",
        *(f"  {op} {result}: {kernel}" for op, kernel, result in report.steps),
    ]


def _memory_lines(report: Report) -> list[str]:
    memory = report.memory
    return [
        _memory(memory),
        f"{bytes_text(memory.peak_bytes)} with constants and results; the largest intermediates:",
        *(f"  {bytes_text(nbytes)} {text}" for text, nbytes in memory.largest),
    ]


def _not_fused(report: Report) -> list[str]:
    reasons = Counter(stop.reason for stop in report.stops)
    return [
        *(f"{count} x {why}" for why, count in reasons.most_common()),
        *(f"  {stop}" for stop in report.stops),
    ]


def _traffic(report: Report) -> list[str]:
    return [
        f"{t.what}: {t.times} times, {1e3 * t.pending / max(t.times, 1):.3g} ms each, "
        f"of which computation does not overlap {1e3 * t.waited / max(t.times, 1):.3g} ms"
        for t in report.traffic
    ]


def _options(report: Report) -> list[str]:
    return [
        *(f"{name} = {value!r}" for name, value in report.options.items()),
        *(f"no effect  {name}: {why}" for name, why in report.ineffective.items()),
    ]


SECTIONS: dict[str, Callable[[Report], list[str]]] = {
    "layers": lambda report: cost_table("layer", report.layers),
    "steps": _steps,
    "memory": _memory_lines,
    "passes": lambda report: list(map(str, report.passes)),
    "kernels": lambda report: _grouped(
        [(first_names(k.layers), k.contents) for k in report.kernels]
    ),
    "algorithms": lambda report: _grouped([(a.layer, str(a)) for a in report.algorithms]),
    "numpy": lambda report: report.numpy,
    "stops": _not_fused,
    "traffic": _traffic,
    "compiling": lambda report: [f"{stage} {s:.3f} s" for stage, s in report.seconds.items()],
    "options": _options,
    "advice": lambda report: report.advice,
}
