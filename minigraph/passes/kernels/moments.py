"""Variances in one run over their input: a sum and a sum of squares, of distances from an element.

    m = mean(x), sum((x - m)**2)   becomes, for d = x - s and a number s,
    m = s + mean(d), sum(d**2) - (m - s) * (2 * sum(d) - n * (m - s))

The second sum would wait for the first, so a kernel, or two, would read x twice.  Without s the
difference would cancel where the mean is far from 0; with it, the error grows as the square of how
many deviations s is away from the mean (T. Chan, G. Golub, R. LeVeque, 1983, Algorithms for
computing the sample variance, section 3: shifted data).  So s is the median of three elements of x,
since any single one may be an outlier.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import Graph, Node, in_place_of
from minigraph.jit.expression import is_number, takes_index
from minigraph.ops.arithmetic import Divide, Square, Subtract
from minigraph.ops.comparison import Isfinite, where
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.extremes import Maximum, Minimum
from minigraph.ops.reduction import Sum, WideSum
from minigraph.ops.slicing import Slice
from minigraph.passes.kernels.group import reduces_down
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.facts import filled_with

LONG = 1 << 14  # elements of a sum, which have left the nearest cache before they are read again
MOST = 8  # nodes that are computed again for an element


def join_moments(graph: Graph, notes: Notes) -> Graph:
    """Return the graph with long sums of squared distances from a mean made beside the mean."""
    replaced: dict[Node, tuple[Node]] = {}
    for squares in graph:
        mean = _mean(squares)
        if mean is None or mean in replaced:
            continue
        assert isinstance(squares.op, Sum)
        axes = squares.op.axes
        total, count = mean.inputs
        with in_place_of(mean):
            found = (_element(total.inputs[0], axes, quarter) for quarter in (1, 2, 3))
            elements = [element for element in found if element is not None]
            if len(elements) < 3:
                continue
            middle = _median(*elements)
            shift = where(Isfinite.of(middle), middle, 0)
            distance = total.inputs[0] - shift
            add = WideSum(axes)
            moved = add(distance)
            number = count.astype(moved.dtype)
            wide = shift.astype(moved.dtype)
            rounded = (moved / number + wide).astype(mean.dtype)
            # From the mean as it is rounded, as (x - mean)**2 has it; and so one kernel makes both.
            near = rounded.astype(moved.dtype) - wide
            rest = add(Square.of(distance)) - near * (moved * 2 - near * number)
            replaced[mean] = (rounded,)
            # Rounding may have made it negative.
            replaced[squares] = (Maximum.of(rest, 0).astype(mean.dtype),)
        notes.fired["variance"] += 1
    return graph.substitute(replaced)


def _mean(squares: Node) -> Node | None:
    """Return the mean of x if a node is a long sum over (x - mean)**2, else None."""
    match squares:
        case Node(
            op=Sum(), inputs=[Node(op=Square(), inputs=[Node(op=Subtract(), inputs=[x, m])])]
        ):
            count = x.size // squares.size
            match m:
                case Node(op=Divide(), inputs=[Node(op=Sum(), inputs=[same]) as total, divisor]):
                    alike = same is x and total.op == squares.op
                    long = count >= LONG or reduces_down(squares)
                    return m if alike and long and filled_with(divisor) == count else None
    return None


def _median(a: Node, b: Node, c: Node) -> Node:
    return Maximum.of(Minimum.of(a, b), Minimum.of(Maximum.of(a, b), c))


def _element(x: Node, axes: Sequence[int], quarter: int) -> Node | None:
    """Return an element of x for each sum over `axes`; None if computing it takes many ops.

    It is so many quarters from the begin of each axis: not at the border, where images may be 0.
    """
    taken = [n * quarter // 4 for n in x.shape]
    place = [
        (at, at + 1) if i in axes else (0, n)
        for i, (n, at) in enumerate(zip(x.shape, taken, strict=True))
    ]
    near = [x]  # what computes x elementwise
    for y in near:
        if isinstance(y.op, Elementwise):
            near += [z for z in y.inputs if not is_number(z)]
        if len(near) > MOST or takes_index(y.op):
            return None
    made: dict[Node, Node] = {}
    for y in reversed(near):
        if isinstance(y.op, Elementwise):
            made[y] = y.op(*(made.get(z, z) for z in y.inputs))
        elif y.ndim:
            # Operands that are repeated have fewer axes, or shorter ones.
            own = [(0, 1) if n == 1 else p for n, p in zip(y.shape, place[-y.ndim :], strict=True)]
            start, stop = zip(*own, strict=True)
            made[y] = Slice(start, stop, (1,) * y.ndim)(y)
    return made[x]
