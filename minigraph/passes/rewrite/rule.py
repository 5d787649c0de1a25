"""Rewrite rules, and applying them to a graph.

Most rules are written as the mathematics they are, in tables: by name, a function that gives both
sides.

    rules(
        double_negation=lambda x: (-(-x), x),
        times_one=lambda x: (x * 1, x),
    )

A rule that depends on attributes or shapes is a function of a node with one of some ops:

    @rule_on(Concat)
    def concat_of_one(node: Node) -> Node | None:
        return node.inputs[0] if len(node.inputs) == 1 else None

This module knows no rule; the modules that hold rules know what these may change.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigraph.errors import GraphError
from minigraph.graph import Constant, Graph, Input, Node, Op, Spec, constant, toposort
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.facts import filled_with

Sides = tuple[Node, Node | float]

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
    when: Callable[..., bool] = lambda *nodes: True,
    /,
    **sides: Callable[..., Sides],
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
        kind = type(node.op)
        if kind not in table:
            table[kind] = [known for known in rules if issubclass(kind, known.roots)]
        operands = {type(x.op) for x in node.inputs}
        if any(x.op.is_view for x in node.inputs):
            operands.add(Constant)  # of which it may be a view
        for rule in table[kind]:
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
    """Yield the expression with the operands of its commutative ops in every order."""
    for inputs in itertools.product(*map(_orders, expression.inputs)):
        yield expression.replace(inputs)
        if expression.op.commutative and inputs[0] is not inputs[1]:
            yield expression.replace(inputs[::-1])
