"""The C text of reductions along narrow rows of few vectors; a unit has several rows.

The text of softmax, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        offsets of the operands in 16 rows
      for (int64_t k = 0; k < unit_width; k++) {
        float acc1[16];                          one vector
        for (; j + 16 <= n; j += 16)
          for (int i = 0; i < 16; i++) acc1[i] = max(p0[j + i], acc1[i]);
        for (int i = 0; i < 16; i++) acc1[i] = max(j + i < n ? p0[j + i] : -INFINITY, acc1[i]);
        for (int i = 0; i < 16; i++) lane1[k * 16 + i] = acc1[i];
      }
      mg_fold_rows(lane1, wide1);                all rows at once
      for (int64_t k = 0; k < unit_width; k++) { const float v1 = wide1[k]; ...; }
      ...
    }

Most of the time of a row is its constant cost.  Therefore the lanes of all rows of a unit are
folded at once, by pairs of neighbours, until a vector has one result of each row, and values that
depend on the results are computed in vectors too.  The remainder of a row is one vector with a
mask.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import buffers
from minigraph.jit.c.column_loop import ColumnLoop, blocks_of_columns
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.loops import MAX_NARROW_ROW
from minigraph.jit.loops import NARROW_LANES as LANES
from minigraph.jit.pattern import ELEMENT, KernelPattern

MAX_LANES = 64  # a vector of bytes


def narrow_text(pattern: KernelPattern) -> str:
    """Return the functions of a "row" kernel of narrow rows, called NAME."""
    fixed = [k for k, access in enumerate(pattern.accesses) if access == "fixed"]
    loop = ("#pragma GCC ivdep", "for (int64_t k = 0; k < unit_width; k++)")
    head = tuple(c.pointer(pattern, k, f"base{k} + k * unit_stride{k}") for k in fixed)
    rows = ColumnLoop(pattern, "", loop, pattern.columns, head=head)
    locate, count = blocks_of_columns(pattern)
    before = c.bases(pattern, "record - 1")
    for k in range(len(pattern.dtypes)):
        before.append(f"const int64_t unit_stride{k} = operand[{k} * record + 1 + unit_axes];")
    for v in pattern.rows:
        ctype = c_type(pattern.values[v].dtype)
        before.append(f"{ctype} row{v}[{pattern.columns * MAX_NARROW_ROW}];")
    return rows.text(locate, count, before, _stage, buffers.fence(pattern))


def _fold_name(pattern: KernelPattern, v: int) -> str:
    return c.reduction_name(pattern, v, f"mg_fold_rows{pattern.columns}")


def fold_rows(pattern: KernelPattern, v: int) -> str:
    """Return the C function that folds the lanes of each row of a unit for reduction `v`."""
    value = pattern.values[v]
    ctype, _ = c.accumulators(pattern, value)
    body, source, half = [], "lane", _folded_lanes(ctype) // 2
    while half:
        count, result = pattern.columns * half, f"folded{half}" if half > 1 else "total"
        body += [f"{ctype} {result}[{count}];"] if half > 1 else []
        pair = f"const {ctype} x = {source}[2 * k + 1], y = {source}[2 * k];"
        folded = f"{result}[k] = {c.combine(value, 'x', 'y')};"
        body += block(f"for (int k = 0; k < {count}; k++)", pair, folded)
        source, half = result, half // 2
    head = f"MG_NOINLINE void {_fold_name(pattern, v)}(const {ctype} *lane, {ctype} *total)"
    return "\n" + function(head, body)


def _stage(rows: ColumnLoop, stage: int) -> list[str]:
    """Return statements for a run over the rows of a unit."""
    pattern = rows.pattern
    reduced, moving, lanes = pattern.reduced(stage), pattern.moving(stage), _lanes(pattern, stage)
    arrays, begin, end, fold_all = [], [], [], []
    for v in reduced:
        ctype, _ = c.accumulators(pattern, pattern.values[v])
        identity, count = c.identity(pattern, pattern.values[v]), _folded_lanes(ctype)
        arrays.append(f"{ctype} lane{v}[{pattern.columns * count}], wide{v}[{pattern.columns}];")
        begin += [f"{ctype} acc{v}[{lanes}], identity{v} = {identity};"]
        begin.append(f"MG_OPAQUE(identity{v});")
        begin.append(f"for (int i = 0; i < {lanes}; i++) acc{v}[i] = identity{v};")
        half = lanes
        while (half := half // 2) >= count:
            pair = f"const {ctype} x = acc{v}[{half} + i], y = acc{v}[i];"
            folded = f"acc{v}[i] = {c.combine(pattern.values[v], 'x', 'y')};"
            end += block(f"for (int i = 0; i < {half}; i++)", pair, folded)
        end.append(f"for (int i = 0; i < {count}; i++) lane{v}[k * {count} + i] = acc{v}[i];")
        fold_all.append(f"{_fold_name(pattern, v)}(lane{v}, wide{v});")
    buffered = buffers.buffered(pattern, stage)
    elements = pattern.run_at(ELEMENT, stage)
    padded = f"(n + {MAX_LANES - 1}) / {MAX_LANES} * {MAX_LANES}"
    row = [
        *(c.pointer(pattern, k, f"base{k} + k * unit_stride{k}") for k in moving),
        *rows.load_wide(elements, pattern.roots(stage), stage),
        f"const int64_t n = length, begin = k * ({padded});",
        *begin,
        *(line for k in buffered for line in buffers.declare_buffer(pattern, stage, k, "0")),
        "int64_t j = 0;",
        *block(
            f"for (; j + {lanes} <= n; j += {lanes})",
            "#pragma GCC unroll 8",
            "#pragma GCC ivdep",
            *block(
                f"for (int i = 0; i < {lanes}; i++)", *_elements(pattern, stage, elements, buffered)
            ),
        ),
        *block(
            "if (j < n)",
            "const int rest = n - j;",
            "#pragma GCC ivdep",
            *block(
                f"for (int i = 0; i < {_remainder_length(pattern, moving, lanes)}; i++)",
                *_elements(pattern, stage, elements, buffered, "i < rest"),
            ),
        ),
        *end,
        *(buffers.flush_buffer(pattern, stage, k, "0", "n") for k in buffered),
        "(void)begin;",
    ]
    loop = block("for (int64_t k = 0; k < unit_width; k++)", *row)
    return [*arrays, *block("", *buffers.declare_stream(pattern, stage), *loop, *fold_all)]


def _lanes(pattern: KernelPattern, stage: int) -> int:
    """Return the number of lanes: a vector of the smallest dtype.

    In the vectors of all dtypes of a loop, compilers use the same number of elements, so with fewer
    lanes the vectors of the smallest dtype would not be full.
    """
    min_bytes = min((pattern.values[v].dtype.itemsize for v in pattern.run(stage)), default=8)
    return max(MAX_LANES // min_bytes, LANES)


def _folded_lanes(ctype: str) -> int:
    """Return how many lanes of a row are folded together with other rows: at most a vector."""
    return LANES // 2 if "64" in ctype or ctype == "double" else LANES


def _remainder_length(pattern: KernelPattern, moving: list[int], lanes: int) -> str:
    """Return the length of a remainder loop: all lanes if the elements are contiguous."""
    if any(pattern.accesses[k] != "unit" for k in moving):
        return "rest"
    size = min((pattern.dtypes[k].itemsize for k in moving), default=8)
    return f"MG_REMAINDER_LENGTH({size}, {lanes}, rest)"


def _elements(
    pattern: KernelPattern, stage: int, values: list[int], buffered: list[int], mask: str = ""
) -> list[str]:
    """Return statements that accumulate and store the elements of a vector where `mask` is true."""
    body = c.compute_element(pattern, stage, values, "j + i", mask, buffered)
    for v in pattern.reduced(stage):
        value = pattern.values[v]
        ctype, _ = c.accumulators(pattern, value)
        operand = c.widened(pattern, value)
        if mask:
            body.append(f"const {ctype} new{v} = {mask} ? {operand} : identity{v};")
            operand = f"new{v}"
        body.append(f"acc{v}[i] = {c.combine(value, operand, f'acc{v}[i]')};")
    return body
