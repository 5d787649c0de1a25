"""Rewrite rules, and applying them to a graph.

Most rules are written as the mathematics they are, a function that builds both sides:

    @rule
    def double_negation(x: Node) -> Sides:
        return -(-x), x

What depends on attributes or shapes is a function of the node, for one class of ops:

    @rule_on(Concat)
    def concat_of_one(node: Node) -> Node | None:
        return node.inputs[0] if len(node.inputs) == 1 else None

Which rules there are, and what they may change, is the business of the modules that hold them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from minigraph.graph import Constant, Graph, Input, Node, Op, Spec, as_dtype, constant
from minigraph.ops.shape import broadcast_to
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.fact import filled_with

Sides = tuple[Node, Node | float]

TRIES = 16  # of rules after one another at one node: the last defence against two that alternate


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

    def match(
        self, node: Node, inner: Callable[[Node], bool] = lambda node: True
    ) -> Iterator[tuple[Node, ...]]:
        """Yield what the variables stand for, for each way in which `node` is an instance.

        Every node between `node` and the variables has to satisfy `inner`: a fusion, which takes
        those nodes away, asks that they have no other reader and are no outputs.
        """
        for form in self.forms:
            found = _match(form, node, inner)
            if found is not None:
                yield tuple(found[x] for x in self.variables)


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of single nodes.

    name      what reports call it
    roots     the classes of ops at which it is tried
    operands  those that have to be among the ops of the operands, so that most nodes cost little
    apply     return the node to put in place of the given one, None where the rule does not fit
    sides     of a rule that is a pattern: return both sides as expressions of the variables
    exact     whether no bit changes; otherwise results agree to rounding
    """

    name: str
    roots: tuple[type[Op], ...]
    apply: Callable[[Node], Node | None]
    operands: frozenset[type[Op]] = frozenset()
    sides: Callable[..., Sides] | None = None
    exact: bool = True


@overload
def rule(build: Callable[..., Sides], /) -> Rule: ...


@overload
def rule(
    *, when: Callable[..., bool] = ..., exact: bool = ..., **dtypes: str
) -> Callable[[Callable[..., Sides]], Rule]: ...


def rule(
    build: Callable[..., Sides] | None = None,
    /,
    *,
    when: Callable[..., bool] = lambda *nodes: True,
    exact: bool = True,
    **dtypes: str,
) -> Rule | Callable[[Callable[..., Sides]], Rule]:
    """Make a rule of a function that returns (before, after), `after` perhaps as a number.

    The result is broadcast to the shape of what it replaces.  The rule does not fit where `when`,
    which gets the same arguments, is false, or where the result has another dtype.

    dtypes  of the arguments that cannot be float32, for the ops of `before` check what they get; an
            argument stands for a node of any dtype all the same
    """
    if build is None:
        return lambda fn: _rule(fn, when, exact, dtypes)
    return _rule(build, when, exact, dtypes)


def _rule(
    build: Callable[..., Sides], when: Callable[..., bool], exact: bool, dtypes: Mapping[str, str]
) -> Rule:
    names = inspect.signature(build).parameters
    specs = [Spec((), as_dtype(dtypes.get(name, "float32"))) for name in names]
    variables = tuple(Node(Input(n), (), (s,)) for n, s in zip(names, specs, strict=True))
    before = Pattern(build(*variables)[0], variables)

    def apply(node: Node) -> Node | None:
        for nodes in before.match(node):
            if when(*nodes):
                _, after = build(*nodes)
                new = after if isinstance(after, Node) else constant(after, node.dtype)
                return broadcast_to(new, node.shape) if new.dtype == node.dtype else None
        return None

    root, known = before.expression, set(variables)
    operands = frozenset(type(x.op) for x in root.inputs if x not in known)
    return Rule(_title(build), (type(root.op),), apply, operands, build, exact)


def rule_on(*roots: type[Op]) -> Callable[[Callable[[Node], Node | None]], Rule]:
    """Make a rule of a function that gets the nodes with such ops and may return a new one."""
    return lambda fn: Rule(_title(fn), roots, fn)


def _title(fn: Callable[..., object]) -> str:
    return fn.__name__.replace("_", " ")


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
            # What a rule made may be several nodes deep; below those, all are settled.
            inputs = (x if x in settled else settle(x, tries) for x in new.inputs)
            node = new.replace(tuple(inputs))
        settled.add(node)
        return node

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


def _match(form: Node, node: Node, inner: Callable[[Node], bool]) -> dict[Node, Node] | None:
    """Return what each variable of `form` stands for if `node` is an instance, else None."""
    found: dict[Node, Node] = {}
    pending = [(form, node)]
    while pending:
        expected, given = pending.pop()
        op = expected.op
        if isinstance(op, Input):
            if found.setdefault(expected, given) is not given:
                return None
        elif isinstance(op, Constant):
            if not _same_number(filled_with(given), op.value.item()):
                return None
        elif (
            given.op != op
            or len(given.inputs) != len(expected.inputs)
            or not (given is node or inner(given))
        ):
            return None
        else:
            pending.extend(zip(expected.inputs, given.inputs, strict=True))
    return found


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
