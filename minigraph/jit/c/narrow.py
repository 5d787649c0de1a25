"""The text of kernels along narrow rows, which have few vectors; a unit has several rows.

The text of softmax, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        where the operands of 16 rows are
      for (int64_t k = 0; k < beside; k++) {
        float part1[16];                         one vector
        for (; j + 16 <= n; j += 16)
          for (int i = 0; i < 16; i++) part1[i] = max(p0[j + i], part1[i]);
        for (int i = 0; i < 16; i++) part1[i] = max(j + i < n ? p0[j + i] : -INFINITY, part1[i]);
        for (int i = 0; i < 16; i++) lane1[k * 16 + i] = part1[i];
      }
      mg_join(lane1, all1);                      of all rows together
      for (int64_t k = 0; k < beside; k++) { const float v1 = all1[k]; ...; }
      ...
    }

The constant cost of a row is most of its time.  Therefore the lanes of all rows of a unit are
combined together, in pairs, until a vector has one result of each row, and values that depend on
the results are computed in vectors, too.  The remaining elements are a vector with a mask.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import pieces
from minigraph.jit.c.beside import SideBySide, unit_beside
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.loops import NARROW_LANES as LANES
from minigraph.jit.loops import NARROW_ROW
from minigraph.jit.pattern import ELEMENT, KernelPattern

MOST = 64  # elements that are computed side by side, at most: a vector of bytes


def narrow_text(pattern: KernelPattern) -> str:
    """Return the functions of a "row" kernel of narrow rows, called NAME."""
    fixed = [k for k, how in enumerate(pattern.accesses) if how == "fixed"]
    loop = ("#pragma GCC ivdep", "for (int64_t k = 0; k < beside; k++)")
    head = tuple(c.pointer(pattern, k, f"base{k} + k * next{k}") for k in fixed)
    rows = SideBySide(pattern, loop, pattern.columns, "0", "", head)
    place, count = unit_beside(pattern)
    body = c.bases(pattern, "pitch - 1")
    for k in range(len(pattern.dtypes)):
        body.append(f"const int64_t next{k} = operand[{k} * pitch + 1 + units];")
    for v in pattern.rows:
        held = c_type(pattern.values[v].dtype)
        body.append(f"{held} row{v}[{pattern.columns * NARROW_ROW}];")
    body += rows.once(0)
    for stage in range(pattern.stages):
        body += _stage(rows, stage) + rows.once(stage + 1)
    return c.unit_function(pattern, place, body, pieces.until_streamed(pattern)) + c.entry(
        pattern, count
    )


def _join_name(pattern: KernelPattern, v: int) -> str:
    return c.reduction_name(pattern, v, f"mg_join{pattern.columns}")


def join(pattern: KernelPattern, v: int) -> str:
    """Return the C function that combines the lanes of all rows of a unit for reduction `v`."""
    value = pattern.values[v]
    held, _ = c.accumulators(pattern, value)
    body, source, half = [], "lane", LANES // 2
    while half:
        count, result = pattern.columns * half, f"of{half}" if half > 1 else "total"
        body += [f"{held} {result}[{count}];"] if half > 1 else []
        pair = f"const {held} x = {source}[2 * k + 1], y = {source}[2 * k];"
        joined = f"{result}[k] = {c.combine(value, 'x', 'y')};"
        body += block(f"for (int k = 0; k < {count}; k++)", pair, joined)
        source, half = result, half // 2
    head = f"MG_SHARED void {_join_name(pattern, v)}(const {held} *lane, {held} *total)"
    return "\n" + function(head, body)


def _stage(rows: SideBySide, stage: int) -> list[str]:
    pattern = rows.pattern
    reduced, moving, lanes = pattern.reduced(stage), pattern.moving(stage), _lanes(pattern, stage)
    before, begin, end, after = [], [], [], []
    for v in reduced:
        held, _ = c.accumulators(pattern, pattern.values[v])
        none = c.identity(pattern, pattern.values[v])
        before.append(f"{held} lane{v}[{pattern.columns * LANES}], all{v}[{pattern.columns}];")
        begin += [f"{held} part{v}[{lanes}], none{v} = {none};", f"MG_HIDE(none{v});"]
        begin.append(f"for (int i = 0; i < {lanes}; i++) part{v}[i] = none{v};")
        half = lanes
        while (half := half // 2) >= LANES:
            pair = f"const {held} x = part{v}[{half} + i], y = part{v}[i];"
            joined = f"part{v}[i] = {c.combine(pattern.values[v], 'x', 'y')};"
            end += block(f"for (int i = 0; i < {half}; i++)", pair, joined)
        end.append(f"for (int i = 0; i < {LANES}; i++) lane{v}[k * {LANES} + i] = part{v}[i];")
        after.append(f"{_join_name(pattern, v)}(lane{v}, all{v});")
    streams = pieces.streamed(pattern, stage)
    each = pattern.run_at(ELEMENT, stage)
    row = [
        *(c.pointer(pattern, k, f"base{k} + k * next{k}") for k in moving),
        *rows.taken(each, pattern.goals(stage), stage),
        f"const int64_t n = length, begin = k * ((n + {MOST - 1}) / {MOST} * {MOST});",
        *begin,
        *(line for k in streams for line in pieces.piece(pattern, stage, k, "0")),
        "int64_t j = 0;",
        *block(
            f"for (; j + {lanes} <= n; j += {lanes})",
            "#pragma GCC unroll 8",
            "#pragma GCC ivdep",
            *block(f"for (int i = 0; i < {lanes}; i++)", *_elements(pattern, stage, each, streams)),
        ),
        *block(
            "if (j < n)",
            "const int rest = n - j;",
            "#pragma GCC ivdep",
            *block(
                f"for (int i = 0; i < {_masked(pattern, moving, lanes)}; i++)",
                *_elements(pattern, stage, each, streams, "i < rest"),
            ),
        ),
        *end,
        *(pieces.put_piece(pattern, stage, k, "0", "n") for k in streams),
        "(void)begin;",
    ]
    whole = block("for (int64_t k = 0; k < beside; k++)", *row)
    return [*before, *block("", *pieces.whether_to_stream(pattern, stage), *whole, *after)]


def _lanes(pattern: KernelPattern, stage: int) -> int:
    """Return the number of elements that are computed side by side: a vector of the smallest.

    Compilers use the same number of elements in vectors of all dtypes of a loop, so fewer elements
    would leave the vectors of the smallest dtype short.
    """
    least = min((pattern.values[v].dtype.itemsize for v in pattern.run(stage)), default=8)
    return max(MOST // least, LANES)


def _masked(pattern: KernelPattern, moving: list[int], lanes: int) -> str:
    """Return the length of a loop with a mask: all elements of a vector if they are contiguous."""
    if any(pattern.accesses[k] != "unit" for k in moving):
        return "rest"
    size = min((pattern.dtypes[k].itemsize for k in moving), default=8)
    return f"MG_MASKED({size}, {lanes}, rest)"


def _elements(
    pattern: KernelPattern, stage: int, values: list[int], streams: list[int], mask: str = ""
) -> list[str]:
    """Return statements that accumulate and store the elements of a vector where `mask` is true."""
    body = c.compute_element(pattern, stage, values, "j + i", mask, streams)
    for v in pattern.reduced(stage):
        value = pattern.values[v]
        held, _ = c.accumulators(pattern, value)
        new = c.widened(pattern, value)
        if mask:
            body.append(f"const {held} new{v} = {mask} ? {new} : none{v};")
            new = f"new{v}"
        body.append(f"part{v}[i] = {c.combine(value, new, f'part{v}[i]')};")
    return body
