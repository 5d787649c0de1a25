"""Reverse-mode differentiation: expressions in, expressions out."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Annotated, Any

from minigraph.arguments import Kind
from minigraph.errors import DTypeError, GraphError, ShapeError, located
from minigraph.graph import (
    Expression,
    Graph,
    GraphOp,
    Item,
    Node,
    NoGradient,
    Op,
    Shape,
    builder,
    constant,
    dependents,
    placeholders,
    toposort,
)
from minigraph.graph.location import gradient_of
from minigraph.ops.elementwise import broadcast_shapes, kind
from minigraph.ops.joining import join, paddings
from minigraph.ops.reduction import sum_to
from minigraph.ops.shape import broadcast_to
from minigraph.symbolic import same_shape


def _expressions(value: Any) -> list[Node]:
    nodes = [value] if isinstance(value, Node) else list(value)
    for node in nodes:
        if not isinstance(node, Node):
            raise GraphError(
                f"{type(node).__name__} is not an expression; of a module, pass parameters()"
            )
    return nodes


EXPRESSIONS = Kind("a sequence of expressions", _expressions)


@builder
def grad(loss: Expression, wrt: Annotated[Sequence[Node], EXPRESSIONS]) -> list[Node]:
    """Return the gradient of the scalar `loss` for each expression of `wrt`.

    Gradients are expressions and can be differentiated again.  An expression that the loss does not
    depend on gets zeros.  Raises ShapeError if the loss is not a scalar, DTypeError for integers.

    >>> import minigraph as mg
    >>> x = mg.input("x", (3,))
    >>> (dx,) = mg.grad((x * x).sum(), [x])
    >>> mg.comp_graph().compile([x], dx)([1.0, 2.0, 3.0])
    array([2., 4., 6.], dtype=float32)
    """
    if loss.shape != ():
        raise ShapeError(
            f"the loss is a scalar, not {loss.spec} (made {loss.source}); take a mean or sum"
        )
    for x in (loss, *wrt):
        if kind(x.dtype) != "f":
            raise DTypeError(f"{x!r} (made {x.source}) is not a float, so it has no gradient")
    return vjp([loss], [constant(1, loss.dtype)], wrt)


def vjp(outputs: Sequence[Node], dys: Sequence[Node], wrt: Sequence[Node]) -> list[Node]:
    """Return the products of `dys` with the Jacobian of `outputs` for each of `wrt`."""
    differentiated = dependents(outputs, wrt)
    terms: dict[Node, list[Node]] = {}  # of the gradient of a node
    for y, dy in zip(outputs, dys, strict=True):
        terms.setdefault(y, []).append(dy)
    grads: dict[Node, Node] = {}
    item_grads: dict[Node, dict[int, Node]] = {}  # of each bundle, by the index of the item
    for node in reversed(toposort(outputs)):
        if node not in differentiated or not (node in terms or node in item_grads):
            continue
        if node in terms:
            with gradient_of(node.source):
                grads[node] = _sum(terms.pop(node))
        if isinstance(node.op, Item):
            items, i = item_grads.setdefault(node.inputs[0], {}), node.op.index
            items[i] = items[i] + grads[node] if i in items else grads[node]
            continue
        with gradient_of(node.source):
            for x, dx in zip(node.inputs, _backward(node, grads, item_grads), strict=True):
                if dx is not None and x in differentiated:
                    parts = terms.setdefault(x, [])
                    parts.append(sum_to(dx, x.shape))
                    if node.op.recomputes and len(parts) > 1:
                        parts[-2:] = [parts[-2] + parts[-1]]
    return [grads[x] if x in grads else broadcast_to(constant(0, x.dtype), x.shape) for x in wrt]


def _backward(
    node: Node, grads: dict[Node, Node], item_grads: dict[Node, dict[int, Node]]
) -> Sequence[Node | None]:
    if not node.inputs:
        return ()
    count = len(node.specs)
    dys = [item_grads[node].get(i) for i in range(count)] if node.is_bundle else [grads[node]]
    try:
        if isinstance(node.op, GraphOp):
            gradients = node.op.differentiate(vjp, dys, node.inputs)
            if gradients is not None:
                return gradients
        if type(node.op).grad in (Op.grad, None):
            return _through_expansion(node, dys)
        if not node.is_bundle:
            return _checked(node, node.op.grad(*dys, node, *node.inputs))
        ys = tuple(Item(i)(node) for i in range(count))
        return _checked(node, node.op.grad(tuple(dys), ys, *node.inputs))
    except NoGradient as error:
        raise located(error, node.op.name, node.inputs, node.source) from None


def _checked(node: Node, grads: Any) -> Sequence[Node | None]:
    """Return the result of the op's `grad`; raise GraphError unless each input has a gradient.

    A gradient has the input's dtype, and its shape, or one that the input was broadcast to.
    """
    rule = f"{node.op.name}: grad returns a tuple of a gradient, or None, for each input"
    if isinstance(grads, Node) or not isinstance(grads, Sequence):
        result = repr(grads) if isinstance(grads, Node) else type(grads).__name__
        raise GraphError(f"{rule}, not {result} {node.source}")
    if len(grads) != len(node.inputs):
        raise GraphError(f"{rule}: {len(node.inputs)}, not {len(grads)} {node.source}")
    for x, dx in zip(node.inputs, grads, strict=True):
        if dx is None:
            continue
        if not isinstance(dx, Node):
            raise GraphError(f"{rule}; {type(dx).__name__} is neither {node.source}")
        if dx.dtype != x.dtype or not _broadcasts(x.shape, dx.shape):
            raise GraphError(f"{rule}; that for {x!r} is {dx.spec} {node.source}")
    return grads


def _broadcasts(shape: Shape, to: Shape) -> bool:
    try:
        return same_shape(shape, to) or broadcast_shapes(shape, to) == to
    except ShapeError:
        return False


def _through_expansion(node: Node, dys: Sequence[Node | None]) -> Sequence[Node]:
    """Return the gradients of `node`, whose op has no `grad`, by differentiating its expansion.

    The expansion is made of placeholders, because an input may depend on another or occur twice.
    """
    operands = (*node.inputs, *(dy for dy in dys if dy is not None))
    inputs = placeholders([x.spec for x in operands])
    xs, ys_grads = inputs[: len(node.inputs)], inputs[len(node.inputs) :]
    ys = [y for y, dy in zip(node.op.expand(*xs), dys, strict=True) if dy is not None]
    graph = Graph(inputs, tuple(vjp(ys, ys_grads, xs)))
    return graph.replace_nodes(dict(zip(inputs, operands, strict=True))).outputs


def _sum(terms: list[Node]) -> Node:
    """Return the sum of gradients; gradients of slices that cover an array are concatenated."""
    pieces, others = paddings(terms)
    joined = join(pieces) if len(pieces) > 1 else None
    return functools.reduce(operator.add, terms if joined is None else [joined, *others])
