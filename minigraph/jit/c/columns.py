"""The text of kernels whose innermost axis is kept: reductions down columns.

The text of a sum over the first axis, in outline:

    static void NAME_unit(const int64_t *a, char **slots, int64_t unit, int64_t split) {
      ...                                        where the operands of this block of columns are
      for (each row)
        for (int64_t k = 0; k < n; k++) lane1[k] = p0[k] + lane1[k];
      for (int64_t k = 0; k < n; k++) p1[k] = total1[k];
    }

Short rows stand side by side as columns do: their vectors are of one element of many rows each.

Lanes, in the type of the elements, are added to totals, in double for floats, every few rows.
"""

from __future__ import annotations

from minigraph.jit.c.beside import SideBySide
from minigraph.jit.c.body import (
    accumulators,
    bases,
    combine,
    compute_element,
    element,
    entry,
    identity,
    in_run,
    pointer,
    unit_function,
    widened,
)
from minigraph.jit.emitter import block
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern

ROWS = 64  # that are combined in the input's own type


def column_text(pattern: KernelPattern) -> str:
    """Return the functions of a "column" kernel, called NAME."""
    most = pattern.columns
    blocks = f"(a[6 + a[1]] + {most - 1}) / {most}"  # of columns, for each of the other units
    loop = ("#pragma GCC ivdep", "for (int64_t k = 0; k < n; k++)")
    cell = f"((column + k) * splits + {{s}}) * {len(pattern.reductions)} + {{r}}"
    columns = SideBySide(pattern, loop, most, "k", cell)
    place = [
        f"const int64_t width = a[6 + units], blocks = {blocks};",
        f"const int64_t first = unit % blocks * {most};",
        f"const int64_t n = width - first < {most} ? width - first : {most};",
        "const int64_t column = unit / blocks * width + first;",
        f"mg_place(a, {len(pattern.dtypes)}, column, place);",
    ]
    stores = [k for k, store in enumerate(pattern.stores, pattern.inputs) if store.per_unit]
    moving = [k for k in [*pattern.loaded(pattern.once), *stores] if pattern.accesses[k] != "fixed"]
    body = bases(pattern, "1 + units")
    body += [pointer(pattern, k, f"base{k}") for k in moving]
    body += columns.totals() + columns.once(0)
    for stage in range(pattern.stages):
        body += _run_down(columns, stage)
        body += columns.splits(stage) + columns.once(stage + 1)
    unit = unit_function(pattern, place, body)
    return unit + entry(pattern, f"units / a[6 + a[1]] * ({blocks})")


def _run_down(columns: SideBySide, stage: int) -> list[str]:
    """Statements that run down the columns once."""
    pattern = columns.pattern
    reduced, stores, values = pattern.reduced(stage), pattern.stored(stage), pattern.run(stage)
    row = [
        pointer(pattern, k, f"base{k} + at[{k}]")
        for k in pattern.touched(stage)
        if pattern.accesses[k] != "fixed"
    ]
    row += columns.shared(v for v in values if pattern.values[v].level == ROW)
    each = [v for v in values if pattern.values[v].level == ELEMENT]
    fed = [*(pattern.values[v].args[0] for v in reduced), *map(pattern.source, stores)]
    body = columns.taken(each, fed, stage) + compute_element(pattern, stage, each, "k")
    body += [f"{element(pattern, k, 'k')} = v{pattern.source(k)};" for k in stores]
    lanes, clear, flush = [], [], []
    for v in reduced:
        value, lane, total = pattern.values[v], f"lane{v}[k]", f"total{v}[k]"
        short, _ = accumulators(pattern, value)
        lanes.append(f"{short} lane{v}[{pattern.columns}];")
        clear.append(f"{lane} = {identity(pattern, value)};")
        body.append(f"{lane} = {combine(value, widened(pattern, value), lane)};")
        flush.append(f"{total} = {combine(value, lane, total)};")
    count = len(pattern.dtypes)
    body = [
        *lanes,
        f"mg_start(a, {count}, loops, from, at, step, index);",
        *block(
            "for (int64_t begin = from; begin < to;)",
            f"const int64_t stop = begin + {ROWS} < to ? begin + {ROWS} : to;",
            *(columns.each(clear) if reduced else []),
            *block(
                "for (; begin < stop; begin++)",
                *row,
                *columns.each(body),
                f"mg_next(a, {count}, loops, at, step, index);",
            ),
            *(columns.each(flush) if reduced else []),
        ),
    ]
    return in_run(pattern, stage, body)
