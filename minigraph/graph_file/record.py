"""What files of graphs are made of: records, and tables of what they may name."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from minigraph import symbolic
from minigraph.graph import leaves
from minigraph.ops import creation, interpolation, padding, pooling, reduction
from minigraph.ops.random import SEED, STEP
from minigraph.platform.records import Record

FORMAT = 1
KEY = "minigraph.graph"  # of the metadata
OF_CALLS = {"SEED": SEED, "STEP": STEP}  # inputs that compiled functions give themselves
# The functions that make arrays of sizes (`FromSizes`), and the records that are fields of ops.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arange": np.arange,
    "diagonal": creation._on_diagonal,
    "interpolate.high": interpolation._above,
    "interpolate.low": interpolation._below,
    "interpolate.nearest": interpolation._nearest_places,
    "interpolate.share": interpolation._share,
    "linspace": creation._evenly_spaced,
    "mean": reduction._check_count,
    "pad": padding._places,
    "size": leaves._identity,
    "triangle": creation._below,
    "var": reduction._degrees_of_freedom,
}
RECORDS = {"Pooling": pooling.Pooling}
# What makes the results of operations on sizes again.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "/": operator.truediv,
    "**": operator.pow,
    "max": lambda x, least: symbolic.positive_part(x - least) + least,
    "ceil": symbolic.quotient_above,
}


class NodeRecord(Record, frozen=True):
    """A node: its op, the numbers of its inputs, its results, and where it was made.

    array  the name of the value of a parameter or a constant
    """

    op: str
    fields: dict[str, Any]
    inputs: list[int]
    results: list[tuple[list[Any], str]]
    source: int
    array: str | None = None


class GraphRecord(Record, frozen=True):
    nodes: list[NodeRecord]
    inputs: list[int]
    outputs: list[int]


class FileRecord(Record, frozen=True):
    """A function: a graph, whose first `results` outputs are those of the caller.

    outputs  their names; a number: a list of them; None: there is one, which is no list
    updates  the parameters whose new values are the other outputs
    """

    format: int
    minigraph: str
    graph: GraphRecord
    outputs: list[str] | int | None
    updates: list[int]
    options: dict[str, Any]
    sources: list[tuple[str, int, str, bool]]


class VersionRecord(msgspec.Struct):
    """What files of every version have."""

    format: int
    minigraph: str = ""
