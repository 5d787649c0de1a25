"""C text from a file, parametrised by macros."""

from __future__ import annotations


def with_macros(text: str, **macros: object) -> str:
    """Return C text with macros around it, undefined at its end for the texts that follow.

    >>> print(with_macros("T NAME(T x) { return x; }", T="float"))
    #define T float
    T NAME(T x) { return x; }
    #undef T
    """
    define = [f"#define {name} {value}" for name, value in macros.items()]
    undefine = [f"#undef {name.partition('(')[0]}" for name in macros]
    return "\n".join([*define, text.strip(), *undefine])
