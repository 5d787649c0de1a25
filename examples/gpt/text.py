"""The text to learn from, as tokens: a token is the number of a character."""

import ast
import sysconfig
from pathlib import Path

import numpy as np

from minigraph import GraphError

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # printable ASCII; others become "?"
TOKENS = {character: token for token, character in enumerate(CHARACTERS)}
TOKEN_OF_BYTE = np.array([TOKENS.get(chr(i), TOKENS["?"]) for i in range(128)], np.uint8)


def documentation():
    """Return the docstrings of the modules of Python's standard library, in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    docstrings = (_docstrings(path) for path in sorted(folder.glob("*.py")))
    return "\n\n".join(text for texts in docstrings for text in texts)


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
    return TOKEN_OF_BYTE[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]


def decode(tokens):
    """Return the text of tokens."""
    return "".join(CHARACTERS[token] for token in tokens)


def rows(tokens, length):
    """Return rows of tokens, and the token that follows each: two int64 arrays (rows, length)."""
    count = (len(tokens) - 1) // length
    if count < 1:
        raise GraphError(f"a text of {len(tokens)} characters is too short for a row of {length}")
    shape = (count, length)
    inputs, targets = (tokens[i : i + count * length].reshape(shape) for i in (0, 1))
    return inputs.astype(np.int64), targets.astype(np.int64)
