"""Pictures of what a function executes: Graphviz's dot, and a page of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from minigraph.graph import Constant, Input, Node, Parameter
from minigraph.program import Buffer, Program, Step

# By what computes a step; what is not here is grey.
COLOURS = {
    "onednn": "#f4b183",
    "cudnn": "#f4b183",
    "c": "#a9d18e",
    "cuda": "#a9d18e",
    "numpy": "#ffd966",
}


def _colour(step: Step) -> str:
    return COLOURS.get(step.kernel.maker, "#d9d9d9")


def _name(node: Node) -> str:
    return str(node.op) if isinstance(node.op, Input | Constant) else node.name


def _sources(program: Program) -> Iterator[tuple[Step, list[Step | Node]]]:
    """Yield each step with what it reads: earlier steps, inputs, parameters and constants."""
    made: dict[Buffer, Step | Node] = {b: b.node for b in program.buffers if b.node is not None}
    for step in program.steps:
        yield step, [made[view.buffer] for view in step.inputs]
        for view in step.outputs:
            made[view.buffer] = step


def to_dot(program: Program) -> str:
    """Return the steps as a graph in Graphviz's language; constants are left out."""
    ids: dict[Step | Node, str] = {}
    lines = ["digraph {", '  node [shape=box, style=filled, fontname="sans-serif"];']
    for step, sources in _sources(program):
        ids[step] = f"s{len(ids)}"
        label = f"{step.node.op.name}\\n{', '.join(map(str, step.node.specs))}"
        colour = _colour(step)
        tip = escape(f"{step.kernel.name} {step.node.source}", quote=True)
        lines.append(f'  {ids[step]} [label="{label}", fillcolor="{colour}", tooltip="{tip}"];')
        for source in sources:
            if isinstance(source, Node) and isinstance(source.op, Constant):
                continue
            if source not in ids:
                assert isinstance(source, Node), "steps are named when they are made"
                ids[source] = f"s{len(ids)}"
                shape = "ellipse" if isinstance(source, Parameter) else "hexagon"
                label = escape(_name(source), quote=True)
                lines.append(f'  {ids[source]} [label="{label}", shape={shape}, fillcolor=white];')
            lines.append(f"  {ids[source]} -> {ids[step]};")
    return "\n".join([*lines, "}", ""])


PAGE = """<!doctype html>
<meta charset="utf-8">
<title>minigraph {title}</title>
<style>
:root {{ color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }}
body {{ margin: 2em; }}
pre {{ white-space: pre-wrap; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .1em .7em; text-align: left; border-bottom: 1px solid #8884; }}
td:first-child {{ text-align: right; }}
tr:target {{ outline: 2px solid; }}
.dot {{ display: inline-block; width: .7em; height: .7em; margin-right: .4em; }}
</style>
<h1>function {title}</h1>
<pre>{report}</pre>
<table>
<tr><th>step<th>op<th>computed by<th>result<th>reads<th>made</tr>
{rows}
</table>
"""


def to_html(program: Program, title: str, report: str) -> str:
    """Return a page that lists the steps in their order, with links to what each reads."""
    number = {step: i for i, step in enumerate(program.steps)}
    rows = []
    for step, sources in _sources(program):
        colour = _colour(step)
        cells: Sequence[str] = (
            str(number[step]),
            escape(str(step.node.op)),
            f'<span class="dot" style="background:{colour}"></span>{escape(step.kernel.name)}',
            escape(", ".join(map(str, step.node.specs))),
            ", ".join(
                f'<a href="#s{number[x]}">{number[x]}</a>'
                if isinstance(x, Step)
                else escape(_name(x))
                for x in sources
            ),
            escape(str(step.node.source)),
        )
        rows.append(f'<tr id="s{number[step]}"><td>' + "<td>".join(cells) + "</tr>")
    return PAGE.format(title=escape(title), report=escape(report), rows="\n".join(rows))
