"""An expression as HTML, for notebooks: the ops nearest to it, a line each."""

from __future__ import annotations

import html
from typing import Any

LARGEST = 24  # lines


def to_html(result: Any) -> str:
    """Return the ops that lead to an expression, operands first; of many the nearest ones."""
    reached: dict[Any, None] = {result: None}
    for node in (queue := [result]):
        fresh = [x for x in node.inputs if x not in reached]
        reached.update(dict.fromkeys(fresh))
        queue += fresh
    shown = sorted(list(reached)[:LARGEST], key=lambda node: node.order)
    hidden = len(reached) - len(shown)
    names = {node: f"%{i}" for i, node in enumerate(shown)}
    lines = [f"{hidden} ops before these"] * bool(hidden)
    for node, name in names.items():
        operands = " ".join(names.get(x, "…") for x in node.inputs)
        lines.append(f"{name}: {' '.join((repr(node), operands)).strip()}, made {node.source}")
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"
