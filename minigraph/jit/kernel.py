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
from collections.abc import Sequence
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
class KernelPattern:
    """What the text of a kernel depends on.

    accesses  of the operands, inputs then outputs: "unit", "same" or "strided" along the innermost
              axis, "fixed" if they do not change within a unit; where there are lanes, along the
              innermost axis of pixels
    lanes     how many there are; 1 in other forms
    across    for each operand whether it has a number for each lane, rather than one for all
    rows      values that a unit keeps for its later runs: computing them again would take longer
    """

    form: str
    values: tuple[Value, ...]
    dtypes: tuple[DType, ...]
    accesses: tuple[str, ...]
    stores: tuple[Store, ...]
    lanes: int
    across: tuple[bool, ...]
    rows: Ints = ()

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
        return self.made_of(self._goals(stage), self.kept(stage))

    def kept(self, stage: int) -> list[int]:
        """The values that earlier runs have kept."""
        return [v for v, first in self._first_runs.items() if first < stage]

    def _goals(self, stage: int) -> list[int]:
        """The values that a run over the loops combines or writes."""
        combined = [self.values[v].args[0] for v in self.reduced(stage)]
        return [*combined, *map(self.source, self.stored(stage))]

    @functools.cached_property
    def _first_runs(self) -> dict[int, int]:
        """Which run computes each of the values that are kept."""
        first: dict[int, int] = {}
        for stage in range(self.stages if self.rows else 0):
            needed = set(self.made_of(self._goals(stage)))
            first.update((v, stage) for v in self.rows if v in needed and v not in first)
        return first

    def made_of(self, roots: Sequence[int], ends: Sequence[int] = ()) -> list[int]:
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


@dataclass(frozen=True)
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
    pattern = KernelPattern(
        layout.form, tuple(made.values), dtypes, layout.accesses, stores, lanes, wide
    )
    _check(pattern, layout)
    if layout.form == "row" and layout.length <= ROW_LENGTH:
        pattern = replace(pattern, rows=_worth_keeping(pattern)[:MOST_ROWS])
    last = {k: s for s in range(pattern.stages) for k in pattern.loaded(pattern.run(s))}
    inplace = [
        _overwriting(pattern, k, last.get(k, 0), operands, layout) for k in range(pattern.inputs)
    ]
    return SpecialisedKernel(pattern, layout, tuple(made.constants), tuple(inplace))


def _overwriting(
    pattern: KernelPattern, k: int, last: int, operands: list[Node], layout: LoopNest
) -> Ints:
    """Return the outputs that are written where input `k` was read, in stage `last` or later."""
    return tuple(
        i
        for i, store in enumerate(pattern.stores)
        if layout.alike(pattern.inputs + i, k)
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
                made = self._loaded(node, operand[node])
            elif isinstance(node.op, Constant):
                made = self._constant(node)
            else:
                made = self._computed(node)
            if made is None:
                self.place[node] = self.place[node.inputs[0]]
            else:
                self.place[node] = len(self.values)
                self.values.append(made)

    def _loaded(self, node: Node, k: int) -> Value:
        moves = self.layout.moves(k)
        level = ELEMENT if self.layout.innermost[k] else ROW if moves else UNIT
        return Value(node.dtype, operand=k, level=level)

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
        if isinstance(op, Reduction):
            level = ELEMENT if self.layout.form == "column" else UNIT
        elif not isinstance(op, Elementwise):
            return None
        elif takes_index(op):
            long = tuple(n for n in node.shape if n != 1)
            if self.layout.form != "map" or long != self.domain.extents:
                raise Unfit("random numbers are counted along one flat axis")
            level = ELEMENT
        else:
            level = max((self.values[a].level for a in args), default=UNIT)
        return Value(node.dtype, op, args, level=level, stage=self.domain.stages[node])


def _worth_keeping(pattern: KernelPattern) -> Ints:
    """Return the costly values that more than one run over the loops needs."""
    runs = [set(pattern.run(stage)) for stage in range(pattern.stages)]
    return tuple(
        v
        for v, value in enumerate(pattern.values)
        if value.level == ELEMENT
        and isinstance(value.op, Elementwise)
        and value.op.costly
        and sum(v in run for run in runs) > 1
    )


def _check(pattern: KernelPattern, layout: LoopNest) -> None:
    if pattern.stages > 1:
        if pattern.form == "column":
            raise Unfit("it would have to run along the outer axis more than once")
        few = FEW_BLOCKS if pattern.form == "lane" else FEW
        if layout.count < few and layout.length * pattern.lanes > STRETCH:
            raise Unfit("it has too few rows to share among threads")
