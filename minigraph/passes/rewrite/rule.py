"""Rewrite rules, and applying them to a graph.

Most rules are equations in tables: for each name a function that returns both sides.

    rules(
        double_negation=lambda x: (-(-x), x),
        times_one=lambda x: (x * 1, x),
    )

A rule that depends on attributes or shapes is a function of a node whose op is of some classes:

    @rule_on(Reshape, BroadcastTo)
    def last_shape(node: Node) -> Node | None:
        (x,) = node.inputs
        return node.op(x.inputs[0]) if type(x.op) is type(node.op) else None

This module contains no rules; each module of rules says which properties of values its rules keep.
The predicates at the end serve the conditions of rules and other passes.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import (
    FLOATS,
    Constant,
    DType,
    Graph,
    Input,
    Node,
    Op,
    Spec,
    constant,
    toposort,
)
from minigraph.ops.elementwise import kind
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes

Sides = tuple[Node, Node | float]

MAX_VIEW_DEPTH = 4  # views through which `filled_with` looks
MAX_REWRITES = 16  # rules applied in a row at one node, in case two rules undo each other


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of single nodes.

    name      name in reports
    roots     classes of the ops that the rule may replace
    apply     returns the replacement of a node, or None if the rule does not match
    operands  classes of ops that must occur among the inputs: a quick test
    sides     function that returns both sides, for a rule of a table
    """

    name: str
    roots: tuple[type[Op], ...]
    apply: Callable[[Node], Node | None]
    operands: frozenset[type[Op]] = frozenset()
    sides: Callable[..., Sides] | None = None


def rules(
    when: Callable[..., bool] = lambda *nodes: True, /, **sides: Callable[..., Sides]
) -> tuple[Rule, ...]:
    """Return rules from functions that return (before, after); `after` may be a number.

    when  condition on the nodes that match the variables; its parameters are those of the functions

    The result is broadcast to the shape of the node that it replaces.  A rule does not match if the
    result has another dtype.  `before` is built from float32; variables match nodes of any dtype.
    """
    return tuple(_rule(name, build, when) for name, build in sides.items())


def _rule(name: str, build: Callable[..., Sides], when: Callable[..., bool]) -> Rule:
    spec = Spec(())
    variables = tuple(Node(Input(x), (), (spec,)) for x in inspect.signature(build).parameters)
    sides: object = build(*variables)
    if not isinstance(sides, tuple) or len(sides) != 2:
        raise GraphError(f"rule {name}: a rule is a pair of expressions, (before, after)")
    before, _ = sides
    if not isinstance(before, Node) or isinstance(before.op, Input):
        raise GraphError(f"rule {name}: the left side is an op of variables, not {before!r}")
    bound = set(toposort([before]))
    if unbound := [x.name for x in variables if x not in bound]:
        raise GraphError(
            f"rule {name}: the left side, {before!r}, does not contain {', '.join(unbound)}"
        )
    patterns = tuple(operand_orders(before))

    def apply(node: Node) -> Node | None:
        for pattern in patterns:
            bindings = match(pattern, node)
            if bindings is not None and when(*(nodes := [bindings[x] for x in variables])):
                _, after = build(*nodes)
                new = after if isinstance(after, Node) else constant(after, node.dtype)
                return broadcast_to(new, node.shape) if new.dtype == node.dtype else None
        return None

    operands = frozenset({type(x.op) for x in before.inputs} - {Input})
    return Rule(name.replace("_", " "), (type(before.op),), apply, operands, build)


def operand_orders(expression: Node) -> Iterator[Node]:
    """Yield the expression with the operands of commutative ops in every order."""
    for inputs in itertools.product(*map(operand_orders, expression.inputs)):
        yield expression.replace(inputs)
        if expression.op.commutative and inputs[0] is not inputs[1]:
            yield expression.replace(inputs[::-1])


def match(pattern: Node, node: Node) -> dict[Node, Node] | None:
    """Return the node for each input of `pattern` if `node` matches the pattern; else None.

    An input matches any node, but the same node at all its uses.  A constant matches any constant
    that is filled with its value, of any shape and dtype: 1 is 1.0 and True, but 0.0 is not -0.0.
    """
    bindings: dict[Node, Node] = {}
    pending = [(pattern, node)]
    while pending:
        expected, x = pending.pop()
        op = expected.op
        if isinstance(op, Input):
            if bindings.setdefault(expected, x) is not x:
                return None
        elif isinstance(op, Constant):
            number, expected_number = filled_with(x), op.value.item()
            if number is None or number != expected_number:
                return None
            signs = math.copysign(1, number), math.copysign(1, expected_number)
            if isinstance(number, float) and signs[0] != signs[1]:
                return None
        elif x.op != op or len(x.inputs) != len(expected.inputs):
            return None
        else:
            pending.extend(zip(expected.inputs, x.inputs, strict=True))
    return bindings


def rule_on(*roots: type[Op]) -> Callable[[Callable[[Node], Node | None]], Rule]:
    """Make a rule of a function that takes a node with an op of these classes."""
    return lambda fn: Rule(fn.__name__.replace("_", " "), roots, fn)


def rules_in(namespace: Mapping[str, object]) -> tuple[Rule, ...]:
    """Return the rules among the globals of a module, in the order of their definition."""
    return tuple(value for value in namespace.values() if isinstance(value, Rule))


def rewrite(graph: Graph, rules: Sequence[Rule], notes: Notes) -> Graph:
    """Return the graph with the rules applied, inputs before users, until no rule matches.

    The first rule that matches a node is applied, and its result is rewritten, too.  The time is
    linear in the number of nodes.
    """
    table: dict[type[Op], list[Rule]] = {}
    settled: set[Node] = set()

    def settle(node: Node, tries: int) -> Node:
        while tries and (new := first_match(node)) is not None:
            if new in settled:
                return new
            tries -= 1
            node = settle_inputs(new, tries)
        settled.add(node)
        return node

    def settle_inputs(node: Node, tries: int) -> Node:
        """Settle the inputs of a node, recursively: a rule may have made several nodes."""
        xs = (x if x in settled else settle(settle_inputs(x, tries), tries) for x in node.inputs)
        return node.replace(tuple(xs))

    def first_match(node: Node) -> Node | None:
        cls = type(node.op)
        if cls not in table:
            table[cls] = [rule for rule in rules if issubclass(cls, rule.roots)]
        operands = {type(x.op) for x in node.inputs}
        if any(x.op.is_view for x in node.inputs):
            operands.add(Constant)  # it may be a view of a constant
        for rule in table[cls]:
            if rule.operands <= operands and (new := rule.apply(node)) is not None:
                notes.fired[rule.name] += 1
                return new
        return None

    return graph.map(lambda node, inputs: settle(node.replace(inputs), MAX_REWRITES))


# ---------------------------------------------------------------- predicates


def is_float(node: Node) -> bool:
    return kind(node.dtype) == "f"


def filled_with(node: Node) -> int | float | None:
    """Return the number that fills a constant, or a view of one; None for other nodes."""
    for _ in range(MAX_VIEW_DEPTH):
        if not node.op.is_view:
            break
        node = node.inputs[0]
    if not isinstance(node.op, Constant) or not node.size:
        return None
    value = node.op.value
    if value.size > 1:
        bits = np.ascontiguousarray(value).reshape(-1).view(f"u{value.itemsize}")
        if bits[0] != bits[-1] or not (bits == bits[0]).all():  # bits tell 0.0 from -0.0
            return None
    return float(value.flat[0]) if is_float(node) else int(value.flat[0])


def is_lossless(source: DType, target: DType) -> bool:
    """Whether a cast keeps every value of `source`, so that a cast back restores it."""
    # NumPy calls a cast of integers of 64 bits to float64 safe, although it rounds.
    rounds = source in (np.int64, np.uint64) and target in FLOATS
    return bool(np.can_cast(source, target)) and not rounds


def is_normal(number: float, dtype: DType) -> bool:
    """Whether a number is a normal number of a float dtype: not 0, subnormal, infinite or NaN."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return bool(float(info.tiny) <= abs(number) <= float(info.max))


def has_op_of(graph: Graph, *kinds: type[Op]) -> bool:
    """Whether the graph has an op of one of these classes."""
    return any(issubclass(op_class, kinds) for op_class in graph.kinds)


def read_once(graph: Graph) -> set[Node]:
    """Return the nodes that have exactly one use and are no outputs."""
    used_once = {node for node, users in graph.users().items() if len(users) == 1}
    return used_once.difference(graph.outputs)
