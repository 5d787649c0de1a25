"""What the text of a kernel depends on.

A kernel runs over *units*, which threads share; a unit runs over *loops*, once for each stage, and
combines elements along them; between stages it computes with the results.  Four forms:

    map      nothing is reduced: one unit, whose loops are all axes
    row      the innermost axis is reduced: a unit is one index of the axes that are kept
    column   the innermost axis is kept, or short: a unit is a block of columns, or of short rows,
             side by side
    lane     the innermost axis is a short block of channels, the *lanes*: what the others have for
             an element is a pixel, all its lanes; units and loops are what the other axes give

The text has neither extents nor strides: a kernel serves every shape with the same pattern of
broadcasting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from minigraph.graph import DType, Op
from minigraph.jit.expression import support
from minigraph.jit.loops import NARROW_LANES, NARROW_ROW, Ints
from minigraph.ops.reduction import Reduction

# Where a value is computed: once a unit, once a row of the innermost loop, for each element.
UNIT, ROW, ELEMENT = range(3)


@dataclass(frozen=True)
class Value:
    """A number that the kernel computes; `op` is None for one that it loads or chooses.

    args      of the op, as indices of values; of a choice its values inside and outside of a window
    literal   C's text of a constant that cannot be another one: 0, 1, -1, infinity and NaN
    constant  in the argument block, as an index
    operand   that is loaded, as an index
    window    outside of which what is loaded is 0, or by which the value is chosen, as an index
    """

    dtype: DType
    op: Op | None = None
    args: Ints = ()
    literal: str = ""
    constant: int = -1
    operand: int = -1
    window: int = -1
    level: int = UNIT
    stage: int = 0

    @property
    def reduces(self) -> bool:
        return isinstance(self.op, Reduction)


@dataclass(frozen=True)
class OutputStore:
    """An output: which value, and whether it has an element for each unit only."""

    value: int
    per_unit: bool


@dataclass(frozen=True)
class KeptValue:
    """A value that the unit's run `run` computes and later runs take from where it is kept.

    operand  the output that holds it, which may be its own, or until its own elements are known;
             -1: a row of its own in the scratch memory
    """

    value: int
    run: int
    operand: int = -1


@dataclass(frozen=True)
class KernelPattern:
    """What the text of a kernel depends on.

    accesses  of the operands, inputs then outputs: "unit", "same", "back" (from the last to the
              first) or "strided" along the innermost axis, "fixed" if they do not change within a
              unit; where there are lanes, along the innermost axis of pixels
    lanes     how many there are; 1 in other forms
    across    for each operand whether it has a number for each lane, rather than one for all
    columns   how many of them a unit has at most, or how many narrow rows
    narrow    whether a unit is rows of few elements, which no threads share
    kept      values that a unit keeps for its later runs: computing them again would take longer
    windows   for each the counters whose bounds it has: the first and the last number of each stand
              behind the constants, window by window
    counters  how many there are
    """

    form: str
    values: tuple[Value, ...]
    dtypes: tuple[DType, ...]
    accesses: tuple[str, ...]
    stores: tuple[OutputStore, ...]
    lanes: int
    across: tuple[bool, ...]
    columns: int
    kept: tuple[KeptValue, ...] = ()
    windows: tuple[Ints, ...] = ()
    counters: int = 0
    narrow: bool = False

    @property
    def walked(self) -> int:
        """How many operands and counters a unit moves along its loops."""
        return len(self.dtypes) + self.counters

    @functools.cached_property
    def masked(self) -> dict[int, int]:
        return {v.operand: v.window for v in self.values if v.operand >= 0 <= v.window}

    def bounds(self, window: int) -> dict[int, int]:
        """Where among the constants the bounds of a window stand, for each of its counters."""
        first = 1 + max((value.constant for value in self.values), default=-1)
        first += 2 * sum(map(len, self.windows[:window]))
        return {counter: first + 2 * i for i, counter in enumerate(self.windows[window])}

    @functools.cached_property
    def inputs(self) -> int:
        return len(self.dtypes) - len(self.stores)

    @functools.cached_property
    def reductions(self) -> list[int]:
        return [v for v, value in enumerate(self.values) if value.reduces]

    @functools.cached_property
    def rows(self) -> list[int]:
        """The values of which a unit keeps a row of its own."""
        return [kept.value for kept in self.kept if kept.operand < 0]

    @property
    def divisible(self) -> bool:
        """Whether threads may share a unit: a row that it keeps is one thread's."""
        return bool(self.reductions) and not self.rows and not self.narrow

    @functools.cached_property
    def once(self) -> list[int]:
        """The values that are computed once a unit."""
        return [v for v, value in enumerate(self.values) if value.level == UNIT]

    @functools.cached_property
    def wide(self) -> frozenset[int]:
        """The values that differ between lanes; of columns and rows those that a unit keeps."""
        found: set[int] = set()
        for v, value in enumerate(self.values):
            k = value.operand
            if self.form == "lane":
                own = k >= 0 and self.across[k]
            elif value.level == UNIT and (self.narrow or self.form == "column"):
                own = k >= 0 and (self.narrow or self.accesses[k] != "fixed")
            else:
                continue
            if own or value.reduces or not found.isdisjoint(value.args):
                found.add(v)
        return frozenset(found)

    @property
    def beside(self) -> int:
        """The bytes that a unit holds for each of its columns or narrow rows, at most."""
        read = {store.value for store in self.stores if store.per_unit}
        for value in self.values:
            for a in value.args:
                if value.level != UNIT or value.stage != self.values[a].stage:
                    read.add(a)
        held = 0
        if self.narrow:
            rows = sum(self.values[v].dtype.itemsize for v in self.rows)
            held = NARROW_ROW * rows + 8 * NARROW_LANES * len(self.reductions)
        # Of each reduction: a stretch, the total, and what its additions rounded off.
        return held + 8 * (3 * len(self.reductions) + len(read & self.wide))

    @functools.cached_property
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
        """The values that a run over the loops computes or loads, in order.

        Neither those that are computed once a unit nor what kept values are made of.
        """
        once, there = set(self.once), self.there(stage)
        found: set[int] = set()
        stack = [v for v in self.goals(stage) if v not in once]
        while stack:
            v = stack.pop()
            if v not in found:
                found.add(v)
                if not self.values[v].reduces and v not in there:
                    stack.extend(a for a in self.values[v].args if a not in once)
        return sorted(found)

    def there(self, stage: int) -> dict[int, KeptValue]:
        """The values that earlier runs have kept."""
        return {kept.value: kept for kept in self.kept if kept.run < stage}

    def touched(self, stage: int) -> list[int]:
        """The operands that a run over the loops reads or writes."""
        values = self.run(stage)
        held = {kept.operand for kept in self.kept if kept.value in values and kept.operand >= 0}
        return sorted(held.union(self.loaded(values), self.stored(stage)))

    def goals(self, stage: int) -> list[int]:
        """The values that a run over the loops combines or stores."""
        combined = [self.values[v].args[0] for v in self.reduced(stage)]
        return [*combined, *map(self.source, self.stored(stage))]

    def wide_needs(
        self, values: Iterable[int], results: Iterable[int], stage: int = 0
    ) -> list[int]:
        """The wide values, besides these, that computing `values` and `results` takes.

        stage  of the run, which takes some of `values` from where earlier ones have kept them
        """
        made, kept = set(values), self.there(stage)
        computed = (self.values[v] for v in made if v not in kept)
        needed = {a for value in computed if not value.reduces for a in value.args}
        return sorted((needed.union(results) & self.wide) - made)

    def run_at(self, level: int, stage: int) -> list[int]:
        """The values of a level that a run over the loops computes or loads."""
        return [v for v in self.run(stage) if self.values[v].level == level]

    def moving(self, stage: int) -> list[int]:
        """The operands that a run over the loops reads or writes, and that change within it."""
        return [k for k in self.touched(stage) if self.accesses[k] != "fixed"]

    def functions(self, held: Callable[[DType], DType] = lambda dtype: dtype) -> list[str]:
        """The C functions that the ops of elements call, each once.

        held  returns the type in which a value of a dtype is held
        """
        needs: dict[str, None] = {}
        for value in self.values:
            if value.op is not None and not value.reduces:
                operands = [held(self.values[a].dtype) for a in value.args]
                needs |= dict.fromkeys(support(value.op, operands, held(value.dtype)))
        return [*needs]

    def loaded(self, values: Sequence[int]) -> list[int]:
        return sorted({self.values[v].operand for v in values if self.values[v].operand >= 0})
