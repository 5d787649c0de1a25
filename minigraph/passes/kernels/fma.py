"""FMA fusion: products join the sums that add them, as `fma3` and `fma4`."""

from __future__ import annotations

from collections.abc import Collection

from minigraph.graph import BOOL, Graph, Node, in_place_of
from minigraph.ops.arithmetic import Add, Multiply, Negative, Square, Subtract
from minigraph.ops.fma import Fma, Fma3, Fma4, Sign
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import is_float, read_once


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
        sign, factors = _product(x, private)
        own, others = _product(y, private)
        op: Fma3 | Fma4
        if factors and others:
            op, operands = Fma4(sign, _times(second, own)), [*factors, *others]
        elif factors:
            op, operands = Fma3(sign, second), [*factors, y]
        elif others:
            op, operands = Fma3(_times(second, own), "+"), [*others, x]
        else:
            continue
        with in_place_of(node):
            fused[node] = (op(*operands),)
        notes.fired[op.name] += 1
    return graph.substitute(fused)


def _product(x: Node, private: Collection[Node]) -> tuple[Sign, list[Node]]:
    """Return the sign and the factors of the product that x is; no factors if others read it.

    The negative of a product has the bits of the product with a negated factor.
    """
    sign: Sign = "+"
    if isinstance(x.op, Negative) and x in private:
        sign, (x,) = "-", x.inputs
    factors: list[Node] = []
    if x not in private or not isinstance(x.op, Multiply | Square):
        return sign, factors
    for factor in x.inputs if isinstance(x.op, Multiply) else x.inputs * 2:
        if isinstance(factor.op, Negative) and factor in private:
            sign, (factor,) = _times(sign, "-"), factor.inputs
        factors.append(factor)
    return sign, factors


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
