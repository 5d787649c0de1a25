"""What a function executes as a graph in Graphviz's language: by layer, or every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from minigraph.arguments import few
from minigraph.inspect.record import BufferRecord, Description, StepRecord, layer_path

MAKERS = {  # by what computes a step; what is not here is grey
    "onednn": "#f4b183",
    "cublas": "#f4b183",
    "cudnn": "#f4b183",
    "c": "#a9d18e",
    "cuda": "#a9d18e",
    "numpy": "#ffd966",
}
OTHER = "#d9d9d9"
FORWARD, BACKWARD = "#bdd7ee", "#f8cbad"
BOXES = 80  # of layers in a picture; Graphviz's time grows with their square
HEAD = ["digraph {", '  node [shape=box, style=filled, fontname="sans-serif"];']

Source = int | BufferRecord  # the number of a step, or an input, parameter or constant


def _sources(d: Description) -> Iterator[tuple[int, Sequence[Source]]]:
    """Yield the number of each step with what it reads; bodies of loops are left out."""
    made: dict[int, Source] = {b.id: b for b in d.buffers if b.space != "arena"}
    for i, step in enumerate(d.steps):
        if step.loop is None:
            yield i, [made[buffer] for buffer in step.reads]
            made |= dict.fromkeys(step.writes, i)


class LayerBox(NamedTuple):
    """The steps of a box: of a layer, or a line of the program, forwards or backwards."""

    layer: str
    backward: bool


Group = int | LayerBox  # the steps of a box: one, or those of a layer


def drawn(d: Description, whole: bool) -> str:
    """Return the graph of the layers or, if it is `whole`, of every step; without constants.

    Layers are as deep as a picture of some boxes allows; a deeper one is in the box of the layer
    around it.  Their boxes count parameters, which stand beside those of steps.
    """
    groups: Mapping[int, Group] = {i: i for i, _ in _sources(d)} if whole else _layers(d)
    names = {group: f"g{i}" for i, group in enumerate(dict.fromkeys(groups.values()))}
    steps: dict[Group, list[StepRecord]] = {group: [] for group in names}
    parameters: dict[Group, set[int]] = {group: set() for group in names}
    edges: Counter[tuple[str, str]] = Counter()
    leaves: dict[BufferRecord, str] = {}
    for i, sources in _sources(d):
        group = groups[i]
        steps[group].append(d.steps[i])
        for source in sources:
            if isinstance(source, int):
                if groups[source] != group:
                    edges[names[groups[source]], names[group]] += 1
            elif source.space == "input" or (whole and source.space == "parameter"):
                edges[leaves.setdefault(source, f"i{len(leaves)}"), names[group]] += 1
            elif source.space == "parameter":
                parameters[group].add(source.id)
    lines = [_leaf(name, buffer) for buffer, name in leaves.items()]
    for group, name in names.items():
        if isinstance(group, LayerBox):
            lines.append(_layer(name, group, steps[group], len(parameters[group])))
        else:
            lines.append(_step(name, *steps[group]))
    for (begin, end), count in edges.items():
        label = f' [label="{count} arrays"]' if count > 1 else ""
        lines.append(f"  {begin} -> {end}{label};")
    return "\n".join([*HEAD, *lines, "}", ""])


def _layers(d: Description) -> Mapping[int, LayerBox]:
    """Return the box of each step, with layers as deep as possible."""
    steps = {i: step for i, step in enumerate(d.steps) if step.loop is None}
    deepest = max((len(layer_path(step.layer)) for step in steps.values()), default=1)
    for depth in range(deepest, 0, -1):
        groups = {
            i: LayerBox(".".join(layer_path(step.layer)[:depth]), step.backward)
            for i, step in steps.items()
        }
        if depth == 1 or len(set(groups.values())) <= BOXES:
            break
    return groups


def _step(name: str, step: StepRecord) -> str:
    colour = MAKERS.get(step.maker, OTHER)
    return _box(name, f"{step.name}\n{step.result}", colour, f"{step.kernel} {step.line}")


def _layer(name: str, group: LayerBox, steps: Sequence[StepRecord], parameters: int) -> str:
    ops = Counter(step.name for step in steps)
    counts = [op if n == 1 else f"{n} {op}" for op, n in ops.most_common()]
    flops = sum(step.flops for step in steps)
    label = "\n".join(
        (
            f"{group.layer}{', backward' if group.backward else ''}",
            few(counts),
            f"{flops / 1e6:.3g} MFLOP" + f", {parameters} parameters" * bool(parameters),
        )
    )
    tip = "\n".join(dict.fromkeys(step.line for step in steps[:20]))
    return _box(name, label, BACKWARD if group.backward else FORWARD, tip)


def _box(name: str, label: str, colour: str, tip: str) -> str:
    return f'  {name} [label="{_text(label)}", fillcolor="{colour}", tooltip="{_text(tip)}"];'


def _leaf(name: str, buffer: BufferRecord) -> str:
    shape = "ellipse" if buffer.space == "parameter" else "hexagon"
    return f'  {name} [label="{_text(buffer.name)}", shape={shape}, fillcolor=white];'


def _text(text: str) -> str:
    """Return text as it stands between quotes."""
    return escape(text.replace("\\", "\\\\"), quote=True).replace("\n", "\\n")
