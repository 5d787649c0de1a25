"""Kernels that combine elements along axes.

Two forms, by what is innermost in memory.  "row": an axis that is reduced, so a thread runs along
it with a few partial results side by side; "column": an axis that is kept, so a thread runs down a
block of columns.  Small integers are accumulated in 64 bits; floats in their own type over short
stretches, which are then combined in double, so the error does not grow with the length.

A reduction that has nothing to combine with gives the index of the largest element: "index".

Where there are fewer outputs than threads the reduced space is split, the partial results are
kept, and one thread combines them in order: the same bits for the same number of threads.

The argument block:

    threads, splits, slot and offset of: partial results, input, output;
    kept rank, reduced rank, kept extents, kept strides, reduced extents, reduced strides

Strides are those of the input, in bytes.  The output is contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.dtypes import DType
from minigraph.jit.expression import c_type
from minigraph.jit.space import Space, access
from minigraph.ops.elementwise import kind
from minigraph.ops.reduction import Reduction

COLUMNS = 512  # how many columns one thread accumulates at once
STRETCH = 4096  # elements that are combined in the input's own type


@dataclass(frozen=True)
class Pattern:
    """What the text of a kernel depends on: all but the axes, extents and strides."""

    op: type[Reduction]
    input: DType
    output: DType
    form: str  # "row", "column" or "index"
    access: str  # along the innermost axis: "unit" or "strided"


@dataclass(frozen=True)
class Layout:
    """A reduction's input: extents and strides of the axes that are kept and of the others."""

    kept: tuple[tuple[int, int], ...]
    reduced: tuple[tuple[int, int], ...]
    form: str

    @property
    def outputs(self) -> int:
        return math.prod(n for n, _ in self.kept)

    @property
    def length(self) -> int:
        return math.prod(n for n, _ in self.reduced)

    def splits(self, threads: int) -> int:
        """Into how many parts to split the reduced space, so that all threads have work."""
        units = self.outputs if self.form == "row" else -(-self.outputs // COLUMNS)
        if threads == 1 or units >= 2 * threads or self.form == "index":
            return 1
        return max(1, min(-(-2 * threads // units), self.length // STRETCH))


def layout(op: Reduction, space: Space) -> Layout:
    """Return the layout for a collapsed space of the input and the output."""
    axes = list(zip(space.extents, *space.strides, strict=True))
    kept = tuple((n, x) for n, x, y in axes if y or n == 1)
    reduced = tuple((n, x) for n, x, y in axes if not y and n > 1)
    last_kept = axes[-1][2] != 0 or not reduced
    form = "index" if not op.combine else "column" if last_kept else "row"
    return Layout(kept or ((1, 0),), reduced or ((1, 0),), form)


def pattern(op: Reduction, input: DType, output: DType, shape: Layout) -> Pattern:
    """Return the pattern of a reduction."""
    inner = shape.kept[-1][1] if shape.form == "column" else shape.reduced[-1][1]
    how = access(inner, input.itemsize)
    return Pattern(type(op), input, output, shape.form, "unit" if how == "unit" else "strided")


def block(shape: Layout, threads: int, places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the argument block; `places`: slot and offset of partial results, input, output."""
    values = [threads, shape.splits(threads), *(v for place in places for v in place)]
    values += [len(shape.kept), len(shape.reduced)]
    for axes in (shape.kept, shape.reduced):
        values += [*(n for n, _ in axes), *(s for _, s in axes)]
    return values


def scratch(shape: Layout, threads: int) -> int:
    """Return the bytes that partial results need."""
    splits = shape.splits(threads)
    return 8 * shape.outputs * splits if splits > 1 else 0


def _accumulators(kernel: Pattern) -> tuple[str, str]:
    """Return the C types in which short stretches, and all of them, are accumulated."""
    if kernel.op.combine.startswith("("):  # a choice between elements needs nothing wider
        return (c_type(kernel.input),) * 2
    if kind(kernel.input) == "f":
        return c_type(kernel.input), "double"
    return (c_type(kernel.output),) * 2


def limits(dtype: DType) -> dict[str, str]:
    """Return the C names of the lowest and the highest value."""
    if kind(dtype) == "f":
        return {"lowest": "-INFINITY", "highest": "INFINITY"}
    if dtype == np.bool_:
        return {"lowest": "0", "highest": "1"}
    name = dtype.name.upper()
    lowest = f"{name}_MIN" if kind(dtype) == "i" else "0"
    return {"lowest": lowest, "highest": f"{name}_MAX"}


def text(kernel: Pattern) -> str:
    """Return the kernel, called NAME."""
    held = c_type(kernel.input)
    if kernel.form == "index":
        return _INDEX % {"T": held}
    short, long = _accumulators(kernel)
    element = "p[%s]"
    if kernel.access == "strided":
        element = f"*(const {held} *)((const char *)p + (%s) * step)"
    at_j = f"({short}){element % 'j'}"
    fill = {
        "T": held,
        "S": short,
        "L": long,
        "R": c_type(kernel.output),
        "identity": kernel.op.identity.format(**limits(kernel.input)),
        "advance": f"sizeof({held})" if kernel.access == "unit" else "step",
        "short": kernel.op.combine.format(f"({short}){element % 'j + k'}", "lane[k]"),
        "rest": kernel.op.combine.format(at_j, "lane[0]"),
        "column": kernel.op.combine.format(at_j, "lane[j]"),
        "flush": kernel.op.combine.format("lane[j]", "sum[j]"),
        "widen": kernel.op.combine.format("lane[i + k]", "wide[k]"),
        "join": kernel.op.combine.format("wide[k]", "part"),
        "total": kernel.op.combine.format("part", "total"),
        "partial": kernel.op.combine.format("partial[o * splits + s]", "total"),
        "columns": COLUMNS,
        "stretch": STRETCH,
    }
    return (_ROW if kernel.form == "row" else _COLUMN) % fill


_OPEN = """
  const int64_t threads = a[0], splits = a[1], kept = a[8], reduced = a[9];
  const int64_t *kept_extent = a + 10, *kept_stride = kept_extent + kept;
  const int64_t *extent = kept_stride + kept, *stride = extent + reduced;
  const char *x = slots[a[4]] + a[5];
  int64_t outputs = 1, length = 1;
  for (int64_t d = 0; d < kept; d++) outputs *= kept_extent[d];
  for (int64_t d = 0; d < reduced; d++) length *= extent[d];
  (void)threads; (void)splits; (void)stride;
"""

_CLOSE = """  if (splits > 1)
    for (int64_t o = 0; o < outputs; o++) {
      %(L)s total = %(identity)s;
      for (int64_t s = 0; s < splits; s++) total = %(partial)s;
      y[o] = total;
    }
  return 0;
}
"""

_ROW = (
    """
static %(L)s NAME_run(const char *x, int64_t rank, const int64_t *extent, const int64_t *stride,
                      int64_t begin, int64_t end) {
  const int64_t inner = extent[rank - 1], step = stride[rank - 1];
  (void)step;
  int64_t index[MG_MAX_RANK], row = begin / inner, col = begin %% inner;
  for (int64_t d = rank - 2; d >= 0; d--) {
    index[d] = row %% extent[d];
    row /= extent[d];
    x += index[d] * stride[d];
  }
  %(L)s total = %(identity)s;
  while (begin < end) {
    int64_t left = inner - col < end - begin ? inner - col : end - begin;
    const %(T)s *p = (const %(T)s *)(x + col * stride[rank - 1]);
    begin += left;
    while (left > 0) {
      const int64_t n = left < %(stretch)s ? left : %(stretch)s;
      %(S)s lane[32];
      for (int k = 0; k < 32; k++) lane[k] = %(identity)s;
      int64_t j = 0;
      for (; j + 32 <= n; j += 32)
        for (int k = 0; k < 32; k++) lane[k] = %(short)s;
      for (; j < n; j++) lane[0] = %(rest)s;
      %(L)s wide[8], part = %(identity)s;
      for (int k = 0; k < 8; k++) wide[k] = %(identity)s;
      for (int i = 0; i < 32; i += 8)
        for (int k = 0; k < 8; k++) wide[k] = %(widen)s;
      for (int k = 0; k < 8; k++) part = %(join)s;
      total = %(total)s;
      p = (const %(T)s *)((const char *)p + n * (int64_t)%(advance)s);
      left -= n;
    }
    col = 0;
    for (int64_t d = rank - 2; d >= 0; d--) {
      x += stride[d];
      if (++index[d] < extent[d]) break;
      x -= extent[d] * stride[d];
      index[d] = 0;
    }
  }
  return total;
}
int NAME(const int64_t *a, char **slots) {"""
    + _OPEN
    + """
  %(L)s *partial = (%(L)s *)(slots[a[2]] + a[3]);
  %(R)s *y = (%(R)s *)(slots[a[6]] + a[7]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < outputs * splits; u++) {
    int64_t o = u / splits;
    const char *from = x;
    for (int64_t d = kept - 1; d >= 0; d--) {
      from += o %% kept_extent[d] * kept_stride[d];
      o /= kept_extent[d];
    }
    const int64_t part = (length + splits - 1) / splits, begin = u %% splits * part;
    const int64_t end = begin + part < length ? begin + part : length;
    const %(L)s value = NAME_run(from, reduced, extent, stride, begin, end);
    if (splits == 1) y[u] = value;
    else partial[u] = value;
  }
"""
    + _CLOSE
)

_COLUMN = (
    """
int NAME(const int64_t *a, char **slots) {"""
    + _OPEN
    + """
  %(L)s *partial = (%(L)s *)(slots[a[2]] + a[3]);
  %(R)s *y = (%(R)s *)(slots[a[6]] + a[7]);
  const int64_t inner = kept_extent[kept - 1], step = kept_stride[kept - 1];
  const int64_t blocks = (inner + %(columns)s - 1) / %(columns)s, units = outputs / inner * blocks;
  (void)step;
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < units * splits; u++) {
    const int64_t unit = u / splits, first = unit %% blocks * %(columns)s;
    const int64_t n = inner - first < %(columns)s ? inner - first : %(columns)s;
    int64_t outer = unit / blocks, o = outer * inner + first;
    const char *from = x + first * kept_stride[kept - 1];
    for (int64_t d = kept - 2; d >= 0; d--) {
      from += outer %% kept_extent[d] * kept_stride[d];
      outer /= kept_extent[d];
    }
    const int64_t part = (length + splits - 1) / splits, begin = u %% splits * part;
    const int64_t end = begin + part < length ? begin + part : length;
    int64_t index[MG_MAX_RANK], row = begin;
    for (int64_t d = reduced - 1; d >= 0; d--) {
      index[d] = row %% extent[d];
      row /= extent[d];
      from += index[d] * stride[d];
    }
    %(S)s lane[%(columns)s];
    %(L)s sum[%(columns)s];
    for (int64_t j = 0; j < n; j++) sum[j] = %(identity)s;
    for (int64_t r = begin; r < end;) {
      const int64_t stop = r + 64 < end ? r + 64 : end;
      for (int64_t j = 0; j < n; j++) lane[j] = %(identity)s;
      for (; r < stop; r++) {
        const %(T)s *p = (const %(T)s *)from;
        for (int64_t j = 0; j < n; j++) lane[j] = %(column)s;
        for (int64_t d = reduced - 1; d >= 0; d--) {
          from += stride[d];
          if (++index[d] < extent[d]) break;
          from -= extent[d] * stride[d];
          index[d] = 0;
        }
      }
      for (int64_t j = 0; j < n; j++) sum[j] = %(flush)s;
    }
    for (int64_t j = 0; j < n; j++) {
      if (splits == 1) y[o + j] = sum[j];
      else partial[(o + j) * splits + u %% splits] = sum[j];
    }
  }
"""
    + _CLOSE
)

_INDEX = (
    """
int NAME(const int64_t *a, char **slots) {"""
    + _OPEN
    + """
  int64_t *y = (int64_t *)(slots[a[6]] + a[7]);
  #pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
  for (int64_t u = 0; u < outputs; u++) {
    int64_t o = u, at = 0;
    const char *from = x;
    for (int64_t d = kept - 1; d >= 0; d--) {
      from += o %% kept_extent[d] * kept_stride[d];
      o /= kept_extent[d];
    }
    %(T)s best = *(const %(T)s *)from;
    for (int64_t j = 1; j < length; j++) {
      const %(T)s v = *(const %(T)s *)(from + j * stride[reduced - 1]);
      if (v > best || (v != v && best == best)) {
        best = v;
        at = j;
      }
    }
    y[u] = at;
  }
  return 0;
}
"""
)
