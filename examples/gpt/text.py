"""A text to learn from, as tokens: numbers of its characters."""

import ast
import sysconfig
from pathlib import Path

import numpy as np

from minigraph import GraphError

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # printable ASCII; others become "?"
TOKENS = {character: token for token, character in enumerate(CHARACTERS)}
OF_ASCII = np.array([TOKENS.get(chr(i), TOKENS["?"]) for i in range(128)], np.uint8)


def documentation():
    """Return the docstrings of the modules of Python's standard library, in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = (_docstrings(path) for path in sorted(folder.glob("*.py")))
    return "\n\n".join(text for texts in found for text in texts)


def _docstrings(path):
    tree = ast.parse(path.read_bytes())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def read(path):
    """Return the text of a file; GraphError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise GraphError(f"--data {path}: {error.strerror}") from None


def encode(text):
    """Return the tokens of a text, uint8."""
    return OF_ASCII[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]


def decode(tokens):
    """Return the text of tokens."""
    return "".join(CHARACTERS[token] for token in tokens)


def rows(tokens, length):
    """Return rows of tokens and for each token the next one: two arrays (rows, length) of int64."""
    count = (len(tokens) - 1) // length
    if count < 1:
        raise GraphError(f"a text of {len(tokens)} characters has no row of {length}")
    shape = (count, length)
    now, then = (tokens[i : i + count * length].reshape(shape).astype(np.int64) for i in (0, 1))
    return now, then
