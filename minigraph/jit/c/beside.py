"""C statements for values side by side: one for each lane of a pixel, or column of a unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minigraph.jit.c.body import (
    clear_total,
    declare,
    element,
    share_results,
    total_of,
)
from minigraph.jit.emitter import block
from minigraph.jit.expression import c_type
from minigraph.jit.pattern import KernelPattern


def unit_beside(pattern: KernelPattern) -> tuple[list[str], str]:
    """Return statements for the first element of a unit of columns or rows, and the unit count.

    In C the unit has `beside` columns or rows, from `column` on along the last of the unit axes.
    """
    most = pattern.columns
    count = f"units / a[6 + a[1]] * ((a[6 + a[1]] + {most - 1}) / {most})"
    place = [
        f"const int64_t width = a[6 + units], blocks = (width + {most - 1}) / {most};",
        f"const int64_t first = unit % blocks * {most};",
        f"const int64_t beside = width - first < {most} ? width - first : {most};",
        "const int64_t column = unit / blocks * width + first;",
        f"mg_place(a, {len(pattern.dtypes)}, column, place);",
    ]
    return place, count


@dataclass(frozen=True)
class SideBySide:
    """The C loop of a unit over its lanes or columns, with the index k.

    The C array `all{v}` has a value of level UNIT for each lane or column, `total{v}` the total of
    a reduction.

    loop   head of the loop
    most   largest number of lanes or columns
    index  index, as `element` takes it, of operands with one element for each lane or column
    cell   index of result {r} of split {s} among the partial results
    head   statements at the beginning of the loop's body
    """

    pattern: KernelPattern
    loop: tuple[str, ...]
    most: int
    index: str
    cell: str
    head: tuple[str, ...] = ()

    def each(self, body: Iterable[str]) -> list[str]:
        *pragma, loop = self.loop
        return [*pragma, *block(loop, *self.head, *body)]

    def totals(self) -> list[str]:
        made, clear = [], []
        for v in self.pattern.reductions:
            made += total_of(self.pattern, v, f"[{self.most}]")
            clear += clear_total(self.pattern, v, "[k]")
        return [*made, *self.each(clear)] if clear else []

    def shared(self, values: Iterable[int]) -> list[str]:
        """Return statements that compute values that many elements share."""
        of, wide = self.pattern.values, self.pattern.wide
        body, arrays = [], []
        for v in values:
            if v in wide:
                arrays.append(v)
            else:
                body.append(declare(self.pattern, v, self.index))
        body += [f"{c_type(of[v].dtype)} all{v}[{self.most}];" for v in arrays]
        each = self.taken(arrays)
        for v in arrays:
            total = f"const {c_type(of[v].dtype)} v{v} = total{v}[k];"
            each.append(total if of[v].reduces else declare(self.pattern, v, self.index))
            each.append(f"all{v}[k] = v{v};")
        return body + (self.each(each) if arrays else [])

    def taken(
        self, values: Iterable[int], results: Iterable[int] = (), stage: int = 0
    ) -> list[str]:
        """Return statements that load the shared values that `values` and `results` need.

        stage  the run, which loads values that earlier runs have kept
        """
        of, there = self.pattern.values, self.pattern.wide_needs(values, results, stage)
        return [f"const {c_type(of[v].dtype)} v{v} = all{v}[k];" for v in there]

    def once(self, stage: int) -> list[str]:
        """Return statements that compute the values of level UNIT of a stage, and their outputs."""
        pattern = self.pattern
        there = pattern.reductions if pattern.narrow else ()
        made = [v for v in pattern.once if pattern.values[v].stage == stage and v not in there]
        body = self.shared(made)
        stores = [
            k
            for k, store in enumerate(pattern.stores, pattern.inputs)
            if store.per_unit and pattern.values[store.value].stage == stage
        ]
        if not stores:
            return body
        write = self.taken([], [pattern.source(k) for k in stores])
        write += [f"{element(pattern, k, self.index)} = v{pattern.source(k)};" for k in stores]
        # Where splits share a unit, an input that this overwrites may still be read.
        return [*body, *block(f"if (splits == 1 || run == {pattern.stages})", *self.each(write))]

    def splits(self, stage: int) -> list[str]:
        """Return statements that store a split's partial results, or combine those of all."""
        return share_results(self.pattern, stage, self.cell, "[k]", self.each)
