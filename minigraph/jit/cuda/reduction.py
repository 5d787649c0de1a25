"""The CUDA text of kernels that reduce.

The text of a sum over the innermost axis, in outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                which unit is this thread's, and where
      for (int64_t g = from + x; g < to; g += threads) {
        mg_load<4>(p0, base0 + column * 4, n, vector);
        for (int u = 0; u < 4; u++) if (u < n) lane1[u] = p0[u] + lane1[u];
        if (++filled == 128) { ... }                     lanes, in float, to totals, in double
      }
      for (int o = ...; o > 0; o /= 2) total1 = __shfl_down_sync(~0u, total1, o) + total1;
      ...                                                and of warps by way of shared memory
      if (x == 0 && live) *p1 = v1;
    }

A block has 256 threads.  Along rows `threads` of them share a unit, and x says which of them a
thread is.  Down columns `threads` lie side by side, each with the columns of a group, and the
others, y, take the rows in turn.

Where there are too few units to keep a device busy their loops are split.  Then each stage is a
launch that keeps the partial results of each split, and one that joins them: `stage` is the one a
launch is for, -1 for all, and `join` says which of the two it is.  All are combined in order, so
the bits are the same every time.

What is made once a unit is written at the end: only then has each thread of the unit read what this
may overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.jit.c.body import accumulators, combine, declare, identity, widened
from minigraph.jit.cuda.thread import (
    THREADS,
    bases,
    destination,
    each,
    indices,
    load,
    part,
    position,
    put,
    store,
    taken,
    visit,
)
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block
from minigraph.jit.expression import c_type

STRETCH = 128  # elements that a lane combines in the input's own type


def body(walk: Walk) -> tuple[str, int]:
    """Return the function BODY, and how many words of shared memory it needs."""
    pattern = walk.pattern
    setup = [
        *(f"const int64_t {name} = {walk.option(name)};" for name in walk.options),
        f"const int64_t inner = {walk.extent(walk.innermost)};",
        "const int side = (int)threads, x = threadIdx.x % side, y = threadIdx.x / side;",
        "int64_t rest = block;",
        "const int64_t split = mg_take(&rest, shares);",
        *(_column(walk) if walk.column else _row(walk)),
        "const int64_t from = share * split;",
        "const int64_t to = !live ? from : from + share < groups ? from + share : groups;",
        f"char *const partial = mg_global({walk.scratch});",
        *_once(walk, 0),
    ]
    for stage in range(pattern.stages):
        setup += _stage(walk, stage)
        setup += _once(walk, stage + 1)
    setup += _results(walk)
    unused = ("vector", "inner", "cells", "blocks", "y", "write", "partial")
    cells = THREADS * walk.group if walk.column else THREADS // 32
    return part(setup, unused), cells


def _row(walk: Walk) -> list[str]:
    """Statements for the unit of a thread, and where it begins; `index` is that of its results."""
    units = range(walk.units)
    return [
        f"const int64_t unit = rest * ({THREADS} / side) + y;",
        "const bool live = unit < units;",
        # The others compute as the last unit does: all threads of a warp have to shuffle.
        "const int64_t index = live ? unit : units - 1;",
        *indices(walk, units, "index"),
        *bases(walk, units),
    ]


def _column(walk: Walk) -> list[str]:
    """Statements for the columns of a thread, and where their unit begins."""
    outer = range(walk.units - 1)
    size = walk.group
    return [
        f"const int64_t wide = side * {size};",
        f"const int64_t first = mg_take(&rest, (inner + wide - 1) / wide) * wide + x * {size};",
        f"const int64_t n = inner - first < {size} ? inner - first : {size};",
        "const bool live = n > 0;",
        "const int64_t column = live ? first : inner - 1, index = rest * inner + column;",
        *indices(walk, outer, "rest"),
        *bases(walk, outer),
    ]


def _once(walk: Walk, stage: int) -> list[str]:
    """Statements for what stays while the thread walks and is known in `stage`."""
    of = walk.pattern.values
    known = [v for v in walk.pattern.once if of[v].stage == stage]
    loaded = [of[v].operand for v in known if v in walk.wide and of[v].operand >= 0]
    made = [line for k in loaded for line in load(walk, k, f"base{k}")]
    made += [_value(walk, v, "") for v in known if v not in walk.wide]
    wide = [v for v in known if v in walk.wide]
    if not wide:
        return made
    inside = taken(walk, wide)
    for v in wide:
        inside += [_value(walk, v, "[u]"), f"all{v}[u] = v{v};"]
    arrays = [f"{c_type(of[v].dtype)} all{v}[{walk.group}];" for v in wide]
    return [*made, *arrays, *each(walk, inside)]


def _value(walk: Walk, v: int, at: str) -> str:
    value = walk.pattern.values[v]
    if value.reduces:
        return f"const {c_type(value.dtype)} v{v} = total{v}{at};"
    return declare(walk.pattern, v, "u" if at else "0")


def _stage(walk: Walk, stage: int) -> list[str]:
    """Statements for one run over the loops of a unit, and for what is made of its splits."""
    reduced = walk.pattern.reduced(stage)
    if not reduced:
        return block(f"if (stage < 0 || stage == {stage})", *_loop(walk, stage, []))
    cell = {v: _cell(walk, v) for v in reduced}
    made, keep, joining, joined = [], [], [], []
    for v in reduced:
        value = walk.pattern.values[v]
        _, long = accumulators(walk.pattern, value)
        start = identity(walk.pattern, value)
        total = _total(walk, v)
        if walk.column:
            made += [f"{long} total{v}[{walk.group}];", *each(walk, [f"{total} = {start};"])]
        else:
            made.append(f"{long} total{v} = {start};")
        keep.append(f"{cell[v].format(i='(join ? splits : split)')} = {total};")
        joining.append(f"{total} = {combine(value, cell[v].format(i='i'), total)};")
        joined.append(f"{total} = {cell[v].format(i='splits')};")
    writer = "y == 0" if walk.column else "x == 0 && live"
    first, step = ("y", f"{THREADS} / side") if walk.column else ("x", "side")
    return [
        *made,
        *block(f"if (stage < 0 || (stage == {stage} && !join))", *_loop(walk, stage, reduced)),
        *block(
            f"else if (stage == {stage})",
            *block(f"for (int64_t i = {first}; i < splits; i += {step})", *_columns(walk, joining)),
        ),
        *block(f"if (stage <= {stage})", *(line for v in reduced for line in _shared(walk, v))),
        *block("else", *_columns(walk, joined)),
        *block(
            f"if (stage == {stage})",
            *block(f"if ({writer})", *_columns(walk, keep)),
            "if (!write) return;",
        ),
    ]


def _total(walk: Walk, v: int) -> str:
    return f"total{v}[u]" if walk.column else f"total{v}"


def _cell(walk: Walk, v: int) -> str:
    """Where a result of split {i} is kept."""
    reductions = walk.pattern.reductions
    _, long = accumulators(walk.pattern, walk.pattern.values[v])
    at = f"({{i}} * {len(reductions)} + {reductions.index(v)}) * units + index"
    return f"*({long} *)(partial + 8 * ({at}{' + u' if walk.column else ''}))"


def _columns(walk: Walk, body: Sequence[str]) -> list[str]:
    """Do `body` for each column of the thread; along rows it has none."""
    return each(walk, [f"if (u < n) {line}" for line in body]) if walk.column else list(body)


def _loop(walk: Walk, stage: int, reduced: Sequence[int]) -> list[str]:
    """Statements that walk over the thread's groups."""
    pattern = walk.pattern
    lanes, clear, add, fold = [], [], [], []
    guard = "if (u < n) " if walk.group > 1 and not walk.column else ""
    for v in reduced:
        value = pattern.values[v]
        short, _ = accumulators(pattern, value)
        lane, total = f"lane{v}[u]", _total(walk, v)
        lanes.append(f"{short} lane{v}[{walk.group}];")
        clear.append(f"{lane} = {identity(pattern, value)};")
        add.append(f"{guard}{lane} = {combine(value, widened(pattern, value), lane)};")
        fold.append(f"{total} = {combine(value, lane, total)};")
    first, step = ("y", f"{THREADS} / side") if walk.column else ("x", "side")
    flush = block(f"if (++filled == {STRETCH})", "filled = 0;", *each(walk, [*fold, *clear]))
    return [
        *lanes,
        *(each(walk, clear) if reduced else []),
        *(["int filled = 0;"] if reduced else []),
        *block(
            f"for (int64_t g = from + {first}; g < to; g += {step})",
            *position(walk, "g"),
            *visit(walk, stage, add),
            *(flush if reduced else []),
        ),
        *(each(walk, fold) if reduced else []),
    ]


def _shared(walk: Walk, v: int) -> list[str]:
    """Statements that combine what the threads of a unit, or of a column, have of reduction `v`."""
    value = walk.pattern.values[v]
    _, long = accumulators(walk.pattern, value)
    if walk.column:
        kept, other = "kept[j]", "kept[i * wide + j]"
        return block(
            "",
            f"{long} *const kept = ({long} *)cells;",
            "__syncthreads();",
            *each(walk, [f"kept[threadIdx.x * {walk.group} + u] = total{v}[u];"]),
            "__syncthreads();",
            f"for (int j = threadIdx.x; j < wide; j += {THREADS})",
            f"  for (int i = 1; i < {THREADS} / side; i++)",
            f"    {kept} = {combine(value, other, kept)};",
            "__syncthreads();",
            *each(walk, [f"total{v}[u] = kept[x * {walk.group} + u];"]),
        )
    total = f"total{v}"
    return [
        *block(
            "for (int o = (side < 32 ? side : 32) / 2; o > 0; o /= 2)",
            f"const {long} other = __shfl_down_sync(~0u, {total}, o);",
            f"{total} = {combine(value, 'other', total)};",
        ),
        *block(
            "if (side > 32)",
            f"{long} *const kept = ({long} *)cells + threadIdx.x / side * (side / 32);",
            "__syncthreads();",
            f"if (x % 32 == 0) kept[x / 32] = {total};",
            "__syncthreads();",
            f"{total} = kept[0];",
            f"for (int i = 1; i < side / 32; i++) {total} = {combine(value, 'kept[i]', total)};",
        ),
        *block("else", f"{total} = __shfl_sync(~0u, {total}, 0, side);"),
    ]


def _results(walk: Walk) -> list[str]:
    """Statements that write what is made once a unit."""
    pattern = walk.pattern
    stores = [k for k, made in enumerate(pattern.stores, pattern.inputs) if made.per_unit]
    if not stores:
        return []
    if walk.column:
        inside = [line for k in stores for line in destination(walk, k, f"base{k}")]
        sources = taken(walk, [], [pattern.source(k) for k in stores])
        inside += each(walk, [*sources, *put(walk, stores)])
        inside += [line for k in stores for line in store(walk, k, f"base{k}")]
    else:
        inside = put(walk, stores)
    writer = "y == 0" if walk.column else "x == 0"
    return block("if (write)", "__syncthreads();", *block(f"if ({writer} && live)", *inside))
