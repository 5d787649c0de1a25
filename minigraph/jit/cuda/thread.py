"""Statements that CUDA kernels of either kind are made of: where a thread is, loads and stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigraph.jit.c.body import declare, element, pointer
from minigraph.jit.cuda.walk import Walk
from minigraph.jit.emitter import block, function
from minigraph.jit.expression import c_type
from minigraph.jit.pattern import ELEMENT, ROW

THREADS = 256  # of a block, of every kernel


def part(statements: Iterable[str], unused: Iterable[str]) -> str:
    """Return the function BODY, which a block of threads runs.

    A launch may hold several kernels, so a kernel is told which of its blocks this is; `cells` is
    shared memory.

    unused  variables that not every kernel needs
    """
    head = (
        "static __forceinline__ void BODY(const long long *w, int64_t block, int64_t blocks,\n"
        "                                 long long *cells)"
    )
    casts = " ".join(f"(void){name};" for name in unused)
    return f"\n{function(head, [*statements, casts])}"


def indices(walk: Walk, axes: Sequence[int], flat: str) -> list[str]:
    """Return statements that take a flat index over `axes` apart."""
    if not axes:
        return []
    first, *others = axes
    taken = [f"const int64_t i{d} = mg_take(&flat, {walk.extent(d)});" for d in reversed(others)]
    if not others:
        return [f"const int64_t i{first} = {flat};"]
    return [f"int64_t flat = {flat};", *taken, f"const int64_t i{first} = flat;"]


def place(walk: Walk, k: int, axes: Iterable[int], base: str) -> str:
    """Return the address of operand `k` at the indices of `axes`, from `base` on."""
    return " + ".join([base, *(f"i{d} * {walk.stride(k, d)}" for d in axes)])


def bases(walk: Walk, axes: Sequence[int]) -> list[str]:
    """Return statements for where each operand begins, at the indices of `axes`."""
    made = [f"const long long *const constants = w + {walk.first_constant};"]
    for k, how in enumerate(walk.pattern.accesses):
        made.append(f"char *const base{k} = {place(walk, k, axes, f'mg_global(w[{k}])')};")
        if how == "strided":
            made.append(f"const int64_t step{k} = {walk.stride(k, walk.innermost)};")
        elif how == "fixed":
            made.append(pointer(walk.pattern, k, f"base{k}"))
    return [*made, "(void)constants;"]


def position(walk: Walk, group: str) -> list[str]:
    """Return statements for where along the loops the thread's group lies, from its number."""
    if walk.column:
        return indices(walk, walk.rows, group)
    size = walk.group
    times = f" * {size}" if size > 1 else ""
    if not walk.rows:
        made = [f"const int64_t column = {group}{times};"]
    else:
        across = f"(inner + {size - 1}) / {size}" if size > 1 else "inner"
        made = [
            f"int64_t row = {group};",
            f"const int64_t column = mg_take(&row, {across}){times};",
            *indices(walk, walk.rows, "row"),
        ]
    if size > 1:
        made.append(f"const int64_t n = inner - column < {size} ? inner - column : {size};")
    return made


def load(walk: Walk, k: int, base: str) -> list[str]:
    """Return statements that load the group of operand `k`, or say where it is."""
    if walk.pattern.accesses[k] == "fixed":
        return []
    if walk.pattern.accesses[k] != "unit" or walk.group == 1:
        return [pointer(walk.pattern, k, base, "column")]
    return [_array(walk, k), f"mg_load<{walk.group}>(p{k}, {_beside(walk, k, base)}, n, vector);"]


def destination(walk: Walk, k: int, base: str) -> list[str]:
    """Return statements that say where the group of operand `k` is to be put."""
    if walk.pattern.accesses[k] == "unit" and walk.group > 1:
        return [_array(walk, k)]
    return load(walk, k, base)


def store(walk: Walk, k: int, base: str) -> list[str]:
    """Return statements that store the group of operand `k`, where this is done at once."""
    if walk.pattern.accesses[k] != "unit" or walk.group == 1:
        return []
    return [f"mg_store<{walk.group}>({_beside(walk, k, base)}, p{k}, n, vector);"]


def _array(walk: Walk, k: int) -> str:
    return f"{c_type(walk.pattern.dtypes[k])} p{k}[{walk.group}];"


def _beside(walk: Walk, k: int, base: str) -> str:
    return f"{base} + column * {walk.pattern.dtypes[k].itemsize}"


def each(walk: Walk, body: Iterable[str]) -> list[str]:
    """Return the loop over the elements of a group."""
    if walk.group == 1:
        return block("", "const int u = 0;", *body, "(void)u;")
    return ["#pragma unroll", *block(f"for (int u = 0; u < {walk.group}; u++)", *body)]


def taken(walk: Walk, values: Sequence[int], results: Sequence[int] = ()) -> list[str]:
    """Return statements that take the wide values which `values` and `results` need."""
    of = walk.pattern.values
    needed = {a for v in values if not of[v].reduces for a in of[v].args}.union(results)
    there = sorted((needed & walk.wide).difference(values))
    return [f"const {c_type(of[v].dtype)} v{v} = all{v}[u];" for v in there]


def visit(walk: Walk, stage: int, extra: Sequence[str] = ()) -> list[str]:
    """Return statements that load a group, compute with it and store what is made of it.

    extra  statements on an element, in which the values that the stage reduces are known
    """
    pattern = walk.pattern
    values, stores = pattern.run(stage), pattern.stored(stage)
    base = {k: place(walk, k, walk.rows, f"base{k}") for k in range(walk.operands)}
    fed = [pattern.values[v].args[0] for v in pattern.reduced(stage)]
    elements = [v for v in values if pattern.values[v].level == ELEMENT]
    body = taken(walk, elements, [*fed, *map(pattern.source, stores)])
    body += [declare(pattern, v, "u") for v in elements]
    body += [*put(walk, stores), *extra]
    return [
        *(line for k in pattern.loaded(values) for line in load(walk, k, base[k])),
        *(line for k in stores for line in destination(walk, k, base[k])),
        *(declare(pattern, v, "0") for v in values if pattern.values[v].level == ROW),
        *each(walk, body),
        *(line for k in stores for line in store(walk, k, base[k])),
    ]


def put(walk: Walk, stores: Sequence[int]) -> list[str]:
    """Return statements that put an element where each of the operands `stores` has it."""
    pattern = walk.pattern
    return [f"{element(pattern, k, 'u')} = v{pattern.source(k)};" for k in stores]
