"""A module of PyTorch as a graph of ATen operators that have rows.

`torch.export` traces the module.  Operators that have a row are kept; PyTorch decomposes the
others.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules import transformer
from torch.utils import _pytree as pytree

import minigraph
from minigraph.arguments import first_names
from minigraph.errors import GraphError, warn_once
from minigraph.graph import here
from minigraph.graph.location import Location
from minigraph.platform import forks
from minigraph.torch.complex_numbers import COMPLEX_ROWS, is_complex
from minigraph.torch.functions import traced_gradients
from minigraph.torch.operators import NESTED, ROWS
from minigraph.torch.substitutes import is_causal, substituted_forwards

# Beginnings of the paths of torch, minigraph and Python, and of code without a file.
LIBRARY_FOLDERS = (
    *(f"{os.path.dirname(str(x.__file__))}{os.sep}" for x in (torch, minigraph, os)),
    "<",
)
_LOCK = forks.reentrant_lock()  # tracing changes what all threads see of torch
DATA_DEPENDENT = GuardOnDataDependentSymNode, DataDependentOutputException
TRANSFORMS = os.path.join("_functorch", "eager_transforms.py")
GETITEM = "_operator.getitem"
ITEM = torch.ops.aten._local_scalar_dense.default
WITH_GRADIENT = torch.ops.higher_order.wrap_with_set_grad_enabled


def capture(
    what: str,
    module: torch.nn.Module,
    args: Sequence[Any],
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> ExportedProgram:
    """Return the graph of a module's call, without mutations; raise GraphError if tracing fails.

    what    first words of errors
    prefix  of the paths of modules, which errors omit
    """
    positional, keywords = _distinct((tuple(args), dict(kwargs or {})))
    names = {id(x): path for path, x in module.named_modules()}
    assigned: list[tuple[str, Any]] = []
    try:
        tracked = _assignments(module, prefix, assigned)
        with _LOCK, _quiet():
            states = _random_states()
            with traced_gradients(), substituted_forwards(), tracked:
                program = torch.export.export(
                    module, positional, keywords, dynamic_shapes=dynamic_shapes, strict=False
                )
            _detach_without_gradient(program)
            program.example_inputs = None  # else torch searches for the bases of views among them
            program = program.run_decompositions(decompositions(core=True))
    except Exception as error:  # of many classes, which torch does not document
        text = _brief(error, names, prefix)
        raise GraphError(f"{what}: torch.export cannot trace the model {text}") from None
    refuse_missing(what, program, prefix)
    _warn_of_assignments(what, assigned, program)
    if states != _random_states():
        warn_once(
            f"{what}: while the model was traced, numbers were drawn from `random` or "
            "`numpy.random`; if by the model, they are the same at each call, unlike those of "
            "PyTorch's random functions"
        )
    return program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of tracing, which come from torch's own code or precede an error.

    Meanwhile distributions do not check their parameters, and transformers do not check whether a
    mask is causal, because these checks branch on values.
    """
    before, checks = logging.root.manager.disable, Distribution._validate_args
    detect = transformer._detect_is_causal_mask
    logging.disable(logging.ERROR)
    Distribution.set_default_validate_args(False)
    transformer._detect_is_causal_mask = is_causal
    try:
        # For a branch on a tensor's value, torch prints the graph as well.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        Distribution.set_default_validate_args(checks)
        transformer._detect_is_causal_mask = detect


@contextlib.contextmanager
def _assignments(
    module: torch.nn.Module, prefix: str, assigned: list[tuple[str, Any]]
) -> Iterator[None]:
    """Change a buffer in place where `forward` assigns a new tensor, which tracing would lose.

    assigned  gets the paths and old values of other attributes that `forward` reassigns

    Raises GraphError if `forward` adds a parameter, buffer or submodule.  Afterwards removes the
    attributes, items of dicts and hooks that `forward` added: an attribute may hold a tensor of
    the tracer.
    """
    parts = [(path.removeprefix(prefix).lstrip("."), x) for path, x in module.named_modules()]
    attributes = [(path, vars(part), dict(vars(part))) for path, part in parts]
    tables = [
        (path, table, dict(table))
        for path, part in parts
        for table in (part._parameters, part._buffers, part._modules)
    ]
    dicts = [
        (each, {*each})
        for _, part in parts
        for each in (vars(part), *(x for x in vars(part).values() if isinstance(x, dict)))
    ]
    buffers: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def remember(*unused: Any) -> None:
        tables = [part._buffers for _, part in parts]
        buffers[:] = [(table, *each) for table in tables for each in table.items()]

    def change(*unused: Any) -> None:
        for table, name, buffer in buffers:
            if buffer is not None and table.get(name) is not buffer:
                with torch.no_grad():
                    buffer.copy_(table[name])
                table[name] = buffer
        for path, table, before in tables:
            for name in table.keys() - before.keys():
                new_path = f"{path}.{name}".lstrip(".")
                raise GraphError(f"`forward` adds {new_path}, which `__init__` must add")
        for path, after, before in attributes:
            for name, old in before.items():
                if name != "training" and after.get(name) is not old:
                    assigned.append((f"{path}.{name}".lstrip("."), old))

    hooks = module.register_forward_pre_hook(remember), module.register_forward_hook(change)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for changed, names in dicts:
            for name in changed.keys() - names:
                del changed[name]


def _warn_of_assignments(
    what: str, assigned: Sequence[tuple[str, Any]], program: ExportedProgram
) -> None:
    """Warn of reassigned attributes that may carry values between calls: a graph loses them."""
    constants = {id(x) for x in program.constants.values()}
    paths = [
        path
        for path, old in assigned
        if old is None or isinstance(old, bool | int | float) or id(old) in constants
    ]
    if paths:
        warn_once(
            f"{what}: `forward` assigns {first_names(paths)}, which happens when it is traced, not "
            "at each call; only buffers (`register_buffer`) keep values between calls"
        )


def _random_states() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's generators, which graphs do not use."""
    return random.getstate(), repr(np.random.get_state(legacy=False)["state"])


def _distinct(arguments: Any) -> Any:
    """Return arguments with repeated tensors cloned: tracing would merge them into one input."""
    ids: set[int] = set()

    def distinct(x: torch.Tensor) -> torch.Tensor:
        is_repeated = id(x) in ids
        ids.add(id(x))
        return x.detach().clone().requires_grad_(x.requires_grad) if is_repeated else x

    return pytree.tree_map_only(torch.Tensor, distinct, arguments)


def _detach_without_gradient(program: ExportedProgram) -> None:
    """Detach the results of `torch.no_grad()` and of `detach_`, which decompositions lose."""
    aten = torch.ops.aten
    for graph in _graphs(program):
        for node in graph.graph.find_nodes(op="call_function", target=aten.detach_.default):
            (old,), node.target = node.args, aten.detach.default
            old.replace_all_uses_with(node, delete_user_cb=lambda user, n=node: n < user)
            program.graph_signature.replace_all_uses(old.name, node.name)
        for node in graph.graph.find_nodes(op="call_function", target=WITH_GRADIENT):
            items = [] if node.args[0] else list(node.users)
            for item in items:
                if is_tensor(item):
                    with graph.graph.inserting_after(item):
                        new = graph.graph.call_function(aten.detach.default, (item,))
                    new.meta = dict(item.meta)
                    item.replace_all_uses_with(
                        new, delete_user_cb=lambda user, n=new: user is not n
                    )
                    program.graph_signature.replace_all_uses(item.name, new.name)
        graph.recompile()


def _graphs(program: ExportedProgram) -> list[torch.fx.GraphModule]:
    """Return the graph of a program, and the nested ones."""
    modules = program.graph_module.modules()
    return [graph for graph in modules if isinstance(graph, torch.fx.GraphModule)]


@functools.cache
def decompositions(core: bool = False) -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions of operators that have no row.

    core  whether to include decompositions of core operators
    """
    table = {**(decomposition_table if core else {}), **torch.export.default_decompositions()}
    overloads = [op for op in table if isinstance(op, torch._ops.OpOverload)]
    return {op: table[op] for op in overloads if name_of(op) not in {**ROWS, **COMPLEX_ROWS}}


def refuse_missing(what: str, program: ExportedProgram, prefix: str) -> None:
    """Raise GraphError if operators have no row: it lists all, with counts and source lines."""
    calls = [node for g in _graphs(program) for node in g.graph.nodes if node.op == "call_function"]
    values = [node.meta.get("val") for node in calls]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    sizes = {str(n) for x in tensors for n in x.shape}
    missing = [
        node
        for node, value in zip(calls, values, strict=True)
        if not _has_row(node) or (node.target is ITEM and str(value) in sizes)
    ]
    if missing:
        first = {_operator(node): location(node, prefix) for node in reversed(missing)}
        counts = Counter(map(_operator, missing))
        listed = first_names([f"{op} ({n} {first[op]})" for op, n in counts.items()], 20)
        hint = ""
        if any(map(is_complex, missing)):
            hint += "; of complex numbers, few operators are supported"
        if ITEM in counts:
            hint += "; .item() gives a size that is unknown when the graph is compiled"
        raise GraphError(f"{what}: unsupported operators: {listed}{hint}")


def _has_row(node: torch.fx.Node) -> bool:
    table = COMPLEX_ROWS if is_complex(node) else ROWS
    return name_of(node.target) in (*table, *NESTED, GETITEM)


def _operator(node: torch.fx.Node) -> Any:
    """Return the operator of a call, also of one that `with_effects` orders among others."""
    return node.args[1] if node.target is torch.ops.higher_order.with_effects else node.target


def name_of(target: Any) -> str:
    """Return the name of a node's operator in the table of rows."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}"
    return f"{target.__module__}.{target.__name__}"


def is_tensor(node: torch.fx.Node) -> bool:
    """Return whether the value of a node is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def location(node: torch.fx.Node, prefix: str = "") -> Location:
    """Return the user's line and the layer of a node; for a gradient's node, of the forward node.

    prefix  of the paths of modules, which is omitted
    """
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    users = [frame for frame in frames if not frame[0].startswith(LIBRARY_FOLDERS)]
    file, line = users[-1] if users else here()[:2]  # the line that captures the model
    backward = node.meta.get("partitioner_tag") == "is_backward"
    stack = node.meta.get("fwd_nn_module_stack" if backward else "nn_module_stack") or {}
    path = next((path for path, _ in reversed(stack.values())), "")
    path = re.sub(r"^L\[[^]]*\]", "", path)  # Dynamo's paths begin with L['self']
    path = path.removeprefix(prefix).removeprefix(".")
    return Location(file, int(line), path, backward)


def _brief(error: Exception, names: Mapping[int, str], prefix: str) -> str:
    """Return the layer and the user's line at which an error of torch arose, and its text.

    names   paths of the modules, by their ids
    prefix  of paths, which is omitted
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    users = [frame for frame in frames if not frame[0].startswith(LIBRARY_FOLDERS)]
    modules = [id(frame.f_locals.get("self")) for frame, _ in walk_tb(error.__traceback__)]
    paths = [names[each] for each in modules if each in names]
    layer = paths[-1].removeprefix(prefix).removeprefix(".") if paths else ""
    source = Location(*(users[-1] if users else here()[:2]), layer)
    if isinstance(error, DATA_DEPENDENT):
        return (
            f"{source}: a size or a branch depends on values of a tensor, which are unknown when "
            "the graph is compiled; torch.where chooses between values"
        )
    if any(file.endswith(TRANSFORMS) for file, _ in frames) or "TensorWrapper" in str(error):
        return f"{source}: torch.func's grad, vjp and Jacobians are not supported"
    unknown = re.search(r"<class '([^']+)'> in output, which is not a known type", str(error))
    if unknown:
        return (
            f"{source}: the model returns a {unknown[1]}, which torch.export does not know: leave "
            "it out (use_cache=False in models of transformers) or register it with "
            "torch.utils._pytree.register_pytree_node"
        )
    named = re.sub(r"L\['(\w+)'\]", r"\1", str(error))  # torch's names of arguments
    lines = [line.strip() for line in named.splitlines() if line.strip()]
    constraints = [line[2:].split(". ")[0] for line in lines if line.startswith("- ")]
    return f"{source}: {type(error).__name__}: {(constraints or lines or [''])[0]}"[:500]
