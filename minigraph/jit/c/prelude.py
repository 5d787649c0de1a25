"""The C text that stands before all kernels of a translation unit."""

from __future__ import annotations

import platform
from pathlib import Path

from minigraph.jit.kernel import MAX_RANK

PRELUDE = f"#define MG_MAX_RANK {MAX_RANK}\n" + Path(__file__).with_name("prelude.c").read_text()

# Functions that glibc's libmvec has vector variants of, since which version.  Declared so, gcc
# vectorises loops that call them without giving up NaN and infinity, as -ffast-math would.
_VECTOR_MATH = {
    (2, 22): ("sin", "cos", "exp", "log"),
    (2, 35): (
        *("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("expm1", "log1p", "log2", "log10", "erf", "erfc"),
    ),
}
_VECTOR_MATH_2 = {(2, 22): ("pow",), (2, 35): ("atan2", "hypot")}


def vector_math() -> str:
    """Return the declarations for the C library of this machine."""
    library, version = platform.libc_ver()
    if library != "glibc" or platform.machine() != "x86_64":
        return ""
    have = tuple(map(int, version.split(".")[:2]))
    lines = []
    for table, arguments in ((_VECTOR_MATH, 1), (_VECTOR_MATH_2, 2)):
        for since, names in table.items():
            for name in names if have >= since else ():
                for suffix, t in (("", "double"), ("f", "float")):
                    if f"{name}{suffix}" in ("expf", "tanhf"):  # prelude.c has its own
                        continue
                    lines.append("#pragma omp declare simd notinbranch")
                    lines.append(f"{t} {name}{suffix}({', '.join([t] * arguments)});")
    return "\n".join(lines) + "\n"
