"""Data sets of the tests, and what their batches are compared with."""

import threading

import numpy as np


def same(left, right):
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        np.array_equal(x, y) and np.array_equal(i, j)
        for (x, i), (y, j) in zip(left, right, strict=True)
    )


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("minigraph-data")]
