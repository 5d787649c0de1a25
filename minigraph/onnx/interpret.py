"""The graph of a model as expressions."""

from __future__ import annotations

import functools
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from onnx import IR_VERSION, FunctionProto, GraphProto, NodeProto, TypeProto, checker, defs, helper

from minigraph import ops
from minigraph.arguments import first_names
from minigraph.errors import GraphError, ShapeError, located
from minigraph.graph import Array, Node, SymbolicSize, UndecidedSize, constant, is_symbolic
from minigraph.graph.location import Location, Within, scope
from minigraph.onnx.operators import COUNTING, FIRST_STABLE_OPSET, ROWS, WORDS, modern, row_of
from minigraph.onnx.tensors import (
    CODES,
    STANDARD_DOMAINS,
    File,
    Opsets,
    array_of,
    attribute_value,
    every,
    opsets_of,
)
from minigraph.onnx.values import (
    NeedsValue,
    Tensors,
    constant_value,
    folded,
    integer,
    sizes_in,
    value_of,
)
from minigraph.platform.records import one_line

MAX_FUNCTION_DEPTH = 50  # of nested functions
MAX_NODES = 100_000  # including those of functions and unrolled loops
MAX_UNROLLED_STEPS = 1000  # of a loop whose steps differ
Values = MutableMapping[str, Any]


class ModelInterpreter:
    """An interpreter of a model's graph, and of the functions in it.

    what  first words of errors
    """

    def __init__(self, what: str, file: File) -> None:
        self.what, self.file = what, file
        self.functions = {(f.domain, f.name): f for f in file.model.functions}
        self.depth = self.count = 0

    def run(
        self,
        nodes: Iterable[NodeProto],
        values: Values,
        opsets: Opsets,
        attributes: Mapping[str, Any],
        source: Location | None = None,
    ) -> None:
        """Add the results of nodes, in their order, to `values`.

        values      of inputs and earlier nodes, by name
        attributes  of the function that contains the nodes
        source      source location of the function's call; None: each node is a location
        """
        innermost = values.maps[0] if isinstance(values, ChainMap) else values
        for i, node in enumerate(nodes):
            location = source or Location(self.file.name, i, one_line(node.name) or node.op_type)
            inputs = [values.get(x) for x in node.input]
            self.count += 1
            try:
                if self.count > MAX_NODES:
                    raise GraphError(f"the model has more than {MAX_NODES:,} operators")
                if missing := [x for x in node.input if x and x not in values]:
                    raise GraphError(f"it reads {missing[0]!r}, which no earlier node computes")
                if repeated := [y for y in node.output if y and y in innermost]:
                    raise GraphError(f"it computes {repeated[0]!r}, which exists already")
                with Within(source=location, layers=()):
                    results = self._results(node, inputs, values, opsets, attributes)
            except NeedsValue:
                raise
            except GraphError as error:
                if type(error) is ShapeError and any(map(_is_open, _nodes(inputs))):
                    undecided = UndecidedSize(str(error))  # the sizes of a call may fit
                    vars(undecided).update(vars(error))
                    error = undecided
                raise located(
                    error, node.op_type, _present_inputs(inputs), location
                ) from error.__cause__
            except Exception as error:  # of a row that does not check its arguments
                text = _checker_error(node, opsets) or f"{type(error).__name__}: {error}"
                new = GraphError(f"{self.what}: cannot compute this operator, {one_line(text)}")
                raise located(new, node.op_type, _present_inputs(inputs), location) from error
            values.update((name, y) for name, y in zip(node.output, results, strict=False) if name)

    def _results(
        self,
        node: NodeProto,
        inputs: Sequence[Node | None],
        values: Values,
        opsets: Opsets,
        outer: Mapping[str, Any],
    ) -> Sequence[Node | None]:
        attributes = {}
        for a in node.attribute:
            if not a.ref_attr_name:
                attributes[a.name] = attribute_value(a)
            elif a.ref_attr_name in outer:
                attributes[a.name] = outer[a.ref_attr_name]
        name = key(node)
        if (node.domain, node.op_type) in self.functions:
            function = self.functions[node.domain, node.op_type]
            return self._call(function, inputs, attributes)
        if name in NESTED:
            run_inner = functools.partial(self._run_inner, values=values, opsets=opsets)
            return NESTED[name](inputs, attributes, run_inner)
        if name not in ROWS:
            copy = NodeProto()
            copy.CopyFrom(node)
            del copy.attribute[:]
            copy.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
            return self._call(expansion(copy, opsets, inputs), inputs, attributes)
        for attribute, value in attributes.items():
            if words := WORDS.get(f"{name}.{attribute}", WORDS.get(attribute)):
                words.check(attribute, value)
        if name in COUNTING:
            attributes["outputs"] = len(node.output)
        row, opset = ROWS[name], opsets.get("", FIRST_STABLE_OPSET)
        if opset < FIRST_STABLE_OPSET and node.domain in STANDARD_DOMAINS:
            row = row_of(name, opset)
            inputs, attributes = modern(name, inputs, attributes)
        results = row(*inputs, **attributes)
        if isinstance(results, Tensors) or not isinstance(results, list | tuple):
            results = [results]
        if all(constant_value(x) is not None for x in _nodes(inputs)):
            results = [folded(y) if isinstance(y, Node) else y for y in results]
        return results

    def _call(
        self, function: FunctionProto, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> list[Node | None]:
        if self.depth > MAX_FUNCTION_DEPTH:
            raise GraphError(f"the function {function.name} is recursive")
        arguments = dict(zip(function.input, inputs, strict=False))
        values: Values = {name: arguments.get(name) for name in function.input}
        opsets = opsets_of(function.opset_import)
        defaults = {a.name: attribute_value(a) for a in function.attribute_proto}
        self.depth += 1
        try:
            self.run(function.node, values, opsets, {**defaults, **attributes}, scope.source)
        finally:
            self.depth -= 1
        return [values.get(name) for name in function.output]

    def _run_inner(
        self, graph: GraphProto, arguments: Sequence[Node], values: Values, opsets: Opsets
    ) -> list[Node]:
        """Return the results of a node's inner graph, which may read outer values."""
        inputs = dict(zip([x.name for x in graph.input], arguments, strict=True))
        inner: Values = ChainMap({**self.initializers(graph), **inputs}, values)
        self.run(graph.node, inner, opsets, {}, scope.source)
        return [inner[y.name] for y in graph.output]

    def initializers(
        self, graph: GraphProto, convert: Callable[[str, Array], Node] = lambda _, x: constant(x)
    ) -> dict[str, Node]:
        """Return a graph's initializers by name.

        convert  returns the expression of a name and an array
        """
        if graph.sparse_initializer:
            raise GraphError(f"{self.what}: sparse tensors are not supported")
        counts = Counter(x.name for x in graph.initializer)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise GraphError(f"{self.what}: the name {repeated[0]!r} has two tensors")
        arrays = ((x.name, array_of(x, self.file.folder)) for x in graph.initializer)
        return {name: convert(name, array) for name, array in arrays}


# ---------------------------------------------------------------- operators with inner graphs

RunInner = Callable[[GraphProto, Sequence[Node]], list[Node]]  # returns a graph's results


def _if(inputs: Any, attributes: Mapping[str, Any], run_inner: RunInner) -> list[Node]:
    """Return the results of the branch that a constant condition chooses."""
    branch = "then_branch" if value_of(inputs[0]).all() else "else_branch"
    return run_inner(attributes[branch], ())


class _EarlyExit(GraphError):
    """Raised while a loop is traced if its body may end the loop."""


def _loop(inputs: Any, attributes: Mapping[str, Any], run_inner: RunInner) -> list[Node]:
    """Return the results of a loop, which is unrolled if its body may end it."""
    trip_count, condition, *carried = inputs
    count, body = len(carried), attributes["body"]
    condition = constant(True) if condition is None else condition
    limit = None if trip_count is None else integer(trip_count)
    if limit == 0 or not value_of(condition).all():
        _, *outputs = run_inner(body, (constant(0), condition, *carried))
        return [*carried, *(ops.zeros((0, *y.shape), y.dtype) for y in outputs[count:])]

    def step(carry: tuple[Node, ...], number: tuple[Node, ...]) -> Any:
        next_condition, *results = run_inner(body, (*number, constant(True), *carry))
        value = constant_value(next_condition)
        if value is None or not value.all():
            raise _EarlyExit
        return tuple(results[:count]), tuple(results[count:])

    if limit is not None and not any(isinstance(x, Tensors) for x in carried):
        with suppress(_EarlyExit):
            last, ys = _scan_or_unroll(step, tuple(carried), (ops.arange(limit),))
            return [*last, *ys]
    rows: list[list[Node]] = []
    while (limit is None or len(rows) < limit) and value_of(condition).all():
        if len(rows) == MAX_UNROLLED_STEPS:
            raise GraphError(f"it has more than {len(rows):,} steps, and any may end the loop")
        condition, *outputs = run_inner(body, (constant(len(rows)), condition, *carried))
        carried = outputs[:count]
        rows.append(outputs[count:])
    return [*carried, *(ops.stack(each, 0) for each in zip(*rows, strict=True))]


def _scan(inputs: Any, attributes: Mapping[str, Any], run_inner: RunInner) -> list[Node]:
    count = attributes["num_scan_inputs"]
    initial, scanned = inputs[:-count], inputs[-count:]

    def step(carry: tuple[Node, ...], slices: tuple[Node, ...]) -> Any:
        results = run_inner(attributes["body"], (*carry, *slices))
        return tuple(results[: len(initial)]), tuple(results[len(initial) :])

    def axes_and_directions(what: str, n: int) -> list[tuple[int, int]]:
        axes, backwards = (attributes.get(f"scan_{what}_{x}") for x in ("axes", "directions"))
        return [*zip(axes or [0] * n, backwards or [0] * n, strict=True)]

    xs = []
    for x, (axis, backwards) in zip(scanned, axes_and_directions("input", count), strict=True):
        x = ops.moveaxis(x, axis, 0)
        xs.append(ops.flip(x, 0) if backwards else x)
    last, ys = _scan_or_unroll(step, tuple(initial), tuple(xs))
    results = [*last]
    for y, (axis, backwards) in zip(ys, axes_and_directions("output", len(ys)), strict=True):
        results.append(ops.moveaxis(ops.flip(y, 0) if backwards else y, 0, axis))
    return results


def _scan_or_unroll(
    step: Callable[..., Any], first: tuple[Node, ...], xs: tuple[Node, ...]
) -> tuple[Sequence[Node], Sequence[Node]]:
    """Return the results of `ops.scan`, unrolled if shapes differ between the steps."""
    try:
        last, ys = ops.scan(step, first, xs)
        return last, ys
    except ShapeError as error:
        count = xs[0].shape[0]
        if not isinstance(count, int):
            raise UndecidedSize(
                f"its {count} steps differ; give the number as shapes={{...}}"
            ) from None
        if not count:
            raise
        difference = error
    carry, rows = first, []
    for i in range(count):
        carry, row = step(carry, tuple(folded(x[i]) for x in xs))
        rows.append(row)
        # Checked after the first step, which may raise NeedsValue.
        if count > MAX_UNROLLED_STEPS:
            raise GraphError(f"it has {count:,} steps that differ: {difference}") from difference
    return carry, [ops.stack(each, 0) for each in zip(*rows, strict=True)]


NESTED = {"If": _if, "Loop": _loop, "Scan": _scan}


def _checker_error(node: NodeProto, opsets: Opsets) -> str:
    """Return the error of ONNX's checker for a node; "" without one."""
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = IR_VERSION, dict(opsets)
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        return str(error)
    return ""


def _is_open(x: Node) -> bool:
    return is_symbolic(x.shape) or sizes_in(x) is not None


def _nodes(inputs: Sequence[Any]) -> Iterator[Node]:
    """Yield the expressions of inputs: None has none, and a sequence those of its tensors."""
    for x in inputs:
        yield from x if isinstance(x, Tensors) else () if x is None else (x,)


def _present_inputs(inputs: Sequence[Node | None]) -> list[str]:
    return [
        f"{len(x)} tensors" if isinstance(x, Tensors) else "none" if x is None else str(x.spec)
        for x in inputs
    ]


def key(node: NodeProto) -> str:
    """Return the name of a node's operator in the table."""
    return one_line(
        node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
    )


def expansion(node: NodeProto, opsets: Opsets, inputs: Sequence[Node | None]) -> FunctionProto:
    """Return ONNX's definition of an operator as a function, for a node with these inputs."""
    opset = max(opsets.get("", 1), FIRST_STABLE_OPSET)
    schema = defs.get_schema(node.op_type, opset, "")
    if schema.has_function:
        version = _newest_version(opset, schema.function_opset_versions)
        body = schema.get_function_with_opset_version(version)
    elif schema.has_context_dependent_function:
        version = _newest_version(opset, schema.context_dependent_function_opset_versions)
        types = [_type_of(x).SerializeToString() for x in inputs]
        body = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
    else:
        raise GraphError(f"the operator {node.op_type} is not supported")
    function = FunctionProto()
    function.ParseFromString(body)
    names = {a.name for a in function.attribute_proto}
    defaults = (a.default_value for a in schema.attributes.values() if a.name not in names)
    function.attribute_proto.extend(a for a in defaults if a.type)
    return function


def _newest_version(opset: int, versions: Sequence[int]) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_of(x: Node | None) -> TypeProto:
    """Return the ONNX type of an expression; an empty one for an omitted input."""
    if x is None:
        return TypeProto()
    sizes = [str(n) if isinstance(n, SymbolicSize) else n for n in x.shape]
    return helper.make_tensor_type_proto(CODES[x.dtype], sizes)


def refuse_missing(what: str, file: File, opsets: Opsets) -> None:
    """Raise GraphError for unsupported operators: it lists all, with counts."""
    missing = Counter[str]()
    local = {(f.domain, f.name) for f in file.model.functions}
    functions = ((f.node, opsets_of(f.opset_import)) for f in file.model.functions)
    for nodes, versions in ((file.model.graph.node, opsets), *functions):
        for node in every(nodes):
            if (node.domain, node.op_type) not in local and (why := _unsupported(node, versions)):
                missing[why] += 1
    if missing:
        listed = first_names([f"{name} ({n})" for name, n in sorted(missing.items())], 30)
        raise GraphError(
            f"{what}: {file.name} has unsupported operators (with their counts): {listed}; "
            "`minigraph onnx operators` lists the supported ones"
        )


def _unsupported(node: NodeProto, opsets: Opsets) -> str:
    """Return the name of a node's operator if it is unsupported, else ""."""
    name, domain = key(node), "" if node.domain in STANDARD_DOMAINS else node.domain
    if domain or not defs.has(node.op_type):  # some of com.microsoft have no domain
        return "" if name in ROWS else name
    opset = opsets.get(domain, 0)
    if not defs.has(node.op_type, opset, domain) or (name == "Scan" and opset < 9):
        return f"{name} of opset {opset}"
    schema = defs.get_schema(node.op_type, max(opset, FIRST_STABLE_OPSET), domain)
    is_function = schema.has_function or schema.has_context_dependent_function
    return "" if name in ROWS or name in NESTED or is_function else name
