"""The C text of kernels whose inner loop runs along the innermost axis: maps and row reductions.

The text of softmax, exp(x - max(x)) / sum, in outline:

    static void NAME_units(const int64_t *a, char **slots, int64_t unit, int64_t end, ...) {
      for (; unit < end; unit++) {
      ...                                        offsets of the operands in this row
      for (...) lane1[k] = max(p0[j + k], lane1[k]);
      const float v1 = mg_fold(lane1);           maximum of all lanes
      for (...) { const float v2 = p0[j + k] - v1; const float v3 = expf(v2); lane4[k] = ... }
      const float v4 = ...;
      for (...) { ...; p1[j] = v3 / v4; }
    }

Floats are accumulated in their dtype in 64 lanes over short stretches.  The lanes are then combined
in double, so that the error does not grow with the length.

If there are fewer units than threads, the loops are split: all threads execute the first run over
the loops and store partial results, then all execute the second run, and so on.  A run that needs
the result of an earlier run combines the partial results in order, so the same number of threads
always gives the same bits.

The second run of a short unit prefetches the inputs of the next unit.

An output that does not fit the caches and overwrites no input is written with streaming stores,
which do not read its cache lines first: a run without a reduction writes the output to a small
buffer, and copies the buffer.
"""

from __future__ import annotations

from minigraph.jit.c import body as c
from minigraph.jit.c import buffers
from minigraph.jit.c.column_loop import ColumnLoop, whole_units
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.kernel import SPLIT_MULTIPLE, STRETCH
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern
from minigraph.ops.reduction import Reduction

LANES = 64  # accumulators: enough vectors to hide the latency of an addition
PREFETCHED = 128 << 10  # bytes of a unit that is prefetched, at most


def row_text(pattern: KernelPattern) -> str:
    """Return the functions of a "map" or "row" kernel, called NAME."""
    unit = ColumnLoop(pattern, f"(unit * splits + {{s}}) * {len(pattern.reductions)} + {{r}}")
    before = [*c.bases(pattern, "record - 1"), *_next_unit(pattern), *unit.totals()]
    before += [*_kept_rows(pattern), "(void)inner; (void)index; (void)row_offset; (void)split_end;"]
    return unit.text(whole_units(pattern), "units", before, _stage, buffers.fence(pattern))


def fold(pattern: KernelPattern, v: int) -> str:
    """Return the C function that folds the lanes of reduction `v` of a "row" kernel to one value.

    The function combines the upper half with the lower half, repeatedly.  It widens the last
    sixteen lanes of a sum of floats to double.  Without widening, as for a maximum, it combines the
    last four lanes by two shuffles: compilers would turn a choice of two scalars into a branch.
    """
    value = pattern.values[v]
    short_type, total_type = c.accumulators(pattern, value)
    assert isinstance(value.op, Reduction)
    half, body, source = LANES // 2, [], "lane"
    while value.op.adds and short_type != total_type and half > 8:
        folded = c.combine(value, f"{source}[{half} + k]", f"{source}[k]")
        body.append(f"{short_type} folded{half}[{half}];")
        body.append(f"for (int k = 0; k < {half}; k++) folded{half}[k] = {folded};")
        source, half = f"folded{half}", half // 2
    widened = c.combine(value, f"({total_type}){source}[{half} + k]", f"({total_type}){source}[k]")
    body.append(f"{total_type} part[{half}];")
    body.append(f"for (int k = 0; k < {half}; k++) part[k] = {widened};")
    by_shuffles, source = short_type == total_type, "part"
    while half > (4 if by_shuffles else 1):
        half //= 2
        folded = c.combine(value, f"part[{half} + k]", "part[k]")
        body.append(f"for (int k = 0; k < {half}; k++) part[k] = {folded};")
    for distance in (2, 1) if by_shuffles else ():
        shuffled = ", ".join(f"{source}[{k ^ distance}]" for k in range(4))
        folded = c.combine(value, f"shuffled{distance}[k]", f"{source}[k]")
        source = f"folded{distance}"
        body.append(f"{total_type} shuffled{distance}[4] = {{{shuffled}}}, {source}[4];")
        body.append(f"for (int k = 0; k < 4; k++) {source}[k] = {folded};")
    body.append(f"return {source}[0];")
    name = c.reduction_name(pattern, v, "mg_fold")
    return "\n" + function(f"MG_FOLD {total_type} {name}(const {short_type} *lane)", body)


def _kept_rows(pattern: KernelPattern) -> list[str]:
    """Return declarations of the rows in the thread's scratch memory that hold kept values."""
    rows, size = [], 0  # bytes of one element of all rows before
    for v in pattern.rows:
        ctype = c_type(pattern.values[v].dtype)
        rows.append(f"{ctype} *restrict const row{v} = ({ctype} *)(rows + {size} * row_length);")
        size += pattern.values[v].dtype.itemsize
    if not rows:
        return []
    length = f"(length + {SPLIT_MULTIPLE - 1}) / {SPLIT_MULTIPLE} * {SPLIT_MULTIPLE}"
    thread = "(a[0] > 1 ? omp_get_thread_num() : 0)"
    return [
        f"const int64_t row_length = {length};",
        f"char *const rows = partial + {thread} * {size} * row_length;",
        *rows,
    ]


def _prefetched(pattern: KernelPattern) -> list[int]:
    """Return the inputs that a unit's second run prefetches for the next unit.

    A unit's first run waits for memory; later runs read the caches, and memory would be idle.  With
    several inputs and cheap ops the hardware prefetcher is enough.
    """
    inputs = [k for k in pattern.loaded(pattern.run(0)) if pattern.accesses[k] == "unit"]
    by_hardware = len(inputs) > 1 and not c.is_costly(pattern, 1)
    return [] if by_hardware or pattern.stages == 1 else inputs


def _next_unit(pattern: KernelPattern) -> list[str]:
    """Return declarations of `prefetch`, whether to prefetch, and of addresses in the next unit."""
    inputs = _prefetched(pattern)
    if not inputs:
        return []
    size = sum(pattern.dtypes[k].itemsize for k in inputs)
    return [
        f"const int prefetch = splits == 1 && {size} * length <= {PREFETCHED};",
        # At the end of an axis, and after the last unit, the address is wrong, which is harmless.
        *(
            f"const char *next{k} = base{k} + operand[{k} * record + 1 + unit_axes];"
            for k in inputs
        ),
    ]


def _prefetch(pattern: KernelPattern, stage: int, index: str, count: str) -> list[str]:
    """Return statements that prefetch `count` elements of the next unit, from `index` on."""
    lines = []
    for k in _prefetched(pattern) if stage == 1 else ():
        size = pattern.dtypes[k].itemsize
        begin = f"next{k} + row_offset[{k}] + (col + {index}) * {size}"
        lines.append(f"if (prefetch) mg_prefetch({begin}, ({count}) * {size});")
    return lines


def _stage(unit: ColumnLoop, stage: int) -> list[str]:
    """Return statements for a run over the row of a unit, or the part of a split."""
    pattern = unit.pattern
    reduced, elements = pattern.reduced(stage), pattern.run_at(ELEMENT, stage)
    row = c.row_operands(pattern, stage)
    row += unit.compute(pattern.run_at(ROW, stage))
    lanes, flush, clear, complete = [], [], [], []
    for v in reduced:
        short_type, total_type = c.accumulators(pattern, pattern.values[v])
        identity = c.identity(pattern, pattern.values[v])
        lanes.append(f"{short_type} lane{v}[{LANES}], identity{v} = {identity};")
        lanes.append(f"MG_OPAQUE(identity{v});")
        clear.append(f"for (int64_t k = 0; k < {LANES}; k++) lane{v}[k] = identity{v};")
        fold = c.reduction_name(pattern, v, "mg_fold")
        flush.append(f"const {total_type} folded{v} = {fold}(lane{v});")
        flush.append(c.add_to_total(pattern, v, f"folded{v}"))
        complete += c.complete_total(pattern, v)
    buffered = buffers.buffered(pattern, stage)
    if reduced:
        lanes += [*clear, "int64_t accumulated = 0;"]
        row += _reduce(pattern, stage, elements, [*flush, *clear])
    else:
        row += _map(pattern, stage, elements, buffered)
    body = [
        *buffers.declare_stream(pattern, stage),
        *lanes,
        *c.over_rows(pattern, row),
        *flush,
        *complete,
    ]
    return c.in_run(pattern, stage, body)


def _reduce(pattern: KernelPattern, stage: int, values: list[int], flush: list[str]) -> list[str]:
    """Return statements that accumulate the elements of a row, and store outputs.

    flush  statements that add the lanes to the totals, at the end of a stretch
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
            *_prefetch(pattern, stage, "j", str(LANES)),
            *unrolled,
            "#pragma GCC ivdep",
            *block(f"for (int64_t k = 0; k < {LANES}; k++)", *body),
        ),
        "#pragma GCC ivdep",
        *block("for (int64_t k = 0; k < last - j; k++)", *body),
        # The largest number of elements that a lane has accumulated: short rows fill few lanes.
        f"accumulated += (last - first + {LANES - 1}) / {LANES};",
        *block(f"if (accumulated >= {STRETCH // LANES})", "accumulated = 0;", *flush),
    )


def _map(pattern: KernelPattern, stage: int, values: list[int], buffered: list[int]) -> list[str]:
    """Return statements that compute and store the elements of a row."""
    body = c.compute_element(pattern, stage, values, "j", buffered=buffered)
    if not buffered:
        return [
            *_prefetch(pattern, stage, "0", "n"),
            "#pragma GCC ivdep",
            *block("for (int64_t j = 0; j < n; j++)", *body),
        ]
    # The first buffer ends at the end of a cache line, so that the other buffers are whole lines.
    length = buffers.buffer_length(buffered)
    end = f"first + {length} - MG_MISALIGNMENT(p{buffered[0]} + first)"
    optional = "" if buffers.rounded(pattern, stage) else "stream && "
    return block(
        "for (int64_t first = 0, last; first < n; first = last)",
        *(line for k in buffered for line in buffers.declare_buffer(pattern, stage, k, "first")),
        f"last = {optional}n - first > {length} ? {end} : n;",
        *_prefetch(pattern, stage, "first", "last - first"),
        "#pragma GCC ivdep",
        *block("for (int64_t j = first; j < last; j++)", *body),
        *(buffers.flush_buffer(pattern, stage, k, "first", "last - first") for k in buffered),
    )
