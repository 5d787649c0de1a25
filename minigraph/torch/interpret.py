"""A captured graph as expressions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from minigraph import ops
from minigraph.errors import DTypeError, GraphError, ShapeError, located
from minigraph.graph import Node, constant, placeholders
from minigraph.graph.location import Location, Within
from minigraph.ops.custom_gradient import with_gradient
from minigraph.torch import complex_numbers, masked_selection
from minigraph.torch.capture import is_tensor, location, name_of
from minigraph.torch.complex_numbers import COMPLEX_ROWS, Complex
from minigraph.torch.masked_selection import MaskedSelection
from minigraph.torch.memory import array_of, as_real
from minigraph.torch.operators import DTYPES, NESTED, PROMOTING, ROWS

IGNORED_ARGUMENTS = {
    "device",
    "layout",
    "memory_format",
    "non_blocking",
    "pin_memory",
    "sparse_grad",
}
# Operators whose operands have one dtype in torch, although its tracing does not check that.
OF_ONE_DTYPE = {
    f"aten.{name}"
    for name in (
        *("linear.default", "mm.default", "bmm.default", "mv.default", "addmm.default"),
        *("convolution.default", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"),
    )
}
EXAMPLE_NUMBERS = {torch.SymInt: 1, torch.SymFloat: 1.0}  # for torch's rules of type promotion


class Interpreted(NamedTuple):
    """The results of a captured graph.

    outputs  of the module, with its structure
    changes  new values of buffers, by their names in the module
    """

    outputs: Any
    changes: dict[str, Node]


def interpret(
    what: str,
    program: ExportedProgram,
    inputs: Sequence[Node],
    state: Mapping[str, Node],
    prefix: str = "",
) -> Interpreted:
    """Return a captured graph's results as expressions of its inputs.

    what    first words of errors
    state   parameters and buffers, by their names in the module
    prefix  of the paths of modules, which reports omit
    """
    values: dict[torch.fx.Node, Any] = {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    tensor_inputs = iter(inputs)
    for node in program.graph.find_nodes(op="placeholder"):
        spec = specs[node.name]
        if spec.target in state:  # a parameter, a buffer or a constant that may change
            values[node] = state[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            values[node] = _constant(what, program, spec.target)
        elif is_tensor(node):
            values[node] = next(tensor_inputs)
        else:
            values[node] = getattr(spec.arg, "value", None)
        if is_tensor(node) and node.meta["val"].is_complex():
            values[node] = complex_numbers.from_pairs(values[node])
    try:
        results = run(program.graph_module, values, prefix)
    except RowError as failure:
        error = failure.__cause__
        if not isinstance(error, GraphError):
            text = f"{type(error).__name__}: {error}"
            error = GraphError(f"{what}: cannot compute this call, {text}")
        name = name_of(failure.node.target)
        raise located(error, name, [], failure.source) from failure.__cause__
    return _outputs(what, program, results, prefix)


class RowError(Exception):
    """The row of a node's operator has failed; `__cause__` says why."""

    def __init__(self, node: torch.fx.Node, source: Location) -> None:
        self.node, self.source = node, source


def run(graph: torch.fx.GraphModule, values: dict[torch.fx.Node, Any], prefix: str = "") -> Any:
    """Return a graph's results; raise RowError if a row fails.

    values  of the placeholders; gets the values of all other nodes
    """
    gradients = graph.graph.find_nodes(op="call_function", target=torch.ops.minigraph.grad.default)
    leaves = {x for node in gradients for x in node.args[2]}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(graph)
            values[node] = value if isinstance(value, torch.fx.GraphModule) else as_constant(value)
            if isinstance(value, torch.Tensor) and value.is_complex():
                values[node] = complex_numbers.from_pairs(values[node])
        elif node.op == "output":
            return value_of(node.args[0], values)
        elif any(values[x] is None and is_tensor(x) for x in node.all_input_nodes):
            values[node] = None  # it reads a result that a row omits, such as positions of maxima
        elif node.op == "call_function":
            line = location(node, prefix)
            try:
                with Within(source=line):
                    value = _nested(node, values, prefix) or call(node, values)
                    values[node] = _copied(value) if node in leaves else value
            except RowError:  # of a node in a nested graph
                raise
            except Exception as error:  # a row need not check its arguments
                raise RowError(node, line) from error
    raise AssertionError("a graph ends with its output")


def _copied(x: Node) -> Node:
    """Return x as a node of its own: rows such as that of `clone` return their argument."""
    (dy,) = placeholders([x.spec])
    return with_gradient(x, dy, [x], [dy])


def _nested(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], prefix: str) -> Any:
    """Return the results of a nested graph, such as `torch.no_grad()`'s; None for other nodes."""
    name = name_of(node.target)
    if name not in NESTED:
        return None
    args = [value_of(x, values) for x in node.args]
    index = NESTED[name]
    graph, operands = args[index], args[index + 1 :]
    inner = dict(zip(graph.graph.find_nodes(op="placeholder"), operands, strict=True))
    results = run(graph, inner, prefix)
    if name == "higher_order.wrap_with_set_grad_enabled" and not args[0]:
        results = [ops.stop_gradient(x) if isinstance(x, Node) else x for x in results]
    return results


def _outputs(
    what: str, program: ExportedProgram, values: Sequence[Any], prefix: str
) -> Interpreted:
    results, changes = [], {}
    producers = {node.name: node for node in program.graph.nodes}
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        name = getattr(spec.arg, "name", "")
        where = f", {location(producers[name], prefix)}" if name in producers else ""
        if spec.kind is OutputKind.BUFFER_MUTATION and isinstance(value, Complex):
            raise GraphError(f"{what}: the model changes {spec.target}, which is complex{where}")
        if spec.kind is OutputKind.BUFFER_MUTATION:
            changes[str(spec.target)] = value
        elif spec.kind is not OutputKind.USER_OUTPUT:
            name = str(spec.target).removeprefix(prefix).removeprefix(".")
            raise GraphError(
                f"{what}: the model changes {name} in place, which is not a buffer{where}; "
                "change a clone() of it, or register it as a buffer"
            )
        elif value is None and isinstance(spec.arg, TensorArgument):
            raise GraphError(
                f"{what}: the model returns {spec.arg.name}, which minigraph cannot compute{where}"
            )
        elif isinstance(value, MaskedSelection):
            raise GraphError(f"{what}: {masked_selection.UNKNOWN}{where}")
        elif isinstance(value, Complex):
            raise GraphError(
                f"{what}: the model returns complex numbers{where}; return torch.view_as_real(...)"
            )
        else:
            results.append(value)
    return Interpreted(pytree.tree_unflatten(results, program.call_spec.out_spec), changes)


def call(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    """Return the result of a node's row in torch's dtype."""
    name = name_of(node.target)
    positional, keywords = _arguments(node)
    result = node.meta.get("val")
    args = [value_of(x, values) for x in positional]
    options = {key: value_of(x, values) for key, x in keywords.items()}
    if name in COMPLEX_ROWS and complex_numbers.is_complex(node):
        return _as_torch(COMPLEX_ROWS[name](*args, **options), result)
    if name not in ROWS:  # a function of sizes
        return node.target(*args)
    if name in OF_ONE_DTYPE:
        dtypes = dict.fromkeys(x.dtype for x in pytree.tree_leaves(args) if isinstance(x, Node))
        if len(dtypes) > 1:
            raise DTypeError(f"the tensors have dtypes {' and '.join(map(str, dtypes))}; cast them")
    if name in PROMOTING:
        args = _promoted(node, args, result)
    if any(isinstance(x, MaskedSelection) for x in pytree.tree_leaves(args)):
        return _as_torch(masked_selection.compute(name, args, options), result)
    return _as_torch(ROWS[name](*args, **options), result)


def _as_torch(value: Any, like: Any) -> Any:
    """Return results in torch's dtypes; raise ShapeError if their shapes differ from torch's.

    A result that is empty in torch becomes empty: batch norms in evaluation save nothing on the
    CPU.
    """
    if isinstance(value, tuple | list) and isinstance(like, tuple | list):
        return [_as_torch(x, y) for x, y in zip(value, like, strict=False)]
    if isinstance(value, MaskedSelection):
        return value.astype(DTYPES[like.dtype])
    if isinstance(value, Complex):
        return value.map(lambda part: _as_torch(part, like)) if like.is_complex() else value.real
    if not isinstance(value, Node) or not isinstance(like, torch.Tensor):
        return value
    dtype = DTYPES[like.dtype.to_real()]
    if tuple(like.shape) == (0,):
        return ops.zeros((0,), dtype)
    pairs = zip(value.shape, like.shape, strict=False)
    sizes = [(m, n) for m, n in pairs if isinstance(m, int) and isinstance(n, int)]
    if value.ndim != like.ndim or any(m != n for m, n in sizes):
        raise ShapeError(f"the result has shape {value.shape}, in torch {tuple(like.shape)}")
    return value if value.dtype == dtype else ops.astype(value, dtype)


def _arguments(node: torch.fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a node's row, in the order of the schema.

    IGNORED_ARGUMENTS are left out.
    """
    positional, keywords = list(node.args), dict(node.kwargs)
    if isinstance(node.target, torch._ops.OpOverload):
        for argument in node.target._schema.arguments[len(positional) :]:
            if not argument.kwarg_only:
                positional.append(keywords.pop(argument.name, argument.default_value))
    return positional, {key: x for key, x in keywords.items() if key not in IGNORED_ARGUMENTS}


def _promoted(node: torch.fx.Node, args: list[Any], result: Any) -> list[Any]:
    """Return operands in the dtype in which torch computes."""
    tensors = [x.meta["val"] for x in node.args if isinstance(x, torch.fx.Node)]
    numbers = [x for x in node.args if isinstance(x, bool | int | float)]
    operands = [EXAMPLE_NUMBERS.get(type(x), x) for x in (*tensors, *numbers)]
    dtype = result.dtype
    if dtype is torch.bool:  # a comparison, in the common dtype of its operands
        dtype = operands[0].dtype if isinstance(operands[0], torch.Tensor) else torch.float32
        for other in operands[1:]:
            dtype = torch.promote_types(dtype, torch.result_type(operands[0], other))
    common = DTYPES[dtype]
    return [x.astype(common) if isinstance(x, Node | MaskedSelection) else x for x in args]


def value_of(x: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
    """Return an argument of a node, with the values of the nodes in it."""
    if isinstance(x, torch.fx.Node):
        return values[x]
    if isinstance(x, list | tuple):
        return [value_of(each, values) for each in x]
    return x


def _constant(what: str, program: ExportedProgram, name: str) -> Node:
    value = program.state_dict.get(name, program.constants.get(name))
    if not isinstance(value, torch.Tensor):
        raise GraphError(f"{what}: {name} is a {type(value).__name__}, not a tensor")
    return as_constant(value)


def as_constant(tensor: torch.Tensor) -> Node:
    """Return a copy of a tensor's value as an expression; complex numbers as pairs."""
    return constant(np.array(array_of(as_real(tensor.detach().cpu().contiguous()))))
