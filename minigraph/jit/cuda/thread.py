"""Statements of all CUDA kernels: the position of a thread, loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minigraph.graph import DType
from minigraph.jit.c.body import declare as c_declare
from minigraph.jit.c.body import element, pointer
from minigraph.jit.cuda.thread_mapping import ThreadMapping
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


def indices(mapping: ThreadMapping, axes: Sequence[int], flat: str) -> list[str]:
    """Return statements that unravel the index `flat` over `axes`."""
    if not axes:
        return []
    count = mapping.integer
    first, *others = axes
    inner = [
        f"const {count} i{d} = mg_unravel(&flat, {mapping.extent(d)});" for d in reversed(others)
    ]
    if not others:
        return [f"const {count} i{first} = {flat};"]
    return [f"{count} flat = {flat};", *inner, f"const {count} i{first} = flat;"]


def address(mapping: ThreadMapping, k: int, axes: Iterable[int], base: str) -> str:
    """Return the address of operand `k` at the indices of `axes`, relative to `base`."""
    steps = " + ".join(f"i{d} * {mapping.stride(k, d)}" for d in axes)
    return f"{base} + ({steps})" if steps else base


def bases(mapping: ThreadMapping, axes: Sequence[int]) -> list[str]:
    """Return statements that declare the address of each operand at the indices of `axes`."""
    lines = [f"const long long *const constants = w + {mapping.first_constant};"]
    for k, access in enumerate(mapping.pattern.accesses):
        lines.append(f"char *const base{k} = {address(mapping, k, axes, f'mg_global(w[{k}])')};")
        if access == "strided":
            stride = "full_stride" if k in mapping.pattern.operand_windows else "stride"
            lines.append(
                f"const {mapping.integer} {stride}{k} = {mapping.stride(k, mapping.innermost)};"
            )
        elif access == "fixed":
            lines.append(pointer(mapping.pattern, k, f"base{k}"))
    return [*lines, "(void)constants;"]


def whole_groups(mapping: ThreadMapping) -> list[str]:
    """Return statements that declare the numbers of whole groups and of single elements."""
    count, size = mapping.integer, mapping.group
    rows = " * ".join(map(mapping.extent, mapping.rows)) or "1"
    row_groups = f"aligned ? inner / {size} : 0" if size > 1 else "0"
    return [
        f"const {count} rows = {rows}, row_groups = {row_groups};",
        f"const {count} groups = rows * row_groups;",
        f"const {count} singles = rows * (inner - row_groups * {size});",
    ]


def position(mapping: ThreadMapping, group: str) -> list[str]:
    """Return statements that unravel the number of a group to its position in the loops.

    The single elements of a row follow its whole groups.
    """
    if mapping.column:
        return [*indices(mapping, mapping.rows, group), *_window_tests(mapping)]
    count, size = mapping.integer, mapping.group
    if size > 1:
        extent, first = "row_groups", f" * {size}"
    else:
        extent, first = "(inner - tail_begin)", " + tail_begin"
    if not mapping.rows:
        return [f"const {count} column = {group}{first};", *_window_tests(mapping)]
    return [
        f"{count} row = {group};",
        f"const {count} column = mg_unravel(&row, {extent}){first};",
        *indices(mapping, mapping.rows, "row"),
        *_window_tests(mapping),
    ]


def _window_tests(mapping: ThreadMapping) -> list[str]:
    """Return statements that declare whether the thread's group is inside each window."""
    lines = []
    for window, _ in enumerate(mapping.pattern.windows):
        tests = []
        for c, bound in mapping.bounds(window):
            inner = f"column * {mapping.stride(c, mapping.innermost)}"
            outer = (d for d in range(mapping.units + mapping.loops) if d != mapping.innermost)
            position = address(mapping, c, outer, inner)
            tests.append(f"mg_in_window({position}, constants + {bound})")
        lines.append(f"const bool inside{window} = {' && '.join(tests)};")
    return [*lines, *(f"(void)inside{window};" for window, _ in enumerate(mapping.pattern.windows))]


def load(mapping: ThreadMapping, k: int, base: str, tail: bool = False) -> list[str]:
    """Return statements that load the group of operand `k`, or compute its address.

    tail  whether the group may be shorter, with n elements
    """
    if mapping.pattern.accesses[k] == "fixed":
        return []
    if mapping.pattern.accesses[k] != "unit" or mapping.group == 1:
        return [pointer(mapping.pattern, k, base, "column")]
    window = mapping.pattern.operand_windows.get(k, -1)
    arguments = [f"{base} + {_column_offset(mapping, k)}", *["n"] * tail]
    if window >= 0 and tail:
        arguments[1] = f"inside{window} ? n : 0"
    elif window >= 0:
        arguments.insert(0, f"inside{window}")
    return [
        f"{c_type(mapping.pattern.dtypes[k])} p{k}[{mapping.group}];",
        f"mg_load<{mapping.group}>({', '.join([f'p{k}', *arguments])});",
    ]


def destination(mapping: ThreadMapping, k: int, base: str) -> list[str]:
    """Return statements that declare where to store the group of operand `k`."""
    if mapping.pattern.accesses[k] == "unit" and mapping.group > 1:
        return [f"{register_type(mapping.pattern.dtypes[k])} p{k}[{mapping.group}];"]
    return load(mapping, k, base)


def store(mapping: ThreadMapping, k: int, base: str, tail: bool = False) -> list[str]:
    """Return statements that store the group of operand `k` if it is a vector in registers."""
    if mapping.pattern.accesses[k] != "unit" or mapping.group == 1:
        return []
    dtype = mapping.pattern.dtypes[k]
    small = f"_{dtype.name}" if dtype in SMALL_FLOATS else ""
    count = ", n" if tail else ""
    return [
        f"mg_store{small}<{mapping.group}>({base} + {_column_offset(mapping, k)}, p{k}{count});"
    ]


def _column_offset(mapping: ThreadMapping, k: int) -> str:
    return f"column * {mapping.pattern.dtypes[k].itemsize}"


# ---------------------------------------------------------------- elements


def register_type(dtype: DType) -> str:
    """Return the C type of a value in registers: float for 16-bit floats."""
    return c_type(compute_dtype(dtype))


def declare(mapping: ThreadMapping, v: int, index: str) -> str:
    """Return the statement that computes or loads value `v` of the element `index`."""
    pattern, value = mapping.pattern, mapping.pattern.values[v]
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
        dtypes = [compute_dtype(dtype) for dtype in operands]
        result = compute_dtype(value.dtype)
        position = f"(begin + {index})"
        right = expression(value.op, dtypes, result, arguments, element=value.dtype, index=position)
        if small:
            right = _rounded(pattern, v, dtypes[-1], right)
    return f"const {register_type(value.dtype)} v{v} = {right};"


def _rounded(pattern: KernelPattern, v: int, source: DType, number: str) -> str:
    """Return value `v` as a float, rounded unless no other value reads it: stores round."""
    name = pattern.values[v].dtype.name
    if source.itemsize == 8 and kind(source) == "f":
        convert, _ = conversion(source, pattern.values[v].dtype)
        return f"mg_float_of_{name}({convert}({number}))"
    is_operand = any(v in value.args for value in pattern.values)
    return f"mg_round_{name}({number})" if is_operand else number


def unrolled(mapping: ThreadMapping, body: Iterable[str]) -> list[str]:
    """Return the unrolled loop over the elements of a group."""
    if mapping.group == 1:
        return block("", "const int u = 0;", *body, "(void)u;")
    return ["#pragma unroll", *block(f"for (int u = 0; u < {mapping.group}; u++)", *body)]


def load_wide(
    mapping: ThreadMapping, values: Sequence[int], results: Sequence[int] = ()
) -> list[str]:
    """Return statements that load the wide values which `values` and `results` need."""
    wide = ((v, mapping.pattern.values[v]) for v in mapping.pattern.wide_operands(values, results))
    return [f"const {register_type(value.dtype)} v{v} = wide{v}[u];" for v, value in wide]


def load_groups(mapping: ThreadMapping, stage: int, count: int, body: Sequence[str]) -> list[str]:
    """Return statements that load `count` groups from g on, then compute each.

    The compiler cannot hoist these loads, which might be beyond the end or alias a store.  Instead
    of a group beyond the end, group g is loaded again.

    body  statements for one group
    """
    pattern = mapping.pattern
    operands = [k for k in pattern.loaded(pattern.run(stage)) if _is_vector(pattern, k)]
    group = f"const {mapping.integer} group = g + r * step < stop ? g + r * step : g;"
    loop = f"for (int r = 0; r < {count}; r++)"
    loads = [
        f"mg_load<{mapping.group}>(loaded{k}[r], {address(mapping, k, mapping.rows, f'base{k}')} + "
        f"{_column_offset(mapping, k)});"
        for k in operands
    ]
    pointers = [f"const {c_type(pattern.dtypes[k])} *const p{k} = loaded{k}[r];" for k in operands]
    return [
        *(f"{c_type(pattern.dtypes[k])} loaded{k}[{count}][{mapping.group}];" for k in operands),
        "#pragma unroll",
        *block(loop, group, *position(mapping, "group"), *loads),
        "#pragma unroll",
        *block(
            loop,
            group,
            *block("if (g + r * step < stop)", *position(mapping, "group"), *pointers, *body),
        ),
    ]


def _is_vector(pattern: KernelPattern, k: int) -> bool:
    """Whether a group of operand `k` is always loaded as a vector."""
    return pattern.accesses[k] == "unit" and k not in pattern.operand_windows


def visit(
    mapping: ThreadMapping,
    stage: int,
    extra: Sequence[str] = (),
    tail: bool = False,
    loaded: bool = False,
) -> list[str]:
    """Return statements that load a group, compute, and store the results.

    extra   statements for an element, after those that compute its values
    tail    whether the group may be shorter, with n elements
    loaded  whether contiguous operands are already loaded
    """
    pattern = mapping.pattern
    values, stores = pattern.run(stage), pattern.stored(stage)
    base = {k: address(mapping, k, mapping.rows, f"base{k}") for k in range(mapping.operands)}
    elements = pattern.run_at(ELEMENT, stage)
    body = load_wide(mapping, elements, pattern.roots(stage))
    body += [declare(mapping, v, "u") for v in elements]
    body += [*store_elements(mapping, stores), *extra]
    loads = [k for k in pattern.loaded(values) if not (loaded and _is_vector(pattern, k))]
    return [
        *(line for k in loads for line in load(mapping, k, base[k], tail)),
        *(line for k in stores for line in destination(mapping, k, base[k])),
        *(declare(mapping, v, "0") for v in pattern.run_at(ROW, stage)),
        *unrolled(mapping, body),
        *(line for k in stores for line in store(mapping, k, base[k], tail)),
    ]


def store_elements(mapping: ThreadMapping, stores: Sequence[int]) -> list[str]:
    """Return statements that store an element to each of the operands `stores`."""
    lines = []
    for k in stores:
        value, dtype = f"v{mapping.pattern.source(k)}", mapping.pattern.dtypes[k]
        together = mapping.pattern.accesses[k] == "unit" and mapping.group > 1
        if dtype in SMALL_FLOATS and not together:
            value = f"mg_{dtype.name}_of_float({value})"
        lines.append(f"{element(mapping.pattern, k, 'u')} = {value};")
    return lines
