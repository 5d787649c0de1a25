"""FMA fusion: a sum and the products that it adds become `fma3` or `fma4`."""

from __future__ import annotations

from collections.abc import Collection

from minigraph.graph import BOOL, Graph, Node, in_place_of
from minigraph.ops.arithmetic import Add, Multiply, Negative, Square, Subtract
from minigraph.ops.fma import Fma, Fma3, Fma4, Sign
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import is_float, read_once


def fuse_fma(graph: Graph, notes: Notes) -> Graph:
    """Replace a*b + c by fma3 and a*b + c*d by fma4; the ops have attributes for signs.

    A sum is fused with products that are its operands, which keeps the order of additions and so
    every bit: a*b + c*d + e*f is an fma4 and an fma3.  A product that is an output or has a second
    reader is not fused.
    """
    private = read_once(graph)
    fused: dict[Node, tuple[Node]] = {}
    for node in graph:
        if not isinstance(node.op, Add | Subtract) or node.dtype == BOOL:
            continue
        x, y = node.inputs
        second: Sign = "+" if isinstance(node.op, Add) else "-"
        x_sign, x_factors = _product(x, private)
        y_sign, y_factors = _product(y, private)
        op: Fma3 | Fma4
        if x_factors and y_factors:
            op, operands = Fma4(x_sign, _times(second, y_sign)), [*x_factors, *y_factors]
        elif x_factors:
            op, operands = Fma3(x_sign, second), [*x_factors, y]
        elif y_factors:
            op, operands = Fma3(_times(second, y_sign), "+"), [*y_factors, x]
        else:
            continue
        with in_place_of(node):
            fused[node] = (op(*operands),)
        notes.fired[op.name] += 1
    return graph.substitute(fused)


def _product(x: Node, private: Collection[Node]) -> tuple[Sign, list[Node]]:
    """Return the sign and the factors of a product x; no factors if x is not fused.

    Negating a product gives the same bits as negating a factor.
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
    """Let each fma3 and fma4 add its first product before rounding it.

    The results are more accurate than those of the separate ops, and so differ from them.
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
