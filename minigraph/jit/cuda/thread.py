"""Statements of all CUDA kernels: the position of a thread, loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minigraph.graph import DType
from minigraph.jit.c.body import declare as c_declare
from minigraph.jit.c.body import element, pointer
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type, expression, literal
from minigraph.jit.pattern import ELEMENT, ROW, KernelPattern
from minigraph.jit.small_float import SMALL_FLOATS, compute_dtype, conversion
from minigraph.ops.elementwise import kind

THREADS = 256  # of a block, of every kernel


def body_function(statements: Iterable[str], unused: Iterable[str]) -> str:
    """Return the function BODY, which a block of threads runs.

    A launch may have several kernels, so the index of the block is an argument.

    unused  variables that not every kernel needs
    """
    head = (
        "static __forceinline__ void BODY(const long long *w, int64_t block, int64_t blocks,\n"
        "                                 long long *shared)"
    )
    casts = " ".join(f"(void){name};" for name in unused)
    return f"\n{function(head, [*statements, casts])}"


def indices(walk: Walk, axes: Sequence[int], flat: str) -> list[str]:
    """Return statements that unravel the index `flat` over `axes`."""
    if not axes:
        return []
    count = walk.integer
    first, *others = axes
    inner = [f"const {count} i{d} = mg_unravel(&flat, {walk.extent(d)});" for d in reversed(others)]
    if not others:
        return [f"const {count} i{first} = {flat};"]
    return [f"{count} flat = {flat};", *inner, f"const {count} i{first} = flat;"]


def address(walk: Walk, k: int, axes: Iterable[int], base: str) -> str:
    """Return the address of operand `k` at the indices of `axes`, relative to `base`."""
    steps = " + ".join(f"i{d} * {walk.stride(k, d)}" for d in axes)
    return f"{base} + ({steps})" if steps else base


def bases(walk: Walk, axes: Sequence[int]) -> list[str]:
    """Return statements that declare the address of each operand at the indices of `axes`."""
    made = [f"const long long *const constants = w + {walk.first_constant};"]
    for k, how in enumerate(walk.pattern.accesses):
        made.append(f"char *const base{k} = {address(walk, k, axes, f'mg_global(w[{k}])')};")
        if how == "strided":
            stride = "full_stride" if k in walk.pattern.operand_windows else "stride"
            made.append(f"const {walk.integer} {stride}{k} = {walk.stride(k, walk.innermost)};")
        elif how == "fixed":
            made.append(pointer(walk.pattern, k, f"base{k}"))
    return [*made, "(void)constants;"]


def whole_groups(walk: Walk) -> list[str]:
    """Return statements that declare the numbers of whole groups and of single elements."""
    count, size = walk.integer, walk.group
    rows = " * ".join(map(walk.extent, walk.rows)) or "1"
    row_groups = f"aligned ? inner / {size} : 0" if size > 1 else "0"
    return [
        f"const {count} rows = {rows}, row_groups = {row_groups};",
        f"const {count} groups = rows * row_groups;",
        f"const {count} singles = rows * (inner - row_groups * {size});",
    ]


def position(walk: Walk, group: str) -> list[str]:
    """Return statements that unravel the number of a group to its position in the loops.

    The single elements of a row follow its whole groups.
    """
    if walk.column:
        return [*indices(walk, walk.rows, group), *_inside(walk)]
    count, size = walk.integer, walk.group
    if size > 1:
        extent, first = "row_groups", f" * {size}"
    else:
        extent, first = "(inner - tail_begin)", " + tail_begin"
    if not walk.rows:
        return [f"const {count} column = {group}{first};", *_inside(walk)]
    return [
        f"{count} row = {group};",
        f"const {count} column = mg_unravel(&row, {extent}){first};",
        *indices(walk, walk.rows, "row"),
        *_inside(walk),
    ]


def _inside(walk: Walk) -> list[str]:
    """Return statements that declare for each window whether the thread's group is inside."""
    made = []
    for window, _ in enumerate(walk.pattern.windows):
        tests = []
        for c, bound in walk.bounds(window):
            inner = f"column * {walk.stride(c, walk.innermost)}"
            outer = (d for d in range(walk.units + walk.loops) if d != walk.innermost)
            at = address(walk, c, outer, inner)
            tests.append(f"mg_in_window({at}, constants + {bound})")
        made.append(f"const bool inside{window} = {' && '.join(tests)};")
    return [*made, *(f"(void)inside{window};" for window, _ in enumerate(walk.pattern.windows))]


def load(walk: Walk, k: int, base: str, tail: bool = False) -> list[str]:
    """Return statements that load the group of operand `k`, or compute its address.

    tail  whether the group may be shorter, with n elements
    """
    if walk.pattern.accesses[k] == "fixed":
        return []
    if walk.pattern.accesses[k] != "unit" or walk.group == 1:
        return [pointer(walk.pattern, k, base, "column")]
    window = walk.pattern.operand_windows.get(k, -1)
    arguments = [f"{base} + {_column_offset(walk, k)}", *["n"] * tail]
    if window >= 0 and tail:
        arguments[1] = f"inside{window} ? n : 0"
    elif window >= 0:
        arguments.insert(0, f"inside{window}")
    return [
        f"{c_type(walk.pattern.dtypes[k])} p{k}[{walk.group}];",
        f"mg_load<{walk.group}>({', '.join([f'p{k}', *arguments])});",
    ]


def destination(walk: Walk, k: int, base: str) -> list[str]:
    """Return statements that declare where to store the group of operand `k`."""
    if walk.pattern.accesses[k] == "unit" and walk.group > 1:
        return [f"{register_type(walk.pattern.dtypes[k])} p{k}[{walk.group}];"]
    return load(walk, k, base)


def store(walk: Walk, k: int, base: str, tail: bool = False) -> list[str]:
    """Return statements that store the group of operand `k`, if it is stored as a vector."""
    if walk.pattern.accesses[k] != "unit" or walk.group == 1:
        return []
    dtype = walk.pattern.dtypes[k]
    small = f"_{dtype.name}" if dtype in SMALL_FLOATS else ""
    count = ", n" if tail else ""
    return [f"mg_store{small}<{walk.group}>({base} + {_column_offset(walk, k)}, p{k}{count});"]


def _column_offset(walk: Walk, k: int) -> str:
    return f"column * {walk.pattern.dtypes[k].itemsize}"


# ---------------------------------------------------------------- elements


def register_type(dtype: DType) -> str:
    """Return the C type of a value in registers: float for 16-bit floats."""
    return c_type(compute_dtype(dtype))


def declare(walk: Walk, v: int, index: str) -> str:
    """Return the statement that computes or loads value `v` of the element `index`."""
    pattern, value = walk.pattern, walk.pattern.values[v]
    operands = [pattern.values[a].dtype for a in value.args]
    if SMALL_FLOATS.isdisjoint((value.dtype, *operands)):
        return c_declare(pattern, v, index)
    small = value.dtype in SMALL_FLOATS
    if value.literal:
        number = np.uint16(int(value.literal)).view(value.dtype)
        right = literal(np.float32(number))
    elif value.constant >= 0:
        bits = f"*(const uint16_t *)(constants + {value.constant})"
        right = f"mg_float_of_{value.dtype.name}({bits})"
    elif value.operand >= 0:
        right = f"mg_float_of_{value.dtype.name}({element(pattern, value.operand, index)})"
    elif not value.op:
        return c_declare(pattern, v, index).replace(
            c_type(value.dtype), register_type(value.dtype), 1
        )
    else:
        arguments = [f"v{a}" for a in value.args]
        wide = [compute_dtype(dtype) for dtype in operands]
        result = compute_dtype(value.dtype)
        at = f"(begin + {index})"
        right = expression(value.op, wide, result, arguments, element=value.dtype, index=at)
        if small:
            right = _rounded(pattern, v, wide[-1], right)
    return f"const {register_type(value.dtype)} v{v} = {right};"


def _rounded(pattern: KernelPattern, v: int, source: DType, number: str) -> str:
    """Return value `v`, rounded, as a float; the store rounds a value that is only stored."""
    name = pattern.values[v].dtype.name
    if source.itemsize == 8 and kind(source) == "f":
        to, _ = conversion(source, pattern.values[v].dtype)
        return f"mg_float_of_{name}({to}({number}))"
    again = any(v in value.args for value in pattern.values)
    return f"mg_round_{name}({number})" if again else number


def each(walk: Walk, body: Iterable[str]) -> list[str]:
    """Return the loop over the elements of a group."""
    if walk.group == 1:
        return block("", "const int u = 0;", *body, "(void)u;")
    return ["#pragma unroll", *block(f"for (int u = 0; u < {walk.group}; u++)", *body)]


def load_wide(walk: Walk, values: Sequence[int], results: Sequence[int] = ()) -> list[str]:
    """Return statements that load the wide values which `values` and `results` need."""
    of = walk.pattern.values
    needed = walk.pattern.wide_needs(values, results)
    return [f"const {register_type(of[v].dtype)} v{v} = wide{v}[u];" for v in needed]


def load_ahead(walk: Walk, stage: int, count: int, visited: Sequence[str]) -> list[str]:
    """Return statements that load `count` groups from g on, then compute each.

    The compiler cannot hoist these loads, which might be beyond the end or alias a store.  Beyond
    the end group g is loaded again.

    visited  statements for one group
    """
    pattern = walk.pattern
    ahead = [k for k in pattern.loaded(pattern.run(stage)) if _is_ahead(pattern, k)]
    group = f"const {walk.integer} group = g + r * step < stop ? g + r * step : g;"
    loop = f"for (int r = 0; r < {count}; r++)"
    loads = [
        f"mg_load<{walk.group}>(loaded{k}[r], {address(walk, k, walk.rows, f'base{k}')} + "
        f"{_column_offset(walk, k)});"
        for k in ahead
    ]
    pointers = [f"const {c_type(pattern.dtypes[k])} *const p{k} = loaded{k}[r];" for k in ahead]
    return [
        *(f"{c_type(pattern.dtypes[k])} loaded{k}[{count}][{walk.group}];" for k in ahead),
        "#pragma unroll",
        *block(loop, group, *position(walk, "group"), *loads),
        "#pragma unroll",
        *block(
            loop,
            group,
            *block("if (g + r * step < stop)", *position(walk, "group"), *pointers, *visited),
        ),
    ]


def _is_ahead(pattern: KernelPattern, k: int) -> bool:
    return pattern.accesses[k] == "unit" and k not in pattern.operand_windows


def visit(
    walk: Walk, stage: int, extra: Sequence[str] = (), tail: bool = False, ahead: bool = False
) -> list[str]:
    """Return statements that load a group, compute, and store the results.

    extra  statements for an element that follow the values that the stage reduces
    tail   whether the group may be shorter, with n elements
    ahead  whether contiguous operands are already loaded
    """
    pattern = walk.pattern
    values, stores = pattern.run(stage), pattern.stored(stage)
    base = {k: address(walk, k, walk.rows, f"base{k}") for k in range(walk.operands)}
    elements = pattern.run_at(ELEMENT, stage)
    body = load_wide(walk, elements, pattern.goals(stage))
    body += [declare(walk, v, "u") for v in elements]
    body += [*store_elements(walk, stores), *extra]
    loads = [k for k in pattern.loaded(values) if not (ahead and _is_ahead(pattern, k))]
    return [
        *(line for k in loads for line in load(walk, k, base[k], tail)),
        *(line for k in stores for line in destination(walk, k, base[k])),
        *(declare(walk, v, "0") for v in pattern.run_at(ROW, stage)),
        *each(walk, body),
        *(line for k in stores for line in store(walk, k, base[k], tail)),
    ]


def store_elements(walk: Walk, stores: Sequence[int]) -> list[str]:
    """Return statements that store an element to each of the operands `stores`."""
    made = []
    for k in stores:
        value, dtype = f"v{walk.pattern.source(k)}", walk.pattern.dtypes[k]
        together = walk.pattern.accesses[k] == "unit" and walk.group > 1
        if dtype in SMALL_FLOATS and not together:
            value = f"mg_{dtype.name}_of_float({value})"
        made.append(f"{element(walk.pattern, k, 'u')} = {value};")
    return made
