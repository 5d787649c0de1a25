"""Helpers for the tests of data: comparison of batches, an iterable, the loader's threads."""

import threading
import time

import numpy as np
import pytest

from minigraph.data import Dataset

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


class Noisy(Dataset):
    """A set that augments by adding noise, slowly enough for threads to overtake each other."""

    shape = (1, 2, 2)
    classes = ("only",)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full(self.shape, self.position(index), np.float32), 0

    def example(self, index, rng):
        image, label = self[index]
        time.sleep(0.001 * (index % 3))
        return image + rng.random(self.shape, np.float32), label
