"""The text of kernels whose innermost axis is a short block of channels, the lanes.

The text of a mean over all axes but channels, less which x is, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      ...                                        where the operands of a block of channels are
      for (; j + 4 <= n; j += 4)
        for (int u = 0; u < 4; u++)
          for (int k = 0; k < 16; k++) lane1[u * 16 + k] += p0[(j + u) * 16 + k];
      ...
      for (int k = 0; k < 16; k++) { const float v1 = total1[k]; all3[k] = v1 / v2; }
      for (int64_t j = 0; j < n; j++)
        for (int k = 0; k < 16; k++) { const float v3 = all3[k]; p1[j * 16 + k] = v0 - v3; }
    }

A pixel is one element of all lanes.  Loops over lanes have a constant length, so each is one vector
or two.  Floats are accumulated in their dtype over short stretches of pixels, in a few independent
vectors, and then added to totals in double, so that the error does not grow with the length.  If
there are few units they are split, and large outputs are streamed, as in `rows`.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import pieces
from minigraph.jit.c.beside import SideBySide
from minigraph.jit.emitter import block, indented
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern

PIXELS = 4  # pixels that are accumulated side by side
STRETCH = 64  # pixels, one after the other, that are accumulated in the input's dtype


def lane_text(pattern: KernelPattern) -> str:
    """Return the functions of a "lane" kernel, called NAME."""
    loop = ("#pragma omp simd", f"for (int k = 0; k < {pattern.lanes}; k++)")
    cell = f"((unit * splits + {{s}}) * {len(pattern.reductions)} + {{r}}) * {pattern.lanes} + k"
    lanes = SideBySide(pattern, loop, pattern.lanes, "0", cell)
    place = [
        "const int64_t inner = extent[loops - 1], first_row = from ? from / inner : 0;",
        f"mg_place(a, {pattern.walked}, unit, place);",
    ]
    body = c.bases(pattern, "pitch - 1") + lanes.totals() + lanes.once(0)
    for stage in range(pattern.stages):
        body += _run_over_pixels(lanes, stage)
        body += lanes.splits(stage) + lanes.once(stage + 1)
    unit = c.unit_function(pattern, place, body, pieces.until_streamed(pattern))
    return unit + "\n" + c.entry(pattern, "units")


def _run_over_pixels(lanes: SideBySide, stage: int) -> list[str]:
    pattern = lanes.pattern
    reduced, each = pattern.reduced(stage), pattern.run_at(ELEMENT, stage)
    row = c.row_operands(pattern, stage) + lanes.shared(pattern.run_at(ROW, stage))
    streams = pieces.streamed(pattern, stage)
    taken = lanes.taken(each, pattern.goals(stage), stage)
    if reduced:
        before, after, done = _accumulated(lanes, reduced)
        limit = [f"if (n > {STRETCH * PIXELS}) n = {STRETCH * PIXELS};"]
        row += _combined(lanes, stage, taken, each)
    else:
        before, after, done = [], [], []
        pixels = pieces.piece_length(streams) // pattern.lanes
        some = "" if pieces.rounded(pattern, stage) else "stream && "
        limit = [f"if ({some}n > {pixels}) n = {pixels};"] if streams else []
        row += _mapped(lanes, stage, taken, each, streams)
    body = [
        *pieces.whether_to_stream(pattern, stage),
        *before,
        *c.over_rows(pattern, [*limit, *row], after),
        *done,
    ]
    return c.in_run(pattern, stage, body)


def _accumulated(lanes: SideBySide, reduced: list[int]) -> tuple[list[str], list[str], list[str]]:
    """Return statements that declare accumulators, that add them to totals, and that end a run.

    The remaining pixels of a row are accumulated in the first of the accumulators side by side.
    """
    pattern = lanes.pattern
    made, clear, fold, done = [], [], [], []
    for v in reduced:
        value, lane = pattern.values[v], f"lane{v}[u * {pattern.lanes} + k]"
        short, _ = c.accumulators(pattern, value)
        made.append(f"{short} lane{v}[{PIXELS * pattern.lanes}];")
        clear.append(f"{lane} = {c.identity(pattern, value)};")
        fold.append(c.add_to_total(pattern, v, lane, "[k]"))
        done += c.complete_total(pattern, v, "[k]")
    each = f"for (int u = 0; u < {PIXELS}; u++)"
    empty = [each, *indented(lanes.each(fold + clear))]
    count = f"filled += (n + {PIXELS - 1}) / {PIXELS};"
    return (
        [*made, each, *indented(lanes.each(clear)), "int64_t filled = 0;"],
        [count, *block(f"if (filled >= {STRETCH} || begin == to)", "filled = 0;", *empty)],
        lanes.each(done) if done else [],
    )


def _combined(lanes: SideBySide, stage: int, taken: list[str], each: list[int]) -> list[str]:
    """Return statements that accumulate the pixels of a row, and store outputs."""
    pattern = lanes.pattern
    body = [*taken, *c.compute_element(pattern, stage, each, "(j + u)")]
    for v in pattern.reduced(stage):
        body.append(c.accumulate(pattern, v, f"lane{v}[u * {pattern.lanes} + k]"))
    inside = indented(lanes.each(body))
    return [
        "int64_t j = 0;",
        f"for (; j + {PIXELS} <= n; j += {PIXELS})",
        *indented([f"for (int u = 0; u < {PIXELS}; u++)", *inside]),
        "for (int u = 0; u < n - j; u++)",
        *inside,
    ]


def _mapped(
    lanes: SideBySide, stage: int, taken: list[str], each: list[int], streams: list[int]
) -> list[str]:
    pattern = lanes.pattern
    place = f"j * {lanes.most} + k"
    body = [*taken, *c.compute_element(pattern, stage, each, "j", streams=streams, place=place)]
    return [
        *(line for k in streams for line in pieces.piece(pattern, stage, k, "0")),
        "for (int64_t j = 0; j < n; j++)",
        *indented(lanes.each(body)),
        *(pieces.put_piece(pattern, stage, k, "0", f"n * {lanes.most}") for k in streams),
    ]
