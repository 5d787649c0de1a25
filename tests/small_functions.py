"""Small functions on each device, numbers for them, and where in a test a message points to."""

import linecache
import re
from pathlib import Path

import numpy as np

import minigraph as mg

DEVICES = ["cpu", "reference", "toy"]


def real(*size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def parameter(*size, name="w", seed=1, dtype="float32"):
    return mg.Parameter(real(*size, seed=seed), name, dtype=dtype)


def user_line(error):
    """The line of a test that a message, which has to be one line, points to."""
    message = str(error.value)
    assert "\n" not in message
    folder = re.escape(str(Path(__file__).parent))
    ((file, number),) = set(re.findall(rf"({folder}/\w+/test_\w+\.py):(\d+)", message))
    return linecache.getline(file, int(number)).strip()


def difference(cg):
    """A function of three inputs in which none can stand for another."""
    a, b, c = (mg.input(name, (2,)) for name in "abc")
    return cg.compile([a, b, c], a + b * 10 + c * 100)


def increment(cg, shape, dtype="float32"):
    x = mg.input("x", shape, dtype)
    return cg.compile([x], x + np.ones((), x.dtype))
