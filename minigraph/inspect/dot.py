"""What a function executes as a graph in Graphviz's language: by layer, or every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from typing import NamedTuple

from minigraph.arguments import few
from minigraph.devices.cost import work_of
from minigraph.graph import Constant, Input, Node, Parameter
from minigraph.program import Buffer, Program, Step

MAKERS = {  # by what computes a step; what is not here is grey
    "onednn": "#f4b183",
    "cudnn": "#f4b183",
    "c": "#a9d18e",
    "cuda": "#a9d18e",
    "numpy": "#ffd966",
}
OTHER = "#d9d9d9"
FORWARD, BACKWARD = "#bdd7ee", "#f8cbad"
BOXES = 80  # of layers in a picture; Graphviz's time grows with their square
HEAD = ["digraph {", '  node [shape=box, style=filled, fontname="sans-serif"];']


def sources(program: Program) -> Iterator[tuple[Step, list[Step | Node]]]:
    """Yield each step with what it reads: earlier steps, inputs, parameters and constants."""
    made: dict[Buffer, Step | Node] = {b: b.node for b in program.buffers if b.node is not None}
    for step in program.steps:
        yield step, [made[view.buffer] for view in step.inputs]
        for view in step.outputs:
            made[view.buffer] = step


def every_step(program: Program) -> str:
    """Return the graph of the steps with their inputs and parameters; constants are left out."""
    ids: dict[Step | Node, str] = {}
    lines = []
    for step, read in sources(program):
        ids[step] = f"s{len(ids)}"
        tip = f"{step.kernel.name} {step.node.source}"
        label = f"{step.node.op.name}\n{', '.join(map(str, step.node.specs))}"
        lines.append(_box(ids[step], label, MAKERS.get(step.kernel.maker, OTHER), tip))
        for source in read:
            if isinstance(source, Node) and isinstance(source.op, Constant):
                continue
            if source not in ids:
                assert isinstance(source, Node), "steps are named when they are made"
                ids[source] = f"s{len(ids)}"
                lines.append(_leaf(ids[source], source))
            lines.append(f"  {ids[source]} -> {ids[step]};")
    return "\n".join([*HEAD, *lines, "}", ""])


class Group(NamedTuple):
    """The steps of a box: of a layer, or a line of the program, forwards or backwards."""

    layer: str
    backward: bool


def by_layer(program: Program) -> str:
    """Return the graph of the layers, with the inputs; parameters are counted in the boxes.

    Layers are as deep as a picture of some boxes allows; a deeper one is in the box of the layer
    around it.
    """
    groups = _groups(program)
    ids = {group: f"g{i}" for i, group in enumerate(dict.fromkeys(groups.values()))}
    steps: dict[Group, list[Step]] = {group: [] for group in ids}
    parameters: dict[Group, set[Node]] = {group: set() for group in ids}
    edges: Counter[tuple[str, str]] = Counter()
    leaves: dict[Node, str] = {}
    for step, read in sources(program):
        group = groups[step]
        steps[group].append(step)
        for source in read:
            if isinstance(source, Parameter):
                parameters[group].add(source)
            elif isinstance(source, Step):
                if groups[source] != group:
                    edges[ids[groups[source]], ids[group]] += 1
            elif isinstance(source.op, Input):
                edges[leaves.setdefault(source, f"i{len(leaves)}"), ids[group]] += 1
    lines = [_leaf(name, node) for node, name in leaves.items()]
    lines += [_layer(ids[group], group, steps[group], len(parameters[group])) for group in ids]
    for (begin, end), count in edges.items():
        label = f' [label="{count} arrays"]' if count > 1 else ""
        lines.append(f"  {begin} -> {end}{label};")
    return "\n".join([*HEAD, *lines, "}", ""])


def _groups(program: Program) -> Mapping[Step, Group]:
    """Return the box of each step, with layers as deep as possible."""
    deepest = max((step.node.source.layer.count(".") + 1 for step in program.steps), default=1)
    for depth in range(deepest, 0, -1):
        groups = {step: _group(step, depth) for step in program.steps}
        if depth == 1 or len(set(groups.values())) <= BOXES:
            break
    return groups


def _group(step: Step, depth: int) -> Group:
    place = step.node.source
    layer = ".".join(place.layer.split(".")[:depth]) or place.brief
    return Group(layer, place.backward)


def _layer(name: str, group: Group, steps: list[Step], parameters: int) -> str:
    ops = Counter(step.node.op.name for step in steps)
    counts = [op if n == 1 else f"{n} {op}" for op, n in ops.most_common()]
    flops = sum(work_of(step).flops for step in steps)
    label = "\n".join(
        (
            f"{group.layer}{', backward' if group.backward else ''}",
            few(counts),
            f"{flops / 1e6:.3g} MFLOP" + f", {parameters} parameters" * bool(parameters),
        )
    )
    tip = "\n".join(dict.fromkeys(str(step.node.source) for step in steps[:20]))
    return _box(name, label, BACKWARD if group.backward else FORWARD, tip)


def _box(name: str, label: str, colour: str, tip: str) -> str:
    return f'  {name} [label="{_text(label)}", fillcolor="{colour}", tooltip="{_text(tip)}"];'


def _leaf(name: str, node: Node) -> str:
    shape = "ellipse" if isinstance(node, Parameter) else "hexagon"
    label = _text(str(node.op) if isinstance(node.op, Input) else node.name)
    return f'  {name} [label="{label}", shape={shape}, fillcolor=white];'


def _text(text: str) -> str:
    """Return text as it stands between quotes."""
    return escape(text.replace("\\", "\\\\"), quote=True).replace("\n", "\\n")
