"""Fused multiply-add: sums of products become `fma3` and `fma4`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Literal

from minigraph.graph import BOOL, Graph, Node, Op, Shape
from minigraph.ops.arithmetic import Add, Multiply, Negative, Square, Subtract
from minigraph.ops.elementwise import broadcast_shapes
from minigraph.ops.fma import Fma3, Fma4
from minigraph.passes.kernels.structural_order import StructuralOrder
from minigraph.passes.notes import Notes

Sign = Literal["+", "-"]

SUMS: dict[type[Op], tuple[Sign, ...]] = {  # with the sign that each operand has in the result
    Add: ("+", "+"),
    Subtract: ("+", "-"),
    Negative: ("-",),
}


@dataclass(frozen=True)
class Term:
    """A term of a sum: a product, which has two factors, or an addend, which is one node."""

    sign: Sign
    factors: tuple[Node, ...]
    shape: Shape

    @property
    def is_product(self) -> bool:
        return len(self.factors) == 2


def fuse_fma(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with products fused into their sums: a*b + c is fma3, a*b + c*d is fma4.

    A sum is the largest tree of additions, and subtractions of terms, whose inner nodes have no
    reader outside of it.  With k products and m addends it becomes k fma3 and m - 1 additions; with
    k products alone, one fma4 and k - 2 fma3.  The signs are part of the ops.  A product that is an
    output or has a second reader is an addend, and a sum without products stays as it is.

    The terms are added in an order that does not depend on how the user wrote them, so neither do
    the bits of the result.  A new order may change rounding, and the overflow of a partial sum.
    """
    sums = find_sums(graph)
    order = StructuralOrder(graph)

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node not in sums:
            return node.replace(inputs)
        factors = iter(inputs)
        terms = [
            replace(term, factors=tuple(sorted(islice(factors, len(term.factors)), key=order.key)))
            for term in sums[node]
        ]
        (new,) = reduce(lambda x, y: add(x, y, notes), arrange_terms(terms, order)).factors
        return new

    return graph.map(
        rewrite,
        reads={
            node: tuple(x for term in terms for x in term.factors) for node, terms in sums.items()
        },
    )


def find_sums(graph: Graph) -> dict[Node, list[Term]]:
    """Return the terms of each sum of a product and other terms, by the last node of the sum."""
    roles = find_roles(graph)
    sums = {node: _terms(node, roles) for node in graph if roles.get(node) == "root"}
    return {
        root: terms
        for root, terms in sums.items()
        if len(terms) > 1 and any(term.is_product for term in terms)
    }


def find_roles(graph: Graph) -> dict[Node, str]:
    """Return the roles of nodes in sums: "root", "inner", "product", or "sign" of a product.

    Nodes other than roots are no outputs and have one reader, which belongs to the same sum.
    """
    outputs = set(graph.outputs)
    readers = graph.users()
    roles: dict[Node, str] = {}
    for node in reversed(graph.order):
        private = len(readers[node]) == 1 and node not in outputs
        above = roles.get(readers[node][0]) if private else None
        if isinstance(node.op, Multiply | Square) and above in ("root", "inner"):
            roles[node] = "product"
        elif isinstance(node.op, Negative) and above == "product":
            roles[node] = "sign"
        elif type(node.op) in SUMS and node.dtype != BOOL:
            # A sum that is subtracted stays a sum of its own, for the sign of its zeros:
            # -0.0 - (a - a) is -0.0, but (-0.0 - a) + a is 0.0.
            added = above in ("root", "inner") and _is_added(node, readers[node][0])
            roles[node] = "inner" if added or (isinstance(node.op, Negative) and above) else "root"
    return roles


def _is_added(node: Node, reader: Node) -> bool:
    """Whether `reader` adds `node`, and neither subtracts nor negates it."""
    return isinstance(reader.op, Add) or (
        isinstance(reader.op, Subtract) and reader.inputs[0] is node
    )


def _terms(root: Node, roles: Mapping[Node, str]) -> list[Term]:
    terms: list[Term] = []
    stack: list[tuple[Node, Sign]] = [(root, "+")]
    while stack:
        node, sign = stack.pop()
        role = "inner" if node is root else roles.get(node)
        if role == "inner":
            signs = (_times(sign, s) for s in SUMS[type(node.op)])
            stack.extend(reversed([*zip(node.inputs, signs, strict=True)]))
        elif role == "product":
            factors: list[Node] = []
            for x in node.inputs * 2 if isinstance(node.op, Square) else node.inputs:
                negated = roles.get(x) == "sign"
                sign = _times("-", sign) if negated else sign
                factors.append(x.inputs[0] if negated else x)
            terms.append(Term(sign, tuple(factors), node.shape))
        else:
            terms.append(Term(sign, (node,), node.shape))
    return terms


def _times(x: Sign, y: Sign) -> Sign:
    return "+" if x == y else "-"


def arrange_terms(terms: Iterable[Term], order: StructuralOrder) -> list[Term]:
    """Return the terms in the order in which to add them up, those of one shape together.

    An addend comes first, so that each product is one fma3; if there are only products, two of
    equal shape come first where possible.  Of the orders that remain, the one that computes the
    fewest elements is taken: small terms are added before they are broadcast.
    """
    groups: dict[Shape, list[Term]] = {}
    for term in terms:
        groups.setdefault(term.shape, []).append(term)
    starts = {s for s, group in groups.items() if not all(t.is_product for t in group)}
    starts = starts or {s for s, group in groups.items() if len(group) > 1}

    def cost(shapes: Sequence[Shape]) -> tuple[bool, int]:
        made, shape = 0, shapes[0]
        for s in shapes:
            shape = broadcast_shapes(shape, s)
            made += math.prod(shape) * len(groups[s])
        return shapes[0] not in starts, made

    small = sorted(groups, key=lambda s: (math.prod(s), s))
    orders: Iterable[Sequence[Shape]] = itertools.permutations(small)
    if len(small) > 4:  # too many permutations
        orders = ([s, *(t for t in small if t != s)] for s in small)
    return [term for s in min(orders, key=cost) for term in _of_one_shape(groups[s], order)]


def _of_one_shape(terms: list[Term], order: StructuralOrder) -> list[Term]:
    """Return positive addends, products, negative addends, with an addend first if there is any.

    An op that adds a product has signs for both of its terms, and addends after products are
    subtracted, so nothing has to be negated.
    """
    terms = sorted(terms, key=lambda t: (t.sign, [order.key(x) for x in t.factors]))
    addends = [t for t in terms if not t.is_product]
    first = sum(t.sign == "+" for t in addends) or 1
    return [*addends[:first], *(t for t in terms if t.is_product), *addends[first:]]


def add(x: Term, y: Term, notes: Notes) -> Term:
    """Return the sum of two terms, an addend; it is negative only if both are negative addends."""
    sign: Sign = "+"
    op: Fma4 | Fma3 | Add | Subtract
    if x.is_product and y.is_product:
        op = Fma4(x.sign, y.sign)
    elif x.is_product or y.is_product:
        x, y = (x, y) if x.is_product else (y, x)
        op = Fma3(x.sign, y.sign)
    elif x.sign == y.sign:
        op, sign = Add(), x.sign
    else:
        x, y = (x, y) if x.sign == "+" else (y, x)
        op = Subtract()
    if isinstance(op, Fma3 | Fma4):
        notes.fired[op.name] += 1
    node = op(*x.factors, *y.factors)
    return Term(sign, (node,), node.shape)
