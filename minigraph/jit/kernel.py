"""The intermediate representation of a kernel: what its text depends on, and its arguments.

A kernel runs over *units*, which threads share; a unit runs over *loops*, once for each stage, and
combines elements along them; between stages it computes with the results.  Four forms:

    map      nothing is reduced: one unit, whose loops are all axes
    row      the innermost axis is reduced: a unit is one index of the axes that are kept
    column   the innermost axis is kept: a unit is a block of columns
    lane     the innermost axis is a short block of channels, the *lanes*: what the others have for
             an element is a pixel, all its lanes; units and loops are what the other axes give

`KernelPattern` is what the text depends on: the values, how each operand runs along the innermost
axis, the form, and the number of lanes.  Other extents and strides stand in the argument block, so
a kernel serves every shape with the same pattern of broadcasting:

    threads, unit axes, loop axes, splits, whether to stream, slot and offset of the scratch memory,
    then the extents of the unit and the loop axes,
    then for each operand (inputs, then outputs): slot, offset, strides along the same axes,
    then the constants, so that a kernel does not depend on, say, the batch size
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minigraph.graph import Constant, DType, Graph, Node, Op, Shape
from minigraph.jit.domain import Domain, Unfit, analyse
from minigraph.jit.expression import is_number, literal, takes_index
from minigraph.jit.loops import Ints, LoopNest, arrange
from minigraph.jit.small_float import widen_reductions
from minigraph.ops.elementwise import Elementwise
from minigraph.ops.reduction import Reduction

MAX_RANK = 16  # axes of a collapsed iteration space
COLUMNS = 512  # how many columns one thread accumulates at once
STRETCH = 4096  # elements that are combined in the input's own type
FEW = 8  # units that threads may share unevenly
FEW_BLOCKS = 4  # the same of units that are whole blocks of channels
ROW_LENGTH = 16384  # elements of a row that a unit keeps, in the cache
MOST_ROWS = 4  # that a unit keeps, on the stack

# Where a value is computed: once a unit, once a row of the innermost loop, for each element.
UNIT, ROW, ELEMENT = range(3)


@dataclass(frozen=True)
class Value:
    """A number that the kernel computes; `op` is None for one that it loads.

    args      of the op, as indices of values
    literal   C's text of a constant that cannot be another one: 0, 1, -1, infinity and NaN
    constant  in the argument block, as an index
    operand   that is loaded, as an index
    """

    dtype: DType
    op: Op | None = None
    args: Ints = ()
    literal: str = ""
    constant: int = -1
    operand: int = -1
    level: int = UNIT
    stage: int = 0

    @property
    def reduces(self) -> bool:
        return isinstance(self.op, Reduction)


@dataclass(frozen=True)
class Store:
    """An output: which value, and whether it has an element for each unit only."""

    value: int
    per_unit: bool


@dataclass(frozen=True)
class KeptValue:
    """A value that the unit's run `run` computes and later runs take from where it is kept.

    operand  the output that holds it until its own elements are known; -1: an array of the row's
             length
    """

    value: int
    run: int
    operand: int = -1


@dataclass(frozen=True)
class KernelPattern:
    """What the text of a kernel depends on.

    accesses  of the operands, inputs then outputs: "unit", "same" or "strided" along the innermost
              axis, "fixed" if they do not change within a unit; where there are lanes, along the
              innermost axis of pixels
    lanes     how many there are; 1 in other forms
    across    for each operand whether it has a number for each lane, rather than one for all
    kept      values that a unit keeps for its later runs: computing them again would take longer
    """

    form: str
    values: tuple[Value, ...]
    dtypes: tuple[DType, ...]
    accesses: tuple[str, ...]
    stores: tuple[Store, ...]
    lanes: int
    across: tuple[bool, ...]
    kept: tuple[KeptValue, ...] = ()

    @property
    def inputs(self) -> int:
        return len(self.dtypes) - len(self.stores)

    @property
    def reductions(self) -> list[int]:
        return [v for v, value in enumerate(self.values) if value.reduces]

    @property
    def once(self) -> list[int]:
        """The values that are computed once a unit."""
        return [v for v, value in enumerate(self.values) if value.level == UNIT]

    @functools.cached_property
    def wide(self) -> frozenset[int]:
        """The values that differ between lanes; of columns only those that stay within a unit."""
        found: set[int] = set()
        for v, value in enumerate(self.values):
            k = value.operand
            if self.form == "lane":
                own = k >= 0 and self.across[k]
            elif self.form == "column" and value.level == UNIT:
                own = k >= 0 and self.accesses[k] != "fixed"
            else:
                continue
            if own or value.reduces or not found.isdisjoint(value.args):
                found.add(v)
        return frozenset(found)

    @property
    def stages(self) -> int:
        """How often a unit runs over its loops."""
        full = [self.values[s.value].stage for s in self.stores if not s.per_unit]
        return 1 + max(full + [self.values[v].stage - 1 for v in self.reductions])

    def reduced(self, stage: int) -> list[int]:
        """The reductions that a run over the loops feeds."""
        return [v for v in self.reductions if self.values[v].stage == stage + 1]

    def stored(self, stage: int) -> list[int]:
        """The operands that a run over the loops writes."""
        return [
            k
            for k, s in enumerate(self.stores, self.inputs)
            if not s.per_unit and self.values[s.value].stage == stage
        ]

    def source(self, k: int) -> int:
        """The value that goes to operand `k`, an output."""
        return self.stores[k - self.inputs].value

    def run(self, stage: int) -> list[int]:
        """The values that a run over the loops computes or loads, in order."""
        return self.made_of(self._goals(stage), self.there(stage))

    def there(self, stage: int) -> dict[int, KeptValue]:
        """The values that earlier runs have kept."""
        return {kept.value: kept for kept in self.kept if kept.run < stage}

    def touched(self, stage: int) -> list[int]:
        """The operands that a run over the loops reads or writes."""
        values = self.run(stage)
        held = {kept.operand for kept in self.kept if kept.value in values and kept.operand >= 0}
        return sorted(held.union(self.loaded(values), self.stored(stage)))

    def _goals(self, stage: int) -> list[int]:
        """The values that a run over the loops combines or writes."""
        combined = [self.values[v].args[0] for v in self.reduced(stage)]
        return [*combined, *map(self.source, self.stored(stage))]

    def made_of(self, roots: Sequence[int], ends: Collection[int] = ()) -> list[int]:
        """The values that `roots` are made of, in order, but for those computed once a unit.

        What values of `ends` are made of does not count.
        """
        there = set(self.once)
        found: set[int] = set()
        stack = [r for r in roots if r not in there]
        while stack:
            v = stack.pop()
            if v not in found:
                found.add(v)
                if not self.values[v].reduces and v not in ends:
                    stack.extend(a for a in self.values[v].args if a not in there)
        return sorted(found)

    def loaded(self, values: Sequence[int]) -> list[int]:
        """The operands that values load."""
        return sorted({self.values[v].operand for v in values if self.values[v].operand >= 0})


@dataclass(frozen=True, eq=False)
class SpecialisedKernel:
    """A pattern with the shapes of one use of it."""

    pattern: KernelPattern
    layout: LoopNest
    constants: tuple[int, ...]  # as the argument block has them
    inplace: tuple[Ints, ...]  # for each input the outputs that may overwrite it

    def splits(self, threads: int) -> int:
        """Into how many parts to split the loops of a unit, so that all threads have work."""
        units = self.layout.count
        if not self.pattern.reductions:
            return threads
        if self.pattern.form == "column":
            width = self.layout.units[-1][0]
            units = units // width * -(-width // COLUMNS)
        if threads == 1 or units >= 2 * threads or self.pattern.stages > 1:
            return 1
        length = self.layout.length * self.pattern.lanes
        return max(1, min(-(-2 * threads // units), length // STRETCH))

    def scratch(self, threads: int) -> int:
        """Return the bytes that partial results need."""
        results = len(self.pattern.reductions) * self.pattern.lanes
        splits = self.splits(threads)
        return 8 * self.layout.count * splits * results if splits > 1 else 0

    def block(
        self,
        threads: int,
        places: Sequence[tuple[int, int]],
        scratch: tuple[int, int],
        stream: bool,
    ) -> list[int]:
        """Return the argument block; `places` gives slot and offset of each operand."""
        axes = (*self.layout.units, *self.layout.loops)
        head = [threads, len(self.layout.units), len(self.layout.loops), self.splits(threads)]
        values = [*head, int(stream), *scratch, *(n for n, _ in axes)]
        for k, place in enumerate(places):
            values += [*place, *(strides[k] for _, strides in axes)]
        return [*values, *self.constants]


def specialise(
    graph: Graph, strides: Sequence[Shape], target: Sequence[Shape] | None = None
) -> SpecialisedKernel:
    """Return the kernel for a subgraph whose inputs have these strides, in bytes.

    target  the strides of the outputs, where they are not contiguous

    Raises Unfit where there is none.
    """
    graph = widen_reductions(graph)
    domain = analyse(graph)
    steps = [*strides, *(target or (y.spec.strides for y in graph.outputs))]
    operands = [*graph.inputs, *graph.outputs]
    layout = arrange(domain, operands, steps)
    if len(layout.units) + len(layout.loops) > MAX_RANK:
        raise Unfit(f"it has more than {MAX_RANK} axes")
    made = _Values(domain, layout)
    stores = tuple(
        Store(made.place[y], domain.reduces and domain.varies(y) == domain.kept)
        for y in graph.outputs
    )
    dtypes = tuple(x.dtype for x in operands)
    lanes, across = layout.lanes
    wide = tuple(map(bool, across))
    values = tuple(with_levels(made.values, layout))
    pattern = KernelPattern(layout.form, values, dtypes, layout.accesses, stores, lanes, wide)
    kept = tuple(_worth_keeping(pattern, layout))
    held = {k.operand for k in kept}
    inplace = tuple(_overwriting(pattern, k, held, operands, layout) for k in range(pattern.inputs))
    if kept:
        pattern = replace(pattern, kept=kept)
    return SpecialisedKernel(pattern, layout, tuple(made.constants), inplace)


def _overwriting(
    pattern: KernelPattern, k: int, held: set[int], operands: list[Node], layout: LoopNest
) -> Ints:
    """Return the outputs that are written where input `k` was read, no sooner than it is.

    held  outputs that are written before they are known
    """
    runs = range(pattern.stages)
    last = max((run for run in runs if k in pattern.loaded(pattern.run(run))), default=0)
    return tuple(
        i
        for i, store in enumerate(pattern.stores)
        if pattern.inputs + i not in held
        and layout.alike(pattern.inputs + i, k)
        and operands[pattern.inputs + i].spec.nbytes == operands[k].spec.nbytes
        and (store.per_unit or pattern.values[store.value].stage >= last)
    )


class _Values:
    """The values of a kernel, and which of them is a node's."""

    def __init__(self, domain: Domain, layout: LoopNest) -> None:
        self.domain = domain
        self.layout = layout
        self.values: list[Value] = []
        self.constants: list[int] = []
        self.place: dict[Node, int] = {}
        operand = {x: k for k, x in enumerate(domain.graph.inputs)}
        for node in domain.graph:
            made: Value | None
            if node in operand:
                made = Value(node.dtype, operand=operand[node])
            elif isinstance(node.op, Constant):
                made = self._constant(node)
            else:
                made = self._computed(node)
            if made is None:
                self.place[node] = self.place[node.inputs[0]]
            else:
                self.place[node] = len(self.values)
                self.values.append(made)

    def _constant(self, node: Node) -> Value:
        assert isinstance(node.op, Constant)
        if not is_number(node):
            raise Unfit("an array of constants is read from memory")
        value = node.op.value.reshape(())[()]
        if value in (0, 1, -1) or not np.isfinite(value):
            return Value(node.dtype, literal=literal(value))
        word = np.zeros(8, np.uint8)
        word[: node.dtype.itemsize] = np.frombuffer(value.tobytes(), np.uint8)
        self.constants.append(int(word.view(np.int64)[0]))
        return Value(node.dtype, constant=len(self.constants) - 1)

    def _computed(self, node: Node) -> Value | None:
        """Return the value of a node; None where it is its input's."""
        op = node.op
        args = tuple(self.place[x] for x in node.inputs)
        if not isinstance(op, Reduction | Elementwise):
            return None
        if takes_index(op):
            long = tuple(n for n in node.shape if n != 1)
            if self.layout.form != "map" or long != self.domain.extents:
                raise Unfit("random numbers are counted along one flat axis")
        return Value(node.dtype, op, args, stage=self.domain.stages[node])


def with_levels(values: Sequence[Value], layout: LoopNest) -> Iterator[Value]:
    """Yield values with the level at which a unit computes them."""
    moving: list[bool] = []  # which values change along the loops
    beside: list[bool] = []  # which values change along the innermost axis
    for value in values:
        if value.operand >= 0:
            moves, differs = layout.moves(value.operand), bool(layout.innermost[value.operand])
        elif value.op is not None and takes_index(value.op):
            moves = differs = True
        elif value.reduces:
            moves, differs = False, layout.form == "column"
        else:
            moves, differs = (any(known[a] for a in value.args) for known in (moving, beside))
        moving.append(moves)
        beside.append(differs)
        yield replace(value, level=UNIT if not moves else ELEMENT if differs else ROW)


def _worth_keeping(pattern: KernelPattern, layout: LoopNest) -> Iterator[KeptValue]:
    """Yield the costly values that more than one run over the loops needs and that have a place."""
    runs = [set(pattern.run(stage)) for stage in range(pattern.stages)]
    rows = MOST_ROWS if layout.form == "row" and layout.length <= ROW_LENGTH else 0
    outputs = [
        k
        for k, store in enumerate(pattern.stores, pattern.inputs)
        if not store.per_unit and pattern.values[store.value].stage == pattern.stages - 1
    ]
    for v, value in enumerate(pattern.values):
        needed = [stage for stage, run in enumerate(runs) if v in run]
        costly = isinstance(value.op, Elementwise) and value.op.costly
        if value.level < ELEMENT or not costly or len(needed) < 2:
            continue
        alike = [k for k in outputs if pattern.dtypes[k] == value.dtype]
        if rows:
            rows -= 1
            yield KeptValue(v, needed[0])
        elif alike:
            outputs.remove(alike[0])
            yield KeptValue(v, needed[0], alike[0])


def check_speed(kernel: SpecialisedKernel) -> None:
    """Raise Unfit, with the reason, if several kernels are faster than this one."""
    pattern, layout = kernel.pattern, kernel.layout
    if pattern.stages == 1:
        return
    if pattern.form == "column":
        raise Unfit("it would have to run along the outer axis more than once")
    few = FEW_BLOCKS if pattern.form == "lane" else FEW
    if layout.count < few and layout.length * pattern.lanes > STRETCH:
        raise Unfit("it has too few rows to share among threads")
