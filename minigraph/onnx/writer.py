"""The writer of ONNX nodes: names, constants, symbolic sizes, and the nodes themselves."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from minigraph.graph import (
    Array,
    Constant,
    DType,
    Graph,
    Input,
    Item,
    Node,
    Op,
    Parameter,
    Spec,
    SymbolicSize,
    UndecidedSize,
    here,
    is_symbolic,
    placeholders,
    toposort,
)
from minigraph.graph.location import Within
from minigraph.onnx.tensors import CODES, every
from minigraph.symbolic import is_integer

INT64 = np.dtype(np.int64)
SLICE_END = np.iinfo(np.int64).max  # of a slice up to the end of an axis of any length


class NotExpressible(Exception):
    """Raised by an export that cannot write its op with these fields; `expand` may."""


# export(writer, op, node, *names of inputs) returns the name of the result, or a bundle's names.
Export = Callable[..., Any]
Exports = dict[type[Op], Export]


class Writer:
    """A writer of ONNX nodes for the nodes of a graph.

    nodes         of the graph, or of the body that is being written
    initializers  parameters and constants, by name
    missing       counts of ops that cannot be written
    values        the name of each written node's result; for a bundle, the names
    """

    def __init__(self, exports: Exports) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, Array] = {}
        self.missing: Counter[str] = Counter()
        self.values: dict[Node, Any] = {}
        self.users: Counter[Node] = Counter()
        self._exports = exports  # by op; `expand` writes the others
        self._names: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._constants: dict[tuple[Any, ...], str] = {}
        self._sizes: dict[str, tuple[str, int, int]] = {}  # input, axis and factor, by name

    # ------------------------------------------------------------ names

    def unique(self, name: str) -> str:
        """Return `name`, with a number appended if it is in use."""
        candidate = name
        while candidate in self._names:
            self._counts[name] += 1
            candidate = f"{name}_{self._counts[name]}"
        self._names.add(candidate)
        return candidate

    def declare(self, inputs: Iterable[Node]) -> None:
        """Name the inputs, and record which of their axes define symbolic sizes."""
        for x in inputs:
            name = self.values[x] = self.unique(x.name)
            for axis, size in enumerate(x.shape):
                if isinstance(size, SymbolicSize) and (multiple := size.multiple):
                    self._sizes.setdefault(multiple[0], (name, axis, multiple[1]))

    # ------------------------------------------------------------ for exports

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append an ONNX node with one result and return the result's name."""
        (result,) = self.ops(kind, 1, *inputs, **attributes)
        return result

    def ops(self, kind: str, results: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append an ONNX node and return the names of its results."""
        layer = here().layer
        name = self.unique(f"{layer}/{kind}" if layer else kind)
        names = [self.unique(f"{name}.{i}" if i else f"{name}.y") for i in range(results)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names

    def withdraw(self, result: str) -> None:
        """Remove the node that makes a result, which nothing reads."""
        node = next(node for node in reversed(self.nodes) if result in node.output)
        self.nodes.remove(node)
        self._names -= {node.name, *node.output}

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant; equal constants share one."""
        array = np.asarray(value, dtype, order="C")
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.unique("constant")
            self.initializers[self._constants[key]] = array
        return self._constants[key]

    def cast(self, x: str, dtype: Any) -> str:
        return self.op("Cast", x, to=CODES[np.dtype(dtype)])

    def sizes(self, sizes: Sequence[int]) -> str:
        """Return an int64 vector of sizes, which may be symbolic."""
        if not is_symbolic(sizes):
            return self.constant(sizes, INT64)
        parts = [self.size(n) if isinstance(n, SymbolicSize) else self.sizes([n]) for n in sizes]
        return self.op("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    def size(self, size: Any, dtype: DType = INT64) -> str:
        """Return a vector of one element: a size, computed in `dtype`."""
        if dtype == INT64 and not is_integer(size):
            raise NotExpressible
        if not isinstance(size, SymbolicSize):
            return self.constant([size], dtype)
        terms = []
        for term, factor in size.terms.items():
            factors = [self._atom(atom, dtype) for atom in term]
            if factor != 1 or not factors:
                factors.append(self.constant([factor], dtype))
            terms.append(functools.reduce(functools.partial(self.op, "Mul"), factors))
        return functools.reduce(functools.partial(self.op, "Add"), terms)

    def _atom(self, atom: Any, dtype: DType) -> str:
        """Return the vector of a named size, or of an operation on sizes."""
        if not isinstance(atom, str):
            if atom.name not in ("//", "max", "ceil") or dtype != INT64:
                raise NotExpressible
            x, y = self.size(atom.x), self.size(atom.y)
            if atom.name == "max":
                return self.op("Max", x, y)
            if atom.name == "ceil":  # (x + y - 1) // y
                x = self.op("Sub", self.op("Add", x, y), self.constant([1], INT64))
            # Div rounds towards zero, and onnxruntime rewrites the integers 1 / n * z to z / n.
            if not isinstance(atom.x, SymbolicSize) or not _is_never_negative(atom.x):
                x = self.op("Sub", x, self.op("Mod", x, y))
            return self.op("Div", x, y)
        if atom not in self._sizes:
            raise NotExpressible
        name, axis, factor = self._sizes[atom]
        size = self.op("Shape", name, start=axis, end=axis + 1)
        size = size if factor == 1 else self.op("Div", size, self.constant([factor], INT64))
        return size if dtype == INT64 else self.cast(size, dtype)

    def index(self, node: Node, name: str) -> str:
        """Return the name of indices, cast to int64 unless they are of int32 or int64."""
        return name if node.dtype in (np.int32, np.int64) else self.cast(name, np.int64)

    def expanded(self, build: Callable[..., Any], node: Node, names: Sequence[str]) -> Any:
        """Write build(*inputs), which computes the result or results of `node` by other ops."""
        inputs = placeholders([x.spec for x in node.inputs])
        built = build(*inputs)
        results = [built] if isinstance(built, Node) else built
        self.values.update(zip(inputs, names, strict=True))
        for inner in toposort(results):
            self._write(inner)
        names_of_results = [self.values[y] for y in results]
        return names_of_results if node.is_bundle else names_of_results[0]

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Return the elements of x in another shape, whose sizes may be symbolic."""
        unknown = [isinstance(n, SymbolicSize) for n in shape]
        if sum(unknown) == 1 and 0 not in shape:
            shape = [-1 if is_unknown else n for n, is_unknown in zip(shape, unknown, strict=True)]
        zeros = {"allowzero": 1} if 0 in shape else {}
        return self.op("Reshape", x, self.sizes(shape), **zeros)

    def expand(self, x: str, old: Sequence[int], new: Sequence[int]) -> str:
        """Return x, of shape `old`, broadcast to shape `new`."""
        lead = len(new) - len(old)
        sizes = [1 if i >= lead and n == old[i - lead] else n for i, n in enumerate(new)]
        return self.op("Expand", x, self.sizes(sizes)) if set(sizes) != {1} or lead else x

    def body(self, graph: Graph, names: Sequence[str], inputs: int) -> GraphProto:
        """Return a graph as the body of a loop.

        names   of the graph's inputs: first those of the body, then outer values
        inputs  number of inputs of the body
        """
        outer = self.nodes, self.values
        self.nodes, self.values = [], dict(zip(graph.inputs, names, strict=True))
        self.write(graph)
        outputs = [self.op("Identity", self.values[y]) for y in graph.outputs]
        loop_body = helper.make_graph(
            self.nodes,
            self.unique("body"),
            [info(n, x.spec) for n, x in zip(names[:inputs], graph.inputs, strict=False)],
            [info(n, y.spec) for n, y in zip(outputs, graph.outputs, strict=True)],
        )
        self.nodes, self.values = outer
        return loop_body

    # ------------------------------------------------------------ the nodes of a graph

    def write(self, graph: Graph) -> None:
        """Append the ONNX nodes of a graph."""
        self.users.update([*graph.outputs, *(x for node in graph for x in node.inputs)])
        for node in graph:
            with Within(source=node.source):
                self._write(node)

    def _write(self, node: Node) -> None:
        if node in self.values:
            return
        if isinstance(node, Parameter):
            name = self.values[node] = self.unique(node.name)
            self.initializers[name] = node.numpy()
        elif isinstance(node.op, Constant):
            self.values[node] = self.constant(node.op.value)
        elif isinstance(node.op, Item):
            results = self.values[node.inputs[0]]
            if node.op.index >= len(results):  # such as the positions of maxima
                self.missing[f"result {node.op.index} of {node.inputs[0].op.name}"] += 1
                results = ["missing"] * (node.op.index + 1)
            self.values[node] = results[node.op.index]
        else:
            names = [self.values[x] for x in node.inputs]
            self.values[node] = self._exported(node, names)

    def _exported(self, node: Node, names: list[Any]) -> Any:
        count = len(self.nodes)
        export = self._exports.get(type(node.op))
        try:
            if export:
                return export(self, node.op, node, *names)
        except NotExpressible:
            del self.nodes[count:]
        if type(node.op).expand is not Op.expand:
            return self.expanded(node.op.expand, node, names)
        if not isinstance(node.op, Input):
            self.missing[node.op.name] += 1
        return [self.unique("missing") for _ in node.specs] if node.is_bundle else "missing"


def _is_never_negative(size: SymbolicSize) -> bool:
    try:
        return size >= 0
    except UndecidedSize:
        return False


def info(name: str, spec: Spec) -> Any:
    """Return the record of a tensor's type, with the names of symbolic sizes."""
    shape = [str(n) if isinstance(n, SymbolicSize) else n for n in spec.shape]
    return helper.make_tensor_value_info(name, CODES[spec.dtype], shape)


def pruned(nodes: Sequence[NodeProto], outputs: Iterable[str]) -> tuple[list[NodeProto], set[str]]:
    """Return the nodes that outputs depend on, and the names of all values that these read."""
    used = set(outputs)
    live = []
    for node in reversed(nodes):
        if not used.isdisjoint(node.output):
            live.append(node)
            for inner in every([node]):
                used.update(inner.input, *((y.name for y in a.g.output) for a in inner.attribute))
    return live[::-1], used
