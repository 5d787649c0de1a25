"""A graph of ATen's operators, from PyTorch's compiler, as a function of tensors.

Operators without a row run in PyTorch: the graph is split at them, and its parts are compiled.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import create_op_support

import minigraph as mg
from minigraph import ops
from minigraph.arguments import first_names
from minigraph.errors import reason, warn_once
from minigraph.graph import Graph, Node
from minigraph.graph_compiler import CompGraph
from minigraph.ops.random import SEED
from minigraph.torch.capture import location, name_of
from minigraph.torch.interpret import RowError, run
from minigraph.torch.memory import array_of, in_order, tensor_of
from minigraph.torch.operators import DTYPES, ROWS

MAX_KEPT_FUNCTIONS = 8  # functions of a graph whose sizes differ between calls

CHECK = torch.ops.aten._assert_async.msg  # it has no result, so no other node computes it
NUMBER_TYPES = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)

Axes = tuple[int, ...]
Compiled = Callable[[Sequence[Any]], Sequence[Any]]
Refused = dict[torch.fx.Node, str]  # nodes that run in PyTorch, with the reason if there is a row


class GraphFunction:
    """The function of a graph: called with a list of tensors and sizes, which it empties.

    The first call with each combination of sizes compiles; the functions of the last
    MAX_KEPT_FUNCTIONS sizes are kept.
    """

    def __init__(
        self, module: torch.fx.GraphModule, compiler: CompGraph, device: torch.device
    ) -> None:
        self._boxed_call = True  # tells PyTorch that the arguments come as a list
        self._module = module
        self._compiler, self._device = compiler, device  # of the same device
        self._by_size: OrderedDict[Any, Compiled] = OrderedDict()
        inputs = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
        sizes = [n for x in inputs for n in (x.shape if isinstance(x, torch.Tensor) else [None])]
        self._any_size = not all(isinstance(n, int) for n in sizes)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        size = None
        if self._any_size:
            size = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in args)
        run = self._by_size.get(size)
        if run is None:
            run = self._by_size[size] = self._compiled(args)
            if len(self._by_size) > MAX_KEPT_FUNCTIONS:
                self._by_size.popitem(last=False)
        elif size is not None:
            self._by_size.move_to_end(size)
        tensors = args[:]
        args.clear()
        with in_order(self._device):
            return run(tensors)

    def _compiled(self, args: Sequence[Any]) -> Compiled:
        """Return the compiled graph for arguments of these sizes."""
        calls = [node for node in self._module.graph.nodes if node.op == "call_function"]
        refused: Refused = {node: "" for node in calls if not _has_row(node, self._device)}
        try:
            if not refused and calls:
                interpreted = _interpret(self._module, args, refused)
                if not refused:
                    return CompiledGraph(self._compiler, *interpreted)
            if refused:
                _warn_of(refused)
            if len(refused) < len(calls):
                return self._partitioned(refused)
        except Exception as error:  # any error: PyTorch can run the graph
            warn_once(f"torch.compile: a graph runs in PyTorch: {reason(error)}")
        return _unpacked(self._module)

    def _partitioned(self, refused: Refused) -> Compiled:
        """Return the module, with those parts compiled that have no refused operator."""
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(self._module.graph, copies))
        excluded = {copies[node] for node in refused}

        def is_ours(modules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
            if node.op != "call_function" or node in excluded or not _tensors(node.meta.get("val")):
                return False
            return node.target is not operator.getitem or node.args[0] not in excluded

        module = torch.fx.GraphModule(self._module, graph)
        support = create_op_support(is_ours)
        partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
        module = partitioner.partition_and_fuse()
        for node in module.graph.nodes:
            if node.op == "call_module":
                part = getattr(module, node.target)
                delattr(module, node.target)  # torch does not replace a submodule by a function
                function = GraphFunction(part, self._compiler, self._device)
                setattr(module, node.target, _separate_arguments(function, part))
        return _unpacked(module)


class Permuted(NamedTuple):
    """An expression, and the order of its axes in the tensor's memory; None if not permuted."""

    node: Node
    axes: Axes | None


class Result(NamedTuple):
    """A result of a graph: the number of an output or of an argument, or a value."""

    kind: str
    value: Any


class CompiledGraph:
    """A function of minigraph that takes and returns tensors.

    inputs   by the number of the argument
    outputs  the computed ones, and the checks
    results  of the graph
    """

    def __init__(
        self,
        compiler: CompGraph,
        inputs: Mapping[int, Permuted],
        outputs: Sequence[Permuted],
        results: Sequence[Result],
    ) -> None:
        self._inputs = [(i, each.axes) for i, each in inputs.items()]
        self._back = [each.axes and inverse(each.axes) for each in outputs]
        self._results = results
        nodes = [each.node for each in outputs]
        self.function = compiler.compile([each.node for each in inputs.values()], nodes)
        self._random = any(node is SEED for node in Graph((), tuple(nodes)))

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        arrays = []
        for i, axes in self._inputs:
            tensor = args[i] if axes is None else args[i].permute(axes)
            arrays.append(array_of(tensor.detach()))
        if self._random:
            # From PyTorch's generator, so that its state alone determines the random numbers.
            self.function.calls = 0
            self.function.seed = int(torch.empty((), dtype=torch.int64).random_())
        outputs = [
            tensor_of(array) if axes is None else tensor_of(array).permute(axes)
            for array, axes in zip(self.function(*arrays), self._back, strict=True)
        ]
        tensors = {"output": outputs, "argument": args}
        return [tensors[kind][x] if kind in tensors else x for kind, x in self._results]


def _interpret(
    module: torch.fx.GraphModule, args: Sequence[Any], refused: Refused
) -> tuple[dict[int, Permuted], list[Permuted], list[Result]]:
    """Return the arguments of `CompiledGraph`; add operators whose rows fail to `refused`."""
    values: dict[torch.fx.Node, Any] = {}
    argument_indices: dict[torch.fx.Node, int] = {}
    inputs: dict[int, Permuted] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        argument_indices[node], values[node] = i, args[i]
        if isinstance(args[i], torch.Tensor) and any(x.op != "output" for x in node.users):
            inputs[i], values[node] = _input(f"x{i}", args[i])
    try:
        run(module, values)
    except RowError as error:
        refused[error.node] = reason(error.__cause__ or error)
    for node, value in values.items():
        if node.op == "call_function" and not _is_complete(node, value):
            refused[node] = "its row does not compute all of its results"
    returned = module.graph.output_node().args[0]
    outputs: dict[torch.fx.Node, Permuted] = {}
    results: list[Result] = []
    for x in returned if isinstance(returned, list | tuple) else (returned,):
        if refused or not isinstance(x, torch.fx.Node):
            results.append(Result("value", x))
        elif x in argument_indices:
            results.append(Result("argument", argument_indices[x]))
        elif isinstance(values[x], Node):
            outputs[x] = outputs.get(x) or _permuted(values[x], x.meta["val"])
            results.append(Result("output", list(outputs).index(x)))
        else:
            results.append(Result("value", values[x]))
    checks = module.graph.find_nodes(op="call_function", target=CHECK)
    computed = [*outputs.values(), *(Permuted(values[x], None) for x in checks if x in values)]
    return inputs, computed, results


def _input(name: str, tensor: torch.Tensor) -> tuple[Permuted, Node]:
    """Return an input with axes in the order of a tensor's memory, and a view with its axes."""
    axes = axes_in_memory(tensor.shape, tensor.stride())
    shape = tuple(tensor.shape[axis] for axis in axes or range(tensor.ndim))
    node = mg.input(name, shape, DTYPES[tensor.dtype])
    return Permuted(node, axes), node if axes is None else ops.permute_dims(node, inverse(axes))


def _permuted(node: Node, like: torch.Tensor) -> Permuted:
    """Return a result with axes in the order of a tensor's memory, for torch's views of it."""
    # The sizes at the time of tracing; None for unknown ones.
    shape, strides = (
        [n if isinstance(n, int) else n.node.hint for n in sizes]
        for sizes in (like.shape, like.stride())
    )
    axes = None if None in (*shape, *strides) else axes_in_memory(shape, strides)
    return Permuted(node if axes is None else ops.permute_dims(node, axes), axes)


def axes_in_memory(shape: Sequence[int], strides: Sequence[int]) -> Axes | None:
    """Return the order of a tensor's axes in memory; None if it is contiguous or has gaps.

    >>> axes_in_memory((2, 3, 4, 4), (48, 1, 12, 3))  # channels last
    (0, 2, 3, 1)
    """
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] != 1, -strides[axis]))
    counted = [axis for axis in axes if shape[axis] != 1]
    if counted == sorted(counted):
        return None
    sizes = [shape[axis] for axis in counted]
    dense = all(strides[axis] == math.prod(sizes[i + 1 :]) for i, axis in enumerate(counted))
    return tuple(axes) if dense else None


def inverse(axes: Axes) -> Axes:
    """Return the order that undoes an order of axes."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


# ---------------------------------------------------------------- supported nodes


def _has_row(node: torch.fx.Node, device: torch.device) -> bool:
    """Return whether a node has a row that supports its tensors, or computes a number."""
    results = _tensors(node.meta.get("val"))
    operands = [x for y in node.all_input_nodes for x in _tensors(y.meta.get("val"))]
    is_computed = name_of(node.target) in ROWS or isinstance(node.meta.get("val"), NUMBER_TYPES)
    return (
        is_computed
        and all(x.device == device for x in results)
        and all(x.device == device or (x.is_cpu and not x.ndim) for x in operands)
        and all(x.layout is torch.strided and x.dtype in DTYPES for x in (*results, *operands))
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    return [x for x in values if isinstance(x, torch.Tensor)]


def _is_complete(node: torch.fx.Node, value: Any) -> bool:
    """Return whether a row has computed all tensors that the graph uses."""
    users = [x.args[1] for x in node.users if x.target is operator.getitem]
    traced = node.meta.get("val")
    pairs = [(value[i], traced[i]) for i in users] if isinstance(value, list) else [(value, traced)]
    return all(isinstance(x, Node) or not isinstance(y, torch.Tensor) for x, y in pairs)


def _warn_of(refused: Refused) -> None:
    counts = Counter(name_of(node.target) for node in refused)
    first = {name_of(node.target): node for node in reversed(refused)}
    named = []
    for name, count in counts.items():
        named.append(f"{name} ({count}: {refused[first[name]] or location(first[name])})")
    warn_once(f"torch.compile: these operators run in PyTorch: {first_names(named, 20)}")


def _returns_one(module: torch.fx.GraphModule) -> bool:
    """Return whether a module returns one tensor, as parts of a graph may, not a sequence."""
    return isinstance(module.graph.output_node().args[0], torch.fx.Node)


def _unpacked(module: torch.fx.GraphModule) -> Compiled:
    return lambda args: [module(*args)] if _returns_one(module) else module(*args)


def _separate_arguments(function: GraphFunction, part: torch.fx.GraphModule) -> Callable[..., Any]:
    if _returns_one(part):
        return lambda *args: function([*args])[0]
    return lambda *args: function([*args])
