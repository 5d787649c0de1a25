"""The C text of kernels whose innermost axis is a short block of channels, the lanes.

The text of x - mean(x), a mean over all axes but channels, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        offsets of the operands in a block of channels
      for (; j + 4 <= n; j += 4)
        for (int u = 0; u < 4; u++)
          for (int k = 0; k < 16; k++) lane1[u * 16 + k] += p0[(j + u) * 16 + k];
      ...
      for (int k = 0; k < 16; k++) { const float v1 = total1[k]; wide3[k] = v1 / v2; }
      for (int64_t j = 0; j < n; j++)
        for (int k = 0; k < 16; k++) { const float v3 = wide3[k]; p1[j * 16 + k] = v0 - v3; }
    }

A pixel is one element of all lanes.  A loop over lanes has a constant length, of one vector or two.
Floats are accumulated in their dtype over short stretches of pixels, in a few independent vectors,
and then added to totals in double, so that the error does not grow with the length.  As in `rows`,
units are split if there are few, and large outputs are written with streaming stores.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import buffers
from minigraph.jit.c.column_loop import ColumnLoop, whole_units
from minigraph.jit.emitter import block, indented
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern

PIXELS = 4  # independent accumulators of a lane
STRETCH = 64  # pixels that one accumulator adds in the input's dtype


def lane_text(pattern: KernelPattern) -> str:
    """Return the functions of a "lane" kernel, called NAME."""
    loop = ("#pragma omp simd", f"for (int k = 0; k < {pattern.lanes}; k++)")
    cell = f"((unit * splits + {{s}}) * {len(pattern.reductions)} + {{r}}) * {pattern.lanes} + k"
    lanes = ColumnLoop(pattern, cell, loop, pattern.lanes)
    before = c.bases(pattern, "record - 1") + lanes.totals()
    after = buffers.fence(pattern)
    return lanes.text(whole_units(pattern), "units", before, _run_over_pixels, after)


def _run_over_pixels(lanes: ColumnLoop, stage: int) -> list[str]:
    """Return statements for a run of a split over its pixels."""
    pattern = lanes.pattern
    reduced, elements = pattern.reduced(stage), pattern.run_at(ELEMENT, stage)
    row = c.row_operands(pattern, stage) + lanes.compute(pattern.run_at(ROW, stage))
    buffered = buffers.buffered(pattern, stage)
    loads = lanes.load_wide(elements, pattern.roots(stage), stage)
    if reduced:
        declarations, flush, complete = _accumulators(lanes, stage)
        limit = [f"if (n > {STRETCH * PIXELS}) n = {STRETCH * PIXELS};"]
        row += _reduce(lanes, stage, loads, elements)
    else:
        declarations, flush, complete = [], [], []
        pixels = buffers.buffer_length(buffered) // pattern.lanes
        optional = "" if buffers.rounded(pattern, stage) else "stream && "
        limit = [f"if ({optional}n > {pixels}) n = {pixels};"] if buffered else []
        row += _map(lanes, stage, loads, elements, buffered)
    body = [
        *buffers.declare_stream(pattern, stage),
        *declarations,
        *c.over_rows(pattern, [*limit, *row], flush),
        *complete,
    ]
    return c.in_run(pattern, stage, body)


def _accumulators(lanes: ColumnLoop, stage: int) -> tuple[list[str], list[str], list[str]]:
    """Return three lists of statements: to declare accumulators, flush them, and end a run."""
    count, index = lanes.pattern.lanes, f"u * {lanes.pattern.lanes} + k"
    declarations, clear, flush, complete = lanes.accumulators(stage, index, PIXELS * count)
    loop = f"for (int u = 0; u < {PIXELS}; u++)"
    flush_all = [loop, *indented(lanes.wrap(flush + clear))]
    advance = f"accumulated += (n + {PIXELS - 1}) / {PIXELS};"
    condition = f"if (accumulated >= {STRETCH} || begin == split_end)"
    return (
        [*declarations, loop, *indented(lanes.wrap(clear)), "int64_t accumulated = 0;"],
        [advance, *block(condition, "accumulated = 0;", *flush_all)],
        lanes.wrap(complete),
    )


def _reduce(lanes: ColumnLoop, stage: int, loads: list[str], elements: list[int]) -> list[str]:
    """Return statements that accumulate the pixels of a row, and store outputs.

    The remaining pixels of a row go to the first accumulators.
    """
    pattern = lanes.pattern
    body = [*loads, *c.compute_element(pattern, stage, elements, "(j + u)")]
    for v in pattern.reduced(stage):
        body.append(c.accumulate(pattern, v, f"lane{v}[u * {pattern.lanes} + k]"))
    pixel = indented(lanes.wrap(body))
    return [
        "int64_t j = 0;",
        f"for (; j + {PIXELS} <= n; j += {PIXELS})",
        *indented([f"for (int u = 0; u < {PIXELS}; u++)", *pixel]),
        "for (int u = 0; u < n - j; u++)",
        *pixel,
    ]


def _map(
    lanes: ColumnLoop, stage: int, loads: list[str], elements: list[int], buffered: list[int]
) -> list[str]:
    """Return statements that compute and store the pixels of a row."""
    pattern = lanes.pattern
    index = f"j * {pattern.lanes} + k"
    body = c.compute_element(pattern, stage, elements, "j", buffered=buffered, buffer_index=index)
    return [
        *(line for k in buffered for line in buffers.declare_buffer(pattern, stage, k, "0")),
        "for (int64_t j = 0; j < n; j++)",
        *indented(lanes.wrap([*loads, *body])),
        *(buffers.flush_buffer(pattern, stage, k, "0", f"n * {pattern.lanes}") for k in buffered),
    ]
