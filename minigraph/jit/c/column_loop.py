"""C statements of the vectorised loop over the columns, narrow rows or lanes of a unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minigraph.jit.c.body import (
    accumulators,
    add_to_total,
    clear_total,
    combine_splits,
    complete_total,
    declare,
    declare_total,
    element,
    identity,
)
from minigraph.jit.emitter import block
from minigraph.jit.expression import c_type
from minigraph.jit.pattern import KernelPattern


def blocks_of_columns(pattern: KernelPattern) -> tuple[list[str], str]:
    """Return statements that set the offsets of a unit of columns or rows, and the unit count.

    In C the unit has `unit_width` columns or rows, from `column` on along the last unit axis.
    """
    size = pattern.columns
    count = f"units / a[6 + a[1]] * ((a[6 + a[1]] + {size - 1}) / {size})"
    locate = [
        f"const int64_t width = a[6 + unit_axes], blocks = (width + {size - 1}) / {size};",
        f"const int64_t first = unit % blocks * {size};",
        f"const int64_t unit_width = width - first < {size} ? width - first : {size};",
        "const int64_t column = unit / blocks * width + first;",
        f"mg_unit_offsets(a, {len(pattern.dtypes)}, column, unit_offset);",
    ]
    return locate, count


@dataclass(frozen=True)
class ColumnLoop:
    """The vectorised C loop over the columns of a unit, with the index k.

    In kernels of narrow rows or lanes, these are the "columns".  For each column, the C array
    `wide{v}` has a value of level UNIT, and `total{v}` the total of a reduction.

    loop         pragma and head of the loop
    max_columns  largest number of columns
    index        index, as `element` takes it, of operands with one element for each column
    cell         index of reduction {r} of split {s} among the partial results
    head         statements at the beginning of the loop's body
    """

    pattern: KernelPattern
    loop: tuple[str, ...]
    max_columns: int
    index: str
    cell: str
    head: tuple[str, ...] = ()

    def wrap(self, body: Sequence[str]) -> list[str]:
        """Return the loop around statements, if there are any."""
        *pragma, loop = self.loop
        return [*pragma, *block(loop, *self.head, *body)] if body else []

    def totals(self) -> list[str]:
        """Return statements that declare and clear the totals of all reductions."""
        declarations, clear = [], []
        for v in self.pattern.reductions:
            declarations += declare_total(self.pattern, v, f"[{self.max_columns}]")
            clear += clear_total(self.pattern, v, "[k]")
        return [*declarations, *self.wrap(clear)]

    def accumulators(
        self, stage: int, index: str, count: int
    ) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return statements that declare accumulators, clear them, add them to totals, end a run.

        index  of an accumulator of the column in the C array `lane{v}`, which has `count`
        """
        declarations, clear, flush, complete = [], [], [], []
        for v in self.pattern.reduced(stage):
            value, lane = self.pattern.values[v], f"lane{v}[{index}]"
            short_type, _ = accumulators(self.pattern, value)
            declarations.append(f"{short_type} lane{v}[{count}];")
            clear.append(f"{lane} = {identity(self.pattern, value)};")
            flush.append(add_to_total(self.pattern, v, lane, "[k]"))
            complete += complete_total(self.pattern, v, "[k]")
        return declarations, clear, flush, complete

    def compute(self, indices: Iterable[int]) -> list[str]:
        """Return statements that compute values of level UNIT or ROW; wide ones go to arrays."""
        values, wide = self.pattern.values, self.pattern.wide
        body, arrays = [], []
        for v in indices:
            if v in wide:
                arrays.append(v)
            else:
                body.append(declare(self.pattern, v, self.index))
        body += [f"{c_type(values[v].dtype)} wide{v}[{self.max_columns}];" for v in arrays]
        store = self.load_wide(arrays)
        for v in arrays:
            total = f"const {c_type(values[v].dtype)} v{v} = total{v}[k];"
            store.append(total if values[v].reduces else declare(self.pattern, v, self.index))
            store.append(f"wide{v}[k] = v{v};")
        return body + self.wrap(store)

    def load_wide(
        self, values: Iterable[int], results: Iterable[int] = (), stage: int = 0
    ) -> list[str]:
        """Return statements that load the wide values which `values` and `results` need.

        stage  the run, which loads values that earlier runs have kept
        """
        wide = self.pattern.wide_operands(values, results, stage)
        types = (c_type(self.pattern.values[v].dtype) for v in wide)
        return [f"const {t} v{v} = wide{v}[k];" for t, v in zip(types, wide, strict=True)]

    def compute_unit(self, stage: int) -> list[str]:
        """Return statements that compute the values of level UNIT of a stage, and their outputs."""
        pattern = self.pattern
        computed = pattern.reductions if pattern.narrow else ()
        unit_values = [v for v in pattern.unit_values if pattern.values[v].stage == stage]
        body = self.compute(v for v in unit_values if v not in computed)
        stores = [
            k
            for k, store in enumerate(pattern.stores, pattern.inputs)
            if store.per_unit and pattern.values[store.value].stage == stage
        ]
        if not stores:
            return body
        write = self.load_wide([], [pattern.source(k) for k in stores])
        write += [f"{element(pattern, k, self.index)} = v{pattern.source(k)};" for k in stores]
        # Another split may still read an input that this overwrites.
        return [*body, *block(f"if (splits == 1 || run == {pattern.stages})", *self.wrap(write))]

    def splits(self, stage: int) -> list[str]:
        """Return statements that store a split's partial results, or combine those of all."""
        return combine_splits(self.pattern, stage, self.cell, "[k]", self.wrap)
