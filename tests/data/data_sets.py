"""What the tests of data share: batches compared, an iterable, the loader's threads."""

import threading

import numpy as np
import pytest

WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


def same(left, right):
    left, right = list(left), list(right)
    return len(left) == len(right) and all(
        np.array_equal(x, y) and np.array_equal(i, j)
        for (x, i), (y, j) in zip(left, right, strict=True)
    )


def values(loader):
    return [batch.tolist() for batch in loader]


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("minigraph-data")]


class Countdown:
    """An iterable without length, which begins anew each time."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))
