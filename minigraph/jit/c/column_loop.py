"""C statements of a unit: the loop over its columns, narrow rows or lanes, and its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from minigraph.jit.c import body as c
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
    `wide{v}` has a value of level UNIT, and `total{v}` the total of a reduction.  A unit of one
    long row has no such loop, and one total.

    cell         index of reduction {r} of split {s} among the partial results
    loop         pragma and head of the loop
    max_columns  largest number of columns
    index        index, as `element` takes it, of operands with one element for each column
    head         statements at the beginning of the loop's body
    """

    pattern: KernelPattern
    cell: str
    loop: tuple[str, ...] = ()
    max_columns: int = 1
    index: str = "0"
    head: tuple[str, ...] = ()

    @property
    def subscript(self) -> str:
        """The subscript of a column's total."""
        return "[k]" if self.loop else ""

    def wrap(self, body: Sequence[str]) -> list[str]:
        """Return the loop around statements, if there are any."""
        if not (body and self.loop):
            return [*body]
        *pragma, loop = self.loop
        return [*pragma, *block(loop, *self.head, *body)]

    def totals(self) -> list[str]:
        """Return statements that declare and clear the totals of all reductions."""
        declarations, clear = [], []
        for v in self.pattern.reductions:
            size = f"[{self.max_columns}]" if self.loop else ""
            declarations += c.declare_total(self.pattern, v, size)
            clear += c.clear_total(self.pattern, v, self.subscript)
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
            short_type, _ = c.accumulators(self.pattern, value)
            declarations.append(f"{short_type} lane{v}[{count}];")
            clear.append(f"{lane} = {c.identity(self.pattern, value)};")
            flush.append(c.add_to_total(self.pattern, v, lane, "[k]"))
            complete += c.complete_total(self.pattern, v, "[k]")
        return declarations, clear, flush, complete

    def compute(self, indices: Iterable[int]) -> list[str]:
        """Return statements that compute values of level UNIT or ROW; wide ones go to arrays."""
        values, wide = self.pattern.values, self.pattern.wide
        body, arrays = [], []
        for v in indices:
            if v in wide:
                arrays.append(v)
            else:
                body.append(self._value(v))
        body += [f"{c_type(values[v].dtype)} wide{v}[{self.max_columns}];" for v in arrays]
        store = self.load_wide(arrays)
        for v in arrays:
            store += [self._value(v), f"wide{v}[k] = v{v};"]
        return body + self.wrap(store)

    def _value(self, v: int) -> str:
        value = self.pattern.values[v]
        if value.reduces:
            return f"const {c_type(value.dtype)} v{v} = total{v}{self.subscript};"
        return c.declare(self.pattern, v, self.index)

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
        write += [f"{c.element(pattern, k, self.index)} = v{pattern.source(k)};" for k in stores]
        # Another split may still read an input that this overwrites.
        return [*body, *block(f"if (splits == 1 || run == {pattern.stages})", *self.wrap(write))]

    def splits(self, stage: int) -> list[str]:
        """Return statements that store a split's partial results, or later combine those of all."""
        pattern, save, combined = self.pattern, [], []
        for v in pattern.reduced(stage) if pattern.divisible else ():
            r, value = pattern.reductions.index(v), pattern.values[v]
            _, total_type = c.accumulators(pattern, value)
            partial = f"*({total_type} *)(partial + 8 * ({self.cell}))"
            total = f"total{v}{self.subscript}"
            save.append(f"{partial.format(s='split', r=r)} = {total};")
            combined.append(f"{total} = {c.combine(value, partial.format(s='s', r=r), total)};")
        if not save:
            return []
        return block(
            "if (splits > 1)",
            *block(f"if (run == {stage})", *self.wrap(save), "return;"),
            *block("for (int64_t s = 0; s < splits; s++)", *self.wrap(combined)),
        )

    def text(
        self,
        locate: Sequence[str],
        count: str,
        before: Sequence[str],
        run: Callable[[ColumnLoop, int], list[str]],
        after: Sequence[str] = (),
    ) -> str:
        """Return the functions of a kernel, called NAME.

        locate, count  see `unit_function` and `entry`
        before         statements of a unit before its first values
        run            returns the statements of a run over the loops, by its stage
        after          statements after the last unit
        """
        body = [*before, *self.compute_unit(0)]
        for stage in range(self.pattern.stages):
            body += run(self, stage) + self.splits(stage) + self.compute_unit(stage + 1)
        unit = c.unit_function(self.pattern, locate, body, after)
        return f"{unit}\n{c.entry(self.pattern, count)}"


def whole_units(pattern: KernelPattern) -> list[str]:
    """Return statements that set the offsets of a unit and declare the first row of a split."""
    return [
        "const int64_t inner = extent[loop_axes - 1];",
        "const int64_t first_row = split_begin ? split_begin / inner : 0;",
        f"mg_unit_offsets(a, {pattern.records}, unit, unit_offset);",
    ]
