"""Read a graph from a file, with typed records and without running code of the file."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from msgspec.json import Decoder

from minigraph import options as settings
from minigraph import symbolic
from minigraph.arguments import FilePath, checked
from minigraph.errors import GraphError
from minigraph.graph import (
    Array,
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
    constant,
)
from minigraph.graph_compiler import comp_graph
from minigraph.graph_file.writing import (
    CALL_INPUTS,
    DATACLASSES,
    FORMAT,
    FUNCTIONS,
    KEY,
    FileRecord,
    GraphRecord,
    NodeRecord,
    VersionRecord,
)
from minigraph.platform.records import decode, one_line
from minigraph.serialization import tensor_file
from minigraph.version import __version__

FILE, VERSION = Decoder(FileRecord), Decoder(VersionRecord)


class StoredGraph:
    """A graph from a file.  A call with arrays compiles it for the default device.

    inputs      expressions of `mg.input`
    outputs     an expression, a list or a dict, as saved
    parameters  by name
    updates     parameters with their new values
    options     of the saved function's compilation
    """

    def __init__(self, inputs: Any, outputs: Any, updates: Any, options: Mapping[str, Any]) -> None:
        self.inputs, self.outputs, self.updates, self.options = inputs, outputs, updates, options
        listed = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
        results = [listed] if isinstance(listed, Node) else listed
        graph = Graph(tuple(inputs), (*results, *updates.values()))
        self.parameters = {p.name: p for p in dict.fromkeys((*graph.parameters, *updates))}

    def compile(self, device: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Return the function for a device, with the file's options, which `options` override."""
        cg = comp_graph(device, {**self.options, **(options or {})})
        return cg.compile(self.inputs, self.outputs, self.updates)

    @functools.cached_property
    def _function(self) -> Any:
        return self.compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@checked
def load_graph(path: FilePath) -> StoredGraph:
    """Return the graph that `save_graph` has written.

    Called with arrays it computes, and `compile(device, options)` returns its function.  Raises
    GraphError for a file that is damaged, of a newer version, or has an unknown op.
    """
    data = tensor_file.contents("load_graph", path, mapped=False)
    arrays, metadata = tensor_file.parse("load_graph", path, data)
    try:
        if KEY not in metadata:
            raise ValueError("has arrays and no graph; mg.load reads it")
        version = decode(VERSION, metadata[KEY])
        if not 1 <= version.format <= FORMAT:
            raise ValueError(
                f"is of format {version.format}, of minigraph {version.minigraph}; this one, "
                f"{__version__}, reads up to format {FORMAT}"
            )
        return _Reader(decode(FILE, metadata[KEY]), arrays).stored()
    except (ValueError, RecursionError) as error:
        raise GraphError(f"load_graph: {path} {one_line(str(error))}") from None


class _Reader:
    def __init__(self, file: FileRecord, arrays: Mapping[str, Array]) -> None:
        self._file, self._arrays = file, arrays
        self._states: dict[str, State] = {}
        self._sources = [Location(*source) for source in file.sources]

    def stored(self) -> StoredGraph:
        file = self._file
        nodes, graph = self._graph(file.graph)
        updated = [_node_at(nodes, i) for i in file.updates]
        results = list(graph.outputs[: len(graph.outputs) - len(updated)])
        names = file.outputs
        count = len(names) if isinstance(names, list) else 1 if names is None else names
        if count != len(results) or not all(isinstance(p, Parameter) for p in updated):
            raise ValueError("is wrong: its outputs do not match its graph")
        graph.check()
        outputs: Any = results if names is not None else results[0]
        if isinstance(names, list):
            outputs = dict(zip(names, results, strict=True))
        return StoredGraph(
            [x for x in graph.inputs if not any(x is each for each in CALL_INPUTS.values())],
            outputs,
            dict(zip(updated, graph.outputs[len(results) :], strict=True)),
            {n: settings.find(n).check(self.value(v, Any)) for n, v in file.options.items()},
        )

    def _graph(self, record: GraphRecord) -> tuple[list[Node], Graph]:
        nodes: list[Node] = []
        for i, each in enumerate(record.nodes):
            try:
                nodes.append(self._node(each, [_node_at(nodes, number) for number in each.inputs]))
            except Exception as error:  # an op may raise any error for wrong fields
                raise ValueError(f"is wrong at node {i}, {each.op}: {error}") from None
        inputs = tuple(_node_at(nodes, i) for i in record.inputs)
        outputs = tuple(_node_at(nodes, i) for i in record.outputs)
        if not all(isinstance(x.op, Input) for x in inputs):
            raise ValueError("is wrong: an input of a graph is another node")
        return nodes, Graph(inputs, outputs)

    def _node(self, record: NodeRecord, inputs: list[Node]) -> Node:
        """Return a node; raise ValueError if its op infers other shapes than the file's."""
        if record.op in CALL_INPUTS:
            return CALL_INPUTS[record.op]
        results = ((self.value(shape, tuple[int, ...]), dtype) for shape, dtype in record.results)
        specs = tuple(Spec(shape, as_dtype(dtype)) for shape, dtype in results)
        if record.array is not None:
            node = self._with_value(record, self._arrays[record.array])
        else:
            op = self._op(record.op, record.fields)
            node = Node(op, tuple(inputs), specs if isinstance(op, Input) else op.inferred(inputs))
        if node.specs != specs:
            raise ValueError(f"the op infers {' '.join(map(str, node.specs))}")
        node.source = self._sources[record.source]
        return node

    def _with_value(self, record: NodeRecord, array: Array) -> Node:
        if record.op == "Constant":
            return constant(array)
        state = self._states.setdefault(str(record.array), State.of(array))
        name, trainable = (self.value(record.fields[n], t) for n, t in PARAMETER.items())
        return Parameter.sharing(state, name, trainable=trainable)

    def _op(self, name: Any, values: Mapping[str, Any]) -> Op:
        cls = Op.registry.get(name)
        if cls is None or (cls.forward is Op.forward and cls is not Input):
            raise ValueError(f"minigraph {__version__} has no such op")
        return self._dataclass(cls, values)

    def _dataclass(self, cls: Any, values: Mapping[str, Any]) -> Any:
        """Return a dataclass with the fields of a file, checked against their annotations."""
        hints = _hints(cls)
        if unknown := values.keys() - hints.keys():
            raise ValueError(f"{cls.__name__} has no field {min(unknown)}")
        return cls(**{name: self.value(value, hints[name]) for name, value in values.items()})

    def value(self, value: Any, hint: Any) -> Any:
        """Return a field of a file; raise ValueError if it is not of the type `hint`."""
        kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if isinstance(value, dict):
            value = self._tagged(value)
            fits = kind in (int, float) and isinstance(value, SymbolicSize)
        elif isinstance(value, list) and kind in (tuple, Any):
            each = arguments or (Any, ...)
            hints = each if each[-1] is not ... else each[:1] * len(value)
            return tuple(self.value(v, h) for v, h in zip(value, hints, strict=True))
        elif kind is typing.Literal:
            fits = value in arguments
        else:
            fits = type(value) is kind or (kind is float and type(value) is int)
        if fits or kind is Any:
            return value
        if type(value) is not bool and isinstance(kind, type) and isinstance(value, kind):
            return value
        raise ValueError(f"{value!r} is not of type {getattr(kind, '__name__', kind)}")

    def _tagged(self, value: Mapping[str, Any]) -> Any:
        """Return the value that a dict of a file encodes: see `writing.plain`."""
        match value:
            case {"float": str(text)}:
                return float(text)
            case {"dtype": str(name)}:
                return as_dtype(name)
            case {"graph": record}:
                return self._graph(msgspec.convert(record, GraphRecord))[1]
            case {"op": name, "fields": dict(values)}:
                return self._op(name, values)
            case {"record": str(name), "fields": dict(values)}:
                return self._dataclass(DATACLASSES[name], values)
            case {"size": list(terms)}:
                return sum(number * math.prod(map(self._atom, term)) for number, *term in terms)
            case {"function": str(name)}:
                return FUNCTIONS[name]
        raise ValueError(f"{value} is not a field")

    def _atom(self, value: Any) -> Any:
        """Return a factor of a size: a symbol, or the result of an operation."""
        if isinstance(value, str) and value.isidentifier():
            return symbolic.symbol(value)
        x, y = (self.value(value[name], float) for name in "xy")
        return symbolic.operation(value["operation"], x, y)


PARAMETER = {"name": str, "trainable": bool}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def _node_at(nodes: Sequence[Node], number: int) -> Node:
    """Return a node by its number; raise ValueError if no earlier node has it."""
    if not 0 <= number < len(nodes):
        raise ValueError(f"is wrong: no earlier node has the number {number}")
    return nodes[number]
