"""C statements that the kernels of all forms consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minigraph.graph import BFLOAT16, BOOL
from minigraph.jit.c.pieces import put_element
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type, expression, filled, limits
from minigraph.jit.kernel import SHARE
from minigraph.jit.pattern import KeptValue, KernelPattern, Value
from minigraph.jit.small_float import SMALL_FLOATS
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.reduction import Reduction

# The beginning of every function that computes units.  Only splits and kept rows use `partial`.
HEAD = """const int64_t units = a[1], loops = a[2], splits = a[3];
const int64_t pitch = units + loops + 2;
const int64_t *extent = a + 7 + units, *operand = extent + loops;
const int64_t *constants = operand + {walked} * pitch;
char *const partial = slots[a[5]] + a[6];
int64_t place[{walked}], at[{walked}], step[{walked}], index[MG_MAX_RANK], length = 1;
for (int64_t d = 0; d < loops; d++) length *= extent[d];
const int64_t share = ((length + splits - 1) / splits + {most}) / {share} * {share};
const int64_t from = share * split < length ? share * split : length;
const int64_t to = from + share < length ? from + share : length;
(void)partial; (void)constants; (void)run;"""

_ENTRY = """
int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = COUNT, runs = RUNS, shares = splits > 1 ? count * splits : a[0];
  if (a[0] <= 1) {
    NAME_units(a, slots, 0, count, 0, 0);
  } else {
    for (int64_t run = 0; run < runs; run++) {
      #pragma omp parallel for num_threads(a[0]) schedule(static)
      for (int64_t w = 0; w < shares; w++) {
        const int64_t begin = splits > 1 ? w / splits : count * w / shares;
        const int64_t end = splits > 1 ? begin + 1 : count * (w + 1) / shares;
        NAME_units(a, slots, begin, end, w % splits, run);
      }
    }
  }JOIN
  return 0;
}
"""


def unit_function(
    pattern: KernelPattern, place: Sequence[str], body: Sequence[str], after: Sequence[str] = ()
) -> str:
    """Return the C function that computes units, or a part of a split unit.

    For a split unit, its argument `run` is the index of a run over the loops, in which the split
    computes its share of the elements, or the number of runs: then it writes the outputs that have
    one element for each unit.

    place  statements that compute the first elements of the operands of a unit
    body   statements that compute a unit
    after  statements after the last unit
    """
    arguments = "const int64_t *a, char **slots, int64_t unit, int64_t end, int64_t split,"
    head = f"static void NAME_units({arguments} int64_t run)"
    opening = HEAD.format(walked=pattern.walked, share=SHARE, most=SHARE - 1)
    units = block("for (; unit < end; unit++)", *place, *body)
    return "\n" + function(head, [opening, *units, *after])


def entry(pattern: KernelPattern, count: str) -> str:
    """Return the C function that distributes units to threads.

    count  C expression for the number of units
    """
    join = f"""
  if (splits > 1)
    for (int64_t u = 0; u < count; u++) NAME_units(a, slots, u, u + 1, 0, {pattern.stages});"""
    writes = pattern.divisible and any(store.per_unit for store in pattern.stores)
    again = pattern.divisible and pattern.stages > 1
    runs = f"splits > 1 ? {pattern.stages} : 1" if again else "1"
    text = _ENTRY.replace("COUNT", count).replace("RUNS", runs)
    return text.replace("JOIN", join if writes else "")


def in_run(pattern: KernelPattern, stage: int, body: Sequence[str]) -> list[str]:
    """Return statements that execute `body`, the run `stage`, unless a split executes another."""
    if not pattern.divisible:
        return block("", *body)
    return block(f"if (splits == 1 || run == {stage})", *body)


def bases(pattern: KernelPattern, last: str) -> list[str]:
    """Return statements that declare the address of each operand of a unit, and fixed operands.

    last  C expression for the index of the innermost stride among an operand's words
    """
    made = []
    for k, how in enumerate(pattern.accesses):
        made.append(f"char *const base{k} = slots[operand[{k} * pitch]] + place[{k}];")
        if how == "strided":
            step = "pace" if k in pattern.masked else "step"
            made.append(f"const int64_t {step}{k} = operand[{k} * pitch + {last}];")
        elif how == "fixed":
            made.append(pointer(pattern, k, f"base{k}"))
    for k in range(len(pattern.dtypes), pattern.walked):
        made.append(f"const int64_t pace{k} = operand[{k} * pitch + {last}];")
    return made


def row_operands(pattern: KernelPattern, stage: int) -> list[str]:
    """Return statements that declare pointers to the elements of a row, from `col` on, and windows.

    They shorten the row, of n elements, so that it does not cross the border of a window, and is no
    longer than the array of zeros that is read outside of windows.
    """
    values, made, first = pattern.run(stage), [], len(pattern.dtypes)
    windows = sorted({pattern.values[v].window for v in values} - {-1})
    for window in windows:
        tests = [
            f"mg_within(place[{first + c}] + at[{first + c}] + col * pace{first + c}, "
            f"pace{first + c}, constants + {bound}, &n)"
            for c, bound in pattern.bounds(window).items()
        ]
        made.append(f"const int in{window} = {' && '.join(tests)};")
    loads = sorted({pattern.masked[k] for k in pattern.loaded(values) if k in pattern.masked})
    if loads:
        inside = " && ".join(f"in{window}" for window in loads)
        most = f"MG_ZEROS / {pattern.lanes}"
        made.append(f"if (!({inside}) && n > {most}) n = {most};")
    moving = pattern.moving(stage)
    return [*made, *(pointer(pattern, k, f"base{k} + at[{k}]", "col") for k in moving)]


def share_results(
    pattern: KernelPattern,
    stage: int,
    cell: str,
    at: str = "",
    each: Callable[[list[str]], list[str]] = list,
) -> list[str]:
    """Return statements that store a split's partial results, or later combine those of all splits.

    cell  index of result {r} of split {s} among the partial results
    at    index of a total, such as [k], in the loop that `each` returns
    """
    keep, join = [], []
    for v in pattern.reduced(stage) if pattern.divisible else ():
        r, value = pattern.reductions.index(v), pattern.values[v]
        _, long = accumulators(pattern, value)
        place = f"*({long} *)(partial + 8 * ({cell}))"
        keep.append(f"{place.format(s='split', r=r)} = total{v}{at};")
        new = combine(value, place.format(s="s", r=r), f"total{v}{at}")
        join.append(f"total{v}{at} = {new};")
    if not keep:
        return []
    return block(
        "if (splits > 1)",
        *block(f"if (run == {stage})", *each(keep), "return;"),
        *block("for (int64_t s = 0; s < splits; s++)", *each(join)),
    )


def is_costly(pattern: KernelPattern, stage: int) -> bool:
    ops = (pattern.values[v].op for v in pattern.run(stage))
    return any(isinstance(op, Elementwise) and op.costly for op in ops)


def reduction_name(pattern: KernelPattern, v: int, prefix: str) -> str:
    """Return the name of a C function that kernels with the same kind of reduction share."""
    value = pattern.values[v]
    assert value.op is not None
    source = pattern.values[value.args[0]].dtype
    return f"{prefix}_{value.op.name}_{source.name}_{value.dtype.name}"


def compute_element(
    pattern: KernelPattern,
    stage: int,
    values: Sequence[int],
    index: str,
    mask: str = "",
    streams: Sequence[int] = (),
    place: str = "",
) -> list[str]:
    """Return statements that compute and store the element `index` in a run over the loops.

    Values that an earlier run has kept are loaded; values that later runs need are kept, unless the
    run stores them anyway.

    values   values that the run computes or loads
    mask     C expression; operands are not accessed if it is 0
    streams  outputs that are written to pieces
    place    index of the element in a piece, by default `index`
    """
    there, made = pattern.kept_before(stage), []
    for v in values:
        if v in there:
            held = c_type(pattern.values[v].dtype)
            read = _if(mask if there[v].operand >= 0 else "", _place(pattern, there[v], index))
            made.append(f"const {held} v{v} = {read};")
        else:
            made.append(declare(pattern, v, index, mask))
    stored = pattern.stored(stage)
    new = [kept for kept in pattern.kept if kept.run == stage and kept.operand not in stored]
    when = f"if ({mask}) " if mask else ""
    for kept in new:
        put = f"{_place(pattern, kept, index)} = v{kept.value};"
        made.append(when + put if kept.operand >= 0 else put)
    for k in stored:
        put = f"{element(pattern, k, index)} = v{pattern.source(k)};"
        made.append(
            when + (put_element(pattern, stage, k, place or index) if k in streams else put)
        )
    return made


def accumulate(pattern: KernelPattern, v: int, so_far: str) -> str:
    """Return the statement that accumulates an element of a reduction."""
    value = pattern.values[v]
    return f"{so_far} = {combine(value, widened(pattern, value), so_far)};"


def over_rows(pattern: KernelPattern, row: Sequence[str], after: Sequence[str] = ()) -> list[str]:
    """Return a loop that executes `row`, for n elements of a row from `col` on, then `after`."""
    return [
        "int64_t begin = from, col = from - first_row * inner;",
        f"mg_start(a, {pattern.walked}, loops - 1, first_row, at, step, index);",
        *block(
            "while (begin < to)",
            "int64_t n = inner - col < to - begin ? inner - col : to - begin;",
            *row,
            "begin += n;",
            *block(
                "if ((col += n) == inner)",
                "col = 0;",
                f"mg_next(a, {pattern.walked}, loops - 1, at, step, index);",
            ),
            *after,
        ),
    ]


def _if(mask: str, read: str) -> str:
    """Return a C expression that reads only if `mask`, if there is one, is true."""
    return f"{mask} ? {read} : 0" if mask else read


def _place(pattern: KernelPattern, kept: KeptValue, index: str) -> str:
    """Return the place of a kept value of the element `index`."""
    if kept.operand < 0:
        return f"row{kept.value}[begin + {index}]"
    return element(pattern, kept.operand, index)


def declare(pattern: KernelPattern, v: int, index: str, mask: str = "") -> str:
    """Return the statement that computes or loads value `v` of the element `index`."""
    value = pattern.values[v]
    if value.literal:
        right = value.literal
    elif value.constant >= 0:
        right = f"*(const {c_type(value.dtype)} *)(constants + {value.constant})"
    elif value.op is None and value.args:
        inside, outside = value.args
        right = f"in{value.window} ? v{inside} : v{outside}"
    elif value.op is None:
        right = _if(mask, element(pattern, value.operand, index))
        if value.dtype == BOOL:
            # A view of another dtype may have any byte.  gcc vectorises this minimum ten times
            # better than `!= 0`.
            right = f"({right}) > 1 ? 1 : ({right})" if mask else f"{right} > 1 ? 1 : {right}"
    else:
        operands = [pattern.values[a].dtype for a in value.args]
        args = [f"v{a}" for a in value.args]
        right = expression(value.op, operands, value.dtype, args, index=f"(begin + {index})")
    # A variable of 16 bits would be packed from vectors of floats and unpacked again.
    narrow = value.op is not None and value.dtype == BFLOAT16
    return f"const {'uint32_t' if narrow else c_type(value.dtype)} v{v} = {right};"


def element(pattern: KernelPattern, k: int, index: str) -> str:
    """Return the element `index` along the innermost axis of operand `k`, of a pixel the lane k."""
    how, across = pattern.accesses[k], pattern.across[k]
    if how == "unit":
        return f"p{k}[{index} * {pattern.lanes} + k]" if across else f"p{k}[{index}]"
    if how == "back":
        return f"p{k}[-(int64_t)({index})]"
    if how == "strided":
        const = "const " if k < pattern.inputs else ""
        at = f"({const}{c_type(pattern.dtypes[k])} *)(p{k} + ({index}) * step{k})"
        return f"({at})[k]" if across else f"*{at}"
    return f"p{k}[k]" if across else f"*p{k}"


def pointer(pattern: KernelPattern, k: int, base: str, column: str = "") -> str:
    """Return the declaration of a pointer to operand `k` in a row that starts at `base`.

    Outside of the operand's window it points to zeros.
    """
    how, held = pattern.accesses[k], c_type(pattern.dtypes[k])
    const = "const " if k < pattern.inputs else ""
    window = pattern.masked.get(k, -1)
    step, behind = "", " + MG_ZEROS - 1" if how == "back" else ""
    if how == "strided":
        moved = f" + {column} * {'step' if window < 0 else 'pace'}{k}" if column else ""
        if window < 0:
            return f"{const}char *p{k} = {base}{moved};"
        step = f"const int64_t step{k} = in{window} ? pace{k} : 0; "
    elif how == "back":
        moved = f" - {column} * (int64_t)sizeof({held})" if column else ""
    else:
        many = f"{pattern.lanes} * " if pattern.across[k] else ""
        moved = f" + {column} * {many}(int64_t)sizeof({held})" if column and how == "unit" else ""
    address = f"({const}{held} *)({base}{moved})"
    if window < 0:
        return f"{const}{held} *p{k} = {address};"
    address = f"in{window} ? {address} : ({const}{held} *)mg_zeros{behind}"
    if how == "strided":
        return f"{step}const char *p{k} = (const char *)({address});"
    return f"{const}{held} *p{k} = {address};"


def accumulators(pattern: KernelPattern, value: Value) -> tuple[str, str]:
    """Return the C types for partial results of short stretches, and for the total."""
    assert isinstance(value.op, Reduction)
    source = pattern.values[value.args[0]].dtype
    assert source not in SMALL_FLOATS, "widen_reductions comes before"
    if value.op.combine.startswith("("):  # a minimum or maximum does not round
        return (c_type(source),) * 2
    if kind(source) == "f":
        return c_type(source), "double"
    return (c_type(value.dtype),) * 2


def widened(pattern: KernelPattern, value: Value) -> str:
    """Return the operand of a reduction, cast to the C type of partial results."""
    short, _ = accumulators(pattern, value)
    (arg,) = value.args
    return f"v{arg}" if c_type(pattern.values[arg].dtype) == short else f"({short})v{arg}"


def identity(pattern: KernelPattern, value: Value) -> str:
    """Return the identity element of a reduction."""
    assert isinstance(value.op, Reduction)
    return filled(value.op, value.op.identity, **limits(pattern.values[value.args[0]].dtype))


def combine(value: Value, new: str, so_far: str) -> str:
    """Return the C expression that combines an element with a partial result."""
    assert isinstance(value.op, Reduction)
    return filled(value.op, value.op.combine, new, so_far)


def compensated(pattern: KernelPattern, value: Value) -> bool:
    """Whether a reduction is a sum of float64, which `mg_add` compensates for rounding errors."""
    assert isinstance(value.op, Reduction)
    return value.op.adds and accumulators(pattern, value) == ("double", "double")


def total_of(pattern: KernelPattern, v: int, most: str = "") -> list[str]:
    """Return the declaration of the total of reduction `v`, or of an array of `most`, as [512]."""
    value = pattern.values[v]
    _, long = accumulators(pattern, value)
    rest = [f"double rest{v}{most};"] if compensated(pattern, value) else []
    return [f"{long} total{v}{most};", *rest]


def clear_total(pattern: KernelPattern, v: int, at: str = "") -> list[str]:
    value = pattern.values[v]
    rest = [f"rest{v}{at} = 0;"] if compensated(pattern, value) else []
    return [f"total{v}{at} = {identity(pattern, value)};", *rest]


def add_to_total(pattern: KernelPattern, v: int, new: str, at: str = "") -> str:
    """Return the statement that combines a partial result with the total."""
    value, total = pattern.values[v], f"total{v}{at}"
    if not compensated(pattern, value):
        return f"{total} = {combine(value, new, total)};"
    return f"mg_add(&{total}, &rest{v}{at}, {new});"


def complete_total(pattern: KernelPattern, v: int, at: str = "") -> list[str]:
    """Return the statements after the last partial result."""
    if not compensated(pattern, pattern.values[v]):
        return []
    return [f"total{v}{at} = mg_sum(total{v}{at}, rest{v}{at});"]
