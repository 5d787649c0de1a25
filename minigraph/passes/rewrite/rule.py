"""Rewrite rules, and applying them to a graph.

Most rules are written as the mathematics they are, in tables: by name, a function that gives both
sides.

    rules(
        double_negation=lambda x: (-(-x), x),
        times_one=lambda x: (x * 1, x),
    )

A rule that depends on attributes or shapes is a function of a node with one of some ops:

    @rule_on(Reshape, BroadcastTo)
    def last_shape(node: Node) -> Node | None:
        (x,) = node.inputs
        return node.op(x.inputs[0]) if type(x.op) is type(node.op) else None

This module knows no rule; the modules that hold rules know what these may change.  At its end stand
the questions about values that conditions of rules, and other passes, ask.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import BOOL, Constant, DType, Graph, Input, Node, Op, Spec, constant, toposort
from minigraph.ops.elementwise import kind
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes

Sides = tuple[Node, Node | float]

DEPTH = 4  # how many nodes up a question about a node looks, which keeps it cheap
TRIES = 16  # rules in a row at one node, at most: ends two rules that undo each other


@dataclass(frozen=True, eq=False)
class Pattern:
    """An expression of inputs that are variables, to be found in graphs.

    A variable stands for any node, for the same one wherever it occurs.  A constant stands for any
    that is filled with its value, of any shape and dtype.
    """

    expression: Node
    variables: tuple[Node, ...]

    @functools.cached_property
    def forms(self) -> tuple[Node, ...]:
        """The expression with the operands of commutative ops in every order."""
        return tuple(_orders(self.expression))

    def match(self, node: Node) -> Iterator[tuple[Node, ...]]:
        """Yield what the variables stand for, for each way in which `node` is an instance."""
        for form in self.forms:
            bound = _match(form, node)
            if bound is not None:
                yield tuple(bound[x] for x in self.variables)


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of single nodes.

    name      what reports call it
    roots     the classes of the ops that it may replace
    apply     return the node to put in place of the given one, None where the rule does not fit
    operands  ops that must be among those of the inputs: a quick test that most nodes fail
    sides     for a rule of a table: the function that gives both sides
    """

    name: str
    roots: tuple[type[Op], ...]
    apply: Callable[[Node], Node | None]
    operands: frozenset[type[Op]] = frozenset()
    sides: Callable[..., Sides] | None = None


def rules(
    when: Callable[..., bool] = lambda *nodes: True, /, **sides: Callable[..., Sides]
) -> tuple[Rule, ...]:
    """Make rules of functions that return (before, after), `after` perhaps as a number.

    The result is broadcast to the shape of what it replaces.  A rule does not fit where `when`,
    which gets the same arguments, is false, or where the result has another dtype.  `before` is
    made of float32; its variables stand for nodes of any dtype.
    """
    return tuple(_rule(name, build, when) for name, build in sides.items())


def _rule(name: str, build: Callable[..., Sides], when: Callable[..., bool]) -> Rule:
    spec = Spec(())
    variables = tuple(Node(Input(x), (), (spec,)) for x in inspect.signature(build).parameters)
    before = Pattern(_left_side(name, build(*variables), variables), variables)

    def apply(node: Node) -> Node | None:
        for nodes in before.match(node):
            if when(*nodes):
                _, after = build(*nodes)
                new = after if isinstance(after, Node) else constant(after, node.dtype)
                return broadcast_to(new, node.shape) if new.dtype == node.dtype else None
        return None

    root = before.expression
    operands = frozenset({type(x.op) for x in root.inputs} - {Input})
    return Rule(name.replace("_", " "), (type(root.op),), apply, operands, build)


def _left_side(name: str, sides: Any, variables: Sequence[Node]) -> Node:
    """Return the left side of the rule `name`; GraphError where the two sides can be no rule."""
    if not isinstance(sides, tuple) or len(sides) != 2:
        raise GraphError(f"rule {name}: a rule is a pair of expressions, (before, after)")
    before, _ = sides
    if not isinstance(before, Node) or isinstance(before.op, Input):
        raise GraphError(f"rule {name}: the left side is an op of variables, not {before!r}")
    bound = set(toposort([before]))
    if unbound := [x.name for x in variables if x not in bound]:
        raise GraphError(
            f"rule {name}: the left side, {before!r}, says nothing of {', '.join(unbound)}"
        )
    return before


def rule_on(*roots: type[Op]) -> Callable[[Callable[[Node], Node | None]], Rule]:
    """Make a rule of a function that gets the nodes with such ops and may return a new one."""
    return lambda fn: Rule(fn.__name__.replace("_", " "), roots, fn)


def rules_in(namespace: Mapping[str, object]) -> tuple[Rule, ...]:
    """Return the rules among the globals of a module, in the order in which they stand there."""
    return tuple(value for value in namespace.values() if isinstance(value, Rule))


def rewrite(graph: Graph, rules: Sequence[Rule], notes: Notes) -> Graph:
    """Return the graph with the rules applied, inputs before users, until none fits anywhere.

    The first rule that fits is taken.  What it makes is rewritten in turn, so the time is linear in
    the number of nodes.
    """
    table: dict[type[Op], list[Rule]] = {}
    settled: set[Node] = set()

    def settle(node: Node, tries: int) -> Node:
        while tries and (new := first_fit(node)) is not None:
            if new in settled:
                return new
            tries -= 1
            node = above_settled(new, tries)
        settled.add(node)
        return node

    def above_settled(node: Node, tries: int) -> Node:
        """Settle what is below a node: a rule may have made several nodes, one below another."""
        below = (x if x in settled else settle(above_settled(x, tries), tries) for x in node.inputs)
        return node.replace(tuple(below))

    def first_fit(node: Node) -> Node | None:
        cls = type(node.op)
        if cls not in table:
            table[cls] = [known for known in rules if issubclass(cls, known.roots)]
        operands = {type(x.op) for x in node.inputs}
        if any(x.op.is_view for x in node.inputs):
            operands.add(Constant)  # of which it may be a view
        for rule in table[cls]:
            if rule.operands <= operands and (new := rule.apply(node)) is not None:
                notes.fired[rule.name] += 1
                return new
        return None

    return graph.map(lambda node, inputs: settle(node.replace(inputs), TRIES))


def _match(form: Node, node: Node) -> dict[Node, Node] | None:
    bound: dict[Node, Node] = {}
    pending = [(form, node)]
    while pending:
        expected, given = pending.pop()
        op = expected.op
        if isinstance(op, Input):
            if bound.setdefault(expected, given) is not given:
                return None
        elif isinstance(op, Constant):
            if not _same_number(filled_with(given), op.value.item()):
                return None
        elif given.op != op or len(given.inputs) != len(expected.inputs):
            return None
        else:
            pending.extend(zip(expected.inputs, given.inputs, strict=True))
    return bound


def _same_number(x: float | None, y: float) -> bool:
    """Whether x is the number y: 1 is 1.0 and True, but 0.0 is not -0.0.  An integer has no -0."""
    if x is None or x != y:
        return False
    return not isinstance(x, float) or math.copysign(1, x) == math.copysign(1, y)


def _orders(expression: Node) -> Iterator[Node]:
    for inputs in itertools.product(*map(_orders, expression.inputs)):
        yield expression.replace(inputs)
        if expression.op.commutative and inputs[0] is not inputs[1]:
            yield expression.replace(inputs[::-1])


# ---------------------------------------------------------------- what conditions of rules ask


def is_float(node: Node) -> bool:
    return kind(node.dtype) == "f"


def filled_with(node: Node) -> int | float | None:
    """Return the number that all elements of a constant, or of a view of one, are; else None."""
    for _ in range(DEPTH):
        if not node.op.is_view:
            break
        node = node.inputs[0]
    if not isinstance(node.op, Constant) or not node.size:
        return None
    value = node.op.value
    if value.size > 1:
        bits = np.ascontiguousarray(value).reshape(-1).view(f"u{value.itemsize}")
        if bits[0] != bits[-1] or not (bits == bits[0]).all():  # of bits: 0.0 is not -0.0
            return None
    return float(value.flat[0]) if is_float(node) else int(value.flat[0])


def is_lossless(source: DType, target: DType) -> bool:
    """Whether a cast keeps every value of `source`, so that a cast back undoes it."""
    if source in (target, BOOL):
        return True
    if kind(source) == "f":
        if kind(target) != "f":
            return False
        x, y = _finfo(source), _finfo(target)
        return bool(x.nmant <= y.nmant and x.maxexp <= y.maxexp)
    if target == BOOL:
        return False
    given = np.iinfo(source)
    if kind(target) == "f":
        return bool(given.bits <= _finfo(target).nmant + 1)
    held = np.iinfo(target)
    return bool(held.min <= given.min and given.max <= held.max)


def is_normal(number: float, dtype: DType) -> bool:
    """Whether a number is neither 0 nor NaN nor too small or too large for a float dtype."""
    info = _finfo(dtype)
    return bool(float(info.tiny) <= abs(number) <= float(info.max))


def _finfo(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def has(graph: Graph, *kinds: type[Op]) -> bool:
    """Whether the graph has an op of one of these classes."""
    return any(issubclass(found, kinds) for found in graph.kinds)


def read_once(graph: Graph) -> set[Node]:
    """Return the nodes that are read at one place and are no outputs."""
    alone = {node for node, users in graph.users().items() if len(users) == 1}
    return alone.difference(graph.outputs)
