"""The C text of kernels whose innermost axis is kept: reductions down columns.

The text of a sum over the first axis, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        offsets of the operands in a block of columns
      for (; i + 4 <= rows; i += 4)
        for (int64_t k = 0; k < unit_width; k++) {
          float acc1 = lane1[k];
          for (int u = 0; u < 4; u++) acc1 = p0[k] + acc1;     p0 points to row i + u
          lane1[k] = acc1;
        }
      for (; i < rows; i++) ...
      for (int64_t k = 0; k < unit_width; k++) p1[k] = total1[k];
    }

Short rows are reduced like columns: a vector has one element of each of many rows.

Lanes accumulate in the dtype of the elements.  Every few rows they are added to totals, which are
double for floats.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c.column_loop import ColumnLoop, blocks_of_columns
from minigraph.jit.emitter import block
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern

STRETCH = 64  # rows that are accumulated in the input's dtype
UNROLLED = 4  # rows of one iteration, which loads and stores each lane once


def column_text(pattern: KernelPattern) -> str:
    """Return the functions of a "column" kernel, called NAME."""
    size = pattern.columns
    loop = ("#pragma GCC ivdep", "for (int64_t k = 0; k < unit_width; k++)")
    cell = f"((column + k) * splits + {{s}}) * {len(pattern.reductions)} + {{r}}"
    columns = ColumnLoop(pattern, cell, loop, size, "k")
    locate, count = blocks_of_columns(pattern)
    stores = [k for k, store in enumerate(pattern.stores, pattern.inputs) if store.per_unit]
    operands = [*pattern.loaded(pattern.unit_values), *stores]
    moving = [k for k in operands if pattern.accesses[k] != "fixed"]
    pointers = [c.pointer(pattern, k, f"base{k}") for k in moving]
    before = [*c.bases(pattern, "1 + unit_axes"), *pointers, *columns.totals()]
    return columns.text(locate, count, before, _run_down)


def _run_down(columns: ColumnLoop, stage: int) -> list[str]:
    """Return statements for a run of a split over the rows of a block of columns."""
    pattern, moving = columns.pattern, columns.pattern.moving(stage)
    lanes, clear, flush, complete = columns.accumulators(stage, "k", pattern.columns)
    begin = "char *row{0} = base{0} + row_offset[{0}] + col * inner_stride{0};"
    rows = [*map(begin.format, moving), "int64_t i = 0;"]
    if not c.is_costly(pattern, stage) and not pattern.stored(stage):
        head = f"for (; i + {UNROLLED} <= n; i += {UNROLLED})"
        rows += block(head, *_rows(columns, stage, UNROLLED))
    rows += block("for (; i < n; i++)", *_rows(columns, stage, 1))
    after: list[str] = []
    if flush:
        lanes.append("int64_t accumulated = 0;")
        rows.insert(0, f"if (n > {STRETCH} - accumulated) n = {STRETCH} - accumulated;")
        after = block(
            f"if ((accumulated += n) == {STRETCH} || begin == split_end)",
            "accumulated = 0;",
            *columns.wrap([*flush, *clear]),
        )
    body = [
        *lanes,
        *columns.wrap(clear),
        "const int64_t inner = extent[loop_axes - 1], first_row = split_begin / inner;",
        *(f"const int64_t inner_stride{k} = operand[{k} * record + record - 1];" for k in moving),
        *c.over_rows(pattern, rows, after),
        *columns.wrap(complete),
    ]
    return c.in_run(pattern, stage, body)


def _rows(columns: ColumnLoop, stage: int, rows: int) -> list[str]:
    """Return statements that accumulate and store this many rows, from row `i` on."""
    pattern = columns.pattern
    base = "row{0} + (i + u) * inner_stride{0}" if rows > 1 else "row{0} + i * inner_stride{0}"
    row = [c.pointer(pattern, k, base.format(k)) for k in pattern.moving(stage)]
    row += columns.compute(pattern.run_at(ROW, stage))
    elements = pattern.run_at(ELEMENT, stage)
    loads = columns.load_wide(elements, pattern.roots(stage), stage)
    body, stores = c.compute_element(pattern, stage, elements, "k"), []
    for v in pattern.reduced(stage):
        short_type, _ = c.accumulators(pattern, pattern.values[v])
        loads.append(f"{short_type} acc{v} = lane{v}[k];")
        body.append(c.accumulate(pattern, v, f"acc{v}"))
        stores.append(f"lane{v}[k] = acc{v};")
    if rows == 1:
        return [*row, *columns.wrap([*loads, *body, *stores])]
    # Unrolling leaves only the loop over columns, which is vectorised.
    unrolled = block(f"for (int u = 0; u < {rows}; u++)", *row, *body)
    return columns.wrap([*loads, f"#pragma GCC unroll {rows}", *unrolled, *stores])
