"""A plugin of pytest: the op of docs/own.md becomes one of those that the generic tests find."""

import re
from pathlib import Path

import numpy as np

from minigraph import ops

PAGE = Path(__file__).parents[1] / "docs" / "own.md"


def solutions():
    """Return the Python of each solution of the page."""
    found = re.findall(r"<summary>Solution</summary>(.*?)</details>", PAGE.read_text(), re.S)
    return [re.search(r"```python\n(.*?)```", solution, re.S)[1] for solution in found]


def names_of(number):
    """Run a solution; return what it defines."""
    names = {"np": np, "ops": ops}
    exec(compile(solutions()[number], f"solution {number}", "exec"), names)
    return names


def pytest_configure(config):
    names_of(0)["PseudoHuber"].__module__ = ops.__name__
