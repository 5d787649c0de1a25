"""Write a graph to a file: its records, and tables of the names in them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from minigraph import options as settings
from minigraph.arguments import FilePath, checked
from minigraph.compiler.trace import INPUTS, OUTPUTS, TracedGraph, trace
from minigraph.errors import GraphError
from minigraph.graph import (
    Array,
    Constant,
    Graph,
    Location,
    Node,
    Op,
    Parameter,
    SymbolicSize,
    values_of,
)
from minigraph.ops import creation, interpolation, padding, pooling, reduction
from minigraph.ops.random import SEED, STEP
from minigraph.platform.records import Record, encode
from minigraph.runtime.function import CompiledFunction
from minigraph.serialization import tensor_file
from minigraph.symbolic import Operation
from minigraph.version import __version__

FORMAT = 1
KEY = "minigraph.graph"  # of the metadata
CALL_INPUTS = {"SEED": SEED, "STEP": STEP}  # inputs that compiled functions supply themselves
# The functions of `FromSizes` ops, and the dataclasses that are fields of ops.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arange": np.arange,
    "diagonal": creation._on_diagonal,
    "interpolate.high": interpolation._above,
    "interpolate.low": interpolation._below,
    "interpolate.nearest": interpolation._nearest,
    "interpolate.share": interpolation._share,
    "linspace": creation._evenly_spaced,
    "mean": reduction._check_count,
    "pad": padding._indices,
    "size": operator.pos,
    "triangle": creation._below,
    "var": reduction._degrees_of_freedom,
}
DATACLASSES = {"Pooling": pooling.Pooling}


class NodeRecord(Record, frozen=True):
    """A node: its op, the numbers of its inputs, its results, and its source location.

    array  name of the array of a parameter or a constant
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
    """A function: a graph, whose first outputs are the results of a call.

    outputs  names of the results; or the length of a list of results; or None for a single result
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
    """The fields that files of all versions have."""

    format: int
    minigraph: str = ""


CONSTANT = "constant "  # prefix of the names of constants


def traced_graph(what: str, inputs: Any, outputs: Any) -> tuple[TracedGraph, Mapping[str, Any]]:
    """Return the graph of a compiled function before the passes, or of expressions; its options.

    what  first words of errors
    """
    if not isinstance(inputs, CompiledFunction):
        if outputs is None:
            raise GraphError(f"{what}: outputs are needed, or a compiled function")
        interface = INPUTS.check("inputs", inputs), OUTPUTS.check("outputs", outputs)
        return trace(*interface, {}, freeze=False), {}
    if outputs is not None:
        raise GraphError(f"{what}: a compiled function has its own outputs; pass it alone")
    return inputs.traced, inputs.options


def output_names(what: str, traced: TracedGraph) -> list[str] | int | None:
    """Return the names of results, the length of a list of results, or None for a single one."""
    packed = traced.pack([*range(traced.results)])
    if not isinstance(packed, Mapping):
        return None if isinstance(packed, int) else len(packed)
    if unnamed := [name for name in packed if not isinstance(name, str)]:
        raise GraphError(f"{what}: the names of outputs are strings in a file, not {unnamed[0]!r}")
    return list(packed)


@checked
def save_graph(path: FilePath, inputs: Any, outputs: Any = None) -> None:
    """Write a graph, with the present values of its parameters, to one file.

    inputs   of the graph; or a function of `compile`, whose updates and options are saved, too
    outputs  an expression, a list or a dict

    `load_graph` reads the graph, without the program that made it, and `load` reads its arrays.
    For errors, the file has the names of the program's files and the lines of ops.  Raises
    GraphError for a graph that runs in several processes, and for values that cannot be written.

    >>> x = mg.input("x", (None, 2))
    >>> mg.save_graph("net.graph", [x], nn.Linear(2, 1)(x))
    >>> mg.load_graph("net.graph")(np.ones((3, 2), "float32")).shape
    (3, 1)
    """
    traced, options = traced_graph("save_graph", inputs, outputs)
    writer = _Writer()
    graph, numbers = writer.graph(traced.graph, traced.updates)
    file = FileRecord(
        format=FORMAT,
        minigraph=__version__,
        graph=graph,
        outputs=output_names("save_graph", traced),
        updates=[numbers[p] for p in traced.updates],
        options={
            name: plain(options[name], writer)
            for name, option in settings.OPTIONS.items()
            if name in options
            and not option.per_process
            and options[name] != option.default_among(options)
        },
        sources=list(writer.sources),
    )
    arrays = writer.constants | values_of(writer.parameters)
    tensor_file.write("save_graph", path, arrays, {KEY: encode(file)})


class _Writer:
    """The arrays and source locations of all graphs of a file."""

    def __init__(self) -> None:
        self.sources: dict[Location, int] = {}
        self.constants: dict[str, Array] = {}
        self.parameters: dict[str, Parameter] = {}
        self._names: dict[Any, str] = {}  # by the state of parameters

    def graph(
        self, graph: Graph, others: Sequence[Node] = ()
    ) -> tuple[GraphRecord, Mapping[Node, int]]:
        """Return the record of a graph and other nodes, and the numbers of all nodes."""
        numbers: dict[Node, int] = {}
        nodes: list[NodeRecord] = []
        for node in Graph((), (*graph.inputs, *graph.outputs, *others)).by_order():
            nodes.append(self._node(node, [numbers[x] for x in node.inputs]))
            numbers[node] = len(numbers)
        interface = [[numbers[x] for x in side] for side in (graph.inputs, graph.outputs)]
        return GraphRecord(nodes, *interface), numbers

    def _node(self, node: Node, inputs: list[int]) -> NodeRecord:
        op, values, array = type(node.op).__name__, {}, None
        if call_inputs := [name for name, x in CALL_INPUTS.items() if x is node]:
            op = call_inputs[0]
        elif isinstance(node, Parameter):
            op, values = "Parameter", {"name": node.name, "trainable": node.trainable}
            array = self._name(node)
        elif isinstance(node.op, Constant):
            array = f"{CONSTANT}{len(self.constants)}"
            self.constants[array] = np.asarray(node.op.value, order="C")
        else:
            try:
                values = _fields(node.op, self)
            except (TypeError, RecursionError) as error:
                what = f"save_graph: {node.op.name} {node.source} cannot be written"
                raise GraphError(f"{what}: {error}") from None
        results = [(plain(spec.shape, self), spec.dtype.name) for spec in node.specs]
        location = Location("", 0) if call_inputs else node.source
        source = self.sources.setdefault(location, len(self.sources))
        return NodeRecord(op, values, inputs, results, source, array)

    def _name(self, parameter: Parameter) -> str:
        """Return the name of a parameter's array, which parameters with the same state share."""
        name = parameter.name
        while name in self.parameters or name.startswith((CONSTANT, tensor_file.METADATA_KEY)):
            name = f"other {name}"
        name = self._names.setdefault(parameter.state, name)
        self.parameters.setdefault(name, parameter)
        return name


def _fields(value: Any, writer: _Writer) -> dict[str, Any]:
    return {f.name: plain(getattr(value, f.name), writer) for f in fields(value) if f.init}


def plain(value: Any, writer: _Writer) -> Any:
    """Return a field as JSON; types that JSON lacks become dicts, such as {"dtype": name}."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"float": str(value)}
        case tuple():
            return [plain(each, writer) for each in value]
        case np.dtype():
            return {"dtype": value.name}
        case Graph():
            return {"graph": writer.graph(value)[0]}
        case Op():
            return {"op": type(value).__name__, "fields": _fields(value, writer)}
        case SymbolicSize():
            terms = value.terms.items()
            return {"size": [[n, *(plain(x, writer) for x in term)] for term, n in terms]}
        case Operation():
            x, y = (plain(each, writer) for each in (value.x, value.y))
            return {"operation": value.name, "x": x, "y": y}
    if (name := type(value).__name__) in DATACLASSES:
        return {"record": name, "fields": _fields(value, writer)}
    for name, function in FUNCTIONS.items():
        if function is value:
            return {"function": name}
    raise TypeError(f"a {type(value).__name__} cannot be saved")
