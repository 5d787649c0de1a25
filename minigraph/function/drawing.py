"""A page of HTML about what a function executes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from minigraph.function.dot import MAKERS, OTHER, sources
from minigraph.graph import Constant, Input, Node
from minigraph.program import Program, Step


def _colour(step: Step) -> str:
    return MAKERS.get(step.kernel.maker, OTHER)


def _name(node: Node) -> str:
    return str(node.op) if isinstance(node.op, Input | Constant) else node.name


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
    for step, read in sources(program):
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
                for x in read
            ),
            escape(str(step.node.source)),
        )
        rows.append(f'<tr id="s{number[step]}"><td>' + "<td>".join(cells) + "</tr>")
    return PAGE.format(title=escape(title), report=escape(report), rows="\n".join(rows))
