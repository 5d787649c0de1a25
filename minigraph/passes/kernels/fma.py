"""FMA fusion: products join the sums that add them, as `fma3` and `fma4`."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from minigraph.graph import BOOL, Graph, Node, in_place_of
from minigraph.ops.arithmetic import Add, Multiply, Negative, Square, Subtract
from minigraph.ops.fma import Fma, Fma3, Fma4, Sign
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import is_float, read_once


class ProductTerm(NamedTuple):
    """Two factors and the sign of their product."""

    sign: Sign
    factors: tuple[Node, Node]


def fuse_fma(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with a*b + c made fma3, and a*b + c*d fma4; the signs are part of the ops.

    A sum takes the products that are its own operands, so the order in which sums were written
    stays, and with it every bit: a*b + c*d + e*f is an fma4 and an fma3.  A product that is an
    output or has a second reader is an addend.
    """
    private = read_once(graph)
    fused: dict[Node, tuple[Node]] = {}
    for node in graph:
        if not isinstance(node.op, Add | Subtract) or node.dtype == BOOL:
            continue
        x, y = node.inputs
        second: Sign = "+" if isinstance(node.op, Add) else "-"
        first_product, second_product = (_product(term, private) for term in (x, y))
        op: Fma3 | Fma4
        operands: tuple[Node, ...]
        if first_product and second_product:
            op = Fma4(first_product.sign, _times(second, second_product.sign))
            operands = (*first_product.factors, *second_product.factors)
        elif first_product:
            op = Fma3(first_product.sign, second)
            operands = (*first_product.factors, y)
        elif second_product:
            op = Fma3(_times(second, second_product.sign), "+")
            operands = (*second_product.factors, x)
        else:
            continue
        with in_place_of(node):
            fused[node] = (op(*operands),)
        notes.fired[op.name] += 1
    return graph.substitute(fused)


def _product(x: Node, private: Collection[Node]) -> ProductTerm | None:
    """Return the product that x is, perhaps negated; None if it is none or is read elsewhere.

    The negative of a product has the bits of the product with a negated factor.
    """
    sign: Sign = "+"
    if isinstance(x.op, Negative) and x in private:
        sign, (x,) = "-", x.inputs
    if x not in private or not isinstance(x.op, Multiply | Square):
        return None
    factors = []
    for factor in x.inputs if isinstance(x.op, Multiply) else x.inputs * 2:
        if isinstance(factor.op, Negative) and factor in private:
            sign, (factor,) = _times(sign, "-"), factor.inputs
        factors.append(factor)
    return ProductTerm(sign, (factors[0], factors[1]))


def _times(x: Sign, y: Sign) -> Sign:
    return "+" if x == y else "-"


def contract_fma(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with the first product of each fma3 and fma4 added before it is rounded.

    The results are more exact, and differ from those of the ops as written.
    """

    def contract(node: Node, inputs: tuple[Node, ...]) -> Node:
        op = node.op
        if not isinstance(op, Fma3 | Fma4) or not is_float(node):
            return node.replace(inputs)
        notes.fired[op.name] += 1
        if isinstance(op, Fma3):
            return Fma(op.product, op.addend)(*inputs)
        a, b, c, d = inputs
        return Fma(op.first, op.second)(a, b, c * d)

    return graph.map(contract)
