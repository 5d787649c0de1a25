"""What a loader gives, and an iterable for it."""

import pytest


def values(loader):
    return [batch.tolist() for batch in loader]


WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


class Countdown:
    """An iterable without length, which begins anew each time."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))
