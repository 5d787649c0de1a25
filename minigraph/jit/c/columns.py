"""The text of kernels whose innermost axis is kept: reductions down columns.

The text of a sum over the first axis, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        where the operands of a block of columns are
      for (; i + 4 <= rows; i += 4)
        for (int64_t k = 0; k < beside; k++) {
          float l1 = lane1[k];
          for (int u = 0; u < 4; u++) l1 = p0[k] + l1;     p0: of row i + u
          lane1[k] = l1;
        }
      for (; i < rows; i++) ...
      for (int64_t k = 0; k < beside; k++) p1[k] = total1[k];
    }

Short rows are treated as columns: a vector has one element of each of many rows.

Lanes, in the dtype of the elements, are added to totals, in double for floats, every few rows.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c.beside import SideBySide, unit_beside
from minigraph.jit.emitter import block
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern

STRETCH = 64  # rows that are accumulated in the input's dtype
ROWS = 4  # rows of one iteration, which loads and stores lanes once


def column_text(pattern: KernelPattern) -> str:
    """Return the functions of a "column" kernel, called NAME."""
    most = pattern.columns
    loop = ("#pragma GCC ivdep", "for (int64_t k = 0; k < beside; k++)")
    cell = f"((column + k) * splits + {{s}}) * {len(pattern.reductions)} + {{r}}"
    columns = SideBySide(pattern, loop, most, "k", cell)
    place, count = unit_beside(pattern)
    stores = [k for k, store in enumerate(pattern.stores, pattern.inputs) if store.per_unit]
    moving = [k for k in [*pattern.loaded(pattern.once), *stores] if pattern.accesses[k] != "fixed"]
    body = c.bases(pattern, "1 + units")
    body += [c.pointer(pattern, k, f"base{k}") for k in moving]
    body += columns.totals() + columns.once(0)
    for stage in range(pattern.stages):
        body += _run_down(columns, stage)
        body += columns.splits(stage) + columns.once(stage + 1)
    unit = c.unit_function(pattern, place, body)
    return unit + c.entry(pattern, count)


def _run_down(columns: SideBySide, stage: int) -> list[str]:
    pattern = columns.pattern
    reduced, moving = pattern.reduced(stage), pattern.moving(stage)
    lanes, clear, flush, done = [], [], [], []
    for v in reduced:
        value, lane = pattern.values[v], f"lane{v}[k]"
        short, _ = c.accumulators(pattern, value)
        lanes.append(f"{short} lane{v}[{pattern.columns}];")
        clear.append(f"{lane} = {c.identity(pattern, value)};")
        flush.append(c.add_to_total(pattern, v, lane, "[k]"))
        done += c.complete_total(pattern, v, "[k]")
    count = len(pattern.dtypes)
    rows = ["int64_t rows = inner - down < to - begin ? inner - down : to - begin;"]
    if reduced:
        rows.append(f"if (rows > {STRETCH} - filled) rows = {STRETCH} - filled;")
    begin = "char *row{0} = base{0} + at[{0}] + down * down{0};"
    quads = []
    if not c.is_costly(pattern, stage) and not pattern.stored(stage):
        quads = block(f"for (; i + {ROWS} <= rows; i += {ROWS})", *_rows(columns, stage, ROWS))
    body = [
        *lanes,
        *(columns.each(clear) if reduced else []),
        "const int64_t inner = extent[loops - 1], first_row = from / inner;",
        *(f"const int64_t down{k} = operand[{k} * pitch + pitch - 1];" for k in moving),
        f"mg_start(a, {count}, loops - 1, first_row, at, step, index);",
        "int64_t begin = from, down = from - first_row * inner;",
        *(["int64_t filled = 0;"] if reduced else []),
        *block(
            "while (begin < to)",
            *rows,
            *map(begin.format, moving),
            "int64_t i = 0;",
            *quads,
            *block("for (; i < rows; i++)", *_rows(columns, stage, 1)),
            "begin += rows;",
            *block(
                "if ((down += rows) == inner)",
                "down = 0;",
                f"mg_next(a, {count}, loops - 1, at, step, index);",
            ),
            *_flushed(columns, clear, flush),
        ),
        *(columns.each(done) if done else []),
    ]
    return c.in_run(pattern, stage, body)


def _rows(columns: SideBySide, stage: int, rows: int) -> list[str]:
    """Return statements that accumulate and store this many rows, from row `i` on."""
    pattern = columns.pattern
    place = "row{0} + (i + u) * down{0}" if rows > 1 else "row{0} + i * down{0}"
    row = [c.pointer(pattern, k, place.format(k)) for k in pattern.moving(stage)]
    row += columns.shared(pattern.run_at(ROW, stage))
    each = pattern.run_at(ELEMENT, stage)
    taken = columns.taken(each, pattern.goals(stage), stage)
    body = c.compute_element(pattern, stage, each, "k")
    take, put = [], []
    for v in pattern.reduced(stage):
        short, _ = c.accumulators(pattern, pattern.values[v])
        take.append(f"{short} l{v} = lane{v}[k];")
        body.append(c.accumulate(pattern, v, f"l{v}"))
        put.append(f"lane{v}[k] = l{v};")
    if rows == 1:
        return [*row, *columns.each([*taken, *take, *body, *put])]
    # Unrolling leaves only the loop over columns, which is vectorised.
    inside = block(f"for (int u = 0; u < {rows}; u++)", *row, *body)
    return columns.each([*taken, *take, f"#pragma GCC unroll {rows}", *inside, *put])


def _flushed(columns: SideBySide, clear: list[str], flush: list[str]) -> list[str]:
    """Return statements that add the lanes of a stretch of rows to the totals, and clear them."""
    if not flush:
        return []
    return block(
        f"if ((filled += rows) == {STRETCH} || begin == to)",
        "filled = 0;",
        *columns.each([*flush, *clear]),
    )
