"""The graph of a model as expressions."""

from __future__ import annotations

import functools
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

from onnx import IR_VERSION, FunctionProto, GraphProto, NodeProto, TypeProto, checker, defs, helper

from minigraph import ops
from minigraph.arguments import first_names
from minigraph.errors import GraphError, ShapeError, located
from minigraph.graph import Array, Node, SymbolicSize, UndecidedSize, constant, is_symbolic
from minigraph.graph.location import Location, Within, scope
from minigraph.onnx.operators import COUNTING, ROWS, WORDS
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
from minigraph.onnx.values import NeedsValue, constant_value, folded, integer, sizes_in, value_of
from minigraph.platform.records import one_line

MAX_FUNCTION_DEPTH = 50  # of functions in functions
MAX_NODES = 100_000  # that are computed, those of functions and loops included
MAX_UNROLLED_STEPS = 1000  # of a loop whose steps differ
Values = MutableMapping[str, Any]


class Interpreter:
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
        attributes  of the function that has the nodes
        source      source location of the function's call; None: each node is a location
        """
        own = values.maps[0] if isinstance(values, ChainMap) else values
        for i, node in enumerate(nodes):
            place = source or Location(self.file.name, i, one_line(node.name) or node.op_type)
            inputs = [values.get(x) for x in node.input]
            self.count += 1
            try:
                if self.count > MAX_NODES:
                    raise GraphError(f"it is one of more than {MAX_NODES:,} to compute")
                if missing := [x for x in node.input if x and x not in values]:
                    raise GraphError(f"it reads {missing[0]!r}, which no node before it makes")
                if again := [y for y in node.output if y and y in own]:
                    raise GraphError(f"it makes {again[0]!r}, which is there before it")
                with Within(source=place, layers=()):
                    results = self._results(node, inputs, values, opsets, attributes)
            except NeedsValue:
                raise
            except GraphError as error:
                if type(error) is ShapeError and any(_is_open(x) for x in inputs if x is not None):
                    undecided = UndecidedSize(str(error))  # it may fit the sizes of a call
                    vars(undecided).update(vars(error))
                    error = undecided
                raise located(
                    error, node.op_type, _present_inputs(inputs), place
                ) from error.__cause__
            except Exception as error:  # of a row that does not foresee these arguments
                text = _misfit(node, opsets) or f"{type(error).__name__}: {error}"
                new = GraphError(f"{self.what}: cannot compute this operator, {one_line(text)}")
                raise located(new, node.op_type, _present_inputs(inputs), place) from error
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
            inside = functools.partial(self._inside, values=values, opsets=opsets)
            return NESTED[name](inputs, attributes, inside)
        if name not in ROWS:
            made = NodeProto()
            made.CopyFrom(node)
            del made.attribute[:]
            made.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
            return self._call(expansion(made, opsets, inputs), inputs, attributes)
        for attribute, value in attributes.items():
            if words := WORDS.get(f"{name}.{attribute}", WORDS.get(attribute)):
                words.check(attribute, value)
        if name in COUNTING:
            attributes["outputs"] = len(node.output)
        results = ROWS[name](*inputs, **attributes)
        results = results if isinstance(results, list | tuple) else [results]
        if all(x is None or constant_value(x) is not None for x in inputs):
            results = [y if y is None else folded(y) for y in results]
        return results

    def _call(
        self, function: FunctionProto, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> list[Node | None]:
        if self.depth > MAX_FUNCTION_DEPTH:
            raise GraphError(f"{function.name} is a function of itself")
        given = dict(zip(function.input, inputs, strict=False))
        values: Values = {name: given.get(name) for name in function.input}
        opsets = opsets_of(function.opset_import)
        defaults = {a.name: attribute_value(a) for a in function.attribute_proto}
        self.depth += 1
        try:
            self.run(function.node, values, opsets, {**defaults, **attributes}, scope.source)
        finally:
            self.depth -= 1
        return [values.get(name) for name in function.output]

    def _inside(
        self, graph: GraphProto, given: Sequence[Node], values: Values, opsets: Opsets
    ) -> list[Node]:
        """Return the results of a node's inner graph, which may read values outside of it."""
        inputs = dict(zip([x.name for x in graph.input], given, strict=True))
        inner: Values = ChainMap({**self.initializers(graph), **inputs}, values)
        self.run(graph.node, inner, opsets, {}, scope.source)
        return [inner[y.name] for y in graph.output]

    def initializers(
        self, graph: GraphProto, held: Callable[[str, Array], Node] = lambda _, x: constant(x)
    ) -> dict[str, Node]:
        """Return the values that stand in a graph, by their names.

        held  makes an expression of a name and an array
        """
        if graph.sparse_initializer:
            raise GraphError(f"{self.what}: there are no sparse tensors here")
        counts = Counter(x.name for x in graph.initializer)
        if again := [name for name, count in counts.items() if count > 1]:
            raise GraphError(f"{self.what}: there are two tensors {again[0]!r}")
        arrays = ((x.name, array_of(x, self.file.folder)) for x in graph.initializer)
        return {name: held(name, array) for name, array in arrays}


# ---------------------------------------------------------------- operators with graphs in them

Inside = Callable[[GraphProto, Sequence[Node]], list[Node]]  # the results of a graph in a node


def _if(inputs: Any, attributes: Mapping[str, Any], inside: Inside) -> list[Node]:
    """Return the results of the branch that a condition, a known one, chooses."""
    branch = "then_branch" if value_of(inputs[0]).all() else "else_branch"
    return inside(attributes[branch], ())


class _EndsItself(GraphError):
    """Raised while a loop is traced if its body may end it."""


def _loop(inputs: Any, attributes: Mapping[str, Any], inside: Inside) -> list[Node]:
    """Return the results of a loop; one that its body may end is unrolled."""
    times, goes_on, *first = inputs
    count, body = len(first), attributes["body"]
    goes_on = constant(True) if goes_on is None else goes_on
    most = None if times is None else integer(times)
    if most == 0 or not value_of(goes_on).all():
        _, *made = inside(body, (constant(0), goes_on, *first))
        return [*first, *(ops.zeros((0, *y.shape), y.dtype) for y in made[count:])]

    def step(carry: tuple[Node, ...], number: tuple[Node, ...]) -> Any:
        condition, *made = inside(body, (*number, constant(True), *carry))
        known = constant_value(condition)
        if known is None or not known.all():
            raise _EndsItself
        return tuple(made[:count]), tuple(made[count:])

    if most is not None:
        with suppress(_EndsItself):
            last, ys = _scan_or_unroll(step, tuple(first), (ops.arange(most),))
            return [*last, *ys]
    rows: list[list[Node]] = []
    while (most is None or len(rows) < most) and value_of(goes_on).all():
        if len(rows) == MAX_UNROLLED_STEPS:
            raise GraphError(f"it has more than {len(rows):,} steps, each of which may be the last")
        goes_on, *made = inside(body, (constant(len(rows)), goes_on, *first))
        first = made[:count]
        rows.append(made[count:])
    return [*first, *(ops.stack(each, 0) for each in zip(*rows, strict=True))]


def _scan(inputs: Any, attributes: Mapping[str, Any], inside: Inside) -> list[Node]:
    count = attributes["num_scan_inputs"]
    first, scanned = inputs[:-count], inputs[-count:]

    def step(carry: tuple[Node, ...], slices: tuple[Node, ...]) -> Any:
        made = inside(attributes["body"], (*carry, *slices))
        return tuple(made[: len(first)]), tuple(made[len(first) :])

    def told(what: str, n: int) -> list[tuple[int, int]]:
        axes, backwards = (attributes.get(f"scan_{what}_{x}") for x in ("axes", "directions"))
        return [*zip(axes or [0] * n, backwards or [0] * n, strict=True)]

    xs = []
    for x, (axis, backwards) in zip(scanned, told("input", count), strict=True):
        x = ops.moveaxis(x, axis, 0)
        xs.append(ops.flip(x, 0) if backwards else x)
    last, ys = _scan_or_unroll(step, tuple(first), tuple(xs))
    results = [*last]
    for y, (axis, backwards) in zip(ys, told("output", len(ys)), strict=True):
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
        steps = error
    carry, rows = first, []
    for i in range(count):
        carry, made = step(carry, tuple(folded(x[i]) for x in xs))
        rows.append(made)
        # Checked after the first step, which may raise NeedsValue.
        if count > MAX_UNROLLED_STEPS:
            raise GraphError(f"it has {count:,} steps that differ: {steps}") from steps
    return carry, [ops.stack(each, 0) for each in zip(*rows, strict=True)]


NESTED = {"If": _if, "Loop": _loop, "Scan": _scan}


def _misfit(node: NodeProto, opsets: Opsets) -> str:
    """Return what ONNX's checker says against a node, if anything."""
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = IR_VERSION, dict(opsets)
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        return str(error)
    return ""


def _is_open(x: Node) -> bool:
    return is_symbolic(x.shape) or sizes_in(x) is not None


def _present_inputs(inputs: Sequence[Node | None]) -> list[str]:
    return ["none" if x is None else str(x.spec) for x in inputs]


def key(node: NodeProto) -> str:
    """Return the name of a node's operator in the table."""
    return one_line(
        node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"
    )


def expansion(node: NodeProto, opsets: Opsets, inputs: Sequence[Node | None]) -> FunctionProto:
    """Return the function of ONNX that an operator is, for a node whose inputs these are."""
    opset = opsets.get("", 1)
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
        raise GraphError(f"{node.op_type} is not computed here")
    function = FunctionProto()
    function.ParseFromString(body)
    given = {a.name for a in function.attribute_proto}
    defaults = (a.default_value for a in schema.attributes.values() if a.name not in given)
    function.attribute_proto.extend(a for a in defaults if a.type)
    return function


def _newest_version(opset: int, versions: Sequence[int]) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_of(x: Node | None) -> TypeProto:
    """Return the type of an expression as ONNX has it; of an input that is left out, none."""
    if x is None:
        return TypeProto()
    sizes = [str(n) if isinstance(n, SymbolicSize) else n for n in x.shape]
    return helper.make_tensor_type_proto(CODES[x.dtype], sizes)


def refuse_missing(what: str, file: File, opsets: Opsets) -> None:
    """Raise GraphError if there are operators that nothing computes: all of them, with counts."""
    lacking = Counter[str]()
    own = {(f.domain, f.name) for f in file.model.functions}
    graphs = [(file.model.graph.node, opsets)]
    for f in file.model.functions:
        graphs.append((f.node, opsets_of(f.opset_import)))
    for nodes, versions in graphs:
        for node in every(nodes):
            if (node.domain, node.op_type) not in own and (why := _lacks(node, versions)):
                lacking[why] += 1
    if lacking:
        listed = first_names([f"{name} ({n})" for name, n in sorted(lacking.items())], 30)
        raise GraphError(
            f"{what}: {file.name} has operators that are not computed here, with how often each "
            f"occurs: {listed}; `minigraph onnx operators` lists those that are"
        )


def _lacks(node: NodeProto, opsets: Opsets) -> str:
    """Return the operator of a node in words if nothing computes it, else an empty text."""
    name, domain = key(node), "" if node.domain in STANDARD_DOMAINS else node.domain
    if domain or not defs.has(node.op_type):  # some of com.microsoft's stand in ONNX's own
        return "" if name in ROWS else name
    opset = opsets.get(domain, 0)
    if not defs.has(node.op_type, opset, domain):
        return f"{name} of opset {opset}"
    schema = defs.get_schema(node.op_type, opset, domain)
    is_function = schema.has_function or schema.has_context_dependent_function
    return "" if name in ROWS or name in NESTED or is_function else name
