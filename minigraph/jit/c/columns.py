"""The text of kernels whose innermost axis is kept: reductions down columns.

The text of a sum over the first axis, in outline:

    static void NAME_unit(const int64_t *a, char **slots, int64_t unit, int64_t split) {
      ...                                        where the operands of this block of columns are
      for (each row)
        for (int64_t j = 0; j < n; j++) lane1[j] = p0[j] + lane1[j];
      for (int64_t j = 0; j < n; j++) p1[j] = sum1[j];
    }

Lanes, in the type of the elements, are added to sums, in double for floats, every few rows.
"""

from __future__ import annotations

from minigraph.jit.c.body import (
    accumulators,
    bases,
    combine,
    declare,
    element,
    entry,
    identity,
    pointer,
    split_or_join,
    unit_function,
    widened,
)
from minigraph.jit.emitter import block
from minigraph.jit.expression import c_type
from minigraph.jit.kernel import COLUMNS, ELEMENT, ROW, KernelPattern

ROWS = 64  # that are combined in the input's own type

_BLOCKS = f"(a[6 + a[1]] + {COLUMNS - 1}) / {COLUMNS}"  # of columns, for each of the other units


def text(pattern: KernelPattern) -> str:
    """Return the functions of a "column" kernel, called NAME."""
    reductions = pattern.reductions
    body = bases(pattern, "1 + units")
    body += [declare(pattern, v, "0") for v in pattern.once]
    for v in reductions:
        short, long = accumulators(pattern, pattern.values[v])
        start = identity(pattern, pattern.values[v])
        body.append(f"{short} lane{v}[{COLUMNS}];")
        body.append(f"{long} sum{v}[{COLUMNS}];")
        body.append(f"for (int64_t j = 0; j < n; j++) sum{v}[j] = {start};")
    body += _rows(pattern, reductions)
    body += _splits(pattern, reductions)
    body += _results(pattern)
    place = [
        f"const int64_t width = a[6 + units], blocks = {_BLOCKS};",
        f"const int64_t first = unit % blocks * {COLUMNS};",
        f"const int64_t n = width - first < {COLUMNS} ? width - first : {COLUMNS};",
        "const int64_t column = unit / blocks * width + first;",
        f"mg_place(a, {len(pattern.dtypes)}, column, place);",
    ]
    unit = unit_function(pattern, place, [*body, "(void)stream;"])
    return unit + entry(bool(reductions), f"units / a[6 + a[1]] * ({_BLOCKS})")


def _rows(pattern: KernelPattern, reductions: list[int]) -> list[str]:
    """Statements that run down the columns."""
    stores, values = pattern.stored(0), pattern.run(0)
    row = [
        pointer(pattern, k, f"base{k} + at[{k}]")
        for k in [*pattern.loaded(values), *stores]
        if pattern.accesses[k] != "fixed"
    ]
    row += [declare(pattern, v, "0") for v in values if pattern.values[v].level == ROW]
    body = [declare(pattern, v, "j") for v in values if pattern.values[v].level == ELEMENT]
    body += [f"{element(pattern, k, 'j')} = v{pattern.source(k)};" for k in stores]
    clear, flush = [], []
    for v in reductions:
        value = pattern.values[v]
        new = widened(pattern, value)
        body.append(f"lane{v}[j] = {combine(value, new, f'lane{v}[j]')};")
        clear.append(f"lane{v}[j] = {identity(pattern, value)};")
        flush.append(f"sum{v}[j] = {combine(value, f'lane{v}[j]', f'sum{v}[j]')};")
    count = len(pattern.dtypes)
    return [
        f"mg_start(a, {count}, loops, from, at, index);",
        *block(
            "for (int64_t begin = from; begin < to;)",
            f"const int64_t stop = begin + {ROWS} < to ? begin + {ROWS} : to;",
            *(f"for (int64_t j = 0; j < n; j++) {line}" for line in clear),
            *block(
                "for (; begin < stop; begin++)",
                *row,
                "#pragma GCC ivdep",
                *block("for (int64_t j = 0; j < n; j++)", *body),
                f"mg_next(a, {count}, loops, at, index);",
            ),
            *(f"for (int64_t j = 0; j < n; j++) {line}" for line in flush),
        ),
    ]


def _splits(pattern: KernelPattern, reductions: list[int]) -> list[str]:
    cell = f"(((column + j) * splits + %s) * {len(reductions)} + {{r}})"
    keep, join = [], []
    for r, v in enumerate(reductions):
        value = pattern.values[v]
        _, long = accumulators(pattern, value)
        at = f"*({long} *)(partial + 8 * {cell.format(r=r)})"
        each = "for (int64_t j = 0; j < n; j++)"
        keep.append(f"{each} {at % 'split'} = sum{v}[j];")
        join.append(f"{each} sum{v}[j] = {combine(value, at % 's', f'sum{v}[j]')};")
    return split_or_join(keep, join)


def _results(pattern: KernelPattern) -> list[str]:
    """Statements for what is made of the sums."""
    stores = [k for k, s in enumerate(pattern.stores, pattern.inputs) if s.per_unit]
    values = pattern.made_of([pattern.source(k) for k in stores])
    body = []
    for v in values:
        value = pattern.values[v]
        total = f"const {c_type(value.dtype)} v{v} = sum{v}[j];"
        body.append(total if value.reduces else declare(pattern, v, "j"))
    body += [f"{element(pattern, k, 'j')} = v{pattern.source(k)};" for k in stores]
    moving = [k for k in [*pattern.loaded(values), *stores] if pattern.accesses[k] != "fixed"]
    return [
        *(pointer(pattern, k, f"base{k}") for k in moving),
        "#pragma GCC ivdep",
        *block("for (int64_t j = 0; j < n; j++)", *body),
    ]
