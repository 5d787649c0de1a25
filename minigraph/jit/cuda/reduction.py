"""The CUDA text of kernels that reduce.

The text of a sum over the innermost axis, in outline:

    static __forceinline__ void BODY(const long long *w, int64_t block, ...) {
      ...                                                which unit is this thread's, and where
      for (int g = share * split + x; g < to;) {
        const int stop = ...;                            a stretch of 128 groups
        for (; g < stop; g += 4 * step) {                four groups are loaded before one is used
          for (int r = 0; r < 4; r++) mg_load<4>(q0[r], ...);
          for (int r = 0; r < 4; r++)
            if (g + r * step < stop)
              for (int u = 0; u < 4; u++) lane1[u] = q0[r][u] + lane1[u];
        }
        ...                                              lanes, in float, to totals, in double
      }
      ...                                                the elements that are left, one by one
      for (int o = ...; o > 0; o /= 2) total1 = __shfl_down_sync(~0u, total1, o) + total1;
      ...                                                and of warps by way of shared memory
      if (x == 0 && live) *p1 = v1;
    }

A block has 256 threads.  Along rows, `threads` of them share a unit, and x is the thread's number
among them.  Down columns, x is the thread's group of columns, of `threads` groups, and y the
thread's share of the rows.

If there are too few units to occupy a device, their loops are split.  Each stage is then two
launches: one stores the partial results of each split, and one combines them in order, so every
run gives the same bits.  `stage` is the launch's stage, or -1 for all, and `join` whether it
combines.

Results of a unit are written at the end, when all its threads have read the memory that they may
overwrite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minigraph.jit.c.body import accumulators, combine, identity, widened
from minigraph.jit.cuda.thread import (
    THREADS,
    bases,
    declare,
    destination,
    each,
    held_type,
    indices,
    load,
    load_ahead,
    part,
    position,
    put,
    store,
    taken,
    visit,
    whole_groups,
)
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block
from minigraph.jit.pattern import KernelPattern

STRETCH = 128  # elements that a lane combines in the input's own type
IN_FLIGHT = 4  # loads for which a thread waits at once


def body(walk: Walk) -> tuple[str, int]:
    """Return the function BODY, and how many words of shared memory it needs."""
    pattern, count = walk.pattern, walk.integer
    setup = [
        *(f"const {count} {name} = {walk.option(name)};" for name in walk.options),
        f"const {count} inner = {walk.extent(walk.innermost)};",
        "const int side = threads, x = threadIdx.x % side, y = threadIdx.x / side;",
        f"{count} rest = block;",
        *(_column(walk) if walk.column else _row(walk)),
        f"char *const partial = mg_global(w[{walk.operands}]);",
        *_once(walk, 0),
    ]
    for stage in range(pattern.stages):
        setup += _stage(walk, stage)
        setup += _once(walk, stage + 1)
    setup += _results(walk)
    unused = ("vector", "inner", "cells", "blocks", "y", "write", "partial", "index")
    most = max(len(pattern.reduced(stage)) for stage in range(pattern.stages))
    cells = most * THREADS * walk.group if walk.column else THREADS // 32
    return part(setup, unused), cells if walk.reduces else 0


def _row(walk: Walk) -> list[str]:
    """Return statements for a thread's unit and its offsets; `index` is that of its results."""
    count, units = walk.integer, range(walk.units)
    return [
        f"const {count} split = mg_unravel(&rest, join ? 1 : splits);",
        f"const {count} unit = rest * ({THREADS} / side) + y;",
        "const bool live = unit < units;",
        # The others compute as the last unit does: all threads of a warp have to shuffle.
        f"const {count} index = live ? unit : units - 1;",
        *indices(walk, units, "index"),
        *bases(walk, units),
        *whole_groups(walk),
        f"const {count} begun = whole * {walk.group};",
    ]


def _column(walk: Walk) -> list[str]:
    """Return statements for a thread's columns and the offsets of their unit."""
    count, outer = walk.integer, range(walk.units - 1)
    size = walk.group
    rows = " * ".join(map(walk.extent, walk.rows))
    return [
        f"const {count} wide = side * {size};",
        # Blocks that run together read whole rows together.
        f"const {count} first = mg_unravel(&rest, (inner + wide - 1) / wide) * wide + x * {size};",
        f"const {count} split = mg_unravel(&rest, join ? 1 : splits);",
        f"const {count} n = inner - first < {size} ? inner - first : {size};",
        f"const bool live = n > 0, full = vector && n == {size};",
        f"const {count} column = live ? first : inner - 1, index = rest * inner + column;",
        f"const {count} rows = live ? {rows} : 0;",
        *indices(walk, outer, "rest"),
        *bases(walk, outer),
    ]


def _once(walk: Walk, stage: int) -> list[str]:
    """Return statements for loop-invariant values that are needed from `stage` on."""
    of = walk.pattern.values
    known = [v for v, first in _first_uses(walk.pattern).items() if first == stage]
    wide = [v for v in known if v in walk.pattern.wide]
    made = [_value(walk, v, "") for v in known if v not in walk.pattern.wide]
    if not wide:
        return made
    loaded = [of[v].operand for v in wide if of[v].operand >= 0]
    groups = [k for k in loaded if walk.pattern.accesses[k] == "unit" and walk.group > 1]
    for k in loaded:
        first, *rest = load(walk, k, f"base{k}", tail=True)
        made += [first, *(_full(load(walk, k, f"base{k}")[1], *rest) if k in groups else rest)]
    inside = taken(walk, wide)
    for v in wide:
        inside += [_value(walk, v, "[u]"), f"all{v}[u] = v{v};"]
    arrays = [f"{held_type(of[v].dtype)} all{v}[{walk.group}];" for v in wide]
    return [*made, *arrays, *each(walk, inside)]


def _first_uses(pattern: KernelPattern) -> dict[int, int]:
    """Return in which stage each value that is computed once a unit is needed first.

    Sooner it would only fill registers, and a launch that keeps partial results would load it.
    """
    uses: dict[int, int] = {}
    for stage in range(pattern.stages):
        read = (a for v in pattern.run(stage) for a in pattern.values[v].args)
        for a in (*read, *pattern.goals(stage)):
            uses.setdefault(a, stage)
    for v in reversed(pattern.once):
        uses[v] = max(uses.get(v, pattern.stages), pattern.values[v].stage)
        if not pattern.values[v].reduces:
            for a in pattern.values[v].args:
                uses[a] = min(uses.get(a, pattern.stages), uses[v])
    return {v: uses[v] for v in pattern.once}


def _full(whole: str, tail: str) -> list[str]:
    """Return a branch: `whole` if the thread has all columns of a contiguous group, else `tail`."""
    return [f"if (full) {whole}", f"else {tail}"]


def _value(walk: Walk, v: int, at: str) -> str:
    value = walk.pattern.values[v]
    if value.reduces:
        return f"const {held_type(value.dtype)} v{v} = total{v}{at};"
    return declare(walk, v, "u" if at else "0")


def _stage(walk: Walk, stage: int) -> list[str]:
    """Return statements for one pass over the loops of a unit, and for combining its splits."""
    reduced = walk.pattern.reduced(stage)
    if not reduced:
        return block(f"if (stage < 0 || stage == {stage})", *_loops(walk, stage, []))
    cell = {v: _cell(walk, v) for v in reduced}
    made, keep, joining, added, joined = [], [], [], [], []
    if walk.column and stage:
        made.append("__syncthreads();")  # before what the last stage has left is overwritten
    for slot, v in enumerate(reduced):
        value = walk.pattern.values[v]
        _, long = accumulators(walk.pattern, value)
        start = identity(walk.pattern, value)
        total = _total(walk, v)
        if walk.column:
            begin = f"({long} *)(cells + {slot * THREADS * walk.group}) + threadIdx.x"
            made.append(f"volatile {long} *const kept{v} = {begin};")
            made.append(f"{long} total{v}[{walk.group}];")
            made += each(walk, [f"{total} = {start};"])
        else:
            made.append(f"{long} total{v} = {start};")
        known = _known(walk, v)
        keep.append(f"{cell[v].format(i='(join ? splits : split)')} = {known};")
        if walk.column:
            joining.append(f"{known} = {cell[v].format(i='i')};")
            added.append(f"{total} = {combine(value, known, total)};")
        else:
            added.append(f"{total} = {combine(value, cell[v].format(i='i'), total)};")
        joined.append(f"{known} = {cell[v].format(i='splits')};")
    writer = "y == 0" if walk.column else "x == 0 && live"
    first, step = ("y", f"{THREADS} / side") if walk.column else ("x", "side")
    return [
        *made,
        *block(f"if (stage < 0 || (stage == {stage} && !join))", *_loops(walk, stage, reduced)),
        *block(
            f"else if (stage == {stage})",
            *block(
                f"for (int i = {first}; i < splits; i += {step})",
                *_columns(walk, joining),
                *_columns(walk, added),
            ),
        ),
        *block(f"if (stage <= {stage})", *(line for v in reduced for line in _shared(walk, v))),
        *block("else", *_columns(walk, joined)),
        *block(
            f"if (stage == {stage})",
            *block(f"if ({writer})", *_columns(walk, keep, "if (u < n) ")),
            "if (!write) return;",
        ),
    ]


def _total(walk: Walk, v: int) -> str:
    """Return the total of reduction `v`: for columns in shared memory, to spare registers.

    Neighbours are contiguous there, which avoids bank conflicts.
    """
    return f"kept{v}[u * {THREADS}]" if walk.column else f"total{v}"


def _known(walk: Walk, v: int) -> str:
    """Return the result of reduction `v` over the threads of a unit or column."""
    return f"total{v}[u]" if walk.column else f"total{v}"


def _cell(walk: Walk, v: int) -> str:
    """Return the place of split {i}'s result, contiguous with those that it is combined with."""
    _, long = accumulators(walk.pattern, walk.pattern.values[v])
    column = " + (u < n ? u : 0)" if walk.column else ""
    at = f"({walk.pattern.reductions.index(v)} * units + index{column})"
    return f"*({long} *)(partial + 8 * ((int64_t){at} * (splits + 1) + {{i}}))"


def _columns(walk: Walk, body: Sequence[str], condition: str = "") -> list[str]:
    """Do `body` for each column of the thread; along rows it has none."""
    return each(walk, [condition + line for line in body]) if walk.column else list(body)


def _loops(walk: Walk, stage: int, reduced: Sequence[int]) -> list[str]:
    """Return the loops over the thread's groups and the remaining elements."""
    single = replace(walk, most=1)
    if walk.column:
        whole = _loop(walk, stage, reduced, "rows")
        if walk.group == 1:
            return whole
        tail = _loop(walk, stage, reduced, "rows", tail=True)
        return [*block("if (full)", *whole), *block("else", *tail)]
    groups = block("", *_loop(walk, stage, reduced, "groups")) if walk.group > 1 else []
    return [*groups, *block("", *_loop(single, stage, reduced, "singles"))]


def _loop(
    walk: Walk, stage: int, reduced: Sequence[int], count: str, tail: bool = False
) -> list[str]:
    """Statements that walk over a share of `count` groups, a stretch after the other."""
    pattern = walk.pattern
    lanes, clear, add, fold = [], [], [], []
    for v in reduced:
        value = pattern.values[v]
        short, _ = accumulators(pattern, value)
        lane, total = f"lane{v}[u]", _total(walk, v)
        lanes.append(f"{short} lane{v}[{walk.group}];")
        clear.append(f"{lane} = {identity(pattern, value)};")
        add.append(f"{lane} = {combine(value, widened(pattern, value), lane)};")
        fold.append(f"{total} = {combine(value, lane, total)};")
    first, step = ("y", f"{THREADS} / side") if walk.column else ("x", "side")
    unit = "live ? " if not walk.column else ""
    last = f"share * (split + 1) < {count} ? share * (split + 1) : {count}"
    share = [
        f"const {walk.integer} share = ({count} + splits - 1) / splits, step = {step};",
        f"const {walk.integer} to = {unit}{last}{' : 0' if unit else ''};",
    ]
    begin = f"{walk.integer} g = share * split + {first}"
    ahead = 1 if tail else max(1, IN_FLIGHT // max(1, len(pattern.loaded(pattern.run(stage)))))
    if ahead > 1:
        visited = load_ahead(walk, stage, ahead, visit(walk, stage, add, ahead=True))
    else:
        visited = [*position(walk, "g"), *visit(walk, stage, add, tail)]
    step = f"g += {ahead} * step" if ahead > 1 else "g += step"
    if not reduced:
        stop = f"const {walk.integer} stop = to;"
        return [*share, stop, *block(f"for ({begin}; g < stop; {step})", *visited)]
    stretch = f"g + {STRETCH} * step < to ? g + {STRETCH} * step : to"
    return [
        *share,
        *lanes,
        *block(
            f"for ({begin}; g < to;)",
            f"const {walk.integer} stop = {stretch};",
            *each(walk, clear),
            *block(f"for (; g < stop; {step})", *visited),
            *each(walk, fold),
        ),
    ]


def _shared(walk: Walk, v: int) -> list[str]:
    """Return statements that combine reduction `v` over the threads of a unit or column."""
    value = walk.pattern.values[v]
    _, long = accumulators(walk.pattern, value)
    if walk.column:
        mine, other = f"sums[u * {THREADS}]", f"sums[u * {THREADS} + half * side]"
        return block(
            "",
            f"{long} *const sums = ({long} *)kept{v};",
            *block(
                f"for (int half = {THREADS} / side / 2; half > 0; half /= 2)",
                "__syncthreads();",
                *block("if (y < half)", *each(walk, [f"{mine} = {combine(value, other, mine)};"])),
            ),
            "__syncthreads();",
            *each(walk, [f"total{v}[u] = sums[u * {THREADS} - y * side];"]),
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
    """Return statements that write the results of a unit."""
    pattern = walk.pattern
    stores = [k for k, made in enumerate(pattern.stores, pattern.inputs) if made.per_unit]
    if not stores:
        return []
    if walk.column:
        inside = [line for k in stores for line in destination(walk, k, f"base{k}")]
        sources = taken(walk, [], [pattern.source(k) for k in stores])
        inside += each(walk, [*sources, *put(walk, stores)])
        for k in stores:
            whole, tail = (store(walk, k, f"base{k}", n) for n in (False, True))
            inside += _full(*whole, *tail) if whole else []
    else:
        inside = put(walk, stores)
    writer = "y == 0" if walk.column else "x == 0"
    return block("if (write)", "__syncthreads();", *block(f"if ({writer} && live)", *inside))
