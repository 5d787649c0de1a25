"""The iteration space of a fused subgraph: the loop of each axis of each node.

Axes of an op's operands and result that have the same index share a loop: all axes of an
elementwise op, the axes that a reduction keeps, the axes that a permutation moves.  The *reduced*
loops are those of a reduction's input that its result does not have; all reductions of a kernel
have the same ones.

A slice, a padding or a concatenation shifts indices, so a node may start and end at other indices
than the loops.  Its *window* is the part of the iteration space in which it has elements.

A node that depends on a reduction's result is computed one *stage* later, in the next run over the
reduced loops.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minigraph.graph import Constant, Graph, Node, Shape
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction
from minigraph.ops.slicing import Windowed

Loops = tuple[int | None, ...]  # the loop of each axis of a node; None for an axis of length 1
Starts = tuple[int, ...]  # for each axis of a node, the index of its loop at which it starts
Window = tuple[tuple[int, int, int], ...]  # for some loops (loop, first index, last index + 1)


class NotFusible(Exception):
    """One kernel cannot compute a subgraph; the message says why."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Loops and stages of a subgraph.

    extents  lengths of the loops, in the order of the axes of the largest node
    reduced  loops that reductions reduce
    loops    loops of the axes of each node
    starts   indices of these loops at which each node starts
    stages   stage that computes each node, from 0 on
    """

    graph: Graph
    extents: Shape
    reduced: frozenset[int]
    loops: dict[Node, Loops]
    starts: dict[Node, Starts]
    stages: dict[Node, int]

    def varies(self, node: Node) -> set[int]:
        """The loops along which a node varies."""
        return {loop for loop in self.loops[node] if loop is not None}

    @property
    def kept(self) -> frozenset[int]:
        """The loops that reductions do not reduce."""
        return frozenset(range(len(self.extents))) - self.reduced

    @property
    def reduces(self) -> bool:
        return any(isinstance(node.op, Reduction) for node in self.graph)

    def window(self, node: Node) -> Window:
        """The window of a node: the loops of which it covers only a part."""
        return self._window(node, self.starts[node], node.shape)

    def windows(self, node: Node) -> list[Window]:
        """The window of each input of a windowed op, in the loops of its result."""
        return [
            self._window(node, [*map(operator.add, self.starts[node], offset)], x.shape)
            for x, offset in zip(node.inputs, offsets(node) or (), strict=True)
        ]

    def _window(self, node: Node, starts: Sequence[int], shape: Shape) -> Window:
        bounds = []
        for loop, start, n in zip(self.loops[node], starts, shape, strict=True):
            if loop is not None and (start > 0 or start + n < self.extents[loop]):
                bounds.append((loop, start, start + n))
        return tuple(sorted(bounds))

    @functools.cached_property
    def bounded(self) -> list[int]:
        """The loops that windows bound, sorted."""
        windows = [self.window(x) for x in self.graph.inputs]
        for node in computed(self.graph):
            windows += self.windows(node) if isinstance(node.op, Windowed) else []
        return sorted({loop for window in windows for loop, _, _ in window})


def computed(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that a kernel computes: neither inputs nor constants."""
    inputs = set(graph.inputs)
    for node in graph:
        if node not in inputs and not isinstance(node.op, Constant):
            yield node


def offsets(node: Node) -> Sequence[Starts] | None:
    """Return the index in the result at which each input of a windowed op starts; else None."""
    if not isinstance(node.op, Windowed):
        return None
    return node.op.offsets([x.shape for x in node.inputs], node.shape)


def connections(node: Node) -> Iterator[tuple[Node, list[tuple[int, int, int]]]]:
    """Yield each input with a list of (its axis, the result's axis, its start along that axis).

    The list has the pairs of axes that share a loop.  Raises NotFusible for an op that generated
    kernels do not support.
    """
    if isinstance(node.op, Elementwise):
        for x in node.inputs:
            lead = node.ndim - x.ndim
            yield x, [(i, i + lead, 0) for i, n in enumerate(x.shape) if n != 1]
        return
    if isinstance(node.op, Reduction) and node.op.combine:
        (x,) = node.inputs
        pairs = [(i, i, 0) for i, n in enumerate(x.shape) if n != 1 and i not in node.op.axes]
        yield x, pairs
        return
    input_starts = offsets(node)
    if input_starts is not None:
        for x, starts in zip(node.inputs, input_starts, strict=True):
            yield x, [(i, i, start) for i, start in enumerate(starts) if x.shape[i] != 1]
        return
    if len(node.inputs) == 1 and not node.is_bundle and not node.inputs[0].is_bundle:
        (x,) = node.inputs
        along = node.op.along(x.shape, node.shape)
        if along is not None:
            yield x, [(i, j, 0) for j, i in enumerate(along) if i is not None and x.shape[i] != 1]
            return
    raise NotFusible(f"{node.op.name} is computed by a separate kernel")


class _Loops:
    """Disjoint sets (union-find) of the axes of nodes: the axes of a set share a loop."""

    def __init__(self, graph: Graph) -> None:
        self.first: dict[Node, int] = {}
        self.extent: list[int] = []
        for node in graph:
            self.first[node] = len(self.extent)
            self.extent += node.shape
        self.parent = list(range(len(self.extent)))

    def find(self, node: Node, axis: int) -> int:
        loop = self.first[node] + axis
        while self.parent[loop] != loop:
            self.parent[loop] = self.parent[self.parent[loop]]
            loop = self.parent[loop]
        return loop

    def join(self, loops: Sequence[int], others: Sequence[int]) -> bool:
        """Join loops pairwise; return False and join none if their extents differ."""
        if [self.extent[a] for a in loops] != [self.extent[a] for a in others]:
            return False
        for a, b in zip(loops, others, strict=True):
            self.parent[a] = b
        return True

    def of(self, node: Node) -> list[int | None]:
        """Return the loop of each axis; None for an axis of length 1."""
        return [None if n == 1 else self.find(node, i) for i, n in enumerate(node.shape)]

    def reduced(self, node: Node) -> list[int]:
        """Return the loops that a reduction reduces."""
        assert isinstance(node.op, Reduction)
        x = node.inputs[0]
        return [self.find(x, i) for i in node.op.axes if x.shape[i] != 1]


def analyse(graph: Graph) -> Domain:
    """Return the domain of a subgraph; raise NotFusible if one kernel cannot compute it."""
    loops = _Loops(graph)
    stages: dict[Node, int] = {}
    for node in graph:
        stages[node] = max((stages[x] for x in node.inputs), default=0)
        stages[node] += isinstance(node.op, Reduction)
    for node in computed(graph):
        for x, pairs in connections(node):
            for i, j, _ in pairs:
                loops.parent[loops.find(x, i)] = loops.find(node, j)
    reductions = [node for node in computed(graph) if isinstance(node.op, Reduction)]
    for node in reductions[1:]:
        expected, reduced = loops.reduced(reductions[0]), loops.reduced(node)
        if set(expected) != set(reduced) and not loops.join(expected, reduced):
            raise NotFusible("its reductions run over different axes")
    if reductions:
        # Loops that appear only after a reduction are the reduced ones: in sum(x, 1) + y nothing
        # else connects the columns of y with the columns of x.
        connected = {loop for node in reductions for loop in loops.of(node.inputs[0])}
        ordered = (loop for node in reversed(graph.order) for loop in loops.of(node))
        unconnected = dict.fromkeys(a for a in ordered if a is not None and a not in connected)
        loops.join([*unconnected], loops.reduced(reductions[0]))
    axes_of = {node: loops.of(node) for node in graph if not isinstance(node.op, Constant)}
    space: set[int] = set()
    for axes in axes_of.values():
        present = [axis for axis in axes if axis is not None]
        if len(set(present)) < len(present):
            raise NotFusible("it reads one value at two positions at once")
        space.update(present)
    largest = [node for node, axes in axes_of.items() if space.issubset(axes)]
    if not largest:
        raise NotFusible("its ops have no common iteration space")
    sizes = zip(axes_of[largest[-1]], largest[-1].shape, strict=True)
    extents = {axis: n for axis, n in sizes if axis is not None}
    index: dict[int | None, int | None] = {axis: i for i, axis in enumerate(extents)}
    index[None] = None
    reduced_sets = {frozenset(loops.reduced(node)) for node in reductions} or {frozenset()}
    if len(reduced_sets) > 1:
        raise NotFusible("its reductions run over different axes")
    domain = Domain(
        graph,
        tuple(extents.values()),
        frozenset(list(extents).index(axis) for axis in reduced_sets.pop()),
        {node: tuple(index[axis] for axis in axes) for node, axes in axes_of.items()},
        _starts(graph),
        stages,
    )
    whole_nodes = (*graph.outputs, *reductions, *(x for y in reductions for x in y.inputs))
    if any(not _is_whole(domain, x) for x in whole_nodes):
        raise NotFusible("it stores or reduces only a part of the iteration space")
    all_loops = set(range(len(domain.extents)))
    for y in graph.outputs:
        varies = domain.varies(y)
        if varies != all_loops and not (reductions and varies == domain.kept):
            raise NotFusible("a result has fewer axes than the iteration space")
    return domain


def _starts(graph: Graph) -> dict[Node, Starts]:
    starts: dict[Node, Starts] = {y: (0,) * y.ndim for y in graph.outputs}
    computed_nodes = set(computed(graph))
    for y in reversed(graph.order):
        starts.setdefault(y, (0,) * y.ndim)
        for x, axes in connections(y) if y in computed_nodes else ():
            x_start = [0] * x.ndim
            for i, j, start in axes:
                x_start[i] = starts[y][j] + start
            if starts.setdefault(x, tuple(x_start)) != tuple(x_start):
                raise NotFusible("it reads one value at two positions at once")
    return starts


def _is_whole(domain: Domain, node: Node) -> bool:
    """Whether a node covers exactly its loops."""
    axes = zip(domain.loops[node], node.shape, strict=True)
    covers_axes = all(loop is None or n == domain.extents[loop] for loop, n in axes)
    return covers_axes and not any(domain.starts[node])
