"""Sums over the steps of a loop that stacks of what the steps computed give, after the loop.

A sum of products of matrices is one product, a sum of sums is one sum.
"""

from __future__ import annotations

from collections.abc import Mapping

from minigraph.graph import Node, toposort
from minigraph.ops.arithmetic import Add
from minigraph.ops.matmul import Matmul
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import PermuteDims, Reshape, permute_dims, reshape


def summands(dk: Node) -> dict[Node, None] | None:
    """Return the matrix products and sums that `dk` is the sum of; None if it is another node.

    Stacks of their operands then give the sum of `dk` over all steps.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    waiting = [dk]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        broadcasts = isinstance(node.op, Add) and any(x.shape != node.shape for x in node.inputs)
        if isinstance(node.op, Add | Reshape | PermuteDims) and not broadcasts:
            waiting.extend(reversed(node.inputs))
        elif isinstance(node.op, Sum) or (
            isinstance(node.op, Matmul) and [x.ndim for x in node.inputs] == [2, 2]
        ):
            found[node] = None
        else:
            return None
    return found


def factors(dk: Node) -> list[Node]:
    """Return the nodes of the body whose stacks the sum over all steps needs."""
    operands: list[Node] = []
    for part in summands(dk) or ():
        operands += part.inputs if isinstance(part.op, Sum) else map(_untransposed, part.inputs)
    return operands


def _untransposed(x: Node) -> Node:
    while isinstance(x.op, PermuteDims):
        x = x.inputs[0]
    return x


def sum_over_steps(dk: Node, stacks: Mapping[Node, Node], is_transposed: bool) -> Node:
    """Return the sum of `dk` over all steps.

    is_transposed  whether `dk` is the gradient of a transposed constant; then products are
                   transposed, too, as in `Matmul`
    """
    parts = dict.fromkeys(summands(dk) or (), ())
    totals: dict[Node, Node] = {}
    for node in toposort([dk], parts):
        if node in parts:
            totals[node] = _sum_part_over_steps(node, stacks, is_transposed)
        else:
            totals[node] = node.op(*(totals[x] for x in node.inputs))
    return totals[dk]


def _sum_part_over_steps(part: Node, stacks: Mapping[Node, Node], is_transposed: bool) -> Node:
    if isinstance(part.op, Sum):
        whole = stacks[part.inputs[0]]
        return reshape(Sum((0, *(a + 1 for a in part.op.axes)))(whole), part.shape)
    left, right = (_join_steps(x, 1 - i, stacks) for i, x in enumerate(part.inputs))
    if is_transposed:
        product = Matmul()(permute_dims(right, (1, 0)), permute_dims(left, (1, 0)))
        return permute_dims(product, (1, 0))
    return Matmul()(left, right)


def _join_steps(x: Node, axis: int, stacks: Mapping[Node, Node]) -> Node:
    """Return the matrices x of all steps as one, side by side along `axis`."""
    if isinstance(x.op, PermuteDims):
        return permute_dims(_join_steps(x.inputs[0], 1 - axis, stacks), (1, 0))
    whole = stacks[x]
    steps, rows, columns = whole.shape
    if axis == 0:
        return reshape(whole, (steps * rows, columns))
    return reshape(permute_dims(whole, (1, 0, 2)), (rows, steps * columns))
