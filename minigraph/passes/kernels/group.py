"""A kernel under construction by fusion, and the conditions for a node to join it."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from minigraph.graph import Node
from minigraph.jit.domain import Loops, NotFusible, Starts, connections, offsets
from minigraph.jit.expression import is_number, takes_index
from minigraph.jit.loops import LANE_COUNTS
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.joining import Concat
from minigraph.ops.reduction import Reduction
from minigraph.ops.slicing import Pad, Slice
from minigraph.passes.kernels.borders import MIN_LONG_ROW, has_borders

MAX_NODES = 100  # nodes of a kernel, so that it compiles in a fraction of a second
MAX_REDUCTIONS = 24  # reductions of a kernel: their results are on the stack or in shared memory
MAX_READS = 24  # arrays that a loop may read
MAX_SEARCHED_NODES = 12  # nodes in which `_will_reduce` searches for a reduction
MAX_WASTE = 4  # ratio of computed to used elements
AGAINST_MEMORY_ORDER = "rows would be read, or written, across the order in memory"
OUT_OF_ORDER = "the kernel does not run in the order in which random numbers are drawn"
NO_BORDERS = "a kernel of columns, or of short rows, has no borders"


def is_kernel_op(node: Node, reductions: bool) -> bool:
    """Whether a generated kernel can compute this node."""
    specs = [s for x in (node, *node.inputs) for s in x.specs]
    if not node.inputs or len(node.specs) > 1 or any(x.is_bundle for x in node.inputs):
        return False
    if not all(s.size for s in specs):
        return False
    if isinstance(node.op, Reduction):
        return reductions and bool(node.op.combine and reduced_extents(node))
    return isinstance(node.op, Elementwise) or (reductions and has_borders(node))


def is_placement(node: Node) -> bool:
    """Whether the node is a view that a kernel's loops can read through."""
    if not node.op.is_view or len(node.inputs) != 1 or not node.size:
        return False
    if isinstance(node.op, Slice):
        return offsets(node) is not None
    return node.op.along(node.inputs[0].shape, node.shape) is not None


def is_cheap(node: Node) -> bool:
    """Whether computing the node costs less than reading its result would."""
    if isinstance(node.op, Elementwise):
        return not node.op.costly
    return isinstance(node.op, Pad | Concat) or is_placement(node)


@dataclass(eq=False)
class FusionGroup:
    """A kernel under construction, from its last node to its first.

    number            among kernels and nodes outside of kernels; larger numbers run earlier
    time              number of ops outside of kernels that run before it
    extents           lengths of its loops
    reduced           loops that its reductions reduce; None if it has no reduction
    members           its nodes, the last one first
    loops             for each member, the loops of its axes
    starts            for each member, the indices of these loops at which it starts
    input_loops       for each reduction, the loops of the axes of its input
    stored            members with readers outside of the kernel
    reads             values that it reads
    in_reduced_loops  members computed inside of reduced loops; all members if it has no reduction
    has_random_op     whether a random op numbers the elements along all loops
    """

    number: int
    time: int
    extents: list[int] = field(default_factory=list)
    reduced: tuple[int, ...] | None = None
    members: list[Node] = field(default_factory=list)
    loops: dict[Node, Loops] = field(default_factory=dict)
    starts: dict[Node, Starts] = field(default_factory=dict)
    input_loops: dict[Node, Loops] = field(default_factory=dict)
    stored: set[Node] = field(default_factory=set)
    reads: dict[Node, None] = field(default_factory=dict)
    in_reduced_loops: set[Node] = field(default_factory=set)
    has_random_op: bool = False

    @property
    def kept(self) -> set[int]:
        return set(range(len(self.extents))).difference(self.reduced or ())

    def start(self, node: Node) -> None:
        self.extents = [n for n in node.shape if n != 1]
        numbers = iter(range(len(self.extents)))
        self.loops[node] = tuple(None if n == 1 else next(numbers) for n in node.shape)
        self.starts[node] = (0,) * node.ndim
        if isinstance(node.op, Reduction):
            self._reduce(node, self.loops[node])
        self._append(node, in_reduced_loops=not isinstance(node.op, Reduction))
        self.stored.add(node)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Restore the group if the block, which adds nodes, raises NotFusible."""
        before = {f.name: copy.copy(getattr(self, f.name)) for f in fields(self)}
        try:
            yield
        except NotFusible:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def add(self, node: Node, users: Sequence[Node], stored: bool) -> None:
        """Add a node; raise NotFusible if it cannot join.

        users   members that read it; none for a reduction beside the kernel's reductions
        stored  whether nodes outside of the kernel read it, too
        """
        if len(self.members) >= MAX_NODES:
            raise NotFusible(f"a kernel has at most {MAX_NODES} ops")
        if isinstance(node.op, Reduction) and len(self.input_loops) >= MAX_REDUCTIONS:
            raise NotFusible(f"a kernel has at most {MAX_REDUCTIONS} reductions")
        reads = {x for x in (*self.reads, *node.inputs) if x.size > 1 and x is not node}
        if len(reads) > MAX_READS:
            raise NotFusible(f"a kernel reads at most {MAX_READS} arrays at once")
        accesses = {self.access_of(node, user) for user in users}
        if not users:
            accesses = {(self._loops_of_unread(node), (0,) * node.ndim)}
        loops, starts = accesses.pop()
        axes = {loop for loop in loops if loop is not None}
        if accesses or len(axes) < sum(n != 1 for n in node.shape):
            raise NotFusible("the kernel would need two elements of the result at once")
        in_reduced_loops = any(user in self.in_reduced_loops for user in users)
        if isinstance(node.op, Reduction):
            self._check_reduction(node, axes, users)
        else:
            self._check(node, loops, axes, stored)
        self._check_extent(node, loops, starts, stored)
        self.loops[node], self.starts[node] = loops, starts
        if isinstance(node.op, Reduction):
            self._reduce(node, loops)
            in_reduced_loops = any(user in self.in_reduced_loops for user in users)
        self._append(node, in_reduced_loops or bool(axes.intersection(self.reduced or ())))
        if stored:
            self.stored.add(node)

    def remove(self, node: Node) -> None:
        """Remove a node that will join again, after other readers of it."""
        if node in self.loops:
            self.members = [x for x in self.members if x is not node]  # `==` makes a node
            del self.loops[node], self.starts[node]

    def _append(self, node: Node, in_reduced_loops: bool) -> None:
        self.members.append(node)
        self.reads.pop(node, None)
        self.reads.update((x, None) for x in node.inputs if not is_number(x))
        self.has_random_op |= takes_index(node.op)
        if in_reduced_loops:
            self.in_reduced_loops.add(node)

    def access_of(self, x: Node, user: Node) -> tuple[Loops, Starts]:
        """Return the loops of the axes of `x`, as `user` reads it, and its starts in them."""
        starts = [0] * x.ndim
        if user in self.input_loops:
            return self.input_loops[user], tuple(starts)
        loops: list[int | None] = [None] * x.ndim
        for y, pairs in connections(user):
            if y is x:
                for i, j, start in pairs:
                    loops[i], starts[i] = self.loops[user][j], self.starts[user][j] + start
        return tuple(loops), tuple(starts)

    def _loops_of_unread(self, node: Node) -> Loops:
        """Return the loops of the axes of a reduction that no member reads."""
        kept = sorted(self.kept)
        if [self.extents[loop] for loop in kept] != [n for n in node.shape if n != 1]:
            raise NotFusible("the kernel keeps other axes")
        loops = iter(kept)
        return tuple(None if n == 1 else next(loops) for n in node.shape)

    def _check(self, node: Node, loops: Loops, axes: set[int], stored: bool) -> None:
        spans_all = axes == set(range(len(self.extents)))
        if takes_index(node.op):
            in_order = [loop for loop in loops if loop is not None] == sorted(axes)
            if self.reduced is not None or not spans_all or not in_order:
                raise NotFusible(OUT_OF_ORDER)
        storable = axes == self.kept if self.reduced is not None else self._will_reduce(node)
        if stored and not (spans_all or storable):
            raise NotFusible("the result is stored, and has fewer axes than the kernel")
        if is_placement(node) and self._crosses(node, loops, set(self.reduced or ())):
            raise NotFusible(AGAINST_MEMORY_ORDER)
        each_row = self.reduced is None and not spans_all and len(self.extents) - 1 in axes
        if each_row and self.extents[-1] not in LANE_COUNTS and not is_cheap(node):
            raise NotFusible("the kernel would compute the op again for every row")

    def _check_extent(self, node: Node, loops: Loops, starts: Starts, stored: bool) -> None:
        """Raise NotFusible for a node that covers a part of the loops but must cover all."""
        if isinstance(node.op, Pad | Concat) and not all(map(has_long_rows, self.input_loops)):
            raise NotFusible(NO_BORDERS)
        ranges = zip(starts, node.shape, loops, strict=True)
        axes = [(start, n, self.extents[d]) for start, n, d in ranges if d is not None]
        if all(start == 0 and n == extent for start, n, extent in axes):
            return
        if stored or isinstance(node.op, Reduction) or takes_index(node.op):
            raise NotFusible("the kernel would need other elements of the result as well")
        waste = math.prod(extent / min(n, extent) for _, n, extent in axes)
        if isinstance(node.op, Elementwise) and waste > (MAX_WASTE if is_cheap(node) else 1.25):
            raise NotFusible("the kernel would compute elements most of which are cut off")

    def _crosses(self, view: Node, loops: Loops, reduced: set[int]) -> bool:
        """Whether the reduced loops are innermost in memory on only one side of a view.

        On the other side the kernel would access one element of a cache line at a time.
        """
        (x,) = view.inputs
        along = view.op.along(x.shape, view.shape)
        inner, outer = _innermost(x), _innermost(view)
        if along is None or inner not in along or outer is None or x.size != view.size:
            return False
        return (loops[along.index(inner)] in reduced) != (loops[outer] in reduced)

    def _will_reduce(self, node: Node) -> bool:
        """Whether a node depends on a reduction of as many elements as the kernel has.

        Then the reduction will most likely join the kernel, and the node will have the axes that
        the kernel does not reduce.
        """
        searched = [node]
        for x in searched:
            if isinstance(x.op, Reduction):
                return x.inputs[0].size == math.prod(self.extents) and not reduces_columns(x)
            if len(searched) < MAX_SEARCHED_NODES and (
                isinstance(x.op, Elementwise) or is_placement(x)
            ):
                searched += [y for y in x.inputs if y.size == node.size]
        return False

    def _check_reduction(self, node: Node, axes: set[int], users: Sequence[Node]) -> None:
        extents = reduced_extents(node)
        free = [i for i in range(len(self.extents)) if i not in axes]
        if self.has_random_op:
            raise NotFusible(OUT_OF_ORDER)
        if any(isinstance(x.op, Pad | Concat) for x in self.members) and not has_long_rows(node):
            raise NotFusible(NO_BORDERS)
        if self.reduced is not None:
            if tuple(free) != tuple(sorted(self.reduced)):
                raise NotFusible("the kernel reduces over other axes")
            if any(reduces_columns(x) != reduces_columns(node) for x in self.input_loops):
                raise NotFusible(AGAINST_MEMORY_ORDER)
            free = list(self.reduced)
        if free and [self.extents[i] for i in free] != extents:
            raise NotFusible("the kernel runs over other axes")
        if self.reduced is None:  # otherwise `_check` has tested each view
            views = (x for x in self.members if is_placement(x))
            if any(self._crosses(view, self.loops[view], {*free}) for view in views):
                raise NotFusible(AGAINST_MEMORY_ORDER)
        reread = bool(free) and any(user in self.in_reduced_loops for user in users)
        if reread and reduces_columns(node):
            raise NotFusible("the kernel would have to read whole columns twice")

    def _reduce(self, node: Node, loops: Loops) -> None:
        """Record the loops of a reduction's input; add missing loops for the reduced axes."""
        assert isinstance(node.op, Reduction)
        (x,) = node.inputs
        axes = {loop for loop in loops if loop is not None}
        if self.reduced is None:
            free = [i for i in range(len(self.extents)) if i not in axes]
            if not free:
                first = len(self.extents)
                self.extents += reduced_extents(node)
                free = list(range(first, len(self.extents)))
            self.reduced = tuple(free)
            self.in_reduced_loops.clear()
            feeding: set[Node] = set()
            for member in self.members:
                if member in feeding or set(self.loops[member]).intersection(self.reduced):
                    self.in_reduced_loops.add(member)
                    feeding.update(member.inputs)
        reduced = iter(self.reduced)
        self.input_loops[node] = tuple(
            None if n == 1 else next(reduced) if i in node.op.axes else loops[i]
            for i, n in enumerate(x.shape)
        )


def _innermost(x: Node) -> int | None:
    return max((i for i, n in enumerate(x.shape) if n != 1), default=None)


def reduced_extents(node: Node) -> list[int]:
    """Return the lengths of the reduced axes of a reduction, without those of length 1."""
    assert isinstance(node.op, Reduction)
    sizes = [node.inputs[0].shape[i] for i in node.op.axes]
    return [n for n in sizes if n != 1]


def innermost_kept_extent(node: Node) -> int:
    """Return the length of the innermost axis if a reduction keeps it, else 1."""
    assert isinstance(node.op, Reduction)
    shape, last = node.inputs[0].shape, _innermost(node.inputs[0])
    return 1 if last is None or last in node.op.axes else shape[last]


def has_long_rows(node: Node) -> bool:
    """Whether a reduction reduces long contiguous rows."""
    return innermost_kept_extent(node) == 1 and math.prod(reduced_extents(node)) >= MIN_LONG_ROW


def reduces_columns(node: Node) -> bool:
    """Whether a reduction keeps a long innermost axis, that is, reduces columns."""
    return innermost_kept_extent(node) > 1 and innermost_kept_extent(node) not in LANE_COUNTS
