"""Rules for ops that rearrange elements: chains become one, and what rearranges nothing goes."""

from __future__ import annotations

from minigraph.graph import Node
from minigraph.ops.elementwise import Astype, astype
from minigraph.ops.joining import Concat
from minigraph.ops.reduction import Extremum
from minigraph.ops.shape import (
    BroadcastTo,
    PermuteDims,
    Reshape,
    broadcast_to,
    permute_dims,
    reshape,
)
from minigraph.ops.slicing import Flip, Pad, Slice
from minigraph.passes.rewrite.rule import rule_on, rules_in


@rule_on(Reshape, BroadcastTo, Slice, Pad, Extremum)
def same_shape(node: Node) -> Node | None:
    """Drop an op that does nothing if it keeps the shape."""
    (x,) = node.inputs
    return x if x.shape == node.shape else None


@rule_on(Reshape, BroadcastTo)
def last_shape(node: Node) -> Node | None:
    """Of two reshapes or broadcasts in a row, drop the first."""
    (x,) = node.inputs
    return node.op(x.inputs[0]) if type(x.op) is type(node.op) else None


@rule_on(PermuteDims)
def permutation_of_permutation(node: Node) -> Node | None:
    assert isinstance(node.op, PermuteDims)
    (x,) = node.inputs
    if not isinstance(x.op, PermuteDims):
        return None
    return permute_dims(x.inputs[0], [x.op.axes[a] for a in node.op.axes])


@rule_on(PermuteDims)
def permutation_of_ones(node: Node) -> Node | None:
    """Reshape where only axes of length 1 move."""
    assert isinstance(node.op, PermuteDims)
    (x,) = node.inputs
    longer = [a for a in node.op.axes if x.shape[a] != 1]
    return reshape(x, node.shape) if longer == sorted(longer) else None


@rule_on(Slice)
def slice_of_slice(node: Node) -> Node | None:
    assert isinstance(node.op, Slice)
    (x,) = node.inputs
    if not isinstance(x.op, Slice):
        return None
    windows = []
    for n, first, second in zip(node.shape, _windows(x.op), _windows(node.op), strict=True):
        start, step = first[0] + second[0] * first[2], first[2] * second[2]
        windows.append((start, start + (n - 1) * step + 1, step) if n else (0, 0, 1))
    return Slice(*zip(*windows, strict=True))(x.inputs[0])


def _windows(op: Slice) -> list[tuple[int, int, int]]:
    return list(zip(op.start, op.stop, op.step, strict=True))


@rule_on(Concat)
def concat_of_one(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


@rule_on(Reshape, PermuteDims, Flip, Slice)
def view_of_one_element(node: Node) -> Node | None:
    """Repeat an element instead of rearranging copies of it."""
    (x,) = node.inputs
    if not isinstance(x.op, BroadcastTo) or x.inputs[0].size != 1:
        return None
    return broadcast_to(reshape(x.inputs[0], ()), node.shape)


# ---------------------------------------------------------------- casts of what is rearranged


@rule_on(Astype)
def narrowing_before_rearrangement(node: Node) -> Node | None:
    """Cast to a dtype of fewer bytes before elements are rearranged, so that fewer bytes move.

    The cast then stands beside what computed the elements, and one kernel does both.
    """
    (x,) = node.inputs
    if not isinstance(x.op, Reshape):
        return None
    if node.dtype.itemsize >= x.dtype.itemsize:
        return None
    return x.op(*(astype(y, node.dtype) for y in x.inputs))


@rule_on(Reshape, PermuteDims, Flip, Slice, Concat)
def widening_after_rearrangement(node: Node) -> Node | None:
    """Cast to a dtype of more bytes after elements are rearranged, so that fewer bytes move."""
    if not all(isinstance(x.op, Astype) for x in node.inputs):
        return None
    origins = [x.inputs[0] for x in node.inputs]
    narrow = origins[0].dtype
    if narrow.itemsize >= node.dtype.itemsize or any(x.dtype != narrow for x in origins):
        return None
    return astype(node.op(*origins), node.dtype)


RULES = rules_in(globals())
