"""Text from a file, with what varies in it as macros."""

from __future__ import annotations


def with_macros(text: str, **macros: object) -> str:
    """Return C text with macros that end with it: other kernels stand in the same unit.

    >>> print(with_macros("T NAME(T x) { return x; }", T="float"))
    #define T float
    T NAME(T x) { return x; }
    #undef T
    """
    define = [f"#define {name} {value}" for name, value in macros.items()]
    undefine = [f"#undef {name}" for name in macros]
    return "\n".join([*define, text.strip(), *undefine])
