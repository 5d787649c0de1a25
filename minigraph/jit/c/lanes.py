"""The text of kernels whose innermost axis is a short block of channels, the lanes.

The text of a mean over all axes but channels, less which x is, in outline:

    static void NAME_unit(const int64_t *a, char **slots, int64_t unit, int64_t split) {
      ...                                        where the operands of this block of channels are
      for (; j + 4 <= n; j += 4)
        for (int u = 0; u < 4; u++)
          for (int k = 0; k < 16; k++) lane1[u * 16 + k] += p0[(j + u) * 16 + k];
      ...
      for (int k = 0; k < 16; k++) { const float v1 = total1[k]; all3[k] = v1 / v2; }
      for (int64_t j = 0; j < n; j++)
        for (int k = 0; k < 16; k++) { const float v3 = all3[k]; p1[j * 16 + k] = v0 - v3; }
    }

A pixel is one element of all lanes.  Loops over lanes have a constant length, so each is a vector
or two.  Floats are combined in their own type over short stretches of pixels, in a few vectors that
do not wait for each other, and then added to totals in double: the error does not grow with the
length.  Few units are split, and large outputs streamed, as in `rows`.
"""

from __future__ import annotations

from collections.abc import Iterable

from minigraph.jit.c.body import (
    PIECE,
    accumulators,
    bases,
    combine,
    declare,
    element,
    entry,
    identity,
    pointer,
    split_or_join,
    unit_function,
    widened,
)
from minigraph.jit.emitter import block, indented
from minigraph.jit.expression import c_type
from minigraph.jit.kernel import ELEMENT, ROW, KernelPattern

PIXELS = 4  # that are combined side by side
STRETCH = 128 * PIXELS  # pixels that are combined in the input's own type


def text(pattern: KernelPattern) -> str:
    """Return the functions of a "lane" kernel, called NAME."""
    return _unit(pattern) + entry(bool(pattern.reductions), "units")


def _unit(pattern: KernelPattern) -> str:
    """The function that computes one unit, a split of it, or (split -1) what the splits make."""
    count, reductions = len(pattern.dtypes), pattern.reductions
    place = ["const int64_t inner = extent[loops - 1];", f"mg_place(a, {count}, unit, place);"]
    body = bases(pattern, "pitch - 1")
    clear = []
    for v in reductions:
        _, long = accumulators(pattern, pattern.values[v])
        body.append(f"{long} total{v}[{pattern.lanes}];")
        clear.append(f"total{v}[k] = {identity(pattern, pattern.values[v])};")
    body += _each_lane(pattern, clear)
    body += _once(pattern, 0)
    for stage in range(pattern.stages):
        body += _stage(pattern, stage)
        if reductions and pattern.stages == 1:
            body += _splits(pattern)
        body += _once(pattern, stage + 1)
    return unit_function(pattern, place, [*body, "(void)stream;"]) + "\n"


def _each_lane(pattern: KernelPattern, body: Iterable[str]) -> list[str]:
    """The loop over lanes, which is vectorised before anything unrolls it."""
    return [
        "#pragma omp simd",
        *block(f"for (int k = 0; k < {pattern.lanes}; k++)", *body),
    ]


def _wide(pattern: KernelPattern) -> set[int]:
    """The values that differ between lanes."""
    found: set[int] = set()
    for v, value in enumerate(pattern.values):
        own = value.operand >= 0 and pattern.across[value.operand]
        if own or value.reduces or not found.isdisjoint(value.args):
            found.add(v)
    return found


def _shared(pattern: KernelPattern, values: list[int], wide: set[int]) -> list[str]:
    """Statements that compute values which many elements share: `all` has those of each lane."""
    body = [declare(pattern, v, "0") for v in values if v not in wide]
    arrays = [v for v in values if v in wide]
    body += [f"{c_type(pattern.values[v].dtype)} all{v}[{pattern.lanes}];" for v in arrays]
    each = _taken(pattern, arrays, [], wide)
    for v in arrays:
        value = pattern.values[v]
        total = f"const {c_type(value.dtype)} v{v} = total{v}[k];"
        each += [total if value.reduces else declare(pattern, v, "0"), f"all{v}[k] = v{v};"]
    return body + (_each_lane(pattern, each) if arrays else [])


def _taken(
    pattern: KernelPattern, values: list[int], results: list[int], wide: set[int]
) -> list[str]:
    """Statements that take a lane of the shared values which `values` and `results` need."""
    needed = {a for v in values if not pattern.values[v].reduces for a in pattern.values[v].args}
    there = sorted((needed.union(results) & wide).difference(values))
    return [f"const {c_type(pattern.values[v].dtype)} v{v} = all{v}[k];" for v in there]


def _once(pattern: KernelPattern, stage: int) -> list[str]:
    """Statements for what is computed once a unit and known in `stage`, and its outputs."""
    wide = _wide(pattern)
    body = _shared(pattern, [v for v in pattern.once if pattern.values[v].stage == stage], wide)
    stores = [
        k
        for k, store in enumerate(pattern.stores, pattern.inputs)
        if store.per_unit and pattern.values[store.value].stage == stage
    ]
    if not stores:
        return body
    write = _taken(pattern, [], [pattern.source(k) for k in stores], wide)
    write += [f"{element(pattern, k, '0')} = v{pattern.source(k)};" for k in stores]
    # Where splits share a unit, an input that this overwrites may still be read.
    return [
        *body,
        *block("if (splits == 1 || split < 0)", *_each_lane(pattern, write)),
    ]


def _stage(pattern: KernelPattern, stage: int) -> list[str]:
    """Statements for one run over the pixels of a unit."""
    wide = _wide(pattern)
    reduced, stores, values = pattern.reduced(stage), pattern.stored(stage), pattern.run(stage)
    row = [
        pointer(pattern, k, f"base{k} + at[{k}]", "col")
        for k in [*pattern.loaded(values), *stores]
        if pattern.accesses[k] != "fixed"
    ]
    row += _shared(pattern, [v for v in values if pattern.values[v].level == ROW], wide)
    each = [v for v in values if pattern.values[v].level == ELEMENT]
    streams = [k for k in stores if pattern.accesses[k] == "unit" and not reduced]
    fed = [*(pattern.values[v].args[0] for v in reduced), *map(pattern.source, stores)]
    taken = _taken(pattern, each, fed, wide)
    if reduced:
        before, after = _accumulated(pattern, reduced)
        limit = [f"if (n > {STRETCH}) n = {STRETCH};"]
        row += _combined(pattern, stage, taken, each)
    else:
        before, after = [], []
        pixels = PIECE // pattern.lanes
        limit = [f"if (stream && n > {pixels}) n = {pixels};"] if streams else []
        row += _mapped(pattern, stage, taken, each, streams)
    count = len(pattern.dtypes)
    return block(
        "",
        *before,
        "int64_t begin = from, col = begin % inner;",
        f"mg_start(a, {count}, loops - 1, begin / inner, at, index);",
        *block(
            "while (begin < to)",
            "int64_t n = inner - col < to - begin ? inner - col : to - begin;",
            *limit,
            *row,
            "begin += n;",
            *block(
                "if ((col += n) == inner)",
                "col = 0;",
                f"mg_next(a, {count}, loops - 1, at, index);",
            ),
            *after,
        ),
        *(["if (stream) mg_fence();"] if streams else []),
    )


def _accumulated(pattern: KernelPattern, reduced: list[int]) -> tuple[list[str], list[str]]:
    """Statements that declare the accumulators of short stretches, and that empty them."""
    made, clear, fold = [], [], []
    for v in reduced:
        value, lane = pattern.values[v], f"lane{v}[u * {pattern.lanes} + k]"
        short, _ = accumulators(pattern, value)
        made.append(f"{short} lane{v}[{PIXELS * pattern.lanes}];")
        clear.append(f"{lane} = {identity(pattern, value)};")
        fold.append(f"total{v}[k] = {combine(value, lane, f'total{v}[k]')};")
    each = f"for (int u = 0; u < {PIXELS}; u++)"
    empty = [each, *indented(_each_lane(pattern, fold + clear))]
    when = f"if ((filled += n) >= {STRETCH} || begin == to)"
    return (
        [*made, each, *indented(_each_lane(pattern, clear)), "int64_t filled = 0;"],
        block(when, "filled = 0;", *empty),
    )


def _combined(pattern: KernelPattern, stage: int, taken: list[str], each: list[int]) -> list[str]:
    """Statements that combine the pixels of a row, and store others."""
    body = [*taken, *(declare(pattern, v, "(j + u)") for v in each)]
    for k in pattern.stored(stage):
        body.append(f"{element(pattern, k, '(j + u)')} = v{pattern.source(k)};")
    for v in pattern.reduced(stage):
        value, lane = pattern.values[v], f"lane{v}[u * {pattern.lanes} + k]"
        body.append(f"{lane} = {combine(value, widened(pattern, value), lane)};")
    inside = indented(_each_lane(pattern, body))
    return [
        "int64_t j = 0;",
        f"for (; j + {PIXELS} <= n; j += {PIXELS})",
        *indented([f"for (int u = 0; u < {PIXELS}; u++)", *inside]),
        "for (int u = 0; u < n - j; u++)",
        *inside,
    ]


def _mapped(
    pattern: KernelPattern, stage: int, taken: list[str], each: list[int], streams: list[int]
) -> list[str]:
    """Statements that store the pixels of a row."""
    lanes = pattern.lanes
    body = [*taken, *(declare(pattern, v, "j") for v in each)]
    before, after = [], []
    for k in pattern.stored(stage):
        to = f"out{k}[j * {lanes} + k]" if k in streams else element(pattern, k, "j")
        body.append(f"{to} = v{pattern.source(k)};")
    for k in streams:
        held = c_type(pattern.dtypes[k])
        before.append(f"{held} piece{k}[{PIECE}];")
        before.append(f"{held} *out{k} = stream ? piece{k} : p{k};")
        after.append(f"if (stream) mg_stream(p{k}, piece{k}, n * {lanes} * sizeof *piece{k});")
    inside = indented(_each_lane(pattern, body))
    return [*before, "for (int64_t j = 0; j < n; j++)", *inside, *after]


def _splits(pattern: KernelPattern) -> list[str]:
    """Statements that keep a split's results, or combine those of all."""
    reductions, keep, join = pattern.reductions, [], []
    for r, v in enumerate(reductions):
        value = pattern.values[v]
        _, long = accumulators(pattern, value)
        cell = f"((unit * splits + %s) * {len(reductions)} + {r}) * {pattern.lanes} + k"
        at = f"*({long} *)(partial + 8 * ({cell}))"
        keep.append(f"{at % 'split'} = total{v}[k];")
        join.append(f"total{v}[k] = {combine(value, at % 's', f'total{v}[k]')};")
    return split_or_join(_each_lane(pattern, keep), _each_lane(pattern, join))
