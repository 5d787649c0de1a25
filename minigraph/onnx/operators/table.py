"""The table of supported ONNX operators: each row is a small function.

A row takes an operator's inputs by position (expressions, or None for an omitted one) and its
attributes by name.  It returns a result, or a list of them.  If ONNX defines an operator as a
function of others, it needs no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigraph import ops
from minigraph.arguments import Kind, one_of
from minigraph.graph import Node

Row = Callable[..., Any]
ROWS: dict[str, Row] = {}  # by an operator's name, with its domain if that is not ONNX's own
COUNTING: set[str] = set()  # operators whose rows take the number of `outputs` as an argument
MICROSOFT = "com.microsoft"
COORDINATES = """align_corners asymmetric half_pixel half_pixel_symmetric pytorch_half_pixel
tf_crop_and_resize tf_half_pixel_for_nn"""
# The words that an attribute may have, of all operators or of one.
WORDS: dict[str, Kind] = {
    name: one_of(*words.split())
    for name, words in {
        "auto_pad": "NOTSET SAME_LOWER SAME_UPPER VALID",
        "direction": "bidirectional forward reverse",
        "padding_mode": "border reflection zeros",
        "BitShift.direction": "LEFT RIGHT",
        "DepthToSpace.mode": "CRD DCR",
        "GridSample.mode": "bicubic bilinear cubic linear nearest",
        "Resize.coordinate_transformation_mode": COORDINATES,
        "Resize.keep_aspect_ratio_policy": "not_larger not_smaller stretch",
        "Resize.mode": "cubic linear nearest",
        "Resize.nearest_mode": "ceil floor round_prefer_ceil round_prefer_floor",
    }.items()
}


def row(*names: str, counting: bool = False) -> Callable[[Row], Row]:
    """Return a decorator that enters a function as the row of operators."""

    def enter(function: Row) -> Row:
        for name in names:
            ROWS[name] = function
            if counting:
                COUNTING.add(name)
        return function

    return enter


def rows(table: Mapping[str, Row]) -> None:
    """Enter functions, each as the row of the operators that its key names."""
    for names, function in table.items():
        row(*names.split())(function)


def vector_along(x: Node, ndim: int, axis: int) -> Node:
    """Return a vector along one of `ndim` axes; the other axes have size 1."""
    return ops.reshape(x, (*(1,) * (axis % ndim), -1, *(1,) * (ndim - 1 - axis % ndim)))
