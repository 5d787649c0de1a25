"""The text of kernels that loop over the innermost axis: maps, and reductions along rows.

The text of softmax, exp(x - max(x)) / sum, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      for (; unit < end; unit++) {
      ...                                        where the operands of this row are
      for (...) lane1[k] = max(p0[j + k], lane1[k]);
      const float v1 = ...;                      of all lanes
      for (...) { const float v2 = p0[j + k] - v1; const float v3 = expf(v2); lane4[k] = ... }
      const float v4 = ...;
      for (...) { ...; p1[j] = v3 / v4; }
    }

Floats are accumulated in their dtype in 64 lanes over short stretches.  The lanes are then combined
in double, so that the error does not grow with the length.

If there are fewer units than threads, the loops are split: all threads execute the first run over
the loops and store partial results, then all execute the second, and so on.  A run that needs the
result of an earlier one combines the partial results in order, so the bits are the same for the
same number of threads.

The second run of a short unit prefetches the inputs of the next unit.

An output that does not fit the caches and overwrites no input is streamed past them, which saves
reading its lines first: a run over the loops without a reduction computes it in pieces, in a buffer
that fits the caches.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import pieces
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.kernel import SHARE, STRETCH
from minigraph.jit.pattern import ELEMENT, ROW, UNIT, KernelPattern
from minigraph.ops.reduction import Reduction

LANES = 64  # elements that are accumulated side by side: enough vectors to hide the latency
AHEAD = 128 << 10  # bytes of a unit that is prefetched, at most


def row_text(pattern: KernelPattern) -> str:
    """Return the functions of a "map" or "row" kernel, called NAME."""
    place = [
        "const int64_t inner = extent[loops - 1], first_row = from ? from / inner : 0;",
        f"mg_place(a, {pattern.walked}, unit, place);",
    ]
    cell = f"(unit * splits + {{s}}) * {len(pattern.reductions)} + {{r}}"
    body = c.bases(pattern, "pitch - 1") + _next_unit(pattern)
    for v in pattern.reductions:
        body += c.total_of(pattern, v) + c.clear_total(pattern, v)
    body += _kept_rows(pattern) + _once(pattern, 0)
    for stage in range(pattern.stages):
        body += _stage(pattern, stage) + c.share_results(pattern, stage, cell)
        body += _once(pattern, stage + 1)
    body.append("(void)inner; (void)index; (void)at; (void)to;")
    unit = c.unit_function(pattern, place, body, pieces.until_streamed(pattern))
    return unit + "\n" + c.entry(pattern, "units")


def fold(pattern: KernelPattern, v: int) -> str:
    """Return the C function that combines the lanes of reduction `v` of a "row" kernel.

    It combines the upper half with the lower one, repeatedly; the last sixteen lanes of a sum are
    widened.  Without widening, the last four lanes are combined in pairs, twice, each with a result
    for every lane: compilers would compile a choice between two scalars to a branch.
    """
    value = pattern.values[v]
    short, long = c.accumulators(pattern, value)
    assert isinstance(value.op, Reduction)
    half, body, last = LANES // 2, [], "lane"
    while value.op.adds and short != long and half > 8:
        joined = c.combine(value, f"{last}[{half} + k]", f"{last}[k]")
        body.append(f"{short} of{half}[{half}];")
        body.append(f"for (int k = 0; k < {half}; k++) of{half}[k] = {joined};")
        last, half = f"of{half}", half // 2
    first = c.combine(value, f"({long}){last}[{half} + k]", f"({long}){last}[k]")
    body.append(f"{long} part[{half}];")
    body.append(f"for (int k = 0; k < {half}; k++) part[k] = {first};")
    chosen, last = short == long, "part"
    while half > (4 if chosen else 1):
        half //= 2
        joined = c.combine(value, f"part[{half} + k]", "part[k]")
        body.append(f"for (int k = 0; k < {half}; k++) part[k] = {joined};")
    for apart in (2, 1) if chosen else ():
        others = ", ".join(f"{last}[{k ^ apart}]" for k in range(4))  # a permutation of a register
        joined = c.combine(value, f"other{apart}[k]", f"{last}[k]")
        last = f"by{apart}"
        body.append(f"{long} other{apart}[4] = {{{others}}}, {last}[4];")
        body.append(f"for (int k = 0; k < 4; k++) {last}[k] = {joined};")
    body.append(f"return {last}[0];")
    return "\n" + function(
        f"MG_FOLD {long} {c.reduction_name(pattern, v, 'mg_fold')}(const {short} *lane)", body
    )


def _kept_rows(pattern: KernelPattern) -> list[str]:
    made, before = [], 0
    for v in pattern.rows:
        held = c_type(pattern.values[v].dtype)
        made.append(f"{held} *restrict const row{v} = ({held} *)(rows + {before} * room);")
        before += pattern.values[v].dtype.itemsize
    if not made:
        return []
    mine = f"(a[0] > 1 ? omp_get_thread_num() : 0) * {before}"
    room = f"(length + {SHARE - 1}) / {SHARE} * {SHARE}"
    return [f"const int64_t room = {room};", f"char *const rows = partial + {mine} * room;", *made]


def _once(pattern: KernelPattern, stage: int) -> list[str]:
    """Return statements that compute the values of level UNIT of a stage, and their outputs."""
    made = []
    for v, value in enumerate(pattern.values):
        if value.level == UNIT and value.stage == stage:
            total = f"const {c_type(value.dtype)} v{v} = total{v};"
            made.append(total if value.reduces else c.declare(pattern, v, "0"))
    for k, store in enumerate(pattern.stores, pattern.inputs):
        if store.per_unit and pattern.values[store.value].stage == stage:
            # Where splits share a unit, an input that this overwrites may still be read.
            when = f"splits == 1 || run == {pattern.stages}"
            made.append(f"if ({when}) *p{k} = v{store.value};")
    return made


def _fetched(pattern: KernelPattern) -> list[int]:
    """Return the inputs that a unit's second run prefetches for the next unit.

    A unit's first run waits for memory; later runs read the caches, and memory would be idle.  With
    several inputs and cheap ops the processor itself prefetches enough.
    """
    inputs = [k for k in pattern.loaded(pattern.run(0)) if pattern.accesses[k] == "unit"]
    many = len(inputs) > 1 and not c.is_costly(pattern, 1)
    return [] if many or pattern.stages == 1 else inputs


def _next_unit(pattern: KernelPattern) -> list[str]:
    """Return statements that declare `fetch`, and these inputs' addresses in the next unit."""
    inputs = _fetched(pattern)
    if not inputs:
        return []
    size = sum(pattern.dtypes[k].itemsize for k in inputs)
    return [
        f"const int fetch = splits == 1 && {size} * length <= {AHEAD};",
        # At the end of an axis, and after the last unit, the address is wrong but harmless.
        *(f"const char *next{k} = base{k} + operand[{k} * pitch + 1 + units];" for k in inputs),
    ]


def _fetch(pattern: KernelPattern, stage: int, index: str, count: str) -> list[str]:
    """Return statements that prefetch `count` elements of the next unit, from `index` on."""
    made = []
    for k in _fetched(pattern) if stage == 1 else ():
        size = pattern.dtypes[k].itemsize
        begin = f"next{k} + at[{k}] + (col + {index}) * {size}"
        made.append(f"if (fetch) mg_fetch({begin}, ({count}) * {size});")
    return made


def _stage(pattern: KernelPattern, stage: int) -> list[str]:
    reduced, each = pattern.reduced(stage), pattern.run_at(ELEMENT, stage)
    row = c.row_operands(pattern, stage)
    row += [c.declare(pattern, v, "0") for v in pattern.run_at(ROW, stage)]
    lanes, combined, clear, done = [], [], [], []
    for v in reduced:
        short, long = c.accumulators(pattern, pattern.values[v])
        none = c.identity(pattern, pattern.values[v])
        lanes.append(f"{short} lane{v}[{LANES}], none{v} = {none};")
        lanes.append(f"MG_HIDE(none{v});")
        clear.append(f"for (int64_t k = 0; k < {LANES}; k++) lane{v}[k] = none{v};")
        combined.append(
            f"const {long} all{v} = {c.reduction_name(pattern, v, 'mg_fold')}(lane{v});"
        )
        combined.append(c.add_to_total(pattern, v, f"all{v}"))
        done += c.complete_total(pattern, v)
    streams = pieces.streamed(pattern, stage)
    if reduced:
        lanes += [*clear, "int64_t filled = 0;"]
        row += _combined(pattern, stage, each, [*combined, *clear])
    else:
        row += _mapped(pattern, stage, each, streams)
    body = [
        *pieces.whether_to_stream(pattern, stage),
        *lanes,
        *c.over_rows(pattern, row),
        *combined,
        *done,
    ]
    return c.in_run(pattern, stage, body)


def _combined(pattern: KernelPattern, stage: int, values: list[int], after: list[str]) -> list[str]:
    """Return statements that accumulate the elements of a row, and store outputs.

    after  statements at the end of a stretch
    """
    body = c.compute_element(pattern, stage, values, "j + k")
    body += [c.accumulate(pattern, v, f"lane{v}[k]") for v in pattern.reduced(stage)]
    # An unrolled loop keeps lanes in registers, which costly ops need for themselves.
    unrolled = [] if c.is_costly(pattern, stage) else ["#pragma GCC unroll 16"]
    return block(
        f"for (int64_t first = 0; first < n; first += {STRETCH})",
        f"const int64_t last = n - first > {STRETCH} ? first + {STRETCH} : n;",
        "int64_t j = first;",
        *block(
            f"for (; j + {LANES} <= last; j += {LANES})",
            *_fetch(pattern, stage, "j", str(LANES)),
            *unrolled,
            "#pragma GCC ivdep",
            *block(f"for (int64_t k = 0; k < {LANES}; k++)", *body),
        ),
        "#pragma GCC ivdep",
        *block("for (int64_t k = 0; k < last - j; k++)", *body),
        # The elements of all short rows may be accumulated in the same few lanes.
        f"filled += (last - first + {LANES - 1}) / {LANES};",
        *block(f"if (filled >= {STRETCH // LANES})", "filled = 0;", *after),
    )


def _mapped(pattern: KernelPattern, stage: int, values: list[int], streams: list[int]) -> list[str]:
    body = c.compute_element(pattern, stage, values, "j", streams=streams)
    if not streams:
        return [
            *_fetch(pattern, stage, "0", "n"),
            "#pragma GCC ivdep",
            *block("for (int64_t j = 0; j < n; j++)", *body),
        ]
    # The first piece ends at the end of a cache line, so that the others are whole lines.
    most = pieces.piece_length(streams)
    end = f"first + {most} - MG_PAST(p{streams[0]} + first)"
    some = "" if pieces.rounded(pattern, stage) else "stream && "
    return block(
        "for (int64_t first = 0, last; first < n; first = last)",
        *(line for k in streams for line in pieces.piece(pattern, stage, k, "first")),
        f"last = {some}n - first > {most} ? {end} : n;",
        *_fetch(pattern, stage, "first", "last - first"),
        "#pragma GCC ivdep",
        *block("for (int64_t j = first; j < last; j++)", *body),
        *(pieces.put_piece(pattern, stage, k, "first", "last - first") for k in streams),
    )
