"""Patterns: the properties of a kernel that its text depends on.

A kernel runs over *units*, which threads share.  A unit runs over *loops*, once for each stage, and
reduces elements along them; between stages it computes with the results.  There are four forms:

    map      no reduction: one unit, whose loops are all axes
    row      the innermost axis is reduced: a unit is one index of the kept axes
    column   the innermost axis is kept: a unit is a block of columns; short rows are treated as
             columns, side by side
    lane     the innermost axis is a short block of channels, the *lanes*; units and loops are axes
             of pixels, and each pixel has all lanes

The text depends neither on extents nor on strides, so a kernel serves all shapes with the same
pattern of broadcasting.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.graph import BOOL, DType, Op
from minigraph.jit.expression import support
from minigraph.jit.loops import MAX_NARROW_ROW, NARROW_LANES, Ints
from minigraph.ops.reduction import Reduction

# The level of a value: computed once for a unit, for a row of the innermost loop, or an element.
UNIT, ROW, ELEMENT = range(3)


@dataclass(frozen=True)
class Value:
    """A number that the kernel computes, loads, or chooses; `op` is None unless it is computed.

    args      indices of the values that the op reads; for a choice, inside and outside of a window
    literal   C text of a constant that the text depends on: 0, 1, -1, infinity or NaN
    constant  index of a constant in the argument block, or -1
    operand   index of the operand that is loaded, or -1
    window    index of the window of a load, which is 0 outside of it, or of a choice; or -1
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
    """The value that an output stores, and whether it stores one for each unit or each element."""

    value: int
    per_unit: bool


@dataclass(frozen=True)
class KeptValue:
    """A value that the run `run` of a unit computes and keeps for later runs.

    operand  output whose memory holds it until the output's final value is stored; -1 for a row in
             the scratch memory
    """

    value: int
    run: int
    operand: int = -1


@dataclass(frozen=True)
class KernelPattern:
    """The properties of a kernel that its text depends on.

    accesses  access of each operand, inputs then outputs, along the innermost axis, with lanes
              that of pixels: "unit", "same", "back" (unit stride, from the last to the first),
              "strided", or "fixed" if the operand does not vary within a unit
    lanes     number of lanes; 1 in other forms
    across    whether each operand has an element for each lane, or one for all lanes
    columns   largest number of columns, or of narrow rows, of a unit
    kept      values that a unit keeps for its later runs instead of recomputing them
    windows   counters of each window; their bounds follow the constants in the argument block
    counters  number of counters
    narrow    whether a unit is several rows of few elements, which threads do not split
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
    def records(self) -> int:
        """The number of records in the argument block: of operands, then of counters."""
        return len(self.dtypes) + self.counters

    @functools.cached_property
    def operand_windows(self) -> dict[int, int]:
        """The windows of operands that are 0 outside of one."""
        return {v.operand: v.window for v in self.values if v.operand >= 0 <= v.window}

    def bounds(self, window: int) -> dict[int, int]:
        """The index among the constants of the bounds of each counter of a window."""
        position = 1 + max((value.constant for value in self.values), default=-1)
        position += 2 * sum(map(len, self.windows[:window]))
        return {counter: position + 2 * i for i, counter in enumerate(self.windows[window])}

    @functools.cached_property
    def inputs(self) -> int:
        return len(self.dtypes) - len(self.stores)

    @functools.cached_property
    def reductions(self) -> list[int]:
        return [v for v, value in enumerate(self.values) if value.reduces]

    @functools.cached_property
    def rows(self) -> list[int]:
        """The values that a unit keeps as rows in the scratch memory."""
        return [kept.value for kept in self.kept if kept.operand < 0]

    @property
    def divisible(self) -> bool:
        """Whether threads may split a unit: the rows that it keeps belong to one thread."""
        return bool(self.reductions) and not self.rows and not self.narrow

    @functools.cached_property
    def unit_values(self) -> list[int]:
        """The values that are computed once for each unit."""
        return [v for v, value in enumerate(self.values) if value.level == UNIT]

    @functools.cached_property
    def wide(self) -> frozenset[int]:
        """The values that differ between columns, of level UNIT, or between lanes, of any level."""
        values: set[int] = set()
        for v, value in enumerate(self.values):
            k = value.operand
            if self.form == "lane":
                differs = k >= 0 and self.across[k]
            elif value.level == UNIT and (self.narrow or self.form == "column"):
                differs = k >= 0 and (self.narrow or self.accesses[k] != "fixed")
            else:
                continue
            if differs or value.reduces or not values.isdisjoint(value.args):
                values.add(v)
        return frozenset(values)

    @property
    def column_bytes(self) -> int:
        """The largest number of bytes on the stack for each column or narrow row of a unit."""
        array_values = {store.value for store in self.stores if store.per_unit}
        for value in self.values:
            for a in value.args:
                if value.level != UNIT or value.stage != self.values[a].stage:
                    array_values.add(a)
        nbytes = 0
        if self.narrow:
            rows = sum(self.values[v].dtype.itemsize for v in self.rows)
            nbytes = MAX_NARROW_ROW * rows + 8 * NARROW_LANES * len(self.reductions)
        # For each reduction a partial result, the total, and its rounding error.
        return nbytes + 8 * (3 * len(self.reductions) + len(array_values & self.wide))

    @functools.cached_property
    def stages(self) -> int:
        """The number of runs of a unit over its loops."""
        store_stages = [self.values[s.value].stage for s in self.stores if not s.per_unit]
        return 1 + max(store_stages + [self.values[v].stage - 1 for v in self.reductions])

    def reduced(self, stage: int) -> list[int]:
        """The reductions that a run over the loops computes."""
        return [v for v in self.reductions if self.values[v].stage == stage + 1]

    def stored(self, stage: int) -> list[int]:
        """The operands that a run over the loops writes."""
        return [
            k
            for k, s in enumerate(self.stores, self.inputs)
            if not s.per_unit and self.values[s.value].stage == stage
        ]

    def operand_dtypes(self, value: Value) -> list[DType]:
        """Return the dtypes of what a value is computed from, for `expression`.

        A loaded bool of which a number is made counts as the byte that it is: gcc vectorises the
        choice of 0 or 1 after a comparison, but not after a load.
        """
        args = [self.values[a] for a in value.args]
        dtypes = [arg.dtype for arg in args]
        is_loaded = all(arg.op is None for arg in args)
        if dtypes == [BOOL] and is_loaded and value.dtype != BOOL:
            return [np.dtype("uint8")]
        return dtypes

    def source(self, k: int) -> int:
        """The value that operand `k`, an output, stores."""
        return self.stores[k - self.inputs].value

    def run(self, stage: int) -> list[int]:
        """The values that a run over the loops computes or loads, in order.

        They include neither values of level UNIT nor values that only kept values depend on.
        """
        unit_values, kept = set(self.unit_values), self.kept_before(stage)
        values: set[int] = set()
        stack = [v for v in self.roots(stage) if v not in unit_values]
        while stack:
            v = stack.pop()
            if v not in values:
                values.add(v)
                if not self.values[v].reduces and v not in kept:
                    stack.extend(a for a in self.values[v].args if a not in unit_values)
        return sorted(values)

    def kept_before(self, stage: int) -> dict[int, KeptValue]:
        """The values that earlier runs have kept."""
        return {kept.value: kept for kept in self.kept if kept.run < stage}

    def roots(self, stage: int) -> list[int]:
        """The values that a run over the loops combines or stores."""
        combined = [self.values[v].args[0] for v in self.reduced(stage)]
        return [*combined, *map(self.source, self.stored(stage))]

    def wide_operands(
        self, values: Iterable[int], results: Iterable[int], stage: int = 0
    ) -> list[int]:
        """The wide values that computing `values` reads, and those among `results`.

        stage  the run, which loads values that earlier runs have kept
        """
        available, kept = set(values), self.kept_before(stage)
        computed = (self.values[v] for v in available if v not in kept)
        operands = {a for value in computed if not value.reduces for a in value.args}
        return sorted((operands.union(results) & self.wide) - available)

    def run_at(self, level: int, stage: int) -> list[int]:
        """The values of one level that a run over the loops computes or loads."""
        return [v for v in self.run(stage) if self.values[v].level == level]

    def moving(self, stage: int) -> list[int]:
        """The operands that a run over the loops reads or writes and that vary within it."""
        values = self.run(stage)
        kept = {kept.operand for kept in self.kept if kept.value in values} - {-1}
        accessed = kept.union(self.loaded(values), self.stored(stage))
        return sorted(k for k in accessed if self.accesses[k] != "fixed")

    def functions(self, variable: Callable[[DType], DType] = lambda dtype: dtype) -> list[str]:
        """The texts of the C functions that elementwise ops call, without duplicates.

        variable  returns the dtype of the C variable for a dtype
        """
        texts: dict[str, None] = {}
        for value in self.values:
            if value.op is not None and not value.reduces:
                operands = [variable(self.values[a].dtype) for a in value.args]
                texts |= dict.fromkeys(support(value.op, operands, variable(value.dtype)))
        return [*texts]

    def loaded(self, values: Sequence[int]) -> list[int]:
        """The operands that some of `values` load."""
        return sorted({self.values[v].operand for v in values if self.values[v].operand >= 0})
