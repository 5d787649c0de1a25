"""An expression as SVG, for notebooks: the ops nearest to it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

LARGEST = 24  # boxes
WIDTH, HEIGHT = 150, 34  # of a box, in pixels
GAP, ROW_GAP = 12, 26  # between boxes of a row, and between rows
LONGEST = 22  # of a line in a box


def to_svg(result: Any) -> str:
    """Return an expression as SVG: a box for each op with its result, below those it reads.

    Of a large expression the ops nearest to its result are shown.  Constants are left out.
    """
    shown, hidden = _nearest(result)
    rows = _rows(shown)
    places = {
        node: (column * (WIDTH + GAP) + GAP, row * (HEIGHT + ROW_GAP) + GAP)
        for row, nodes in enumerate(rows)
        for column, node in enumerate(nodes)
    }
    width = max(map(len, rows)) * (WIDTH + GAP) + GAP
    height = len(rows) * (HEIGHT + ROW_GAP) + GAP
    lines = [line for node in shown for line in _edges(node, places)]
    boxes = [_box(node, *places[node]) for node in shown]
    more = f'<text x="{GAP}" y="{height - 6}">and {hidden} more above</text>' if hidden else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'style="max-width:100%;height:auto" font-family="sans-serif" font-size="11">'
        f"{''.join((*lines, *boxes))}{more}</svg>"
    )


def _inputs(node: Any) -> list[Any]:
    """Return the inputs that are shown: no constants, and the op in place of one of its results."""
    inputs = (x.inputs[0] if _kind(x) == "Item" else x for x in node.inputs)
    return [x for x in dict.fromkeys(inputs) if x.inputs or _kind(x) in ("Input", "Variable")]


def _kind(node: Any) -> str:
    return type(node.op).__name__


def _nearest(result: Any) -> tuple[list[Any], int]:
    """Return the nodes nearest to a result, and how many others it depends on."""
    reached: dict[Any, None] = {result: None}
    for node in (queue := [result]):
        fresh = [x for x in _inputs(node) if x not in reached]
        reached.update(dict.fromkeys(fresh))
        queue += fresh
    return list(reached)[:LARGEST], max(len(reached) - LARGEST, 0)


def _rows(nodes: list[Any]) -> list[list[Any]]:
    """Return the nodes in rows: each below all that it reads, the result at the bottom."""
    inside = set(nodes)
    depth: dict[Any, int] = dict.fromkeys(nodes, 0)
    for node in sorted(nodes, key=lambda node: node.order, reverse=True):  # users first
        for x in _inputs(node):
            if x in inside:
                depth[x] = max(depth[x], depth[node] + 1)
    rows: list[list[Any]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in nodes:
        rows[-1 - depth[node]].append(node)
    return rows


def _edges(node: Any, places: dict[Any, tuple[int, int]]) -> Iterator[str]:
    x, y = places[node]
    for source in _inputs(node):
        if source in places:
            left, top = places[source]
            yield (
                f'<line x1="{left + WIDTH // 2}" y1="{top + HEIGHT}" x2="{x + WIDTH // 2}" '
                f'y2="{y}" stroke="#888"/>'
            )


def _box(node: Any, x: int, y: int) -> str:
    leaf = not node.inputs
    colour = "#fff2cc" if leaf else "#dae8fc"
    name = node.name if leaf else node.op.name
    texts = (_short(name), _short(", ".join(map(str, node.specs))))
    tip = html.escape(f"{name}, made {node.source}")
    return (
        f'<g><title>{tip}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" '
        f'fill="{colour}" stroke="#888"/>'
        + "".join(
            f'<text x="{x + WIDTH // 2}" y="{y + 14 + 14 * i}" text-anchor="middle" fill="#000">'
            f"{html.escape(text)}</text>"
            for i, text in enumerate(texts)
        )
        + "</g>"
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
