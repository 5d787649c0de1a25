"""Statements of C and CUDA as lines of indented text.

>>> print(function("int f(int n)", ["int y = 0;", *block("while (n)", "y += n--;"), "return y;"]))
int f(int n) {
  int y = 0;
  while (n) {
    y += n--;
  }
  return y;
}
"""

from __future__ import annotations

from collections.abc import Iterable


def indented(statements: Iterable[str]) -> list[str]:
    """Return the lines of statements, indented by one more level."""
    return [f"  {line}" for statement in statements for line in statement.splitlines()]


def block(head: str, *statements: str) -> list[str]:
    """Return `head`, which may be empty, followed by statements in braces."""
    return [f"{head} {{".lstrip(), *indented(statements), "}"]


def function(head: str, statements: Iterable[str]) -> str:
    return "\n".join(block(head, *statements))
