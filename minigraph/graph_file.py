"""Graphs on disk: one safetensors file with parameters and constants, and JSON in its metadata.

The JSON names ops by their classes and holds the fields of each.  Nothing in a file is run; what is
read is typed, and all shapes are inferred again.
"""

from __future__ import annotations

import functools
import math
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.json import Decoder

from minigraph import options as settings
from minigraph import symbolic, tensor_file
from minigraph.arguments import FilePath, checked
from minigraph.compiler.trace import TracedGraph, trace
from minigraph.errors import GraphError
from minigraph.graph import (
    Array,
    Constant,
    Graph,
    Input,
    Location,
    Node,
    Op,
    Parameter,
    Spec,
    State,
    SymbolicSize,
    as_dtype,
    leaves,
    values_of,
)
from minigraph.graph_compiler import comp_graph
from minigraph.ops import creation, interpolation, padding, pooling, reduction
from minigraph.ops.random import SEED, STEP
from minigraph.platform.records import Record, decode, encode, one_line
from minigraph.runtime.calls import CompiledFunction
from minigraph.version import __version__

FORMAT = 1
KEY = "minigraph.graph"  # of the metadata
OF_CALLS = {"SEED": SEED, "STEP": STEP}  # inputs that compiled functions give themselves
# The functions that make arrays of sizes (`FromSizes`), and the records that are fields of ops.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{f.__module__}.{f.__name__}": f
    for f in (
        *(np.arange, creation._below, creation._evenly_spaced, creation._on_diagonal),
        *(interpolation._above, interpolation._below, interpolation._nearest_places),
        *(interpolation._share, leaves._identity, padding._places, reduction._check_count),
        reduction._degrees_of_freedom,
    )
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


class _Node(Record, frozen=True):
    """A node: its op, the numbers of its inputs, its results, and where it was made.

    array  the name of the value of a parameter or a constant
    """

    op: str
    fields: dict[str, Any]
    inputs: list[int]
    results: list[tuple[list[Any], str]]
    source: int
    array: str | None = None


class _Graph(Record, frozen=True):
    nodes: list[_Node]
    inputs: list[int]
    outputs: list[int]


class _File(Record, frozen=True):
    """A function: a graph, whose first `results` outputs are those of the caller.

    outputs  their names; a number: a list of them; None: there is one, which is no list
    updates  the parameters whose new values are the other outputs
    """

    format: int
    minigraph: str
    graph: _Graph
    outputs: list[str] | int | None
    updates: list[int]
    options: dict[str, Any]
    sources: list[tuple[str, int, str, bool]]


class _Version(msgspec.Struct):
    """What files of every version have."""

    format: int
    minigraph: str = ""


FILE, VERSION = Decoder(_File), Decoder(_Version)


class StoredGraph:
    """A graph of a file.  Called with arrays, it is compiled for the default device.

    inputs      expressions, as `mg.input` makes them
    outputs     an expression, a list or a dict, as they were saved
    parameters  by name
    updates     parameters with their new values
    options     those that the saved function was compiled with
    """

    def __init__(self, inputs: Any, outputs: Any, updates: Any, options: Mapping[str, Any]) -> None:
        self.inputs, self.outputs, self.updates, self.options = inputs, outputs, updates, options
        listed = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
        ends = [listed] if isinstance(listed, Node) else listed
        graph = Graph(tuple(inputs), (*ends, *updates.values()))
        self.parameters = {p.name: p for p in dict.fromkeys((*graph.parameters, *updates))}

    def compile(self, device: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Return the function for a device, with the options of the file but for those given."""
        cg = comp_graph(device, {**self.options, **(options or {})})
        return cg.compile(self.inputs, self.outputs, self.updates)

    @functools.cached_property
    def _function(self) -> Any:
        return self.compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def written(what: str, inputs: Any, outputs: Any) -> tuple[TracedGraph, Mapping[str, Any]]:
    """Return the graph, as written, of a compiled function or of inputs and outputs; its options.

    what  begins the errors
    """
    if not isinstance(inputs, CompiledFunction):
        if outputs is None:
            raise GraphError(f"{what}: outputs are needed, or a compiled function")
        given = [inputs] if isinstance(inputs, Node) else list(inputs)
        return trace(given, outputs, {}, freeze=False), {}
    if outputs is not None:
        raise GraphError(f"{what}: a compiled function has its own outputs; give it alone")
    return inputs.traced, inputs.options


# ---------------------------------------------------------------- writing


@checked
def save_graph(path: FilePath, inputs: Any, outputs: Any = None) -> None:
    """Write a graph, with its parameters as they are now, to one file.

    inputs   of the graph; or a function of `compile`, whose updates and options are kept, too
    outputs  an expression, a list or a dict

    `load_graph` reads it, also where the program that made it is not there, and `load` its arrays.
    GraphError for a graph that runs in several processes, and for what cannot be written.

    >>> x = mg.input("x", (None, 2))
    >>> mg.save_graph("net.graph", [x], nn.Linear(2, 1)(x))
    >>> mg.load_graph("net.graph")(np.ones((3, 2), "float32")).shape
    (3, 1)
    """
    traced, given = written("save_graph", inputs, outputs)
    kept = {o.name for o in settings.OPTIONS.values() if not o.per_process}
    writer = _Writer()
    graph, numbers = writer.graph(traced.graph, traced.updates)
    packed = traced.pack([*range(traced.results)])
    names = list(map(str, packed)) if isinstance(packed, Mapping) else None
    file = _File(
        format=FORMAT,
        minigraph=__version__,
        graph=graph,
        outputs=names or (None if isinstance(packed, int) else len(packed)),
        updates=[numbers[p] for p in traced.updates],
        options={name: value for name, value in given.items() if name in kept},
        sources=list(writer.sources),
    )
    arrays = writer.constants | values_of(writer.parameters)
    tensor_file.write("save_graph", path, arrays, {KEY: encode(file)})


class _Writer:
    """What collects nodes, and the arrays of all graphs of a file."""

    def __init__(self) -> None:
        self.sources: dict[Location, int] = {}
        self.constants: dict[str, Array] = {}
        self.parameters: dict[str, Parameter] = {}
        self._names: dict[Any, str] = {}  # of the values of parameters

    def graph(self, graph: Graph, others: Sequence[Node] = ()) -> tuple[_Graph, Mapping[Node, int]]:
        """Return the record of a graph and of other nodes, and the numbers of the nodes."""
        numbers: dict[Node, int] = {}
        nodes: list[_Node] = []
        for node in Graph((), (*graph.inputs, *graph.outputs, *others)).by_order():
            nodes.append(self._node(node, [numbers[x] for x in node.inputs]))
            numbers[node] = len(numbers)
        ends = [[numbers[x] for x in side] for side in (graph.inputs, graph.outputs)]
        return _Graph(nodes, *ends), numbers

    def _node(self, node: Node, inputs: list[int]) -> _Node:
        source = self.sources.setdefault(node.source, len(self.sources))
        results = [([self._plain(n) for n in s.shape], s.dtype.name) for s in node.specs]
        of_call = [name for name, x in OF_CALLS.items() if x is node]
        if of_call:
            return _Node(of_call[0], {}, inputs, results, source)
        if isinstance(node, Parameter):
            values = {"name": node.name, "trainable": node.trainable}
            return _Node("Parameter", values, inputs, results, source, self._stored(node))
        if isinstance(node.op, Constant):
            name = f"constant {len(self.constants)}"
            self.constants[name] = np.asarray(node.op.value, order="C")
            return _Node("Constant", {}, inputs, results, source, name)
        try:
            plain = self._fields(node.op)
        except (TypeError, RecursionError) as error:
            raise GraphError(
                f"save_graph: {node.op.name} {node.source} cannot be written: {error}"
            ) from None
        return _Node(type(node.op).__name__, plain, inputs, results, source)

    def _stored(self, parameter: Parameter) -> str:
        """Return the name of a parameter's value, which several parameters may share."""
        if parameter.state not in self._names:
            own = parameter.name not in self.parameters and parameter.name != tensor_file.METADATA
            name = parameter.name if own else f"{parameter.name} {len(self.parameters)}"
            self._names[parameter.state] = name
            self.parameters[name] = parameter
        return self._names[parameter.state]

    def _fields(self, value: Any) -> dict[str, Any]:
        return {f.name: self._plain(getattr(value, f.name)) for f in fields(value) if f.init}

    def _plain(self, value: Any) -> Any:
        """Return a field as JSON has it: what JSON has not is a dict that says what it is."""
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, tuple):
            return [self._plain(each) for each in value]
        if isinstance(value, np.dtype):
            return {"dtype": value.name}
        if isinstance(value, Graph):
            return {"graph": self.graph(value)[0]}
        if isinstance(value, Op):
            return {"op": type(value).__name__, "fields": self._fields(value)}
        if isinstance(value, SymbolicSize):
            terms = [[n, *map(self._plain, term)] for term, n in value.terms.items()]
            return {"size": terms}
        if isinstance(value, symbolic.Operation):
            return {"operation": value.name, "x": self._plain(value.x), "y": self._plain(value.y)}
        if is_dataclass(value) and type(value).__name__ in RECORDS:
            return {"record": type(value).__name__, "fields": self._fields(value)}
        names = [name for name, function in FUNCTIONS.items() if function is value]
        if not names:
            raise TypeError(f"a {type(value).__name__} has no place in a file")
        return {"function": names[0]}


# ---------------------------------------------------------------- reading


@checked
def load_graph(path: FilePath) -> StoredGraph:
    """Return the graph that `save_graph` has written.

    Called with arrays it computes, and `compile(device, options)` returns its function.
    GraphError for a file that is damaged, of a newer version, or holds an op that is not there.
    """
    data = tensor_file.contents("load_graph", path, mapped=False)
    try:
        arrays, metadata = tensor_file.parse("load_graph", path, data)
        if KEY not in metadata:
            raise ValueError("holds arrays and no graph; mg.load reads it")
        made = decode(VERSION, metadata[KEY])
        if not 1 <= made.format <= FORMAT:
            raise ValueError(
                f"is of format {made.format}, of minigraph {made.minigraph}; this one, "
                f"{__version__}, reads up to format {FORMAT}"
            )
        return _Reader(decode(FILE, metadata[KEY]), arrays).stored()
    except (ValueError, RecursionError) as error:
        if str(error).startswith("load_graph"):
            raise
        raise GraphError(f"load_graph: {path} {one_line(str(error))}") from None


class _Reader:
    """What makes the nodes of a file."""

    def __init__(self, file: _File, arrays: Mapping[str, Array]) -> None:
        self._file, self._arrays = file, arrays
        self._states: dict[str, State] = {}
        self._sources = [Location(*source) for source in file.sources]

    def stored(self) -> StoredGraph:
        """Return the graph of the file."""
        file = self._file
        nodes, graph = self._graph(file.graph)
        given = set(OF_CALLS.values())
        inputs = [x for x in graph.inputs if x not in given]
        updated = [_at(nodes, i) for i in file.updates]
        results = list(graph.outputs[: len(graph.outputs) - len(updated)])
        news = graph.outputs[len(results) :]
        names = file.outputs
        count = len(names) if isinstance(names, list) else 1 if names is None else names
        if count != len(results) or not all(isinstance(p, Parameter) for p in updated):
            raise ValueError("is wrong: its outputs are not those of its graph")
        graph.check()
        outputs: Any = results if names is not None else results[0]
        if isinstance(names, list):
            outputs = dict(zip(names, results, strict=True))
        return StoredGraph(
            inputs,
            outputs,
            dict(zip(updated, news, strict=True)),
            {name: settings.find(name).check(value) for name, value in file.options.items()},
        )

    def _graph(self, record: _Graph) -> tuple[list[Node], Graph]:
        nodes: list[Node] = []
        for i, each in enumerate(record.nodes):
            try:
                nodes.append(self._node(each, [_at(nodes, number) for number in each.inputs]))
            except Exception as error:  # an op may raise anything for fields that it cannot have
                raise ValueError(f"is wrong at node {i}, {each.op}: {error}") from None
        ends = [tuple(_at(nodes, i) for i in side) for side in (record.inputs, record.outputs)]
        if not all(isinstance(x.op, Input) for x in ends[0]):
            raise ValueError("is wrong: an input of a graph is none")
        return nodes, Graph(*ends)

    def _node(self, record: _Node, inputs: list[Node]) -> Node:
        if record.op in OF_CALLS:
            return OF_CALLS[record.op]
        specs = tuple(
            Spec(tuple(_value(n, int, self) for n in shape), as_dtype(dtype))
            for shape, dtype in record.results
        )
        node = self._made(record, inputs, specs)
        if node.specs != specs:
            raise ValueError(f"the op infers {' '.join(map(str, node.specs))}")
        node.source = self._sources[record.source]
        return node

    def _made(self, record: _Node, inputs: list[Node], specs: tuple[Spec, ...]) -> Node:
        if record.op == "Parameter":
            name, trainable = (_value(record.fields[k], t, self) for k, t in PARAMETER.items())
            key = record.array or ""
            state = self._states.setdefault(key, State(self._arrays[key]))
            return Parameter.sharing(state, name, trainable=trainable)
        if record.op == "Constant":
            return leaves.constant(self._arrays[record.array or ""])
        op = self._op(record.op, record.fields)
        if isinstance(op, Input):
            return Node(op, (), specs)
        inferred = op.inferred(inputs)
        return Node(op, tuple(inputs), inferred if isinstance(inferred, tuple) else (inferred,))

    def _op(self, name: Any, given: Any) -> Op:
        cls = Op.registry.get(name)
        if cls is None or (cls.forward is Op.forward and not issubclass(cls, Input)):
            raise ValueError(f"minigraph {__version__} has no such op")
        return self.record(cls, given)

    def record(self, cls: Any, given: Any) -> Any:
        """Return a dataclass with fields of a file, of the types that it says."""
        hints = _hints(cls)
        if unknown := given.keys() - hints.keys():
            raise ValueError(f"{cls.__name__} has no field {min(unknown)}")
        return cls(**{name: _value(value, hints[name], self) for name, value in given.items()})

    def tagged(self, value: Any) -> Any:
        """Return what a dict of a file stands for: see `_Writer._plain`."""
        match value:
            case {"float": str(text)}:
                return float(text)
            case {"dtype": str(name)}:
                return as_dtype(name)
            case {"graph": record}:
                return self._graph(msgspec.convert(record, _Graph))[1]
            case {"op": name, "fields": dict(given)}:
                return self._op(name, given)
            case {"record": str(name), "fields": dict(given)}:
                return self.record(RECORDS[name], given)
            case {"size": list(terms)}:
                return sum(number * math.prod(map(self._atom, term)) for number, *term in terms)
            case {"function": str(name)}:
                return FUNCTIONS[name]
        raise ValueError(f"{value} is no field")

    def _atom(self, value: Any) -> Any:
        """Return a factor of a size: one that has a name, or the result of an operation."""
        if isinstance(value, str) and value.isidentifier():
            return symbolic.symbol(value)
        x, y = (_value(value[name], float, self) for name in "xy")
        return OPERATIONS[value["operation"]](x, y)


PARAMETER = {"name": str, "trainable": bool}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _value(value: Any, hint: Any, reader: _Reader) -> Any:
    """Return a field of a file, which has to be of a type."""
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if isinstance(value, dict):
        value = reader.tagged(value)
        fits = kind in (int, float) and isinstance(value, SymbolicSize)
    elif isinstance(value, list) and kind in (tuple, Any):
        each = arguments or (Any, ...)
        hints = each if each[-1] is not ... else each[:1] * len(value)
        value = tuple(_value(v, h, reader) for v, h in zip(value, hints, strict=True))
        fits = True
    elif kind is typing.Literal:
        fits = value in arguments
    else:
        fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits and kind is not Any and not (isinstance(kind, type) and isinstance(value, kind)):
        raise ValueError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return value


def _at(nodes: Sequence[Node], number: int) -> Node:
    """Return a node by its number; ValueError if there is none so far."""
    if not 0 <= number < len(nodes):
        raise ValueError(f"is wrong: there is no node {number} so far")
    return nodes[number]
