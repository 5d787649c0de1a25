"""C statements for values side by side: one for each lane of a pixel, or column of a block."""

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
    """Return statements for where a unit of columns or rows begins, and how many units there are.

    It has as many as C calls `beside`, from `column` on along the last of the unit axes.
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
    """How a unit loops over its lanes or columns, which C calls k.

    Of value v `all{v}` has what stays while the unit runs over its loops, and `total{v}` what a
    reduction has combined.

    loop   the head of the loop
    most   how many lanes or columns there are at most
    index  the index, as `element` takes it, of what has one element for each
    cell   where the result {r} of split {s} stands among the partial results
    head   statements that the loop begins with
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
        """Return statements that compute values which many elements share."""
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
        """Return statements that take what `values` and `results` need of the shared values.

        stage  of the run, which takes some of `values` from where earlier ones have kept them
        """
        of, there = self.pattern.values, self.pattern.wide_needs(values, results, stage)
        return [f"const {c_type(of[v].dtype)} v{v} = all{v}[k];" for v in there]

    def once(self, stage: int) -> list[str]:
        """Return statements for what is computed once a unit and known in `stage`."""
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
        """Return statements that keep a split's results of a run, or combine those of all."""
        return share_results(self.pattern, stage, self.cell, "[k]", self.each)
