"""The C text that stands before all kernels of a translation unit."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from minigraph.jit.kernel import MAX_RANK

PRELUDE = f"#define MG_MAX_RANK {MAX_RANK}\n" + Path(__file__).with_name("prelude.c").read_text()

# Functions that glibc's libmvec has vector variants of, since which version, and their arguments.
# Declared so, gcc vectorises loops that call them without giving up NaN and infinity, as
# -ffast-math would.  Of `expf` and `tanhf` prelude.c has its own.
_VECTOR_MATH = (
    ((2, 22), 1, ("sin", "cos", "exp", "log")),
    ((2, 22), 2, ("pow",)),
    ((2, 35), 1, ("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh")),
    ((2, 35), 1, ("atanh", "expm1", "log1p", "log2", "log10", "erf", "erfc")),
    ((2, 35), 2, ("atan2", "hypot")),
)
_OWN = ("expf", "tanhf")
_SUFFIXES = {"float": "f", "double": ""}
_SIZES = {"float": 4, "double": 8}

# Under which macro gcc may call which variants, the widest first: their letter and bytes.
_INSTRUCTIONS = (
    ("defined(__AVX512F__)", (("e", 64), ("d", 32), ("b", 16))),
    ("defined(__AVX2__)", (("d", 32), ("b", 16))),
    ("defined(__AVX__)", (("c", 32), ("b", 16))),
    ("1", (("b", 16),)),
)

# In a loop gcc calls a function's variant for vectors as long as the loop's, and for what is left
# the variants for shorter ones and the scalar function.  libmvec's and libm's differ in the last
# place, and the length of a loop depends on the kernel.  So kernels call functions of another name,
# all variants of which call libmvec's widest, with copies of what they get.
_CALLED = "static __attribute__((used, noinline))"


def vector_math(kernels: str | None = None) -> str:
    """Return the functions of the C library of this machine that `kernels` call, or all."""
    found = _functions()
    if kernels is not None:
        called = set(re.findall(r"\b[a-z][a-z0-9]*(?=\()", kernels))
        found = {name: how for name, how in found.items() if name in called}
    if not found:
        return ""
    lines = [
        "#if !defined(__clang__)"
    ]  # which vectorises no calls of functions that it does not know
    for condition, variants in _INSTRUCTIONS:
        lines.append(f"#{'if' if variants is _INSTRUCTIONS[0][1] else 'elif'} {condition}")
        for bytes_ in (bytes_ for _, bytes_ in variants):
            for t in _SIZES:
                lines.append(
                    f"typedef {t} {_vector(t, bytes_)} __attribute__((vector_size({bytes_})));"
                )
        for name, (t, arguments) in found.items():
            lines += _definitions(name, t, arguments, variants)
    lines.append("#endif")
    for name, (t, arguments) in found.items():
        lines += [
            "#pragma omp declare simd notinbranch",
            f"{t} mg_{name}({', '.join([t] * arguments)}) __attribute__((const, nothrow, leaf));",
            f"#define {name} mg_{name}",
        ]
    return "\n".join([*lines, "#endif\n"])


def _functions() -> Mapping[str, tuple[str, int]]:
    """Return the type and the number of arguments of the functions that have vector variants."""
    library, version = platform.libc_ver()
    if library != "glibc" or platform.machine() != "x86_64":
        return {}
    there = tuple(map(int, version.split(".")[:2]))
    return {
        f"{name}{suffix}": (t, arguments)
        for since, arguments, names in _VECTOR_MATH
        for name in (names if there >= since else ())
        for t, suffix in _SUFFIXES.items()
        if f"{name}{suffix}" not in _OWN
    }


def _vector(t: str, bytes_: int) -> str:
    return f"mg_{t}_{bytes_}"


def _definitions(
    name: str, t: str, arguments: int, variants: tuple[tuple[str, int], ...]
) -> Iterator[str]:
    """Yield the variants of a function, under the names that gcc looks for, and the scalar one."""

    def variant(letter: str, bytes_: int, of: str) -> str:
        return f"_ZGV{letter}N{bytes_ // _SIZES[t]}{'v' * arguments}_{of}"

    size, (letter, most) = _SIZES[t], variants[0]
    wide, widest = _vector(t, most), variant(letter, most, name)
    names = "xy"[:arguments]
    yield f"{wide} {widest}({', '.join([wide] * arguments)});"
    for letter, bytes_ in variants:
        own, lanes = _vector(t, bytes_), bytes_ // size
        made = variant(letter, bytes_, f"mg_{name}")
        head = f"{_CALLED} {own} {made}({', '.join(f'{own} {x}' for x in names)})"
        given = (", ".join(f"{x}[{i % lanes}]" for i in range(most // size)) for x in names)
        first = ", ".join(f"all[{i}]" for i in range(lanes))
        call = f"{widest}({', '.join(f'({wide}){{{each}}}' for each in given)})"
        yield f"{head} {{ const {wide} all = {call}; return ({own}){{{first}}}; }}"
    parameters = ", ".join(f"{t} {x}" for x in names)
    given = (", ".join([x] * (most // size)) for x in names)
    call = f"{widest}({', '.join(f'({wide}){{{each}}}' for each in given)})"
    # A definition under its own name would have variants made of its text.
    yield f'{_CALLED} {t} mg_scalar_{name}({parameters}) __asm__("mg_{name}");'
    yield f"{_CALLED} {t} mg_scalar_{name}({parameters}) {{ return {call}[0]; }}"
