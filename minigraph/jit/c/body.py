"""C statements of kernels of all forms."""

from __future__ import annotations

from collections.abc import Sequence

from minigraph.graph import BFLOAT16, BOOL
from minigraph.jit.c.buffers import store_element
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type, expression, filled, limits
from minigraph.jit.kernel import SPLIT_MULTIPLE
from minigraph.jit.pattern import KeptValue, KernelPattern, Value
from minigraph.jit.small_float import SMALL_FLOATS
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.reduction import Reduction

# The beginning of every function that computes units.  `partial` is the scratch memory: the partial
# results of splits, or kept rows.
HEAD = """const int64_t unit_axes = a[1], loop_axes = a[2], splits = a[3];
const int64_t record = unit_axes + loop_axes + 2;
const int64_t *extent = a + 7 + unit_axes, *operand = extent + loop_axes;
const int64_t *constants = operand + {records} * record;
char *const partial = slots[a[5]] + a[6];
int64_t unit_offset[{records}], row_offset[{records}], row_stride[{records}];
int64_t index[MG_MAX_RANK], length = 1;
for (int64_t d = 0; d < loop_axes; d++) length *= extent[d];
const int64_t split_length = ((length + splits - 1) / splits + {most}) / {multiple} * {multiple};
const int64_t split_begin = split_length * split < length ? split_length * split : length;
const int64_t split_end = split_begin + split_length < length ? split_begin + split_length : length;
(void)partial; (void)constants; (void)run;"""

_ENTRY = """
int NAME(const int64_t *a, char **slots) {
  int64_t units = 1;
  const int64_t splits = a[3];
  for (int64_t d = 0; d < a[1]; d++) units *= a[7 + d];
  const int64_t count = COUNT, runs = RUNS, tasks = splits > 1 ? count * splits : a[0];
  if (a[0] <= 1) {
    NAME_units(a, slots, 0, count, 0, 0);
  } else {
    for (int64_t run = 0; run < runs; run++) {
      #pragma omp parallel for num_threads(a[0]) schedule(static)
      for (int64_t task = 0; task < tasks; task++) {
        const int64_t begin = splits > 1 ? task / splits : count * task / tasks;
        const int64_t end = splits > 1 ? begin + 1 : count * (task + 1) / tasks;
        NAME_units(a, slots, begin, end, task % splits, run);
      }
    }
  }WRITE
  return 0;
}
"""


def unit_function(
    pattern: KernelPattern, locate: Sequence[str], body: Sequence[str], after: Sequence[str] = ()
) -> str:
    """Return the C function that computes units, or one split of a unit.

    For a split unit, the argument `run` is the index of a run over the loops, in which the split
    computes its part of the elements.  After the last run, `run` is the number of runs, and the
    function writes the outputs that have one element for each unit.

    locate  statements that set the offsets of the operands in a unit
    body    statements that compute a unit
    after   statements after the last unit
    """
    arguments = "const int64_t *a, char **slots, int64_t unit, int64_t end, int64_t split,"
    head = f"static void NAME_units({arguments} int64_t run)"
    opening = HEAD.format(records=pattern.records, multiple=SPLIT_MULTIPLE, most=SPLIT_MULTIPLE - 1)
    units = block("for (; unit < end; unit++)", *locate, *body)
    return "\n" + function(head, [opening, *units, *after])


def entry(pattern: KernelPattern, count: str) -> str:
    """Return the C function that distributes units to threads.

    count  C expression for the number of units
    """
    write = f"""
  if (splits > 1)
    for (int64_t u = 0; u < count; u++) NAME_units(a, slots, u, u + 1, 0, {pattern.stages});"""
    writes = pattern.divisible and any(store.per_unit for store in pattern.stores)
    has_runs = pattern.divisible and pattern.stages > 1
    runs = f"splits > 1 ? {pattern.stages} : 1" if has_runs else "1"
    text = _ENTRY.replace("COUNT", count).replace("RUNS", runs)
    return text.replace("WRITE", write if writes else "")


def in_run(pattern: KernelPattern, stage: int, body: Sequence[str]) -> list[str]:
    """Return statements that execute `body` in the run `stage`."""
    if not pattern.divisible:
        return block("", *body)
    return block(f"if (splits == 1 || run == {stage})", *body)


def bases(pattern: KernelPattern, innermost: str) -> list[str]:
    """Return statements that declare the address of each operand in a unit, and its stride.

    innermost  C expression for the index of the innermost stride in an operand's record
    """
    lines = []
    for k, access in enumerate(pattern.accesses):
        lines.append(f"char *const base{k} = slots[operand[{k} * record]] + unit_offset[{k}];")
        if access == "strided":
            stride = "full_stride" if k in pattern.operand_windows else "stride"
            lines.append(f"const int64_t {stride}{k} = operand[{k} * record + {innermost}];")
        elif access == "fixed":
            lines.append(pointer(pattern, k, f"base{k}"))
    for k in range(len(pattern.dtypes), pattern.records):
        lines.append(f"const int64_t stride{k} = operand[{k} * record + {innermost}];")
    return lines


def row_operands(pattern: KernelPattern, stage: int) -> list[str]:
    """Return statements that declare pointers to the elements of a row, from column `col` on.

    They also declare whether the row is inside each window, and shorten the row to n elements, so
    that it crosses no border of a window and, outside of a window, is not longer than the zeros.
    """
    values, lines = pattern.run(stage), []
    for window in sorted({pattern.values[v].window for v in values} - {-1}):
        tests = []
        for counter, bound in pattern.bounds(window).items():
            k = len(pattern.dtypes) + counter
            position = f"unit_offset[{k}] + row_offset[{k}] + col * stride{k}"
            tests.append(f"mg_in_window({position}, stride{k}, constants + {bound}, &n)")
        lines.append(f"const int inside{window} = {' && '.join(tests)};")
    windows = pattern.operand_windows
    load_windows = sorted({windows[k] for k in pattern.loaded(values) if k in windows})
    if load_windows:
        inside = " && ".join(f"inside{window}" for window in load_windows)
        limit = f"MG_ZEROS / {pattern.lanes}"
        lines.append(f"if (!({inside}) && n > {limit}) n = {limit};")
    moving = pattern.moving(stage)
    return [*lines, *(pointer(pattern, k, f"base{k} + row_offset[{k}]", "col") for k in moving)]


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
    buffered: Sequence[int] = (),
    buffer_index: str = "",
) -> list[str]:
    """Return statements that compute and store the element `index` in a run over the loops.

    Values that an earlier run has kept are loaded; values that later runs need are kept, unless the
    run stores them anyway.

    values        values that the run computes or loads
    mask          C expression; operands are not accessed if it is 0
    buffered      outputs that are written to a buffer
    buffer_index  index of the element in the buffer, by default `index`
    """
    kept_before, lines = pattern.kept_before(stage), []
    for v in values:
        if v in kept_before:
            kept, ctype = kept_before[v], c_type(pattern.values[v].dtype)
            load = _if(mask if kept.operand >= 0 else "", _kept_element(pattern, kept, index))
            lines.append(f"const {ctype} v{v} = {load};")
        else:
            lines.append(declare(pattern, v, index, mask))
    stored = pattern.stored(stage)
    newly_kept = [kept for kept in pattern.kept if kept.run == stage and kept.operand not in stored]
    condition = f"if ({mask}) " if mask else ""
    for kept in newly_kept:
        store = f"{_kept_element(pattern, kept, index)} = v{kept.value};"
        lines.append(condition + store if kept.operand >= 0 else store)
    for k in stored:
        if k in buffered:
            store = store_element(pattern, stage, k, buffer_index or index)
        else:
            store = f"{element(pattern, k, index)} = v{pattern.source(k)};"
        lines.append(condition + store)
    return lines


def accumulate(pattern: KernelPattern, v: int, accumulator: str) -> str:
    """Return the statement that accumulates an element of a reduction."""
    value = pattern.values[v]
    return f"{accumulator} = {combine(value, widened(pattern, value), accumulator)};"


def over_rows(pattern: KernelPattern, row: Sequence[str], after: Sequence[str] = ()) -> list[str]:
    """Return a loop over the rows of a split.

    row    statements for n elements of a row, from column `col` on
    after  statements after them
    """
    odometer = f"a, {pattern.records}, loop_axes - 1"
    return [
        "int64_t begin = split_begin, col = split_begin - first_row * inner;",
        f"mg_odometer_start({odometer}, first_row, row_offset, row_stride, index);",
        *block(
            "while (begin < split_end)",
            "int64_t n = inner - col < split_end - begin ? inner - col : split_end - begin;",
            *row,
            "begin += n;",
            *block(
                "if ((col += n) == inner)",
                "col = 0;",
                f"mg_odometer_advance({odometer}, row_offset, row_stride, index);",
            ),
            *after,
        ),
    ]


def _if(mask: str, value: str) -> str:
    """Return the C expression `value`, which is not evaluated where `mask`, if any, is false."""
    return f"{mask} ? {value} : 0" if mask else value


def _kept_element(pattern: KernelPattern, kept: KeptValue, index: str) -> str:
    """Return the C lvalue that holds a kept value of the element `index`."""
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
        right = f"inside{value.window} ? v{inside} : v{outside}"
    elif value.op is None:
        right = _if(mask, element(pattern, value.operand, index))
        if value.dtype == BOOL:
            # A view of another dtype may have any byte.  gcc vectorises this minimum ten times
            # better than `!= 0`.
            right = f"({right}) > 1 ? 1 : ({right})" if mask else f"{right} > 1 ? 1 : {right}"
    else:
        operands = pattern.operand_dtypes(value)
        args = [f"v{a}" for a in value.args]
        right = expression(value.op, operands, value.dtype, args, index=f"(begin + {index})")
    # Compilers would pack vectors of floats to a variable of 16 bits and unpack it again.
    is_rounded = value.op is not None and value.dtype == BFLOAT16
    return f"const {'uint32_t' if is_rounded else c_type(value.dtype)} v{v} = {right};"


def element(pattern: KernelPattern, k: int, index: str) -> str:
    """Return the C lvalue of element `index` of operand `k`; with lanes, of lane k of a pixel."""
    access, across = pattern.accesses[k], pattern.across[k]
    if access == "unit":
        return f"p{k}[{index} * {pattern.lanes} + k]" if across else f"p{k}[{index}]"
    if access == "back":
        return f"p{k}[-(int64_t)({index})]"
    if access == "strided":
        const = "const " if k < pattern.inputs else ""
        lvalue = f"({const}{c_type(pattern.dtypes[k])} *)(p{k} + ({index}) * stride{k})"
        return f"({lvalue})[k]" if across else f"*{lvalue}"
    return f"p{k}[k]" if across else f"*p{k}"


def pointer(pattern: KernelPattern, k: int, base: str, column: str = "") -> str:
    """Return the declaration of a pointer to operand `k` in a row that starts at `base`.

    Outside of the operand's window the pointer points to zeros.
    """
    access, ctype = pattern.accesses[k], c_type(pattern.dtypes[k])
    const = "const " if k < pattern.inputs else ""
    window = pattern.operand_windows.get(k, -1)
    offset, last_zero = "", " + MG_ZEROS - 1" if access == "back" else ""
    if access == "strided":
        if column:
            offset = f" + {column} * {'stride' if window < 0 else 'full_stride'}{k}"
        if window < 0:
            return f"{const}char *p{k} = {base}{offset};"
    elif access == "back":
        offset = f" - {column} * (int64_t)sizeof({ctype})" if column else ""
    elif access == "unit" and column:
        lanes = f"{pattern.lanes} * " if pattern.across[k] else ""
        offset = f" + {column} * {lanes}(int64_t)sizeof({ctype})"
    address = f"({const}{ctype} *)({base}{offset})"
    if window < 0:
        return f"{const}{ctype} *p{k} = {address};"
    address = f"inside{window} ? {address} : ({const}{ctype} *)mg_zeros{last_zero}"
    if access == "strided":
        stride = f"const int64_t stride{k} = inside{window} ? full_stride{k} : 0;"
        return f"{stride} const char *p{k} = (const char *)({address});"
    return f"{const}{ctype} *p{k} = {address};"


def accumulators(pattern: KernelPattern, value: Value) -> tuple[str, str]:
    """Return the C types of the accumulator of a short stretch, and of the total."""
    assert isinstance(value.op, Reduction)
    source = pattern.values[value.args[0]].dtype
    assert source not in SMALL_FLOATS, "widen_reductions has cast it"
    if value.op.combine.startswith("("):  # a minimum or maximum does not round
        return (c_type(source),) * 2
    if kind(source) == "f":
        return c_type(source), "double"
    return (c_type(value.dtype),) * 2


def widened(pattern: KernelPattern, value: Value) -> str:
    """Return the operand of a reduction, cast to the C type of the accumulator."""
    short_type, _ = accumulators(pattern, value)
    (arg,) = value.args
    return f"v{arg}" if c_type(pattern.values[arg].dtype) == short_type else f"({short_type})v{arg}"


def identity(pattern: KernelPattern, value: Value) -> str:
    """Return the identity element of a reduction."""
    assert isinstance(value.op, Reduction)
    return filled(value.op, value.op.identity, **limits(pattern.values[value.args[0]].dtype))


def combine(value: Value, operand: str, accumulator: str) -> str:
    """Return the C expression that combines an operand with an accumulator."""
    assert isinstance(value.op, Reduction)
    return filled(value.op, value.op.combine, operand, accumulator)


def compensated(pattern: KernelPattern, value: Value) -> bool:
    """Whether a reduction is a sum of float64, whose total is a compensated sum."""
    assert isinstance(value.op, Reduction)
    return value.op.adds and accumulators(pattern, value) == ("double", "double")


def declare_total(pattern: KernelPattern, v: int, size: str = "") -> list[str]:
    """Return the declaration of the total of reduction `v`; `size`, such as [4], makes an array."""
    value = pattern.values[v]
    _, total_type = accumulators(pattern, value)
    error = [f"double error{v}{size};"] if compensated(pattern, value) else []
    return [f"{total_type} total{v}{size};", *error]


def clear_total(pattern: KernelPattern, v: int, subscript: str = "") -> list[str]:
    value = pattern.values[v]
    error = [f"error{v}{subscript} = 0;"] if compensated(pattern, value) else []
    return [f"total{v}{subscript} = {identity(pattern, value)};", *error]


def add_to_total(pattern: KernelPattern, v: int, partial: str, subscript: str = "") -> str:
    """Return the statement that combines a partial result with the total."""
    value, total = pattern.values[v], f"total{v}{subscript}"
    if not compensated(pattern, value):
        return f"{total} = {combine(value, partial, total)};"
    return f"mg_compensated_add(&{total}, &error{v}{subscript}, {partial});"


def complete_total(pattern: KernelPattern, v: int, subscript: str = "") -> list[str]:
    """Return the statements after the last partial result."""
    if not compensated(pattern, pattern.values[v]):
        return []
    return [f"total{v}{subscript} = mg_compensated_sum(total{v}{subscript}, error{v}{subscript});"]
