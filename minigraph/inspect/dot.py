"""The steps of a function in Graphviz's language: a box for each step, grouped by layer."""

from __future__ import annotations

from html import escape

from minigraph.inspect.record import Description, StepRecord

MAKER_COLOURS = {  # by the maker of a kernel
    "onednn": "#f4b183",
    "cublas": "#f4b183",
    "cudnn": "#f4b183",
    "c": "#a9d18e",
    "cuda": "#a9d18e",
    "numpy": "#ffd966",
}
OTHER_COLOUR = "#d9d9d9"
HEADER = """digraph {
  graph [style=rounded, fontname="sans-serif"];
  node [shape=box, style=filled, fontname="sans-serif"];"""


def to_dot(d: Description) -> str:
    """Return the graph of a call's steps, without constants and the bodies of loops."""
    layers: dict[str, list[str]] = {}
    leaves: list[str] = []
    edges: dict[str, None] = {}
    writers: dict[int, str] = {}  # the box that wrote a buffer last
    names = {b.id: b.name for b in d.buffers if b.space in ("input", "parameter")}
    for i, step in enumerate(d.steps):
        if step.loop is not None:
            continue
        for buffer in step.reads:
            if buffer in names and buffer not in writers:
                writers[buffer] = f"b{buffer}"
                leaves.append(f'  b{buffer} [label="{_text(names[buffer])}", fillcolor=white];')
            if buffer in writers:
                edges[f"  {writers[buffer]} -> s{i};"] = None
        layers.setdefault(step.layer, []).append(_step(i, step))
        writers |= dict.fromkeys(step.writes, f"s{i}")
    lines = [HEADER, *leaves]
    for i, (layer, steps) in enumerate(layers.items()):
        lines += [f'  subgraph cluster{i} {{ label="{_text(layer)}";', *steps, "  }"]
    return "\n".join([*lines, *edges, "}", ""])


def _step(i: int, step: StepRecord) -> str:
    label, tip = f"{step.name}\n{step.result}", f"{step.kernel} {step.line}"
    colour = MAKER_COLOURS.get(step.maker, OTHER_COLOUR)
    return f'    s{i} [label="{_text(label)}", fillcolor="{colour}", tooltip="{_text(tip)}"];'


def _text(text: str) -> str:
    """Return text escaped for quotes."""
    return escape(text.replace("\\", "\\\\"), quote=True).replace("\n", "\\n")
