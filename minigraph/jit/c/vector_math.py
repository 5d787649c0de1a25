"""Vector variants of C library functions that give the same bits in every loop.

In a vectorised loop gcc calls the vector variant of a function, and in the remainder loop variants
for shorter vectors and the scalar function.  The variants in glibc's libmvec and libm differ in the
last place, and the length of loops depends on the kernel.  Kernels therefore call mg_sinf instead
of sinf, for example: all variants of mg_sinf call libmvec's widest variant, with copies of their
arguments in all lanes.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterator, Mapping, Sequence

# The functions in libmvec: the version of glibc, the number of arguments, names.  glibc declares
# variants only with -ffast-math, which gives up NaN and infinity.  prelude.c defines the functions
# of _IN_PRELUDE, and _FMOD defines `fmod`.
_LIBMVEC = (
    ((2, 22), 1, ("sin", "cos", "exp", "log")),
    ((2, 22), 2, ("pow",)),
    ((2, 35), 1, ("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh")),
    ((2, 35), 1, ("atanh", "expm1", "log1p", "log2", "log10", "erf", "erfc")),
    ((2, 35), 2, ("atan2", "hypot")),
    ((0, 0), 2, ("fmod",)),
)
# libmvec has no fmod.  This definition calls the scalar function if |x| >= |y| in some lane.
_FMOD = """\
static __attribute__((noinline)) {wide} mg_{name}_by_lane({wide} x, {wide} y) {{
  for (int k = 0; k < {lanes}; k++)
    if (!(fabs{f}(x[k]) < fabs{f}(y[k]))) x[k] = {name}(x[k], y[k]);
  return x;
}}
static __attribute__((noinline)) {wide} {widest}({wide} x, {wide} y) {{
  int any = 0;
  for (int k = 0; k < {lanes}; k++) any |= !(fabs{f}(x[k]) < fabs{f}(y[k]));
  return any ? mg_{name}_by_lane(x, y) : x;
}}"""
_IN_PRELUDE = ("expf", "exp", "tanhf", "tanh", "erfcf", "erff")
_TYPES = {"float": ("f", 4), "double": ("", 8)}  # suffix of the functions, and bytes

# The variants that gcc may call under a condition, widest first: letter and bytes of a vector.
_VARIANTS = {
    "defined(__AVX512F__)": (("e", 64), ("d", 32), ("b", 16)),
    "defined(__AVX2__)": (("d", 32), ("b", 16)),
    "defined(__AVX__)": (("c", 32), ("b", 16)),
    "1": (("b", 16),),
}
_ATTRIBUTES = "static __attribute__((used, noinline))"
# A call of each type and of each number of operands.
EACH_KIND = "sinf(x) sin(x) powf(x, y) pow(x, y) fmodf(x, y) fmod(x, y)"


def vector_math(kernels: str) -> str:
    """Return definitions of the vector functions that `kernels` call.

    Clang does not vectorise calls of unknown functions, so it compiles scalar calls.
    """
    called = set(re.findall(r"\b[a-z][a-z0-9]*(?=\()", kernels))
    functions = {n: signature for n, signature in vector_functions().items() if n in called}
    if not functions:
        return ""
    lines = ["#if !defined(__clang__)", "#if 0"]
    for condition, variants in _VARIANTS.items():
        lines.append(f"#elif {condition}")
        for t in _TYPES:
            for _, size in variants:
                lines.append(
                    f"typedef {t} {_vector(t, size)} __attribute__((vector_size({size})));"
                )
        for name, (t, arguments) in functions.items():
            lines += _definitions(name, t, arguments, variants)
    lines.append("#endif")
    for name, (t, arguments) in functions.items():
        lines += [
            "#pragma omp declare simd notinbranch",
            f"{t} mg_{name}({', '.join([t] * arguments)}) __attribute__((const, nothrow, leaf));",
            f"#define {name} mg_{name}",
        ]
    return "\n".join([*lines, "#endif\n"])


@functools.cache
def vector_functions() -> Mapping[str, tuple[str, int]]:
    """Return the type and number of arguments of each function with vector variants."""
    library, version = platform.libc_ver()
    if library != "glibc" or platform.machine() != "x86_64":
        return {}
    installed = tuple(map(int, version.split(".")[:2]))
    return {
        f"{name}{suffix}": (t, arguments)
        for since, arguments, names in _LIBMVEC
        for name in (names if installed >= since else ())
        for t, (suffix, _) in _TYPES.items()
        if f"{name}{suffix}" not in _IN_PRELUDE
    }


def _vector(t: str, size: int) -> str:
    return f"mg_{t}_{size}"


def _definitions(
    name: str, t: str, arguments: int, variants: Sequence[tuple[str, int]]
) -> Iterator[str]:
    """Yield the vector variants of a function, with the names that gcc calls, and the scalar."""
    suffix, element = _TYPES[t]
    operands, lengths = "xy"[:arguments], [size // element for _, size in variants]
    symbols = [
        f"_ZGV{letter}N{length}{'v' * arguments}_"
        for (letter, _), length in zip(variants, lengths, strict=True)
    ]
    all_type, widest = _vector(t, variants[0][1]), f"{symbols[0]}{name}"
    if name == f"fmod{suffix}":
        yield _FMOD.format(wide=all_type, widest=widest, name=name, lanes=lengths[0], f=suffix)
    else:
        yield f"{all_type} {widest}({', '.join([all_type] * arguments)});"
    # gcc would generate variants of a definition that has the name of the declaration.
    yield f'{_ATTRIBUTES} {t} mg_scalar_{name}({", ".join([t] * arguments)}) __asm__("mg_{name}");'
    functions = [(t, f"mg_scalar_{name}", [""], "all[0]")]  # operands' type, name, lanes, result
    for symbol, length, (_, size) in zip(symbols, lengths, variants, strict=True):
        type_, lanes = _vector(t, size), [f"[{i}]" for i in range(length)]
        result = f"({type_}){{{', '.join([f'all{lane}' for lane in lanes])}}}"
        functions.append((type_, f"{symbol}mg_{name}", lanes, result))
    for type_, called, lanes, result in functions:
        copies = lanes * (lengths[0] // len(lanes))
        filled = [f"({all_type}){{{', '.join([x + lane for lane in copies])}}}" for x in operands]
        head = f"{_ATTRIBUTES} {type_} {called}({', '.join([f'{type_} {x}' for x in operands])})"
        yield f"{head} {{ const {all_type} all = {widest}({', '.join(filled)}); return {result}; }}"
