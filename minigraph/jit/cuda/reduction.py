"""The CUDA text of kernels that reduce.

The text of a sum over the innermost axis, in outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                the thread's unit and its addresses
      for (int g = split_length * split + x; g < split_end;) {
        const int stop = ...;                            a stretch of 128 groups
        for (; g < stop; g += 4 * step) {                four groups are loaded before one is used
          for (int r = 0; r < 4; r++) mg_load<4>(loaded0[r], ...);
          for (int r = 0; r < 4; r++)
            if (g + r * step < stop)
              for (int u = 0; u < 4; u++) acc1[u] = loaded0[r][u] + acc1[u];
        }
        ...                                              add accumulators (float) to totals (double)
      }
      ...                                                single elements, left of the groups
      for (int o = ...; o > 0; o /= 2) total1 = __shfl_down_sync(~0u, total1, o) + total1;
      ...                                                combine warps through shared memory
      if (x == 0 && live) *p1 = v1;
    }

A block has 256 threads, `width` of them along x.  Along rows, these reduce a unit, and y is a unit
of the block.  Down columns, x is a group of columns, and the threads along y reduce it.

If there are too few units to occupy a device, their loops are split.  Each stage is then two
launches: one stores the partial results of each split, and one combines them in order, so every
run gives the same bits.  `stage` is the launch's stage, or -1 for all stages, and `combine` says
whether the launch combines partial results.

The results of a unit are written at the end, because they may overwrite memory that any of its
threads read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigraph.jit.c.body import accumulators, combine, identity, widened
from minigraph.jit.cuda.thread import (
    THREADS,
    bases,
    body_function,
    declare,
    destination,
    indices,
    load,
    load_groups,
    load_wide,
    position,
    register_type,
    store,
    store_elements,
    unrolled,
    visit,
    whole_groups,
)
from minigraph.jit.cuda.thread_mapping import ThreadMapping
from minigraph.jit.emitter import block
from minigraph.jit.pattern import KernelPattern

STRETCH = 128  # elements that an accumulator combines in the input's dtype
IN_FLIGHT = 4  # independent loads of a thread


def body(mapping: ThreadMapping) -> tuple[str, int]:
    """Return the function BODY, and the number of words of shared memory that it needs."""
    pattern, count = mapping.pattern, mapping.integer
    setup = [
        *(f"const {count} {name} = {mapping.option(name)};" for name in mapping.options),
        f"const {count} inner = {mapping.extent(mapping.innermost)};",
        "const int width = threads, x = threadIdx.x % width, y = threadIdx.x / width;",
        f"{count} rest = block;",
        *(_column(mapping) if mapping.column else _row(mapping)),
        f"char *const partial = mg_global(w[{mapping.operands}]);",
        *_invariants(mapping, 0),
    ]
    for stage in range(pattern.stages):
        setup += _stage(mapping, stage)
        setup += _invariants(mapping, stage + 1)
    setup += _results(mapping)
    unused = ("aligned", "inner", "shared", "blocks", "y", "write", "partial", "result")
    max_reductions = max(len(pattern.reduced(stage)) for stage in range(pattern.stages))
    words_shared = max_reductions * THREADS * mapping.group if mapping.column else THREADS // 32
    return body_function(setup, unused), words_shared if mapping.reduces else 0


def _row(mapping: ThreadMapping) -> list[str]:
    """Return statements that declare a thread's unit, addresses, and index of its `result`."""
    count, units = mapping.integer, range(mapping.units)
    return [
        f"const {count} split = mg_unravel(&rest, combine ? 1 : splits);",
        f"const {count} unit = rest * ({THREADS} / width) + y;",
        "const bool live = unit < units;",
        # Threads without a unit repeat the last one: all threads of a warp have to shuffle.
        f"const {count} result = live ? unit : units - 1;",
        *indices(mapping, units, "result"),
        *bases(mapping, units),
        *whole_groups(mapping),
        f"const {count} tail_begin = row_groups * {mapping.group};",
    ]


def _column(mapping: ThreadMapping) -> list[str]:
    """Return statements that declare a thread's columns, addresses, and index of its `result`."""
    count, outer = mapping.integer, range(mapping.units - 1)
    size = mapping.group
    rows = " * ".join(map(mapping.extent, mapping.rows))
    return [
        f"const {count} columns = width * {size};",
        # Blocks that run at the same time read whole rows.
        f"const {count} first = "
        f"mg_unravel(&rest, (inner + columns - 1) / columns) * columns + x * {size};",
        f"const {count} split = mg_unravel(&rest, combine ? 1 : splits);",
        f"const {count} n = inner - first < {size} ? inner - first : {size};",
        f"const bool live = n > 0, full = aligned && n == {size};",
        f"const {count} column = live ? first : inner - 1, result = rest * inner + column;",
        f"const {count} rows = live ? {rows} : 0;",
        *indices(mapping, outer, "rest"),
        *bases(mapping, outer),
    ]


def _invariants(mapping: ThreadMapping, stage: int) -> list[str]:
    """Return statements for loop-invariant values that are first needed in `stage`."""
    values = mapping.pattern.values
    invariants = [v for v, first in _first_uses(mapping.pattern).items() if first == stage]
    wide = [v for v in invariants if v in mapping.pattern.wide]
    lines = [_value(mapping, v, "") for v in invariants if v not in mapping.pattern.wide]
    if not wide:
        return lines
    loaded = [values[v].operand for v in wide if values[v].operand >= 0]
    groups = [k for k in loaded if mapping.pattern.accesses[k] == "unit" and mapping.group > 1]
    for k in loaded:
        declared, *loads = load(mapping, k, f"base{k}", tail=True)
        if k in groups:
            loads = _full_or_tail(load(mapping, k, f"base{k}")[1], *loads)
        lines += [declared, *loads]
    store = load_wide(mapping, wide)
    for v in wide:
        store += [_value(mapping, v, "[u]"), f"wide{v}[u] = v{v};"]
    arrays = [f"{register_type(values[v].dtype)} wide{v}[{mapping.group}];" for v in wide]
    return [*lines, *arrays, *unrolled(mapping, store)]


def _first_uses(pattern: KernelPattern) -> dict[int, int]:
    """Return the stage that first needs each value that is computed once for a unit.

    An earlier computation would occupy registers, and load values in launches without need.
    """
    uses: dict[int, int] = {}
    for stage in range(pattern.stages):
        operands = (a for v in pattern.run(stage) for a in pattern.values[v].args)
        for a in (*operands, *pattern.roots(stage)):
            uses.setdefault(a, stage)
    for v in reversed(pattern.unit_values):
        uses[v] = max(uses.get(v, pattern.stages), pattern.values[v].stage)
        if not pattern.values[v].reduces:
            for a in pattern.values[v].args:
                uses[a] = min(uses.get(a, pattern.stages), uses[v])
    return {v: uses[v] for v in pattern.unit_values}


def _full_or_tail(whole: str, tail: str) -> list[str]:
    """Return a branch: `whole` for threads with all columns of an aligned group, else `tail`."""
    return [f"if (full) {whole}", f"else {tail}"]


def _value(mapping: ThreadMapping, v: int, subscript: str) -> str:
    value = mapping.pattern.values[v]
    if value.reduces:
        return f"const {register_type(value.dtype)} v{v} = total{v}{subscript};"
    return declare(mapping, v, "u" if subscript else "0")


def _stage(mapping: ThreadMapping, stage: int) -> list[str]:
    """Return statements for one run over the loops of a unit, and for combining its splits."""
    reduced = mapping.pattern.reduced(stage)
    if not reduced:
        return block(f"if (stage < 0 || stage == {stage})", *_loops(mapping, stage, []))
    partial = {v: _partial(mapping, v) for v in reduced}
    lines, save, loads, combined, restore = [], [], [], [], []
    if mapping.column and stage:
        lines.append("__syncthreads();")  # before overwriting the totals of the last stage
    for slot, v in enumerate(reduced):
        value = mapping.pattern.values[v]
        _, total_type = accumulators(mapping.pattern, value)
        start = identity(mapping.pattern, value)
        total = _total(mapping, v)
        if mapping.column:
            begin = f"({total_type} *)(shared + {slot * THREADS * mapping.group}) + threadIdx.x"
            lines.append(f"volatile {total_type} *const sum{v} = {begin};")
            lines.append(f"{total_type} total{v}[{mapping.group}];")
            lines += unrolled(mapping, [f"{total} = {start};"])
        else:
            lines.append(f"{total_type} total{v} = {start};")
        result = _result(mapping, v)
        save.append(f"{partial[v].format(i='(combine ? splits : split)')} = {result};")
        if mapping.column:
            loads.append(f"{result} = {partial[v].format(i='i')};")
            combined.append(f"{total} = {combine(value, result, total)};")
        else:
            combined.append(f"{total} = {combine(value, partial[v].format(i='i'), total)};")
        restore.append(f"{result} = {partial[v].format(i='splits')};")
    writer = "y == 0" if mapping.column else "x == 0 && live"
    first, step = ("y", f"{THREADS} / width") if mapping.column else ("x", "width")
    return [
        *lines,
        *block(
            f"if (stage < 0 || (stage == {stage} && !combine))", *_loops(mapping, stage, reduced)
        ),
        *block(
            f"else if (stage == {stage})",
            *block(
                f"for (int i = {first}; i < splits; i += {step})",
                *_columns(mapping, loads),
                *_columns(mapping, combined),
            ),
        ),
        *block(f"if (stage <= {stage})", *(line for v in reduced for line in _combine(mapping, v))),
        *block("else", *_columns(mapping, restore)),
        *block(
            f"if (stage == {stage})",
            *block(f"if ({writer})", *_columns(mapping, save, "if (u < n) ")),
            "if (!write) return;",
        ),
    ]


def _total(mapping: ThreadMapping, v: int) -> str:
    """Return the thread's total of reduction `v`: for columns in shared memory, to save registers.

    Neighbouring threads have neighbouring words of shared memory, without bank conflicts.
    """
    return f"sum{v}[u * {THREADS}]" if mapping.column else f"total{v}"


def _result(mapping: ThreadMapping, v: int) -> str:
    """Return the result of reduction `v` over the threads of a unit or column."""
    return f"total{v}[u]" if mapping.column else f"total{v}"


def _partial(mapping: ThreadMapping, v: int) -> str:
    """Return the lvalue of split {i}'s partial result; the results of all splits are contiguous."""
    _, total_type = accumulators(mapping.pattern, mapping.pattern.values[v])
    column = " + (u < n ? u : 0)" if mapping.column else ""
    index = f"({mapping.pattern.reductions.index(v)} * units + result{column})"
    return f"*({total_type} *)(partial + 8 * ((int64_t){index} * (splits + 1) + {{i}}))"


def _columns(mapping: ThreadMapping, body: Sequence[str], condition: str = "") -> list[str]:
    """Return `body` for each column of the thread; along rows just `body`."""
    return unrolled(mapping, [condition + line for line in body]) if mapping.column else list(body)


def _loops(mapping: ThreadMapping, stage: int, reduced: Sequence[int]) -> list[str]:
    """Return the loops over the thread's groups and the single elements."""
    singles = replace(mapping, max_group=1)
    if mapping.column:
        whole = _loop(mapping, stage, reduced, "rows")
        if mapping.group == 1:
            return whole
        tail = _loop(mapping, stage, reduced, "rows", tail=True)
        return [*block("if (full)", *whole), *block("else", *tail)]
    groups = block("", *_loop(mapping, stage, reduced, "groups")) if mapping.group > 1 else []
    return [*groups, *block("", *_loop(singles, stage, reduced, "singles"))]


def _loop(
    mapping: ThreadMapping, stage: int, reduced: Sequence[int], count: str, tail: bool = False
) -> list[str]:
    """Return a loop over the thread's part of `count` groups, in stretches."""
    pattern = mapping.pattern
    accs, clear, add, flush = [], [], [], []
    for v in reduced:
        value = pattern.values[v]
        short_type, _ = accumulators(pattern, value)
        acc, total = f"acc{v}[u]", _total(mapping, v)
        accs.append(f"{short_type} acc{v}[{mapping.group}];")
        clear.append(f"{acc} = {identity(pattern, value)};")
        add.append(f"{acc} = {combine(value, widened(pattern, value), acc)};")
        flush.append(f"{total} = {combine(value, acc, total)};")
    first, step = ("y", f"{THREADS} / width") if mapping.column else ("x", "width")
    unit = "live ? " if not mapping.column else ""
    end = f"split_length * (split + 1) < {count} ? split_length * (split + 1) : {count}"
    bounds = [
        f"const {mapping.integer} split_length = ({count} + splits - 1) / splits, step = {step};",
        f"const {mapping.integer} split_end = {unit}{end}{' : 0' if unit else ''};",
    ]
    begin = f"{mapping.integer} g = split_length * split + {first}"
    in_flight = 1 if tail else max(1, IN_FLIGHT // max(1, len(pattern.loaded(pattern.run(stage)))))
    if in_flight > 1:
        visited = load_groups(mapping, stage, in_flight, visit(mapping, stage, add, loaded=True))
    else:
        visited = [*position(mapping, "g"), *visit(mapping, stage, add, tail)]
    step = f"g += {in_flight} * step" if in_flight > 1 else "g += step"
    if not reduced:
        stop = f"const {mapping.integer} stop = split_end;"
        return [*bounds, stop, *block(f"for ({begin}; g < stop; {step})", *visited)]
    stretch = f"g + {STRETCH} * step < split_end ? g + {STRETCH} * step : split_end"
    return [
        *bounds,
        *accs,
        *block(
            f"for ({begin}; g < split_end;)",
            f"const {mapping.integer} stop = {stretch};",
            *unrolled(mapping, clear),
            *block(f"for (; g < stop; {step})", *visited),
            *unrolled(mapping, flush),
        ),
    ]


def _combine(mapping: ThreadMapping, v: int) -> list[str]:
    """Return statements that combine reduction `v` over the threads of a unit or column."""
    value = mapping.pattern.values[v]
    _, total_type = accumulators(mapping.pattern, value)
    if mapping.column:
        mine, other = f"sums[u * {THREADS}]", f"sums[u * {THREADS} + half * width]"
        return block(
            "",
            f"{total_type} *const sums = ({total_type} *)sum{v};",
            *block(
                f"for (int half = {THREADS} / width / 2; half > 0; half /= 2)",
                "__syncthreads();",
                *block(
                    "if (y < half)",
                    *unrolled(mapping, [f"{mine} = {combine(value, other, mine)};"]),
                ),
            ),
            "__syncthreads();",
            *unrolled(mapping, [f"total{v}[u] = sums[u * {THREADS} - y * width];"]),
        )
    total, warps = f"total{v}", f"({total_type} *)shared + threadIdx.x / width * (width / 32)"
    return [
        *block(
            "for (int o = (width < 32 ? width : 32) / 2; o > 0; o /= 2)",
            f"const {total_type} other = __shfl_down_sync(~0u, {total}, o);",
            f"{total} = {combine(value, 'other', total)};",
        ),
        *block(
            "if (width > 32)",
            f"{total_type} *const warps = {warps};",
            "__syncthreads();",
            f"if (x % 32 == 0) warps[x / 32] = {total};",
            "__syncthreads();",
            f"{total} = warps[0];",
            f"for (int i = 1; i < width / 32; i++) {total} = {combine(value, 'warps[i]', total)};",
        ),
        *block("else", f"{total} = __shfl_sync(~0u, {total}, 0, width);"),
    ]


def _results(mapping: ThreadMapping) -> list[str]:
    """Return statements that write the results of a unit."""
    pattern = mapping.pattern
    stores = [k for k, output in enumerate(pattern.stores, pattern.inputs) if output.per_unit]
    if not stores:
        return []
    if mapping.column:
        lines = [line for k in stores for line in destination(mapping, k, f"base{k}")]
        sources = load_wide(mapping, [], [pattern.source(k) for k in stores])
        lines += unrolled(mapping, [*sources, *store_elements(mapping, stores)])
        for k in stores:
            whole, tail = (store(mapping, k, f"base{k}", n) for n in (False, True))
            lines += _full_or_tail(*whole, *tail) if whole else []
    else:
        lines = store_elements(mapping, stores)
    writer = "y == 0" if mapping.column else "x == 0"
    return block("if (write)", "__syncthreads();", *block(f"if ({writer} && live)", *lines))
