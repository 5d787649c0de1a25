"""Level 1: algebraic simplification, constant folding and common subexpressions, all bit-exact.

Every rule holds for NaN, infinities, both zeros, and integers that wrap around.  So x + 0 is not
replaced, because it is 0.0 where x is -0.0, while x + -0.0 becomes x.  Rules that do not hold for
NaN, infinities or zeros are in `fast_math`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import BOOL, Array, Constant, Graph, Item, Node, Op, constant
from minigraph.ops.custom_gradient import GradientRule
from minigraph.ops.elementwise import Astype, Elementwise, astype, broadcast_shapes, widen
from minigraph.ops.exponential import PRODUCTS, ConstantPow, Pow
from minigraph.ops.joining import Concat
from minigraph.ops.reduction import Extremum
from minigraph.ops.shape import (
    BroadcastTo,
    PermuteDims,
    Reshape,
    StopGradient,
    broadcast_to,
    permute_dims,
    reshape,
)
from minigraph.ops.slicing import Flip, Pad, Slice
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.rule import (
    Sides,
    filled_with,
    is_float,
    is_lossless,
    is_normal,
    rewrite,
    rule_on,
    rules,
    rules_in,
)

MAX_COMPARED_BYTES = 1 << 16  # larger constants are not compared
MAX_FOLDED_ELEMENTS = 1 << 16  # elements that a folded constant may have, whatever its operands


# Both sides of rules that are exact for integers; `fast_math` applies them to floats too.


def difference(x: Node) -> Sides:
    return x - x, 0


def zero_product(x: Node) -> Sides:
    return x * 0, 0


def _is_power_of_two(x: Node, c: Node) -> bool:
    number = filled_with(c)
    if not number or math.isinf(number) or math.isnan(number):
        return False
    return abs(math.frexp(number)[0]) == 0.5 and is_normal(1 / number, c.dtype)


PATTERNS = (
    *rules(
        double_negation=lambda x: (ops.negative(-x), x),
        plus_nothing=lambda x: (x + -0.0, x),
        minus_nothing=lambda x: (x - 0.0, x),
        plus_negation=lambda x, y: (x + -y, x - y),
        minus_negation=lambda x, y: (x - -y, x + y),
        times_one=lambda x: (x * 1, x),
        times_minus_one=lambda x: (x * -1, -x),
        over_one=lambda x: (x / 1, x),
        one_over=lambda x: (1 / x, ops.reciprocal(x)),
        power_zero=lambda x: (x**0, 1),  # also if x is NaN
        where_true=lambda x, y: (ops.where(True, x, y), x),
        where_false=lambda x, y: (ops.where(False, x, y), y),
    ),
    # Integers and bools do not round.
    *rules(lambda x: not is_float(x), difference_with_itself=difference, times_zero=zero_product),
    *rules(_is_power_of_two, over_a_power_of_two=lambda x, c: (x / c, x * (1 / c))),
)

# ---------------------------------------------------------------- constants and broadcasts


@rule_on(Op)
def constant_folded(node: Node) -> Node | None:
    """Compute an op of constants.

    NumPy computes the result, so functions that round differently in C are not folded.  A result
    much larger than its operands is cheaper to compute than to store, and so is a view.  The
    transpose of a large matrix is not stored either.  If the op raises an error, it is not folded,
    and the call raises the error.
    """
    source = node.inputs[0] if isinstance(node.op, Item) else node
    operands = [value for value in map(_known_value, source.inputs) if value is not None]
    if not operands or len(operands) < len(source.inputs) or node.is_bundle:
        return None
    if isinstance(node.op, PermuteDims) and node.size > MAX_FOLDED_ELEMENTS:
        return None
    if isinstance(node.op, Elementwise) and not node.op.has_bits_of_numpy(node.inputs[-1].dtype):
        return None
    size = sum(x.size for x in operands)
    limit = size if node.op.is_view else max(size, MAX_FOLDED_ELEMENTS)
    if sum(spec.size for spec in source.specs) > limit:
        return None
    try:
        with np.errstate(all="ignore"):
            result = source.op.forward(*operands)
    except GraphError:
        return None
    return constant(result[node.op.index] if isinstance(node.op, Item) else result, node.dtype)


def _known_value(x: Node) -> Array | None:
    """Return the value of a constant or of a constant with permuted axes; else None."""
    if isinstance(x.op, PermuteDims) and isinstance(x.inputs[0].op, Constant):
        return x.op.forward(x.inputs[0].op.value)
    return x.op.value if isinstance(x.op, Constant) else None


@rule_on(Elementwise)
def broadcast_later(node: Node) -> Node | None:
    """Apply an op before its operands are broadcast, if that makes the result smaller.

    Gradients of sums and means are scalars, broadcast to the shape of the summed array.
    """
    operands = [_before_broadcast(x) for x in node.inputs]
    if all(map(operator.is_, operands, node.inputs)):
        return None
    shape = broadcast_shapes(*(x.shape for x in operands))
    if shape != node.shape and math.prod(shape) >= node.size:
        return None
    return broadcast_to(node.op(*operands), node.shape)


def _before_broadcast(x: Node) -> Node:
    """Return the smallest expression that broadcasts to x."""
    while isinstance(x.op, BroadcastTo):
        (x,) = x.inputs
    if isinstance(x.op, Constant) and x.ndim:
        number = filled_with(x)
        return x if number is None else constant(number, x.dtype)
    return x


@rule_on(ConstantPow)
def power_of_small_integer(node: Node) -> Node | None:
    """Replace a power by products; floats of 16 bits are rounded only once, at the end."""
    assert isinstance(node.op, ConstantPow)
    (x,), exponent = node.inputs, node.op.exponent
    if exponent != int(exponent):
        return None
    return astype(PRODUCTS[exponent][1](widen(x)), x.dtype)


@rule_on(Pow)
def power_of_integers(node: Node) -> Node | None:
    """Replace a small power of integers by products, which wrap around in the same way."""
    x, exponent = node.inputs[0], filled_with(node.inputs[1])
    if is_float(x) or exponent not in (1, 2, 3, 4):
        return None
    return broadcast_to(PRODUCTS[exponent][1](x), node.shape)


@rule_on(Astype)
def cast(node: Node) -> Node | None:
    """Drop a cast to the same dtype, and a lossless cast before another cast."""
    (x,) = node.inputs
    if x.dtype == node.dtype:
        return x
    if not isinstance(x.op, Astype):
        return None
    (origin,) = x.inputs
    first, last = origin.dtype, node.dtype
    # A cast of a float that does not fit an integer is undefined, so the two ways may differ.
    # A cast of an integer to a float of 16 bits goes through float32 and rounds twice.
    same_kind = is_float(origin) == is_float(x) and not (is_float(origin) and not is_float(node))
    direct = same_kind or last == BOOL or is_lossless(first, last)
    return astype(origin, last) if is_lossless(first, x.dtype) and direct else None


# ---------------------------------------------------------------- ops that move elements


@rule_on(Reshape, BroadcastTo, Slice, Pad, Extremum, StopGradient)
def same_shape(node: Node) -> Node | None:
    """Drop an op that is the identity if it keeps the shape (`stop_gradient` after autodiff)."""
    x, *others = node.inputs
    return x if x.shape == node.shape and not others else None


@rule_on(GradientRule)
def after_autodiff(node: Node) -> Node:
    """Drop an op that only affects `mg.grad`."""
    return node.inputs[0]


@rule_on(Reshape, BroadcastTo)
def last_shape(node: Node) -> Node | None:
    """Drop the first of two reshapes, or of two broadcasts, in a row."""
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
    """Replace a permutation that only moves axes of length 1 by a reshape."""
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


@rule_on(Reshape, PermuteDims, Flip, Slice)
def view_of_one_element(node: Node) -> Node | None:
    """Broadcast an element to the final shape instead of rearranging copies of it."""
    (x,) = node.inputs
    if not isinstance(x.op, BroadcastTo) or x.inputs[0].size != 1:
        return None
    return broadcast_to(reshape(x.inputs[0], ()), node.shape)


# ---------------------------------------------------------------- casts before and after moves


@rule_on(Astype)
def narrowing_before_rearrangement(node: Node) -> Node | None:
    """Cast to a smaller dtype before a reshape, so that fewer bytes move.

    The cast is then next to the op that computed the elements, and one kernel does both.
    """
    (x,) = node.inputs
    if not isinstance(x.op, Reshape):
        return None
    if node.dtype.itemsize >= x.dtype.itemsize:
        return None
    return x.op(*(astype(y, node.dtype) for y in x.inputs))


@rule_on(Reshape, PermuteDims, Flip, Slice, Concat)
def widening_after_rearrangement(node: Node) -> Node | None:
    """Cast to a larger dtype after elements are moved, so that fewer bytes move."""
    if not all(isinstance(x.op, Astype) for x in node.inputs):
        return None
    origins = [x.inputs[0] for x in node.inputs]
    narrow = origins[0].dtype
    if narrow.itemsize >= node.dtype.itemsize or any(x.dtype != narrow for x in origins):
        return None
    return astype(node.op(*origins), node.dtype)


EXACT = (*rules_in(globals()), *PATTERNS)


def simplify(graph: Graph, notes: Notes) -> Graph:
    """Fold constants, compute before broadcasting, and drop ops that change nothing.

    One pass applies all rules, because the result of one rule may match another: a folded constant
    may be 1, and removing a product with 1 may leave a view of a view.
    """
    return rewrite(graph, EXACT, notes)


def share_common(graph: Graph, notes: Notes) -> Graph:
    """Replace equal nodes, which apply the same op to the same inputs, by the one made first."""
    classes: dict[Hashable, Node] = {}
    canonical: dict[Node, Node] = {}  # for each node, the first node that is equal to it
    earliest: dict[Node, Node] = {}
    for node in graph:
        first = canonical[node] = classes.setdefault(_key(node, canonical), node)
        if first is node or node.order < earliest[first].order:
            earliest[first] = node
    same = {x: (earliest[y],) for x, y in canonical.items() if earliest[y] is not x}
    if not same:
        return graph
    notes.fired["shared"] += len(same)
    return graph.map(lambda x, inputs: inputs[0] if x in same else x.replace(inputs), reads=same)


def _key(node: Node, canonical: dict[Node, Node]) -> Hashable:
    """Return a key that is equal for equal nodes.

    The key has the ids of nodes, because `==` between nodes makes an expression, and the signs of
    float attributes, because 0.0 == -0.0 in Python.
    """
    if isinstance(node.op, Constant) and node.spec.nbytes <= MAX_COMPARED_BYTES:
        return Constant, node.spec, node.op.value.tobytes()
    if not node.inputs:
        return id(node)  # two inputs or parameters may have the same name
    inputs = [id(canonical[x]) for x in node.inputs]
    if node.op.commutative:
        inputs.sort()
    floats = (v for v in vars(node.op).values() if isinstance(v, float | np.floating))
    return node.op, tuple(math.copysign(1, v) for v in floats), tuple(inputs)
