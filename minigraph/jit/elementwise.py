"""Kernels that compute each output element from the input elements at the same place.

The text of a kernel that adds a per-channel bias, x + b, is

    static void NAME_part(const int64_t *a, char **slots, int64_t begin, int64_t end) {
      ...                                     for each row of the part that a thread does:
        const float *p0 = ...; const float *p1 = ...; float *q2 = ...;
        const float x1 = *p1;                 the same along the innermost axis
        for (int64_t j = 0; j < n; j++)
          q2[j] = p0[j] + x1;
    }

It depends on the op, the types, and on how each operand runs along the innermost axis; the number
of outer axes, extents and strides are in the argument block:

    threads, rank, extents[rank], then for each operand (inputs, then the output): slot, offset,
    strides[rank]; the last axis is the innermost; at the end, whether to stream.

Streaming writes the output past the caches, which saves reading it first: right for an output that
does not fit them.  The row is then computed piece by piece into a buffer that does.

The output may lie where an input lies that has the same strides: elements are read before the one
at the same place is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigraph.dtypes import DType
from minigraph.graph import Op
from minigraph.jit.expression import c_type, expression, stored, support
from minigraph.jit.space import Space, access

PIECE = 1024  # elements that are computed before they are streamed


@dataclass(frozen=True)
class Pattern:
    """What the text of a kernel depends on.

    accesses  of the inputs and, last, of the output: "unit", "same" or "strided"
    """

    op: Op
    inputs: tuple[DType, ...]
    output: DType
    accesses: tuple[str, ...]


def pattern(op: Op, inputs: Sequence[DType], output: DType, space: Space) -> Pattern:
    """Return the pattern of an op over a collapsed space (inputs, then the output)."""
    sizes = [*(d.itemsize for d in inputs), output.itemsize]
    inner = [s[-1] for s in space.strides]
    return Pattern(op, tuple(inputs), output, tuple(map(access, inner, sizes)))


def block(space: Space, threads: int, places: Sequence[tuple[int, int]], stream: bool) -> list[int]:
    """Return the argument block; `places` gives slot and offset of each operand."""
    values = [threads, len(space.extents), *space.extents]
    for (slot, offset), strides in zip(places, space.strides, strict=True):
        values += [slot, offset, *strides]
    return [*values, int(stream)]


def text(name: str, kernel: Pattern) -> tuple[list[str], str]:
    """Return the C functions that the kernel needs, and the kernel."""
    count = len(kernel.inputs)
    dtypes = [*kernel.inputs, kernel.output]
    steps: list[str] = []
    pointers: list[str] = []
    args: list[str] = []
    for k, (dtype, how) in enumerate(zip(dtypes, kernel.accesses, strict=True)):
        held = c_type(dtype)
        const, letter = ("const ", "p") if k < count else ("", "q")
        steps.append(f"char *const base{k} = slots[operand[{k} * (rank + 2)]];")
        if how == "strided":
            steps.append(f"const int64_t step{k} = operand[{k} * (rank + 2) + 1 + rank];")
            pointers.append(f"{const}char *{letter}{k} = base{k} + at[{k}] + col * step{k};")
            args.append(f"*({const}{held} *)({letter}{k} + j * step{k})")
            continue
        column = f" + col * (int64_t)sizeof({held})" if how == "unit" else ""
        pointers.append(
            f"{const}{held} *{letter}{k} = ({const}{held} *)(base{k} + at[{k}]{column});"
        )
        if how == "same" and k < count:
            pointers.append(f"const {held} x{k} = *p{k};")
        args.append(f"x{k}" if how == "same" and k < count else f"{letter}{k}[j]")
    value = expression(kernel.op, kernel.inputs, kernel.output, args[:count])
    index = "const int64_t i = begin + j;" if "(uint64_t)i" in value else ""
    result = stored(kernel.output, value)
    stream = fence = ""
    if kernel.accesses[count] == "unit":
        stream = f"const int64_t stream = operand[{count + 1} * (rank + 2)];"
        loop = lines(
            [
                f"for (int64_t first = 0; first < n; first += {PIECE}) {{",
                f"  {c_type(kernel.output)} piece[{PIECE}];",
                f"  const int64_t last = stream && n - first > {PIECE} ? first + {PIECE} : n;",
                f"  {c_type(kernel.output)} *out = stream ? piece - first : q{count};",
                "  #pragma GCC ivdep",
                "  for (int64_t j = first; j < last; j++) {",
                f"    {index}",
                f"    out[j] = {result};",
                "  }",
                "  if (!stream) break;",
                f"  mg_stream(q{count} + first, piece, (last - first) * sizeof *piece);",
                "}",
            ],
            4,
        )
        fence = "if (stream) mg_fence();"
    else:
        loop = lines(
            [
                "#pragma GCC ivdep",
                "for (int64_t j = 0; j < n; j++) {",
                f"  {index}",
                f"  {args[count]} = {result};",
                "}",
            ],
            4,
        )
    body = f"""
static void {name}_part(const int64_t *a, char **slots, int64_t begin, int64_t end) {{
  const int64_t rank = a[1], *operand = a + 2 + rank;
  const int64_t inner = a[1 + rank];
  {stream}
  int64_t at[{count + 1}], index[MG_MAX_RANK], col = begin % inner;
  {lines(steps, 2)}
  mg_start(a, {count + 1}, begin / inner, at, index);
  while (begin < end) {{
    const int64_t n = inner - col < end - begin ? inner - col : end - begin;
    {lines(pointers, 4)}
    {loop}
    begin += n;
    col = 0;
    mg_next(a, {count + 1}, at, index);
  }}
  {fence}
}}
int {name}(const int64_t *a, char **slots) {{
  mg_share({name}_part, a, slots);
  return 0;
}}
"""
    return support(kernel.op, kernel.inputs, kernel.output), body


def lines(statements: Sequence[str], indent: int) -> str:
    """Join statements, indented as deep as the place they go to."""
    return ("\n" + " " * indent).join(statements)
